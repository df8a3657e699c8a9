"""Nearest neighbours of an occurrence, a word or a typed sentence, at several layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import Hits, exact_search
from embstore.analysis.neighbors.space import Rows, StoreVectors
from embstore.errors import InvalidValueError
from embstore.explorer.parameters import Bounds, Layers, Number, Row, Text, Where, Word
from embstore.explorer.queries.registry import Asked
from embstore.explorer.queries.words import described, found_rows
from embstore.explorer.stores import Explored
from embstore.store.layout import resolve_layers

MAX_LAYERS = 16


@dataclass(frozen=True)
class _Query:
    """What neighbours are searched of: the `rows` whose mean is compared, or a typed sentence with its `vectors`."""

    shown: dict[str, Any]
    python: str
    rows: NDArray[np.int64]
    vectors: NDArray[np.floating] | None = None


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
) -> dict[str, Any]:
    """Return the k nearest occurrences at some layers of an occurrence, of the mean of a word, or of a new sentence.

    `layers`: such as 0,6,12; the first, middle and last one by default. `where`: neighbours are only among these.
    """
    one = asked.store(store)
    stored = one.store.layers
    chosen = resolve_layers(layers or (stored[0], stored[len(stored) // 2], stored[-1]), stored)
    chosen = tuple(dict.fromkeys(chosen))
    if len(chosen) > MAX_LAYERS:
        raise InvalidValueError(f"layers are {len(chosen)}: give {MAX_LAYERS} at most")
    query = _query(one, row, word, text, chosen)
    candidates = _candidates(one, where)
    found = []
    for number, layer in enumerate(chosen):
        asked.report(number, len(chosen))
        vector = (
            one.store.gather(query.rows, layer).astype(np.float64).mean(0)
            if query.vectors is None
            else query.vectors[number]
        )
        hits = _search(one, layer, vector, candidates, k, row)
        near = hits.rows[0][hits.rows[0] >= 0]
        pairs = zip(described(one.store, near), hits.scores[0].tolist(), strict=False)
        found.append({"layer": layer, "neighbors": [{**each, "similarity": score} for each, score in pairs]})
    kept = "store" if where is None else f"store.select(where=pl.sql_expr({where!r}))"
    return {
        "query": query.shown,
        "layers": found,
        "python": one.python(f"[es.neighbors({kept}, {query.python}, layer=layer, k={k}) for layer in {list(chosen)}]"),
    }


def _query(one: Explored, row: int | None, word: str | None, text: str | None, layers: tuple[int, ...]) -> _Query:
    if (row is not None) + (word is not None) + (text is not None) != 1:
        raise InvalidValueError("give one of row, word and text")
    if row is not None:
        (shown,) = described(one.store, [row])
        own = {name: shown[name] for name in ("word", "left", "right")}
        return _Query({**own, "count": 1}, f"occurrence={row}", np.array([row]))
    if word is not None:
        rows = np.asarray(found_rows(one, word, None))
        return _Query({"word": word, "left": "", "right": "", "count": len(rows)}, f"{word!r}, pool='mean'", rows)
    raise InvalidValueError("new sentences cannot be encoded yet")


def _candidates(one: Explored, where: str | None) -> Rows:
    """Return the rows that can be found: those of a condition, of an unfinished store those that are written."""
    rows: Rows = np.asarray(found_rows(one, None, where)) if where is not None else range(one.store.n_rows)
    if one.store.n_committed_rows < one.store.n_rows:
        rows = np.asarray(rows, np.int64)
        rows = rows[one.store.is_written(rows)]
    if not len(rows):
        raise InvalidValueError("no occurrence can be found: choose other conditions")
    return rows


def _search(one: Explored, layer: int, vector: NDArray[np.floating], rows: Rows, k: int, row: int | None) -> Hits:
    """Return the k nearest rows, without the query's own."""
    hits = exact_search(StoreVectors(one.store, layer), vector, k=k + 1, rows=rows, device="cpu")
    others = hits.rows[0] != (-1 if row is None else row)
    return Hits(hits.rows[:, others][:, :k], hits.scores[:, others][:, :k])
