"""A fine-tuned model as it was saved: its task, its labels, and labeled data as it takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embstore.errors import InvalidValueError
from embstore.models.checkpoint import Checkpoint, open_checkpoint
from embstore.models.names import public_name
from embstore_studies.finetuning.data import Item, labels_of, read_items, sampled
from embstore_studies.finetuning.examples import Collator, FineTuneData, text_examples, word_examples
from embstore_studies.finetuning.network import Trainable, load_trainable
from embstore_studies.finetuning.record import RECORD, read_record
from embstore_studies.finetuning.settings import TASKS, FineTuneTask


@dataclass(frozen=True)
class Tuned:
    """A model that `finetune` saved. `labels`: those that it predicts. `settings`: of its training."""

    name: str
    task: FineTuneTask
    labels: tuple[str, ...]
    settings: dict[str, Any]
    checkpoint: Checkpoint
    trainable: Trainable

    @property
    def collator(self) -> Collator:
        """What makes batches, each example in a row of its own."""
        return Collator(self.trainable.inputs, self.settings["attention_window"])

    def examples(
        self, path: str | Path, *, n_sentences: int | None = None, seed: int = 0
    ) -> tuple[FineTuneData, list[str]]:
        """Read a file of labeled data, or a random sample of it; returns the names of all its labels too.

        The numbers of labels that the model does not have are above those of its own.
        """
        path = Path(path)
        columns = {"label": self.settings["label"], "columns": self.settings["columns"]}
        items = sampled(read_items(self.task, path, **columns), n_sentences, seed=seed)
        others = {label for item in items for label in labels_of(item)} - set(self.labels)
        names = [*self.labels, *sorted(others)]
        data = encode(self.task, path, items, self.trainable, self.checkpoint, names, self.settings["max_length"])
        return data, names


def load_tuned(model: str | Path) -> Tuned:
    """Load a model that `finetune` saved, on the CPU; raises InvalidValueError for a folder without its record."""
    folder = Path(model)
    if not (folder / RECORD).is_file():
        raise InvalidValueError(f"{model} has no {RECORD}: give the folder that finetune has written")
    record = read_record(folder / RECORD)
    checkpoint = open_checkpoint(folder, revision=None)
    labels = tuple(record["labels"])
    trainable = load_trainable(checkpoint, str(model), labels, fresh=False)
    return Tuned(public_name(str(model)), TASKS[record["task"]], labels, record["settings"], checkpoint, trainable)


def encode(
    task: FineTuneTask,
    path: Path,
    items: Sequence[Item],
    trainable: Trainable,
    checkpoint: Checkpoint,
    labels: list[str],
    max_length: int,
) -> FineTuneData:
    """Return the items of a task as examples; raises InvalidValueError if none is within the maximum length."""
    numbers = {name: number for number, name in enumerate(labels)}
    given: Any = items
    if task.labels_words:
        encoded = word_examples(given, trainable.tokenizer, numbers, max_length=max_length)
        if not encoded.examples:
            raise InvalidValueError(f"{path}: no labeled word is within the maximum length; choose a longer one")
        return encoded
    # Text needs the tokenizer as published: SubwordTokenizer may have changed its own to start words with a space.
    tokenizer = open_checkpoint(checkpoint.folder, revision=None).tokenizer
    return text_examples(given, tokenizer, numbers, max_length=max_length, causal=trainable.inputs.causal)
