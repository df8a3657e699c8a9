"""Conditions in SQL on occurrences, such as "upos = 'VERB' AND length < 12": which rows of an index satisfy one."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars import selectors

from embstore.errors import COLUMNS, InvalidValueError, quoted
from embstore.store.index import Index
from embstore.store.places import PLACES, place_names
from embstore.store.table import codes_of, column_of, is_coded, value_type

MAX_CONDITION = 2000  # characters
MAX_TREE = 2**17  # bytes that Polars makes of them: each BETWEEN, CASE or left() around another doubles it
BLOCK_ROWS = 2**18
# None gives more text than it is given, as replace() and lpad() do: inside each other, they would fill any memory.
_FUNCTIONS = (
    "Abs Coalesce ConcatHorizontal Contains EndsWith FillNull Find IsNotNull IsNull LenBytes LenChars Lowercase Not "
    "MaxHorizontal MinHorizontal Reverse Slice Sql StartsWith StripChars StripCharsEnd StripCharsStart Uppercase"
)
_WIDE = "Int128"
_DATES = {"Date", "Datetime", "Time", "Duration"}
_IS = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|\bIS\s+(NOT\s+)?(TRUE|FALSE|DISTINCT\s+FROM)\b""", re.IGNORECASE)
_Numbers = NDArray[np.int64]


def parse(condition: str) -> pl.Expr:
    """Return a condition as a Polars expression.

    Raises InvalidValueError for what is none, and for one that looks at more than the occurrence itself: then it would
    mean something else for every part of a corpus, as one with CURRENT_DATE would on another day.
    """
    if not isinstance(condition, str) or not 0 < len(condition) <= MAX_CONDITION:
        raise InvalidValueError(f"where {quoted(condition)} is not allowed: give 1 to {MAX_CONDITION:,} characters")
    tree = _Tree()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the format may be another one in another version: it is read at once
        try:
            parsed = pl.sql_expr(_IS.sub(_with_null, condition))
            parsed.meta.serialize(tree, format="json")
            node = _wide(json.loads(tree.text))
            is_allowed = bool(parsed.meta.root_names()) and _is_elementwise(node)
            text = json.dumps(node)
        except RecursionError:
            raise InvalidValueError(f"where {quoted(condition)} has too many operators in a row: write fewer") from None
        except (pl.exceptions.PolarsError, ValueError) as error:
            raise InvalidValueError(
                f"where {quoted(condition)} is not a condition in SQL, such as \"upos = 'VERB' AND length < 12\": "
                f"{_first_line(error)}"
            ) from None
        if not is_allowed:
            raise InvalidValueError(
                f"where {quoted(condition)} is not about each occurrence on its own, or makes text longer: compare "
                "columns with AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, %, lower() and the like, and dates as text"
            )
        try:
            return pl.Expr.deserialize(io.StringIO(text), format="json") if _WIDE in text else parsed
        except pl.exceptions.ComputeError:  # Polars reads 128 levels of JSON
            raise InvalidValueError(f"where {quoted(condition)} has too many operators in a row: write fewer") from None


def rows_where(
    index: Index, condition: str, *, rows: _Numbers | None = None, block_rows: int = BLOCK_ROWS
) -> Iterator[_Numbers]:
    """Yield the rows of an index for which a condition is true, a block of rows at a time, in their order.

    `rows`: only some of them (None: all, ascending).

    The columns are those of `Selection.table`, all text as strings. Raises InvalidValueError for a column that does not
    exist and a condition that cannot be used on the values. Whole numbers are computed in 128 bits.
    """
    parsed, columns = parse(condition), _Columns(index)
    names = sorted(set(parsed.meta.root_names()) - {"occurrence"})
    columns.require(names, condition)
    if set(parsed.meta.root_names()) == {*names[:1]} and is_coded(index, names[0]):
        yield from columns.rows_with_values(names[0], parsed, rows, condition)
        return
    n_rows = len(index.type) if rows is None else len(rows)
    block_rows = max(1, block_rows // len(parsed.meta.root_names()))  # as `||` may join each column with itself
    for start in range(0, max(1, n_rows), block_rows):
        some = slice(start, min(start + block_rows, n_rows))
        block = some if rows is None else rows[some]
        frame = pl.DataFrame([columns.read(name, block) for name in ("occurrence", *names)])
        wide = frame.cast({selectors.integer(): pl.Int128})
        try:
            yield wide.filter(parsed)["occurrence"].cast(pl.Int64).to_numpy()
        except pl.exceptions.PolarsError as error:
            raise InvalidValueError(f"where {quoted(condition)} cannot be used: {_first_line(error)}") from None


class _Columns:
    """The columns that conditions know of an index, read a block at a time."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._values: dict[str, pl.Series] = {}  # the distinct values of a column, and null

    def require(self, names: list[str], condition: str) -> None:
        """Raise InvalidValueError for a name that no column has."""
        index = self._index
        given = [*COLUMNS[:-1], *index.fields, *index.own_labels, "text"]
        for name in names:
            if name not in given and name not in place_names(index):
                known = [*given, *place_names(index)[: len(PLACES) + 2]]  # the places in runs of one label
                raise InvalidValueError(
                    f"where {quoted(condition)}: there is no column {quoted(name)}; text is in single quotes, "
                    f"and the columns are {', '.join(known)}"
                )

    def rows_with_values(self, name: str, parsed: pl.Expr, rows: _Numbers | None, condition: str) -> Iterator[_Numbers]:
        """Yield the rows for which a condition on one column of text is true: it is evaluated once for each value."""
        self.read(name, slice(0, 0))
        values = self._values[name].alias(name)
        try:
            true = values.to_frame().with_row_index("_number").filter(parsed)["_number"].to_numpy()
        except pl.exceptions.PolarsError as error:
            raise InvalidValueError(f"where {quoted(condition)} cannot be used: {_first_line(error)}") from None
        is_true = np.zeros(len(values), bool)
        is_true[true] = True
        n_rows = len(self._index.type) if rows is None else len(rows)
        for start in range(0, max(1, n_rows), BLOCK_ROWS):
            some = slice(start, min(start + BLOCK_ROWS, n_rows))
            block = some if rows is None else rows[some]
            found = np.flatnonzero(is_true[codes_of(self._index, name, block)])
            yield found + start if rows is None else rows[start + found]

    def read(self, name: str, rows: slice | _Numbers) -> pl.Series:
        index = self._index
        if name in index.fields:
            own = index.fields[name]
            return self._named(name, codes_of(index, name, rows), lambda: pl.Series(own.values, dtype=value_type(own)))
        if name in index.own_labels:
            labels = index.own_labels[name]
            return self._named(
                name, codes_of(index, name, rows), lambda: pl.Series(list(labels.names), dtype=pl.String)
            )
        if name == "word":
            return self._named(name, codes_of(index, name, rows), lambda: pl.Series(list(index.words), dtype=pl.String))
        return column_of(index, name, np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows)

    def _named(self, name: str, codes: NDArray[Any], make: Callable[[], pl.Series]) -> pl.Series:
        if name not in self._values:
            self._values[name] = pl.concat([made := make(), pl.Series([None], dtype=made.dtype)])
        values = self._values[name]
        return values.gather(np.where(codes < 0, len(values) - 1, codes)).alias(name)


def _is_elementwise(node: Any) -> bool:
    """Return whether a serialized expression has a value for each row that depends on this row alone, not on today."""
    value: Any
    kind, value = next(iter(node.items())) if isinstance(node, dict) and node else (node, None)
    if kind == "Literal":
        return not (isinstance(value.get("Scalar"), dict) and value["Scalar"].keys() & _DATES)
    if kind == "Column":
        return True
    if kind == "Function":
        function = value["function"]
        name, own = next(iter(function.items())) if isinstance(function, dict) else (function, "")
        if name in ("Boolean", "StringExpr"):
            name = own if isinstance(own, str) else next(iter(own))
        return name in _FUNCTIONS.split() and all(map(_is_elementwise, value["input"]))
    parts = {"BinaryExpr": ("left", "right"), "Cast": ("expr",), "Ternary": ("predicate", "truthy", "falsy")}
    return kind in parts and all(_is_elementwise(value[part]) for part in parts[kind])


def _with_null(found: re.Match[str]) -> str:
    """Write IS TRUE and the like so that null is neither; Polars takes all after IS DISTINCT FROM as its value."""
    text, negated, value = found.groups()
    if text:
        return text
    if value.upper() not in ("TRUE", "FALSE"):
        if not negated:  # Polars takes all that follows, AND too, for the second of what is compared
            raise InvalidValueError(f"where {quoted(found.string)} has {found[0]}: write NOT (a <=> b)")
        return "<=>"
    return f"<=> {value}{' <=> FALSE' if negated else ''}"


def _wide(node: Any) -> Any:
    """Return a serialized expression in which numbers made of text are wide: those of Polars wrap round below 0."""
    if not isinstance(node, dict):
        return [_wide(each) for each in node] if isinstance(node, list) else node
    value: Any
    node = {key: _wide(each) for key, each in node.items()}
    kind, value = next(iter(node.items()), ("", None))
    if kind == "Cast" and "Int" in str(value["dtype"]):
        value["dtype"] = {"Literal": _WIDE}
    if kind == "Function" and isinstance(value["function"], dict):
        made = value["function"].get("StringExpr")
        if made in ("LenChars", "LenBytes") or (isinstance(made, dict) and "Find" in made):
            return {"Cast": {"expr": node, "dtype": {"Literal": _WIDE}, "options": "Strict"}}
    return node


class _Tree(io.RawIOBase):
    """A file for a serialized expression, which is refused once it is too long."""

    text = b""

    def write(self, part: Any) -> int:
        self.text += part
        if len(self.text) > MAX_TREE:
            raise ValueError("it has too many BETWEEN, CASE or functions inside each other")
        return len(part)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
