"""Label columns from data: one value for each row, or a table whose keys say which rows its values belong to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.arguments import require_utf8
from embstore.errors import COLUMNS, InvalidValueError, check_column_name, quoted
from embstore.store.index import SPECIAL, Index, Labels
from embstore.store.storage.files import new_column, regular_file
from embstore.store.strings import Strings

Rows = NDArray[np.int64]

KEYS = (
    *(("occurrence",), ("sentence", "position"), ("source", "position")),
    *(("sentence",), ("source",), ("document",), ("word",)),
)
_READERS: dict[str, Callable[..., pl.LazyFrame]] = {
    ".csv": partial(pl.scan_csv, infer_schema_length=None),
    ".tsv": partial(pl.scan_csv, separator="\t", infer_schema_length=None, quote_char=None),
    ".jsonl": lambda path: pl.scan_ndjson(path, infer_schema_length=None),
    ".parquet": pl.scan_parquet,
}


def label_columns(
    index: Index, given: Any, values: Any = None, *, on: str | Sequence[str], rows: Rows | None, save: bool
) -> dict[str, Labels]:
    """Make the label columns that `Store.with_labels` describes; `rows`: of a selection, None for all."""
    keys = _keys(on)
    if isinstance(given, str) and not hasattr(values, "columns"):
        _check_name(index, given, save)
        return {given: label_column(given, values, rows, len(index.type))}
    frame, where = _frame(values if isinstance(given, str) else given)
    known = frame.collect_schema().names()
    columns = [given] if isinstance(given, str) else [name for name in known if name not in keys]
    for name in (*keys, *columns):
        if name not in known:
            kind = "key" if name in keys else "labels"
            raise InvalidValueError(f"{where} has no column {name!r} for the {kind}: it has {', '.join(known)}")
    if not columns:
        raise InvalidValueError(f"{where} has no column but the keys {', '.join(keys)}: add one with labels")
    for name in columns:
        _check_name(index, name, save)
    try:
        return _joined(index, frame, keys, columns, rows, where)
    except pl.exceptions.PolarsError as error:
        raise InvalidValueError(f"{where} cannot be read as a table: {str(error).splitlines()[0]}") from error


def label_column(name: str, values: Any, rows: Rows | None, n_rows: int) -> Labels:
    """Make a label column of a store with `n_rows` rows from one value for each of `rows` (None: of all rows).

    `values`: strings, integers or booleans; None or NaN for no label. Raises InvalidValueError for values of another
    number or kind, and for a row with two different labels.
    """
    try:
        if isinstance(values, set | frozenset | Mapping):  # in the order of no rows
            raise TypeError
        labels = pl.Series(name, values if isinstance(values, pl.Series) else _listed(values), strict=False)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        raise InvalidValueError(f"{quoted(values)} are not labels of {name!r}: give a list of strings") from None
    rows = np.arange(n_rows) if rows is None else rows
    if len(labels) != len(rows):
        raise InvalidValueError(f"{len(labels):,} values of {name!r} do not fit {len(rows):,} rows: give one for each")
    return _coded(name, rows, labels, n_rows)


def _coded(name: str, numbers: Rows, labels: pl.Series, n_rows: int) -> Labels:
    """Make a label column of `n_rows` rows from the labels of some of them, null for none."""
    names = labels.drop_nulls().unique().sort()
    if names.dtype.is_float() or names.dtype.is_nested():
        raise InvalidValueError(f"{name!r} has values of type {names.dtype}: a label is a string, integer or boolean")
    present = np.flatnonzero(labels.is_not_null().to_numpy())
    numbers, labels = numbers[present], labels.gather(present)
    places = pl.int_range(len(names), eager=True)
    coded = labels.replace_strict(names, places, return_dtype=pl.Int32).to_numpy()
    codes = new_column(n_rows, np.int32)
    codes.fill(-1)
    codes[numbers] = coded
    if not np.array_equal(codes[numbers], coded):
        raise InvalidValueError(f"a row is given two different labels of {name!r}")
    return Labels(codes, Strings.of(names.cast(pl.String).to_list()))


def _listed(values: Iterable[Any]) -> list[Any]:
    """Return values as a list, None for NaN, which pandas has for missing strings: Polars would make it a string."""
    return [None if isinstance(value, float) and value != value else value for value in values]


def _keys(on: str | Sequence[str]) -> tuple[str, ...]:
    keys = tuple(on.replace(" ", "").split(",")) if isinstance(on, str) else tuple(on)
    if keys not in KEYS:
        allowed = "; ".join(",".join(each) for each in KEYS)
        raise InvalidValueError(f"labels cannot be joined on {quoted(on)}: choose one of {allowed}")
    return keys


def _check_name(index: Index, name: str, save: bool) -> None:
    if not isinstance(name, str) or not name or name in (*COLUMNS, SPECIAL, *index.fields):
        raise InvalidValueError(f"{name!r} cannot be the name of a label column: choose another name")
    if save:
        check_column_name(name)


def _frame(given: Any) -> tuple[pl.LazyFrame, str]:
    """Return a table as a lazy frame, and how to name it in messages."""
    if isinstance(given, os.PathLike):
        path = Path(given)
        if path.suffix not in _READERS:
            raise InvalidValueError(f"{path} has no known suffix: labels are read from {', '.join(_READERS)}")
        require_utf8(path)
        try:
            regular_file(path).open("rb").close()
        except OSError as error:
            raise InvalidValueError(f"{path} cannot be read: {error.strerror or error}") from None
        try:
            frame = _READERS[path.suffix](path)
            kinds = frame.collect_schema()
            if path.suffix in (".csv", ".tsv"):  # there 007 is a label or a word, and not the number 7
                whole = {name for name, kind in kinds.items() if kind.is_integer()} - {*COLUMNS}
                texts = whole | ({"word"} & {*kinds})
                frame = _READERS[path.suffix](path, schema_overrides=dict.fromkeys(texts, pl.String))
            return frame, str(path)
        except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
            raise InvalidValueError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from error
    if isinstance(given, pl.DataFrame | pl.LazyFrame):
        return given.lazy(), "the frame"
    if hasattr(given, "columns"):
        return pl.LazyFrame({str(name): _listed(given[name]) for name in given.columns}, strict=False), "the frame"
    raise InvalidValueError(f"{quoted(given)} is not a frame with labels: give one, a file, or a name and values")


def _joined(
    index: Index, frame: pl.LazyFrame, keys: tuple[str, ...], columns: Sequence[str], rows: Rows | None, where: str
) -> dict[str, Labels]:
    """Find the rows that each line of a table names by its keys, and make its labels theirs."""
    table = frame.select(*keys, *columns).collect()
    lines = table.select(keys).with_row_index("_line")
    if keys == ("word",):
        types = pl.DataFrame({"word": list(index.words), "_type": np.arange(len(index.words))})
        lines = lines.cast({"word": pl.String}).join(types, on="word", how="left", maintain_order="left")
        lines = lines.select("_line", word="_type")
    for key in keys:
        if not lines.schema[key].is_integer() and lines.schema[key] != pl.Null:
            raise InvalidValueError(f"the key {key!r} must be whole numbers, not {lines.schema[key]}")
    numbers = np.arange(len(index.type)) if rows is None else np.unique(rows)
    sentence = index.sentence[numbers]
    known: dict[str, Callable[[], NDArray[Any]]] = {
        "occurrence": lambda: numbers,
        "word": lambda: index.type[numbers],
        "sentence": lambda: sentence,
        "position": lambda: index.position[numbers],
        "source": lambda: index.source[sentence],
        "document": lambda: index.document_of(sentence),
    }
    stored = pl.DataFrame({**{key: known[key]().astype(np.int64) for key in keys}, "_row": numbers})
    found = lines.cast(dict.fromkeys(keys, pl.Int64), strict=False).join(stored, on=keys, how="left")
    if wrong := found.filter(pl.col("_row").is_null())["_line"].sort().to_list()[:1]:
        named = ", ".join(f"{key} {value!r}" for key, value in table.select(keys).row(wrong[0], named=True).items())
        whose = "store" if rows is None else "selection"
        raise InvalidValueError(f"{where}, row {1 + wrong[0]} of its data: the {whose} has no {named}")
    at, named_rows = found["_line"].to_numpy(), found["_row"].to_numpy()
    return {name: _coded(name, named_rows, table[name].gather(at), len(index.type)) for name in columns}
