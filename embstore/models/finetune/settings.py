"""What can be fine-tuned and how: Table 4 of Zhao et al. 2020 as the defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embstore.errors import InvalidValueError


@dataclass(frozen=True)
class Task:
    """A task: how many sentences an example has (0: it labels words), its score, and its batch in the paper."""

    sentences: int
    metric: str
    batch_size: int

    @property
    def labels_words(self) -> bool:
        return self.sentences == 0


TASKS = {
    "pos": Task(0, "accuracy", 150),
    "ner": Task(0, "f1", 32),
    "classify": Task(1, "accuracy", 200),
    "paraphrase": Task(2, "accuracy", 350),
}


@dataclass(frozen=True)
class Settings:
    """How a model is fine-tuned.

    `max_length`: subwords a sentence (or pair), special ones included. `sentences`: how many examples of the
    training data are drawn, None for all. `attention_window`: how many words left and right a word attends to at
    every layer, None for all.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    max_length: int
    seed: int
    sentences: int | None
    attention_window: int | None


def check_task(task: str) -> Task:
    """Return the task of that name; raises InvalidValueError for another."""
    if task not in TASKS:
        raise InvalidValueError(f"unknown task {task!r}; allowed are {', '.join(TASKS)}")
    return TASKS[task]


def check_settings(task: Task, settings: Settings) -> None:
    """Raise InvalidValueError for the first setting that is not allowed."""
    for name in ("epochs", "batch_size", "max_length", "sentences"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InvalidValueError(f"{name.replace('_', ' ')} is {value}; it must be 1 or more")
    if not 0 < settings.learning_rate < math.inf:
        raise InvalidValueError(f"the learning rate is {settings.learning_rate}; it must be above 0, such as 5e-5")
    if not 0 <= settings.seed < 2**32:
        raise InvalidValueError(f"the seed is {settings.seed}; it must be 0 or more and below 2**32")
    if settings.attention_window is None:
        return
    if settings.attention_window < 0:
        raise InvalidValueError(f"the attention window is {settings.attention_window}; it must be 0 or more words")
    if not task.labels_words:
        raise InvalidValueError(
            "an attention window has no meaning for the label of a whole sentence, which is read at a special subword "
            "that sees no word then; leave it out, or fine-tune pos or ner"
        )
