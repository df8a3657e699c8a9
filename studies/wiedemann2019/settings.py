"""The settings of the study of Wiedemann et al. 2019."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embstore.arguments import checked
from embstore.errors import InvalidValueError
from embstore_studies.settings import StudySettings


@checked
@dataclass(frozen=True, kw_only=True)
class Wiedemann2019(StudySettings):
    """Settings of the study: how well the nearest train occurrences of a word tell its sense, layer by layer.

    n_sentences: of a corpus in Wiki-PSE markup at most, drawn by their text; None for all. test_share: of these
    sentences, drawn by their text too; a folder of CoarseWSD-20 has its own split. ks: numbers of neighbours. last: how
    many of the last layers are averaged. resamples: of words, for intervals. seed: of the samples.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "word senses by the nearest neighbours, by layer and number of neighbours"
    data: ClassVar[str] = "a corpus in Wiki-PSE markup, or a folder of CoarseWSD-20 with a folder per word"

    n_sentences: int | None = 10000
    test_share: float = 0.2
    ks: tuple[int, ...] = (1, 3, 5, 7, 10)
    last: int = 4
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise InvalidValueError(f"test_share {self.test_share} is not allowed: give a number between 0 and 1")
        object.__setattr__(self, "ks", tuple(dict.fromkeys(self.ks)))
        if not self.ks:
            raise InvalidValueError("ks is empty: give one number of neighbours or more")
        self.require_at_least(n_sentences=2, ks=1, last=1, resamples=1, seed=0)
