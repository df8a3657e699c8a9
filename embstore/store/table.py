"""The occurrence table: a Polars frame with one line for each row of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import COLUMNS, InvalidValueError, StoreDamagedError, quoted
from embstore.store.index import Field, Index
from embstore.store.places import TOKEN, place, place_names
from embstore.store.storage.files import REPAIR_HINT
from embstore.store.strings import Strings
from embstore.store.text import NO_ID

_TYPES: dict[str, type[pl.DataType]] = {"bool": pl.Boolean, "int": pl.Int64, "float": pl.Float64}


def occurrence_table(index: Index, *, rows: NDArray[np.int64] | None, columns: Sequence[str] | None) -> pl.DataFrame:
    """Return the chosen columns (None: all) of some rows, in their order (None: of all rows).

    The columns are those that `Selection.table` describes. Raises InvalidValueError for a column that does not exist.
    """
    known = [*COLUMNS[:-1], *index.fields, *index.own_labels, "text"]
    if isinstance(columns, str) or not isinstance(columns, Iterable | None):
        raise InvalidValueError(f"columns must be a list of names, not {quoted(columns)}")
    names = known if columns is None else list(columns)
    for name in names:
        if name not in known and name not in place_names(index):
            known += place_names(index)
            raise InvalidValueError(f"there is no column {name!r}: the occurrence table has {', '.join(known)}")
        if names.count(name) > 1:
            raise InvalidValueError(f"the column {name!r} is given twice: name each once")
    spans = {}
    if "start" in names or "stop" in names:  # of words, found together
        found = index.spans(np.arange(len(index.type)) if rows is None else rows)
        spans = {name: pl.Series(name, column) for name, column in zip(("start", "stop"), found, strict=True)}
    return pl.DataFrame([spans[name] if name in spans else column_of(index, name, rows) for name in names])


def column_of(index: Index, name: str, rows: NDArray[np.int64] | None) -> pl.Series:
    """Return a column of the occurrence table for some rows (None: all)."""

    def of_rows(column: NDArray[Any]) -> NDArray[Any]:
        return column if rows is None else column[rows]

    if name == "occurrence":
        return pl.Series(name, np.arange(len(index.type)) if rows is None else rows)
    if name == "word":
        return _enumeration(name, of_rows(index.type), index.words)
    if name == "source":
        return pl.Series(name, index.source[of_rows(index.sentence)])
    if name == "text":
        sentences, inverse = np.unique(of_rows(index.sentence), return_inverse=True)
        texts = pl.Series(name, index.text.take(sentences), dtype=pl.String)
        found: pl.Series = texts[inverse]  # `gather` would begin a query
        return found
    if name in ("start", "stop"):
        start, stop = index.spans(np.arange(len(index.type)) if rows is None else rows)
        return pl.Series(name, start if name == "start" else stop)
    if name == "document":
        return pl.Series(name, index.document_of(np.asarray(of_rows(index.sentence), np.int64)))
    if name in index.fields:
        return _field(name, index.fields[name], index.document_of(np.asarray(of_rows(index.sentence), np.int64)))
    if name in COLUMNS:
        return pl.Series(name, of_rows(getattr(index, name)))
    if name in index.labels:
        return _enumeration(name, of_rows(index.labels[name].codes), index.labels[name].names)
    places = pl.Series(name, place(index, name, np.arange(len(index.type)) if rows is None else rows))
    return places.set(places == NO_ID, None) if name == TOKEN else places


def is_coded(index: Index, name: str) -> bool:
    """Return whether a column of text is stored as numbers of its distinct values."""
    return name == "word" or name in index.own_labels or (name in index.fields and index.fields[name].kind == "str")


def codes_of(index: Index, name: str, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
    """Return the number of each row's value in a column that is coded, or of fields; -1 for none."""
    if name in index.fields:
        return index.fields[name].codes[index.document_of(np.asarray(index.sentence[rows]))]
    return np.asarray(index.type[rows] if name == "word" else index.own_labels[name].codes[rows])


def _field(name: str, field: Field, documents: NDArray[np.int64]) -> pl.Series:
    """Return the typed values of a field of some documents."""
    codes = field.codes[documents]
    if field.kind == "str":
        return _enumeration(name, codes, field.names)
    values = pl.Series(name, [*field.values, None], dtype=value_type(field))
    return values.gather(np.where(codes < 0, len(field.names), codes))


def value_type(field: Field) -> type[pl.DataType]:
    """Return the type of the values of a field."""
    return _TYPES.get(field.kind, pl.String)


def _enumeration(name: str, codes: NDArray[Any], names: Strings) -> pl.Series:
    """Return a column of names from their numbers, null for -1."""
    try:
        categories = names.enumeration
    except ValueError:
        raise StoreDamagedError(f"the names of the column {name!r} are not distinct: {REPAIR_HINT}") from None
    return categories[np.where(codes < 0, len(names), codes)].alias(name)
