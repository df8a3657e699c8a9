"""Some occurrences and layers of a store: chosen lazily, read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from embstore.errors import InvalidValueError
from embstore.store.index import Index, Strings

if TYPE_CHECKING:
    import polars as pl

    from embstore.store.store import Store

SCAN_DENSITY = 0.1  # above about one row in ten a scan is faster than a gather
BLOCK_NBYTES = 2 * 2**20

Filter = Callable[[Index], NDArray[np.int64]]


@dataclass(frozen=True)
class Block:
    """Some rows of one layer: `rows` int64 [n] of the store, `vectors` [n, hidden_size]."""

    layer: int
    rows: NDArray[np.int64]
    vectors: NDArray[Any]


class Selection:
    """Some occurrences and layers of a store, made by `Store.select`; nothing is read before it is asked for.

    `rows`: int64 [n], ascending, or as given where `select` was given rows. `layers`: the layers chosen.
    """

    def __init__(self, store: Store, *, layers: tuple[int, ...], filters: Iterable[Filter], start: Any = None) -> None:
        self.store = store
        self.layers = layers
        self._filters = tuple(filters)
        self._start = start

    def __repr__(self) -> str:
        return f"<Selection of {self.store.path}: {len(self):,} occurrences, layers {list(self.layers)}>"

    def __len__(self) -> int:
        return self.store.n_rows if self._whole else len(self.rows)

    @property
    def _whole(self) -> bool:
        """Whether nothing was asked of the occurrences: then the rows are all of them, and need not be listed."""
        return self._start is None and not self._filters

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The rows chosen, int64 [n]."""
        given = None if self._start is None else _given_rows(self._start, self.store.n_rows)
        chosen: NDArray[np.int64] | None = None
        for rows_of in self._filters:
            rows = rows_of(self.store.index)
            chosen = rows if chosen is None else np.intersect1d(chosen, rows, assume_unique=True)
        if given is None:
            return np.arange(self.store.n_rows) if chosen is None else chosen
        return given if chosen is None else given[np.isin(given, chosen)]

    def committed(self) -> Selection:
        """The occurrences among these that are written; for a store that is not finished."""
        written = self.rows[self.store.committed[self.rows // self.store.layout.partition_rows]]
        return Selection(self.store, layers=self.layers, filters=(), start=written)

    def vectors(self, *, dtype: DTypeLike | None = None, missing: Literal["error", "nan"] = "error") -> NDArray[Any]:
        """Read the vectors: [layer, n, hidden_size], in the store's `vector_dtype` or the one asked for.

        Raises MissingRowsError for rows not yet written, unless `missing="nan"`.
        """
        vectors = self.store.gather_layers(self.rows, self.layers, missing=missing)
        return vectors if dtype is None else vectors.astype(dtype, copy=False)

    def iter_blocks(self, *, block_rows: int | None = None) -> Iterator[Block]:
        """Read layer after layer, block after block of at most `block_rows` rows (about 2 MiB by default).

        Where the rows ascend and are dense the layer is scanned, else they are gathered.
        """
        if block_rows is not None and block_rows < 1:
            raise InvalidValueError(f"block_rows {block_rows} is not allowed: give 1 or more")
        size = block_rows or max(1, BLOCK_NBYTES // (self.store.hidden_size * self.store.vector_dtype.itemsize))
        read = self._scanned if self._dense else self._gathered
        for layer in self.layers:
            yield from read(layer, size)

    @cached_property
    def _dense(self) -> bool:
        if self._whole:
            return True
        rows = self.rows
        if len(rows) < 2 or not bool((np.diff(rows) > 0).all()):
            return False
        return len(rows) > SCAN_DENSITY * (int(rows[-1]) - int(rows[0]) + 1)

    def _gathered(self, layer: int, size: int) -> Iterator[Block]:
        for start in range(0, len(self.rows), size):
            rows = self.rows[start : start + size]
            yield Block(layer, rows, self.store.gather(rows, layer))

    def _scanned(self, layer: int, size: int) -> Iterator[Block]:
        if self._whole:
            for start, vectors in self.store.scan(layer, block_rows=size):
                yield Block(layer, np.arange(start, start + len(vectors)), vectors)
            return
        first, last = int(self.rows[0]), int(self.rows[-1]) + 1
        lacking = self.rows[~self.store.committed[self.rows // self.store.layout.partition_rows]]
        if len(lacking):
            self.store.gather(lacking, layer)  # says what is missing
        for start, vectors in self.store.scan(layer, first, last, block_rows=size, missing="skip"):
            left, right = np.searchsorted(self.rows, (start, start + len(vectors)))
            rows = self.rows[left:right]
            if len(rows):
                yield Block(layer, rows, vectors if len(rows) == len(vectors) else vectors[rows - start])

    def contexts(self) -> pl.DataFrame:
        """Return the occurrences as a table: `occurrence, word, sentence, position, subwords, source`, labels, `text`.

        `text` is the sentence, its words joined by one space; `position` is the index of the (first) word in it.
        """
        import polars as pl

        from embstore.store.table import occurrence_table

        index = self.store.index
        table = occurrence_table(index, rows=self.rows)
        sentences, inverse = np.unique(index.sentence[self.rows], return_inverse=True)
        texts = pl.Series("text", [index.texts[int(sentence)] for sentence in sentences], dtype=pl.String)
        return table.with_columns(texts.gather(inverse))


def _given_rows(rows: Any, count: int) -> NDArray[np.int64]:
    if isinstance(rows, slice):
        return np.arange(count)[rows]
    array = np.asarray(rows)
    if array.dtype == bool and array.shape == (count,):
        return np.flatnonzero(array)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidValueError(
            f"rows must be integers, a slice or {count:,} booleans, not {array.dtype} of shape {array.shape}"
        )
    wrong = array[(array < 0) | (array >= count)]
    if len(wrong):
        raise InvalidValueError(f"there is no row {int(wrong[0])}: the store has rows 0 to {count - 1}")
    return array.astype(np.int64, copy=False)


def select(
    store: Store,
    *,
    words: str | Iterable[str] | None,
    types: int | Iterable[int] | None,
    labels: Mapping[str, str | Iterable[str]] | None,
    sentences: int | Iterable[int] | None,
    rows: ArrayLike | slice | None,
    where: Any,
    layers: int | Iterable[int] | None,
) -> Selection:
    """Build the selection that `Store.select` describes."""
    filters: list[Filter] = []
    if words is not None:
        filters.append(_by_type(store, _types_of(store, [words] if isinstance(words, str) else list(words))))
    if types is not None:
        filters.append(_by_type(store, [types] if isinstance(types, int | np.integer) else list(types)))
    for column, names in (labels or {}).items():
        filters.append(_by_label(store, column, [names] if isinstance(names, str) else list(names)))
    if sentences is not None:
        filters.append(_by_sentence(store, [sentences] if isinstance(sentences, int | np.integer) else list(sentences)))
    if where is not None:
        filters.append(lambda index: _matching(index, where))
    return Selection(store, layers=_layers(store, layers), filters=filters, start=rows)


def _matching(index: Index, where: Any) -> NDArray[np.int64]:
    from embstore.store.table import matching_rows

    return matching_rows(index, where)


def _layers(store: Store, layers: int | Iterable[int] | None) -> tuple[int, ...]:
    if layers is None:
        return store.layers
    chosen = (layers,) if isinstance(layers, int | np.integer) else tuple(layers)
    for layer in chosen:
        if layer not in store.layers:
            stored = ", ".join(map(str, store.layers))
            raise InvalidValueError(f"layer {layer!r} is not stored: the store has the layers {stored}")
    if not chosen:
        raise InvalidValueError("no layer is chosen: name one or more, or leave layers out for all of them")
    return tuple(int(layer) for layer in chosen)


def _types_of(store: Store, words: list[str]) -> list[int]:
    types = []
    for word in words:
        number = store.type_of(word)
        if number is None:
            raise InvalidValueError(f"the store has no word {word!r}{_suggestion(word, store.index.words)}")
        types.append(number)
    return types


def _suggestion(word: str, words: Strings) -> str:
    near = get_close_matches(word, words, n=3) if len(words) < 200_000 else []
    return f": did you mean {' or '.join(map(repr, near))}?" if near else "; words are spelled as in the corpus"


def _by_type(store: Store, types: list[int]) -> Filter:
    def rows(index: Index) -> NDArray[np.int64]:
        found = [store.occurrences_of(number) for number in sorted(set(types))]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    return rows


def _by_label(store: Store, column: str, names: list[str]) -> Filter:
    labels = store.index.labels
    if column not in labels:
        raise InvalidValueError(f"there is no label column {column!r}: the store has {', '.join(labels) or 'none'}")
    known = list(labels[column].names)
    for name in names:
        if name not in known:
            some = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
            raise InvalidValueError(f"no occurrence has {column} {name!r}: the labels are {some}")
    codes = np.array([known.index(name) for name in names], np.int32)
    return lambda index: np.flatnonzero(np.isin(index.labels[column].codes, codes))


def _by_sentence(store: Store, sentences: list[int]) -> Filter:
    count = len(store.index.indptr) - 1
    for sentence in sentences:
        if not 0 <= sentence < count:
            raise InvalidValueError(f"there is no sentence {sentence}: the store has sentences 0 to {count - 1}")

    def rows(index: Index) -> NDArray[np.int64]:
        spans = [np.arange(index.indptr[number], index.indptr[number + 1]) for number in sorted(set(sentences))]
        return np.concatenate([np.empty(0, np.int64), *spans])

    return rows
