"""An open store: its metadata, its index, and its vectors by row or block after block."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, MissingRowsError, StoreDamagedError, UnfinishedStoreWarning
from embstore.store.backend import Reader, open_reader
from embstore.store.index import Index
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata
from embstore.store.reading.gather import Gathering
from embstore.store.reading.scan import scan_blocks
from embstore.store.selection import Selection, select
from embstore.store.storage.files import MEND
from embstore.store.storage.location import ObjectPath, place_of
from embstore.store.vectors import VALUE_DTYPE
from embstore.store.writer import committed
from embstore.store.zarr.remote_rows import FarColumns

if TYPE_CHECKING:
    import polars as pl

_LOOKUPS_BEFORE_TABLE = 8
RESUME = "run the same `embstore extract` command again to go on"


def open_store(path: str | os.PathLike[str] | ObjectPath, *, cache: str | os.PathLike[str] | None = None) -> Store:
    """Open a store for reading; a store that is not finished is opened with an UnfinishedStoreWarning.

    `path`: a folder, a file, or an address: s3://bucket/name.zarr, gs://, az://, https://. `cache`: a folder in which
    the shards of an address are kept, each downloaded whole when it is first needed (EMBSTORE_CACHE by default; not
    kept, and rows read one by one, where neither is given).

    Raises StoreNotFoundError, StoreFormatError (no store, or of a newer format), StoreDamagedError, StorageError.
    """
    store = Store(open_reader(place_of(path), cache=cache_folder(cache)))
    if store.n_committed_rows < store.n_rows:
        missing = int((~store.committed).sum())
        warnings.warn(
            f"{store.path} is not finished: {store.n_rows - store.n_committed_rows:,} of {store.n_rows:,} rows "
            f"({missing} of {store.layout.n_partitions} partitions) are not written yet; {RESUME}",
            UnfinishedStoreWarning,
            stacklevel=2,
        )
    return store


class Store:
    """A store open for reading; only committed rows are seen. Made by `open_store`.

    `layers` are the numbers of the layers stored. Vectors come in the stored dtype where numpy has it (float32,
    float16) and as float32 otherwise (bfloat16, int8): `vector_dtype`.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.path: Path | ObjectPath = reader.path
        self.cache: Path | None = getattr(reader, "cache", None)
        self.metadata: Metadata = reader.metadata
        self.layout: Layout = reader.metadata.layout
        self.layers: tuple[int, ...] = self.layout.layers
        self.n_rows: int = self.layout.n_rows
        self.hidden_size: int = self.layout.hidden_size
        self.dtype: str = self.layout.dtype
        self.vector_dtype: np.dtype[Any] = VALUE_DTYPE[self.dtype]
        self._table: dict[str, int] | None = None
        self._lookups = 0
        self.refresh()

    def __repr__(self) -> str:
        shape = f"{len(self.layers)} layers x {self.n_rows:,} rows x {self.hidden_size}"
        return f"<Store {self.path}: {shape} {self.dtype}>"

    def __reduce__(self) -> tuple[Any, ...]:
        path = self.path.absolute() if isinstance(self.path, Path) else self.path  # another process may run elsewhere
        return _open_again, (path, self.cache)

    def refresh(self) -> None:
        """Read the commits again, so that rows which another process has written since are seen."""
        records = self._reader.commits()
        known = getattr(self, "_records", records)
        if not np.array_equal(known, records):
            self._reader.forget()
        self._records = records
        self.committed: NDArray[np.bool_] = committed(records, self.layout)
        self.n_committed_rows: int = int(records[self.committed, 0].sum())
        self._gathering = Gathering(self._reader, self.layout, self.committed, self.center)

    @property
    def finished(self) -> bool:
        """Whether every row is written and the writer has tidied up after itself."""
        return self.n_committed_rows == self.n_rows and self._reader.settled()

    @property
    def digest(self) -> str:
        """SHA-256 over what made the store and what was committed: another one where any vector is another."""
        center = self._reader.arrays.get("center")
        made = f"{self.metadata.recipe_sha256} {None if center is None else center.crc32c} "
        return hashlib.sha256(made.encode() + self._records.astype("<u8").tobytes()).hexdigest()

    @cached_property
    def center(self) -> NDArray[np.float32] | None:
        """The mean that int8 codes are relative to, float32 [layer, feature]; None for other dtypes."""
        return np.array(self._reader.column("center")) if self.dtype == "int8" else None

    @cached_property
    def index(self) -> Index:
        """The columns of the store, memory-mapped."""
        try:
            if isinstance(self._reader, FarColumns):
                self._reader.fetch_columns(self._reader.arrays)
            return Index.of_arrays({name: self._reader.column(name) for name in sorted(self._reader.arrays)})
        except KeyError as error:
            raise StoreDamagedError(f"{self.path} has no array {error}: {MEND}") from None

    @cached_property
    def _rows_of_types(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self._reader.column("type/indptr"), self._reader.column("type/occurrences")

    def occurrences_of(self, type_id: int) -> NDArray[np.int64]:
        """The rows of a type (a row of `index.words`), ascending; int64 [n]."""
        indptr, occurrences = self._rows_of_types
        if not 0 <= type_id < len(indptr) - 1:
            raise InvalidValueError(f"there is no type {type_id}: the store has {len(indptr) - 1}")
        return occurrences[indptr[type_id] : indptr[type_id + 1]]

    def type_of(self, form: str) -> int | None:
        """The type that is spelled so, None where the store has no such word."""
        if self._table is None:
            self._lookups += 1
            if self._lookups <= _LOOKUPS_BEFORE_TABLE:
                return self.index.words.find(form)
            self._table = {word: number for number, word in enumerate(self.index.words)}
        return self._table.get(form)

    @property
    def occurrences(self) -> pl.DataFrame:
        """The occurrence table: `occurrence, word, sentence, position, subwords, source` and the label columns.

        `occurrence` is the row; words and labels are Polars enumerations.
        """
        from embstore.store.table import occurrence_table

        return occurrence_table(self.index)

    def select(
        self,
        *,
        words: str | Iterable[str] | None = None,
        types: int | Iterable[int] | None = None,
        labels: Mapping[str, str | Iterable[str]] | None = None,
        sentences: int | Iterable[int] | None = None,
        rows: ArrayLike | slice | None = None,
        where: pl.Expr | Iterable[pl.Expr] | None = None,
        layers: int | Iterable[int] | None = None,
    ) -> Selection:
        """Choose the occurrences for which all conditions hold, and layers (all by default); nothing is read yet.

        `words`: forms as spelled in the corpus. `types`, `sentences`: rows of `index.words` and `index.texts`.
        `labels`: column -> label or labels. `rows`: integers, kept in their order, a slice, or a boolean a row.
        `where`: Polars expressions over the occurrence table. Raises InvalidValueError for what is not there.
        """
        return select(
            self, words=words, types=types, labels=labels, sentences=sentences, rows=rows, where=where, layers=layers
        )

    def describe(self) -> dict[str, Any]:
        """Return what the store holds and what made it, as JSON has it."""
        model, corpus, extraction = self.metadata.model, self.metadata.corpus, self.metadata.extraction
        return {
            "path": str(self.path),
            "n_rows": self.n_rows,
            "n_committed_rows": self.n_committed_rows,
            "layers": list(self.layers),
            "hidden_size": self.hidden_size,
            "dtype": self.dtype,
            "n_partitions": self.layout.n_partitions,
            "partition_rows": self.layout.partition_rows,
            "n_types": len(self.index.words),
            "n_sentences": len(self.index.texts),
            "labels": {name: len(column.names) for name, column in self.index.labels.items()},
            "nbytes": self.n_rows * self.layout.row_nbytes,
            "model": dict(model),
            "corpus": dict(corpus),
            "extraction": dict(extraction),
            "dropped": [
                {"reason": drop.reason, "count": drop.count, "examples": list(drop.examples)}
                for drop in self.metadata.dropped
            ],
            "software": dict(self.metadata.software),
            "format_version": self.metadata.format_version,
        }

    def gather(
        self,
        rows: ArrayLike,
        layer: int,
        *,
        out: NDArray[Any] | None = None,
        missing: Literal["error", "nan"] = "error",
    ) -> NDArray[Any]:
        """Return the vectors of some rows of one layer, in the order asked for; [n, hidden_size].

        `rows`: integers, repeated or unsorted as they come. `out`: a C-contiguous array of `vector_dtype` to
        fill. Raises InvalidValueError for a layer or row that the store does not have, MissingRowsError for rows
        not yet written, unless `missing="nan"`.
        """
        place = self._place_of(layer)
        target = None if out is None else out[None]
        return self._gathering.take(self._checked(rows), [place], out=target, nan=self._nan(missing)).reshape(
            -1, self.hidden_size
        )

    def gather_layers(
        self,
        rows: ArrayLike,
        layers: Sequence[int] | None = None,
        *,
        out: NDArray[Any] | None = None,
        missing: Literal["error", "nan"] = "error",
    ) -> NDArray[Any]:
        """Return the vectors of some rows of several layers (None: all); [layer, n, hidden_size]. See `gather`."""
        places = [self._place_of(layer) for layer in (self.layers if layers is None else layers)]
        return self._gathering.take(self._checked(rows), places, out=out, nan=self._nan(missing))

    def scan(
        self,
        layer: int,
        start: int = 0,
        stop: int | None = None,
        *,
        block_rows: int | None = None,
        missing: Literal["error", "skip", "nan"] = "error",
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield `(first row, vectors [n, hidden_size])` over rows `[start, stop)` of one layer, ascending.

        A block is good until the second next one is asked for, when its memory is used again unless something
        still holds it. `block_rows`: rows of a block, by default about 2 MiB of them. Rows not yet written raise
        MissingRowsError before the first block, are left out ("skip"), or read as NaN ("nan").
        """
        place = self._place_of(layer)
        stop = self.n_rows if stop is None else stop
        if not 0 <= start <= stop <= self.n_rows:
            raise InvalidValueError(f"rows {start} to {stop} are not within the store's {self.n_rows}")
        if block_rows is not None and block_rows < 1:
            raise InvalidValueError(f"block_rows must be at least 1, not {block_rows}")
        if missing not in ("error", "skip", "nan"):
            raise InvalidValueError(f'missing must be "error", "skip" or "nan", not {missing!r}')
        if missing == "error":
            self._refuse_missing(start, stop)
        return scan_blocks(
            self._reader, self.layout, self.committed, self.center, place, start, stop, block_rows, missing == "nan"
        )

    def _refuse_missing(self, start: int, stop: int) -> None:
        size = self.layout.partition_rows
        first, last = start // size, -(-stop // size)
        lacking = first + np.flatnonzero(~self.committed[first:last])
        if len(lacking):
            begins = np.maximum(lacking * size, start)
            ends = np.minimum((lacking + 1) * size, stop)
            raise MissingRowsError(
                f"{int((ends - begins).sum()):,} of the rows {start} to {stop} of {self.path} are not written "
                f"yet; {RESUME}"
            )

    def _place_of(self, layer: int) -> int:
        try:
            return self.layers.index(layer)
        except ValueError:
            stored = ", ".join(map(str, self.layers))
            raise InvalidValueError(f"layer {layer!r} is not stored: the store has the layers {stored}") from None

    def _nan(self, missing: str) -> bool:
        if missing not in ("error", "nan"):
            raise InvalidValueError(f'missing must be "error" or "nan", not {missing!r}')
        return missing == "nan"

    def _checked(self, rows: ArrayLike) -> NDArray[np.int64]:
        array = np.asarray(rows)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise InvalidValueError(f"rows must be a list of integers, not {array.dtype} of {array.ndim} dimensions")
        if array.size:
            low, high = int(array.min()), int(array.max())
            if low < 0 or high >= self.n_rows:
                wrong = low if low < 0 else high
                raise InvalidValueError(f"there is no row {wrong}: the store has rows 0 to {self.n_rows - 1}")
        return array.astype(np.int64, copy=False)


def cache_folder(cache: str | os.PathLike[str] | None) -> Path | None:
    """The folder that shards of far stores are kept in: the one given, or EMBSTORE_CACHE, or none."""
    folder = os.environ.get("EMBSTORE_CACHE") if cache is None else cache
    return Path(folder) if folder else None


def _open_again(path: Path | ObjectPath, cache: Path | None) -> Store:
    """What a pickled store becomes in another process: opened there, with no second warning."""
    return Store(open_reader(path, cache=cache))
