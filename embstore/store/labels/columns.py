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

from embstore.errors import COLUMNS, InvalidValueError, check_column_name, quoted
from embstore.store.index import SPECIAL, Index, Labels, Strings
from embstore.store.storage.files import new_column, regular_file

Rows = NDArray[np.int64]

KEYS = (
    *(("occurrence",), ("sentence", "position"), ("source", "position")),
    *(("sentence",), ("source",), ("document",), ("word",)),
)
BATCH_ROWS = 1 << 18
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
    column = _Column(name, labels.drop_nulls().unique().sort(), n_rows)
    column.put(rows, labels)
    return Labels(column.codes, column.names)


class _Column:
    """The codes of a label column while it is made, one for each row or group of rows; -1 for no label yet."""

    def __init__(self, name: str, names: pl.Series, n_rows: int) -> None:
        if names.dtype.is_float() or names.dtype.is_nested():
            raise InvalidValueError(
                f"{name!r} has values of type {names.dtype}: a label is a string, integer or boolean"
            )
        self.name = name
        self.names = Strings.of(names.cast(pl.String).to_list())
        self.codes = _no_codes(n_rows)
        self._known = names

    def put(self, numbers: Rows, labels: pl.Series) -> None:
        """Set the labels of some rows, null for none; raises InvalidValueError for a second, different label."""
        present = np.flatnonzero(labels.is_not_null().to_numpy())
        numbers, labels = numbers[present], labels.gather(present)
        codes = labels.replace_strict(
            self._known, pl.int_range(len(self._known), eager=True), return_dtype=pl.Int32
        ).to_numpy()
        before = self.codes[numbers]
        self.codes[numbers] = codes
        if ((before >= 0) & (before != codes)).any() or not np.array_equal(self.codes[numbers], codes):
            raise InvalidValueError(f"a row is given two different labels of {self.name!r}")


def _listed(values: Iterable[Any]) -> list[Any]:
    """Return values as a list, None for NaN, which pandas has for missing strings: Polars would make it a string."""
    return [None if isinstance(value, float) and value != value else value for value in values]


def _no_codes(n_rows: int) -> NDArray[np.int32]:
    codes = new_column(n_rows, np.int32)
    codes.fill(-1)
    return codes


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
    """Read a table in batches, find the rows or groups of rows that its keys name, and set their labels."""
    by_document = keys == ("document",)
    group = None if keys == ("occurrence",) or len(keys) == 2 else index.type if keys == ("word",) else index.sentence
    n_groups = {"word": len(index.words), "document": index.n_documents}.get(keys[0], len(index.texts))
    chosen = rows if rows is None or group is None else np.unique(group[rows]).astype(np.int64)
    if chosen is not None and by_document:
        chosen = np.unique(index.document_of(chosen))
    find = _Finder(index, keys)
    made = {}
    for name in columns:
        names = frame.select(pl.col(name).drop_nulls().unique().sort()).collect(engine="streaming")[name]
        made[name] = _Column(name, names, len(index.type) if group is None else n_groups)
    first = 1
    for batch in frame.select(*keys, *columns).collect_batches(chunk_size=BATCH_ROWS, maintain_order=True):
        numbers, at = find(batch)
        wrong = numbers < 0
        if chosen is not None:
            wrong |= ~np.isin(numbers, chosen)
        if wrong.any():
            line = int(at[wrong.argmax()])
            named = ", ".join(f"{key} {value!r}" for key, value in batch.select(keys).row(line, named=True).items())
            whose = "store" if rows is None else "selection"
            raise InvalidValueError(f"{where}, row {first + line} of its data: the {whose} has no {named}")
        for name, column in made.items():
            column.put(numbers, batch[name].gather(at))
        first += len(batch)
    of_sentence = index.document_of(np.arange(len(index.texts))) if by_document else slice(None)
    return {name: Labels(_of_rows(each.codes[of_sentence], group, rows), each.names) for name, each in made.items()}


class _Finder:
    """Finds the rows, words or sentences that the keys of a table name."""

    def __init__(self, index: Index, keys: tuple[str, ...]) -> None:
        self._index, self._keys = index, keys
        if keys[0] == "word":
            self._words = pl.DataFrame({"word": list(index.words), "number": np.arange(len(index.words))})
        if keys[0] == "source":
            self._order = np.argsort(index.source, kind="stable")
            self._sources = index.source[self._order]

    def __call__(self, batch: pl.DataFrame) -> tuple[Rows, Rows]:
        """Return the numbers, -1 for what does not exist, and the line of the batch that names each."""
        key, index = self._keys[0], self._index
        if key == "word":
            words = batch.select(pl.col("word").cast(pl.String))
            found = words.join(self._words, on="word", how="left", maintain_order="left")
            numbers = found["number"].fill_null(-1).to_numpy()
        else:
            numbers = _integers(batch, key)
            if key == "source":
                at = np.minimum(np.searchsorted(self._sources, numbers), len(self._sources) - 1)
                numbers = np.where(self._sources[at] == numbers, self._order[at], -1)
            limit = {"occurrence": len(index.type), "document": index.n_documents}.get(key, len(index.texts))
            numbers = np.where((numbers >= 0) & (numbers < limit), numbers, -1)
        if len(self._keys) == 1:
            return numbers, np.arange(len(numbers))
        positions = _integers(batch, "position")
        sentences = np.unique(numbers[numbers >= 0])
        starts, stops = index.indptr[sentences], index.indptr[sentences + 1]
        counts = stops - starts
        rows = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        stored = pl.DataFrame(
            {"sentence": index.sentence[rows], "position": index.position[rows].astype(np.int64), "row": rows}
        )
        given = pl.DataFrame({"sentence": numbers, "position": positions, "at": np.arange(len(numbers))})
        joined = given.join(stored, on=["sentence", "position"], how="left", maintain_order="left")
        return joined["row"].fill_null(-1).to_numpy(), joined["at"].to_numpy()


def _integers(batch: pl.DataFrame, key: str) -> Rows:
    """Return a key as int64, -(2**63) where it is missing."""
    if not batch.schema[key].is_integer() and batch.schema[key] != pl.Null:
        raise InvalidValueError(f"the key {key!r} must be whole numbers, not {batch.schema[key]}")
    return batch[key].cast(pl.Int64, strict=False).fill_null(-(2**63)).to_numpy()


def _of_rows(codes: NDArray[np.int32], group: NDArray[Any] | None, rows: Rows | None) -> NDArray[np.int32]:
    """Return the code of each row from those of the groups; -1 for rows that are not selected."""
    if group is None:
        return codes
    found = _no_codes(len(group))
    if rows is not None:
        found[rows] = codes[group[rows]]
        return found
    for start in range(0, len(group), BATCH_ROWS):
        found[start : start + BATCH_ROWS] = codes[group[start : start + BATCH_ROWS]]
    return found
