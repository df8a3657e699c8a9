"""A selection as a torch dataset: batches, shuffled, and read ahead where that takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from embstore.arguments import Count, Positive, checked
from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.store.index import Index
from embstore.store.labels.columns import label_column
from embstore.store.reading.ahead import read_ahead
from embstore.store.table import codes_of, column_of, is_coded

GROUP_NBYTES = 2**21  # of vectors that are read at once, whole batches: few enough to stay in the cache
REMOTE_GROUP_NBYTES = 2**22  # many requests at the same time
STORED = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float32}


class Examples(NamedTuple):
    """A batch: `vectors` [n, layer, hidden_size], or [n, hidden_size] of one layer such as `layers=6`.

    `rows` int64 [n], `labels` [n], and `columns` by name, each [n].
    """

    vectors: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor
    columns: dict[str, torch.Tensor]


@checked
class TorchDataset(IterableDataset[Examples]):
    """The occurrences of a selection in batches, `Examples`, to train any torch model in bounded memory.

    Use it as it is, or in a `DataLoader` with `batch_size=None`: for any number of workers its batches are the same, in
    the same order. Processes of `torch.distributed` share the rows. Once reading is slow, as from a disk or a network,
    a thread reads batches ahead: one process is enough on most machines.

    Parameters
    ----------
    selection : Selection
    label : str or array, optional
        A label column, whose codes become the labels (-1 for none); or one value for each row of the selection:
        integers and booleans as int64, floats as float32, strings as codes in sorted order.
    columns : list of str
        Columns of `Selection.table` that each batch has too, such as "token", "context_position" and "document":
        integers and booleans as int64, floats as float32, words and labels as codes, -1 for null (floats: NaN).
    batch_size, drop_last : int, bool
        `drop_last`: without the incomplete batch at the end, so that all processes have as many batches.
    shuffle : bool
        A permutation of all rows, which `seed` and `set_epoch` determine. (Shuffle here: a DataLoader cannot shuffle a
        stream.)
    dtype : torch.dtype or str, optional
        Of the vectors, such as "float32"; by default the one that is stored, float32 for int8.

    Raises
    ------
    InvalidValueError
        For a column that does not exist or is text without codes, and for an array of another length.
    """

    def __init__(
        self,
        selection: Any,
        *,
        label: Any = None,
        columns: Sequence[str] = (),
        batch_size: Positive = 256,
        shuffle: bool = False,
        drop_last: bool = False,
        dtype: torch.dtype | str | None = None,
        seed: Count = 0,
    ) -> None:
        super().__init__()
        if not hasattr(selection, "rows_at"):
            raise InvalidValueError(f"{quoted(selection)} is not a selection: give what a store's select returns")
        kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype or STORED[selection.store.dtype]
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise InvalidValueError(f"dtype {quoted(dtype)} is not allowed: give one of floats, such as 'float32'")
        self._selection = selection
        self._labels, self._columns = _labels(selection, label), list(columns)
        selection.store.select(rows=[]).table(columns=self._columns)  # raises for one that does not exist
        self._read_columns(selection.rows[:0])
        self._batch_size, self._shuffle, self._drop_last, self._seed = batch_size, shuffle, drop_last, seed
        self._dtype = kind
        known = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank, n_ranks = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if known else (0, 1)
        self._start, self._stop = (len(selection) * number // n_ranks for number in (rank, rank + 1))
        n_batches = (
            len(selection) // n_ranks // batch_size if drop_last else -(-(self._stop - self._start) // batch_size)
        )
        self._n_batches = n_batches
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

    def __len__(self) -> int:
        """Return the number of batches in an epoch, of all workers of this process."""
        return self._n_batches

    def __iter__(self) -> Iterator[Examples]:
        worker, n_rows, size = get_worker_info(), len(self._selection), self._batch_size
        turn, n_turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order = np.random.default_rng([self._seed, self.epoch]).permutation(n_rows) if self._shuffle else None
        starts = range(self._start + turn * size, self._start + len(self) * size, n_turns * size)
        store = self._selection.store
        row_nbytes = len(self._selection.layers) * store.hidden_size * STORED[store.dtype].itemsize
        nbytes = REMOTE_GROUP_NBYTES if self._selection.store.source.is_remote else GROUP_NBYTES
        n_grouped = max(1, nbytes // (row_nbytes * size))  # batches that are read at once

        def read(group: int, _: Any) -> list[Examples]:
            spans = [(start, min(start + size, self._stop)) for start in starts[group * n_grouped :][:n_grouped]]
            whole = [(spans[0][0], spans[-1][1])] if n_turns == 1 else spans
            positions = np.concatenate([np.arange(*span) for span in whole])
            vectors, rows, labels, columns = self._read(positions if order is None else order[positions])
            divided = zip(
                *(torch.split(part, size) for part in (vectors, rows, labels, *columns.values())), strict=True
            )
            return [
                Examples(one, two, three, dict(zip(columns, more, strict=True))) for one, two, three, *more in divided
            ]

        for batches in read_ahead(read, -(-len(starts) // n_grouped)):
            yield from batches

    def _read(self, positions: NDArray[np.int64]) -> Examples:
        """Read the examples at some positions in the selection."""
        store, layers = self._selection.store, self._selection.layers
        rows = positions if self._selection.is_whole else self._selection.rows[positions]
        labels = np.full(len(rows), -1, np.int64) if self._labels is None else self._labels[positions]
        widened = (store.dtype, self._dtype) == ("float16", torch.float32)  # as they are copied
        dtype = self._dtype if widened else STORED[store.dtype]
        held = torch.empty(len(layers), len(rows), store.hidden_size, dtype=dtype)
        store.vectors(rows, layers=layers, out=(held.view(torch.uint16) if dtype == torch.bfloat16 else held).numpy())
        vectors = held[0] if self._selection.has_one_layer else held.transpose(0, 1)
        vectors = vectors.to(self._dtype).contiguous()
        return Examples(vectors, torch.from_numpy(rows), torch.from_numpy(labels), self._read_columns(rows))

    def _read_columns(self, rows: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        return {name: _numbers(self._selection.store.index, name, rows) for name in self._columns}


def _numbers(index: Index, name: str, rows: NDArray[np.int64]) -> torch.Tensor:
    """Return a column for some rows as int64, or float32 where it has floats."""
    if is_coded(index, name):  # without the names, which may be millions
        return torch.from_numpy(codes_of(index, name, rows).astype(np.int64))
    column = column_of(index, name, rows)
    if column.dtype.is_float():
        return torch.from_numpy(column.cast(pl.Float32).fill_null(np.nan).to_numpy(writable=True))
    if column.dtype == pl.String:
        raise InvalidValueError(f"the column {name!r} is text, which has no codes: read it with table()")
    return torch.from_numpy(column.cast(pl.Int64).fill_null(-1).to_numpy(writable=True))


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
