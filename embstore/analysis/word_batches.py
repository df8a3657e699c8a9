"""Analyses word by word over a layer: occurrences in batches of words with similar counts, processed in parallel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import (
    PRECISIONS,
    StoreIdentity,
    identity_of,
    open_on_worker,
    rows_of,
    thread_pool,
)
from embstore.analysis.words import WordRows
from embstore.devices import choose_device, thread_count, torch_threads
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.executors import iter_results
from embstore.sizes import parse_nbytes
from embstore.store import Store

MEMORY = 2**30
BATCH_NBYTES = 4 * 2**20  # of float32: a batch, its Gram matrices and intermediate results stay in the cache
PADDING = 1.125  # a batch holds words of up to this many times the occurrences of its smallest one
_GPU_BATCH_NBYTES = 2**28
_BATCH_TIMES = 24  # the memory of a thread, in batches
_AHEAD = 3  # batches that wait for each thread
_REMOTE_NBYTES = 16 * 2**20  # scattered rows per request to a remote store

Result = TypeVar("Result")


@dataclass(frozen=True)
class WordBatch:
    """Some words of one layer: `numbers` int64 [w] among the requested words, `counts` int64 [w] of occurrences.

    `vectors`: float32 [w, n, hidden_size], n the largest count; rows beyond the count of a word are zero.
    """

    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]
    vectors: torch.Tensor


@dataclass(frozen=True)
class Resources:
    """What a computation may use: `dtype` of products of vectors, `device`, `memory` in bytes, number of threads."""

    dtype: torch.dtype
    device: torch.device
    memory: int
    n_threads: int

    @classmethod
    def of(
        cls,
        precision: str = "float32",
        device: str = "auto",
        memory: int | str | None = None,
        *,
        threads: int | None = None,
    ) -> Resources:
        """Check the options of a query; raises InvalidValueError. `memory`: None for 1 GiB; `threads`: None for all."""
        if precision not in PRECISIONS:
            raise InvalidValueError(f"unknown precision {precision!r}; allowed are {', '.join(PRECISIONS)}")
        nbytes = MEMORY if memory is None else parse_nbytes(memory, name="memory")
        chosen = choose_device(device)
        n_threads = thread_count(threads) if chosen.type == "cpu" else 1
        most = max(1, nbytes // (_BATCH_TIMES * _batch_nbytes(chosen, nbytes)) - 1)
        return cls(PRECISIONS[precision], chosen, nbytes, min(n_threads, most))

    @property
    def window_nbytes(self) -> int:
        """Bytes of vectors read at a time; two windows, and the rows of a third, may be in memory."""
        return self.memory // 6

    @property
    def batch_nbytes(self) -> int:
        """Bytes of a batch; independent of the number of threads, because it decides how sums are rounded."""
        return _batch_nbytes(self.device, self.memory)


def _batch_nbytes(device: torch.device, memory: int) -> int:
    most = BATCH_NBYTES if device.type == "cpu" else _GPU_BATCH_NBYTES
    return max(1, min(most, memory // (3 * _BATCH_TIMES)))


class PerWord(Protocol):
    """A picklable function that computes something of each word of a layer, [n_words, ...] in the order of `words`."""

    def __call__(
        self, store: Store, layer: int, words: WordRows, resources: Resources, progress: Callable[[int], object], /
    ) -> NDArray[Any]: ...


def compute_per_word(
    function: PerWord,
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
    """Yield the result of `function` for each layer, computed here or in groups of words by an executor.

    `memory`: bytes that this process, or each worker, may use. `progress` is called with the number of occurrences
    done over all layers. The result is the same to the bit with and without an executor.
    """
    done = 0
    if executor is None:
        resources = Resources.of(precision, device, memory)
        for layer in layers:
            before = done
            yield function(store, layer, words, resources, lambda rows, before=before: progress(before + rows))  # type: ignore[misc]
            done += len(words.rows)
        return
    resources = Resources.of(precision, "cpu", memory)
    groups = word_groups(store, words, resources)
    identity, options = identity_of(store), (precision, device, resources.memory)
    calls = (
        partial(_on_worker, identity, function, layer, words.some(group), *options)
        for layer in layers
        for group in groups
    )
    found = iter_results(executor, calls)
    for _ in layers:
        out: NDArray[Any] | None = None
        for group in groups:
            values = next(found)
            out = np.empty((len(words.types), *values.shape[1:]), values.dtype) if out is None else out
            out[group] = values
            done += int(words.counts[group].sum())
            progress(done)
        yield np.asarray(out)


def _on_worker(
    identity: StoreIdentity,
    function: PerWord,
    layer: int,
    words: WordRows,
    precision: str,
    device: str,
    memory: int,
) -> NDArray[Any]:
    store = open_on_worker(*identity)
    with torch_threads(1):
        return function(store, layer, words, Resources.of(precision, device, memory, threads=1), lambda done: None)


def map_words(
    store: Store,
    layer: int,
    words: WordRows,
    *,
    batch: Callable[[WordBatch], Result],
    frequent: Callable[[int, Callable[[], Iterator[torch.Tensor]]], Result],
    resources: Resources,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[NDArray[np.int64], Result]]:
    """Yield (numbers of words, result) for all words of a layer, computed in threads.

    `batch` is called with words that have at most as many occurrences as features; `frequent` with the number of a
    word that has more, and with a function that reads its vectors (again) in blocks. `progress` is called with the
    number of occurrences done.
    """
    counts = words.counts
    size = {"budget_nbytes": resources.window_nbytes, "batch_nbytes": resources.batch_nbytes}

    def tasks() -> Iterator[tuple[NDArray[np.int64], Callable[[], Result]]]:
        for number in frequent_words(store, words)[::-1].tolist():
            read = partial(iter_word_blocks, store, layer, words, number, budget_nbytes=resources.batch_nbytes)
            yield np.array([number]), partial(frequent, number, read)
        for stored in _stored_batches(store, layer, words, **size):
            yield stored.numbers, partial(lambda stored: batch(_as_float32(store, layer, words, stored)), stored)

    done = 0
    pending: deque[tuple[NDArray[np.int64], Future[Result]]] = deque()

    def next_result() -> tuple[NDArray[np.int64], Result]:
        nonlocal done
        numbers, future = pending.popleft()
        result = future.result()
        done += int(counts[numbers].sum())
        if progress is not None:
            progress(done)
        return numbers, result

    with thread_pool(resources.n_threads, "embstore-words") as pool:
        try:
            for numbers, task in tasks():
                pending.append((numbers, pool.submit(task)))
                del task
                if len(pending) > _AHEAD * resources.n_threads:
                    yield next_result()
            while pending:
                yield next_result()
        finally:
            pool.shutdown(cancel_futures=True)


def word_groups(store: Store, words: WordRows, resources: Resources) -> list[NDArray[np.int64]]:
    """The numbers of words that are read together: each frequent word alone, the others by windows.

    `map_words` over one group gives the same bits as over all words.
    """
    counts = words.counts
    numbers = np.argsort(counts, kind="stable")
    numbers = numbers[counts[numbers] <= store.hidden_size]
    most = resources.window_nbytes // (store.vector_dtype.itemsize * store.hidden_size)
    frequent = [np.array([number]) for number in frequent_words(store, words)[::-1].tolist()]
    return [*frequent, *_windows(numbers, counts, most)]


def _stored_batches(
    store: Store, layer: int, words: WordRows, *, budget_nbytes: int, batch_nbytes: int
) -> Iterator[WordBatch]:
    """Yield the words that have at most as many occurrences as features, each in one batch, fewest first.

    Many words at a time are read in the order of their rows, within `budget_nbytes`. A batch has about `batch_nbytes`
    of float32; it is in the dtype of the store and not checked yet. Raises MissingRowsError.
    """
    counts = words.counts
    numbers = np.argsort(counts, kind="stable")
    numbers = numbers[counts[numbers] <= store.hidden_size]
    for window in _windows(numbers, counts, budget_nbytes // (store.vector_dtype.itemsize * store.hidden_size)):
        vectors = _read_words(store, layer, words, window)
        starts = np.cumsum(counts[window]) - counts[window]
        for first, last in _batches(counts[window], batch_nbytes // (4 * store.hidden_size)):
            members = window[first:last]
            padded = _padded(vectors, starts[first:last], counts[members])
            yield WordBatch(members, counts[members], torch.from_numpy(padded))


def _as_float32(store: Store, layer: int, words: WordRows, batch: WordBatch) -> WordBatch:
    """The batch in float32; raises NonFiniteError for a value that is not finite."""
    vectors = batch.vectors.float()
    for invalid in torch.nonzero(~torch.isfinite(vectors.sum((1, 2))))[:, 0].tolist():
        number, count = int(batch.numbers[invalid]), int(batch.counts[invalid])
        _require_finite(store, layer, words.of(number), vectors[invalid, :count])
    return WordBatch(batch.numbers, batch.counts, vectors)


def frequent_words(store: Store, words: WordRows) -> NDArray[np.int64]:
    """The numbers of the words with more occurrences than features, fewest first."""
    numbers = np.argsort(words.counts, kind="stable")
    return numbers[words.counts[numbers] > store.hidden_size]


def iter_word_blocks(
    store: Store, layer: int, words: WordRows, number: int, *, budget_nbytes: int
) -> Iterator[torch.Tensor]:
    """Yield all occurrences of one word, ascending, in blocks of bounded size: float32 [n, hidden_size]."""
    rows = words.of(number)
    step = max(1, budget_nbytes // (4 * store.hidden_size))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        vectors = torch.from_numpy(store.gather(part, layer)).float()
        if not bool(torch.isfinite(vectors.sum())):
            _require_finite(store, layer, part, vectors)
        yield vectors


def _windows(numbers: NDArray[np.int64], counts: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Cut words into runs of at most `most` occurrences in total, or of one word."""
    ends = np.cumsum(counts[numbers])
    first = 0
    while first < len(numbers):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield numbers[first:last]
        first = last


def _batches(counts: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Cut ascending counts into runs of similar counts that fill at most `most` padded rows, or of one word."""
    first = 0
    while first < len(counts):
        smallest = int(counts[first])
        largest = max(smallest, int(smallest * PADDING))
        last = int(np.searchsorted(counts, largest, side="right"))
        last = min(last, first + max(1, most // int(counts[last - 1])))
        yield first, last
        first = last


def _padded(vectors: NDArray[Any], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Consecutive words as one array; a view if their counts are equal."""
    first, stop = int(starts[0]), int(starts[-1] + counts[-1])
    size = int(counts[-1])
    if int(counts[0]) == size:
        return vectors[first:stop].reshape(len(counts), size, -1)
    out = np.zeros((len(counts) * size, vectors.shape[1]), vectors.dtype)
    shifts = np.repeat(np.arange(len(counts)) * size - (starts - first), counts)
    out[np.arange(stop - first) + shifts] = vectors[first:stop]
    return out.reshape(len(counts), size, -1)


def _read_words(store: Store, layer: int, words: WordRows, numbers: NDArray[np.int64]) -> NDArray[Any]:
    """The vectors of words one after the other, [n, hidden_size] in the store's dtype; read in the order of rows."""
    counts = words.counts[numbers]
    ends = np.cumsum(counts)
    wanted = words.rows[np.arange(int(ends[-1])) + np.repeat(words.indptr[numbers] - (ends - counts), counts)]
    order = np.argsort(wanted, kind="stable")
    vectors = np.empty((len(wanted), store.hidden_size), store.vector_dtype)
    done = 0
    size = None
    if "://" in str(store.path):
        size = max(1, _REMOTE_NBYTES // (store.hidden_size * store.vector_dtype.itemsize))
    for block in rows_of(store, wanted[order], layer).iter_blocks(block_rows=size):
        vectors[order[done : done + len(block.rows)]] = block.vectors
        done += len(block.rows)
    return vectors


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
