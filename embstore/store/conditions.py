"""Conditions of `Store.select`: from words, labels, sentences and expressions to row numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.store.index import SPECIAL, Index, TypeIndex

if TYPE_CHECKING:
    import polars as pl

Rows = NDArray[np.int64]
Condition = Callable[[], Rows]


def parse_conditions(
    index: Index,
    type_index: TypeIndex,
    *,
    words: str | Iterable[str] | None,
    types: int | Iterable[int] | None,
    labels: Mapping[str, Any] | None,
    specials: bool | None,
    sentences: int | Iterable[int] | None,
    where: str | pl.Expr | Iterable[str | pl.Expr] | None,
) -> list[Condition]:
    """Return a function for each condition, which gives the distinct rows that satisfy it, ascending.

    Raises InvalidValueError for a word, type, label or sentence that does not exist. Rows are found, and expressions
    checked, when the function is called.
    """
    conditions: list[Condition] = []
    if words is not None:
        types_of_words = _types_of(type_index, [words] if isinstance(words, str) else list(words))
        conditions.append(partial(type_index.rows_of_all, types_of_words))
    if types is not None:
        conditions.append(partial(type_index.rows_of_all, _integers("types", types)))
    for column, names in (labels or {}).items():
        codes = _codes(index, column, names)
        conditions.append(partial(_rows_with_labels, index, column, codes))
    if specials is not None and (specials or SPECIAL in index.labels):
        require_specials(index)
        conditions.append(lambda: np.flatnonzero((index.labels[SPECIAL].codes >= 0) == specials))
    if sentences is not None:
        chosen = _integers("sentences", sentences)
        for sentence in chosen:
            if not 0 <= sentence < len(index.texts):
                raise InvalidValueError(
                    f"there is no sentence {sentence}: the store has sentences 0 to {len(index.texts) - 1}"
                )
        conditions.append(partial(_rows_of_sentences, index, chosen))
    if where is not None:
        given: Any = where
        several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        expressions = [each for each in several if not isinstance(each, str)]
        for each in expressions:
            if not hasattr(each, "meta"):
                raise InvalidValueError(
                    "where must be a condition in SQL, such as \"word = 'the'\", or a Polars expression, such as "
                    f"pl.col('word') == 'the', not {quoted(each)}"
                )
        if expressions:
            from embstore.store.table import matching_rows  # polars is imported only where it is needed

            conditions.append(partial(matching_rows, index, expressions))
        conditions.extend(partial(_rows_of_condition, index, each) for each in several if isinstance(each, str))
    return conditions


def names_in(condition: str) -> set[str]:
    """Return the columns that a condition in SQL names. Raises InvalidValueError for what is none."""
    from embstore.store.where import parse  # polars is imported only where it is needed

    return set(parse(condition).meta.root_names())


def rows_where(index: Index, condition: str) -> Iterator[Rows]:
    """Yield the rows for which a condition in SQL is true, ascending; see `embstore.store.where`."""
    from embstore.store.where import rows_where

    return rows_where(index, condition)


def require_specials(index: Index) -> None:
    """Raise InvalidValueError for a store without rows of special tokens."""
    if SPECIAL not in index.labels:
        raise InvalidValueError("the store has no rows of special tokens: extract one with --specials")


def selected_rows(rows: ArrayLike | slice, n_rows: int) -> Rows:
    """Return row numbers given as integers, as a slice or as one boolean for each row; int64 [n], in their order.

    Raises InvalidValueError for anything else and for a row that does not exist.
    """
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
        raise InvalidValueError(f"rows must be a list of integers, not {array.dtype} of {array.ndim} dimensions")
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


def _integers(name: str, values: Any) -> list[int]:
    several = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    return [check_whole(name, value, 0) for value in (values if several else [values])]


def _types_of(type_index: TypeIndex, words: list[str]) -> list[int]:
    types = [type_index.find(word) for word in words]
    unknown = [word for word, number in zip(words, types, strict=True) if number is None]
    if not unknown:
        return [number for number in types if number is not None]
    named = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else "")
    known = type_index.words
    near = get_close_matches(unknown[0], known, n=3) if len(known) < 200_000 and len(unknown) == 1 else []
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else "; words are spelled as in the corpus"
    raise InvalidValueError(f"the store has no word {named}{hint}")


def _codes(index: Index, column: str, wanted: Any) -> NDArray[np.int32]:
    if column == SPECIAL:
        require_specials(index)
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


def _rows_with_labels(index: Index, column: str, codes: NDArray[np.int32]) -> Rows:
    return np.flatnonzero(np.isin(index.labels[column].codes, codes))


def _rows_of_sentences(index: Index, sentences: list[int]) -> Rows:
    spans = [np.arange(index.indptr[number], index.indptr[number + 1]) for number in sorted(set(sentences))]
    return np.concatenate([np.empty(0, np.int64), *spans])


def _rows_of_condition(index: Index, condition: str) -> Rows:
    return np.concatenate(list(rows_where(index, condition)))
