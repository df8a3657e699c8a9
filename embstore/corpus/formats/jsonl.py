"""JSON lines: an object a line, whose keys are the columns of a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from embstore.corpus.formats.base import TABLE_OPTIONS, Format, ReadOptions
from embstore.corpus.formats.rows import read_rows
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence
from embstore.errors import InvalidValueError, quoted


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
    return read_rows(lines.parsed(parse_object), options, error=lines.error, name=lines.path.name)


JSONL = Format("jsonl", (".jsonl", ".ndjson"), read_jsonl, TABLE_OPTIONS)
