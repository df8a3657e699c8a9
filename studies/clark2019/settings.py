"""The settings of the study of Clark et al. 2019."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from embstore.arguments import checked
from embstore.errors import check_whole
from embstore_studies.settings import StudySettings


@checked
@dataclass(frozen=True, kw_only=True)
class Clark2019(StudySettings):
    """Settings of the study: what the attention heads of a model attend to.

    coreference: a file of edge probing targets whose pairs of spans are labelled 1 or 0, or a folder with dev.jsonl;
    without it there is no Table 2. n_sentences: of the treebank and of the coreference data at most, drawn at random;
    None for all. every: every which sentence heads are compared on. importance_sentences: those whose gradients are
    computed, 0 for none. seed: of samples and of masked subwords.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "what attention heads attend to, relations, coreference, trees"
    data: ClassVar[str] = "a treebank in CoNLL-U: a file, or a folder whose dev file is taken"

    coreference: str | Path | None = None
    n_sentences: int | None = None
    every: int = 16
    importance_sentences: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        self.require_at_least(n_sentences=1, every=1, importance_sentences=0)
        check_whole("seed", self.seed, 0, 2**32 - 1)
