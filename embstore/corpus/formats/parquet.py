"""Parquet files, and the tables that Python holds, as rows read a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from embstore.arguments import require_utf8
from embstore.corpus.formats.base import TABLE_OPTIONS, Format, ReadOptions
from embstore.corpus.formats.rows import read_rows
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence

BATCH_ROWS = 2**13  # texts of some kilobytes: tens of MiB


def read_parquet(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of each row, one document."""
    return read_rows(
        _rows(lines),
        options,
        error=lambda number, message: lines.file_error(f"row {number}: {message}"),
        name=lines.path.name,
    )


def _rows(lines: Lines) -> Iterator[tuple[int, dict[str, Any]]]:
    import polars as pl

    require_utf8(lines.path)
    try:
        yield from enumerate(rows_of_table(pl.scan_parquet(lines.path, glob=False)) or ())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise lines.file_error(f"not a Parquet file that can be read: {' '.join(str(error).split())[:200]}") from None


def rows_of_table(table: Any) -> Iterable[Any] | None:
    """Return the rows of a table of Polars, pandas, Arrow or Hugging Face's datasets, as values by column.

    None for anything else. Labels that a data set stores as numbers get their names.
    """
    if hasattr(table, "collect_batches"):  # polars.LazyFrame
        return chain.from_iterable(
            batch.iter_rows(named=True) for batch in table.collect_batches(chunk_size=BATCH_ROWS)
        )
    if hasattr(table, "itertuples"):  # pandas.DataFrame
        return (dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False, name=None))
    if hasattr(table, "features") and hasattr(table, "column_names"):  # datasets.Dataset, IterableDataset
        return _named(table)
    if hasattr(table, "__arrow_c_stream__") and (hasattr(table, "schema") or hasattr(table, "columns")):
        import polars as pl

        return pl.DataFrame(table).iter_rows(named=True)
    return None


def _named(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set with the names of its class labels."""
    names_of = {}
    for column, feature in (dataset.features or {}).items():
        names = getattr(getattr(feature, "feature", feature), "names", None)  # of a list, those of its values
        if names is not None:
            names_of[column] = dict(enumerate(names))
    for row in dataset:
        named = dict(row)
        for column, names in names_of.items():
            value = row[column]
            named[column] = [names.get(each) for each in value] if isinstance(value, list) else names.get(value)
        yield named


PARQUET = Format("parquet", (".parquet", ".pq"), read_parquet, TABLE_OPTIONS)
