"""Answers of queries as tables, and tables as files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore_explorer.answers import Arrays, as_json

if TYPE_CHECKING:
    import polars as pl

FORMATS = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
NOT_DATA = {"python", "query", "columns", "total", "caveat"}


def as_file(answer: Any, suffix: str) -> tuple[bytes, str]:
    """Return the table of an answer as the bytes of a file of FORMATS, and their media type."""
    frame, buffer = table(answer), io.BytesIO()
    if suffix == "csv":
        frame.write_csv(buffer)
    else:
        frame.write_parquet(buffer)
    return buffer.getvalue(), FORMATS[suffix]


def table(answer: Any) -> pl.DataFrame:
    """Return an answer as a table: a row for each innermost entry, with what is said of the entries that hold it."""
    import polars as pl

    if isinstance(answer, pl.DataFrame):
        return answer
    if isinstance(answer, Arrays) and all(array.ndim == 1 for array in answer.arrays.values()):
        return pl.DataFrame(dict(answer.arrays))
    if isinstance(answer, Arrays):  # the numbers of a matrix with their places
        ((name, array),) = answer.arrays.items()
        places = {f"axis_{axis}": each.ravel() for axis, each in enumerate(np.indices(array.shape, np.int32))}
        return pl.DataFrame({**places, name: array.ravel()})
    rows = [{name: as_json(it) if isinstance(it, list) else it for name, it in row.items()} for row in _flat(answer)]
    return pl.DataFrame(rows, infer_schema_length=None)


def _flat(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
        return
    fields = {name: each for name, each in value.items() if name not in NOT_DATA}
    if "a" in fields and "values" in fields:
        pairs = product(enumerate(fields["a"]), enumerate(fields["b"]))
        yield from ({"a": a, "b": b, "value": fields["values"][i][j]} for (i, a), (j, b) in pairs)
        return
    own: dict[str, Any] = {}
    inner: dict[str, list[Any]] = {}
    for name, each in fields.items():
        if isinstance(each, Mapping):
            own |= each
        elif isinstance(each, list) and not all(isinstance(one, str) for one in each):
            inner[name] = each
        else:
            own[name] = " ".join(each) if isinstance(each, list) else each
    if not inner:
        yield own
    elif any(isinstance(each[0], Mapping) for each in inner.values() if each):
        nested = next(each for each in inner.values() if each and isinstance(each[0], Mapping))
        yield from ({**own, **row} for row in _flat(nested))
    else:
        length = max(map(len, inner.values()))
        columns = {name: each for name, each in inner.items() if len(each) == length}
        yield from ({**own, **dict(zip(columns, row, strict=True))} for row in zip(*columns.values(), strict=True))
