"""Conditions of `Store.select`: from words, labels, sentences and expressions to row numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.store.index import SPECIAL, Index

Rows = NDArray[np.int64]
Condition = Callable[[Rows | None], Rows]  # is given the rows that satisfy the others, None for all
NO_ROWS: Rows = np.empty(0, np.int64)


def parse_conditions(
    index: Index, *, words: str | Iterable[str] | None, labels: Mapping[str, Any] | None, where: str | None
) -> list[Condition]:
    """Return a function for each condition, which gives those of the rows that satisfy it.

    Raises InvalidValueError for a word or label that does not exist. Rows are found, and `where` is checked, when the
    function is called.
    """
    conditions: list[Condition] = []
    if words is not None:
        types = {*_types_of(index, [words] if isinstance(words, str) else list(words))}
        conditions.append(lambda rows: _among(rows, np.sort(np.concatenate([NO_ROWS, *map(index.rows_of, types)]))))
    for column, names in (labels or {}).items():
        codes = _codes(index, column, names)
        conditions.append(partial(_rows_with_labels, index, column, codes))
    if where is not None:
        conditions.append(lambda rows: np.concatenate(list(rows_where(index, where, rows=rows))))
    return conditions


def names_in(condition: str) -> set[str]:
    """Return the columns that a condition in SQL names. Raises InvalidValueError for what is none."""
    from embstore.store.where import parse  # polars is imported only where it is needed

    return set(parse(condition).meta.root_names())


def rows_where(index: Index, condition: str, *, rows: Rows | None = None) -> Iterator[Rows]:
    """Yield the rows for which a condition in SQL is true; see `embstore.store.where`."""
    from embstore.store.where import rows_where

    return rows_where(index, condition, rows=rows)


def selected_rows(rows: ArrayLike | slice, n_rows: int) -> Rows:
    """Return row numbers given as integers, as a slice or as one boolean for each row; int64 [n], in their order."""
    if isinstance(rows, slice):
        check_bounds(rows, n_rows)
        return np.arange(n_rows)[rows]
    array = _as_array(rows)
    if array.dtype == bool:
        if array.shape == (n_rows,):
            return np.flatnonzero(array)
        raise InvalidValueError(f"rows of booleans must have the shape ({n_rows},), not {array.shape}")
    return checked_rows(array, n_rows)


def check_bounds(rows: slice, n_rows: int) -> None:
    """Raise InvalidValueError for a slice that begins before the first row, has the step 0, or is not of integers."""
    for bound in (rows.start, rows.stop, rows.step):
        if bound is not None:
            check_whole("a bound of a slice of rows", bound, -n_rows)
    if rows.step == 0:
        raise InvalidValueError("the step of a slice of rows is 0: give 1 or more, or a negative one to go back")


def checked_rows(rows: ArrayLike, n_rows: int) -> Rows:
    """Return a list of row numbers as int64 [n]. Raises InvalidValueError for anything else and for a missing row."""
    array = row_numbers(rows)
    require_rows(array, n_rows)
    return array.astype(np.int64, copy=False)


def row_numbers(rows: ArrayLike) -> NDArray[np.integer]:
    """Return a list of row numbers as an array of integers. Raises InvalidValueError for anything else."""
    array = _as_array(rows)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        hint = ': give words="..." for a word' if array.dtype.kind == "U" else ""
        raise InvalidValueError(f"rows must be a list of integers, not {array.dtype} of {array.ndim} dimensions{hint}")
    return array


def require_rows(rows: NDArray[np.integer], n_rows: int) -> None:
    """Raise InvalidValueError for a row that does not exist."""
    if rows.size:
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= n_rows:
            raise InvalidValueError(f"there is no row {low if low < 0 else high}: the store has rows 0 to {n_rows - 1}")


def _as_array(rows: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(rows)
    except (ValueError, TypeError, OverflowError):
        raise InvalidValueError(f"rows must be a list of integers, not {quoted(rows)}") from None


def _types_of(index: Index, words: list[str]) -> list[int]:
    types = [index.type_of(word) for word in words]
    unknown = [word for word, number in zip(words, types, strict=True) if number is None]
    if not unknown:
        return [number for number in types if number is not None]
    named = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else "")
    known = index.words
    near = near_words(unknown[0], list(known)) if len(unknown) == 1 else []
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else "; words are spelled as in the corpus"
    if {"*", "%"} & {*unknown[0]}:
        hint += f"; for a pattern give where=\"word LIKE '{unknown[0].replace('*', '%')}'\""
    if len(unknown) == 1 and len(unknown[0].split()) > 1:
        hint += "; several words have one row where the corpus marks them as a span; mark one [word] of a sentence"
    error = InvalidValueError(f"the store has no word {named}{hint}")
    error.near = near
    raise error


def near_words(word: str, known: Sequence[str]) -> list[str]:
    """The words that differ from one in case alone; without any, up to three that a few edits make of it."""
    same = [other for other in known if other.casefold() == word.casefold()]
    like = get_close_matches(word, known, n=20) if not same and len(known) < 200_000 else []
    near = sorted((n_edits(word, other), place) for place, other in enumerate(like))
    return same[:3] or [like[place] for edits, place in near if edits <= max(1, len(word) // 4)][:3]


def n_edits(one: str, other: str) -> int:
    """How many characters are added, left out, changed or swapped with the next one to make a word of another."""
    before, last = [0], list(range(len(other) + 1))
    for i, character in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (character != wanted)))
            if i > 1 < j and one[i - 2 : i] == other[j - 2 : j][::-1]:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def _codes(index: Index, column: str, wanted: Any) -> NDArray[np.int32]:
    if column == SPECIAL and SPECIAL not in index.labels:
        raise InvalidValueError("the store has no rows of special tokens: extract one with --specials")
    if column not in index.labels:
        raise InvalidValueError(
            f"there is no label column {column!r}: the store has {', '.join(index.labels) or 'none'}; "
            "with_labels adds one"
        )
    known = list(index.labels[column].names)
    several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
    names = [str(name).lower() if isinstance(name, bool) else str(name) for name in (wanted if several else [wanted])]
    for name in names:
        if name not in known:
            some = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
            raise InvalidValueError(f"no occurrence has {column} {name!r}: the labels are {some}")
    return np.array([known.index(name) for name in names], np.int32)


def _among(rows: Rows | None, found: Rows) -> Rows:
    return found if rows is None else rows[np.isin(rows, found)]


def _rows_with_labels(index: Index, column: str, codes: NDArray[np.int32], rows: Rows | None) -> Rows:
    found = np.isin(index.labels[column].codes[slice(None) if rows is None else rows], codes)
    return np.flatnonzero(found) if rows is None else rows[found]
