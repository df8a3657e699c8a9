"""Word splits: the words that class probes are trained, stopped and scored on. Splits are by word, not by context."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from embstore.arguments import Count, Share, checked
from embstore.errors import InvalidValueError
from embstore.store.metadata import canonical

Words = Mapping[str, Iterable[str] | Mapping[str, int]]
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class WordSplit:
    """Words of the three splits, no word in two of them, each with its classes (no classes: those of the store).

    Raises InvalidValueError for a word in two splits.
    """

    train: Mapping[str, tuple[str, ...]]
    dev: Mapping[str, tuple[str, ...]]
    test: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        for first, second in combinations(SPLITS, 2):
            shared = sorted(set(self.of(first)) & set(self.of(second)))
            if shared:
                more = f" and {len(shared) - 3:,} more" if len(shared) > 3 else ""
                raise InvalidValueError(
                    f"the {first} and the {second} words must not overlap: both have "
                    f"{', '.join(map(repr, shared[:3]))}{more}"
                )

    def of(self, split: str) -> Mapping[str, tuple[str, ...]]:
        """Return the words of a split with their classes."""
        if split not in SPLITS:
            raise InvalidValueError(f"unknown split {split!r}; allowed are {', '.join(SPLITS)}")
        words: Mapping[str, tuple[str, ...]] = getattr(self, split)
        return words

    @property
    def sha256(self) -> str:
        """A hash over all words and their classes, whatever their order."""
        return hashlib.sha256(canonical(self.as_json())).hexdigest()

    def as_json(self) -> dict[str, dict[str, Any]]:
        return {split: {word: list(classes) for word, classes in sorted(self.of(split).items())} for split in SPLITS}

    @classmethod
    def from_json(cls, document: Mapping[str, Mapping[str, Any]]) -> WordSplit:
        return cls(*(_sorted(document[split]) for split in SPLITS))


@checked
def split_words(
    train: Words, test: Words, *, dev: Words | None = None, dev_share: Share = 0.2, seed: Count = 0
) -> WordSplit:
    """Make a split of train and test words; without `dev`, a share of the train words becomes the dev words.

    Parameters
    ----------
    train, test, dev : mapping
        Each word with its classes, as `read_word_classes` returns them; a word without classes has those of the store.
    dev_share : float
        The share of the train words that become dev words, where none are given.
    seed : int
        Of the draw of dev words, which does not depend on the order of the train words.

    Raises
    ------
    InvalidValueError
        For words in two splits, empty lists, and a share that leaves no words.
    """
    words, tested = _sorted(train), _sorted(test)
    for name, given in (("train", words), ("test", tested)):
        if not given:
            raise InvalidValueError(f"there are no {name} words: give some")
    if dev is not None:
        return WordSplit(words, _sorted(dev), tested)
    n_dev = round(dev_share * len(words))
    if dev_share and not 0 < n_dev < len(words):
        raise InvalidValueError(
            f"a share of {dev_share:g} of {len(words):,} train words leaves no train words or no dev words: give more "
            "words or another dev_share"
        )
    forms = sorted(words)
    drawn = {forms[number] for number in np.random.default_rng(seed).permutation(len(forms))[:n_dev].tolist()}
    return WordSplit(
        {word: classes for word, classes in words.items() if word not in drawn},
        {word: classes for word, classes in words.items() if word in drawn},
        tested,
    )


def _sorted(words: Words) -> dict[str, tuple[str, ...]]:
    return {word: tuple(sorted(set(classes))) for word, classes in words.items()}
