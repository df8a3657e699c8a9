"""The tasks of fine-tuning and the settings of a training run; defaults are those of Table 4 of Zhao et al. 2020."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embstore.errors import InvalidValueError, check_whole, quoted


@dataclass(frozen=True)
class FineTuneTask:
    """A task: the sentences of an example (0: it labels words), its score, and its batch size in the paper."""

    n_sentences: int
    metric: str
    batch_size: int

    @property
    def labels_words(self) -> bool:
        """Return whether every word has a label, rather than every example."""
        return self.n_sentences == 0


TASKS = {
    "pos": FineTuneTask(0, "accuracy", 150),
    "ner": FineTuneTask(0, "f1", 32),
    "classify": FineTuneTask(1, "accuracy", 200),
    "paraphrase": FineTuneTask(2, "accuracy", 350),
}


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """How a model is fine-tuned.

    `batch_size`: None is that of the paper: 150 (pos), 32 (ner), 200 (classify), 350 (paraphrase). `learning_rate`: of
    Adam, constant. `max_length`: subwords of a sentence or pair, special ones included. `n_examples`: train on that
    many examples, chosen at random; None: all. `attention_window`: words left and right that a word attends to at every
    layer (appendix C of the paper); None: all. `seed`: of everything that is random.

    Raises InvalidValueError for the first value that is not allowed.
    """

    epochs: int = 5
    batch_size: int | None = None
    learning_rate: float = 5e-5
    max_length: int = 128
    n_examples: int | None = None
    attention_window: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "max_length", "n_examples"):
            if getattr(self, name) is not None or name in ("epochs", "max_length"):
                check_whole(name.replace("_", " "), getattr(self, name), 1)
        rate: object = self.learning_rate
        if not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise InvalidValueError(f"learning rate {quoted(rate)} is not allowed: give a number above 0, such as 5e-5")
        check_whole("seed", self.seed, 0, 2**32 - 1)
        if self.attention_window is not None:
            check_whole("attention window", self.attention_window, 0, unit="words")


def check_task(task: str, settings: FineTuneSettings) -> FineTuneTask:
    """Return the task of that name; raises InvalidValueError for an unknown one, or settings that do not fit it."""
    if task not in TASKS:
        raise InvalidValueError(f"unknown task {task!r}; allowed are {', '.join(TASKS)}")
    if settings.attention_window is not None and not TASKS[task].labels_words:
        raise InvalidValueError(
            "an attention window has no meaning for the label of a whole sentence, which is predicted at a special "
            "subword that then attends to no word; leave it out, or fine-tune pos or ner"
        )
    return TASKS[task]
