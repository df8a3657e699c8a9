"""Words: completion, their occurrences as a concordance, and how much they vary with their contexts by layer."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import embstore as es
from embstore.analysis import marker_words, marking
from embstore.errors import InvalidValueError, quoted
from embstore.store import Labels, Selection, Store
from embstore_explorer.parameters import Bounds, Limit, Number, Row, Rows, Where, Word
from embstore_explorer.queries.registry import Asked, NotFoundError
from embstore_explorer.regions import SPACES, around
from embstore_explorer.stores import Explored

if TYPE_CHECKING:
    import polars as pl

CONTEXT = 1000  # characters left and right of a word
MAX_EXPORTED = 1_000_000  # rows of a file
MAX_SORTED = 5_000_000  # occurrences that are sorted by the text around them
MARKERS, VALUES = 24, 6  # words, and values of a label, that tell what some rows are
CONTENT = ("NOUN", "PROPN", "VERB", "ADJ")  # of the labels upos
_ENGLISH = """a an the this that these those i me my mine we us our ours you your yours he him his she her hers it its
    they them their theirs who whom whose which what where when why how and or but nor if then than as because while
    though although so not no of at by for with about against between into through during before after above below to
    from up down in out on off over under again upon am is are was were be been being have has had having do does did
    doing will would shall should can could may might must s t d ll m re ve don n't 's 'm 're 've 'd 'll there here all
    any both each few more most other some such only own same too very just now also ever never yet much many one two
    every myself himself herself itself themselves"""
FUNCTION_WORDS = frozenset(_ENGLISH.split())
_BYTES = {chr(256 + at): byte for at, byte in enumerate([*range(33), *range(127, 161), 173])}  # as byte-level BPE has


@dataclass(frozen=True)
class _Vocabulary:
    """The words of a store without their case, in alphabetical order; `types` are their types, `counts` by type."""

    folded: list[str]
    types: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, store: Store) -> _Vocabulary:
        folded = [word.casefold() for word in store.index.words]
        types = sorted(range(len(folded)), key=folded.__getitem__)
        return cls([folded[each] for each in types], np.array(types, np.int64), np.diff(store.index.by_type[0]))

    def content(self, store: Store) -> NDArray[np.bool_]:
        """Whether each type is a content word: it has a letter, is in no list, and most labels upos say so."""
        words = [word.lstrip(SPACES) for word in store.index.words]
        if any(word.startswith("Ġ") for word in store.index.words):  # bytes, each spelled as a letter
            words = [bytes(_BYTES.get(c, ord(c) & 255) for c in word).decode(errors="ignore") for word in words]
        words = [word.casefold().replace("’", "'") for word in words]
        apt = np.array([any(map(str.isalpha, word)) and word not in FUNCTION_WORDS for word in words], bool)
        labels = store.index.own_labels.get("upos")
        if labels is not None:
            named = np.array([*(name in CONTENT for name in labels.names), False])  # -1, the last one, is no label
            apt &= 2 * np.bincount(store.index.type, named[labels.codes], len(apt)) > self.counts
        return apt

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The position of each type in the alphabet."""
        ranks = np.empty(len(self.types), np.int64)
        ranks[self.types] = np.arange(len(ranks))
        return ranks


def vocabulary(one: Explored) -> _Vocabulary:
    """Return the words of a store, sorted once."""
    found: _Vocabulary = one.once("vocabulary", lambda: _Vocabulary.of(one.store))
    return found


def is_content(one: Explored) -> NDArray[np.bool_]:
    """Return whether each type of a store is a content word, found once."""
    found: NDArray[np.bool_] = one.once("content", lambda: vocabulary(one).content(one.store))
    return found


def complete(
    asked: Asked,
    *,
    store: Number = 0,
    prefix: Annotated[str, Bounds(0, 2000)] = "",
    limit: Limit = 20,
    content: bool = False,
) -> dict[str, Any]:
    """Return the most frequent words that begin with a prefix, whatever the case; `content`: content words first."""
    one = asked.store(store)
    known, start = vocabulary(one), prefix.casefold()
    first = bisect_left(known.folded, start)
    last = bisect_left(known.folded, start + chr(0x10FFFF)) if start else len(known.folded)
    types = known.types[first:last]
    later = ~is_content(one)[types] if content else np.zeros(len(types))
    best = types[np.lexsort((types, -known.counts[types], later))[:limit]]
    words = [{"word": one.store.index.words[number], "count": int(known.counts[number])} for number in best.tolist()]
    return {"words": words}


def occurrences(
    asked: Asked,
    *,
    store: Number = 0,
    word: Word | None = None,
    where: Where | None = None,
    rows: Rows | None = None,
    sort: Annotated[str, Bounds(1, 200)] = "row",
    descending: bool = False,
    offset: Row = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Return a page of a concordance: the occurrences of a word, under a condition, or of given rows.

    `columns`: the labels and fields that differ between them; `same`: the value that all have of each of the others.
    `sort`: row, word, sentence, position, left or right (the text on that side), a label column or a field; equal ones
    by row, those without a value last.
    """
    one = asked.store(store)
    chosen = _in_order(asked, one, word=word, where=where, rows=rows, sort=sort, descending=descending)
    page = np.asarray(chosen[offset : offset + limit], np.int64)
    same = one.once(("same", word, where, rows), lambda: _same(one.store, np.asarray(chosen, np.int64)))
    return {
        "total": len(chosen),
        "columns": [each for each in columns(one.store) if each["name"] not in same],
        "same": same,
        "rows": described(one.store, page),
        "python": one.python(f"{selecting(word, where=where, rows=rows)}.table()"),
    }


def _same(store: Store, rows: NDArray[np.int64]) -> dict[str, str | None]:
    """Return the labels and fields that have one value in all of these rows, two or more, with that value."""
    same: dict[str, str | None] = {}
    for name, labels in store.index.labels.items() if len(rows) > 1 else ():
        codes = labels.codes[rows]
        if (codes == codes[0]).all():
            same[name] = _name(labels, int(codes[0]))
    return same


def _name(labels: Labels, code: int) -> str | None:
    return labels.names[code] if code >= 0 else None


def whole_occurrences(asked: Asked, *, store: int = 0, offset: int = 0, limit: int = 0, **given: Any) -> pl.DataFrame:
    """Return all pages of `occurrences` as `Selection.table` has them; `given`: its other parameters."""
    one = asked.store(store)
    chosen = _in_order(asked, one, **given)
    if len(chosen) > MAX_EXPORTED:
        raise InvalidValueError(
            f"{len(chosen):,} occurrences are too many for a file of the explorer, which has {MAX_EXPORTED:,} at most: "
            "use Store.table"
        )
    return one.store.select(rows=np.asarray(chosen, np.int64)).table()


def _in_order(
    asked: Asked,
    one: Explored,
    *,
    word: str | None = None,
    where: str | None = None,
    rows: Sequence[int] | None = None,
    sort: str = "row",
    descending: bool = False,
) -> NDArray[np.int64] | range:
    chosen = found_rows(one, word, where, rows)
    if sort == "row" and not descending:
        return chosen
    ordered: NDArray[np.int64] = one.once(
        ("sorted", word, where, rows, sort, descending), lambda: _sorted(asked, one, chosen, sort, descending)
    )
    return ordered


def found_rows(
    one: Explored, word: str | None, where: str | None, rows: Sequence[int] | None = None
) -> NDArray[np.int64] | range:
    """Return the rows of a selection, kept for the next page; all: a range. Raises NotFoundError, InvalidValueError."""
    if word is not None and one.store.index.type_of(word) is None:
        try:
            one.store.select(words=word)
        except InvalidValueError as error:
            missing = NotFoundError(str(error))
            missing.words = list(error.near)
            raise missing from None
    if where is None and rows is None:
        return range(one.store.n_rows) if word is None else one.store.select(words=word).rows
    found: NDArray[np.int64] = one.once(
        ("rows", word, where, rows), lambda: one.select(word=word, where=where, rows=rows).rows
    )
    return found


def summary(asked: Asked, *, store: Number = 0, rows: Rows) -> dict[str, Any]:
    """Return what sets some occurrences apart: `words`, which mark them, and the commonest values of each label.

    Words that they are significantly more often than the other occurrences of the store, see `markers.marking`; of
    occurrences of one word those within five words of them, next to its other occurrences. With their counts. Where no
    word marks them, `marking` is false, and the words are their commonest content words.
    """
    one, chosen = asked.store(store), np.unique(np.array(rows, np.int64))
    index = one.store.select(rows=chosen).store.index  # refuses a row that is not there
    types, counts = np.unique(index.type[chosen], return_counts=True)
    if len(types) == 1:
        found, marks = _around(one.store, chosen, int(types[0]))
    else:
        rest = np.diff(index.by_type[0])[types] - counts
        others = len(index.type) - len(chosen) - int(rest.sum())  # occurrences of words that are not chosen
        best = marking([[*counts, 0], [*rest, others]], count=MARKERS)[0]
        marks = bool(best)
        common = best or np.lexsort((-counts, ~is_content(one)[types]))[:MARKERS].tolist()
        found = [(index.words[int(types[each])], int(counts[each])) for each in common]
    return {
        "count": len(chosen),
        "marking": marks,
        "words": [{"word": word, "count": count} for word, count in found],
        "labels": [{"name": name, **_commonest(labels, chosen)} for name, labels in index.labels.items()],
    }


def _around(store: Store, rows: NDArray[np.int64], number: int) -> tuple[list[tuple[str, int]], bool]:
    """Return the words that mark the contexts of some occurrences of a type, or are common there, and if they mark."""
    every = store.index.rows_of(number)
    others, near = np.isin(every, rows, invert=True).astype(int).tolist(), around(store, every)
    own = Counter(word for words, other in zip(near, others, strict=True) if not other for word in set(words))
    best = marker_words(near, others, 2, count=MARKERS)[0]
    common = [word for word in own if own[word] > 1 and any(map(str.isalpha, word))]
    common.sort(key=lambda word: (word in FUNCTION_WORDS, -own[word], word))
    return [(word, own[word]) for word in (best or common)[:MARKERS]], bool(best)


def _commonest(labels: Labels, rows: NDArray[np.int64]) -> dict[str, Any]:
    codes, sizes = np.unique(labels.codes[rows], return_counts=True)
    order = np.argsort(-sizes, kind="stable")[:VALUES]
    pairs = zip(codes[order].tolist(), sizes[order].tolist(), strict=True)
    return {"n_values": len(codes), "values": [{"value": _name(labels, code), "count": count} for code, count in pairs]}


def columns(store: Store) -> list[dict[str, str]]:
    """Return the label columns and fields of a store, with the kind of their values."""
    kinds = dict.fromkeys(store.index.own_labels, "label") | {
        name: one.kind for name, one in store.index.fields.items()
    }
    return [{"name": name, "kind": kind} for name, kind in kinds.items()]


def described(store: Store, rows: ArrayLike) -> list[dict[str, Any]]:
    """Return occurrences as tables of the explorer show them: word, context, labels and fields."""
    chosen = store.select(rows=rows)
    named = [each["name"] for each in columns(store)]
    return [
        {
            "row": each["occurrence"],
            "sentence": each["sentence"],
            "position": each["position"],
            "left": left if len(left) <= CONTEXT else f"…{left[-CONTEXT:]}",
            "word": word or each["word"],  # white space has a form alone
            "form": each["word"],
            "right": right if len(right) <= CONTEXT else f"{right[:CONTEXT]}…",
            "labels": {name: each[name] for name in named},
        }
        for each, (left, word, right) in zip(chosen.to_dicts(), chosen.concordance(), strict=True)
    ]


def selecting(
    word: str | None = None, *, where: str | None = None, rows: Sequence[int] | None = None, sinks: bool = True
) -> str:
    """Return the Python that selects the same occurrences; of many rows the first ones."""
    given = {
        "words": word,
        "where": where,
        "rows": None if rows is None else [*rows[:20], *([...] if rows[20:] else [])],
        "sinks": None if sinks else False,
    }
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    return f"store.select({shown})".replace("Ellipsis", "...")


def _sorted(
    asked: Asked, one: Explored, rows: NDArray[np.int64] | range, sort: str, descending: bool
) -> NDArray[np.int64]:
    """Return rows in the order of a column, equal ones by row, those without a value last."""
    chosen = np.asarray(rows, np.int64)
    keys = _keys(asked, one, chosen, sort)
    known = keys >= 0
    order = np.argsort(np.where(known, -keys if descending else keys, np.iinfo(np.int64).max), kind="stable")
    return chosen[order]


def _keys(asked: Asked, one: Explored, rows: NDArray[np.int64], sort: str) -> NDArray[np.int64]:
    """Return numbers of 0 or more in the order of a column's values, -1 for no value."""
    index = one.store.index
    if sort == "row":
        return rows
    if sort in ("sentence", "position"):
        return np.asarray(getattr(index, sort)[rows], np.int64) + (1 if sort == "position" else 0)
    if sort == "word":
        return np.asarray(one.once("ranks", lambda: vocabulary(one).ranks)[index.type[rows]])
    if sort in ("left", "right"):
        return _text_keys(asked, one.store, rows, sort)
    if sort not in index.labels:
        allowed = ", ".join(["row", "word", "sentence", "position", "left", "right", *index.labels])
        raise InvalidValueError(f"sort {quoted(sort)} is not allowed: choose one of {allowed}")
    labels = index.labels[sort]
    codes = np.asarray(labels.codes[rows], np.int64)
    if sort in index.fields:
        return codes  # the values of a field ascend
    names = list(labels.names)
    ranks = np.empty(len(names) + 1, np.int64)
    ranks[sorted(range(len(names)), key=lambda number: (names[number].casefold(), number))] = np.arange(len(names))
    ranks[-1] = -1
    return ranks[codes]


def _text_keys(asked: Asked, store: Store, rows: NDArray[np.int64], side: str) -> NDArray[np.int64]:
    """Return numbers in the order of the words on one side of each row, from the nearest on, whatever their case."""
    if len(rows) > MAX_SORTED:
        raise InvalidValueError(
            f"{len(rows):,} occurrences cannot be sorted by the text around them: choose {MAX_SORTED:,} or fewer"
        )
    tokens, start, stop = _nearby(asked, store, rows, side)
    keys, tied = np.zeros(len(rows), np.int64), np.arange(len(rows))
    while len(tied):  # rows that are equal so far differ in the next word, if there is one
        asked.report(len(rows) - len(tied), len(rows))
        width = int(tokens.max(initial=0)) + 2
        more = start[tied] != stop[tied]
        nearest = np.where(more, tokens[np.where(more, start[tied], 0)] + 1, 0)
        pairs, inverse, counts = np.unique(keys[tied] * width + nearest, return_inverse=True, return_counts=True)
        before = np.cumsum(counts) - counts
        within = before - before[np.searchsorted(pairs // width, pairs // width)]
        keys[tied] += within[inverse]
        tied = tied[more & (counts[inverse] > 1)]
        start[tied] += 1 if side == "right" else -1
    return keys


def _nearby(asked: Asked, store: Store, rows: NDArray[np.int64], side: str) -> tuple[NDArray[np.int64], ...]:
    """Return the alphabetical ranks of all words of the sentences of rows, and where the words of each row lie in them.

    They go from `start` upwards to before `stop` on the right, from `start` downwards to after `stop` on the left.
    """
    index = store.index
    sentences, inverse = np.unique(index.sentence[rows], return_inverse=True)
    known: defaultdict[str, int] = defaultdict(lambda: len(known))
    tokens = array("q")
    for number, sentence in enumerate(sentences.tolist()):
        if number % 10_000 == 0:
            asked.report(number, len(sentences))
        tokens.extend([known[each.casefold()] for each in index.text.words(sentence)])
    ranks = np.empty(len(known), np.int64)
    ranks[[known[each] for each in sorted(known)]] = np.arange(len(known))
    last = np.cumsum(lengths := np.diff(index.text.word_indptr)[sentences])[inverse]
    first = last - lengths[inverse]
    position = np.asarray(index.position[rows], np.int64)
    if side == "left":
        return ranks[np.frombuffer(tokens, np.int64)], np.clip(first + position, first, last) - 1, first - 1
    covered = np.where(position < 0, -position, index.words.n_words()[index.type[rows]])  # a special token covers none
    return ranks[np.frombuffer(tokens, np.int64)], np.clip(first + position + covered, first, last), last


def word(asked: Asked, *, store: Number = 0, word: Word) -> dict[str, Any]:
    """Return the self-similarity of a word by layer, next to the mean over words and to the anisotropy."""
    one = asked.store(store)
    rows = np.asarray(found_rows(one, word, None))
    chosen = one.sinkless(one.store.select(words=word))
    own = one.once(("selfsim", word), lambda: _self_similarity(asked, word, chosen))
    whole = corpus_means(asked, one)
    every = "store" if len(one.sinkless(one.store.select())) == one.store.n_rows else "store.select(sinks=False)"
    return {
        "word": word,
        "count": len(rows),
        "layers": list(one.store.layers),
        "selfsimilarity": own,
        "corpus": whole["selfsim"],
        "anisotropy": whole["anisotropy"],
        "python": one.python(
            f"es.geometry({selecting(word, sinks=len(chosen) == len(rows))}, metrics='selfsim', min_contexts=1)",
            f"es.geometry({every}, metrics=['selfsim', 'anisotropy'], min_contexts={whole['min_contexts']})",
        ),
    }


def _self_similarity(asked: Asked, word: str, chosen: Selection) -> list[float | None]:
    """Return the mean cosine of all pairs of occurrences of a word by layer; None for fewer than two occurrences."""
    if len(chosen) < 2:
        return [None] * len(chosen.layers)
    with es.config(progress=asked.report):
        frame = es.geometry(chosen, metrics="selfsim", min_contexts=1)
    values: list[float | None] = frame.filter(frame["item"] == word).sort("layer")["value"].to_list()
    return values


def corpus_means(asked: Asked, one: Explored) -> dict[str, Any]:
    """Return the mean self-similarity of words and the anisotropy by layer, computed once for a store.

    Words in 5 sentences or more count, as in `embstore.geometry`; all words where there is none; no attention sinks.
    The self-similarity is None where no word occurs twice.
    """
    data = one.sinkless(one.store.select())
    name = "corpus" if len(data) == one.store.n_rows else "corpus-sinkless"
    found: dict[str, Any] = one.saved(name, lambda: _corpus_means(asked, data))
    return found


def _corpus_means(asked: Asked, data: Selection) -> dict[str, Any]:
    least = 5 if len(es.analysis.eligible_types(data.store)) else 1
    metrics = ["selfsim", "anisotropy"]
    with es.config(progress=asked.report):
        try:
            frame = es.geometry(data, metrics=metrics, min_contexts=least)
        except InvalidValueError:  # no word occurs twice
            frame = es.geometry(data, metrics="anisotropy")
    frame = frame.sort("layer", maintain_order=True)
    means = frame.filter(frame["item"] == "")
    by_metric = {metric: means.filter(means["metric"] == metric)["value"].to_list() for metric in metrics}
    by_metric["selfsim"] = by_metric["selfsim"] or [None] * len(data.layers)
    return {**by_metric, "min_contexts": least}
