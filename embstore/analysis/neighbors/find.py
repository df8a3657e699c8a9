"""Nearest neighbours as a table: of a word, of occurrences, of vectors, or of a word in a new sentence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors import sketch
from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.index import LayerIndex, LayerSketch, find_sketch, open_index
from embstore.analysis.neighbors.space import ArrayVectors, Metric, Rows, Space, StoreVectors, space_of
from embstore.arguments import Positive, as_matrix, checked
from embstore.config import settings
from embstore.errors import EmbstoreWarning, InvalidValueError, SearchIndexError
from embstore.progress import reporting
from embstore.store import Selection, Store
from embstore.store.conditions import near_words
from embstore.store.layout import Layers, one_layer
from embstore.vectors import WordVectors

if TYPE_CHECKING:
    from embstore.corpus import Sentence
    from embstore.models import Encoder

Exclude = Literal["self", "word", "sentence", "both"]
MANY, MOST = 8, 2_000  # to find k distinct words, 8 k occurrences are searched, then 8 times as many, up to 2,000
MARKED = re.compile(r"\[([^\[\]]+)\]")  # a word in brackets


@checked
def neighbors(
    data: Store | Selection | WordVectors,
    query: str | Selection | ArrayLike,
    *,
    k: Positive = 10,
    metric: Metric = "cosine",
    layers: Layers = -1,
    centered: bool = False,
    exclude: Exclude | None = None,
    index: LayerIndex | str | None = None,
    model: str | Path | None = None,
) -> pl.DataFrame:
    """Find the k nearest neighbours of words, occurrences or vectors, nearest first; exact without an index.

    Parameters
    ----------
    data : Store, Selection or WordVectors
        What can be found: the occurrences of a store, those of a selection, or words.
    query : str, list of str, Selection or array
        A word, or several, of which each occurrence is a query; occurrences, `store.select(...)`; vectors [q, feature]
        or [feature] as stored; or a new sentence with one word in [brackets], encoded by the model of the store.
    k : int
        The number of neighbours of each query.
    metric : str
        "cosine", "ip" (inner product) or "l2" (Euclidean distance).
    layers : int or str
        One layer.
    centered : bool
        Subtract the mean of what can be found, from queries too.
    exclude : str, optional
        What is not found: "self", the query itself; "word", the word of the query, whatever the case, and then each
        other word is found once, by its nearest occurrence, if it is among the 2,000 nearest; "sentence", what is in
        the sentence of the query; or "both". By default "word" where the query is a word, else "self".
    index : LayerIndex or str, optional
        An index of the same layer and space, or its name: faster for millions of rows, and finds nearly all neighbours.
        Without one, a search of few queries reads a sketch if the layer has one, with the same result.
    model : str or Path, optional
        Where the model of the store is now, for a new sentence.

    Returns
    -------
    DataFrame
        One row per neighbour. In a store: `query, rank, score, word, occurrence, sentence, position`, the label columns
        (prefixed with `label_` if a name is taken), `text`, `marked` (with its word in brackets), `store`, `layer`,
        `search` (scan: the layer was read; sketch: a part of it that proves the same result; index). In WordVectors:
        `query, rank, score, word`. `query` is the row of the occurrence, the word, or the number of the vector.

    Raises
    ------
    InvalidValueError
        For an unknown word, layer or metric, and for a k above the number of candidates.
    ModelError
    """
    space = {"metric": metric, "centered": centered}
    if isinstance(data, WordVectors):
        is_of_store = exclude or index is not None or model is not None or isinstance(query, Selection)
        if is_of_store or layers not in (-1, "last"):
            raise InvalidValueError("word vectors have no layers, occurrences, index or model: leave these options out")
        return _in_word_vectors(data, query, k, space)
    selection = data.select() if isinstance(data, Store) else data
    store = selection.store
    rows: Rows = np.unique(selection.rows) if selection.span is None else selection.span
    if not len(rows):
        raise InvalidValueError(f"no occurrence of {store.path} can be found: choose other conditions")
    layer = one_layer(layers, data.layers if layers in (-1, "last") else store.layers)
    queries = Queries.of(store, layer, query, model)
    exclude = exclude or ("word" if _words_of(query) and not queries.marked else "self")
    if k > len(rows):
        raise InvalidValueError(f"k {k} is more than the {len(rows):,} occurrences that can be found: give less")
    opened = open_index(store, name=index) if isinstance(index, str) else index
    if opened is not None and opened.layer != layer:
        raise InvalidValueError(f"the index {opened.name} has layer {opened.layer}, not {layer}: use the same value")

    def search(some: Queries, count: int) -> tuple[Hits, list[str]]:
        return _search(selection, rows, layer, some, space, count, _exclusions(store, some, exclude), opened)

    each_once = exclude in ("word", "both")
    found = _words_once(search, store, queries, k, len(rows)) if each_once else search(queries, k)
    return _table(store, layer, queries, *found)


def _words_once(
    search: Callable[[Queries, int], tuple[Hits, list[str]]], store: Store, queries: Queries, k: int, n_rows: int
) -> tuple[Hits, list[str]]:
    """Return the nearest occurrence of each of the k nearest words but that of the query, whatever the case.

    More occurrences are searched for those queries of which too few words are found.
    """
    rows, scores = np.full((len(queries.vectors), k), -1), np.full((len(queries.vectors), k), np.nan)
    how, left, many = [""] * len(rows), np.arange(len(rows)), min(MANY * k, n_rows)
    own = queries.words(store)
    while len(left):
        hits, found_by = search(queries.some(left), many)
        is_short = np.zeros(len(left), bool)
        types = np.unique(store.index.type[hits.rows[hits.rows >= 0]])
        names = {number: store.index.words[number].lower() for number in types.tolist()}
        for place, query in enumerate(left):
            how[query] = found_by[place]
            once: dict[str, int] = {own[query]: -1}
            near = hits.rows[place][hits.rows[place] >= 0]
            for at, number in enumerate(store.index.type[near].tolist()):
                once.setdefault(names[number], at)
            places = list(once.values())[1 : k + 1]
            is_short[place] = len(places) < k and len(near) == many
            rows[query, : len(places)], scores[query, : len(places)] = near[places], hits.scores[place, places]
        left = left[is_short] if many < min(MOST, n_rows) else left[:0]
        many = min(MANY * many, max(MOST, k), n_rows)
    return Hits(rows, scores), how


def _search(
    selection: Selection,
    rows: Rows,
    layer: int,
    queries: Queries,
    space: dict[str, Any],
    k: int,
    excluded: list[Exclusion],
    opened: LayerIndex | None,
) -> tuple[Hits, list[str]]:
    """Search in an index, through a sketch, or by a scan; and return of each query which it was."""
    store, n_queries, is_given = selection.store, len(queries.vectors), opened is not None
    options: dict[str, Any] = {"k": k, "exclude": excluded}
    if opened is not None and not isinstance(opened, LayerSketch):
        if space["centered"] or space["metric"] != opened.info.metric:
            raise InvalidValueError(
                f"the index {opened.name} is of vectors as stored, by {opened.info.metric}: leave centered out and use "
                "this metric, or search without this index"
            )
        some = None if len(rows) == store.n_rows else rows
        return opened.search(queries.vectors, rows=some, **options), ["index"] * n_queries
    # A sketch is of the layer as stored, or minus the mean of all rows.
    if not space["centered"] or len(rows) == store.n_rows:
        try:
            if opened is None and settings().device in ("auto", "cpu") and len(rows) > sketch.FEW_ROWS:
                few = n_queries * sketch.FEATURES_A_QUERY <= max(store.hidden_size, sketch.FEATURES_A_QUERY)
                opened = find_sketch(store, layer) if few or not isinstance(store.path, Path) else None
            if isinstance(opened, LayerSketch):
                compared = Space(space["metric"], opened.sketch.rotation.mean if space["centered"] else None)
                near = opened.search(queries.vectors, space=compared, rows=rows, **options)
                return near, ["scan" if scanned else "sketch" for scanned in near.scanned]
        except SearchIndexError as error:
            if is_given:
                raise
            warnings.warn(f"{error}; this search reads the layer instead", EmbstoreWarning, stacklevel=4)
    chosen = Selection(store, layers=(layer,), rows=slice(rows.start, rows.stop) if isinstance(rows, range) else rows)
    options |= {"space": space_of(chosen, layer, **space), "rows": rows}
    with reporting(settings().progress, total=len(rows), unit="vectors", label="neighbors") as report:
        hits = exact_search(StoreVectors(store, layer), queries.vectors, progress=report, **options)
    return hits, ["scan"] * n_queries


@dataclass(frozen=True)
class Queries:
    """The queries: their `names`, `vectors` [q, feature], `rows` (-1 for none), and `marked`, the word of a text."""

    names: list[Any]  # rows, numbers of vectors, or words
    vectors: NDArray[np.floating]
    rows: NDArray[np.int64]
    marked: str = ""

    def some(self, places: NDArray[np.int64]) -> Queries:
        names = [self.names[place] for place in places]
        return Queries(names, self.vectors[places], self.rows[places], self.marked)

    def words(self, store: Store) -> list[str]:
        """Return the word of each query in lower case."""
        if self.marked:
            return [self.marked.lower()]
        return [store.index.words[number].lower() for number in store.index.type[self.rows].tolist()]

    @classmethod
    def of_vectors(cls, vectors: ArrayLike, marked: str = "") -> Queries:
        array = as_matrix("query", vectors, single=True).astype(np.float64)
        return cls(list(range(len(array))), array, np.full(len(array), -1), marked)

    @classmethod
    def of(cls, store: Store, layer: int, query: Any, model: str | Path | None) -> Queries:
        """The queries of a word or words, of a text with a marked word, of a selection, or of vectors."""
        is_text = isinstance(query, str) and "[" in query and store.index.type_of(query) is None
        if model is not None and not is_text:
            raise InvalidValueError("a model encodes a new sentence: give one with a word in [brackets] as the query")
        if is_text:
            vector = encode_word(store, query, layers=[layer], model=model)
            return cls.of_vectors(vector, MARKED.split(query)[1].strip())
        words = _words_of(query)
        if words is None and not isinstance(query, Selection):
            if np.size(query) < store.hidden_size and np.asarray(query).dtype.kind in "iu":
                raise InvalidValueError(
                    f"query: {query} is no vector: for an occurrence give store.select(rows=[number])"
                )
            return cls.of_vectors(query)
        if isinstance(query, Selection) and query.store.path != store.path:
            raise InvalidValueError(
                f"the query is a selection of {query.store.path}, not of {store.path}: give vectors"
            )
        rows = query.rows if words is None else store.select(words=words).rows
        if not len(rows):
            raise InvalidValueError("the query has no occurrence: give one or more")
        return cls(rows.tolist(), StoreVectors(store, layer).gather(rows), rows)


def _words_of(query: Any) -> list[str] | None:
    if isinstance(query, str):
        return [query]
    is_words = isinstance(query, list | tuple) and bool(query) and all(isinstance(word, str) for word in query)
    return list(query) if is_words else None


def _exclusions(store: Store, queries: Queries, exclude: Exclude) -> list[Exclusion]:
    """What each query must not find: itself, and its own word or sentence if these are excluded."""
    if (queries.rows < 0).any():
        if exclude == "self":
            return []
        if exclude != "word" or not queries.marked:
            raise InvalidValueError(f"exclude {exclude!r} needs queries that are words or occurrences: leave it out")
        own = store.index.type_of(queries.marked)
        return [Exclusion(np.asarray(store.index.type), np.array([-1 if own is None else own]))]
    exclusions = [Exclusion(None, queries.rows)]
    columns: tuple[tuple[str, Any], ...] = ("word", store.index.type), ("sentence", store.index.sentence)
    for name, column in columns:
        if exclude in (name, "both"):
            exclusions.append(Exclusion(np.asarray(column), np.asarray(column[queries.rows], np.int64)))
    return exclusions


def _table(store: Store, layer: int, queries: Queries, hits: Hits, search: list[str]) -> pl.DataFrame:
    """One row per hit, with its context; `search`: how each query was answered."""
    query, rank = np.nonzero(hits.rows >= 0)
    rows = hits.rows[query, rank]
    contexts = Selection(store, layers=(layer,), rows=rows).table()
    marked = _marked(store, rows, contexts["text"], contexts["start"], contexts["stop"])
    found: dict[str, Any] = {
        "query": np.asarray(queries.names)[query],
        "rank": rank + 1,
        "score": hits.scores[query, rank],
        "word": contexts["word"],  # among the columns that a narrow print shows
    }
    new = {
        "marked": pl.Series(marked, dtype=pl.String),
        "store": pl.Series([str(store.path)]).new_from_index(0, len(rows)),
        "layer": np.full(len(rows), layer),
        "search": pl.Series(search)[query],
    }
    for column in contexts:
        if (name := column.name) not in ("word", "subwords", "source", "document"):
            found[f"label_{name}" if name in found or name in new else name] = column
    return pl.DataFrame(found | new)


def mark_words(data: Store, rows: ArrayLike) -> list[str]:
    """Return the sentences of some rows with the word, or the whole phrase, in brackets."""
    some = data.select(rows=rows)
    return _marked(data, some.rows, *some.table(columns=["text", "start", "stop"]))


def _marked(store: Store, rows: NDArray[np.int64], text: pl.Series, start: pl.Series, stop: pl.Series) -> list[str]:
    """Return the sentences of some rows with the characters from start to stop in brackets."""
    places = list(zip(text.to_list(), start.to_list(), stop.to_list(), strict=True))
    marked = [f"{line[:begin]}[{line[begin:end]}]{line[end:]}" for line, begin, end in places]
    odd = [number for number, (_, begin, end) in enumerate(places) if begin == end]  # special tokens, not in the text
    for number, (before, word, after) in zip(odd, store.index.concordance(rows[odd]) if odd else (), strict=True):
        marked[number] = f"{before}[{word}]{after}"
    return marked


def _in_word_vectors(table: WordVectors, query: Any, k: int, space: dict[str, Any]) -> pl.DataFrame:
    """Search a table of word vectors exactly."""
    exclude, names = [], _words_of(query)
    if names is None:
        queries = Queries.of_vectors(query)
    else:
        rows = table.rows_of(names)
        if (rows < 0).any():
            name = names[int(rows.argmin())]
            near = near_words(name, table.words)
            hint = f"; similar words are {', '.join(near)}" if near else ": words are spelled as in the file"
            raise InvalidValueError(f"there is no vector of {name!r}{hint}")
        queries = Queries(names, table.vectors[rows], rows)
        exclude = [Exclusion(None, rows)]
    if k > len(table) - len(exclude):
        raise InvalidValueError(
            f"k {k} is more than the {len(table) - len(exclude):,} words that can be found: give less"
        )
    vectors, compared = ArrayVectors(table.vectors), space_of(table.vectors, **space)
    hits = exact_search(vectors, queries.vectors, k=k, space=compared, exclude=exclude)
    query_number, rank = np.nonzero(hits.rows >= 0)
    return pl.DataFrame(
        {
            "query": pl.Series([queries.names[number] for number in query_number.tolist()]),
            "rank": rank + 1,
            "score": hits.scores[query_number, rank],
            "word": [table.words[row] for row in hits.rows[query_number, rank].tolist()],
        }
    )


@checked
def encoder_of(store: Store, model: str | Path | None = None) -> Encoder:
    """Load the model that made a store; `model`: where it is now. Raises ModelError."""
    from embstore.models.loading import encoder_on
    from embstore.models.origin import find_model, require_same_model

    place = find_model(store, model)
    dtype = store.metadata.extraction.get("compute_dtype", "auto")
    encoder = encoder_on(settings().device, place, compute_dtype=dtype, revision=store.metadata.model.get("revision"))
    require_same_model(store, encoder, place)
    return encoder


@checked
def encode_word(
    store: Store, text: str, *, layers: Sequence[int], model: str | Path | Encoder | None = None
) -> NDArray[np.float32]:
    """Encode a word in a new sentence as the sentences of the store were: float32 [layer, hidden_size].

    The word is in [brackets] in `text`. `model`: also what `encoder_of` returned. Nothing is written to disk.
    """
    from embstore.models.encoder import Spans

    made = store.metadata.extraction
    if made["unit"] != "word":
        raise InvalidValueError(f"the store has one row per {made['unit']}: give an occurrence or a vector, not a text")
    sentence, position = _sentence_and_position(text, store.metadata.corpus.get("options", {}))
    encoder = encoder_of(store, model) if isinstance(model, str | Path | None) else model
    split = encoder.tokenize([sentence], by=made.get("tokenize", "text"))
    start, stop = int(split.first[position]), int(split.last[position])
    if made["pooling"] in ("first", "last"):  # of subwords that begin in the word
        start = max(start, int(split.last[:position].max(initial=0)))
    limit = int(made["max_length"]) - encoder.n_specials
    if not start < stop <= limit:
        raise InvalidValueError(
            f"the word {sentence.words[position]!r} has no vector: it has no subword, or lies beyond the length limit"
        )
    tokenized = split.tokenized.runs(split.bounds[:1], np.minimum(split.bounds[1:], limit))
    options: dict[str, Any] = {"layers": list(layers), "pooling": made["pooling"]}
    options["attention_window"] = made.get("attention_window")
    options["sites"] = [store.source.layout.site]
    spans = Spans(*(np.array([number], np.int64) for number in (0, start, stop)))
    encoder.self_check(tokenized, **options)
    (pooled,) = encoder.encode(tokenized, spans, batch_subwords=encoder.default_batch_subwords, **options)
    return np.asarray(pooled.vectors[:, 0].float().cpu().numpy(), np.float32)


def _sentence_and_position(text: str, options: Mapping[str, Any]) -> tuple[Sentence, int]:
    """The sentence, split like the corpus of the store, and the position of the word in brackets."""
    from embstore.corpus import open_corpus
    from embstore.corpus.sentence import Document, Span

    before, *marked = MARKED.split(text.strip())
    if len(marked) != 2:
        raise InvalidValueError(f"{len(marked) // 2} words of the text are in [brackets]: put one there")
    word, plain = marked[0].strip(), "".join((before, *marked))
    place = plain.index(word, len(before)), word
    document = Document(plain, spans=[Span(0, len(plain), "sentence")])
    how = {"words": options.get("words", "spaces"), "language": options.get("language")}
    (sentence,) = open_corpus([document], **how)
    if place not in zip(sentence.starts, sentence.words, strict=True):
        raise InvalidValueError(f"[{word}] is not one word as the store splits sentences: mark one word")
    (normal,) = open_corpus([document], normalize=options.get("normalize"), **how)  # word by word
    return normal, sentence.starts.index(place[0])
