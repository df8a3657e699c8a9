"""Analyses word by word: which words qualify, their rows, and results for all of them, in batches and in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray

from embstore.analysis.scan import PRECISIONS, map_store, require_store
from embstore.devices import choose_device, thread_count
from embstore.errors import InvalidValueError, NonFiniteError, check_choice, check_whole
from embstore.sizes import parse_nbytes
from embstore.store import Selection, Store, Strings

MEMORY = 2**30
BATCH_NBYTES = 4 * 2**20  # of float32: a batch, its Gram matrices and intermediate results stay in the cache
WINDOW_NBYTES = 16 * 2**20  # of vectors as stored: what one task reads
PADDING = 1.125  # a batch holds words of up to this many times the occurrences of its smallest one
_GPU_BATCH_NBYTES = 2**28
_BATCH_TIMES = 24  # the memory of a thread, in batches
_MOMENTS = 6  # matrices [feature, feature] of float64 that a thread holds for a word with more vectors than features

Blocks = Callable[[], Iterator[torch.Tensor]]


@dataclass(frozen=True)
class WordRows:
    """The occurrences of some words: those of word `i` are `rows[indptr[i]:indptr[i + 1]]`, ascending; both int64.

    `types`: int64 [n_words], positions in the store's `index.words`. An occurrence that a selection names twice counts
    once.
    """

    types: NDArray[np.int64]
    indptr: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of occurrences of each word, int64 [n_words]."""
        return np.diff(self.indptr)

    def of(self, number: int) -> NDArray[np.int64]:
        """The rows of one word."""
        return self.rows[self.indptr[number] : self.indptr[number + 1]]

    def some(self, numbers: NDArray[np.int64]) -> WordRows:
        """The words with these numbers alone, in the order of `numbers`."""
        counts = self.counts[numbers]
        indptr = np.append(0, np.cumsum(counts))
        own = np.arange(int(indptr[-1])) + np.repeat(self.indptr[numbers] - indptr[:-1], counts)
        return WordRows(self.types[numbers], indptr, self.rows[own])


def all_types(data: Store | Selection) -> NDArray[np.int64]:
    """The types that have an occurrence, ascending; int64 [n]."""
    store, rows = _store_and_rows(data)
    return np.flatnonzero(np.bincount(store.index.type[rows], minlength=len(store.index.words)))


def distinct_contexts(data: Store | Selection) -> NDArray[np.int64]:
    """Count the different sentences that each type occurs in; int64 [n_types], 0 for a type that is not selected.

    Sentences with the same words count once. Rows count whether they are written yet or not.
    """
    store, rows = _store_and_rows(data)
    index = store.index
    texts = distinct_texts(index.texts)
    n_texts = int(texts.max(initial=0)) + 1
    key = index.type[rows].astype(np.int64)
    key *= n_texts
    key += texts[index.sentence[rows]]
    key.sort()
    first = np.append(True, key[1:] != key[:-1])[: len(key)]
    return np.bincount(key[first] // n_texts, minlength=len(index.words))


def eligible_types(
    data: Store | Selection, min_contexts: int = 5, max_contexts: int | None = None
) -> NDArray[np.int64]:
    """The types that occur in `min_contexts` to `max_contexts` different sentences, ascending; int64 [n]."""
    check_whole("min_contexts", min_contexts, 1)
    if max_contexts is not None and check_whole("max_contexts", max_contexts, 1) < min_contexts:
        raise InvalidValueError(f"max_contexts {max_contexts} is less than min_contexts {min_contexts}: no word fits")
    contexts = distinct_contexts(data)
    most = np.inf if max_contexts is None else max_contexts
    return np.flatnonzero((contexts >= min_contexts) & (contexts <= most))


def distinct_texts(texts: Strings) -> NDArray[np.int64]:
    """Number texts so that equal texts, and no others, have the same number; int64 [n].

    Their digests of 128 bits are compared.
    """
    data = np.ascontiguousarray(texts.data).data
    spans = pairwise(texts.offsets.tolist())
    digests = b"".join(blake2b(data[start:stop], digest_size=16).digest() for start, stop in spans)
    return np.unique(np.frombuffer(digests, "S16"), return_inverse=True)[1].astype(np.int64)


def rows_of_words(data: Store | Selection, types: ArrayLike) -> WordRows:
    """Group the occurrences of a store or selection by word, for distinct types in any order.

    Raises InvalidValueError for an empty list, an unknown type, one given twice and one without an occurrence.
    """
    store, rows = _store_and_rows(data)
    chosen = _checked_types(store, types)
    numbers = np.full(len(store.index.words), -1, np.int32)
    numbers[chosen] = np.arange(len(chosen), dtype=np.int32)
    found = numbers[store.index.type[rows]]
    order = np.argsort(found, kind="stable")
    indptr = np.searchsorted(found[order], np.arange(len(chosen) + 1))
    empty = np.flatnonzero(np.diff(indptr) == 0)
    if len(empty):
        word = store.index.words[int(chosen[empty[0]])]
        raise InvalidValueError(f"the word {word!r} has no selected occurrence in {store.path}: leave it out")
    grouped = order[indptr[0] :]
    return WordRows(chosen, indptr - indptr[0], grouped if isinstance(rows, slice) else rows[grouped])


def _store_and_rows(data: Store | Selection) -> tuple[Store, NDArray[np.int64] | slice]:
    """The store and the selected rows, ascending and each once; a slice for all rows."""
    require_store(data)
    if isinstance(data, Store):
        return data, slice(None)
    rows = data.rows
    if len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all()):
        rows = np.unique(rows)
    return data.store, rows


def _checked_types(store: Store, types: ArrayLike) -> NDArray[np.int64]:
    chosen = np.asarray(list(types) if isinstance(types, set | frozenset) else types)
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

    @classmethod
    def of(cls, precision: str = "float32", device: str = "auto", memory: int | str | None = None) -> Resources:
        """Check the options of an analysis; raises InvalidValueError. `memory`: None for 1 GiB."""
        check_choice("precision", precision, PRECISIONS)
        nbytes = MEMORY if memory is None else parse_nbytes(memory, name="memory")
        return cls(PRECISIONS[precision], choose_device(device, float64=True), nbytes)

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
        n_threads = thread_count() if self.device.type == "cpu" else 2
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
    """Something to compute of each word of a layer; both functions can be pickled and return a tensor [w, ...].

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
    device: str,
    memory: int | str | None,
    executor: Executor | None,
    progress: Callable[[int], object],
) -> Iterator[NDArray[Any]]:
    """Yield the results of all words for each layer, [n_words, ...], computed in threads or by an executor.

    `memory`: bytes that this process, or each worker, may use. `progress` is called with the number of occurrences
    done over all layers. The results are the same to the bit with and without an executor.
    """
    resources = Resources.of(precision, device if executor is None else "cpu", memory)
    groups = word_groups(store, words, resources)
    options = (precision, device, resources.memory)
    calls = (
        partial(_compute_group, method=method, layer=layer, words=words.some(group), options=options)
        for layer in layers
        for group in groups
    )
    n_threads, done = resources.n_threads(store.hidden_size, int(words.counts.max())), 0
    with closing(map_store(store, calls, executor=executor, threads=n_threads)) as found:
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
    n_rows = max(1, resources.window_nbytes // (store.vector_dtype.itemsize * store.hidden_size))
    windows = (np.cumsum(counts) - counts)[:n_rare] // n_rows
    rare = np.split(numbers[:n_rare], np.flatnonzero(np.diff(windows)) + 1) if n_rare else []
    return [*numbers[n_rare:][::-1, None], *rare]


def _compute_group(
    store: Store, *, method: PerWord, layer: int, words: WordRows, options: tuple[str, str, int]
) -> NDArray[Any]:
    """Compute the results of the words of a group, which have ascending counts."""
    resources = Resources.of(*options)
    size = resources.batch_nbytes
    if words.counts[0] > store.hidden_size:
        results = [method.of_blocks(partial(iter_word_blocks, store, layer, words, nbytes=size), resources)]
    else:
        results = [method.of_batch(batch, resources) for batch in iter_batches(store, layer, words, nbytes=size)]
    return torch.cat(results).cpu().numpy().astype(method.dtype, copy=False)


def iter_batches(store: Store, layer: int, words: WordRows, *, nbytes: int) -> Iterator[WordBatch]:
    """Yield words of ascending counts in batches of about `nbytes` of float32; raises NonFiniteError."""
    vectors, counts = store.gather(words.rows, layer), words.counts
    first = 0
    while first < len(counts):
        last = int(np.searchsorted(counts, max(counts[first], int(counts[first] * PADDING)), side="right"))
        last = min(last, first + max(1, nbytes // (4 * store.hidden_size) // int(counts[last - 1])))
        own, size = counts[first:last], int(counts[last - 1])
        part = vectors[words.indptr[first] : words.indptr[last]]
        if own[0] < size:
            padded = np.zeros((len(own), size, store.hidden_size), vectors.dtype)
            padded[np.arange(size) < own[:, None]] = part
            part = padded
        batch = torch.from_numpy(part.reshape(len(own), size, -1)).float()
        for invalid in torch.nonzero(~torch.isfinite(batch.sum((1, 2))))[:, 0].tolist():
            _require_finite(store, layer, words.of(first + invalid), batch[invalid])
        yield WordBatch(own, batch)
        first = last


def iter_word_blocks(store: Store, layer: int, words: WordRows, *, nbytes: int) -> Iterator[torch.Tensor]:
    """Yield the occurrences of one word, ascending, in blocks of about `nbytes`: float32 [n, hidden_size]."""
    step = max(1, nbytes // (4 * store.hidden_size))
    for start in range(0, len(words.rows), step):
        part = words.rows[start : start + step]
        vectors = torch.from_numpy(store.gather(part, layer)).float()
        if not bool(torch.isfinite(vectors.sum())):
            _require_finite(store, layer, part, vectors)
        yield vectors


def _require_finite(store: Store, layer: int, rows: NDArray[np.int64], vectors: torch.Tensor) -> None:
    """Raise NonFiniteError that names the first row with a value that is not finite, if there is one."""
    invalid = torch.nonzero(~torch.isfinite(vectors).all(1))
    if len(invalid):
        row = int(rows[int(invalid[0])])
        word = store.index.words[int(store.index.type[row])]
        raise NonFiniteError(
            f"the word {word!r} has a value that is not finite in layer {layer}, row {row} of {store.path}: "
            "leave that row or word out"
        )
