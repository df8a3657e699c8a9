"""Open stores and selections of them: metadata, words and labels, and vectors by row or in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from embstore.arguments import checked
from embstore.errors import InvalidValueError, StoreDamagedError, check_choice, check_whole, quoted
from embstore.html import html_table
from embstore.store.collection import Source
from embstore.store.conditions import Condition, check_bounds, parse_conditions, selected_rows
from embstore.store.index import LABELS, Index, Labels
from embstore.store.layout import Layers, is_one_layer, one_layer, resolve_layers
from embstore.store.metadata import Metadata, as_json
from embstore.store.reading.rows import BLOCK_NBYTES, DENSE
from embstore.store.sinks import find_sinks, rows_without_sinks
from embstore.store.source import Missing, layout_of
from embstore.store.storage.location import ObjectPath, member_names
from embstore.store.vectors import VALUE_DTYPE

if TYPE_CHECKING:
    import polars as pl

    from embstore.store.convert.torch_dataset import TorchDataset


class Store:
    """A store of hidden states, open for reading. Made by `embstore.open`; only committed rows can be read.

    Attributes
    ----------
    path
        Where it is.
    metadata : Metadata
        Its shape and everything that made it.
    layers : tuple of int
        The numbers of the stored layers.
    n_rows, hidden_size : int
        One row for each occurrence, and the features of its vector.
    dtype : str
        How vectors are stored: float32, float16, bfloat16 or int8; the last two are returned as float32.
    sites : tuple of str
        What is stored, see `site`; the residual stream is read unless another site is chosen.
    source : Source
        What reads the files, for the analyses of embstore.
    """

    def __init__(self, source: Source, labels: Mapping[str, Labels] | None = None) -> None:
        self.source = source
        self._added_labels = dict(labels or {})
        self.path: Path | ObjectPath = source.path
        self.metadata: Metadata = source.metadata
        self.sites: tuple[str, ...] = tuple(layout.site for layout in source.metadata.layouts)
        self.layers: tuple[int, ...] = source.layout.layers
        self.n_rows: int = source.layout.n_rows
        self.hidden_size: int = source.layout.hidden_size
        self.dtype: str = source.layout.dtype

    def __repr__(self) -> str:
        shape = f"{len(self.layers)} layers x {self.n_rows:,} rows x {self.hidden_size}"
        site = "" if len(self.sites) == 1 else f"{self.source.layout.site} of {len(self.sites)} sites, "
        return f"<Store {self.path}: {site}{shape} {self.dtype}>"

    def _repr_html_(self) -> str:
        return html_table(_facts(self, self.layers).items(), f"Store {self.path}")

    def __len__(self) -> int:
        return self.n_rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.source, self._added_labels)

    @checked
    def site(self, name: str) -> Store:
        """Return the same store with the vectors of another site, for every query and analysis.

        `name`: one of `sites`: "residual", the hidden states; of the block that computes layer l, "query", "key" and
        "value" as they enter attention, "head_output" (of all heads, one after the other, before the output
        projection), "attention_output" and "mlp_output", which are added to the residual stream, "residual_mid", the
        stream between the two, and "neurons", what the last linear layer of the MLP is given. Their layers begin with
        1, and vectors have the size of the site.

        Raises InvalidValueError for a site that is not stored.
        """
        if name == self.source.layout.site:
            return self
        site = layout_of(self.metadata, name, self.path).site
        return Store(self.source.again(verify=self.source.verify, site=site), self._added_labels)

    @property
    def n_committed_rows(self) -> int:
        """The rows that are written."""
        return self.source.n_committed_rows

    @property
    def finished(self) -> bool:
        """Whether every row of every site is written and the writer has completed the store."""
        return self.source.finished

    @property
    def digest(self) -> str:
        """SHA-256 of the metadata and commit records; changes whenever any vector changes."""
        return self.source.digest

    @cached_property
    def index(self) -> Index:
        """Words, sentences, positions and labels of the rows, as memory-mapped columns.

        Raises StoreDamagedError for an index of up to 16 MiB, or with `verify="lazy"` of any size, whose columns do
        not fit each other.
        """
        index = self.source.index
        return index.with_labels({**index.own_labels, **self._added_labels}) if self._added_labels else index

    @checked
    def table(self, *, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the occurrence table of all rows; see `Selection.table`."""
        return Selection(self).table(columns=columns)

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
        """Return the same store with more label columns, for selections, tables, datasets and every analysis.

        Parameters
        ----------
        labels : str, frame or path
            The name of one column. Or a table, a frame or the path of a .csv, .tsv, .jsonl or .parquet file, whose
            columns become label columns, all but its keys.
        values : array, list, Series or frame, optional
            For a name, one label for each row: strings, integers or booleans (None: no label); of a frame only the
            column of this name is used. Without values, and with `save`, the column is removed from the disk.
        on : str
            The keys of a table: "occurrence"; "sentence,position" or "source,position" (the number of the sentence in
            the corpus); "sentence", "source", "document" or "word", for all their rows. Rows that the table leaves out
            have no label.
        save : bool
            Store the columns next to the vectors, for everyone who opens the store, which must be on a disk; otherwise
            they are in memory only.
        replace : bool
            Also columns that were saved earlier; those in memory are always replaced.

        Raises
        ------
        InvalidValueError
            For values that do not fit, a row with two different labels, keys that the store does not have, and for a
            name that is taken.
        StoreBusyError, StorageError
            Where another process adds labels, or the disk refuses.
        """
        return self._labelled(labels, values, None, on=on, save=save, overwrite=replace)

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

        if save and values is None and isinstance(labels, str):
            self.source.label_files.remove(labels)
            return self._reread(self._added_labels)
        added = label_columns(self.index, labels, values, on=on, rows=rows, save=save)
        for name in set(added) & set(self.index.fields):
            raise InvalidValueError(f"{self.path} has a field {name!r} of its documents: choose another name")
        if not save:
            return Store(self.source, {**self._added_labels, **added})
        for name in added:
            if LABELS + name in self.source.column_shapes():
                raise InvalidValueError(f"{self.path} has labels {name!r} of its corpus: choose another name")
        self.source.label_files.write(added, replace=overwrite)
        return self._reread({name: column for name, column in self._added_labels.items() if name not in added})

    def _reread(self, labels: Mapping[str, Labels]) -> Store:
        """Return the same store with the labels that are stored now, and others in memory."""
        return Store(self.source.again(verify=self.source.verify, site=self.source.layout.site), labels)

    @checked
    def select(
        self,
        *,
        words: str | Iterable[str] | None = None,
        labels: Mapping[str, Any] | None = None,
        rows: ArrayLike | slice | None = None,
        where: str | None = None,
        layers: Layers = None,
        sinks: bool = True,
    ) -> Selection:
        """Select the occurrences that satisfy all conditions, and layers; vectors are read only to find `sinks`.

        Parameters
        ----------
        words : str or list of str, optional
            Forms as spelled in the corpus.
        labels : dict, optional
            Label column or field of documents -> one label or several.
        rows : list of int, slice or array of bool, optional
            Integers, whose order is kept, or one boolean for each row.
        where : str, optional
            A condition in SQL, such as "upos = 'VERB' AND length < 12" (see docs/how-to/corpora.md).
        layers : int, str or list, optional
            One or several (-1 or "last" is the last one), all by default.
        sinks : bool
            False: without the first positions of contexts that are attention sinks, which a causal model gives vectors
            several to hundreds of times longer than others. Which these are is measured in the first contexts.

        Raises
        ------
        InvalidValueError
            For a word, label, row, column or layer that does not exist.

        Example::

            store.select(words=["bank", "court"], where="position < 5", layers=[0, -1]).table()
        """
        if words is None and labels is None and where is None and sinks:
            return Selection(self, layers=layers, rows=rows)
        self.source.require_current(columns=True)
        conditions = parse_conditions(self.index, words=words, labels=labels, where=where)
        if not sinks:
            conditions.append(lambda some: rows_without_sinks(self, np.arange(self.n_rows) if some is None else some))
        return Selection(self, layers=layers, rows=rows, conditions=conditions)

    def describe(self) -> dict[str, Any]:
        """Return the contents of the store and what made it, as a JSON object of `schemas/info.schema.json`."""
        members = self.source.members()
        described = {
            "path": str(self.path),
            **as_json(self.metadata),
            "n_committed_rows": self.n_committed_rows,
            "n_partitions": sum(member.layout.n_partitions for member in members),
            "n_types": len(self.index.words),
            "n_sentences": len(self.index.text),
            "n_documents": self.index.n_documents,
            "labels": {name: len(column.names) for name, column in self.index.own_labels.items()},
            "fields": {name: {"kind": own.kind, "values": len(own.names)} for name, own in self.index.fields.items()},
            "nbytes": self.n_rows * self.metadata.row_nbytes,
        }
        if not self.metadata.virtual and not self.source.is_remote:
            with suppress(StoreDamagedError):  # which verify reports
                if sinks := find_sinks(self):
                    positions = list(sinks.positions)
                    described["sinks"] = {"positions": positions, "ratio": sinks.ratio, "layer": sinks.layer}
        if members != [self.source]:
            names = member_names([member.path for member in members])
            described["members"] = [
                {"name": name, "path": str(member.path), "n_rows": member.metadata.n_rows}
                for name, member in zip(names, members, strict=True)
            ]
        return described

    def vectors(
        self,
        rows: ArrayLike | None = None,
        *,
        layers: Layers = None,
        dtype: DTypeLike | None = None,
        out: NDArray[Any] | None = None,
        missing: Literal["error", "nan"] = "error",
        **conditions: Any,
    ) -> NDArray[Any]:
        """Return the vectors of some rows, in their order; [layer, n, hidden_size], or [n, hidden_size] of one layer.

        Parameters
        ----------
        rows : list of int, optional
            In any order, repeats allowed; all rows by default.
        layers : int, str or list, optional
            The number of a layer, -1 or "last", or a list of them; all layers by default.
        dtype : dtype, optional
            Such as "float32"; that of the store by default.
        out : array, optional
            C-contiguous, of the shape of the result, which it receives; of bfloat16 also uint16, of float16 float32.
        missing : "error" or "nan"
            What rows that are not written yet do: raise MissingRowsError, or read as NaN.
        **conditions
            Those of `select`, as in `store.vectors(words="bank", layers=6)`.

        Raises
        ------
        InvalidValueError
            For a layer or row that does not exist.
        """
        if conditions or dtype is not None:
            if out is not None:
                raise InvalidValueError("out takes rows and layers alone: leave out dtype and conditions")
            return self.select(rows=rows, layers=layers, **conditions).vectors(dtype=dtype, missing=missing)
        if missing != "error":  # by hand, as few rows are read in microseconds
            check_choice("missing", missing, ("error", "nan"))
        chosen, one = resolve_layers(layers, self.layers), is_one_layer(layers)
        out = out[None] if one and isinstance(out, np.ndarray) else out
        found = self.source.take(np.arange(self.n_rows) if rows is None else rows, chosen, out, nan=missing == "nan")
        return found[0] if one else found

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
        again.

        Parameters
        ----------
        layers : int or str
            One layer.
        start, stop : int
            All rows by default.
        block_rows : int, optional
            The largest number of rows of a block, about 1 MiB of them by default.
        missing : "error", "skip" or "nan"
            Rows not written yet raise MissingRowsError before the first block, are left out, or read as NaN.
        copy : bool
            With False, blocks are read-only views of the mapped file where the vectors are stored in it as they are
            returned (float32 and float16 on a local disk), which saves the time of a copy; such a block also ends where
            the file does. A file must not be cut short while a view of it is used: that would end the process.

        Raises
        ------
        InvalidValueError
            For a layer or row that does not exist.
        """
        layer = one_layer(layers, self.layers)
        start = check_whole("start", start, 0, self.n_rows, unit="of the store's rows")
        stop = self.n_rows if stop is None else check_whole("stop", stop, start, self.n_rows)
        block_rows = None if block_rows is None else check_whole("block_rows", block_rows, 1)
        check_choice("missing", missing, ("error", "skip", "nan"))
        if missing == "error":
            self.source.require_committed(start, stop)
        return self.source.scan(layer, start, stop, block_rows=block_rows, missing=missing, copy=copy)


@dataclass(frozen=True)
class Block:
    """Some rows of one layer: `rows` int64 [n] of the store, `vectors` [n, hidden_size]."""

    layer: int
    rows: NDArray[np.int64]
    vectors: NDArray[Any]


class Selection:
    """Some occurrences and layers of a store, the input of every analysis. Made by `Store.select`; read lazily.

    `rows`: int64 [n], ascending, or in the order that `select` was given. `layers`: the numbers of the layers.
    `has_one_layer`: whether its arrays have no axis of layers, as of `layers=6`.
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
        self.has_one_layer = is_one_layer(layers)  # and no axis of layers; not so for [6]
        self._layers = self.layers[0] if self.has_one_layer else self.layers
        self._given = rows
        self._conditions = tuple(conditions)

    def __reduce__(self) -> tuple[Any, ...]:
        rows = self.rows if self._conditions else self._given  # conditions hold columns of the store
        return partial(Selection, layers=self._layers, rows=rows), (self.store,)

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
        rows = None if self._given is None else selected_rows(self._given, self.store.n_rows)
        for condition in self._conditions:
            rows = condition(rows)
        return np.arange(self.store.n_rows) if rows is None else rows

    def written(self) -> Selection:
        """Return the selected rows that are written already, of an unfinished store."""
        written = self.rows[self.store.source.is_written(self.rows)]
        return Selection(self.store, layers=self._layers, rows=written)

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
        return Selection(store, layers=self._layers, rows=self._given, conditions=self._conditions)

    def vectors(self, *, dtype: DTypeLike | None = None, missing: Literal["error", "nan"] = "error") -> NDArray[Any]:
        """Read the vectors into memory; [layer, n, hidden_size] of `dtype`, by default that of the store.

        Of one layer, such as `select(layers=6)`, it is [n, hidden_size]; int8 and bfloat16 are read as float32.

        Raises MissingRowsError for rows not written yet, unless `missing="nan"`.
        """
        try:
            kind = VALUE_DTYPE[self.store.dtype] if dtype is None else np.dtype(dtype)
        except (TypeError, ValueError):
            kind = np.dtype(object)
        if "float" not in kind.name:
            raise InvalidValueError(f"dtype {quoted(dtype)} is not allowed: give one of floats, such as 'float32'")
        return self.store.vectors(self.rows, layers=self._layers, missing=missing).astype(kind, copy=False)

    @checked
    def table(self, *, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the occurrence table, one line for each row: what to look at, filter and join.

        Columns: `occurrence` (the row), `word`, `sentence` (a position in `index.text`), `position` of the (first)
        word in the sentence, `subwords` (how many were pooled), `source` (the number of the sentence in the corpus),
        `document` (its number), `start` and `stop` (the characters of the word in the text), the fields of documents,
        the label columns, and `text` (the sentence, as it was written). Words, labels and fields of text are Polars
        enumerations; other fields have their own type. `columns`: only these. Raises InvalidValueError for a column
        that does not exist.

        By name there are also `token` (the number of the subword in the vocabulary, null for a word of several),
        `context_position` (the subwords before it in the context that the model was given), `document_position` (the
        words before it in the document), `context_from_end`, `document_from_end`, `from_end`, `length` (the words of
        the sentence), and for a label column x the places `x_position` and `x_from_end` in its run of equal labels.
        """
        from embstore.store.table import occurrence_table

        self.store.source.require_current(columns=True)
        return occurrence_table(self.store.index, rows=None if self.is_whole else self.rows, columns=columns)

    @checked
    def to_arrow(self, *, columns: Sequence[str] | None = None) -> Any:
        """Return the selection as Arrow record batches: the columns of `table`, and `layer_0`, ... as fixed-size lists.

        An iterator of Polars frames that is read lazily, once, in bounded memory; and an Arrow stream
        (`__arrow_c_stream__`), as `pyarrow.RecordBatchReader.from_stream` and DuckDB take it. float16 stays float16;
        bfloat16 and int8 become float32. `columns`: only these; others are not read.

        Raises InvalidValueError for a column that does not exist; MissingRowsError where rows are not written yet.
        """
        from embstore.store.convert.tables import arrow_stream

        return arrow_stream(self, columns=columns)

    def to_torch(self, **options: Any) -> TorchDataset:
        """Return a dataset for training in PyTorch, `TorchDataset(self, **options)`: label, batch_size, shuffle, ..."""
        from embstore.store.convert.torch_dataset import TorchDataset

        return TorchDataset(self, **options)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows of `table` as dicts; for a few of them this is faster, since Polars is not imported."""
        self.store.source.require_current(columns=True)
        return self.store.index.to_dicts(self.rows)

    def concordance(self) -> list[tuple[str, str, str]]:
        """Return for each row its sentence as it was written, in three parts: before the word, the word, after it."""
        self.store.source.require_current(columns=True)
        return self.store.index.concordance(self.rows)

    def scan(self, *, block_rows: int | None = None, copy: bool = True) -> Iterator[Block]:
        """Read layer by layer in blocks of at most `block_rows` rows (about 1 MiB by default), in the order of `rows`.

        Where the rows ascend and are dense the layer is scanned (`copy`: as in `Store.scan`), otherwise they are
        gathered. Raises MissingRowsError for rows not written yet.
        """
        size = None if block_rows is None else check_whole("block_rows", block_rows, 1)
        size = size or max(1, BLOCK_NBYTES // (self.store.hidden_size * VALUE_DTYPE[self.store.dtype].itemsize))
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
            yield Block(layer, rows, self.store.vectors(rows, layers=layer))

    def _scanned(self, layer: int, size: int, copy: bool) -> Iterator[Block]:
        if self.span is not None:
            span = (self.span.start, self.span.stop) if self.span else (0, 0)
            for start, vectors in self.store.scan(layer, *span, block_rows=size, copy=copy):
                yield Block(layer, np.arange(start, start + len(vectors)), vectors)
            return
        missing = self.rows[~self.store.source.is_written(self.rows)]
        if len(missing):
            self.store.vectors(missing, layers=layer)  # raises MissingRowsError
        first, last = int(self.rows[0]), int(self.rows[-1]) + 1
        for start, vectors in self.store.scan(layer, first, last, block_rows=size, missing="skip", copy=copy):
            left, right = np.searchsorted(self.rows, (start, start + len(vectors)))
            rows = self.rows[left:right]
            if len(rows):
                yield Block(layer, rows, vectors if len(rows) == len(vectors) else vectors[rows - start])


def _facts(store: Store, layers: Sequence[int]) -> dict[str, str]:
    written = store.n_committed_rows
    progress = "" if written == store.n_rows else f", {written:,} written ({written / store.n_rows:.0%})"
    return {
        "Model": str(store.metadata.model["name"]),
        "Corpus": str(store.metadata.corpus["name"]),
        **({"Site": f"{store.source.layout.site} (of {', '.join(store.sites)})"} if len(store.sites) > 1 else {}),
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
