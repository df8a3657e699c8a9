"""A selection as a torch dataset: streamed from the store, shuffled block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from embstore.errors import InvalidValueError
from embstore.store import Selection


class Examples(NamedTuple):
    """Some occurrences: `vectors` float32 [n, layer, hidden_size], `rows` int64 [n], `labels` int64 [n], -1 for none.

    Without a batch size the dataset yields single examples, and the first axis is absent.
    """

    vectors: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor


class TorchDataset(IterableDataset[Examples]):
    """The occurrences of a selection, for training with torch.

    `label`: the label column whose codes are given. `batch_size`: yield whole batches (pass `batch_size=None` to the
    DataLoader then), which is many times faster than collating single examples. With `shuffle`, blocks of
    `block_rows` neighbouring rows are taken in random order, `window_blocks` at a time, and their rows are mixed; an
    epoch (`set_epoch`) and a seed give one order. The workers of a DataLoader share the blocks.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        label: str | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        block_rows: int = 256,
        window_blocks: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("block_rows", block_rows), ("window_blocks", window_blocks), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} {value} is not allowed: give 1 or more")
        self._selection = selection
        self._labels = _codes(selection, label)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._block_rows = block_rows
        self._window_blocks = window_blocks
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass; equal epochs give equal orders."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Examples, or batches where a batch size is given (in one process: workers may end in smaller ones)."""
        rows = len(self._selection.rows)
        return rows if self._batch_size is None else -(-rows // self._batch_size)

    def __iter__(self) -> Iterator[Examples]:
        if self._batch_size is None:
            for examples in self._windows():
                yield from map(Examples, *examples)
            return
        held: list[Examples] = []
        for examples in self._windows():
            held.append(examples)
            if sum(len(part.rows) for part in held) >= self._batch_size:
                *batches, rest = _split(held, self._batch_size)
                yield from batches
                held = [rest]
        yield from (batch for batch in _split(held, self._batch_size) if len(batch.rows))

    def _windows(self) -> Iterator[Examples]:
        rng = np.random.default_rng([self._seed, self._epoch])
        blocks = -(-len(self._selection.rows) // self._block_rows)
        order = rng.permutation(blocks) if self._shuffle else np.arange(blocks)
        worker = get_worker_info()
        if worker is not None:
            order = order[worker.id :: worker.num_workers]
        for start in range(0, len(order), self._window_blocks):
            places = np.concatenate([self._block(block) for block in order[start : start + self._window_blocks]])
            yield self._read(rng.permutation(places) if self._shuffle else places)

    def _block(self, block: int) -> NDArray[np.int64]:
        start = int(block) * self._block_rows
        return np.arange(start, min(start + self._block_rows, len(self._selection.rows)))

    def _read(self, places: NDArray[np.int64]) -> Examples:
        rows = self._selection.rows[places]
        store = self._selection.store
        vectors = np.stack([store.gather(rows, layer) for layer in self._selection.layers], axis=1)
        return Examples(
            torch.from_numpy(vectors.astype(np.float32)),
            torch.from_numpy(rows),
            torch.from_numpy(self._labels[places]),
        )


def _codes(selection: Selection, label: str | None) -> NDArray[np.int64]:
    if label is None:
        return np.full(len(selection.rows), -1, np.int64)
    columns = selection.store.index.labels
    if label not in columns:
        raise InvalidValueError(f"there is no label column {label!r}: the store has {', '.join(columns) or 'none'}")
    return columns[label].codes[selection.rows].astype(np.int64)


def _split(held: list[Examples], size: int) -> list[Examples]:
    """The examples held, in batches of `size`, the last one with what is left (maybe nothing)."""
    if not held:
        return []
    joined = [torch.cat(parts) for parts in zip(*held, strict=True)]
    stops = range(0, len(joined[1]) + 1, size)
    return [Examples(*(part[start : start + size] for part in joined)) for start in stops]
