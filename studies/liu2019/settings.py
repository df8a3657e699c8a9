"""The settings of the study of Liu et al. 2019."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from embstore.arguments import checked
from embstore_studies.settings import StudySettings

if TYPE_CHECKING:
    from embstore.probes import EdgeProbe


@checked
@dataclass(frozen=True, kw_only=True)
class Liu2019(StudySettings):
    """Settings of the study: what linear probes read from each layer, and which layers serve most tasks.

    tasks: some of those in the folder and of those that a treebank has (upos, arcs, dependencies; index,
    main-auxiliary, subject), all by default. treebank: a folder with train, dev and test in CoNLL-U, if `data` is not
    one. n_sentences: of each split of each task at most, drawn by their texts, so that tasks over the same sentences
    draw the same ones; None for all. epochs, batch_size, learning_rate, patience, seeds: of the probes. untrained: also
    the model with random weights, as a baseline. resamples: of test sentences, for intervals. The first
    seed is also that of samples and of random weights.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "linear probes of every layer on all tasks, which layers transfer, the order of words"
    data: ClassVar[str] = "a folder with a folder per task (as for tenney2019), or a treebank's in CoNLL-U"

    tasks: Sequence[str] = ()
    treebank: str | Path | None = None
    n_sentences: int | None = 500
    epochs: int = 50
    batch_size: int = 16
    learning_rate: float = 5e-3
    patience: int = 3
    seeds: tuple[int, ...] = (0, 1, 2)
    untrained: bool = True
    resamples: int = 1000

    def __post_init__(self) -> None:
        self.require_at_least(resamples=1, n_sentences=1)
        self.probe()

    @property
    def seed(self) -> int:
        """The first seed, with which samples and random weights are drawn."""
        return self.seeds[0]

    def probe(self, *, trained: bool = True) -> EdgeProbe:
        """Return linear probes as the study trains them, not fitted yet; those of random weights have one seed."""
        from embstore.probes import EdgeProbe, Training

        training = Training(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, patience=self.patience
        )
        seeds = self.seeds if trained else self.seeds[:1]
        return EdgeProbe(kind="linear", seeds=seeds, training=training)

    def describe(self, n_tasks: int, n_sentences: int) -> str:
        """Return one line on the size of the study, with the paper's figures in brackets."""
        count = self.n_sentences
        sample = "all sentences" if count is None else f"at most {count:,} sentences of each split"
        return (
            f"Size: {sample} (all) of each of {n_tasks} tasks, {n_sentences:,} different ones, words as their last "
            f"subword; at most {self.epochs} epochs (50) in batches of {self.batch_size} (80) at learning rate "
            f"{self.learning_rate:g} (0.001), patience {self.patience} (3), seeds {', '.join(map(str, self.seeds))}."
        )
