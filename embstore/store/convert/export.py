"""Copy a store, whole or in part, to another backend, place or dtype."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.config import settings
from embstore.errors import InvalidValueError, MissingRowsError
from embstore.store.convert.filling import PartitionBuffer, fill_store, require_free_path, require_storable, sample_rows
from embstore.store.layout import Layout, partition_rows
from embstore.store.metadata import Dropped, Metadata, check_metadata
from embstore.store.opening import open_store
from embstore.store.source import FileSource
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.store import Selection, Store

LEFT_OUT = "left out of an export"
BATCH_NBYTES = 2**25  # of rows, which are requested from a bucket at the same time

Rows = NDArray[np.int64]


@checked
def export(
    data: str | os.PathLike[str] | ObjectPath | Store | Selection,
    out: str | os.PathLike[str] | ObjectPath,
    *,
    dtype: Literal["float32", "float16", "bfloat16", "int8"] | None = None,
    check: bool = True,
) -> Store:
    """Copy a finished store, or a selection of its rows and layers, to the new path `out` (.zarr, .h5, s3://...).

    All sites are copied, whichever one is open.

    `data`: a path, an open store, or a selection with ascending rows. `dtype`: that of the source by default; what is
    not converted is copied bit for bit, int8 codes included. `check`: compare everything that is read with its
    checksums first. Of a model or corpus that was given by its path, the copy names the file without its folders. The
    same call resumes an interrupted copy.

    Example::

        es.export(store.select(words="bank"), "bank.h5", dtype="float32")

    Raises MissingRowsError for a store that is not finished, InvalidValueError for a path that is taken and for rows
    that do not ascend, NonFiniteError for values beyond the dtype, StoreDamagedError, StorageError.
    """
    path = parse_location(out)
    given = data.store if isinstance(data, Selection) else data
    opened = given if isinstance(given, Store) else open_store(given)
    verified = opened.source.again(verify="lazy" if check else None, site=opened.source.layout.site)
    source = Store(verified, opened._added_labels)
    missing = max(source.n_rows - source.site(site).n_committed_rows for site in source.sites)
    if missing:
        raise MissingRowsError(
            f"{source.path} cannot be exported: {missing:,} of its {source.n_rows:,} rows are not written yet; finish "
            "it first with the command that began it"
        )
    layers = tuple(sorted(set(data.layers))) if isinstance(data, Selection) else source.metadata.layers
    kind: str = source.dtype if dtype is None else dtype
    rows = _copied_rows(data) if isinstance(data, Selection) else None
    require_free_path(path)
    metadata = _metadata(_without_folders(source.metadata), layers, rows, kind)
    check_metadata(metadata)
    copy = _Copy(source, metadata, rows)
    return fill_store(
        path,
        metadata=metadata,
        index=source.index if rows is None else source.index.subset(rows),
        center=copy.center,
        fill=copy.fill,
        progress=settings().progress,
        label="export",
    )


def _copied_rows(selection: Selection) -> Rows | None:
    """Return the rows of a selection, None for all of them."""
    rows = selection.rows
    if not len(rows):
        raise InvalidValueError(f"nothing is left to export of {selection.store.path}: no row is selected")
    falls = np.flatnonzero(np.diff(rows) <= 0)
    if len(falls):
        before, after = rows[falls[0] : falls[0] + 2]
        raise InvalidValueError(f"rows must be distinct and ascending, but {after} follows {before}: sort them")
    return None if len(rows) == selection.store.n_rows else rows


def _metadata(source: Metadata, layers: tuple[int, ...], rows: Rows | None, dtype: str) -> Metadata:
    """Return the metadata of the copy: that of the source where nothing is left out or converted."""
    if rows is None and layers == source.layers and dtype == source.dtype:
        return source
    n_rows = source.n_rows if rows is None else len(rows)
    of: dict[str, Any] = {"n_rows": source.n_rows, "layers": list(source.layers), "dtype": source.dtype}
    sha256 = None if rows is None else hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    record = {"of": of, "rows_sha256": sha256, "earlier": source.extraction.get("export")}
    dropped = source.dropped
    if n_rows < source.n_rows:
        earlier = sum(item.count for item in dropped if item.reason == LEFT_OUT)
        others = tuple(item for item in dropped if item.reason != LEFT_OUT)
        dropped = (*others, Dropped(LEFT_OUT, earlier + source.n_rows - n_rows, ()))
    made = replace(source, n_rows=n_rows, layers=layers, dtype=dtype)
    return replace(
        made,
        partition_rows=partition_rows(n_rows, made.n_features, dtype),
        extraction={**source.extraction, "export": record},
        dropped=dropped,
    )


def _without_folders(source: Metadata) -> Metadata:
    """Return the metadata of a copy, which has all vectors, without the folders of a model or corpus."""

    def bare(part: Mapping[str, Any]) -> dict[str, Any]:
        names = str(part["name"]).split(":")  # of a model it may be KIND:FILE
        return {**part, "name": ":".join(name if name[:1] not in "/~" else PurePath(name).name for name in names)}

    return replace(source, virtual=False, model=bare(source.model), corpus=bare(source.corpus))


class _Copy:
    """Makes the partitions of a copy from its source, a few MiB at a time; `rows`: those copied, None for all."""

    def __init__(self, source: Store, metadata: Metadata, rows: Rows | None) -> None:
        self._rows = rows
        self._of_site(source, metadata.layout)
        self.center = self._center()

    def fill(self, buffer: PartitionBuffer, start: int, stop: int) -> None:
        """Put rows `[start, stop)` of the copy into the buffer."""
        if buffer.layout != self._layout:
            self._of_site(self._source, buffer.layout)
        own = self._source.source
        is_same = self._layout.dtype == self._source.dtype
        for place, layer in enumerate(self._layout.layers):
            if is_same and self._source.dtype == "int8" and isinstance(own, FileSource):
                self._copy_codes(own, buffer, place, start, stop)
                continue
            for first, rows in self._batches(start, stop):
                if is_same and self._source.dtype != "int8":
                    out = buffer.stored(self._layout.vectors, place, first - start, first - start + len(rows))
                    self._source.vectors(rows, layers=layer, out=out)
                else:  # each store of a collection of int8 has a center of its own
                    vectors = self._source.vectors(rows, layers=layer)
                    buffer.put(place, first - start, vectors[None], where=self._namer(rows))

    def _of_site(self, source: Store, layout: Layout) -> None:
        """Copy this site of the source from now on."""
        self._source, self._layout = source.site(layout.site), layout

    def _copy_codes(self, source: FileSource, buffer: PartitionBuffer, place: int, start: int, stop: int) -> None:
        end = stop if self._rows is None else int(self._rows[stop - 1]) + 1
        for array in (self._layout.vectors, "scale"):
            with source.sequential(array, self._layout.layers[place], end) as stored:
                for first, rows in self._batches(start, stop):
                    stored.read_rows(rows, buffer.stored(array, place, first - start, first - start + len(rows)))

    def _namer(self, rows: Rows) -> Callable[[int], str]:
        return lambda number: f"row {rows[number]} of {self._source.path}"

    def _batches(self, start: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Yield rows `[start, stop)` of the copy in batches: (first row, the same rows of the source)."""
        size = max(256, BATCH_NBYTES // (self._layout.hidden_size * 4))
        for first in range(start, stop, size):
            last = min(first + size, stop)
            yield first, np.arange(first, last) if self._rows is None else self._rows[first:last]

    def _center(self) -> NDArray[np.float32] | None:
        """Return the center of an int8 copy: the source's own, else the mean of a sample of the rows."""
        if self._layout.dtype != "int8":
            return None
        if self._source.source.center is not None:
            return self._source.source.center[[self._source.layers.index(layer) for layer in self._layout.layers]]
        sample = sample_rows(self._layout.n_rows)
        rows = sample if self._rows is None else self._rows[sample]
        means = []
        for layer in self._layout.layers:
            vectors = self._source.vectors(rows, layers=layer)
            require_storable(vectors[None], dtype="int8", layers=[layer], where=self._namer(rows))
            means.append(vectors.mean(0, dtype=np.float64))
        return np.array(means, np.float32)
