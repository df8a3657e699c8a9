"""Which occurrences of the words of a corpus to keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.messages import shown
from embstore.corpus.words import as_phrase
from embstore.errors import InvalidValueError

BLOCK_ROWS = 2**20
PASS_ROWS = 2**22
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Keep:
    """Rules that choose occurrences; each acts on what the ones before it left, in this order.

    `words`: only these words and phrases ("New York" and "New_York" are one). `labelled`: only what has a
    label in any column (True) or in the one named. `min_contexts`: only words that still occur in so many
    distinct sentences, repeated sentences counting once. `max_contexts`: so many occurrences of a word at
    most, or, where `per` names a label column, of a word and label (no label counting as one): a uniform
    sample without replacement that depends on `seed`, the word and the number of its occurrences alone.
    """

    words: frozenset[str] | None = None
    labelled: str | bool = False
    min_contexts: int = 1
    max_contexts: int | None = None
    per: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.words is not None:
            object.__setattr__(self, "words", _word_set(self.words))
        if not isinstance(self.labelled, bool) and not (isinstance(self.labelled, str) and self.labelled):
            raise InvalidValueError(f"labelled: {shown(self.labelled)} is neither True or False nor a label column")
        _check_number("min_contexts", self.min_contexts, 1)
        if self.max_contexts is not None:
            _check_number("max_contexts", self.max_contexts, 1)
        _check_number("seed", self.seed, 0)
        if self.seed >= 2**64:
            raise InvalidValueError(f"seed: {self.seed} is too large; give 0 to 2^64 - 1")
        if self.per is not None and not (isinstance(self.per, str) and self.per):
            raise InvalidValueError(f"per: {shown(self.per)} is not the name of a label column")
        if self.per is not None and self.max_contexts is None:
            raise InvalidValueError(f"per: {shown(self.per)} says how to count max_contexts, which is not given")

    def as_json(self) -> dict[str, Any]:
        """The rules as JSON has them, the words sorted."""
        return {**asdict(self), "words": None if self.words is None else sorted(self.words)}

    def rows(
        self,
        *,
        type: NDArray[np.int32],
        sentence: NDArray[np.int64],
        context: NDArray[np.uint64],
        labels: Mapping[str, NDArray[np.int32]],
        forms: Sequence[str],
        pass_rows: int = PASS_ROWS,
    ) -> Rows:
        """Return the rows to keep, int64, ascending; see `mask`."""
        kept = self.mask(type=type, sentence=sentence, context=context, labels=labels, forms=forms, pass_rows=pass_rows)
        return np.flatnonzero(kept)

    def mask(
        self,
        *,
        type: NDArray[np.int32],
        sentence: NDArray[np.int64],
        context: NDArray[np.uint64],
        labels: Mapping[str, NDArray[np.int32]],
        forms: Sequence[str],
        pass_rows: int = PASS_ROWS,
    ) -> NDArray[np.bool_]:
        """Say of each row whether to keep it.

        `type`, `sentence` and each of `labels`, one a row, may be memory-mapped: the row of `forms`, the row
        of `context`, the label's code or -1. `context`: one number a sentence, equal for equal sentences.
        Memory: a byte a row, some bytes a word and a sentence, and about 100 a row of a pass; a pass holds
        `pass_rows` rows, or all of one word's. Raises InvalidValueError for a label column that is not there.
        """
        for option, column in (("labelled", self.labelled), ("per", self.per)):
            if isinstance(column, str) and column not in labels:
                there = ", ".join(labels) or "none"
                raise InvalidValueError(f"{option}: there is no label column {shown(column)}; there are: {there}")
        kept = np.ones(len(type), bool)
        self._keep_words(kept, type, forms)
        self._keep_labelled(kept, labels)
        if self.min_contexts > 1:
            _keep_frequent(kept, type, sentence, context, self.min_contexts, len(forms), pass_rows)
        if self.max_contexts is not None:
            self._keep_sample(kept, type, labels.get(self.per) if self.per else None, forms, pass_rows)
        return kept

    def _keep_words(self, kept: NDArray[np.bool_], type: NDArray[np.int32], forms: Sequence[str]) -> None:
        if self.words is None:
            return
        wanted = {as_phrase(word) for word in self.words}
        chosen = np.fromiter((as_phrase(form) in wanted for form in forms), bool, len(forms))
        for block in _blocks(len(type)):
            kept[block] &= chosen[type[block]]

    def _keep_labelled(self, kept: NDArray[np.bool_], labels: Mapping[str, NDArray[np.int32]]) -> None:
        if self.labelled is False:
            return
        columns = list(labels.values()) if self.labelled is True else [labels[self.labelled]]
        for block in _blocks(len(kept)):
            has_label = np.zeros(len(kept[block]), bool)
            for column in columns:
                has_label |= column[block] >= 0
            kept[block] &= has_label

    def _keep_sample(
        self,
        kept: NDArray[np.bool_],
        type: NDArray[np.int32],
        label: NDArray[np.int32] | None,
        forms: Sequence[str],
        pass_rows: int,
    ) -> None:
        """Number the occurrences at random, by the word and the place among its own; keep the lowest."""
        most = self.max_contexts
        assert most is not None
        counts = _counts(kept, type, len(forms))
        for rows in _passes(kept, type, np.where(counts > most, counts, 0), pass_rows):
            types = type[rows]
            by_word = np.argsort(types, kind="stable")
            rows, types = rows[by_word], types[by_word]
            place = _place_in_run(types)
            starts = types[place == 0]
            seeds = np.zeros(int(starts[-1] - starts[0]) + 1, np.uint64)
            seeds[starts - starts[0]] = [self._word_seed(forms[word]) for word in starts.tolist()]
            numbers = _mixed(seeds[types - starts[0]] + place.astype(np.uint64) * _GOLDEN)
            if label is None:
                order = np.lexsort((numbers, types))
                runs = types[order]
            else:
                codes = label[rows]
                order = np.lexsort((numbers, codes, types))
                runs = types[order].astype(np.int64) * (int(codes.max()) + 2) + codes[order] + 1
            kept[rows[order[_place_in_run(runs) >= most]]] = False

    def _word_seed(self, form: str) -> int:
        key = self.seed.to_bytes(8, "little")
        return int.from_bytes(blake2b(form.encode(), digest_size=8, key=key).digest(), "little")


def _keep_frequent(
    kept: NDArray[np.bool_],
    type: NDArray[np.int32],
    sentence: NDArray[np.int64],
    context: NDArray[np.uint64],
    least: int,
    types: int,
    pass_rows: int,
) -> None:
    """Leave out the words of fewer distinct contexts, counting (word, context) pairs exactly."""
    numbers = _numbered(context)
    counts = _counts(kept, type, types)
    frequent = np.zeros(types, bool)
    for rows in _passes(kept, type, np.where(counts >= least, counts, 0), pass_rows):
        words = type[rows].astype(np.int64)
        first = int(words.min())
        pairs = (words - first) * len(context) + numbers[sentence[rows]]
        pairs.sort()
        distinct = np.bincount(pairs[_place_in_run(pairs) == 0] // len(context))
        frequent[first : first + len(distinct)] |= distinct >= least
    for block in _blocks(len(type)):
        kept[block] &= frequent[type[block]]


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, rows))


def _counts(kept: NDArray[np.bool_], type: NDArray[np.int32], types: int) -> Rows:
    """How many kept rows each word has."""
    counts = np.zeros(types, np.int64)
    for block in _blocks(len(type)):
        counts += np.bincount(type[block][kept[block]], minlength=types)
    return counts


def _passes(kept: NDArray[np.bool_], type: NDArray[np.int32], counts: Rows, pass_rows: int) -> Iterator[Rows]:
    """Yield all kept rows of the words of a count above zero, ascending, some words at a time.

    Each pass reads all of `type` and holds no more than `pass_rows` rows, but for a word that has more by
    itself.
    """
    ends = np.cumsum(counts)
    wanted = counts > 0
    first = 0
    while first < len(counts):
        done = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, done + pass_rows, side="right")), first + 1)
        if int(ends[last - 1]) > done:
            parts = []
            for block in _blocks(len(type)):
                types = type[block]
                mask = kept[block] & (types >= first) & (types < last)
                mask[mask] = wanted[types[mask]]
                parts.append(np.flatnonzero(mask) + block.start)
            yield np.concatenate(parts)
        first = last


def _numbered(values: NDArray[np.uint64]) -> Rows:
    """Numbers in place of the values, equal for equal ones, below their count."""
    order = np.argsort(values)
    ordered = values[order]
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.cumsum(np.append(False, ordered[1:] != ordered[:-1])[: len(values)])
    return numbers


def _place_in_run(values: NDArray[Any]) -> Rows:
    """The place of each item among the equal ones that it stands with, from 0."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    lengths = np.diff(np.append(starts, len(values)))
    return np.arange(len(values)) - np.repeat(starts, lengths)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random-looking numbers of consecutive states: the output function of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def _word_set(words: object) -> frozenset[str]:
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise InvalidValueError(f"words: {shown(words)} is not a set of words")
    found = frozenset(words)
    if not found:
        raise InvalidValueError("words: the set is empty, so nothing would be kept; None keeps every word")
    for word in found:
        if not isinstance(word, str) or not word.strip():
            raise InvalidValueError(f"words: {shown(word)} is not a word")
    return found


def _check_number(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValueError(f"{name}: {shown(value)} is not a whole number of {least} or more")
