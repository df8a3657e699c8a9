"""Nearest neighbours of an occurrence, a word or a typed sentence, at several layers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.errors import InvalidValueError, NonFiniteError
from embstore_explorer.parameters import Bounds, Layers, Number, Row, Text, Where, Word
from embstore_explorer.queries.registry import Asked, CancelledQueryError, NotFoundError
from embstore_explorer.queries.words import described, found_rows, vocabulary
from embstore_explorer.stores import Explored

if TYPE_CHECKING:
    import polars as pl

MAX_LAYERS = 16
AT_ONCE = 64  # vectors of one search
MANY, MOST = 8, 20_000  # for k distinct words 8 k occurrences are searched, then 8 times as many, until 20,000 are


@dataclass
class _Waiting:
    """A vector whose neighbours are searched together with those of others."""

    asked: Asked
    layer: int
    vector: NDArray[np.floating]
    k: int
    hits: pl.DataFrame | None = None
    error: BaseException | None = None
    done: Event = field(default_factory=Event)


@dataclass
class _Searches:
    """The searches of one store, one at a time: the vectors that come meanwhile are searched together by the next.

    A search of many vectors takes little longer than that of a single one, since a layer is read once for all.
    """

    one: Explored
    lock: Lock = field(default_factory=Lock)
    waiting: dict[Hashable, list[_Waiting]] = field(default_factory=dict)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="search"))

    def find(self, own: list[_Waiting], where: str | None, data: es.store.Selection) -> list[pl.DataFrame]:
        """Return the nearest of some rows, those of the condition `where`, of vectors at their layers."""
        for each in own:
            with self.lock:
                self.waiting.setdefault((where, each.layer), []).append(each)
            self.thread.submit(self._next, where, each.layer, data)
        for each in own:
            each.done.wait()
            if each.error is not None:
                raise each.error
        return [each.hits for each in own if each.hits is not None]

    def find_words(
        self,
        asked: Asked,
        vectors: Mapping[int, NDArray[np.floating]],
        where: str | None,
        data: es.store.Selection,
        k: int,
    ) -> tuple[list[pl.DataFrame], int]:
        """Return the nearest occurrence of the k nearest words at each layer, and of how many they are taken."""
        many = MANY * k
        while True:
            own = [_Waiting(asked, layer, vector, many) for layer, vector in vectors.items()]
            found = [_each_once(hits) for hits in self.find(own, where, data)]
            if many >= min(len(data), MOST) or min(map(len, found)) >= k:
                return [hits.head(k) for hits in found], min(many, len(data))
            many *= MANY

    def _next(self, where: str | None, layer: int, data: es.store.Selection) -> None:
        """Search the vectors that wait for a layer, if others have not been faster."""
        with self.lock:
            waiting = self.waiting.pop((where, layer), [])
            some, rest = waiting[:AT_ONCE], waiting[AT_ONCE:]
            if rest:
                self.waiting[where, layer] = rest
        if some:
            self._search(some, layer, data)

    def _search(self, some: list[_Waiting], layer: int, data: es.store.Selection) -> None:
        def report(done: int, total: int | None) -> None:
            left = 0
            for each in some:
                try:
                    each.asked.report(done, total)
                except CancelledQueryError:
                    left += 1
            if left == len(some):
                raise CancelledQueryError

        vectors, most = np.stack([each.vector for each in some]), max(each.k for each in some)
        try:
            with es.config(progress=report, device="cpu"):
                found = es.neighbors(data, vectors, layers=layer, k=min(most, len(data)))
            for number, each in enumerate(some):
                each.hits = found.filter(found["query"] == number).head(each.k)
        except BaseException as error:  # a panic of Rust too: those who wait have no other end
            for each in some:
                each.error = error
        for each in some:
            each.done.set()


def _each_once(hits: pl.DataFrame) -> pl.DataFrame:
    """Return the first occurrence of each word, whatever its case."""
    lower = hits["word"].cast(str).str.to_lowercase()
    return hits.filter(lower.is_first_distinct())


@dataclass(frozen=True)
class _Query:
    """What neighbours are searched of: `vectors` float64 [layer, feature]. `shown`: its word in its context."""

    shown: dict[str, Any]
    python: str
    vectors: NDArray[np.float64]


def neighbors(
    asked: Asked,
    *,
    store: Number = 0,
    row: Row | None = None,
    word: Word | None = None,
    text: Text | None = None,
    layers: Layers | None = None,
    k: Annotated[int, Bounds(1, 200)] = 10,
    where: Where | None = None,
    others: bool = False,
) -> dict[str, Any]:
    """Return the k nearest occurrences at some layers of an occurrence, of the mean of a word, or of a new sentence.

    `text` has its word in [brackets]. `layers`: such as 0,6,12; the first, middle and last one by default. `where`:
    neighbours are only among these occurrences. `others`: only other words than that of the query, each once, by its
    nearest occurrence, whatever the case. By cosine, as `embstore.neighbors`.
    """
    one = asked.store(store)
    stored = one.store.layers
    given = layers or (stored[0], stored[len(stored) // 2], stored[-1])
    chosen = tuple(dict.fromkeys(one.store.select(rows=[], layers=given).layers))
    if len(chosen) > MAX_LAYERS:
        raise InvalidValueError(f"{len(chosen)} layers are too many: give {MAX_LAYERS} at most")
    query = _query(one, row, word, text, chosen)
    if others:
        where = _unlike(one, query.shown["word"], where)
    candidates = _candidates(one, where)
    searches: _Searches = one.once("searches", lambda: _Searches(one))
    bad = [layer for layer, vector in zip(chosen, query.vectors, strict=True) if not np.isfinite(vector).all()]
    if bad:
        raise NonFiniteError(f"layer {bad[0]} of the query holds a value that is not finite: run embstore verify")
    vectors = dict(zip(chosen, query.vectors, strict=True))
    if others:
        frames, count = searches.find_words(asked, vectors, where, candidates, k)
    else:  # one more than k, since an occurrence finds itself
        own = [_Waiting(asked, layer, vector, k + 1) for layer, vector in vectors.items()]
        hits = searches.find(own, where, candidates)
        frames, count = [each.filter(each["occurrence"] != (-1 if row is None else row)).head(k) for each in hits], None
    return {
        "query": query.shown,
        "layers": [_described(one, layer, frame) for layer, frame in zip(chosen, frames, strict=True)],
        "python": one.python(*_python(query, chosen, where, k, count)),
    }


def _described(one: Explored, layer: int, hits: pl.DataFrame) -> dict[str, Any]:
    pairs = zip(described(one.store, hits["occurrence"]), hits["score"].to_list(), strict=True)
    return {"layer": layer, "neighbors": [{**each, "similarity": score} for each, score in pairs]}


def _python(query: _Query, layers: tuple[int, ...], where: str | None, k: int, count: int | None) -> list[str]:
    """Return the lines that find the same; `count`: the occurrences of which the first of each word are taken."""
    data = "store" if where is None else f"store.select(where={where!r})"
    loop = f"for layer in {list(layers)}:"
    found = f"es.neighbors({data}, {query.python}, layers=layer, k={count or k})"
    if count is None:
        return [loop, f"    print({found})"]
    once = f"found.filter(found['word'].cast(str).str.to_lowercase().is_first_distinct()).head({k})"
    return [loop, f"    found = {found}", f"    print({once})"]


def _unlike(one: Explored, word: str, where: str | None) -> str | None:
    """Return the condition that also leaves out all forms of a word, whatever the case."""
    known, folded = vocabulary(one), word.casefold()
    types = known.types[bisect_left(known.folded, folded) : bisect_right(known.folded, folded)].tolist()
    forms = [one.store.index.words[number].replace("'", "''") for number in types]
    own = [] if where is None else [f"({where})"]
    return " AND ".join([*own, *(f"word <> '{form}'" for form in forms)]) or None


def _query(one: Explored, row: int | None, word: str | None, text: str | None, layers: tuple[int, ...]) -> _Query:
    """Return the query and its vectors. Raises InvalidValueError unless one of row, word and text is given."""
    if (row is not None) + (word is not None) + (text is not None) != 1:
        raise InvalidValueError("give one of row, word and text")
    if text is not None:
        from embstore.analysis import encode_word

        if not one.can_encode:
            one.encoder()  # raises why
        with one.encoding:
            vectors = encode_word(one.store, text, layers=layers, model=one.encoder())
        left, _, rest = text.partition("[")
        marked, _, right = rest.partition("]")
        shown = {"word": marked, "left": left, "right": right, "count": 1}
        return _Query(shown, repr(text), vectors.astype(np.float64))
    if row is not None:
        if row >= one.store.n_rows:
            raise NotFoundError(f"there is no row {row}: the store has rows 0 to {one.store.n_rows - 1}")
        (own,) = described(one.store, [row])
        shown = {name: own[name] for name in ("word", "left", "right")} | {"count": 1}
        return _Query(
            shown, f"store.select(rows=[{row}])", one.store.vectors([row], layers=layers)[:, 0].astype(np.float64)
        )
    assert word is not None
    chosen = one.store.select(rows=np.asarray(found_rows(one, word, None)))
    rows = one.sinkless(chosen).rows  # the mean of all would be that of the sinks
    sinks = ", sinks=False" if len(rows) < len(chosen) else ""
    means = one.once(("mean", word, layers), lambda: _means(one, rows, layers))
    shown = {"word": word, "left": "", "right": "", "count": len(rows)}
    return _Query(shown, f"store.select(words={word!r}, layers=layer{sinks}).vectors().mean(0)", means)


def _means(one: Explored, rows: NDArray[np.int64], layers: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the mean of some rows at some layers, float64 [layer, feature]."""
    sums = {layer: np.zeros(one.store.hidden_size) for layer in layers}
    for block in one.store.select(rows=rows, layers=layers).scan():
        sums[block.layer] += block.vectors.sum(0, dtype=np.float64)
    return np.stack([sums[layer] for layer in layers]) / len(rows)


def _candidates(one: Explored, where: str | None) -> es.store.Selection:
    """Return the rows that can be found: those of a condition; of an unfinished store those that are written."""
    rows = one.store.select(rows=None if where is None else np.asarray(found_rows(one, None, where)))
    rows = rows if one.store.finished else rows.written()
    if not len(rows):
        raise InvalidValueError("no occurrence can be found: choose another condition")
    return rows
