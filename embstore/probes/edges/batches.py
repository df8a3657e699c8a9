"""The stream that edge probes learn from: the rows that the spans of some sentences need, all layers, read ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.probes.edges.columns import BatchPlan, Spans, SplitPlan
from embstore.probes.edges.kernels import holds_ones
from embstore.probes.edges.tasks import EdgeSplit
from embstore.probes.training import VERIFY
from embstore.store import Store

READ_AHEAD = 2
GROUP_NBYTES = 2**22  # small batches are read and handed over so much at a time: a hand-over takes as long as a gather
_EXPONENTS = {
    2: (0x7C00, 0x0400, 0x8000),
    4: (0x7F800000, 0x00800000, 0x80000000),
}  # its mask, its lowest bit, the next


@dataclass(frozen=True, eq=False)
class SpanColumns:
    """Where the first (or second) spans of a batch stand among its vectors; see `Spans`.

    `places` int64 [entries]: the vectors of one distinct span after the other; `begin` int64 [spans + 1]. `of` int64
    [targets]: the span of each target, None where each has the span of its own number. `single`: every span is one
    vector.
    """

    places: torch.Tensor
    begin: torch.Tensor
    of: torch.Tensor | None
    single: bool

    @classmethod
    def at(cls, spans: Spans, device: torch.device) -> SpanColumns:
        count = len(spans.begin) - 1
        own = len(spans.of) == count and bool((spans.of == np.arange(count)).all())
        return cls(
            torch.from_numpy(spans.places).to(device),
            torch.from_numpy(spans.begin).to(device),
            None if own else torch.from_numpy(spans.of).to(device),
            len(spans.places) == count,
        )

    def by_target(self, pooled: torch.Tensor) -> torch.Tensor:
        """What is held of each distinct span, [..., spans, width], for each target."""
        return pooled if self.of is None else pooled.index_select(-2, self.of)


@dataclass(frozen=True, eq=False)
class EdgeBatch:
    """Some targets: `stored` [layer, n, width], their vectors, as the store has them (on a CPU) or float32.

    `targets`: their places in the split. `spans`: one or two. `gold` float32 [targets, labels].
    """

    targets: NDArray[np.int64]
    stored: torch.Tensor
    spans: tuple[SpanColumns, ...]
    gold: torch.Tensor

    def __len__(self) -> int:
        return len(self.gold)

    @cached_property
    def vectors(self) -> torch.Tensor:
        """The vectors as float32, [layer, n, width]."""
        return self.stored.float()


@dataclass(frozen=True, eq=False)
class _Read:
    """A batch as it was read."""

    plan: BatchPlan
    vectors: torch.Tensor
    gold: NDArray[np.float32]


def batch_sentences(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Sentences in their order, so many a batch; within a batch they ascend, as their rows then do."""
    return [np.sort(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]


def iter_batches(
    store: Store,
    split: EdgeSplit,
    order: NDArray[np.int64],
    layers: Sequence[int],
    *,
    batch_size: int,
    device: torch.device,
) -> Iterator[EdgeBatch]:
    """Yield the batches of some sentences of a split, each good until the next is asked for.

    `batch_size`: sentences. A thread reads ahead and looks for values that are not finite; no more than READ_AHEAD + 1
    batches are held, or so many GROUP_NBYTES of smaller ones, as the store has them. Raises MissingRowsError,
    NonFiniteError.
    """
    batches = batch_sentences(order, batch_size)
    plan = SplitPlan.of(split)
    sizes = plan.row_counts(batches) * len(layers) * store.hidden_size
    groups = _groups(sizes, GROUP_NBYTES // store.vector_dtype.itemsize)
    rooms = _Rooms(store, device, max((int(sizes[group].sum()) for group in groups), default=0))

    def read(number: int) -> list[_Read]:
        room, found = rooms.of(number), []
        for sentences in batches[groups[number]]:
            wanted = plan.batch(sentences)
            shape = (len(layers), len(wanted.rows), store.hidden_size)
            vectors, room = room[: prod(shape)].view(shape), room[prod(shape) :]
            held = vectors.numpy()
            store.gather_layers(wanted.rows, layers, out=held)
            if not_finite(held):
                _refuse(held, wanted.rows, layers, store)
            found.append(_Read(wanted, vectors, split.gold[wanted.targets].astype(np.float32)))
        return found

    for group in _read_ahead(read, len(groups)):
        for held in group:
            yield _placed(held, device)


def _groups(sizes: NDArray[np.int64], most: int) -> list[slice]:
    """Consecutive batches of no more than `most` numbers together, or of one batch that has more."""
    ends = np.cumsum(sizes)
    groups, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        groups.append(slice(start, stop))
        start = stop
    return groups


def _read_ahead(read: Callable[[int], list[_Read]], count: int) -> Iterator[list[_Read]]:
    """Yield what `read` gives for 0 to count - 1, read by a thread that is READ_AHEAD before what is in use.

    By queues that need no lock of Python's own: small batches come faster than a pool hands them over.
    """
    ready: SimpleQueue[list[_Read] | BaseException] = SimpleQueue()
    allowed: SimpleQueue[bool] = SimpleQueue()
    stopped = False

    def work() -> None:
        try:
            for number in range(count):
                if not allowed.get() or stopped:
                    return
                ready.put(read(number))
        except BaseException as error:  # whatever it is, it is raised where the batch was to come
            ready.put(error)

    for _ in range(READ_AHEAD):
        allowed.put(True)
    thread = Thread(target=work, name="embstore-edges")
    thread.start()
    try:
        for _ in range(count):
            held = ready.get()
            if isinstance(held, BaseException):
                raise held
            allowed.put(True)  # those before are done with: their room may be used again
            yield held
    finally:
        stopped = True
        allowed.put(False)
        thread.join()


class _Rooms:
    """Memory for what is held at a time, used again and again; pinned where a card is to get it."""

    def __init__(self, store: Store, device: torch.device, size: int) -> None:
        dtype = torch.from_numpy(np.empty(0, store.vector_dtype)).dtype
        pinned = device.type == "cuda"
        self._rooms = [torch.empty(size, dtype=dtype, pin_memory=pinned) for _ in range(READ_AHEAD + 1)]

    def of(self, number: int) -> torch.Tensor:
        return self._rooms[number % len(self._rooms)]


def not_finite(values: NDArray[Any]) -> bool:
    """Whether an array of float16 or float32, contiguous, holds a value that is not finite: an exponent of ones."""
    size = values.itemsize
    lanes = 8 // size
    mask, one, top = (np.uint64(sum(bits << (8 * size * lane) for lane in range(lanes))) for bits in _EXPONENTS[size])
    flat = values.reshape(-1)
    whole = len(flat) - len(flat) % lanes
    if not np.isfinite(flat[whole:]).all():
        return True
    return bool(holds_ones(flat[:whole].view(np.uint64), mask, one, top))


def _placed(held: _Read, device: torch.device) -> EdgeBatch:
    spans = tuple(SpanColumns.at(each, device) for each in held.plan.spans)
    gold = torch.from_numpy(held.gold).to(device)
    vectors = held.vectors if device.type == "cpu" else held.vectors.to(device).float()
    return EdgeBatch(held.plan.targets, vectors, spans, gold)


def _refuse(vectors: NDArray[Any], rows: NDArray[np.int64], layers: Sequence[int], store: Store) -> None:
    layer, place = np.argwhere(~np.isfinite(vectors).all(2))[0].tolist()
    raise NonFiniteError(
        f"layer {layers[layer]}, row {int(rows[place])} of {store.path} holds a value that is not finite: {VERIFY}"
    )
