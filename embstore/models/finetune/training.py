"""Fine-tuning: from labelled data and a model to an ordinary checkpoint, resumable epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, MissingPackageError
from embstore.models.finetune.data import (
    Item,
    PathLike,
    Reading,
    check_known,
    find_splits,
    label_names,
    read_items,
    sampled,
)
from embstore.models.finetune.epochs import Run, Step, own_randomness
from embstore.models.finetune.examples import Examples, labelled_examples, tagged_examples
from embstore.models.finetune.network import Trainable, load_trainable, require_length, require_window, save_network
from embstore.models.finetune.record import (
    PLAN,
    RECORD,
    TRAINING,
    begin,
    finish,
    read_record,
    require_same,
    stage_of,
)
from embstore.models.finetune.settings import Settings, Task, check_settings, check_task
from embstore.models.loading import Checkpoint, open_checkpoint, sha256_of, use_threads
from embstore.models.transformer.tokens import SubwordTokenizer

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model: its folder, an ordinary checkpoint, and the record that stands in its finetuning.json."""

    path: Path
    record: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Return what it was fine-tuned with."""
        return dict(self.record["settings"])

    @property
    def scores(self) -> pl.DataFrame:
        """Return a tidy frame `epoch, split, metric, value, best`: `loss` of train, the scores of dev and test."""
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
        return pl.DataFrame(rows, schema=schema, orient="row")


def finetune(
    task: str,
    data: PathLike | None = None,
    *,
    model: PathLike,
    out: PathLike,
    train: PathLike | None = None,
    dev: PathLike | None = None,
    test: PathLike | None = None,
    epochs: int = 5,
    batch_size: int | None = None,
    learning_rate: float = 5e-5,
    max_length: int = 128,
    seed: int = 0,
    sentences: int | None = None,
    attention_window: int | None = None,
    label: str | None = None,
    columns: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    revision: str | None = None,
    progress: Callable[[Step], None] | None = None,
) -> FineTuned:
    """Fine-tune a transformer on a task and keep the checkpoint of the epoch that is best on dev.

    `task`: pos, ner, classify or paraphrase. `data`: a folder with files named train, dev and perhaps test;
    `train`, `dev`, `test` name files themselves. Words are read from CoNLL-U (`label`: upos) or CoNLL columns
    (`columns`, `label`), sentences from lines `label<TAB>sentence`, pairs from `label<TAB>sentence1<TAB>sentence2`.
    The defaults are those of Zhao et al. 2020 (Table 4, appendix B): a linear layer on the last hidden state of a
    word's last subword, or of [CLS]; Adam at a constant rate; 5 epochs; batches of 150 (pos), 32 (ner), 200
    (classify), 350 (paraphrase). `sentences`: how many examples of train are drawn by the seed.
    `attention_window`: words left and right that a word attends to at every layer (their appendix C). `progress`
    is told of every batch.

    The same call goes on with an interrupted training from its last whole epoch, and returns a finished one as
    it is. Raises InvalidValueError where `out` holds anything else or was made otherwise, CorpusError for data
    that cannot be read or learnt from, ModelError, MissingPackageError without accelerate.
    """
    kind = check_task(task)
    batch = kind.batch_size if batch_size is None else batch_size
    settings = Settings(epochs, batch, learning_rate, max_length, seed, sentences, attention_window)
    check_settings(kind, settings)
    if find_spec("accelerate") is None:
        raise MissingPackageError('fine-tuning needs accelerate: pip install "embstore[finetune]"')
    where, folder = _device(device), Path(out)
    use_threads(threads)
    stage = stage_of(folder)
    reading = Reading(label, columns)
    files = find_splits(data, train=train, dev=dev, test=test)
    items = {split: read_items(kind, path, reading) for split, path in files.items()}
    names = label_names(files["train"], items["train"])
    for split in files.keys() - {"train"}:
        check_known(files[split], items[split], names)
    found = open_checkpoint(model, revision=revision)
    plan = _plan(task, model, found, files, settings, reading)
    if stage != "new":
        made = read_record(folder / RECORD if stage == "finished" else folder / TRAINING / PLAN)
        require_same(folder, made, plan)
        if stage == "finished":
            return FineTuned(folder, made)
    items["train"] = sampled(items["train"], settings.sentences, seed=seed)
    with own_randomness(seed):
        trainable = load_trainable(found, str(model), names)
        require_length(trainable, max_length)
        if attention_window is not None:
            require_window(trainable, found)
        encoded = {split: _encode(kind, part, trainable, found, names, max_length) for split, part in items.items()}
        _require_examples(files, encoded)
        begin(folder, plan)
        record = plan | Run(kind, settings, trainable, encoded, names, folder / TRAINING, where, progress)()
    for split, part in encoded.items():
        record["data"][split] |= {"examples": len(part.items), "labels": part.labels, "labels_cut": part.cut}
    save_network(trainable.network, found, folder / TRAINING / "model")
    finish(folder, folder / TRAINING / "model", record)
    return FineTuned(folder, record)


def _device(name: str) -> torch.device:
    chosen = choose_device(name)
    if chosen.type == "cuda" and chosen.index:
        raise InvalidValueError(f"fine-tuning takes the first GPU, not {name}: choose it with CUDA_VISIBLE_DEVICES")
    return chosen


def _plan(
    task: str, model: PathLike, found: Checkpoint, files: dict[str, Path], settings: Settings, reading: Reading
) -> dict[str, Any]:
    """All that decides what comes out, and where it was found."""
    tokenizer = SubwordTokenizer(found.tokenizer, vocabulary=len(found.tokenizer))
    return {
        "format": 1,
        "task": task,
        "model": str(model),
        "revision": found.revision,
        "weights": sha256_of(found.files),
        "tokenizer": tokenizer.sha256(),
        "data": {split: {"name": path.name, "sha256": sha256_of([path])} for split, path in files.items()},
        "settings": asdict(settings)
        | {"optimizer": "Adam", "schedule": "constant", "head": "linear", **asdict(reading)},
        "software": {name: version(name) for name in ("embstore", "torch", "transformers", "accelerate")},
    }


def _encode(
    task: Task, items: Sequence[Item], trainable: Trainable, found: Checkpoint, names: list[str], max_length: int
) -> Examples:
    numbers = {name: number for number, name in enumerate(names)}
    given: Any = items
    if task.labels_words:
        return tagged_examples(given, trainable.tokenizer, numbers, max_length=max_length)
    # Text goes through a tokenizer as published: that of words was told to begin each with a space.
    tokenizer = open_checkpoint(found.folder, revision=None).tokenizer
    return labelled_examples(given, tokenizer, numbers, max_length=max_length, causal=trainable.causal)


def _require_examples(files: dict[str, Path], encoded: dict[str, Examples]) -> None:
    for split, part in encoded.items():
        if not part.items:
            raise InvalidValueError(f"{files[split]}: no labelled word lies within the max length; choose a longer one")
