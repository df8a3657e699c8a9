"""What a Store reads: the columns and vectors of one store, behind the same protocol as those of several."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, MissingRowsError, StoreDamagedError, quoted
from embstore.store.arrays import committed, frozen_kind
from embstore.store.backend import Reader, open_reader
from embstore.store.check.consistency import column_faults
from embstore.store.conditions import row_numbers
from embstore.store.index import Index
from embstore.store.labels.files import LabelFiles
from embstore.store.layout import RESIDUAL, Layout
from embstore.store.metadata import Metadata
from embstore.store.reading.rows import (
    RESUME,
    Checksums,
    Gatherer,
    SequentialReader,
    Snapshot,
    StoredRows,
    scan_blocks,
    stored_blocks,
)
from embstore.store.storage.files import REPAIR_HINT, crc32c
from embstore.store.storage.location import ObjectPath
from embstore.store.text import REQUIRED

LATE = ("words/", "subwords/")  # columns of a large remote store that many queries do without
CHECKED_NBYTES = 2**24  # an index of up to this size is checked for consistency when it is first used

Verify = Literal["lazy"] | None
Missing = Literal["error", "skip", "nan"]


def layout_of(metadata: Metadata, site: str | None, path: object) -> Layout:
    """Return the layout of a site, None for the first one. Raises InvalidValueError for a site that is not stored."""
    layouts = {layout.site: layout for layout in metadata.layouts}
    if site is not None and site not in layouts:
        raise InvalidValueError(
            f"{path} has no site {quoted(site)}: it has {', '.join(layouts)}; others need an extraction with --sites"
        )
    return metadata.layout if site is None else layouts[site]


class FileSource:
    """One store: a folder, a file or a URL."""

    is_stored = True

    def __init__(self, reader: Reader, *, verify: Verify = None, site: str | None = None) -> None:
        if verify not in (None, "lazy"):
            raise InvalidValueError(f'verify must be "lazy" or None, not {quoted(verify)}')
        self.reader = reader
        self.path, self.metadata = reader.path, reader.metadata
        self.verify: Verify = verify
        self.layout = layout_of(self.metadata, site, self.path)
        self._records: NDArray[np.uint64] | None = None
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        path = self.path.absolute() if isinstance(self.path, Path) else self.path  # the reader may run elsewhere
        return _reopened, (path, self.verify, self.layout.site)

    def again(self, *, verify: Verify, site: str) -> FileSource:
        """Return another site of the same store, or what compares with checksums or not."""
        if verify == self.verify:
            return FileSource(self.reader, verify=verify, site=site)
        return FileSource(open_reader(self.path), verify=verify, site=site)

    def members(self) -> list[FileSource]:
        return [self]

    def require_current(self, *, columns: bool) -> None:
        """Raise StoreDamagedError where the store was replaced or cut short since it was opened."""
        self.reader.require_current(columns=columns)

    @property
    def is_remote(self) -> bool:
        """Whether rows are requested from a server."""
        return self.reader.remote is not None

    def refresh(self) -> None:
        """Read the commit records again, so that rows written by another process since then can be read."""
        layout = self.layout
        records_of_all = self.reader.commits()
        of_all, own = committed(records_of_all, layout), slice(layout.first, layout.first + layout.n_partitions)
        self._is_committed, records = bool(of_all.all()), records_of_all[own]
        if self._records is not None and not np.array_equal(self._records, records):
            self.reader.forget()
        self._records = records
        self.committed: NDArray[np.bool_] = of_all[own]
        self.n_committed_rows = int(records[self.committed, 0].sum())
        checksums = Checksums(self.reader, records, first=layout.first) if self.verify else None
        self._snapshot = Snapshot(self.reader, layout, self.committed, self.center, checksums)
        self._gatherer = Gatherer(self._snapshot)
        self._positions = {layer: position for position, layer in enumerate(layout.layers)}

    @property
    def finished(self) -> bool:
        return self._is_committed and self.reader.is_tidy()

    @property
    def digest(self) -> str:
        """SHA-256 of the metadata and commit records; changes whenever any vector changes."""
        center = self.reader.arrays.get("center")
        made = f"{self.metadata.fingerprint} {None if center is None else center.crc32c} "
        if self.layout.site != RESIDUAL:
            made += f"{self.layout.site} "
        assert self._records is not None
        return hashlib.sha256(made.encode() + self._records.astype("<u8").tobytes()).hexdigest()

    @cached_property
    def center(self) -> NDArray[np.float32] | None:
        """The mean of each layer that int8 codes are relative to, float32 [layer, feature]; None for other dtypes."""
        return np.array(self._column("center")) if self.layout.dtype == "int8" else None

    @cached_property
    def index(self) -> Index:
        """The index with the labels that are stored; see `Store.index`."""
        index = self.checked_index(is_checked=bool(self.verify) or self.index_nbytes <= CHECKED_NBYTES)
        return index.with_labels(dict(sorted({**index.own_labels, **self.label_files.read()}.items())))

    @property
    def index_nbytes(self) -> int:
        arrays = self.reader.arrays
        return sum(math.prod(array.shape) * frozen_kind(name)[0].itemsize for name, array in arrays.items())

    def checked_index(self, *, is_checked: bool) -> Index:
        """Return the index without added labels, whose columns are compared with each other if that is asked for."""
        arrays = self.reader.arrays
        now = [name for name in sorted(arrays) if is_checked or not self.is_remote or not name.startswith(LATE)]
        self.reader.fetch_columns(now)
        columns = _Columns({name: self._column(name) for name in now}, self.reader)
        try:
            index = Index(columns, self.metadata.fields)
            len(index.words), index.own_labels, index.by_type, index.fields  # raise KeyError for one that is not there
            for name in REQUIRED:
                arrays[name]
            if is_checked:
                for fault in column_faults(columns, self.metadata):
                    raise StoreDamagedError(f"the index of {self.path} is damaged: {fault}; {REPAIR_HINT}")
        except KeyError as error:
            raise StoreDamagedError(f"{self.path} has no array {error}: {REPAIR_HINT}") from None
        return index

    def _column(self, name: str) -> NDArray[Any]:
        """Return a column of the index as it is stored, compared with its checksum where that is wanted."""
        if name not in self.reader.arrays:
            raise StoreDamagedError(f"{self.path} has no array {name!r}: {REPAIR_HINT}")
        column = self.reader.column(name)
        if self.verify and crc32c(column) != self.reader.arrays[name].crc32c:
            raise StoreDamagedError(f"{name} of {self.path} was changed: {REPAIR_HINT}")
        return column

    def column_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each column of the index as it is stored, by its name."""
        return {name: array.shape for name, array in self.reader.arrays.items()}

    def stored_column(self, name: str) -> NDArray[Any]:
        """Return a column of the index as it is stored, whose file is not held open."""
        column = self._column(name)
        self.reader.release_columns()
        return column

    @cached_property
    def label_files(self) -> LabelFiles:
        """The label columns that were added to the store."""
        return LabelFiles(self.reader)

    def is_written(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each of some rows whether it is committed."""
        return self.committed[rows // self.layout.partition_rows]

    def require_committed(self, start: int, stop: int) -> None:
        """Raise MissingRowsError where one of the rows `[start, stop)` is not written yet."""
        size = self.layout.partition_rows
        first = start // size
        missing = first + np.flatnonzero(~self.committed[first : -(-stop // size)])
        if len(missing):
            count = np.minimum((missing + 1) * size, stop) - np.maximum(missing * size, start)
            raise MissingRowsError(
                f"{int(count.sum()):,} of the rows {start} to {stop} of {self.path} are not written yet: {RESUME}"
            )

    def take(self, rows: ArrayLike, layers: tuple[int, ...], out: NDArray[Any] | None, *, nan: bool) -> NDArray[Any]:
        positions = [self._positions[layer] for layer in layers]
        self.require_current(columns=False)
        return self._gatherer.take(row_numbers(rows), positions, out=out, nan=nan)

    def scan(
        self, layer: int, start: int, stop: int, *, block_rows: int | None, missing: Missing, copy: bool
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        self.require_current(columns=False)
        number = self._positions[layer]
        return scan_blocks(self._snapshot, number, start, stop, block_rows=block_rows, nan=missing == "nan", copy=copy)

    def stored_blocks(self, layer: int, start: int, stop: int, *, block_rows: int) -> Iterator[StoredRows]:
        """Yield rows `[start, stop)` of one layer as they are stored: as `scan` without a copy, but not decoded."""
        self.require_current(columns=False)
        self.require_committed(start, stop)
        return stored_blocks(self._snapshot, self._positions[layer], start, stop, block_rows=block_rows)

    def sequential(self, array: str, layer: int, stop: int) -> SequentialReader:
        """Return what reads ascending rows of a stored array."""
        return SequentialReader(self._snapshot, array, self._positions[layer], stop)


class _Columns(Mapping[str, NDArray[Any]]):
    """The columns of a store, of which those of words and subwords may be read when one of them is first used."""

    def __init__(self, read: dict[str, NDArray[Any]], reader: Reader) -> None:
        self._read, self._reader = read, reader

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._read and name in self._reader.arrays:
            late = [each for each in self if each not in self._read]
            self._reader.fetch_columns(late)
            self._read |= {each: self._reader.column(each) for each in late}
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._reader.arrays))

    def __len__(self) -> int:
        return len(self._reader.arrays)


def _reopened(path: Path | ObjectPath, verify: Verify, site: str) -> FileSource:
    """Open a pickled store in another process, without a second warning."""
    return FileSource(open_reader(path), verify=verify, site=site)
