"""Nearest neighbours as a table: of a word, an occurrence, a vector, or a word in a new sentence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors.exact import Exclusion, Hits, exact_search
from embstore.analysis.neighbors.index import LayerIndex, LayerSketch, find_sketch, open_index
from embstore.analysis.neighbors.sketch import FEW_ROWS
from embstore.analysis.neighbors.space import METRICS, ArrayVectors, Rows, Space, StoreVectors, space_of
from embstore.arguments import as_matrix, checked
from embstore.errors import EmbstoreWarning, InvalidValueError, SearchIndexError, check_choice, check_whole
from embstore.progress import Progress, reporting
from embstore.spacing import ATTACHED, marked_words
from embstore.store import Selection, Store
from embstore.store.layout import Layer, resolve_layer
from embstore.vectors import WordVectors

if TYPE_CHECKING:
    import polars as pl

    from embstore.models import Encoder

POOLS = ("each", "mean")
FEATURES_A_QUERY = 48  # with fewer, reading a layer that is in memory is faster than a sketch


@checked
def neighbors(
    data: Store | Selection | WordVectors,
    word: str | Sequence[str] | None = None,
    *,
    occurrence: int | Sequence[int] | None = None,
    vectors: ArrayLike | None = None,
    text: str | None = None,
    model: str | Path | None = None,
    layer: Layer = -1,
    k: int = 10,
    metric: str = "cosine",
    centered: bool = False,
    n_components: int = 0,
    pool: str = "each",
    labels: Mapping[str, str | Iterable[str]] | None = None,
    same_word: bool = True,
    same_sentence: bool = True,
    index: LayerIndex | str | None = None,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = None,
) -> pl.DataFrame:
    """Find the k nearest neighbours of words, occurrences or vectors, nearest first; exact without an index.

    Give one kind of query. `word`: each of its occurrences, or their mean with `pool="mean"`. `occurrence`: rows of the
    store. `vectors`: [q, feature] as stored. `text`: a sentence with one word in [brackets], or with `word` in it once,
    encoded by the model of the store (`model`: its location, if it has moved).

    One row per neighbour. In a store: `query, rank, score, occurrence, word, sentence, position`, the label columns
    (prefixed with `label_` if a name is taken), `text` (the sentence), `marked` (with its word in brackets), `store`,
    `layer`, `search` (scan: the layer was read; sketch: a part of it that proves the same result; index); in
    WordVectors: `query, rank, score, word`. `query` is the row of the occurrence, the word with `pool="mean"` and in
    WordVectors, or else the number of the vector.

    An occurrence does not find itself, nor does a word in WordVectors. Neighbours are all occurrences of a store, or
    those of a selection; `labels` keeps those with these labels, `same_word=False` and `same_sentence=False` exclude
    those of the query's word (form) and sentence. `metric`: cosine, ip (inner product) or l2 (distance). `centered`
    subtracts the mean of the layer, `n_components` removes its first principal components, from queries too. `index`:
    an index of the same layer and space, or its name: faster for millions of rows, and finds nearly all neighbours. If
    the layer has a sketch (`build_index(kind="sketch")`), an exact search of few queries, or in a bucket, uses it.

    Raises InvalidValueError (unknown word, layer or metric; k below 1 or above the number of candidates), ModelError.
    """
    _check_query(data, word, occurrence, vectors, text, model, metric, pool)
    space = {"metric": metric, "centered": centered, "n_components": n_components}
    if isinstance(data, WordVectors):
        if layer not in (-1, "last") or labels or pool != "each":
            raise InvalidValueError("word vectors have no layers, labels or occurrences: leave these options out")
        return _in_word_vectors(data, word, vectors, k, space, device, threads)
    candidates = _Candidates.of(data, layer, labels)
    if text is not None:
        marked = word if word is None or isinstance(word, str) else word[0]
        word, vectors = None, encode_word(candidates.store, text, marked, layers=[candidates.layer], model=model)
    queries = candidates.queries(word, occurrence, vectors, pool)
    exclude = candidates.exclusions(queries, same_word=same_word, same_sentence=same_sentence)
    _check_k(k, len(candidates.rows), "occurrences")
    options: dict[str, Any] = {"k": k, "exclude": exclude, "threads": threads}
    return candidates.answer(queries, space, index, device, progress, options)


def _check_query(
    data: Store | Selection | WordVectors,
    word: str | Sequence[str] | None,
    occurrence: int | Sequence[int] | None,
    vectors: ArrayLike | None,
    text: str | None,
    model: str | Path | None,
    metric: str,
    pool: str,
) -> None:
    """Raise InvalidValueError unless there is exactly one kind of query, and one that fits the data."""
    check_choice("metric", metric, METRICS)
    check_choice("pool", pool, POOLS)
    if text is None and model is not None:
        raise InvalidValueError("a model encodes a new sentence: give the text too")
    if text is not None and isinstance(data, WordVectors):
        raise InvalidValueError("word vectors have no model to encode a sentence: give a word, or a store")
    if text is not None and word is not None and not isinstance(word, str):
        raise InvalidValueError("a sentence needs one word as the query: give a single word")
    if isinstance(data, WordVectors) and occurrence is not None:
        raise InvalidValueError("word vectors have no occurrences: give a word or vectors")
    queries = {"word": None if text is not None else word, "occurrence": occurrence, "vectors": vectors, "text": text}
    given = [name for name, value in queries.items() if value is not None]
    if not given:
        raise InvalidValueError("no query is given: give a word, an occurrence, vectors or a text")
    if len(given) > 1:
        raise InvalidValueError(f"give one kind of query, not {' and '.join(given)}")


def _check_k(k: int, n_candidates: int, what: str) -> None:
    if check_whole("k", k, 1) > n_candidates:
        raise InvalidValueError(f"k {k} is more than the {n_candidates:,} {what} that can be found: give less")


@dataclass(frozen=True)
class Queries:
    """The queries: `names` (rows, words or numbers), `vectors` [q, feature], `rows` and `types` (-1 for none)."""

    names: list[int] | list[str]
    vectors: NDArray[np.floating]
    rows: NDArray[np.int64]
    types: NDArray[np.int64]

    @classmethod
    def of_vectors(cls, vectors: ArrayLike) -> Queries:
        array = as_matrix("vectors", vectors, single=True).astype(np.float64)
        unknown = np.full(len(array), -1)
        return cls(list(range(len(array))), array, unknown, unknown)


@dataclass(frozen=True)
class _Candidates:
    """The occurrences that can be found: `rows` of a store, ascending, at one layer."""

    store: Store
    layer: int
    rows: Rows

    @classmethod
    def of(cls, data: Store | Selection, layer: Layer, labels: Mapping[str, str | Iterable[str]] | None) -> _Candidates:
        selection = data.select() if isinstance(data, Store) else data
        store = selection.store
        rows: Rows = np.unique(selection.rows) if selection.span is None else selection.span
        number = resolve_layer(layer, data.layers if layer in (-1, "last") else store.layers)
        if labels:
            rows = np.intersect1d(rows, store.select(labels=labels).rows)
        if not len(rows):
            raise InvalidValueError(f"no occurrence of {store.path} can be found: choose other conditions")
        return cls(store, number, rows)

    @property
    def selection(self) -> Selection:
        rows = slice(self.rows.start, self.rows.stop) if isinstance(self.rows, range) else self.rows
        return Selection(self.store, layers=(self.layer,), rows=rows)

    def queries(
        self,
        word: str | Sequence[str] | None,
        occurrence: int | Sequence[int] | None,
        vectors: ArrayLike | None,
        pool: str,
    ) -> Queries:
        """The query vectors, read from the store unless they are given."""
        if vectors is not None:
            return Queries.of_vectors(vectors)
        if word is not None and pool == "mean":
            words = [word] if isinstance(word, str) else list(word)
            selections = [self.store.select(words=one, layers=self.layer) for one in words]
            means = np.array([selection.vectors(dtype="float64")[0].mean(0) for selection in selections])
            types = np.array([self.store.index.type_of(one) for one in words], np.int64)
            return Queries(words, means, np.full(len(words), -1), types)
        rows = self.store.select(words=word, rows=None if occurrence is None else np.atleast_1d(occurrence)).rows
        if not len(rows):
            raise InvalidValueError("the list of query occurrences is empty: give one or more")
        types = np.asarray(self.store.index.type[rows]).astype(np.int64)
        return Queries(rows.tolist(), self.store.vectors(rows, layers=self.layer)[0], rows, types)

    def exclusions(self, queries: Queries, *, same_word: bool, same_sentence: bool) -> list[Exclusion]:
        """What each query must not find: itself, and its own word or sentence if these are excluded."""
        index = self.store.index
        exclude = []
        if (queries.rows >= 0).any():
            exclude.append(Exclusion(np.arange(self.store.n_rows), queries.rows))
        if not same_word:
            if (queries.types < 0).any():
                raise InvalidValueError("same_word needs a query that is a word or an occurrence, not a vector")
            exclude.append(Exclusion(np.asarray(index.type).astype(np.int64), queries.types))
        if not same_sentence:
            if (queries.rows < 0).any():
                raise InvalidValueError("same_sentence needs queries that are occurrences")
            sentences = np.asarray(index.sentence).astype(np.int64)
            exclude.append(Exclusion(sentences, sentences[queries.rows]))
        return exclude

    def search(
        self, space: dict[str, Any], vectors: NDArray[np.floating], device: str, progress: Progress, **options: Any
    ) -> Hits:
        """Search the layer exactly."""
        learned = space_of(self.selection, self.layer, **space)
        with reporting(progress, total=len(self.rows), unit="vectors", label="neighbors") as report:
            options |= {"space": learned, "rows": self.rows, "device": device, "progress": report}
            return exact_search(StoreVectors(self.store, self.layer), vectors, **options)

    def answer(
        self,
        queries: Queries,
        space: dict[str, Any],
        index: LayerIndex | str | None,
        device: str,
        progress: Progress,
        options: dict[str, Any],
    ) -> pl.DataFrame:
        """The neighbours as a table: through an index, through a sketch that serves this search, or by a scan."""
        opened = open_index(self.store, name=index) if isinstance(index, str) else index
        if opened is not None:
            self.require_layer(opened)
        try:
            if opened is None and device in ("auto", "cpu"):
                opened = self.sketch(len(queries.vectors))
            if isinstance(opened, LayerSketch) and self.is_sketched(space):
                compared = Space(space["metric"], opened.sketch.rotation.mean if space["centered"] else None)
                found = opened.search(queries.vectors, space=compared, rows=self.rows, **options)
                return self.table(queries, found, ["scan" if scanned else "sketch" for scanned in found.scanned])
        except SearchIndexError as error:
            if index is not None:
                raise
            warnings.warn(f"{error}; this search reads the layer instead", EmbstoreWarning, stacklevel=4)
            opened = None
        if opened is None or isinstance(opened, LayerSketch):
            return self.table(queries, self.search(space, queries.vectors, device, progress, **options), "scan")
        return self.table(queries, self.search_index(opened, space, queries.vectors, **options), "index")

    def sketch(self, n_queries: int) -> LayerSketch | None:
        """The sketch of the layer, if there is one and it is faster than reading the layer."""
        few = n_queries * FEATURES_A_QUERY <= max(self.store.hidden_size, FEATURES_A_QUERY)
        few = few or not isinstance(self.store.path, Path)
        return find_sketch(self.store, self.layer) if few and len(self.rows) > FEW_ROWS else None

    def is_sketched(self, space: dict[str, Any]) -> bool:
        """Whether a sketch is of this space: as stored, or minus the mean of all rows."""
        return not space["n_components"] and (not space["centered"] or len(self.rows) == self.store.n_rows)

    def require_layer(self, index: LayerIndex) -> None:
        """Raise InvalidValueError for an index of another layer."""
        if index.layer != self.layer:
            raise InvalidValueError(
                f"the index {index.name} has layer {index.layer}, not {self.layer}: use the same value, or search "
                "without this index"
            )

    def search_index(
        self, opened: LayerIndex, space: dict[str, Any], vectors: NDArray[np.floating], **options: Any
    ) -> Hits:
        """Search through an index; raises InvalidValueError if it is of another layer or space."""
        centered = space["centered"] or space["n_components"] > 0
        for option, value in {**space, "centered": centered}.items():
            built = getattr(opened.info.settings, option)
            if built != value:
                raise InvalidValueError(
                    f"the index {opened.name} has {option} {built}, not {value}: use the same value, or search without "
                    "this index"
                )
        rows = None if len(self.rows) == self.store.n_rows else np.asarray(self.rows)
        return opened.search(vectors, rows=rows, **options)

    def table(self, queries: Queries, hits: Hits, search: str | list[str]) -> pl.DataFrame:
        """One row per hit, with its context; `search`: how each query was answered."""
        import polars as pl

        query, rank = np.nonzero(hits.rows >= 0)
        rows = hits.rows[query, rank]
        contexts = Selection(self.store, layers=(self.layer,), rows=rows).table()
        contexts = contexts.drop("subwords", "source", "document")
        ranked = pl.DataFrame(
            {
                "query": pl.Series([queries.names[number] for number in query.tolist()]),
                "rank": rank + 1,
                "score": hits.scores[query, rank],
            }
        )
        taken = {"query", "rank", "score", "marked", "store", "layer", "search"}
        contexts = contexts.rename({name: f"label_{name}" for name in contexts.columns if name in taken})
        contexts = contexts.with_columns(pl.Series("marked", mark_words(self.store, rows), dtype=pl.String))
        origin = {"store": pl.lit(str(self.store.path)), "layer": pl.lit(self.layer, pl.Int64)}
        how = [search] * len(rows) if isinstance(search, str) else [search[number] for number in query.tolist()]
        return pl.concat([ranked, contexts], how="horizontal").with_columns(**origin, search=pl.Series(how))


def mark_words(data: Store, rows: ArrayLike) -> list[str]:
    """Return the sentences of some rows with the word, or the whole phrase, in brackets."""
    return [f"{before}[{word}]{after}" for before, word, after in data.select(rows=rows).concordance()]


def _in_word_vectors(
    table: WordVectors,
    word: str | Sequence[str] | None,
    vectors: ArrayLike | None,
    k: int,
    space: dict[str, Any],
    device: str,
    threads: int | None,
) -> pl.DataFrame:
    """Search a table of word vectors exactly."""
    import polars as pl

    if vectors is not None:
        queries, exclude = Queries.of_vectors(vectors), []
    else:
        names = [word] if isinstance(word, str) else list(word or ())
        rows = table.rows_of(names)
        if (rows < 0).any():
            name = names[int(rows.argmin())]
            near = get_close_matches(name, table.words, n=3) if len(table) < 200_000 else []
            hint = f"; similar words are {', '.join(near)}" if near else ": words are spelled as in the file"
            raise InvalidValueError(f"there is no vector of {name!r}{hint}")
        queries = Queries(names, table.vectors[rows], rows, rows)
        exclude = [Exclusion(np.arange(len(table)), rows)]
    _check_k(k, len(table) - len(exclude), "words")
    hits = exact_search(
        ArrayVectors(table.vectors),
        queries.vectors,
        k=k,
        space=space_of(table.vectors, **space),
        exclude=exclude,
        device=device,
        threads=threads,
    )
    query, rank = np.nonzero(hits.rows >= 0)
    return pl.DataFrame(
        {
            "query": pl.Series([queries.names[number] for number in query.tolist()]),
            "rank": rank + 1,
            "score": hits.scores[query, rank],
            "word": [table.words[row] for row in hits.rows[query, rank].tolist()],
        }
    )


def encoder_of(store: Store, model: str | Path | None = None) -> Encoder:
    """Load the model that made a store; `model`: where it is now. Raises InvalidValueError, ModelError."""
    from embstore.models import load_encoder
    from embstore.models.names import locate

    if model is None:
        name, revision = (store.metadata.model[key] for key in ("name", "revision"))
        model = locate(name, revision, folders=(".", Path(str(store.path)).parent))
    encoder = load_encoder(model)
    if encoder.info.weights_sha256 != store.metadata.model["weights_sha256"]:
        raise InvalidValueError(
            f"the model {encoder.info.name} is not the one that made {store.path}: give the location of that model"
        )
    return encoder


def encode_word(
    store: Store,
    text: str,
    word: str | None = None,
    *,
    layers: Sequence[int],
    model: str | Path | Encoder | None = None,
) -> NDArray[np.float32]:
    """Encode a word in a new sentence as the sentences of the store were: float32 [layer, hidden_size].

    The word is in [brackets] in `text`, or `word` is given and occurs in it once. `model`: also what `encoder_of`
    returned. Nothing is written to disk.
    """
    from embstore.models.encoder import Spans

    made = store.metadata.extraction
    if made["unit"] != "word":
        raise InvalidValueError(f"the store has one row per {made['unit']}: give an occurrence or a vector, not a text")
    words, position = _sentence_and_position(text, word, store.metadata.corpus.get("options", {}))
    encoder = encoder_of(store, model) if isinstance(model, str | Path | None) else model
    tokenized = encoder.tokenize([words])
    limit = int(made["max_length"]) - encoder.n_specials
    tokenized = replace(tokenized, ids=tokenized.ids[:limit], word_indptr=np.minimum(tokenized.word_indptr, limit))
    start, stop = (int(tokenized.word_indptr[number]) for number in (position, position + 1))
    options: dict[str, Any] = {"layers": list(layers), "pooling": made["pooling"]}
    options["attention_window"] = made.get("attention_window")
    options["sites"] = [store.source.layout.site]
    spans = Spans(*(np.array([number], np.int64) for number in (0, start, stop)))
    if stop == start or encoder.without_vector(tokenized, spans)[0]:
        raise InvalidValueError(
            f"the word {words[position]!r} has no vector: it has no subword, or lies beyond the length limit"
        )
    encoder.self_check(tokenized, **options)
    (pooled,) = encoder.encode(tokenized, spans, batch_subwords=encoder.default_batch_subwords, **options)
    return np.asarray(pooled.vectors[:, 0].float().cpu().numpy(), np.float32)


def _sentence_and_position(text: str, word: str | None, options: Mapping[str, Any]) -> tuple[list[str], int]:
    """The words of the sentence, split like the corpus of the store, and the position of the query."""
    brackets = re.findall(r"\[([^\[\]]+)\]", text)
    if word is None:
        if len(brackets) != 1:
            raise InvalidValueError(
                f"{len(brackets)} words of the text are in [brackets]: put one there, or give the word"
            )
        before, word = text[: text.index("[")], brackets[0].strip()
        plain = text.replace(f"[{brackets[0]}]", brackets[0])
        words, marked = _split(plain, options), _split(word, options)
        position = len(_split(before, options))
        if [each.removeprefix(ATTACHED) for each in words[position : position + 1]] != marked:
            raise InvalidValueError(f"[{word}] is not one word as the store splits sentences: mark one word")
        return words, position
    words = _split(text, options)
    positions = [position for position, own in enumerate(words) if own.removeprefix(ATTACHED) == word]
    if len(positions) != 1:
        raise InvalidValueError(f"{word!r} occurs {len(positions)} times in the text: put the right one in [brackets]")
    return words, positions[0]


def _split(text: str, options: Mapping[str, Any]) -> list[str]:
    from embstore.corpus import open_corpus

    if not (line := " ".join(text.split())):
        return []
    how = {name: options.get(name) for name in ("language", "normalize")}
    corpus = open_corpus([line], split="lines", words=options.get("words", "spaces"), **how)
    return [word for each in corpus for word in marked_words(each.words, each.attached)]
