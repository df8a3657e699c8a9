"""The choice of occurrences: which words of a corpus get a row in the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.sentence import as_phrase, is_encodable
from embstore.errors import InvalidValueError, check_whole, quoted

BLOCK_ROWS = 2**20  # of a mapped column that are read at a time: 4 MiB
PASS_ROWS = 2**22  # that are sorted at a time: about 400 MiB
IntArray = NDArray[np.int64]
Codes = NDArray[np.int32]
Mask = NDArray[np.bool_]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of SplitMix64


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Rules that choose which occurrences get a row; they apply in this order, each to what the previous ones left.

    `where`: only occurrences for which a condition in SQL is true, as `Store.select` would find them in a store of all
    occurrences. `words`: only these words and phrases ("New York" and "New_York" are the same). `min_contexts`: only
    words that occur in at least this many distinct sentences; repeated sentences count once. `max_contexts`: at most
    this many occurrences of a word or, with `per` a label column, of a word and label (no label counts as one): a
    uniform sample without replacement, which depends only on `seed`, the word and the number of its occurrences.
    """

    words: Iterable[str] | None = None
    min_contexts: int = 1
    max_contexts: int | None = None
    per: str | None = None
    seed: int = 0
    where: str | None = None

    def __post_init__(self) -> None:
        if self.words is not None:
            if isinstance(self.words, str) or not isinstance(self.words, Iterable):
                raise InvalidValueError(f"words: {quoted(self.words)} is not a set of words")
            words = list(self.words)
            for word in words:
                if not isinstance(word, str) or not word.strip() or not is_encodable(word):
                    raise InvalidValueError(f"words: {quoted(word)} is not a word")
            if not words:
                raise InvalidValueError("words: the set is empty, so nothing would be kept; None keeps every word")
            object.__setattr__(self, "words", frozenset(words))
        check_whole("min_contexts", self.min_contexts, 1)
        if self.max_contexts is not None:
            check_whole("max_contexts", self.max_contexts, 1)
        check_whole("seed", self.seed, 0, 2**64 - 1)
        if self.per is not None and not (isinstance(self.per, str) and self.per):
            raise InvalidValueError(f"per: {quoted(self.per)} is not the name of a label column")
        if self.per is not None and self.max_contexts is None:
            raise InvalidValueError(f"per: {quoted(self.per)} says how to count max_contexts, which is not given")
        if self.where is not None and not isinstance(self.where, str):
            raise InvalidValueError(f"where {quoted(self.where)} is not text: give a condition in SQL")

    def as_json(self) -> dict[str, Any]:
        """Return the rules as JSON values, with the words sorted."""
        document = {**asdict(self), "words": None if self.words is None else sorted(self.words)}
        return {name: value for name, value in document.items() if name != "where" or value is not None}

    def mask(
        self,
        *,
        types: Codes,
        sentences: IntArray,
        contexts: NDArray[np.uint64],
        labels: Mapping[str, Codes],
        forms: Sequence[str],
        chosen: Mask | None = None,
    ) -> Mask:
        """Return for each row whether it is kept, bool [rows].

        `chosen` bool [rows]: for which rows `where` is true, which is not looked at here; None: for all.
        `types` int32 [rows]: the type of each row, an index of `forms`. `sentences` int64 [rows]: its sentence, an
        index of `contexts`. `contexts` uint64 [sentences]: equal for equal sentences. `labels`: column -> int32 [rows],
        the label's code or -1. All may be memory-mapped. Memory: one byte a row, some bytes a word and a sentence, and
        about 100 bytes a row of a pass; a pass has PASS_ROWS rows, or all rows of one word. Raises InvalidValueError
        for a label column that does not exist.
        """
        if self.per is not None and self.per not in labels:
            existing = ", ".join(labels) or "none"
            raise InvalidValueError(f"per: there is no label column {quoted(self.per)}; there are: {existing}")
        mask = np.ones(len(types), bool) if chosen is None else chosen.copy()
        if self.words is not None:
            wanted = {as_phrase(word) for word in self.words}
            is_wanted = np.fromiter((as_phrase(form) in wanted for form in forms), bool, len(forms))
            for block in blocks_of(len(types), BLOCK_ROWS):
                mask[block] &= is_wanted[types[block]]
        if self.min_contexts > 1:
            self._drop_rare(mask, types, sentences, contexts, len(forms))
        if self.max_contexts is not None:
            codes = labels[self.per] if self.per else None
            self._sample(mask, types, codes, forms, self.max_contexts)
        return mask

    def _drop_rare(
        self, mask: Mask, types: Codes, sentences: IntArray, contexts: NDArray[np.uint64], n_types: int
    ) -> None:
        """Clear the mask for words with too few distinct contexts, counting (word, context) pairs exactly."""
        context_numbers = np.unique(contexts, return_inverse=True)[1]
        frequent = np.zeros(n_types, bool)
        for rows in _passes(mask, types, n_types, self.min_contexts):
            words = types[rows].astype(np.int64)
            first = int(words.min())
            pairs = (words - first) * len(contexts) + context_numbers[sentences[rows]]
            pairs.sort()
            n_contexts = np.bincount(pairs[rank_in_run(pairs) == 0] // len(contexts))
            frequent[first : first + len(n_contexts)] |= n_contexts >= self.min_contexts
        for block in blocks_of(len(types), BLOCK_ROWS):
            mask[block] &= frequent[types[block]]

    def _sample(self, mask: Mask, types: Codes, labels: Codes | None, forms: Sequence[str], most: int) -> None:
        """Give each occurrence a random number, by its word and its rank in it, and keep the `most` lowest."""
        key = self.seed.to_bytes(8, "little")
        for rows in _passes(mask, types, len(forms), most + 1):
            words = types[rows]
            by_word = np.argsort(words, kind="stable")
            rows, words = rows[by_word], words[by_word]
            rank = rank_in_run(words)
            distinct = words[rank == 0]
            seeds = np.zeros(int(distinct[-1] - distinct[0]) + 1, np.uint64)
            digests = b"".join(blake2b(forms[at].encode(), digest_size=8, key=key).digest() for at in distinct.tolist())
            seeds[distinct - distinct[0]] = np.frombuffer(digests, "<u8")
            numbers = splitmix(seeds[words - distinct[0]] + rank.astype(np.uint64) * _GOLDEN)
            groups = words.astype(np.int64)
            if labels is not None:
                groups = groups * (int(labels[rows].max()) + 2) + labels[rows] + 1
            order = np.lexsort((numbers, groups))
            mask[rows[order[rank_in_run(groups[order]) >= most]]] = False


def blocks_of(length: int, size: int) -> Iterator[slice]:
    """Yield slices of up to `size` that cover `length` entries."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _passes(mask: Mask, types: Codes, n_types: int, least: int) -> Iterator[IntArray]:
    """Yield all masked rows of the types that have `least` of them or more, ascending, a range of types at a time.

    Each pass reads all of `types` and yields at most PASS_ROWS rows, or the rows of a single type that has more.
    """
    counts = np.zeros(n_types, np.int64)
    for block in blocks_of(len(types), BLOCK_ROWS):
        counts += np.bincount(types[block][mask[block]], minlength=n_types)
    wanted = counts >= least
    ends = np.cumsum(np.where(wanted, counts, 0))
    first = 0
    while first < n_types:
        done = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, done + PASS_ROWS, side="right")), first + 1)
        if int(ends[last - 1]) > done:
            parts = []
            for block in blocks_of(len(types), BLOCK_ROWS):
                words = types[block]
                chosen = mask[block] & (words >= first) & (words < last)
                chosen[chosen] = wanted[words[chosen]]
                parts.append(np.flatnonzero(chosen) + block.start)
            yield np.concatenate(parts)
        first = last


def rank_in_run(values: NDArray[Any]) -> IntArray:
    """Return the rank of each item, from 0, in its run of equal neighbouring items."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    lengths = np.diff(np.append(starts, len(values)))
    return np.arange(len(values)) - np.repeat(starts, lengths)


def splitmix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output function of the SplitMix64 generator for these states."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))
