"""Copying a store, whole or in part, from one backend to another and from one dtype to another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, MissingRowsError
from embstore.store.backend import open_reader
from embstore.store.convert.conversion import require_dtype
from embstore.store.convert.copying import Copy
from embstore.store.convert.filling import Progress, fill_store, require_free_path
from embstore.store.layers import chosen_layers
from embstore.store.layout import Layout
from embstore.store.metadata import Dropped, Metadata
from embstore.store.storage.location import ObjectPath, place_of
from embstore.store.store import Store, cache_folder
from embstore.store.subset import subset_of

LEFT_OUT = "left out of an export"

Rows = NDArray[np.int64]


def export(
    store: str | os.PathLike[str] | ObjectPath | Store,
    out: str | os.PathLike[str] | ObjectPath,
    *,
    layers: str | int | Iterable[int] | None = None,
    words: str | Iterable[str] | None = None,
    rows: ArrayLike | None = None,
    dtype: str | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> Store:
    """Copy a finished store, or some of its layers, words or rows, to the new path `out` (.zarr, .h5, s3://...).

    `layers`: "0,6-12", "all", "last" or numbers. `words`: forms as spelled in the store. `rows`: integers,
    ascending, each once; where both are given, only rows of these words. `dtype`: as stored, unless given; what is
    not converted is copied bit for bit, int8 codes too. `check`: hold everything that is read against its checksums
    first. `progress` is called with (rows written, rows in all). The same call goes on where an interrupted one
    ended.

    Raises MissingRowsError for a store that is not finished, InvalidValueError for a layer, word or row that it does
    not have and for a path that is taken, NonFiniteError for values beyond the dtype, StoreDamagedError, StorageError.
    """
    path = place_of(out)
    near = (store.path, store.cache) if isinstance(store, Store) else (place_of(store), cache_folder(None))
    reader = open_reader(near[0], cache=near[1])
    source = Store(reader)
    _require_finished(source)
    places = [source.layers.index(layer) for layer in chosen_layers(layers, source.layers)]
    wanted = source.dtype if dtype is None else dtype
    require_dtype(wanted)
    chosen = _chosen_rows(source, words, rows)
    require_free_path(path)
    metadata = _metadata(source.metadata, places, chosen, wanted)
    copy = Copy(reader, source, metadata, places, chosen, check=check)
    return fill_store(
        path,
        metadata=metadata,
        index=source.index if chosen is None else subset_of(source.index, chosen),
        center=copy.center,
        arrays_of=copy.arrays,
        progress=progress,
    )


def _require_finished(store: Store) -> None:
    missing = store.n_rows - store.n_committed_rows
    if missing:
        raise MissingRowsError(
            f"{store.path} cannot be exported: {missing:,} of its {store.n_rows:,} rows are not written yet; finish it "
            "first with the command that began it"
        )


def _chosen_rows(store: Store, words: str | Iterable[str] | None, rows: ArrayLike | None) -> Rows | None:
    """The rows to copy, ascending; None for all of them."""
    chosen = None if rows is None else _given_rows(rows, store.n_rows)
    if words is not None:
        of_words = _rows_of_words(store, {words} if isinstance(words, str) else set(words))
        chosen = of_words if chosen is None else np.intersect1d(chosen, of_words, assume_unique=True)
    if chosen is None or len(chosen) == store.n_rows:
        return None
    if not len(chosen):
        raise InvalidValueError(f"nothing is left to export of {store.path}: no row was chosen")
    return chosen


def _given_rows(rows: ArrayLike, count: int) -> Rows:
    array = np.asarray(rows)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidValueError(f"rows must be a list of integers, not {array.dtype} of {array.ndim} dimensions")
    wrong = array[(array < 0) | (array >= count)]
    if len(wrong):
        raise InvalidValueError(f"there is no row {wrong[0]}: the store has rows 0 to {count - 1}")
    array = array.astype(np.int64)
    falls = np.flatnonzero(np.diff(array) <= 0)
    if len(falls):
        before, after = array[falls[0] : falls[0] + 2]
        raise InvalidValueError(f"rows must ascend, each once, and {after} follows {before}: sort them")
    return array


def _rows_of_words(store: Store, words: set[str]) -> Rows:
    types = {word: store.type_of(word) for word in sorted(words)}
    unknown = [word for word, number in types.items() if number is None]
    if unknown:
        named = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else "")
        raise InvalidValueError(f"{store.path} has no word {named}: words are spelled as in the corpus")
    found = [store.occurrences_of(number) for number in types.values() if number is not None]
    return np.sort(np.concatenate([np.empty(0, np.int64), *found]))


def _metadata(source: Metadata, places: list[int], rows: Rows | None, dtype: str) -> Metadata:
    """The metadata of the copy: that of the source where nothing is left out or converted."""
    if rows is None and len(places) == len(source.layers) and dtype == source.dtype:
        return source
    layers = tuple(source.layers[place] for place in places)
    count = source.n_rows if rows is None else len(rows)
    layout = Layout.of(n_rows=count, layers=layers, hidden_size=source.hidden_size, dtype=dtype)
    return replace(
        source,
        n_rows=count,
        layers=layers,
        dtype=dtype,
        partition_rows=layout.partition_rows,
        extraction={**source.extraction, "export": _recorded(source, rows)},
        dropped=_dropped(source.dropped, source.n_rows - count),
    )


def _recorded(source: Metadata, rows: Rows | None) -> dict[str, Any]:
    """What an export was made of: the source's shape, which rows (None: all), and the export before this one."""
    of: Mapping[str, Any] = {"n_rows": source.n_rows, "layers": list(source.layers), "dtype": source.dtype}
    chosen = None if rows is None else hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    return {"of": of, "rows_sha256": chosen, "earlier": source.extraction.get("export")}


def _dropped(before: tuple[Dropped, ...], rows: int) -> tuple[Dropped, ...]:
    if not rows:
        return before
    earlier = sum(item.count for item in before if item.reason == LEFT_OUT)
    others = tuple(item for item in before if item.reason != LEFT_OUT)
    return (*others, Dropped(LEFT_OUT, earlier + rows, ()))
