"""One training run with transformers' Trainer: epochs, scores of each on dev, and the weights of the best one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers

from embstore.errors import NonFiniteError
from embstore.models.checkpoint import quiet
from embstore_studies.finetuning.examples import NO_LABEL, Collator, FineTuneData, FineTuneExample
from embstore_studies.finetuning.network import Trainable
from embstore_studies.finetuning.record import last_checkpoint
from embstore_studies.finetuning.settings import FineTuneSettings, FineTuneTask

SCORE_BATCH = 64  # examples per batch of dev and test


@dataclass(frozen=True)
class FineTuneRun:
    """A training whose checkpoints are in `folder`; `report(done, total)` is called after every batch.

    `labels`: those that are predicted; the numbers above theirs in the examples are of `unknown` ones.
    """

    task: FineTuneTask
    settings: FineTuneSettings
    trainable: Trainable
    data: dict[str, FineTuneData]
    labels: Sequence[str]
    unknown: Sequence[str]
    folder: Path
    device: torch.device
    report: Callable[[int, int], None]

    def run(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Train from the last checkpoint, leave the best weights in the network, return the plan and results."""
        started = perf_counter()
        network = self.trainable.network
        used_cache = getattr(network.config, "use_cache", None)
        checkpoint = last_checkpoint(self.folder)
        with quiet():
            trainer = self.trainer()
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            best = self.folder / f"checkpoint-{trainer.state.best_global_step}"
            network.load_state_dict(type(network).from_pretrained(best, dtype=torch.float32).state_dict())
            if used_cache is not None:  # the Trainer switches it off permanently
                network.config.use_cache = used_cache
            epochs = _epochs(trainer.state.log_history)
            test = None
            if "test" in self.data:
                test = _scores(trainer.evaluate(_by_length(self.data["test"].examples)))
        counts = {
            split: {
                "examples": len(part.examples),
                "labels": part.n_labels,
                "labels_cut": part.n_cut,
                "labels_unknown": sum(int((example.labels >= len(self.labels)).sum()) for example in part.examples),
            }
            for split, part in self.data.items()
        }
        return plan | {
            "data": {split: plan["data"][split] | counts[split] for split in counts},
            "labels": list(self.labels),
            "metric": self.task.metric,
            "epochs": epochs,
            "best_epoch": next(row["epoch"] for row in epochs if row["step"] == trainer.state.best_global_step),
            "test": test,
            "seconds": perf_counter() - started,
            "resumed": checkpoint is not None,
        }

    def trainer(self) -> Any:
        """Return the Trainer: plain Adam, a constant learning rate, no warm-up, weight decay or clipping."""
        arguments = self._arguments()
        if self.device.type == "cuda":
            _ = arguments.device
            arguments._n_gpu = 1  # otherwise several GPUs would share, and thereby enlarge, each batch
        collator = Collator(self.trainable.inputs, self.settings.attention_window, self.trainable.packs)
        trainer = _Trainer(
            model=self.trainable.network,
            args=arguments,
            data_collator=collator,
            train_dataset=self.data["train"].examples,
            eval_dataset=_by_length(self.data["dev"].examples),
            compute_metrics=self._metrics,
            preprocess_logits_for_metrics=_most_likely,
            optimizer_cls_and_kwargs=(torch.optim.Adam, {"lr": self.settings.learning_rate, "fused": True}),
            callbacks=[_Reporter(self.report)],
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        return trainer

    def _arguments(self) -> Any:
        settings = self.settings
        return transformers.TrainingArguments(
            output_dir=str(self.folder.absolute()),
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size or self.task.batch_size,
            per_device_eval_batch_size=SCORE_BATCH,
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
            save_total_limit=2,  # the best and the last checkpoint; with 1 the Trainer drops the last at its end
            remove_unused_columns=False,
            label_names=["labels"],
            use_cpu=self.device.type == "cpu",
            dataloader_pin_memory=self.device.type == "cuda",
            disable_tqdm=True,
            report_to="none",
        )

    def _metrics(self, prediction: Any) -> dict[str, float]:
        """Return the scores of the most likely labels at positions that have a true one."""
        mask = prediction.label_ids != NO_LABEL
        names = [*self.labels, *self.unknown]
        gold, predicted = (
            [[names[number] for number in row[chosen]] for row, chosen in zip(numbers, mask, strict=True)]
            for numbers in (prediction.label_ids, prediction.predictions)
        )
        scores = {"accuracy": accuracy(gold, predicted)}
        return scores | (entity_scores(gold, predicted) if self.task.metric == "f1" else {})


class _Trainer(transformers.Trainer):
    """Packs examples for training; each scored example has its own row, so that its entities can be read."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        packing: Any = self.data_collator
        self.data_collator = replace(packing, packs=False)
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = packing

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Return the loss without labels that the network does not have; if there are no others, against its last."""
        labels, last = inputs["labels"], model.config.num_labels - 1
        known = labels.masked_fill(labels > last, NO_LABEL)
        if bool((known == NO_LABEL).all()):  # a mean of nothing is not finite
            known = labels.clamp(max=last)
        return super().compute_loss(model, {**inputs, "labels": known}, *args, **options)


class _Reporter(transformers.TrainerCallback):
    """Reports every batch, and stops the training if the loss is not finite."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report(state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"the loss is {loss} after {state.global_step} batches at the learning rate {args.learning_rate}: "
                "choose a smaller one"
            )


def _most_likely(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = logits[0] if isinstance(logits, tuple) else logits
    return scores.argmax(-1)


def _by_length(examples: Sequence[FineTuneExample]) -> list[FineTuneExample]:
    """Return examples sorted by length, so that batches need little padding."""
    return sorted(examples, key=lambda example: len(example.ids))


def _epochs(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the loss and the scores of each epoch from the Trainer's log."""
    losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    return [
        {
            "epoch": round(entry["epoch"]),
            "step": entry["step"],
            "train": {"loss": losses[entry["step"]]},
            "dev": _scores(entry),
        }
        for entry in history
        if "eval_loss" in entry
    ]


def _scores(logged: dict[str, Any]) -> dict[str, float]:
    """Return the scores among the Trainer's figures."""
    names = ("loss", "accuracy", "precision", "recall", "f1")
    return {name: logged[f"eval_{name}"] for name in names if f"eval_{name}" in logged}


Entity = tuple[int, int, str]


def entities(labels: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence's BIO labels as (first word, word after the last, type).

    An entity begins at B-, and at an I- that does not continue a label of its type (as in IOB1, and as the scorer of
    the shared tasks reads it); any other label is outside.
    """
    found = set()
    start, kind = 0, ""
    for index, label in enumerate([*labels, "O"]):
        mark, _, new_kind = label.partition("-")
        continues = mark == "I" and new_kind == kind
        if kind and not continues:
            found.add((start, index, kind))
        if not continues:
            start, kind = index, new_kind if mark in ("B", "I") else ""
    return found


def entity_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return micro precision, recall and F1 over entities of the same span and type; 0 if there are none."""
    n_right = n_gold = n_predicted = 0
    for truth, guess in zip(gold, predicted, strict=True):
        true, guessed = entities(truth), entities(guess)
        n_right += len(true & guessed)
        n_gold += len(true)
        n_predicted += len(guessed)
    return {
        "precision": n_right / n_predicted if n_predicted else 0.0,
        "recall": n_right / n_gold if n_gold else 0.0,
        "f1": 2 * n_right / (n_gold + n_predicted) if n_gold + n_predicted else 0.0,
    }


def accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """Return the share of labels that are right."""
    rows = zip(gold, predicted, strict=True)
    right = [one == other for truth, guess in rows for one, other in zip(truth, guess, strict=True)]
    return sum(right) / len(right)


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch inside the block, and restore their states afterwards."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 (the Trainer seeds this one)
    with torch.random.fork_rng():
        transformers.set_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
