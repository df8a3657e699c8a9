"""Open stores and selections of them: metadata, words and labels, and vectors by row or in blocks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from embstore.arguments import checked
from embstore.errors import (
    InvalidValueError,
    MissingRowsError,
    StoreDamagedError,
    check_choice,
    check_whole,
    quoted,
)
from embstore.html import html_table
from embstore.store.arrays import committed
from embstore.store.backend import Reader, open_reader
from embstore.store.check.consistency import column_faults
from embstore.store.conditions import Condition, check_bounds, parse_conditions, row_numbers, selected_rows
from embstore.store.index import Index, Labels, TypeIndex
from embstore.store.labels.files import LabelFiles
from embstore.store.layout import RESIDUAL, Layer, Layers, Layout, one_layer, resolve_layer, resolve_layers
from embstore.store.metadata import Metadata, as_json
from embstore.store.reading.gather import RESUME, Gatherer
from embstore.store.reading.scan import (
    BLOCK_NBYTES,
    DENSE,
    Checksums,
    RowReader,
    SequentialReader,
    Snapshot,
    StoredRows,
    scan_blocks,
    stored_blocks,
)
from embstore.store.storage.files import REPAIR_HINT, crc32c
from embstore.store.storage.location import ObjectPath
from embstore.store.vectors import VALUE_DTYPE

if TYPE_CHECKING:
    import polars as pl
    import xarray

    from embstore.store.convert.torch_dataset import TorchDataset

CHECKED_NBYTES = 2**24  # an index of up to this size is checked for consistency when it is first used

Missing = Literal["error", "skip", "nan"]


class Store:
    """A store of hidden states, open for reading. Made by `embstore.open`; only committed rows can be read.

    `layers`: the numbers of the stored layers. `n_rows`: one row for each occurrence. `vector_dtype`: the dtype of
    the vectors that are returned, the stored one for float32 and float16, float32 for bfloat16 and int8. `sites`: what
    is stored, see `site`; the residual stream is read unless another site is chosen.
    """

    def __init__(self, reader: Reader, *, verify: Literal["lazy"] | None = None, site: str | None = None) -> None:
        if verify not in (None, "lazy"):
            raise InvalidValueError(f'verify must be "lazy" or None, not {quoted(verify)}')
        self._reader = reader
        self._records: NDArray[np.uint64] | None = None
        self._describe(reader.path, reader.cache, reader.metadata, verify, site)
        self.refresh()

    def _describe(
        self,
        path: Path | ObjectPath,
        cache: Path | None,
        metadata: Metadata,
        verify: Literal["lazy"] | None,
        site: str | None,
    ) -> None:
        self._verify = verify
        self._added_labels: dict[str, Labels] = {}
        self.path: Path | ObjectPath = path
        self.cache: Path | None = cache
        self.metadata: Metadata = metadata
        self.sites: tuple[str, ...] = tuple(layout.site for layout in metadata.layouts)
        self.layout: Layout = self._layout_of(site)
        self.layers: tuple[int, ...] = self.layout.layers
        self.n_rows: int = self.layout.n_rows
        self.hidden_size: int = self.layout.hidden_size
        self.dtype: str = self.layout.dtype
        self.vector_dtype: np.dtype[Any] = VALUE_DTYPE[self.dtype]

    def __repr__(self) -> str:
        shape = f"{len(self.layers)} layers x {self.n_rows:,} rows x {self.hidden_size}"
        site = "" if len(self.sites) == 1 else f"{self.layout.site} of {len(self.sites)} sites, "
        return f"<Store {self.path}: {site}{shape} {self.dtype}>"

    def _repr_html_(self) -> str:
        return html_table(_facts(self, self.layers).items(), f"Store {self.path}")

    def __len__(self) -> int:
        return self.n_rows

    def __reduce__(self) -> tuple[Any, ...]:
        path = self.path.absolute() if isinstance(self.path, Path) else self.path  # the reader may run elsewhere
        return _reopen, (path, self.cache, self._verify, self.layout.site, self._added_labels)

    def _layout_of(self, site: str | None) -> Layout:
        layouts = self.metadata.layouts
        found = layouts[:1] if site is None else [layout for layout in layouts if layout.site == site]
        if not found:
            raise InvalidValueError(
                f"{self.path} has no site {quoted(site)}: it has {', '.join(self.sites)}; others need an extraction "
                "with --sites"
            )
        return found[0]

    def site(self, name: str) -> Store:
        """Return the same store with the vectors of another site, for every query and analysis.

        `name`: one of `sites`: "residual", the hidden states; of the block that computes layer l, "query", "key" and
        "value" as they enter attention, "head_output" (of all heads, one after the other, before the output
        projection), and "attention_output" and "mlp_output", which are added to the residual stream. Their layers
        begin with 1, and vectors have the size of the site.

        Raises InvalidValueError for a site that is not stored.
        """
        if name == self.layout.site:
            return self
        return self._opened(Store(self._reader, verify=self._verify, site=self._layout_of(name).site))

    def reopened(self, *, verify: Literal["lazy"] | None) -> Store:
        """Open the same store and site again, and compare what is read with its checksums ("lazy") or not (None)."""
        reader = open_reader(self.path, cache=self.cache)
        return self._opened(Store(reader, verify=verify, site=self.layout.site))

    def _opened(self, store: Self) -> Self:
        """Give another object of this store the labels that were added to this one."""
        store._added_labels = self._added_labels
        return store

    def require_current(self, *, columns: bool) -> None:
        """Raise StoreDamagedError where the store was replaced or cut short since it was opened."""
        self._reader.require_current(columns=columns)

    @property
    def is_remote(self) -> bool:
        """Whether rows are requested from a server."""
        return self._reader.remote is not None

    def refresh(self) -> None:
        """Read the commit records again, so that rows written by another process since then can be read."""
        first = self.layout.first
        records_of_all = self._reader.commits()
        self._is_committed = bool(committed(records_of_all, self.layout).all())
        records = records_of_all[first : first + self.layout.n_partitions]
        if self._records is not None and not np.array_equal(self._records, records):
            self._reader.forget()
        self._records = records
        self.committed: NDArray[np.bool_] = committed(records, self.layout)
        self.n_committed_rows: int = int(records[self.committed, 0].sum())
        checksums = Checksums(self._reader, records, first=first) if self._verify else None
        self.snapshot = Snapshot(self._reader, self.layout, self.committed, self.center, checksums)
        self._gatherer = Gatherer(self.snapshot)

    @property
    def finished(self) -> bool:
        """Whether every row of every site is written and the writer has completed the store."""
        return self._is_committed and self._reader.is_tidy()

    @property
    def digest(self) -> str:
        """SHA-256 of the metadata and commit records; changes whenever any vector changes."""
        center = self._reader.arrays.get("center")
        made = f"{self.metadata.fingerprint} {None if center is None else center.crc32c} "
        if self.layout.site != RESIDUAL:
            made += f"{self.layout.site} "
        assert self._records is not None
        return hashlib.sha256(made.encode() + self._records.astype("<u8").tobytes()).hexdigest()

    @cached_property
    def center(self) -> NDArray[np.float32] | None:
        """The mean of each layer that int8 codes are relative to, float32 [layer, feature]; None for other dtypes."""
        return np.array(self._column("center")) if self.dtype == "int8" else None

    @cached_property
    def index(self) -> Index:
        """Words, sentences, positions and labels of the rows, as memory-mapped columns.

        Raises StoreDamagedError for an index of up to 16 MiB, or with `verify="lazy"` of any size, whose columns do
        not fit each other.
        """
        names = sorted(self._reader.arrays)
        self._reader.fetch_columns(names)
        columns = {name: self._column(name) for name in names}
        try:
            index = Index.of_arrays(columns, self.metadata.fields)
            if self._verify or sum(column.nbytes for column in columns.values()) <= CHECKED_NBYTES:
                for fault in column_faults(columns, self.metadata):
                    raise StoreDamagedError(f"the index of {self.path} is damaged: {fault}; {REPAIR_HINT}")
        except KeyError as error:
            raise StoreDamagedError(f"{self.path} has no array {error}: {REPAIR_HINT}") from None
        stored = dict(sorted({**index.own_labels, **self.label_files.read()}.items()))
        return replace(index, labels={**stored, **self._added_labels})

    def _column(self, name: str) -> NDArray[Any]:
        """Return a column of the index as it is stored, compared with its checksum where that is wanted."""
        if name not in self._reader.arrays:
            raise StoreDamagedError(f"{self.path} has no array {name!r}: {REPAIR_HINT}")
        column = self._reader.column(name)
        if self._verify and crc32c(column) != self._reader.arrays[name].crc32c:
            raise StoreDamagedError(f"{name} of {self.path} was changed: {REPAIR_HINT}")
        return column

    def column_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each column of the index as it is stored, by its name."""
        return {name: array.shape for name, array in self._reader.arrays.items()}

    def stored_column(self, name: str) -> NDArray[Any]:
        """Return a column of the index as it is stored, whose file is not held open."""
        column = self._column(name)
        self._reader.release_columns()
        return column

    @cached_property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of every type, memory-mapped: `(indptr, rows)`, type t has `rows[indptr[t]:indptr[t + 1]]`."""
        return self._column("types/indptr"), self._column("types/occurrences")

    @cached_property
    def _type_index(self) -> TypeIndex:
        return TypeIndex(lambda: self.index.words, *self.occurrences)

    def occurrences_of(self, type_id: int) -> NDArray[np.int64]:
        """Return the rows of a type (a position in `index.words`), ascending; int64 [n].

        Raises InvalidValueError for a type that does not exist.
        """
        self.require_current(columns=True)
        return self._type_index.rows_of(type_id)

    def type_of(self, form: str) -> int | None:
        """Return the type with this spelling, None where the store has no such word."""
        return self._type_index.find(form)

    @checked
    def table(self, *, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the occurrence table of all rows; see `Selection.table`."""
        return Selection(self).table(columns=columns)

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> Any:
        """Return all rows as Arrow record batches; see `Selection.to_arrow`."""
        return Selection(self).to_arrow(columns=columns)

    def to_xarray(self) -> xarray.Dataset:
        """Return all rows as an xarray Dataset; see `Selection.to_xarray`."""
        return Selection(self).to_xarray()

    def to_torch(self, **options: Any) -> TorchDataset:
        """Return a dataset of all rows for training in PyTorch; see `Selection.to_torch`."""
        return Selection(self).to_torch(**options)

    @checked
    def with_labels(
        self,
        labels: Any,
        values: Any = None,
        *,
        on: str | Sequence[str] = "occurrence",
        save: bool = False,
        replace: bool = False,
    ) -> Store:
        """Return the same store with more label columns, for selections, tables, TorchDataset and every analysis.

        `labels`: the name of one column, whose `values` are one label for each row, as an array, a list or a Polars
        Series of strings, integers or booleans (None: no label). Or a table, a frame or the path of a .csv, .tsv,
        .jsonl or .parquet file, whose columns become label columns, all but its keys, `on`: "occurrence";
        "sentence,position" or "source,position" (the number of the sentence in the corpus); "sentence", "source",
        "document" or "word", for all their rows. Rows that the table leaves out have no label. With a name and a frame
        as `values` only this column is used.

        `save`: store the columns next to the vectors, for everyone who opens the store, which must be on a disk;
        otherwise they are in memory only. `replace`: also columns that were saved earlier; those in memory are always
        replaced.

        Raises InvalidValueError for values that do not fit, a row with two different labels, keys that the store does
        not have, and for a name that is taken; StoreBusyError, StorageError.
        """
        return self._labelled(labels, values, None, on=on, save=save, overwrite=replace)

    @checked
    def remove_labels(self, name: str) -> Store:
        """Remove a label column that `with_labels(..., save=True)` stored; returns the store without it."""
        self.label_files.remove(name)
        return self._with(self._added_labels)

    def _labelled(
        self,
        labels: Any,
        values: Any,
        rows: NDArray[np.int64] | None,
        *,
        on: str | Sequence[str],
        save: bool,
        overwrite: bool,
    ) -> Store:
        from embstore.store.labels.columns import label_columns

        added = label_columns(self.index, labels, values, on=on, rows=rows, save=save)
        for name in set(added) & set(self.index.fields):
            raise InvalidValueError(f"{self.path} has a field {name!r} of its documents: choose another name")
        if not save:
            return self._with({**self._added_labels, **added})
        for name in added:
            if f"occurrences/labels/{name}" in self.column_shapes():
                raise InvalidValueError(f"{self.path} has labels {name!r} of its corpus: choose another name")
        self.label_files.write(added, replace=overwrite)
        return self._with({name: each for name, each in self._added_labels.items() if name not in added})

    def _with(self, added: dict[str, Labels]) -> Store:
        """Return the same store with other labels in memory, and those that are stored read again."""
        store = type(self).__new__(type(self))
        store.__dict__.update(self.__dict__)
        store.__dict__.pop("index", None)
        store._added_labels = added
        return store

    @cached_property
    def label_files(self) -> LabelFiles:
        """The label columns that were added to the store."""
        return LabelFiles(self._reader)

    @checked
    def select(
        self,
        *,
        words: str | Iterable[str] | None = None,
        types: int | Iterable[int] | None = None,
        labels: Mapping[str, Any] | None = None,
        specials: bool | None = None,
        sentences: int | Iterable[int] | None = None,
        rows: ArrayLike | slice | None = None,
        where: str | pl.Expr | Iterable[str | pl.Expr] | None = None,
        layers: Layers = None,
    ) -> Selection:
        """Select the occurrences that satisfy all conditions, and layers; no vector is read.

        `words`: forms as spelled in the corpus. `types`, `sentences`: positions in `index.words` and `index.texts`.
        `labels`: label column or field of documents -> one label or several. `specials`: only special tokens (True) or
        only words (False); by default both, where the store has rows of special tokens. `rows`: integers, whose order
        is kept, a slice, or one boolean for each row. `where`: a condition in SQL, such as "upos = 'VERB' AND
        length < 12" (see docs/how-to/corpora.md), or Polars expressions over the columns of `table`.
        `layers`: one or several (-1 or "last" is the last one), all by default.

        Example::

            store.select(words=["bank", "court"], where="position < 5", layers=[0, -1]).table()

        Raises InvalidValueError for a word, type, label, sentence, row, column or layer that does not exist.
        """
        if all(condition is None for condition in (words, types, labels, specials, sentences, where)):
            return Selection(self, layers=layers, rows=rows)
        self.require_current(columns=True)
        conditions = parse_conditions(
            self.index,
            self._type_index,
            words=words,
            types=types,
            labels=labels,
            specials=specials,
            sentences=sentences,
            where=where,
        )
        return Selection(self, layers=layers, rows=rows, conditions=conditions)

    def describe(self) -> dict[str, Any]:
        """Return the contents of the store and what made it, as a JSON object of `schemas/info.schema.json`."""
        return {
            "path": str(self.path),
            **as_json(self.metadata),
            "n_committed_rows": self.n_committed_rows,
            "n_partitions": self.layout.n_partitions,
            "n_types": len(self.index.words),
            "n_sentences": len(self.index.texts),
            "n_documents": self.index.n_documents,
            "labels": {name: len(column.names) for name, column in self.index.own_labels.items()},
            "fields": {name: {"kind": own.kind, "values": len(own.names)} for name, own in self.index.fields.items()},
            "nbytes": self.n_rows * self.metadata.row_nbytes,
        }

    def vectors(
        self,
        rows: ArrayLike | None = None,
        *,
        layers: Layers = None,
        out: NDArray[Any] | None = None,
        missing: Literal["error", "nan"] = "error",
    ) -> NDArray[Any]:
        """Return the vectors of some rows, in the order of `rows`; [layer, n, hidden_size].

        Parameters
        ----------
        rows : list of int, optional
            In any order, repeats allowed; all rows by default.
        layers : int, str or list, optional
            The number of a layer, -1 or "last", or several; all layers by default.
        out : array, optional
            C-contiguous, receives the result; for bfloat16 it may be of uint16, and receives the bits.
        missing : "error" or "nan"
            What rows that are not written yet do: raise MissingRowsError, or read as NaN.

        Raises
        ------
        InvalidValueError
            For a layer or row that does not exist.
        """
        chosen = resolve_layers(layers, self.layers)
        return self._take(np.arange(self.n_rows) if rows is None else rows, chosen, out, missing)

    @property
    def source(self) -> Any:
        return self

    def _take(self, rows: ArrayLike, layers: tuple[int, ...], out: NDArray[Any] | None, missing: str) -> NDArray[Any]:
        check_choice("missing", missing, ("error", "nan"))
        positions = [self.layers.index(layer) for layer in layers]
        self.require_current(columns=False)
        return self._gatherer.take(row_numbers(rows), positions, out=out, nan=missing == "nan")

    def scan(
        self,
        layers: Layers,
        start: int = 0,
        stop: int | None = None,
        *,
        block_rows: int | None = None,
        missing: Missing = "error",
        copy: bool = True,
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield `(first row, vectors [n, hidden_size])` over rows `[start, stop)` of one layer, ascending.

        The fastest way to read a whole layer. A block stays valid as long as you hold it; the memory of others is used
        again. `block_rows`: the largest number of rows of a block, about 1 MiB of them by default. `missing`: rows not
        written yet raise MissingRowsError before the first block, are left out ("skip"), or read as NaN ("nan").
        `copy`: with False, blocks are read-only views of the mapped file where the vectors are stored in it as they are
        returned (float32 and float16 on a local disk), which saves the time of a copy; such a block also ends where the
        file does. A file must not be cut short while a view of it is used: that would end the process.

        Raises InvalidValueError for a layer or row that does not exist.
        """
        chosen = one_layer(layers, self.layers)
        start = check_whole("start", start, 0, self.n_rows, unit="of the store's rows")
        stop = self.n_rows if stop is None else check_whole("stop", stop, start, self.n_rows)
        block_rows = None if block_rows is None else check_whole("block_rows", block_rows, 1)
        check_choice("missing", missing, ("error", "skip", "nan"))
        self.require_current(columns=False)
        if missing == "error":
            self._require_committed(start, stop)
        return self._scanned(chosen, start, stop, block_rows, missing, copy)

    def _scanned(
        self, layer: int, start: int, stop: int, block_rows: int | None, missing: Missing, copy: bool
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the blocks of `scan`, whose arguments are checked."""
        number, nan = self.layers.index(layer), missing == "nan"
        return scan_blocks(self.snapshot, number, start, stop, block_rows=block_rows, nan=nan, copy=copy)

    def stored_blocks(self, layer: Layer, start: int, stop: int, *, block_rows: int) -> Iterator[StoredRows]:
        """Yield rows `[start, stop)` of one layer as they are stored: as `scan` without a copy, but not decoded."""
        number = self.layers.index(resolve_layer(layer, self.layers))
        self.require_current(columns=False)
        self._require_committed(start, stop)
        return stored_blocks(self.snapshot, number, start, stop, block_rows=block_rows)

    def sequential(self, array: str, layer: int, stop: int) -> RowReader:
        """Return what reads ascending rows of a stored array; `layer` is a position among the stored ones."""
        return SequentialReader(self.snapshot, array, layer, stop)

    def is_written(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each of some rows whether it is committed."""
        return self.committed[rows // self.layout.partition_rows]

    def _require_committed(self, start: int, stop: int) -> None:
        size = self.layout.partition_rows
        first = start // size
        missing = first + np.flatnonzero(~self.committed[first : -(-stop // size)])
        if len(missing):
            count = np.minimum((missing + 1) * size, stop) - np.maximum(missing * size, start)
            raise MissingRowsError(
                f"{int(count.sum()):,} of the rows {start} to {stop} of {self.path} are not written yet: {RESUME}"
            )


@dataclass(frozen=True)
class Block:
    """Some rows of one layer: `rows` int64 [n] of the store, `vectors` [n, hidden_size]."""

    layer: int
    rows: NDArray[np.int64]
    vectors: NDArray[Any]


class Selection:
    """Some occurrences and layers of a store, the input of every analysis. Made by `Store.select`; read lazily.

    `rows`: int64 [n], ascending, or in the order that `select` was given. `layers`: the numbers of the layers.
    """

    def __init__(
        self,
        store: Store,
        *,
        layers: Layers = None,
        rows: ArrayLike | slice | None = None,
        conditions: Sequence[Condition] = (),
    ) -> None:
        self.store = store
        self.layers = resolve_layers(layers, store.layers)
        self._given = rows
        self._conditions = tuple(conditions)

    def __reduce__(self) -> tuple[Any, ...]:
        rows = self.rows if self._conditions else self._given  # conditions hold columns of the store
        return partial(Selection, layers=self.layers, rows=rows), (self.store,)

    def __repr__(self) -> str:
        return f"<Selection of {self.store.path}: {len(self):,} rows, layers {_ranges(self.layers)}>"

    def _repr_html_(self) -> str:
        facts = {"Selected": f"{len(self):,} rows", **_facts(self.store, self.layers)}
        return html_table(facts.items(), f"Selection of {self.store.path}")

    def __len__(self) -> int:
        return len(self.rows) if self.span is None else len(self.span)

    @property
    def is_whole(self) -> bool:
        """Whether no condition is given: all rows are selected and need not be listed."""
        return self._given is None and not self._conditions

    @cached_property
    def span(self) -> range | None:
        """The selected rows as a range, which takes no memory; None where they may be others."""
        if self._conditions or not (self._given is None or isinstance(self._given, slice)):
            return None
        span = range(self.store.n_rows)
        if isinstance(self._given, slice):
            check_bounds(self._given, len(span))
            span = span[self._given]
        return span if span.step == 1 else None

    def rows_at(self, start: int, stop: int) -> NDArray[np.int64] | slice:
        """Return the rows at positions `[start, stop)`; of a range as a slice, so that columns are not copied."""
        if self.span is None:
            return self.rows[start:stop]
        some = self.span[start:stop]
        return slice(some.start, some.stop)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The selected rows, int64 [n]."""
        given = None if self._given is None else selected_rows(self._given, self.store.n_rows)
        chosen: NDArray[np.int64] | None = None
        for condition in self._conditions:
            rows = condition()
            chosen = rows if chosen is None else np.intersect1d(chosen, rows, assume_unique=True)
        if given is None:
            return np.arange(self.store.n_rows) if chosen is None else chosen
        return given if chosen is None else given[np.isin(given, chosen)]

    def written(self) -> Selection:
        """Return the selected rows that are written already, of an unfinished store."""
        written = self.rows[self.store.is_written(self.rows)]
        return Selection(self.store, layers=self.layers, rows=written)

    @checked
    def with_labels(
        self,
        labels: Any,
        values: Any = None,
        *,
        on: str | Sequence[str] = "occurrence",
        save: bool = False,
        replace: bool = False,
    ) -> Selection:
        """Return the same selection with more label columns, see `Store.with_labels`.

        `values`: one label for each row of the selection, in its order; a frame may be `table()` with a new column.
        Rows that are not selected have no label, and a frame that names one is refused.
        """
        rows = None if self.is_whole else self.rows
        store = self.store._labelled(labels, values, rows, on=on, save=save, overwrite=replace)
        return Selection(store, layers=self.layers, rows=self._given, conditions=self._conditions)

    def vectors(self, *, dtype: DTypeLike | None = None, missing: Literal["error", "nan"] = "error") -> NDArray[Any]:
        """Read the vectors into memory; [layer, n, hidden_size] of `dtype`, the store's `vector_dtype` by default.

        Raises MissingRowsError for rows not written yet, unless `missing="nan"`.
        """
        try:
            kind = self.store.vector_dtype if dtype is None else np.dtype(dtype)
        except TypeError:
            raise InvalidValueError(
                f"dtype {quoted(dtype)} is not known: choose one of numpy's, such as 'float32'"
            ) from None
        return self.store.vectors(self.rows, layers=self.layers, missing=missing).astype(kind, copy=False)

    @checked
    def table(self, *, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the occurrence table, one line for each row: what to look at, filter and join.

        Columns: `occurrence` (the row), `word`, `sentence` (a position in `index.texts`), `position` of the (first)
        word in the sentence, `subwords` (how many were pooled), `source` (the number of the sentence in the corpus),
        `document` (its number), the fields of documents, the label columns, and `text` (the sentence, its words joined
        by one space where the corpus has one). Words, labels and fields of text are Polars enumerations; other fields
        have their own type. `columns`: only these. Raises InvalidValueError for a column that does not exist.
        """
        from embstore.store.table import occurrence_table

        self.store.require_current(columns=True)
        return occurrence_table(self.store.index, rows=None if self.is_whole else self.rows, columns=columns)

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> Any:
        """Return the selection as Arrow record batches: the columns of `table`, and `layer_0`, ... as fixed-size lists.

        An iterator of Polars frames that is read lazily, once, in bounded memory; and an Arrow stream
        (`__arrow_c_stream__`), as `pyarrow.RecordBatchReader.from_stream` and DuckDB take it. float16 stays float16;
        bfloat16 and int8 become float32. `columns`: only these; others are not read.

        Raises InvalidValueError for a column that does not exist; MissingRowsError where rows are not written yet.
        """
        from embstore.store.convert.tables import arrow_stream

        return arrow_stream(self, columns=columns)

    def to_xarray(self) -> xarray.Dataset:
        """Return an xarray Dataset: `hidden_states` (layer, occurrence, feature) and the columns of `table` but `text`.

        Vectors are read when they are indexed, computed with or loaded; the columns are coordinates, in memory.
        """
        from embstore.store.convert.tables import xarray_dataset

        return xarray_dataset(self)

    def to_torch(self, **options: Any) -> TorchDataset:
        """Return a dataset for training in PyTorch, `TorchDataset(self, **options)`: label, batch_size, shuffle, ..."""
        from embstore.store.convert.torch_dataset import TorchDataset

        return TorchDataset(self, **options)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows of `table` as dicts; for a few of them this is faster, since Polars is not imported."""
        self.store.require_current(columns=True)
        return self.store.index.to_dicts(self.rows)

    def concordance(self) -> list[tuple[str, str, str]]:
        """Return for each row its sentence as it is read, in three parts: before the word, the word, after it."""
        self.store.require_current(columns=True)
        return self.store.index.concordance(self.rows)

    def scan(self, *, block_rows: int | None = None, copy: bool = True) -> Iterator[Block]:
        """Read layer by layer in blocks of at most `block_rows` rows (about 1 MiB by default), in the order of `rows`.

        Where the rows ascend and are dense the layer is scanned (`copy`: as in `Store.scan`), otherwise they are
        gathered. Raises MissingRowsError for rows not written yet.
        """
        size = None if block_rows is None else check_whole("block_rows", block_rows, 1)
        size = size or max(1, BLOCK_NBYTES // (self.store.hidden_size * self.store.vector_dtype.itemsize))
        for layer in self.layers:
            yield from self._scanned(layer, size, copy) if self._is_dense else self._gathered(layer, size)

    @cached_property
    def _is_dense(self) -> bool:
        if self.span is not None:
            return True
        rows = self.rows
        if len(rows) < 2 or not bool((np.diff(rows) > 0).all()):
            return False
        return len(rows) > DENSE * (int(rows[-1]) - int(rows[0]) + 1)

    def _gathered(self, layer: int, size: int) -> Iterator[Block]:
        for start in range(0, len(self.rows), size):
            rows = self.rows[start : start + size]
            yield Block(layer, rows, self.store.vectors(rows, layers=layer)[0])

    def _scanned(self, layer: int, size: int, copy: bool) -> Iterator[Block]:
        if self.span is not None:
            span = (self.span.start, self.span.stop) if self.span else (0, 0)
            for start, vectors in self.store.scan(layer, *span, block_rows=size, copy=copy):
                yield Block(layer, np.arange(start, start + len(vectors)), vectors)
            return
        missing = self.rows[~self.store.is_written(self.rows)]
        if len(missing):
            self.store.vectors(missing, layers=layer)  # raises MissingRowsError
        first, last = int(self.rows[0]), int(self.rows[-1]) + 1
        for start, vectors in self.store.scan(layer, first, last, block_rows=size, missing="skip", copy=copy):
            left, right = np.searchsorted(self.rows, (start, start + len(vectors)))
            rows = self.rows[left:right]
            if len(rows):
                yield Block(layer, rows, vectors if len(rows) == len(vectors) else vectors[rows - start])


def cache_folder(cache: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder for local copies of remote shards: the one given, else EMBSTORE_CACHE, else None."""
    folder = os.environ.get("EMBSTORE_CACHE") if cache is None else cache
    if not isinstance(folder, str | os.PathLike | None):
        raise InvalidValueError(f"cache must be the path of a folder, not {quoted(cache)}")
    return Path(folder) if folder else None


def _reopen(
    path: Path | ObjectPath, cache: Path | None, verify: Literal["lazy"] | None, site: str, labels: dict[str, Labels]
) -> Store:
    """Open a pickled store in another process, without a second warning."""
    store = Store(open_reader(path, cache=cache), verify=verify, site=site)
    store._added_labels = labels
    return store


def _facts(store: Store, layers: Sequence[int]) -> dict[str, str]:
    written = store.n_committed_rows
    progress = "" if written == store.n_rows else f", {written:,} written ({written / store.n_rows:.0%})"
    return {
        "Model": str(store.metadata.model["name"]),
        "Corpus": str(store.metadata.corpus["name"]),
        **({"Site": f"{store.layout.site} (of {', '.join(store.sites)})"} if len(store.sites) > 1 else {}),
        "Layers": _ranges(layers),
        "Rows": f"{store.n_rows:,}{progress}",
        "Hidden size": f"{store.hidden_size:,}",
        "Dtype": store.dtype,
    }


def _ranges(layers: Sequence[int]) -> str:
    """Write layers in short: 0-12, or 0, 3, 6."""
    if len(layers) > 2 and all(right - left == 1 for left, right in pairwise(layers)):
        return f"{layers[0]}-{layers[-1]}"
    return ", ".join(map(str, layers))
