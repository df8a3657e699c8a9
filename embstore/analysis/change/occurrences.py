"""What is compared: the words that several periods share, and the rows of their occurrences in one store or two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.analysis.words import count_codes
from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_choice, check_whole, quoted
from embstore.store import Selection, Store
from embstore.store.index import SPECIAL
from embstore.store.layout import Layers

EXCHANGE = ("document", "sentence")


@dataclass(frozen=True)
class Part:
    """The occurrences of the compared words in one store; no period is in two stores.

    `rows`: int64 [n], ascending. `words`, `periods`: int64 [n], the word and the period of each. `units`: int64 [n],
    the document or sentence of each. `is_whole`: whether every row of the store may be read.
    """

    store: Store
    rows: NDArray[np.int64]
    words: NDArray[np.int64]
    periods: NDArray[np.int64]
    units: NDArray[np.int64]
    is_whole: bool


@dataclass(frozen=True)
class Compared:
    """The words that are compared and their occurrences.

    `periods`: the names of the periods in their order. `words`: the forms. `counts`: int64 [word, period].
    `skipped`: the words of two periods or more that have too few occurrences: `word, count_PERIOD ..., reason`.
    `exchange`: "document" or "sentence", what `units` are.
    """

    periods: tuple[str, ...]
    words: tuple[str, ...]
    counts: NDArray[np.int64]
    layers: tuple[int, ...]
    parts: tuple[Part, ...]
    skipped: pl.DataFrame
    exchange: str

    @property
    def hidden_size(self) -> int:
        return self.parts[0].store.hidden_size

    @cached_property
    def _orders(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For each part, its occurrences by word, and where each word begins."""
        starts = [np.append(0, np.cumsum(np.bincount(part.words, minlength=len(self.words)))) for part in self.parts]
        return [(start, np.argsort(part.words, kind="stable")) for start, part in zip(starts, self.parts, strict=True)]

    def of_word(self, number: int) -> list[tuple[Part, NDArray[np.int64]]]:
        """The positions of a word's occurrences in each part."""
        spans = [order[starts[number] : starts[number + 1]] for starts, order in self._orders]
        return list(zip(self.parts, spans, strict=True))


def compare_stores(
    old: Store | Selection,
    new: Store | Selection,
    *,
    layers: Layers,
    words: Iterable[str] | None,
    min_occurrences: int,
    exchange: str | None,
) -> Compared:
    """The words that two stores share. Raises InvalidValueError for stores of different models or layers."""
    sides = selected(old, layers), selected(new, layers)
    first, second = sides[0].store, sides[1].store
    for what, of_first, of_second in (
        ("hidden size", first.hidden_size, second.hidden_size),
        ("layers", sides[0].layers, sides[1].layers),
        ("model", _model_of(first), _model_of(second)),
    ):
        if of_first != of_second:
            raise InvalidValueError(
                f"{first.path} and {second.path} differ in their {what}, {of_first} and {of_second}: compare what one "
                "model made"
            )
    names = (first.path.stem, second.path.stem) if first.path.stem != second.path.stem else ("old", "new")
    first_forms, second_forms = list(first.index.words), list(second.index.words)
    known = set(second_forms)
    shared = [form for form in first_forms if form in known]
    given = [
        (sides[0], _numbers(first_forms, shared), np.zeros(len(sides[0]), np.int64)),
        (sides[1], _numbers(second_forms, shared), np.ones(len(sides[1]), np.int64)),
    ]
    return _compared(given, shared, names, words, min_occurrences, exchange)


def compare_periods(
    data: Store | Selection,
    by: str,
    *,
    layers: Layers,
    words: Iterable[str] | None,
    min_occurrences: int,
    exchange: str | None,
    width: int | None = None,
) -> Compared:
    """The words of the periods of one store: the values of a column of its table, or spans of `width` of a number."""
    side = selected(data, layers)
    periods, names = _periods_of(side.table(columns=[by])[by], by, width)
    forms = list(side.store.index.words)
    return _compared([(side, np.arange(len(forms)), periods)], forms, names, words, min_occurrences, exchange)


@checked
def list_periods(data: Store | Selection, *, by: str, width: int | None = None) -> tuple[str, ...]:
    """The periods of a store in their order: the values of a column, or spans of `width` of a column of numbers.

    Two are compared by `measure_change`, more by `measure_periods`. Raises InvalidValueError for fewer than two.
    """
    return _periods_of(selected(data, None).table(columns=[by])[by], by, width)[1]


def _model_of(store: Store) -> Any:
    model = store.metadata.model
    return model.get("weights_sha256") or model.get("name")


def _numbers(forms: Sequence[str], shared: Sequence[str]) -> NDArray[np.int64]:
    """The position in `shared` of each form, -1 for none."""
    place = {form: number for number, form in enumerate(shared)}
    return np.array([place.get(form, -1) for form in forms], np.int64)


def _periods_of(column: pl.Series, by: str, width: int | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The period of each row, -1 for a null, and the names of the periods in their order."""
    if column.dtype in (pl.Enum, pl.Categorical, pl.String):
        texts = column.cast(pl.String)
        numbers = texts.cast(pl.Int64, strict=False)
        column = numbers if numbers.null_count() == texts.null_count() else texts
    if width is not None:
        check_whole("width", width, 1)
        if not column.dtype.is_numeric():
            raise InvalidValueError(f"the column {by!r} is no number: periods of a width need years; leave width out")
        column = (column // width * width).cast(pl.Int64)
    values = column.drop_nulls().unique().sort()
    if len(values) < 2:
        raise InvalidValueError(f"the column {by!r} has {len(values)} value: change needs two periods or more")
    codes = column.replace_strict(values, pl.int_range(len(values), eager=True), default=-1, return_dtype=pl.Int64)
    names = [f"{value}-{value + width - 1}" if width and width > 1 else str(value) for value in values.to_list()]
    return codes.fill_null(-1).to_numpy(), tuple(names)


def _compared(
    given: Sequence[tuple[Selection, NDArray[np.int64], NDArray[np.int64]]],
    forms: Sequence[str],
    names: tuple[str, ...],
    words: Iterable[str] | None,
    min_occurrences: int,
    exchange: str | None,
) -> Compared:
    """Count the forms in each period, and list the occurrences of those with `min_occurrences` in two of them.

    `given`: for each store its selection, the form of each type (-1: none), and the period of each selected row.
    """
    check_whole("min_occurrences", min_occurrences, 1)
    occurrences = []
    counts = np.zeros((len(forms), len(names)), np.int64)
    for side, form_of_type, periods in given:
        index = side.store.index
        rows, first = np.unique(side.rows, return_index=True)  # ascending, and each once
        form, periods = form_of_type[index.type[rows]], periods[first]
        form[periods < 0] = -1
        if SPECIAL in index.labels:
            form[index.labels[SPECIAL].codes[rows] >= 0] = -1
        counted = np.flatnonzero(form >= 0)
        pairs = form[counted] * len(names) + periods[counted]
        counts += count_codes(pairs, counts.size)[: counts.size].reshape(counts.shape)
        occurrences.append((side, rows, form, periods))
    wanted = _wanted(words, forms)
    enough = wanted & ((counts >= min_occurrences).sum(1) >= 2)
    chosen = np.flatnonzero(enough)
    if not len(chosen):
        raise InvalidValueError(
            f"no word has {min_occurrences} occurrences in two of the periods {', '.join(names)}: "
            "allow fewer (min_occurrences), or compare larger corpora"
        )
    few = np.flatnonzero(wanted & ~enough & ((counts > 0).sum(1) >= (2 if words is None else 0)))
    skipped = pl.DataFrame(
        {"word": pl.Series([forms[number] for number in few.tolist()], dtype=pl.String)}
        | {f"count_{name}": counts[few, period] for period, name in enumerate(names)}
    ).with_columns(reason=pl.lit(f"fewer than {min_occurrences} occurrences"))
    number_of_form = np.full(len(forms) + 1, -1)  # the last one is that of no form, -1
    number_of_form[chosen] = np.arange(len(chosen))
    exchange = _exchange_of([side.store for side, *_ in occurrences], exchange)
    parts = []
    for side, rows, form, periods in occurrences:
        number = number_of_form[form]
        kept = np.flatnonzero(number >= 0)
        units = _units(side.store, rows[kept], exchange)
        columns = (rows[kept], number[kept], periods[kept], units)
        parts.append(Part(side.store, *columns, is_whole=side.is_whole))
    compared = tuple(forms[number] for number in chosen.tolist())
    return Compared(names, compared, counts[chosen], given[0][0].layers, tuple(parts), skipped, exchange)


def _wanted(words: Iterable[str] | None, forms: Sequence[str]) -> NDArray[np.bool_]:
    if words is None:
        return np.ones(len(forms), bool)
    listed = [words] if isinstance(words, str) else list(words)
    known = set(forms)
    missing = [word for word in listed if word not in known]
    if missing:
        raise InvalidValueError(f"not all periods have the word {quoted(missing[0])}: leave it out")
    return np.isin(np.array(forms, object).astype(str), listed)


def _exchange_of(stores: Sequence[Store], exchange: str | None) -> str:
    """What is exchanged between the periods: documents where any has two sentences."""
    if exchange is not None:
        check_choice("exchange", exchange, EXCHANGE)
        return exchange
    several = any(store.index.n_documents < len(store.index.texts) for store in stores)
    return "document" if several else "sentence"


def _units(store: Store, rows: NDArray[np.int64], exchange: str) -> NDArray[np.int64]:
    sentences = np.asarray(store.index.sentence[rows], np.int64)
    return sentences if exchange == "sentence" else np.asarray(store.index.document_of(sentences), np.int64)
