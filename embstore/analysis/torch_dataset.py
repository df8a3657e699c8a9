"""A selection as a torch dataset, streamed from the store and shuffled in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.store import Selection
from embstore.store.table import label_column


class Examples(NamedTuple):
    """Some occurrences: `vectors` float32 [n, layer, hidden_size], `rows` int64 [n], `labels` [n].

    Without a batch size the dataset yields single examples, which have no first axis.
    """

    vectors: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor


class TorchDataset(IterableDataset[Examples]):
    """The occurrences of a selection as `Examples`, to train any torch model on them in bounded memory.

    `label`: the name of a label column, whose codes become the labels (-1 for none); or an array with one value for
    each row of the selection: integers and booleans as int64, floats as float32, strings as codes in sorted order.
    `batch_size`: yield whole batches, which is many times faster than collating single examples; use the dataset
    itself, or a DataLoader with `batch_size=None`. `shuffle`: take blocks of `block_rows` neighbouring rows in random
    order, `window_blocks` at a time, and mix their rows; `seed` and `set_epoch` determine the order. (Shuffle here:
    a DataLoader cannot shuffle a stream.) The workers of a DataLoader share the blocks.

    Raises InvalidValueError for a label column that does not exist and for an array of another length.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        label: str | Any = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        block_rows: int = 256,
        window_blocks: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(selection, Selection):
            raise InvalidValueError(f"{quoted(selection)} is not a selection: give what a store's select returns")
        for name, value in (("block_rows", block_rows), ("window_blocks", window_blocks), ("batch_size", batch_size)):
            if value is not None or name != "batch_size":
                check_whole(name, value, 1)
        check_whole("seed", seed, 0, 2**63 - 1)
        self._selection = selection
        self._labels = _labels(selection, label)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._block_rows = block_rows
        self._window_blocks = window_blocks
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the shuffled order of the next pass."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return the number of examples, or of batches; with several workers there may be more, smaller batches."""
        n_rows = len(self._selection)
        return n_rows if self._batch_size is None else -(-n_rows // self._batch_size)

    def __iter__(self) -> Iterator[Examples]:
        if self._batch_size is None:
            for examples in self._windows():
                yield from map(Examples, *examples)
            return
        waiting: list[Examples] = []
        for examples in self._windows():
            waiting.append(examples)
            if sum(len(part.rows) for part in waiting) >= self._batch_size:
                *batches, rest = _split(waiting, self._batch_size)
                yield from batches
                waiting = [rest]
        yield from (batch for batch in _split(waiting, self._batch_size) if len(batch.rows))

    def _windows(self) -> Iterator[Examples]:
        rng = np.random.default_rng([self._seed, self._epoch])
        blocks = -(-len(self._selection.rows) // self._block_rows)
        order = rng.permutation(blocks) if self._shuffle else np.arange(blocks)
        worker = get_worker_info()
        if worker is not None:
            order = order[worker.id :: worker.num_workers]
        for start in range(0, len(order), self._window_blocks):
            positions = np.concatenate([self._block(block) for block in order[start : start + self._window_blocks]])
            yield self._read(rng.permutation(positions) if self._shuffle else positions)

    def _block(self, block: int) -> NDArray[np.int64]:
        start = int(block) * self._block_rows
        return np.arange(start, min(start + self._block_rows, len(self._selection.rows)))

    def _read(self, positions: NDArray[np.int64]) -> Examples:
        """Read the examples at some positions in the selection."""
        rows = self._selection.rows[positions]
        store = self._selection.store
        vectors = np.stack([store.gather(rows, layer) for layer in self._selection.layers], axis=1)
        return Examples(
            torch.from_numpy(vectors.astype(np.float32)),
            torch.from_numpy(rows),
            torch.from_numpy(self._labels[positions]),
        )


def _labels(selection: Selection, label: Any) -> NDArray[Any]:
    """Return the label of each row of the selection: int64, or float32 for an array of floats."""
    if label is None:
        return np.full(len(selection), -1, np.int64)
    if isinstance(label, str):
        columns = selection.store.index.labels
        if label not in columns:
            known = ", ".join(columns) or "none"
            raise InvalidValueError(f"there is no label column {label!r}: the store has {known}; or give an array")
        return columns[label].codes[selection.rows].astype(np.int64)
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


def _split(waiting: list[Examples], size: int) -> list[Examples]:
    """Return the examples in batches of `size`, the last one with the rest (maybe nothing)."""
    if not waiting:
        return []
    joined = [torch.cat(parts) for parts in zip(*waiting, strict=True)]
    stops = range(0, len(joined[1]) + 1, size)
    return [Examples(*(part[start : start + size] for part in joined)) for start in stops]
