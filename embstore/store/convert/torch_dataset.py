"""A selection as a torch dataset: batches, shuffled, and read ahead where that takes long."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from embstore.arguments import Count, Positive, checked
from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.store.labels.columns import label_column
from embstore.store.reading.ahead import read_ahead
from embstore.store.vectors import VALUE_DTYPE

GROUP_NBYTES = 2**19  # of vectors that are read at once, whole batches: few enough to stay in the cache
REMOTE_GROUP_NBYTES = 2**22  # many requests at the same time
CAST_SIZE = 2**15 - 1  # numbers that torch converts in the thread that asks, without starting threads of its own
MAX_BUFFERS = 6  # of memory that is used again
STORED = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float32}


_Values: TypeAlias = "NDArray[Any] | torch.Tensor"


class Examples(NamedTuple):
    """A batch of occurrences: `vectors` [n, layer, hidden_size], `rows` int64 [n], `labels` [n]."""

    vectors: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor


@checked
class TorchDataset(IterableDataset[Examples]):
    """The occurrences of a selection in batches, `Examples`, to train any torch model in bounded memory.

    Use it as it is, or in a `DataLoader` with `batch_size=None`: for any number of workers its batches are the same, in
    the same order. Once reading is slow, as from a disk or a network, a thread reads batches ahead: one process is
    enough on most machines.

    Parameters
    ----------
    selection : Selection
    label : str or array, optional
        A label column, whose codes become the labels (-1 for none); or one value for each row of the selection:
        integers and booleans as int64, floats as float32, strings as codes in sorted order.
    batch_size, drop_last : int, bool
        `drop_last`: without the incomplete batch at the end.
    shuffle : bool or "blocks"
        True for a permutation of all rows; "blocks" for stores larger than memory: blocks of `block_rows` neighboring
        rows in random order, read `window_blocks` at a time, whose rows are then permuted. (Shuffle here: a DataLoader
        cannot shuffle a stream.) `seed` and `set_epoch` determine the order.
    dtype : torch.dtype, optional
        Of the vectors; by default the one that is stored, float32 for int8.
    pin_memory : bool, optional
        In page-locked memory, by default where there is a GPU.
    share : (int, int), optional
        The number of this process and how many share the rows, by default those of `torch.distributed`. Shares differ
        by at most one row, and with `drop_last` all have as many batches.

    Raises
    ------
    InvalidValueError
        For a label column that does not exist and for an array of another length.
    """

    def __init__(
        self,
        selection: Any,
        *,
        label: Any = None,
        batch_size: Positive = 256,
        shuffle: bool | Literal["blocks"] = False,
        drop_last: bool = False,
        dtype: torch.dtype | None = None,
        block_rows: Positive = 256,
        window_blocks: Positive = 64,
        seed: Count = 0,
        pin_memory: bool | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if not hasattr(selection, "rows_at"):
            raise InvalidValueError(f"{quoted(selection)} is not a selection: give what a store's select returns")
        if dtype is not None and not dtype.is_floating_point:
            raise InvalidValueError(f"dtype {dtype} is not allowed: give one of torch's, such as torch.float32")
        if pin_memory and not torch.cuda.is_available():
            raise InvalidValueError("pin_memory needs a GPU, and torch finds none: leave it out")
        self._selection = selection
        self._labels = _labels(selection, label)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._order = _Order(len(selection), seed, shuffle, block_rows, window_blocks)
        self._dtype = STORED[selection.store.dtype] if dtype is None else dtype
        self._pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._rank, self._world_size = _share() if share is None else share
        if not 0 <= self._rank < self._world_size:
            raise InvalidValueError(f"share {share} is not allowed: give (number of the process, how many there are)")
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # with workers that live longer than an epoch

    def __repr__(self) -> str:
        return f"<TorchDataset of {self._selection!r}: batches of {self._batch_size}>"

    @property
    def epoch(self) -> int:
        """The epoch, which determines the shuffled order."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        check_whole("epoch", epoch, 0, 2**63 - 1)
        self._epoch.fill_(epoch)

    def _span(self) -> tuple[int, int]:
        """Return the share `[start, stop)` of this process in the order of all rows."""
        n_rows = len(self._selection)
        return n_rows * self._rank // self._world_size, n_rows * (self._rank + 1) // self._world_size

    def __len__(self) -> int:
        """Return the number of batches in an epoch, of all workers of this process."""
        if self._drop_last:
            return len(self._selection) // self._world_size // self._batch_size
        start, stop = self._span()
        return -(-(stop - start) // self._batch_size)

    def __iter__(self) -> Iterator[Examples]:
        worker = get_worker_info()
        turn, n_turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        batches = range(turn, len(self), n_turns)
        pin = self._pin_memory and worker is None  # the DataLoader pins what its workers make
        buffers = _Buffers(pin=pin)
        row_nbytes = len(self._selection.layers) * self._selection.store.hidden_size * self._dtype.itemsize
        nbytes = REMOTE_GROUP_NBYTES if self._selection.store.source.is_remote else GROUP_NBYTES
        size = max(1, nbytes // (row_nbytes * self._batch_size))
        groups = self._groups(self._order.of_epoch(self.epoch), batches, size)
        for group in read_ahead(lambda number, _: self._read(next(groups), buffers), -(-len(batches) // size)):
            for batch in zip(*(_batches(part, self._batch_size) for part in group), strict=True):
                yield Examples(*batch)

    def _groups(
        self, order: Callable[[int, int], NDArray[np.int64]], batches: range, size: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the positions in the selection of the rows of some batches, up to `size` of them at a time."""
        start, stop = self._span()
        for first in range(0, len(batches), size):
            group = batches[first : first + size]
            spans = [(group[0], group[-1] + 1)] if batches.step == 1 else [(batch, batch + 1) for batch in group]
            parts = [
                order(start + left * self._batch_size, min(start + right * self._batch_size, stop))
                for left, right in spans
            ]
            yield parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read(self, positions: NDArray[np.int64], buffers: _Buffers) -> tuple[_Values, ...]:
        """Read the columns of the examples at some positions in the selection."""
        rows = positions.copy() if self._selection.is_whole else self._selection.rows[positions]
        labels = np.full(len(rows), -1, np.int64) if self._labels is None else self._labels[positions]
        if not buffers.pin:
            return self._vectors(rows, buffers), rows, labels
        columns = (torch.as_tensor(part) for part in (self._vectors(rows, buffers), rows, labels))
        return tuple(part.pin_memory() for part in columns)

    def _vectors(self, rows: NDArray[np.int64], buffers: _Buffers) -> _Values:
        """Read vectors [n, layer, hidden_size]; they are gathered where they stay if they need no other form."""
        store, layers = self._selection.store, self._selection.layers
        shape, stored = (len(layers), len(rows), store.hidden_size), STORED[store.dtype]
        if len(layers) == 1 and self._dtype == stored and stored != torch.bfloat16 and not buffers.pin:
            held = buffers.empty(math.prod(shape) * stored.itemsize).view(VALUE_DTYPE[store.dtype])
            gathered: NDArray[Any] = store.vectors(rows, layers=layers, out=held.reshape(shape)).reshape(
                len(rows), 1, -1
            )
            return gathered
        found = buffers.tensor((shape[1], shape[0], shape[2]), self._dtype)
        is_found = len(layers) == 1 and self._dtype == stored
        vectors = found.view(shape) if is_found else buffers.tensor(shape, stored)
        bits = vectors.view(torch.uint16) if stored == torch.bfloat16 else vectors
        store.vectors(rows, layers=layers, out=bits.numpy())
        if is_found:
            return found
        for row in range(0, len(rows), size := max(1, CAST_SIZE // (shape[0] * shape[2]))):
            found[row : row + size] = vectors[:, row : row + size].transpose(0, 1)
        return found


def _batches(values: _Values, size: int) -> Sequence[torch.Tensor]:
    """Cut values into tensors of at most `size` examples."""
    if isinstance(values, torch.Tensor):
        return torch.split(values, size)
    return [torch.from_numpy(values[start : start + size]) for start in range(0, len(values), size)]


class _Buffers:
    """Memory, used again once no array or tensor views it: new memory costs as much as copying rows into it.

    `pin`: page-locked memory, which torch itself uses again, once copies from it have ended.
    """

    def __init__(self, *, pin: bool) -> None:
        self.pin = pin
        self._buffers = [np.empty(1, np.uint8)]
        self._free_count = sys.getrefcount(self._buffers[0])

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor whose values are not set."""
        if self.pin:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        return torch.from_numpy(self.empty(math.prod(shape) * dtype.itemsize)).view(dtype).view(shape)

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes that are not set."""
        for number in range(len(self._buffers)):
            if len(self._buffers[number]) >= nbytes and sys.getrefcount(self._buffers[number]) == self._free_count:
                break
        else:
            number = -1
            self._buffers = [*self._buffers[-MAX_BUFFERS:], np.empty(nbytes, np.uint8)]
        return self._buffers[number][:nbytes]


@dataclass(frozen=True)
class _Order:
    """How the rows of a selection are shuffled; see TorchDataset."""

    n_rows: int
    seed: int
    shuffle: bool | Literal["blocks"]
    block_rows: int
    window_blocks: int

    def of_epoch(self, epoch: int) -> Callable[[int, int], NDArray[np.int64]]:
        """Return a function of (start, stop): the positions in the selection of this part of an epoch."""
        if not self.shuffle:
            return np.arange
        if self.shuffle == "blocks":
            return _Windows(self, epoch).positions
        order = np.random.default_rng([self.seed, epoch]).permutation(self.n_rows)
        return lambda start, stop: order[start:stop]


class _Windows:
    """The order of an epoch that is shuffled in blocks: each window of blocks is permuted when it is reached."""

    def __init__(self, order: _Order, epoch: int) -> None:
        self._order = order
        self._epoch = epoch
        self._blocks = np.random.default_rng([order.seed, epoch]).permutation(-(-order.n_rows // order.block_rows))
        first = self._blocks * order.block_rows
        sizes = np.minimum(first + order.block_rows, order.n_rows) - first
        self._starts = np.concatenate([[0], np.cumsum(sizes)])[:: order.window_blocks]  # of each window
        self._window = lru_cache(2)(self._permuted)

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        first = int(self._starts.searchsorted(start, "right")) - 1
        last = int(self._starts.searchsorted(stop, "left"))
        rows = np.concatenate([self._window(window) for window in range(first, last)])
        return rows[start - self._starts[first] : stop - self._starts[first]]

    def _permuted(self, window: int) -> NDArray[np.int64]:
        size = self._order.block_rows
        blocks = self._blocks[window * self._order.window_blocks : (window + 1) * self._order.window_blocks]
        rows = (blocks[:, None] * size + np.arange(size)).reshape(-1)
        return np.random.default_rng([self._order.seed, self._epoch, window]).permutation(
            rows[rows < self._order.n_rows]
        )


def _share() -> tuple[int, int]:
    """Return the number of this process and how many there are, as torch.distributed counts them."""
    known = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if known else (0, 1)


def _labels(selection: Any, label: Any) -> NDArray[Any] | None:
    """Return the label of each row of the selection, None for none: int64, or float32 for an array of floats."""
    if label is None:
        return None
    if isinstance(label, str):
        columns = selection.store.index.labels
        if label not in columns:
            known = ", ".join(columns) or "none"
            raise InvalidValueError(f"there is no label column {label!r}: the store has {known}; or give an array")
        codes: NDArray[np.int64] = columns[label].codes[selection.rows].astype(np.int64)
        return codes
    values = np.asarray(label)
    if values.shape != (len(selection),):
        raise InvalidValueError(
            f"labels of shape {values.shape} do not fit a selection of {len(selection):,} rows: give one for each row"
        )
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return label_column("label", values.tolist(), None, len(values)).codes.astype(np.int64)
