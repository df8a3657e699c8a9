"""The training itself, by transformers' Trainer: epochs, the score of each on dev, and the best of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers

from embstore.errors import NonFiniteError
from embstore.models.finetune.examples import NO_LABEL, Collator, Example, Examples
from embstore.models.finetune.network import Trainable
from embstore.models.finetune.record import last_checkpoint
from embstore.models.finetune.scores import accuracy, entity_scores
from embstore.models.finetune.settings import Settings, Task
from embstore.models.loading import quiet

SCORED_AT_ONCE = 64  # examples a batch of dev and test


@dataclass(frozen=True)
class Step:
    """How far a training is: batches done, of how many, and the epoch it is in, from 1."""

    done: int
    total: int
    epoch: int


@dataclass(frozen=True)
class Run:
    """One training; `folder` holds its checkpoints. Called, it leaves the best weights in the network."""

    task: Task
    settings: Settings
    trainable: Trainable
    encoded: dict[str, Examples]
    labels: Sequence[str]
    folder: Path
    device: torch.device
    progress: Callable[[Step], None] | None = None

    def __call__(self) -> dict[str, Any]:
        """Train, and return the part of the record that comes of it: epochs, the best one, the scores of test."""
        started = perf_counter()
        network = self.trainable.network
        used_cache = getattr(network.config, "use_cache", None)
        begun = last_checkpoint(self.folder)
        with quiet():
            trainer = self.trainer()
            trainer.train(resume_from_checkpoint=None if begun is None else str(begun))
            best = self.folder / f"checkpoint-{trainer.state.best_global_step}"
            network.load_state_dict(type(network).from_pretrained(best, dtype=torch.float32).state_dict())
            if used_cache is not None:  # the Trainer switches it off for good
                network.config.use_cache = used_cache
            epochs = _epochs(trainer.state.log_history)
            test = self._scores(trainer, "test") if "test" in self.encoded else None
        return {
            "labels": list(self.labels),
            "metric": self.task.metric,
            "epochs": epochs,
            "best_epoch": next(row["epoch"] for row in epochs if row["step"] == trainer.state.best_global_step),
            "test": test,
            "seconds": perf_counter() - started,
            "resumed": begun is not None,
        }

    def trainer(self) -> Any:
        """Return the Trainer: plain Adam, a constant rate, no warm-up, no weight decay, no clipping."""
        arguments = self._arguments()
        if self.device.type == "cuda":
            _ = arguments.device
            arguments._n_gpu = 1  # else several GPUs would share, and so enlarge, each batch
        collator = Collator(
            padding_id=self.trainable.padding_id,
            takes_types=self.trainable.takes_types,
            causal=self.trainable.causal,
            attention_window=self.settings.attention_window,
            position_offset=self.trainable.position_offset,
        )
        trainer = _Trainer(
            model=self.trainable.network,
            args=arguments,
            data_collator=collator,
            train_dataset=self.encoded["train"].items,
            eval_dataset=_by_length(self.encoded["dev"].items),
            compute_metrics=self._metrics,
            preprocess_logits_for_metrics=_likeliest,
            optimizer_cls_and_kwargs=(torch.optim.Adam, {"lr": self.settings.learning_rate, "fused": True}),
            callbacks=[_Watch(self.progress)],
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        return trainer

    def _arguments(self) -> Any:
        settings = self.settings
        return transformers.TrainingArguments(
            output_dir=str(self.folder.absolute()),
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size,
            per_device_eval_batch_size=SCORED_AT_ONCE,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",
            warmup_steps=0,
            weight_decay=0.0,
            max_grad_norm=0.0,
            seed=settings.seed,
            data_seed=settings.seed,
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            logging_nan_inf_filter=False,
            metric_for_best_model=self.task.metric,
            greater_is_better=True,
            save_total_limit=2,  # the best and the last; of 1 the Trainer drops the last at its end
            remove_unused_columns=False,
            label_names=["labels"],
            use_cpu=self.device.type == "cpu",
            dataloader_pin_memory=self.device.type == "cuda",
            disable_tqdm=True,
            report_to="none",
        )

    def _metrics(self, prediction: Any) -> dict[str, float]:
        """Scores of the likeliest labels where there is a true one."""
        asked = prediction.label_ids != NO_LABEL
        gold, given = (
            [[self.labels[number] for number in row[mask]] for row, mask in zip(numbers, asked, strict=True)]
            for numbers in (prediction.label_ids, prediction.predictions)
        )
        scores = {"accuracy": accuracy(gold, given)}
        return scores | (entity_scores(gold, given) if self.task.metric == "f1" else {})

    def _scores(self, trainer: Any, split: str) -> dict[str, float]:
        return _without_prefix(trainer.evaluate(_by_length(self.encoded[split].items)))


class _Trainer(transformers.Trainer):
    """Packs examples to learn from; those to be scored keep a row each, by which entities are told."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        packing: Any = self.data_collator
        self.data_collator = replace(packing, position_offset=None)
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = packing


class _Watch(transformers.TrainerCallback):
    """Tells of every batch, and stops where the loss is no number any more."""

    def __init__(self, progress: Callable[[Step], None] | None) -> None:
        self._progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            epoch = min(math.ceil(state.epoch or 1), args.num_train_epochs)
            self._progress(Step(state.global_step, state.max_steps, int(epoch)))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"the loss is {loss} after {state.global_step} batches at the learning rate {args.learning_rate}: "
                "choose a smaller one"
            )


def _likeliest(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = logits[0] if isinstance(logits, tuple) else logits
    return scores.argmax(-1)


def _by_length(examples: Sequence[Example]) -> list[Example]:
    """Examples of one length beside each other, so that little is padded."""
    return sorted(examples, key=lambda example: len(example.ids))


def _epochs(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The loss and the scores of each epoch from the Trainer's log."""
    losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    return [
        {
            "epoch": round(entry["epoch"]),
            "step": entry["step"],
            "train": {"loss": losses[entry["step"]]},
            "dev": _without_prefix(entry),
        }
        for entry in history
        if "eval_loss" in entry
    ]


def _without_prefix(scores: dict[str, Any]) -> dict[str, float]:
    """The scores alone, of the Trainer's names and its figures of speed."""
    named = {name.removeprefix("eval_"): value for name, value in scores.items() if name.startswith("eval_")}
    return {name: named[name] for name in ("loss", "accuracy", "precision", "recall", "f1") if name in named}


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch for what is done here, and leave them as they were after."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 (the Trainer seeds this one)
    with torch.random.fork_rng():
        transformers.set_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
