"""Tables, whose rows are documents: one column is the text, the others are facts about it or labels of its words.

The rows are those of JSON lines, Parquet, CSV and TSV, or of the tables that Python holds.
"""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from embstore.arguments import require_utf8
from embstore.corpus.formats.base import TABLE_OPTIONS, Format, ReadOptions, WriteChat
from embstore.corpus.lines import MAX_SENTENCE, Lines
from embstore.corpus.sentence import (
    Document,
    FieldValue,
    Sentence,
    Span,
    check_document,
    check_sentence,
    check_words,
    is_encodable,
    sentence_of_forms,
)
from embstore.errors import COLUMNS, CorpusError, EmbstoreWarning, InvalidValueError, quoted

Row = Mapping[str, Any]
FILE = "file"  # the field with the path of a document's file
DEFAULT_TEXT, CHAT = "text", "messages"
SPANS, IDS = "spans", "ids"  # columns of a text: labels of its characters, and its subwords
BATCH_ROWS = 2**13  # texts of some kilobytes: tens of MiB
# The kinds of values, and how they are written; 007, 1_000 and long identifiers are text.
KINDS: tuple[tuple[Callable[[str], object], re.Pattern[str]], ...] = (
    (int, re.compile(r"-?(?:0|[1-9]\d{0,14})", re.ASCII)),
    (float, re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d+)?(?:[eE][-+]?\d{1,2})?", re.ASCII)),
    (str, re.compile(r"[\s\S]*")),
)


def read_rows(
    rows: Iterable[tuple[int, Row]], options: ReadOptions, *, place: str, name: str = "rows"
) -> Iterator[Sentence]:
    """Yield the sentences of numbered rows, one document each.

    `place`: what errors have before the number of a row. `name`: of the table, for the warning that rows are left out.
    """
    empty: list[int] = []
    column = ""
    for number, row in rows:
        try:
            if not isinstance(row, Mapping):
                raise InvalidValueError(f"{quoted(row)} is not a row: column names with values")
            column = column or options.text or _text_column(row)
            sentences = _sentences(row, column, options)
        except InvalidValueError as reason:
            raise CorpusError(f"{place}{number}: {reason}") from None
        if not sentences:
            empty.append(number)
        yield from sentences
    if empty:
        message = f"{name}: rows without text in {quoted(column)} are left out: {len(empty):,}, the first is {empty[0]}"
        warnings.warn(message, EmbstoreWarning, stacklevel=2)


def _text_column(row: Row) -> str:
    """Return the column of the text: "text", "messages" or the only one of text or words."""
    if DEFAULT_TEXT in row or is_chat(row.get(CHAT)):
        return DEFAULT_TEXT if DEFAULT_TEXT in row else CHAT
    texts = [name for name, value in row.items() if isinstance(value, str) or _is_list_of(value, str)]
    if len(texts) != 1:
        raise InvalidValueError(f'name the column of the text with text="...": the columns are {_listed(row)}')
    return texts[0]


def _sentences(row: Row, column: str, options: ReadOptions) -> list[Sentence]:
    for name in (column, *options.columns):
        if name not in row:
            raise InvalidValueError(f"there is no column {quoted(name)}; the columns are {_listed(row)}")
    text, chosen = row[column], options.columns or row
    others = {name: value for name, value in row.items() if name != column and name in chosen}
    if _is_missing(text) or (isinstance(text, str | list | tuple) and not text):
        return []
    if _is_list_of(text, str):
        labels = {name: others.pop(name) for name in list(others) if isinstance(others[name], list | tuple)}
        document = Document(fields=_fields(others, options.fields))
        return [check_sentence(replace(_labelled(list(text), labels), document=document))]
    if not isinstance(text, str) and not is_chat(text):
        raise InvalidValueError(f"{column}: {quoted(text)} is neither a text, a list of words nor a chat")
    if is_chat(text):
        document = _chat(text, options.write_chat)
    else:
        for name in (SPANS, IDS):
            if (given := others.get(name)) is None or (isinstance(given, list | tuple) and not given):
                others.pop(name, None)
        spans = _spans(others.pop(SPANS)) if isinstance(others.get(SPANS), list | tuple) else ()
        ids = others.pop(IDS) if _is_list_of(others.get(IDS), int) else None
        document = Document(text, spans=spans, ids=ids)
    document = check_document(replace(document, fields=_fields(others, options.fields)))
    return list(options.splitter.document(document, apart=is_chat(text)))


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, kind) for each in value)


def _spans(rows: Sequence[Row]) -> list[Span]:
    """Return labelled spans of characters, which are given as {"start", "stop", and labels by their columns}."""
    spans = []
    for row in rows:
        start, stop = (row.get("start"), row.get("stop")) if isinstance(row, Mapping) else (None, None)
        if type(start) is not int or type(stop) is not int:
            raise InvalidValueError(f'{SPANS}: {quoted(row)} has no numbers "start" and "stop"; {_LEAVE_OUT}')
        labels = {field_name(name): value for name, value in row.items() if name not in ("start", "stop")}
        spans.append(Span(start, stop, labels={k: None if _is_missing(v) else str(v) for k, v in labels.items()}))
    return spans


def is_chat(value: object) -> bool:
    return _is_list_of(value, Mapping)


def _chat(messages: Sequence[Row], write: WriteChat | None) -> Document:
    """Return messages as `write` does, else their contents divided by line feeds, with the role of each as a label."""
    for number, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        for key, value in (("role", role or None), ("content", "" if content is None else content)):
            if not isinstance(value, str) or not is_encodable(value):
                raise InvalidValueError(f"message {number}: {key} is {quoted(value)}, not a text")
    if write is not None and (written := write(messages)) is not None:
        return written
    texts, spans, at = [message.get("content") or "" for message in messages], [], 0
    for message, text in zip(messages, texts, strict=True):
        spans.append(Span(at, at + len(text), labels={"role": message["role"]}))
        at += len(text) + 1
    return Document("\n".join(texts), spans=spans)


def _labelled(words: list[str], columns: Row) -> Sentence:
    for name, values in columns.items():
        if len(values) != len(words):
            raise InvalidValueError(f"{name}: {len(values)} labels for {len(words)} words; {_LEAVE_OUT}")
        if nested := [value for value in values if isinstance(value, list | tuple | Mapping)]:
            raise InvalidValueError(f"{name}: {quoted(nested[0])} is no label of a word; {_LEAVE_OUT}")
    check_words(words)
    spelled = {
        field_name(name): [None if _is_missing(value) else str(value) for value in values]
        for name, values in columns.items()
    }
    return sentence_of_forms(words, spelled)


_LEAVE_OUT = 'name the columns to read, without it, such as columns="author,year"'


def _fields(columns: Row, of_file: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    fields = {field_name(name): field_value(name, value) for name, value in columns.items()}
    if len(fields) < len(columns):
        raise InvalidValueError(f"two columns have the same name: {_listed(columns)}")
    return {**of_file, **fields}


def field_name(column: object) -> str:
    """Return a column's name as that of a field: with "_" for other characters, and after the names of COLUMNS."""
    name = re.sub(r"[^\w.-]", "_", str(column).strip())
    name = name if name[:1].isalnum() or name[:1] == "_" else f"_{name[1:]}"
    return f"{name}_" if name in COLUMNS else name


def field_value(column: str, value: Any) -> FieldValue:
    """Return a value as a store keeps it: dates as ISO text, missing values as None; raises InvalidValueError."""
    if _is_missing(value):
        return None
    if not isinstance(value, str | bool | int | float) and hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()  # a NumPy scalar
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, str) and not is_encodable(value):
        raise InvalidValueError(f"{column}: half of a surrogate pair, not a character: {quoted(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidValueError(f"{column}: {quoted(value)} is not within 64 bits; {_LEAVE_OUT}")
    if isinstance(value, str | bool | int | float):
        return value
    raise InvalidValueError(f"{column}: {quoted(value)} is not one value; {_LEAVE_OUT}")


def _is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' NaT or NA."""
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _listed(row: Row) -> str:
    names = ", ".join(map(str, row)) or "none"
    return names if len(names) < 200 else f"{names[:200]}..."


def parse_object(line: str) -> dict[str, Any]:
    """Return the JSON object of a line. Raises InvalidValueError."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidValueError(f"not JSON: {error.msg} at column {error.colno}: {quoted(line)}") from None
    except RecursionError:
        raise InvalidValueError("JSON too deeply nested") from None
    except ValueError:
        raise InvalidValueError("a number of thousands of digits") from None
    if not isinstance(record, dict):
        raise InvalidValueError(f"not a JSON object: {quoted(line)}")
    return record


def read_jsonl(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of each line, one document."""
    return read_rows(lines.parsed(parse_object), options, place=f"{lines.path}:", name=lines.path.name)


def read_parquet(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of each row, one document."""
    import polars as pl

    require_utf8(lines.path)
    try:
        rows = rows_of_table(pl.scan_parquet(lines.path, glob=False)) or ()
        yield from read_rows(enumerate(rows), options, place=f"{lines.path}: row ", name=lines.path.name)
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


def read_csv(lines: Lines, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of each row, one document; a column whose values are all numbers holds numbers,
    and an empty value is None.

    The file is read twice, first for the kinds of its columns.
    """
    if not lines.path.is_file():
        raise lines.file_error("is a pipe, and CSV is read twice: write it to a file first")
    rows = _csv_rows(lines)
    number, names = next(rows, (1, []))
    if not any(names):
        raise lines.error(number, "no header: the first line names the columns")
    if len(set(names)) < len(names):
        raise lines.error(number, f"two columns have the same name: {quoted(','.join(names))}")
    kinds = [2 * (name == (options.text or DEFAULT_TEXT)) for name in names]  # of KINDS
    for _, row in rows:
        for at, value in enumerate(row):
            while value and not KINDS[kinds[at]][1].fullmatch(value):
                kinds[at] += 1
    parse = [KINDS[kind][0] for kind in kinds]

    def typed(row: list[str]) -> dict[str, object]:
        return {name: of(value) if value else None for name, of, value in zip(names, parse, row, strict=True)}

    typed_rows = ((number, typed(row)) for number, row in islice(_csv_rows(lines), 1, None))
    return read_rows(typed_rows, options, place=f"{lines.path}:", name=lines.path.name)


def _csv_rows(lines: Lines) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each row that is not blank, with the number of its first line."""
    lines = replace(lines, keeps_returns=True)  # those in quotes are text
    header = next(filter(str.strip, lines), "")
    csv.field_size_limit(MAX_SENTENCE)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=max(",\t;", key=header.count), strict=True)
    number, width = 1, 0
    try:
        for row in reader:
            width = width or len(row)
            if row and len(row) != width:
                raise lines.error(number, f"{len(row)} fields instead of {width}, as in the header: {quoted(row)}")
            if row:
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        reason = "a row ends with a carriage return alone: write line feeds" if "new-line" in str(error) else error
        raise lines.error(number, f"not CSV: {reason}") from None


JSONL = Format("jsonl", (".jsonl", ".ndjson"), read_jsonl, TABLE_OPTIONS)
PARQUET = Format("parquet", (".parquet", ".pq"), read_parquet, TABLE_OPTIONS)
CSV = Format("csv", (".csv", ".tsv"), read_csv, TABLE_OPTIONS)
