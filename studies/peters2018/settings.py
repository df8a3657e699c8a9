"""The settings of the study of Peters et al. 2018."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embstore.arguments import checked
from embstore_studies.settings import StudySettings


@checked
@dataclass(frozen=True, kw_only=True)
class Peters2018(StudySettings):
    """Settings of the study: what the similarities of the vectors of each layer tell without training.

    n_sentences: with pronouns at most, drawn by their texts; None for all. examples: pronouns shown. resamples: of
    documents, for intervals. seed: of samples.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "antecedents of pronouns by similarity alone, without training"
    data: ClassVar[str] = "a folder with a folder of edge probing files for coreference"

    n_sentences: int | None = 1500
    examples: int = 5
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        self.require_at_least(n_sentences=1, examples=0, resamples=1, seed=0)
