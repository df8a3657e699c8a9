"""The occurrence table: a Polars frame over the columns of an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.store.index import Index, Strings

PLAIN = ("occurrence", "word", "sentence", "position", "subwords", "source")


def column_names(index: Index) -> list[str]:
    """The columns of the occurrence table: `occurrence` (the row), `word`, `sentence`, ..., then the labels."""
    return [*PLAIN, *index.labels]


def occurrence_table(
    index: Index, *, rows: NDArray[np.int64] | None = None, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Return the occurrences (or some rows, in their order) with the columns asked for.

    `occurrence` is the row in the store, `sentence` the row of `index.texts`, `source` the sentence's number in the
    corpus; words and labels are enumerations, so that a filter compares numbers.
    """
    wanted = column_names(index) if columns is None else columns
    return pl.DataFrame([_series(index, name, rows) for name in wanted])


def _series(index: Index, name: str, rows: NDArray[np.int64] | None) -> pl.Series:
    if name == "occurrence":
        return pl.Series(name, np.arange(len(index.type)) if rows is None else rows)
    if name == "word":
        return _enumeration(name, _rows(index.type, rows), index.words)
    if name in ("sentence", "position", "subwords"):
        return pl.Series(name, _rows(getattr(index, name), rows))
    if name == "source":
        return pl.Series(name, index.source[_rows(index.sentence, rows)])
    if name in index.labels:
        return _enumeration(name, _rows(index.labels[name].codes, rows), index.labels[name].names)
    raise InvalidValueError(f"there is no column {name!r}: the occurrence table has {', '.join(column_names(index))}")


def _rows(column: NDArray[np.generic], rows: NDArray[np.int64] | None) -> NDArray[np.generic]:
    return column if rows is None else column[rows]


def _enumeration(name: str, codes: NDArray[np.generic], names: Strings) -> pl.Series:
    """A column of names by their number, -1 for none."""
    series = pl.Series(name, codes, dtype=pl.Int32)
    present = pl.select(pl.when(series >= 0).then(series).cast(pl.UInt32)).to_series()
    return present.cat.to(pl.Enum(list(names))).alias(name)


def matching_rows(index: Index, where: pl.Expr | Iterable[pl.Expr]) -> NDArray[np.int64]:
    """Return the rows, ascending, for which Polars expressions over the occurrence table hold.

    Only the columns that the expressions name are read. Raises InvalidValueError where one is not there or an
    expression cannot be evaluated.
    """
    expressions = [where] if isinstance(where, pl.Expr) else list(where)
    named = {name for expression in expressions for name in expression.meta.root_names()}
    table = occurrence_table(index, columns=["occurrence", *sorted(named - {"occurrence"})])
    try:
        return table.filter(*expressions)["occurrence"].to_numpy()
    except pl.exceptions.PolarsError as error:
        raise InvalidValueError(
            f"the condition cannot be used on the occurrence table: {str(error).splitlines()[0]}"
        ) from error
