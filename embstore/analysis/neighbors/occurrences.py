"""Nearest neighbours as a table: of a word's occurrences, of one occurrence, of static vectors, of any vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors.exact import ArrayVectors, Exclusion, Hits, StoreVectors, exact_search
from embstore.analysis.neighbors.space import METRICS, Space, space_of
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store
from embstore.vectors import WordVectors

if TYPE_CHECKING:
    import polars as pl

    from embstore.analysis.neighbors.indexes import LayerIndex

POOLS = ("each", "mean")


def neighbors(
    source: Store | Selection | WordVectors,
    word: str | Sequence[str] | None = None,
    *,
    occurrence: int | Sequence[int] | None = None,
    vectors: ArrayLike | None = None,
    layer: int | None = None,
    k: int = 10,
    metric: str = "cosine",
    center: bool = False,
    components: int = 0,
    pool: str = "each",
    labels: Mapping[str, str | Iterable[str]] | None = None,
    same_word: bool = True,
    same_sentence: bool = True,
    index: LayerIndex | str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> pl.DataFrame:
    """Find the k nearest neighbours of words, occurrences or vectors, nearest first; exact without an index.

    One row a neighbour. Over a layer of a store (the last if not given): `query, rank, score, occurrence, word,
    sentence, position`, the label columns (`label_` before a name that is taken), `text` (the sentence), `marked` (its
    word in brackets), `store`, `layer`. `query` is the row of the occurrence asked about, the word for `pool="mean"`,
    else the number of the vector. Over WordVectors: `query, rank, score, word`.

    `word`: each of its occurrences is a query, or with `pool="mean"` their mean. `occurrence`: rows of the store.
    `vectors`: [q, feature], as the store has them. An occurrence is not its own neighbour, nor a word in WordVectors;
    with `pool="mean"` the word's own occurrences are found too. Candidates are all occurrences of a store, or those of
    a selection; `labels` keeps those with these labels, `same_word=False` and `same_sentence=False` leave out those of
    the query's own word (form) and sentence. `metric`: cosine, ip (inner product) or l2 (score: the distance).
    `center` and `components` take the layer's mean and first principal components away, from queries too. `index`: an
    index of that layer and space, or its name: quicker where there are millions of rows, and nearly all that is near.

    Raises InvalidValueError in one line: an unknown word (near spellings are named), a layer not stored, k of less than
    1 or more than there are candidates, no candidate left.
    """
    if metric not in METRICS:
        raise InvalidValueError(f"unknown metric {metric!r}; allowed are {', '.join(METRICS)}")
    if pool not in POOLS:
        raise InvalidValueError(f"unknown pool {pool!r}; allowed are {', '.join(POOLS)}")
    given = [
        name for name, value in (("word", word), ("occurrence", occurrence), ("vectors", vectors)) if value is not None
    ]
    if len(given) != 1:
        raise InvalidValueError(f"give one of word, occurrence and vectors, not {' and '.join(given) or 'none'}")
    if isinstance(source, WordVectors):
        if occurrence is not None or layer is not None or labels or pool != "each":
            raise InvalidValueError("word vectors have no occurrences, layers or labels: give word or vectors alone")
        return _of_word_vectors(source, word, vectors, k, metric, center, components, threads)
    asking = _Asking(source, layer, labels)
    queries = asking.queries(word, occurrence, vectors, pool)
    exclude = asking.exclusions(queries, same_word=same_word, same_sentence=same_sentence)
    _require_k(k, len(asking.rows), "occurrences")
    if index is not None:
        opened = asking.fitting(index, metric=metric, center=center, components=components)
        rows = None if len(asking.rows) == asking.store.n_rows else asking.rows
        hits = opened.search(queries.vectors, k=k, rows=rows, exclude=exclude, threads=threads)
        return asking.table(queries, hits)
    hits = exact_search(
        StoreVectors(asking.store, asking.layer),
        queries.vectors,
        k=k,
        space=space_of(asking.selection, asking.layer, metric=metric, center=center, components=components),
        rows=asking.rows,
        exclude=exclude,
        device=device,
        threads=threads,
        progress=progress,
    )
    return asking.table(queries, hits)


@dataclass(frozen=True)
class Queries:
    """What is asked: `names` (rows, words or numbers) and `vectors` [q, feature]; `rows` and `types`: -1 for none."""

    names: list[int] | list[str]
    vectors: NDArray[np.floating]
    rows: NDArray[np.int64]
    types: NDArray[np.int64]


@dataclass
class _Asking:
    """A store, the layer and the occurrences that may be found."""

    source: Store | Selection
    asked_layer: int | None
    labels: Mapping[str, str | Iterable[str]] | None
    store: Store = field(init=False)
    layer: int = field(init=False)
    rows: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.source, Store):
            self.store, self.rows = self.source, np.arange(self.source.n_rows)
            self.layer = self.store.layers[-1]
        else:
            self.store, self.rows = self.source.store, np.unique(self.source.rows)
            if self.asked_layer is None and len(self.source.layers) > 1 and self.source.layers != self.store.layers:
                raise InvalidValueError("the selection has several layers: say which with layer")
            self.layer = self.source.layers[-1]
        if self.asked_layer is not None:
            self.layer = self.store.select(layers=self.asked_layer).layers[0]
        if self.labels:
            self.rows = np.intersect1d(self.rows, self.store.select(labels=self.labels).rows)
        if not len(self.rows):
            raise InvalidValueError(f"no occurrence of {self.store.path} is left to be found: choose other conditions")

    def fitting(self, index: LayerIndex | str, *, metric: str, center: bool, components: int) -> LayerIndex:
        """The index, opened; raises InvalidValueError where it is of another layer or space."""
        from embstore.analysis.neighbors.indexes import open_index

        opened = open_index(self.store, name=index) if isinstance(index, str) else index
        recipe = opened.info.recipe
        made = {
            "layer": recipe.layer,
            "metric": recipe.metric,
            "center": recipe.center,
            "components": recipe.components,
        }
        asked = {"layer": self.layer, "metric": metric, "center": center, "components": components}
        if components:
            made["center"] = center
        for option, value in asked.items():
            if made[option] != value:
                raise InvalidValueError(
                    f"the index {opened.name} has {option} {made[option]}, not {value}: ask the same, or leave it out"
                )
        return opened

    @property
    def selection(self) -> Selection:
        return Selection(self.store, layers=(self.layer,), rows=self.rows)

    def queries(
        self,
        word: str | Sequence[str] | None,
        occurrence: int | Sequence[int] | None,
        vectors: ArrayLike | None,
        pool: str,
    ) -> Queries:
        if vectors is not None:
            held = np.asarray(vectors, np.float64)
            held = held[None] if held.ndim == 1 else held
            none = np.full(len(held), -1)
            return Queries(list(range(len(held))), held, none, none)
        if word is not None and pool == "mean":
            words = [word] if isinstance(word, str) else list(word)
            means = [
                self.store.select(words=one, layers=self.layer).vectors(dtype="float64")[0].mean(0) for one in words
            ]
            types = np.array([self.store.type_of(one) for one in words], np.int64)
            return Queries(words, np.array(means), np.full(len(words), -1), types)
        given = [occurrence] if isinstance(occurrence, int | np.integer) else occurrence
        chosen = self.store.select(words=word, rows=None if given is None else np.asarray(given, np.int64))
        if not len(chosen.rows):
            raise InvalidValueError("no occurrence is asked about: give one or more")
        rows = chosen.rows
        types = np.asarray(self.store.index.type[rows]).astype(np.int64)
        return Queries(rows.tolist(), self.store.gather(rows, self.layer), rows, types)

    def exclusions(self, queries: Queries, *, same_word: bool, same_sentence: bool) -> list[Exclusion]:
        index = self.store.index
        exclude = []
        if (queries.rows >= 0).any():
            exclude.append(Exclusion(np.arange(self.store.n_rows), queries.rows))
        if not same_word:
            if (queries.types < 0).any():
                raise InvalidValueError("same_word is of a word or an occurrence: a vector has no word of its own")
            exclude.append(Exclusion(np.asarray(index.type).astype(np.int64), queries.types))
        if not same_sentence:
            if (queries.rows < 0).any():
                raise InvalidValueError("same_sentence is of an occurrence: ask about occurrences")
            sentences = np.asarray(index.sentence).astype(np.int64)
            exclude.append(Exclusion(sentences, sentences[queries.rows]))
        return exclude

    def table(self, queries: Queries, hits: Hits) -> pl.DataFrame:
        """One row a hit, with where it stands."""
        import polars as pl

        found = hits.rows >= 0
        query, rank = np.nonzero(found)
        rows = hits.rows[found]
        contexts = Selection(self.store, layers=(self.layer,), rows=rows).table()
        contexts = contexts.drop("subwords", "source")
        told = pl.DataFrame(
            {
                "query": pl.Series([queries.names[number] for number in query.tolist()]),
                "rank": rank + 1,
                "score": hits.scores[found],
            }
        )
        taken = {"query", "rank", "score", "marked", "store", "layer"}
        contexts = contexts.rename({name: f"label_{name}" for name in contexts.columns if name in taken})
        contexts = contexts.with_columns(pl.Series("marked", marked(contexts), dtype=pl.String))
        where = {"store": pl.lit(str(self.store.path)), "layer": pl.lit(self.layer, pl.Int64)}
        return pl.concat([told, contexts], how="horizontal").with_columns(**where)


def marked(contexts: pl.DataFrame) -> list[str]:
    """Each sentence with its word in brackets; a phrase whole."""
    texts = []
    for text, position, word in zip(contexts["text"], contexts["position"], contexts["word"], strict=True):
        words = text.split(" ")
        stop = position + len(word.split(" "))
        texts.append(" ".join([*words[:position], f"[{' '.join(words[position:stop])}]", *words[stop:]]))
    return texts


def _require_k(k: int, count: int, what: str) -> None:
    if k < 1:
        raise InvalidValueError(f"k {k} is not allowed: give 1 or more")
    if k > count:
        raise InvalidValueError(f"k {k} is more than the {count:,} {what} that may be found: ask for fewer")


def _of_word_vectors(
    table: WordVectors,
    word: str | Sequence[str] | None,
    vectors: ArrayLike | None,
    k: int,
    metric: str,
    center: bool,
    components: int,
    threads: int | None,
) -> pl.DataFrame:
    import polars as pl

    exclude = []
    names: list[int] | list[str]
    if word is not None:
        names = [word] if isinstance(word, str) else list(word)
        places = table.rows_of(names)
        for name, place in zip(names, places.tolist(), strict=True):
            if place < 0:
                near = get_close_matches(name, table.words, n=3) if len(table) < 200_000 else []
                hint = f"; near it are {', '.join(near)}" if near else ": words are spelled as in the file"
                raise InvalidValueError(f"there is no vector of {name!r}{hint}")
        asked: ArrayLike = table.vectors[places]
        exclude.append(Exclusion(np.arange(len(table)), places))
    else:
        asked = np.atleast_2d(np.asarray(vectors, np.float64))
        names = list(range(len(asked)))
    _require_k(k, len(table) - len(exclude), "words")
    space = array_space(table.vectors, metric=metric, center=center, components=components)
    hits = exact_search(ArrayVectors(table.vectors), asked, k=k, space=space, exclude=exclude, threads=threads)
    query, rank = np.nonzero(hits.rows >= 0)
    return pl.DataFrame(
        {
            "query": pl.Series([names[number] for number in query.tolist()]),
            "rank": rank + 1,
            "score": hits.scores[query, rank],
            "word": [table.words[row] for row in hits.rows[query, rank].tolist()],
        }
    )


def array_space(vectors: NDArray[np.float32], *, metric: str, center: bool, components: int) -> Space:
    """The space of vectors in memory, as `space_of` makes it of a layer."""
    if components < 0 or components >= vectors.shape[1]:
        raise InvalidValueError(f"components {components} is not allowed: give 0 to {vectors.shape[1] - 1}")
    if not center and not components:
        return Space(metric)
    mean = vectors.mean(0, dtype=np.float64)
    if not components:
        return Space(metric, mean)
    centred = vectors - mean
    directions = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :components].T
    return Space(metric, mean, np.ascontiguousarray(directions))
