"""Words to learn from, to stop by and to be asked: splits are by word, never by context."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from embstore.errors import InvalidValueError
from embstore.store.metadata import canonical

Words = Mapping[str, Iterable[str]]
PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class WordSplit:
    """Disjoint words of the three parts, each with its classes (none: whatever the store says)."""

    train: Mapping[str, tuple[str, ...]]
    dev: Mapping[str, tuple[str, ...]]
    test: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        for one, other in combinations(PARTS, 2):
            both = sorted(set(self.of(one)) & set(self.of(other)))
            if both:
                more = f" and {len(both) - 3:,} more" if len(both) > 3 else ""
                verb = "stands" if len(both) == 1 else "stand"
                raise InvalidValueError(
                    f"{', '.join(map(repr, both[:3]))}{more} {verb} in the {one} and in the {other} words: "
                    "a word is either learnt from or asked"
                )

    def of(self, part: str) -> Mapping[str, tuple[str, ...]]:
        if part not in PARTS:
            raise InvalidValueError(f"unknown split {part!r}; allowed are {', '.join(PARTS)}")
        words: Mapping[str, tuple[str, ...]] = getattr(self, part)
        return words

    @property
    def sha256(self) -> str:
        """A hash over all words and their classes, whatever their order."""
        return hashlib.sha256(canonical(self.as_json())).hexdigest()

    def as_json(self) -> dict[str, dict[str, list[str]]]:
        return {part: {word: list(classes) for word, classes in sorted(self.of(part).items())} for part in PARTS}

    @classmethod
    def from_json(cls, document: Mapping[str, Mapping[str, Any]]) -> WordSplit:
        return cls(*(_normal(document[part]) for part in PARTS))


def split_words(
    train: Words, test: Words, *, dev: Words | None = None, dev_share: float = 0.2, seed: int = 0
) -> WordSplit:
    """Take a share of the train words as dev words, drawn with the seed, where `dev` is not given.

    The draw depends on the words alone. Raises InvalidValueError for words in two parts, no words, a share not allowed.
    """
    held = _normal(train)
    for name, words in (("train", held), ("test", test)):
        if not words:
            raise InvalidValueError(f"the list of {name} words is empty: give some")
    if dev is not None:
        return WordSplit(held, _normal(dev), _normal(test))
    if not 0 <= dev_share < 1:
        raise InvalidValueError(f"dev_share {dev_share} is not allowed: give 0 or more, less than 1")
    count = round(dev_share * len(held))
    if dev_share and not 0 < count < len(held):
        raise InvalidValueError(
            f"a share of {dev_share:g} of {len(held):,} train words leaves none to learn from or none to stop by: "
            "give more words or another dev_share"
        )
    forms = sorted(held)
    drawn = {forms[place] for place in np.random.default_rng(seed).permutation(len(forms))[:count].tolist()}
    return WordSplit(
        {word: classes for word, classes in held.items() if word not in drawn},
        {word: classes for word, classes in held.items() if word in drawn},
        _normal(test),
    )


def _normal(words: Words) -> dict[str, tuple[str, ...]]:
    return {word: tuple(sorted(set(classes))) for word, classes in words.items()}
