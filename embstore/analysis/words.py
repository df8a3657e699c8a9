"""Analyses word by word: which words qualify, their rows, and results for all of them, in batches and in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray

from embstore.analysis.scan import PRECISIONS, gather_finite, in_threads
from embstore.arguments import Positive, checked
from embstore.config import settings
from embstore.devices import choose_device, thread_count
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store
from embstore.store.text import ragged_indices
from embstore.store.vectors import VALUE_DTYPE

BLOCK_ROWS = 2**18  # of a column of an index
BLOCK_SENTENCES = 2**13  # whose pairs of word and text are sorted together: a few MiB
BATCH_NBYTES = 4 * 2**20  # of float32: a batch, its Gram matrices and intermediate results stay in the cache
WINDOW_NBYTES = 16 * 2**20  # of vectors as stored: what one task reads
PADDING = 1.125  # a batch holds words of up to this many times the occurrences of its smallest one
_GPU_BATCH_NBYTES = 2**28  # enough work for one launch; a GPU has no cache to stay in
_BATCH_TIMES = 24  # the memory of a thread, in batches
_MOMENTS = 6  # matrices [feature, feature] of float64 that a thread holds for a word with more vectors than features

Blocks = Callable[[], Iterator[torch.Tensor]]


@dataclass(frozen=True)
class WordRows:
    """The occurrences of some words: those of word `i` are the `counts[i]` rows from `rows[starts[i]]` on, ascending.

    All int64. `types`: [n_words], positions in the store's `index.words`. `rows` may hold rows of other words too: for
    all words of a store it is the store's own column, which is mapped. An occurrence that a selection names twice
    counts once.
    """

    types: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        """The number of occurrences of all words together."""
        return int(self.counts.sum())

    def of(self, number: int) -> NDArray[np.int64]:
        """The rows of one word."""
        return self.rows[self.starts[number] : self.starts[number] + self.counts[number]]

    def some(self, numbers: NDArray[np.int64]) -> WordRows:
        """The words with these numbers alone, in the order of `numbers`; `rows` holds no others."""
        starts, counts = self.starts[numbers], self.counts[numbers]
        rows = self.of(int(numbers[0])) if len(numbers) == 1 else self.rows[ragged_indices(starts, counts)]
        return WordRows(self.types[numbers], np.cumsum(counts) - counts, counts, rows)


def count_codes(codes: NDArray[np.integer], n_codes: int = 0) -> NDArray[np.int64]:
    """Count each number in a column of an index, block by block; int64 [n], at least `n_codes` of them."""
    counts = np.zeros(max(n_codes, int(codes.max(initial=-1)) + 1), np.int64)
    for start in range(0, len(codes), BLOCK_ROWS):
        block = codes[start : start + BLOCK_ROWS]
        low = int(block.min())  # sentences ascend: a block holds few of them
        found = np.bincount(block - low)
        counts[low : low + len(found)] += found
    return counts


def all_types(data: Store | Selection) -> NDArray[np.int64]:
    """The types that have an occurrence, ascending; int64 [n]."""
    store, rows = _store_and_rows(data)
    return np.flatnonzero(count_codes(store.index.type[rows], len(store.index.words)))


def distinct_contexts(data: Store | Selection) -> NDArray[np.int64]:
    """Count the different sentences that each type occurs in; int64 [n_types], 0 for a type that is not selected.

    Sentences that differ in white space alone count once. Rows count whether they are written yet or not. Memory does
    not grow with the rows: sentences are read in blocks, the same ones one after the other.
    """
    store, rows = _store_and_rows(data)
    index, n_types = store.index, len(store.index.words)
    if isinstance(rows, slice):
        span = range(store.n_rows)[rows]
        bounds = np.clip(index.indptr, span.start, span.stop)
    else:
        bounds = np.searchsorted(rows, index.indptr)
    texts, contexts = index.text.distinct, np.zeros(n_types, np.int64)
    order, unfinished = np.argsort(texts, kind="stable"), np.empty(0, np.int64)
    for start in range(0, len(order), BLOCK_SENTENCES):
        some = order[start : start + BLOCK_SENTENCES]
        counts = bounds[some + 1] - bounds[some]
        places = ragged_indices(bounds[some], counts)
        types = index.type[places if isinstance(rows, slice) else rows[places]]
        pairs = np.repeat(texts[some] * n_types, counts)
        pairs += types
        pairs = np.concatenate([unfinished, pairs])
        pairs.sort()
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]]
        n_finished = int(np.searchsorted(pairs, texts[some[-1]] * n_types))  # the last text may go on in the next block
        contexts += np.bincount(pairs[:n_finished] % n_types, minlength=n_types)
        unfinished = pairs[n_finished:]
    return contexts + np.bincount(unfinished % n_types, minlength=n_types)


@checked
def eligible_types(data: Store | Selection, *, min_contexts: Positive = 5) -> NDArray[np.int64]:
    """Return the types that occur in `min_contexts` different sentences or more, ascending; int64 [n]."""
    return np.flatnonzero(distinct_contexts(data) >= min_contexts)


def rows_of_words(data: Store | Selection, types: ArrayLike) -> WordRows:
    """Group the occurrences of a store or selection by word, for distinct types in any order.

    Raises InvalidValueError for an empty list, an unknown type, one given twice and one without an occurrence.
    """
    store, rows = _store_and_rows(data)
    chosen = _checked_types(store, types)
    if isinstance(rows, slice) and len(range(store.n_rows)[rows]) == store.n_rows:
        indptr, grouped = store.index.by_type
        words = WordRows(chosen, indptr[chosen], indptr[chosen + 1] - indptr[chosen], grouped)
    else:
        numbers = np.full(len(store.index.words), -1, np.int32)
        numbers[chosen] = np.arange(len(chosen), dtype=np.int32)
        found = numbers[store.index.type[rows]]
        selected = np.flatnonzero(found >= 0)
        order = selected[np.argsort(found[selected], kind="stable")]
        counts = np.bincount(found[selected], minlength=len(chosen))
        grouped = order + rows.start if isinstance(rows, slice) else rows[order]
        words = WordRows(chosen, np.cumsum(counts) - counts, counts, grouped)
    empty = np.flatnonzero(words.counts == 0)
    if len(empty):
        word = store.index.words[int(chosen[empty[0]])]
        raise InvalidValueError(f"the word {word!r} has no selected occurrence in {store.path}: leave it out")
    return words


def _store_and_rows(data: Store | Selection) -> tuple[Store, NDArray[np.int64] | slice]:
    """The store and the selected rows, ascending and each once; a slice where they are a range."""
    selection = data.select() if isinstance(data, Store) else data
    rows = selection.rows_at(0, len(selection))
    if not isinstance(rows, slice) and len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all()):
        rows = np.unique(rows)
    return selection.store, rows


def _checked_types(store: Store, types: ArrayLike) -> NDArray[np.int64]:
    chosen: NDArray[Any] = np.asarray(types)
    if not chosen.size:
        raise InvalidValueError(f"no word of {store.path} is chosen: allow fewer contexts, or choose other words")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InvalidValueError(f"types must be a list of integers, not {chosen.dtype} of {chosen.ndim} dimensions")
    n_known = len(store.index.words)
    invalid = chosen[(chosen < 0) | (chosen >= n_known)]
    if len(invalid):
        raise InvalidValueError(f"there is no type {int(invalid[0])}: the store has {n_known}")
    if len(np.unique(chosen)) < len(chosen):
        raise InvalidValueError("a type is given twice: give each once")
    return chosen.astype(np.int64)


@dataclass(frozen=True)
class Resources:
    """What a computation may use: `dtype` of products of vectors, `device`, and `memory` in bytes."""

    dtype: torch.dtype
    device: torch.device
    memory: int

    @property
    def window_nbytes(self) -> int:
        """Bytes of vectors that a task reads; independent of the number of threads, because it decides the rounding."""
        return min(WINDOW_NBYTES, self.memory // 24)

    @property
    def batch_nbytes(self) -> int:
        """Bytes of a batch; independent of the number of threads, because it decides the rounding."""
        most = BATCH_NBYTES if self.device.type == "cpu" else _GPU_BATCH_NBYTES
        return max(1, min(most, self.memory // (6 * _BATCH_TIMES)))

    def n_threads(self, hidden_size: int, most: int) -> int:
        """How many tasks fit the memory, if no word has more than `most` occurrences; on a GPU two, one of which reads.

        A task has a window and its rows, batches and their products, or the moment of a frequent word.
        """
        n_threads = thread_count(settings().threads) if self.device.type == "cpu" else 2
        nbytes = 3 * self.window_nbytes + _BATCH_TIMES * self.batch_nbytes
        if most > hidden_size:
            nbytes = max(nbytes, _MOMENTS * 8 * hidden_size * hidden_size)
        return max(1, min(n_threads, self.memory // nbytes))


@dataclass(frozen=True)
class WordBatch:
    """Some words of one layer: `counts` int64 [w] of their occurrences and `vectors` float32 [w, n, hidden_size].

    n is the largest count; rows beyond the count of a word are zero.
    """

    counts: NDArray[np.int64]
    vectors: torch.Tensor


@dataclass(frozen=True)
class PerWord:
    """Something to compute of each word of a layer; both functions return a tensor [w, ...].

    `of_batch`: of words with at most as many occurrences as features. `of_blocks`: of one word that has more, given a
    function that reads its vectors (again) in blocks. `dtype`: of the results.
    """

    of_batch: Callable[[WordBatch, Resources], torch.Tensor]
    of_blocks: Callable[[Blocks, Resources], torch.Tensor]
    dtype: DTypeLike = np.float64


def compute_per_word(
    method: PerWord,
    store: Store,
    layers: Sequence[int],
    words: WordRows,
    *,
    precision: str,
    progress: Callable[[int], object],
) -> Iterator[NDArray[Any]]:
    """Yield the results of all words for each layer, [n_words, ...], within the device and memory of `es.config`.

    `progress` is called with the number of occurrences done over all layers.
    """
    now = settings()
    resources = Resources(PRECISIONS[precision], choose_device(now.device, float64=True), now.nbytes)
    groups = word_groups(store, words, resources)
    calls = (
        partial(_compute_group, store, method, layer, words.some(group), resources)
        for layer in layers
        for group in groups
    )
    n_threads, done = resources.n_threads(store.hidden_size, int(words.counts.max())), 0
    with closing(in_threads(calls, threads=n_threads)) as found:
        for _ in layers:
            out: NDArray[Any] | None = None
            for group in groups:
                values = next(found)
                out = np.empty((len(words.types), *values.shape[1:]), values.dtype) if out is None else out
                out[group] = values
                done += int(words.counts[group].sum())
                progress(done)
            yield np.asarray(out)


def word_groups(store: Store, words: WordRows, resources: Resources) -> list[NDArray[np.int64]]:
    """The numbers of words that are computed together: each frequent word alone, the others by windows, fewest first.

    A word is frequent if it has more occurrences than features. A window has about `resources.window_nbytes`.
    """
    numbers = np.argsort(words.counts, kind="stable")
    counts = words.counts[numbers]
    n_rare = int(np.searchsorted(counts, store.hidden_size, side="right"))
    n_rows = max(1, resources.window_nbytes // (VALUE_DTYPE[store.dtype].itemsize * store.hidden_size))
    windows = (np.cumsum(counts) - counts)[:n_rare] // n_rows
    rare = np.split(numbers[:n_rare], np.flatnonzero(np.diff(windows)) + 1) if n_rare else []
    return [*numbers[n_rare:][::-1, None], *rare]


def _compute_group(store: Store, method: PerWord, layer: int, words: WordRows, resources: Resources) -> NDArray[Any]:
    """Compute the results of the words of a group, which have ascending counts."""
    size = resources.batch_nbytes
    if words.counts[0] > store.hidden_size:
        results = [method.of_blocks(partial(iter_word_blocks, store, layer, words, nbytes=size), resources)]
    else:
        results = [method.of_batch(batch, resources) for batch in iter_batches(store, layer, words, nbytes=size)]
    return torch.cat(results).cpu().numpy().astype(method.dtype, copy=False)


def iter_batches(store: Store, layer: int, words: WordRows, *, nbytes: int) -> Iterator[WordBatch]:
    """Yield words of ascending counts in batches of about `nbytes` of float32; raises NonFiniteError."""
    vectors, counts = gather_finite(store, words.rows, layer), words.counts
    first = 0
    while first < len(counts):
        last = int(np.searchsorted(counts, max(counts[first], int(counts[first] * PADDING)), side="right"))
        last = min(last, first + max(1, nbytes // (4 * store.hidden_size) // int(counts[last - 1])))
        own, size = counts[first:last], int(counts[last - 1])
        part = vectors[words.starts[first] : words.starts[last - 1] + counts[last - 1]]
        if own[0] < size:
            padded = np.zeros((len(own), size, store.hidden_size), vectors.dtype)
            padded[np.arange(size) < own[:, None]] = part
            part = padded
        yield WordBatch(own, torch.from_numpy(part.reshape(len(own), size, -1)).float())
        first = last


def iter_word_blocks(store: Store, layer: int, words: WordRows, *, nbytes: int) -> Iterator[torch.Tensor]:
    """Yield the occurrences of one word, ascending, in blocks of about `nbytes`: float32 [n, hidden_size]."""
    step = max(1, nbytes // (4 * store.hidden_size))
    for start in range(0, len(words.rows), step):
        yield torch.from_numpy(gather_finite(store, words.rows[start : start + step], layer)).float()
