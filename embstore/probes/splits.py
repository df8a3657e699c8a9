"""Train, dev and test: words that are listed or drawn, and rows by a column or by conditions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.scan import labelled
from embstore.arguments import Count, Share, checked
from embstore.errors import InvalidValueError, quoted
from embstore.store import Store
from embstore.store.metadata import canonical

Words = Mapping[str, Iterable[str] | Mapping[str, int]]
SPLITS = ("train", "dev", "test")


def place_of(split: str) -> int:
    """Return the place of a split among SPLITS; raises InvalidValueError."""
    if split not in SPLITS:
        raise InvalidValueError(f"unknown split {quoted(split)}; allowed are {', '.join(SPLITS)}")
    return SPLITS.index(split)


def given_split(store: Store, rows: NDArray[np.int64], split: str | Mapping[str, str]) -> NDArray[np.int8]:
    """Return the split of each row, a place in SPLITS or -1 for none.

    `split`: a label column or field whose values are train, dev and test, or a condition in SQL for some of these.
    Raises InvalidValueError, also for a row of two splits.
    """
    if isinstance(split, str):
        own, column = labelled(store.select(rows=rows), split)
        names = dict(enumerate(column.names))
        used = np.unique(column.codes[own]).tolist()
        if wrong := [names[code] for code in used if names[code] not in SPLITS]:
            raise InvalidValueError(
                f"the column {split!r} has the value {quoted(wrong[0])}: a split is train, dev or test; or give "
                f'conditions, such as {{"dev": "{split} = {quoted(wrong[0])}"}}'
            )
        places = [SPLITS.index(names[code]) if code in used else -1 for code in names]
        return np.array([*places, -1], np.int8)[column.codes[rows]]
    parts = np.full(len(rows), -1, np.int8)
    for name, condition in split.items():
        place, found = place_of(name), np.isin(rows, store.select(rows=rows, where=condition).rows)
        if n_both := int((found & (parts >= 0)).sum()):
            raise InvalidValueError(f"{n_both:,} rows are in two splits by these conditions: change that of {name}")
        parts[found] = place
    return parts


def some(names: Sequence[str]) -> str:
    """Write the first of some names."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def draw(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which of `count` sorted units are drawn: a share of them, by the seed alone."""
    drawn = np.zeros(count, bool)
    drawn[np.random.default_rng(seed).permutation(count)[: round(share * count)]] = True
    return drawn


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
        words: Mapping[str, tuple[str, ...]] = getattr(self, SPLITS[place_of(split)])
        return words

    def places(self, forms: Iterable[str]) -> NDArray[np.int8]:
        """Return the split of each form, a place in SPLITS or -1 for none."""
        found = {word: place for place, split in enumerate(SPLITS) for word in self.of(split)}
        return np.array([found.get(form, -1) for form in forms], np.int8)

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
    is_dev = dict(zip(sorted(words), draw(len(words), dev_share, seed).tolist(), strict=True))
    first, second = ({word: own for word, own in words.items() if is_dev[word] == part} for part in (False, True))
    return WordSplit(first, second, tested)


def _sorted(words: Words) -> dict[str, tuple[str, ...]]:
    return {word: tuple(sorted(set(classes))) for word, classes in words.items()}
