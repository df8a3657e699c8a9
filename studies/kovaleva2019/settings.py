"""The settings of the study of Kovaleva et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_choice, check_whole
from embstore_studies.settings import StudySettings

if TYPE_CHECKING:
    from embstore_studies.finetuning.settings import FineTuneSettings

TASKS = ("pos", "ner", "classify", "paraphrase")


@checked
@dataclass(frozen=True, kw_only=True)
class Kovaleva2019(StudySettings):
    """Settings of the study: patterns of attention before and after fine-tuning, and which heads a task needs.

    The defaults end within ten minutes on two CPU cores with a model of 6 layers and two tasks.

    tuning: data for fine-tuning by task (pos, ner, classify, paraphrase), as `finetune` takes it; one or more.
    n_sentences: of DATA on which attention is measured, and of dev and train on which heads are disabled and ranked,
    drawn at random; None for all. how: "uniform" attention weights of disabled heads, as in the paper, or "zero"
    output. resamples: of sentences, for intervals. seeds: of random orders of pruning. tuning_epochs, tuning_sentences
    (None: all), tuning_batch_size, tuning_rate: of fine-tuning. seed: of samples and fine-tuning.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "patterns of attention before and after fine-tuning, disabled heads and layers, pruning"
    data: ClassVar[str] = "a file in CoNLL-U on which attention is measured"
    takes_one_model: ClassVar[bool] = True

    tuning: Mapping[str, str | Path] = field(default_factory=dict)
    n_sentences: int | None = 300
    how: Literal["uniform", "zero"] = "uniform"
    resamples: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2)
    tuning_epochs: int = 1
    tuning_sentences: int | None = 1500
    tuning_batch_size: int = 16
    tuning_rate: float = 2e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.tuning:
            raise InvalidValueError(
                f"kovaleva2019 needs data for fine-tuning: give --tuning TASK=DATA, of {', '.join(TASKS)}"
            )
        for task in self.tuning:
            check_choice("task", task, TASKS)
        check_choice("how", self.how, ("uniform", "zero"))
        self.require_at_least(n_sentences=1, resamples=1)
        check_whole("number of seeds", len(self.seeds), 1)
        for seed in self.seeds:
            check_whole("seed", seed, 0, 2**32 - 1)
        self.finetuning()

    @property
    def sample(self) -> dict[str, Any]:
        """The arguments of `attention`."""
        return {"n_sentences": self.n_sentences, "seed": self.seed}

    @property
    def scoring(self) -> dict[str, Any]:
        """The arguments of `disable_heads` and its like."""
        return {**self.sample, "resamples": self.resamples}

    def finetuning(self) -> FineTuneSettings:
        """Return the settings of fine-tuning."""
        from embstore_studies.finetuning.settings import FineTuneSettings

        return FineTuneSettings(
            epochs=self.tuning_epochs,
            batch_size=self.tuning_batch_size,
            learning_rate=self.tuning_rate,
            n_examples=self.tuning_sentences,
            seed=self.seed,
        )

    def describe(self) -> str:
        """Return one line on the size of the study."""
        sentences = "all" if self.n_sentences is None else f"{self.n_sentences:,}"
        tuned = "all" if self.tuning_sentences is None else f"{self.tuning_sentences:,}"
        return (
            f"Fine-tuned on {tuned} sentences, {self.tuning_epochs} epoch(s) at {self.tuning_rate:g}; attention and "
            f"scores on {sentences} sentences; disabled heads are {self.how}; {self.resamples:,} bootstrap samples; "
            f"{len(self.seeds)} random orders; seed {self.seed}."
        )
