"""Parameters of queries: from texts of a URL to checked values of the types that a query names."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from embstore.errors import InvalidValueError, check_choice, check_whole, quoted

MAX_ROWS = 1_000_000  # in a list
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_ROWS = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", re.ASCII)


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest whole number, or for a text the most characters."""

    least: int
    most: int


Number = Annotated[int, Bounds(0, 1000)]  # of a store
Row = Annotated[int, Bounds(0, 2**53)]  # JavaScript's numbers are exact up to there
Limit = Annotated[int, Bounds(1, 1000)]
Word = Annotated[str, Bounds(1, 2000)]
Text = Annotated[str, Bounds(1, 10_000)]
Where = Annotated[str, Bounds(1, 2000)]
Layer = Annotated[str, Bounds(1, 20)]
Layers = Annotated[str, Bounds(1, 500)]
Rows = tuple[int, ...]  # as 3,7-9


def parse(known: Mapping[str, tuple[Any, Any]], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of parameters, each of the type in `known`: name -> (type, default).

    Raises InvalidValueError for one that is not known, not given though it must be, or not allowed.
    """
    for name in given:
        if name not in known:
            raise InvalidValueError(f"there is no parameter {quoted(name)}: allowed are {', '.join(known) or 'none'}")
    missing = [name for name, (_, default) in known.items() if default is Parameter.empty and name not in given]
    if missing:
        raise InvalidValueError(f"the parameter {missing[0]} is missing")
    return {name: _value(name, each, known[name][0]) for name, each in given.items()}


def _value(name: str, value: object, kind: Any) -> Any:
    bounds = Bounds(0, 10_000)
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        if get_origin(kind) is Annotated:
            kind, bounds = get_args(kind)
        else:
            kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
        return value
    if get_origin(kind) is tuple:
        return _rows(name, value)
    if kind is bool:
        if value not in (True, False, "true", "false"):
            raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give true or false")
        return value in (True, "true")
    if kind is int:
        whole = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        return check_whole(name, whole, bounds.least, bounds.most)
    return _text(name, str(value) if type(value) is int else value, bounds)


def _text(name: str, value: object, bounds: Bounds) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give a text")
    if not bounds.least <= len(value) <= bounds.most:
        raise InvalidValueError(f"{name} has {len(value):,} characters: give {bounds.least} to {bounds.most:,}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(f"{name} {quoted(value)} is not text: it holds half a surrogate pair") from None
    return value


def _rows(name: str, value: object) -> Rows:
    """Row numbers: a list, or a text such as 3,7-9."""
    rows: list[int] = []
    parts: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give row numbers, such as 3,7-9")
    for part in parts:
        found = _ROWS.fullmatch(part.strip()) if isinstance(part, str) else None
        if found is None and isinstance(part, str):
            raise InvalidValueError(f"{name} {quoted(part)} is not allowed: give row numbers, such as 3,7-9")
        first = int(found[1]) if found else check_whole(name, part, 0, 2**53)
        last = int(found[2] or first) if found else first
        if last - first + len(rows) >= MAX_ROWS or last < first:
            raise InvalidValueError(f"{name} has more than {MAX_ROWS:,} rows, or a range that is none: give fewer")
        rows.extend(range(first, last + 1))
    return tuple(rows)
