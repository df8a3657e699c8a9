"""Word by word over a layer: occurrences in batches of equal or nearly equal size, worked on side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import PRECISIONS
from embstore.analysis.words import WordRows
from embstore.devices import choose_device
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store import Store

MEMORY = 2**30
BATCH_NBYTES = 4 * 2**20  # of float32: a batch, its Gram matrices and what is made of them stay near the processor
PADDED = 1.125  # a batch holds words of up to so many times the occurrences of its smallest
_GPU_BATCH_NBYTES = 2**28
_BATCH_TIMES = 24  # how often the memory of a batch is taken for each thread
_AHEAD = 3  # batches that wait for each thread
_REMOTE_NBYTES = 16 * 2**20  # rows that lie apart, asked for at a time where each request takes long

Result = TypeVar("Result")


@dataclass(frozen=True)
class WordBatch:
    """Some words of one layer: `places` int64 [w] in the words asked for, `counts` int64 [w] of their occurrences.

    `vectors`: float32 [w, n, hidden_size], n the largest count; rows beyond a word's count are zero.
    """

    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    vectors: torch.Tensor


@dataclass(frozen=True)
class Computing:
    """How words are computed: `dtype` of the products of vectors, `device`, `memory` in bytes, `threads` at a time."""

    dtype: torch.dtype
    device: torch.device
    memory: int
    threads: int

    @classmethod
    def of(
        cls, precision: str = "float32", device: str = "cpu", memory: int | None = None, *, threads: int | None = None
    ) -> Computing:
        """Read the options of a query; raises InvalidValueError. `memory`: None for 1 GiB. `threads`: None for all."""
        if precision not in PRECISIONS:
            raise InvalidValueError(f"unknown precision {precision!r}; allowed are {', '.join(PRECISIONS)}")
        if memory is not None and memory < 1:
            raise InvalidValueError(f"memory {memory} is not allowed: give the bytes that may be used, 1 or more")
        chosen = choose_device(device)
        memory = MEMORY if memory is None else memory
        threads = threads or (torch.get_num_threads() if chosen.type == "cpu" else 1)
        most = max(1, memory // (_BATCH_TIMES * _batch_nbytes(chosen, memory)) - 1)
        return cls(PRECISIONS[precision], chosen, memory, min(threads, most))

    @property
    def window_nbytes(self) -> int:
        """Vectors read at a time; two windows may be held, and the rows of one on their way."""
        return self.memory // 6

    @property
    def batch_nbytes(self) -> int:
        """Vectors computed with at a time, however many threads: what is in a batch decides how sums are rounded."""
        return _batch_nbytes(self.device, self.memory)


def _batch_nbytes(device: torch.device, memory: int) -> int:
    most = BATCH_NBYTES if device.type == "cpu" else _GPU_BATCH_NBYTES
    return max(1, min(most, memory // (3 * _BATCH_TIMES)))


def map_words(
    store: Store,
    layer: int,
    words: WordRows,
    *,
    batch: Callable[[WordBatch], Result],
    frequent: Callable[[int, Callable[[], Iterator[torch.Tensor]]], Result],
    computing: Computing,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[NDArray[np.int64], Result]]:
    """Yield (places, result) for all words of a layer, in batches; as many are worked on at a time as threads.

    `batch` is given words with as many occurrences as features or fewer, `frequent` the place of a word with more,
    and what reads it (again) in blocks. `progress`: is told how many occurrences are done.
    """
    counts = words.counts

    def tasks() -> Iterator[tuple[NDArray[np.int64], Callable[[], Result]]]:
        size = {"budget_nbytes": computing.window_nbytes, "batch_nbytes": computing.batch_nbytes}
        for place in frequent_words(store, words)[::-1].tolist():
            yield np.array([place]), _bound(frequent, place, _reading(store, layer, words, place, computing))
        for held in _stored_batches(store, layer, words, **size):
            yield held.places, _bound(lambda held: batch(_readied(store, layer, words, held)), held)

    done = 0
    pool = ThreadPoolExecutor(computing.threads, "embstore-words", lambda: torch.set_num_threads(1))
    waiting: deque[tuple[NDArray[np.int64], Future[Result]]] = deque()

    def next_result() -> tuple[NDArray[np.int64], Result]:
        nonlocal done
        places, future = waiting.popleft()
        result = future.result()
        done += int(counts[places].sum())
        if progress is not None:
            progress(done)
        return places, result

    try:
        for places, task in tasks():
            waiting.append((places, pool.submit(task)))
            del task
            if len(waiting) > _AHEAD * computing.threads:
                yield next_result()
        while waiting:
            yield next_result()
    finally:
        pool.shutdown(cancel_futures=True)


def word_groups(store: Store, words: WordRows, computing: Computing) -> list[NDArray[np.int64]]:
    """The places of words that are read at a time: each frequent one by itself, the others by windows.

    `map_words` over one of them gives what it gives over all, to the bit.
    """
    counts = words.counts
    places = np.argsort(counts, kind="stable")
    places = places[counts[places] <= store.hidden_size]
    most = computing.window_nbytes // (store.vector_dtype.itemsize * store.hidden_size)
    frequent = [np.array([place]) for place in frequent_words(store, words)[::-1].tolist()]
    return [*frequent, *_windows(places, counts, most)]


def _bound(function: Callable[..., Result], *arguments: object) -> Callable[[], Result]:
    return lambda: function(*arguments)


def _reading(
    store: Store, layer: int, words: WordRows, place: int, computing: Computing
) -> Callable[[], Iterator[torch.Tensor]]:
    nbytes = computing.batch_nbytes
    return lambda: iter_word_blocks(store, layer, words, place, budget_nbytes=nbytes)


def iter_word_batches(
    store: Store, layer: int, words: WordRows, *, budget_nbytes: int, batch_nbytes: int = BATCH_NBYTES
) -> Iterator[WordBatch]:
    """Yield words with as many occurrences as the store has features or fewer, each in one batch, fewest first.

    Many words at a time are read in order of their rows, within `budget_nbytes`, and batched from there; a batch is
    about `batch_nbytes`, and good until the next is asked for. Raises MissingRowsError and NonFiniteError.
    """
    for batch in _stored_batches(store, layer, words, budget_nbytes=budget_nbytes, batch_nbytes=batch_nbytes):
        yield _readied(store, layer, words, batch)


def _stored_batches(
    store: Store, layer: int, words: WordRows, *, budget_nbytes: int, batch_nbytes: int
) -> Iterator[WordBatch]:
    """The batches of `iter_word_batches` in the dtype of the store, not looked at yet."""
    counts = words.counts
    places = np.argsort(counts, kind="stable")
    places = places[counts[places] <= store.hidden_size]
    for window in _windows(places, counts, budget_nbytes // (store.vector_dtype.itemsize * store.hidden_size)):
        vectors = _read_words(store, layer, words, window)
        starts = np.cumsum(counts[window]) - counts[window]
        for first, last in _batches(counts[window], batch_nbytes // (4 * store.hidden_size)):
            held = window[first:last]
            padded = _padded(vectors, starts[first:last], counts[held])
            yield WordBatch(held, counts[held], torch.from_numpy(padded))


def _readied(store: Store, layer: int, words: WordRows, batch: WordBatch) -> WordBatch:
    """The batch as float32; raises NonFiniteError for a value that is not finite."""
    vectors = batch.vectors.float()
    for wrong in torch.nonzero(~torch.isfinite(vectors.sum((1, 2))))[:, 0].tolist():
        place, count = int(batch.places[wrong]), int(batch.counts[wrong])
        _require_finite(store, layer, words.of(place), vectors[wrong, :count])
    return WordBatch(batch.places, batch.counts, vectors)


def frequent_words(store: Store, words: WordRows) -> NDArray[np.int64]:
    """The places of the words that `iter_word_batches` leaves out, fewest occurrences first."""
    places = np.argsort(words.counts, kind="stable")
    return places[words.counts[places] > store.hidden_size]


def iter_word_blocks(
    store: Store, layer: int, words: WordRows, place: int, *, budget_nbytes: int
) -> Iterator[torch.Tensor]:
    """Yield all occurrences of one word, ascending, float32 [n, hidden_size] of bounded size at a time."""
    rows = words.of(place)
    step = max(1, budget_nbytes // (4 * store.hidden_size))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        vectors = torch.from_numpy(store.gather(part, layer)).float()
        if not bool(torch.isfinite(vectors.sum())):
            _require_finite(store, layer, part, vectors)
        yield vectors


def _windows(places: NDArray[np.int64], counts: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Cut words into runs of at most `most` occurrences in all, or of one word."""
    ends = np.cumsum(counts[places])
    first = 0
    while first < len(places):
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + most, side="right")))
        yield places[first:last]
        first = last


def _batches(counts: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Cut ascending counts into runs that differ little and fill at most `most` padded rows, or of one word."""
    first = 0
    while first < len(counts):
        smallest = int(counts[first])
        largest = max(smallest, int(smallest * PADDED))
        last = int(np.searchsorted(counts, largest, side="right"))
        last = min(last, first + max(1, most // int(counts[last - 1])))
        yield first, last
        first = last


def _padded(vectors: NDArray[Any], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Words that follow each other, as one array; nothing is copied where their counts are equal."""
    first, stop = int(starts[0]), int(starts[-1] + counts[-1])
    size = int(counts[-1])
    if int(counts[0]) == size:
        return vectors[first:stop].reshape(len(counts), size, -1)
    out = np.zeros((len(counts) * size, vectors.shape[1]), vectors.dtype)
    out[np.arange(stop - first) + np.repeat(np.arange(len(counts)) * size - (starts - first), counts)] = vectors[
        first:stop
    ]
    return out.reshape(len(counts), size, -1)


def _read_words(store: Store, layer: int, words: WordRows, places: NDArray[np.int64]) -> NDArray[Any]:
    """Words one after the other, [occurrences, hidden_size] in the store's dtype; rows are read in ascending order."""
    counts = words.counts[places]
    ends = np.cumsum(counts)
    wanted = words.rows[np.arange(int(ends[-1])) + np.repeat(words.indptr[places] - (ends - counts), counts)]
    order = np.argsort(wanted, kind="stable")
    vectors = np.empty((len(wanted), store.hidden_size), store.vector_dtype)
    done = 0
    size = None
    if "://" in str(store.path):
        size = max(1, _REMOTE_NBYTES // (store.hidden_size * store.vector_dtype.itemsize))
    for block in store.select(rows=wanted[order], layers=layer).iter_blocks(block_rows=size):
        vectors[order[done : done + len(block.rows)]] = block.vectors
        done += len(block.rows)
    return vectors


def _require_finite(store: Store, layer: int, rows: NDArray[np.int64], vectors: torch.Tensor) -> None:
    """Raise NonFiniteError, naming the first row that is not finite, where there is one."""
    wrong = torch.nonzero(~torch.isfinite(vectors).all(1))
    if len(wrong):
        row = int(rows[int(wrong[0])])
        word = store.index.words[int(store.index.type[row])]
        raise NonFiniteError(
            f"the word {word!r} has a value that is not finite in layer {layer}, row {row} of {store.path}: "
            "leave that row or word out"
        )
