"""Fine-tune a transformer on labeled data to an ordinary checkpoint, resumable epoch by epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from embstore.devices import choose_device, torch_threads
from embstore.errors import InvalidValueError, MissingPackageError
from embstore.models.checkpoint import Checkpoint, open_checkpoint, sha256_of
from embstore.models.names import public_name
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.progress import Progress, reporting
from embstore_studies.finetuning.data import DataSource, find_splits, label_names, read_items, sampled
from embstore_studies.finetuning.network import load_trainable, save_network
from embstore_studies.finetuning.record import (
    PLAN,
    RECORD,
    TRAINING,
    begin,
    finish,
    lock_of,
    read_record,
    require_same,
    stage_of,
)
from embstore_studies.finetuning.settings import FineTuneSettings, check_task
from embstore_studies.finetuning.training import FineTuneRun, own_randomness
from embstore_studies.finetuning.tuned import encode

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model: its folder, which is an ordinary checkpoint, and the record in its finetuning.json."""

    path: Path
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"FineTuned({str(self.path)!r}, task={self.record['task']!r}, best_epoch={self.record['best_epoch']})"

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the training."""
        return dict(self.record["settings"])

    @property
    def frame(self) -> pl.DataFrame:
        """Return a tidy frame `task, epoch, split, metric, value, best`: the loss on train, scores on dev and test."""
        import polars as pl

        best = self.record["best_epoch"]
        rows = [
            (row["epoch"], split, metric, value, row["epoch"] == best)
            for row in self.record["epochs"]
            for split in ("train", "dev")
            for metric, value in row[split].items()
        ]
        rows += [(best, "test", metric, value, True) for metric, value in (self.record["test"] or {}).items()]
        schema = {"epoch": pl.Int64, "split": pl.String, "metric": pl.String, "value": pl.Float64, "best": pl.Boolean}
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        return frame.select(pl.lit(self.record["task"]).alias("task"), pl.all())


def finetune(
    data: DataSource,
    *,
    task: str,
    model: str | Path,
    out: str | Path,
    settings: FineTuneSettings | None = None,
    label: str | None = None,
    columns: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    revision: str | None = None,
    progress: Progress = None,
) -> FineTuned:
    """Fine-tune a transformer on a task and save the checkpoint of the epoch that is best on dev.

    `data`: a folder with files named train, dev and perhaps test, or the files by split: {"train": ..., "dev": ...}.
    `task`: "pos" and "ner" read words from CoNLL-U (`label`: upos) or CoNLL columns (`columns`, `label`); "classify"
    reads lines `label<TAB>sentence`, "paraphrase" lines `label<TAB>sentence1<TAB>sentence2`. A linear layer predicts
    the label from the last hidden state of a word's last subword, or of [CLS]; labels of dev and test that train does
    not have count as errors. `out`: the folder to write.
    `settings`: None is those of Zhao et al. 2020. `threads`: CPU threads; None: as many as torch uses. `progress`:
    called with (batches done, of how many).

    The same call resumes an interrupted training after its last complete epoch, and returns a finished one unchanged.
    Raises InvalidValueError if `out` contains anything else or was made with other settings, CorpusError for data that
    cannot be read or trained on, ModelError, StoreBusyError (another process trains), MissingPackageError (accelerate).
    """
    settings = settings or FineTuneSettings()
    chosen = check_task(task, settings)
    where, folder = _training_device(device), Path(out)
    stage_of(folder)
    files = find_splits(data)
    items = {split: read_items(chosen, path, label=label, columns=columns) for split, path in files.items()}
    labels, unknown = label_names(files, items)
    checkpoint = open_checkpoint(model, revision=revision)
    plan = _plan(task, model, checkpoint, files, settings, {"label": label, "columns": columns})
    if made := _finished(folder, plan):
        return made
    items["train"] = sampled(items["train"], settings.n_examples, seed=settings.seed)
    with (
        lock_of(folder),
        torch_threads(threads),
        own_randomness(settings.seed),
        reporting(progress, unit="batches", label="finetune") as report,
    ):
        if made := _finished(folder, plan):  # by the process that had the lock until now
            return made
        trainable = load_trainable(checkpoint, str(model), labels)
        trainable.check(max_length=settings.max_length, attention_window=settings.attention_window)
        encoded = {
            split: encode(chosen, files[split], part, trainable, checkpoint, [*labels, *unknown], settings.max_length)
            for split, part in items.items()
        }
        begin(folder, plan)
        run = FineTuneRun(chosen, settings, trainable, encoded, labels, unknown, folder / TRAINING, where, report)
        record = run.run(plan)
        save_network(trainable.network, checkpoint, folder / TRAINING / "model")
        finish(folder, folder / TRAINING / "model", record)
    return FineTuned(folder, record)


def _finished(folder: Path, plan: dict[str, Any]) -> FineTuned | None:
    """Return the model that is in the folder; None where it has none yet, InvalidValueError where another is begun."""
    if (stage := stage_of(folder)) == "new":
        return None
    recorded = read_record(folder / RECORD if stage == "finished" else folder / TRAINING / PLAN)
    require_same(folder, recorded, plan)
    return FineTuned(folder, recorded) if stage == "finished" else None


def _training_device(device: str) -> torch.device:
    """Return the device that accelerate, which must be installed, can train on."""
    if find_spec("accelerate") is None:
        raise MissingPackageError('fine-tuning needs accelerate: pip install "embstore[finetune]"')
    chosen = choose_device(device)
    if chosen.type == "cuda" and chosen.index:
        raise InvalidValueError(f"fine-tuning uses the first GPU, not {device}: choose it with CUDA_VISIBLE_DEVICES")
    return chosen


def _plan(
    task: str,
    model: str | Path,
    checkpoint: Checkpoint,
    files: dict[str, Path],
    settings: FineTuneSettings,
    columns: dict[str, str | None],
) -> dict[str, Any]:
    """Return everything that decides the result, and where it was found."""
    tokenizer = SubwordTokenizer(checkpoint.tokenizer, vocabulary=len(checkpoint.tokenizer))
    return {
        "format": 1,
        "task": task,
        "model": public_name(str(model)),
        "revision": checkpoint.revision,
        "weights": sha256_of(checkpoint.files),
        "tokenizer": tokenizer.sha256(),
        "data": {split: {"name": path.name, "sha256": sha256_of([path])} for split, path in files.items()},
        "settings": asdict(settings)
        | {"batch_size": settings.batch_size or check_task(task, settings).batch_size}
        | {"optimizer": "Adam", "schedule": "constant", "head": "linear", **columns},
        "software": {name: version(name) for name in ("embstore", "torch", "transformers", "accelerate")},
    }
