"""The settings of the study of Hewitt & Manning 2019."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from embstore.arguments import checked
from embstore.errors import check_choice
from embstore_studies.settings import StudySettings

if TYPE_CHECKING:
    from embstore.probes import StructuralProbe


@checked
@dataclass(frozen=True, kw_only=True)
class Hewitt2019(StudySettings):
    """Settings of the study: how much of a syntax tree the vectors of each layer encode linearly.

    n_sentences: of each split at most, drawn at random; None for all, as in the paper. rank: of the probes of all
    layers; 128 by default, or the width of the vectors if that is less. ranks: those compared on the best layer. seeds:
    of the probes' weights. tasks: derived from the treebank (upos, pos, dependencies), for selectivity and code
    lengths. task_sentences: of each split of these tasks at most. untrained: also the model with random weights, as a
    baseline. trees: sentences whose trees are drawn. The first seed: of samples, control tasks and random weights.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "syntax trees by layer and rank, selectivity, code lengths"
    data: ClassVar[str] = "a folder with train, dev and test of a treebank in CoNLL-U"

    n_sentences: int | None = 3000
    rank: int | None = None
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    seeds: tuple[int, ...] = (0,)
    tasks: tuple[str, ...] = ("upos", "dependencies")
    task_sentences: int | None = 300
    untrained: bool = True
    trees: int = 3

    def __post_init__(self) -> None:
        self.require_at_least(n_sentences=1, task_sentences=1, ranks=1, trees=0)
        for task in self.tasks:
            check_choice("task", task, ("upos", "pos", "dependencies"))
        self.probe()

    def rank_of(self, width: int) -> int:
        """Return the rank of the probes of all layers."""
        return min(128, width) if self.rank is None else self.rank

    @property
    def seed(self) -> int:
        """The first seed, with which samples and random weights are drawn."""
        return self.seeds[0]

    def probe(self, **changes: Any) -> StructuralProbe:
        """Return structural probes as the study trains them, not fitted yet."""
        from embstore.probes import StructuralProbe

        own = {"rank": self.rank, "seeds": self.seeds}
        return StructuralProbe(**{**own, **changes})

    def describe(self, n_sentences: Mapping[str, int]) -> str:
        """Return one line on the size of the study."""
        sizes = ", ".join(f"{count:,} {split}" for split, count in n_sentences.items())
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Sentences: {sizes} (the paper: all of the Penn Treebank's); seeds {seeds}; samples by seed {self.seed}."
        )
