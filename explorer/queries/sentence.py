"""One sentence: its words at every layer, what saved probes find in it, and the attention of the model to it."""

from __future__ import annotations

import re
import unicodedata
from array import array
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis import SentenceAttention, sentence_attention
from embstore.corpus import EdgeSentence, EdgeTarget
from embstore.errors import InvalidValueError, MissingRowsError, ModelError, quoted
from embstore.probes import EdgeProbe, StructuralProbe, load
from embstore.store import Store
from embstore_explorer.answers import Arrays
from embstore_explorer.parameters import Bounds, Layer, Limit, Number, Row, Text, Word
from embstore_explorer.queries.registry import Asked
from embstore_explorer.queries.words import found_rows
from embstore_explorer.stores import NUMBER, Explored, layer_of, unit_rows

if TYPE_CHECKING:
    import polars as pl

BLOCK = 4096  # sentences whose text is searched at a time
MAX_WORDS = 1000  # or subwords, of a sentence that is compared with itself
Position = Annotated[int, Bounds(0, 100_000)]
Name = Annotated[str, Bounds(1, 500)]


def sentence(
    asked: Asked, *, store: Number = 0, sentence: Row | None = None, row: Row | None = None, word: Word | None = None
) -> dict[str, Any]:
    """Return a sentence, or that of an occurrence, or the first of a word: its `forms`, and the `gaps` around them.

    `fields`: of its document. A special token, white space or a part of a character has no form.
    """
    one = asked.store(store)
    row = int(found_rows(one, word, None)[0]) if word is not None and row is None else row
    if row is not None and sentence is None:
        sentence = int(one.store.index.sentence[one.store.select(rows=[row]).rows[0]])
    number = 0 if sentence is None else sentence
    words, stored, _ = _words(one.store, number)
    text, end, gaps, shown = one.store.index.text[number], 0, [], []
    for occurrence in one.store.select(rows=stored).to_dicts():
        if end <= occurrence["start"] < occurrence["stop"]:
            gaps.append(text[end : occurrence["start"]])
            shown.append(occurrence)
            end = occurrence["stop"]
    return {
        "sentence": number,
        "sentences": len(one.store.index.text),
        "text": text,
        "words": words,
        "gaps": [*gaps, text[end:]],
        "forms": [text[occurrence["start"] : occurrence["stop"]] for occurrence in shown],
        "types": [occurrence["word"] for occurrence in shown],
        "rows": [occurrence["occurrence"] for occurrence in shown],
        "labels": {name: [occurrence[name] for occurrence in shown] for name in one.store.index.own_labels},
        "fields": fields_of(one.store, number),
        "layers": list(one.store.layers),
        "probes": [{"name": name, "kind": each.kind} for name, each in one.probes.items()],
        "attention": one.can_encode,
        "missing_model": one.missing_model,
        "python": one.python(f"store.select(where='sentence = {number}').table()"),
    }


def fields_of(store: Store, number: int) -> dict[str, str]:
    """Return the values of the fields of the document of a sentence, as texts, without those that it has not."""
    document = int(store.index.document_of(np.array([number]))[0])
    codes = {name: int(field.codes[document]) for name, field in store.index.fields.items()}
    return {name: store.index.fields[name].names[code] for name, code in codes.items() if code >= 0}


def search(asked: Asked, *, store: Number = 0, text: Text, offset: Row = 0, limit: Limit = 20) -> dict[str, Any]:
    """Return the sentences that hold a text, whatever the case and the white space; `match` is between two pieces."""
    one = asked.store(store)
    wanted = " ".join(text.split()).casefold()
    if not wanted:
        raise InvalidValueError("the text to search is empty: give a word or more")
    numbers = one.once(("search", wanted), lambda: _holding(asked, one.store, wanted))
    rows = []
    for number in numbers[offset : offset + limit].tolist():
        line = " ".join(one.store.index.text[number].split())
        found = re.search(re.escape(wanted), line, re.IGNORECASE)
        start, stop = found.span() if found else (0, 0)
        rows.append({"sentence": number, "left": line[:start], "match": line[start:stop], "right": line[stop:]})
    condition = f"{wanted!r} in ' '.join(text.split()).casefold()"
    call = f"[number for number, text in enumerate(store.index.text) if {condition}]"
    return {"total": len(numbers), "rows": rows, "python": one.python(call)}


def _holding(asked: Asked, store: Store, wanted: str) -> NDArray[np.int64]:
    texts, found = store.index.text, array("q")
    for first in range(0, len(texts), BLOCK):
        asked.report(first, len(texts))
        for number, text in enumerate(texts.slice(first, first + BLOCK), first):
            if wanted in " ".join(text.split()).casefold():
                found.append(number)
    return np.frombuffer(found, np.int64) if found else np.empty(0, np.int64)


def similarity(asked: Asked, *, store: Number = 0, sentence: Row, layer: Layer = "-1") -> Arrays:
    """Return the cosine of every two stored words of a sentence: `values` float32 [n, n]."""
    one = asked.store(store)
    number = layer_of(one.store, layer)
    _, stored, positions = _words(one.store, sentence)
    if len(stored) > MAX_WORDS:
        raise InvalidValueError(f"sentence {sentence} has {len(stored):,} words: at most {MAX_WORDS:,} are compared")
    unit = unit_rows(one.store.vectors(stored, layers=number).astype(np.float64))
    kinds = [one.store.index.words[int(kind)] for kind in one.store.index.type[stored]]
    written = one.store.select(rows=stored).concordance()
    words = [form or kind for (_, form, _), kind in zip(written, kinds, strict=True)]  # white space has no form
    call = f"store.vectors(np.arange({stored[0]}, {stored[-1] + 1}), layers={number})" if len(stored) else "[]"
    data = {"layer": number, "words": words, "positions": positions.tolist(), "python": one.python(call)}
    return Arrays({"values": np.clip(unit @ unit.T, -1, 1).astype(np.float32)}, data)


def parse(asked: Asked, *, store: Number = 0, sentence: Row, probe: Name, layer: Layer | None = None) -> dict[str, Any]:
    """Return the tree over the words of a sentence that a structural probe finds at a layer.

    `edges`: pairs of positions in `words`, the minimum spanning tree of the predicted squared distances
    (h_i - h_j)^T B^T B (h_i - h_j) over the words that are no punctuation; `distances` of each edge; `depths`, the
    predicted depth of each word. `layer`: that of the lowest dev loss by default.
    """
    one = asked.store(store)
    own = _probe(one, probe, StructuralProbe)
    fitted = own.fitted_
    known = fitted.shape.layers
    number = own.best_layer() if layer is None else layer_of(one.store, layer)
    if number not in known or number not in one.store.layers:
        raise InvalidValueError(f"{probe} has no probe of layer {number}: it has those of {', '.join(map(str, known))}")
    words, stored, positions = _words(one.store, sentence)
    inside = (positions >= 0) & (positions < len(words))
    rows, positions = stored[inside], positions[inside]
    if fitted.shape.width != one.store.hidden_size:
        raise InvalidValueError(f"{probe} reads vectors of {fitted.shape.width}, the store has {one.store.hidden_size}")
    vectors = one.store.vectors(rows, layers=number).astype(np.float32)
    weights = fitted.weights[known.index(number), :, 0].cpu().numpy()
    projected = vectors @ weights[0].T
    distances = np.square(projected[:, None] - projected[None]).sum(2)
    allowed = ~_punctuation(one.store, rows, [words[place] for place in positions.tolist()])
    return {
        "layer": number,
        "layers": [each for each in known if each in one.store.layers],
        "words": [words[place] for place in positions.tolist()],
        "edges": [[min(pair), max(pair), float(distances[pair])] for pair in _tree(distances, allowed)],
        "depths": np.square(vectors @ weights[1].T).sum(1).tolist(),
        "python": one.python(
            f"probe = es.probes.load({str(one.probes[probe].path)!r})",
            f"words = store.index.text.words({sentence})",
            f"marks = np.isin(np.arange(len(words)), {positions[~allowed].tolist()})  # punctuation",
            "tree = es.corpus.Tree(tuple(words), np.arange(len(words)) - 1, marks)  # whatever its heads",
            f"probe.predict(tree, data=store, layers={number})",
        ),
    }


def whole_parse(asked: Asked, **given: Any) -> pl.DataFrame:
    """Return the tree of `parse` as a table: a row for each edge, with the words and depths of both ends."""
    import polars as pl

    found = parse(asked, **given)
    words, depths = found["words"], found["depths"] or [None] * len(found["words"])
    rows = [(a, b, words[a], words[b], distance, depths[a], depths[b]) for a, b, distance in found["edges"]]
    integer, text, number = pl.Int64, pl.String, pl.Float64
    kinds = {"first": integer, "second": integer, "first_word": text, "second_word": text, "distance": number}
    return pl.DataFrame(rows, {**kinds, "first_depth": number, "second_depth": number}, orient="row")


def traces(asked: Asked, *, store: Number = 0, sentence: Row, probe: Name, second: Position | None = None) -> Arrays:
    """Return what edge probes P(0) ... P(L) say of each word: `values` float32 [layers, targets, labels].

    Of probes of two spans, `second` is the word of the second one (the first word by default), and the targets are its
    pairs with every other word. `gold`: the labels of the store's column that has most labels of the probe's.
    """
    one = asked.store(store)
    own = _probe(one, probe, EdgeProbe)
    known = own.fitted_.labels
    words, stored, positions = _words(one.store, sentence)
    spans = [(place, place + 1) for place in sorted({*positions.tolist()}) if 0 <= place < len(words)]
    other = min(second or 0, len(words) - 1)
    if known.pairs:
        targets = [EdgeTarget(span, (other, other + 1), known.labels[:1]) for span in spans if span[0] != other]
    else:
        targets = [EdgeTarget(span, None, known.labels[:1]) for span in spans]
    if not targets:
        raise InvalidValueError(f"sentence {sentence} has no word, or pair of words, to label")
    asked.report(0, 1)
    found = own.predict([EdgeSentence(words, targets)], data=one.store)
    at = [target.span1[0] for target in targets]
    pair = f"({other}, {other + 1})" if known.pairs else "None"
    targeted = f"[es.corpus.EdgeTarget((at, at + 1), {pair}, {known.labels[:1]!r}) for at in {at}]"
    call = f"probe.predict([es.corpus.EdgeSentence({words!r}, targets)], data=store)"
    data = {
        "labels": list(known.labels),
        "layers": list(own.fitted_.grid.layers),
        "words": [words[place] for place in at],
        "positions": at,
        "second": other if known.pairs else None,
        "gold": None if known.pairs else _gold(one, stored, positions, at, known.labels),
        "python": one.python(f"probe = es.probes.load({str(one.probes[probe].path)!r})", f"targets = {targeted}", call),
    }
    return Arrays({"values": np.asarray(found, np.float32)}, data)


def attention(
    asked: Asked, *, store: Number = 0, sentence: Row, layer: Layer = "1", head: Position | None = None
) -> Arrays:
    """Return the attention of the heads of a layer (from 1) to a sentence, or of one head.

    `values` float32 [heads, positions, positions]: each row is what a position attends to. The model of the store is
    loaded the first time.
    """
    one = asked.store(store)
    text = one.store.index.text[_sentence(one.store, sentence)]
    with one.encoding:
        one.encoder()  # checks that the model is the one that made the store
    model = one.model_location()
    if np.diff(one.store.index.text.subword_indptr[sentence : sentence + 2])[0] > MAX_WORDS:
        raise InvalidValueError(f"sentence {sentence} has more than {MAX_WORDS:,} subwords: choose a shorter one")
    heads = None if head is None else [head]
    asked.report(0, 1)
    named = int(layer) if NUMBER.fullmatch(layer) else layer

    def make() -> SentenceAttention:
        try:
            return sentence_attention(text, model=model, layers=[named], heads=heads)
        except ModelError as error:  # the right one, which has no attention
            raise InvalidValueError(str(error)) from None

    found = one.once(("attention", sentence, named, head), make) if len(text) < 1000 else make()
    (number,) = found.layers
    given = f"layers=[{number}]" + ("" if head is None else f", heads=[{head}]")
    call = f"es.analysis.sentence_attention(store.index.text[{sentence}], model={model!r}, {given})"
    data = {
        "layer": number,
        "heads": list(found.heads),
        "subwords": list(found.subwords),
        "python": one.python(call),
    }
    return Arrays({"values": np.asarray(found.values[0], np.float32)}, data)


def _sentence(store: Store, number: int) -> int:
    if number >= len(store.index.text):
        raise InvalidValueError(f"there is no sentence {number}: the store has 0 to {len(store.index.text) - 1}")
    return number


def _words(store: Store, number: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int32]]:
    """The words of a sentence, its rows, and the position of each row's word."""
    words = store.index.text.words(_sentence(store, number))
    start, stop = store.index.indptr[number : number + 2].tolist()
    rows = np.arange(start, stop)
    if len(store.select(rows=rows).written()) < len(rows):
        raise MissingRowsError(f"sentence {number} is not written yet: resume the extraction")
    return words, rows, np.asarray(store.index.position[start:stop])


def _probe(one: Explored, name: str, kind: type[Any]) -> Any:
    """The saved probes of a name, loaded once."""
    if name not in one.probes:
        known = ", ".join(one.probes) or "none: start embstore explore with --probes"
        raise InvalidValueError(f"there are no saved probes {quoted(name)}; there are {known}")
    probe = one.once(("probe", name), lambda: load(one.probes[name].path))
    if not isinstance(probe, kind):
        raise InvalidValueError(f"{name} are {probe.name} probes: choose {kind.name} ones")
    return probe


def _tree(distances: NDArray[np.float32], allowed: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the edges (word, the word it was joined to) of a minimum spanning tree over the allowed words (Prim)."""
    outside = allowed.copy()
    first = int(outside.argmax())
    nearest, joins, edges = distances[first].copy(), np.full(len(outside), first), []
    outside[first] = False
    while outside.any():
        picked = int(np.where(outside, nearest, np.inf).argmin())
        edges.append((picked, int(joins[picked])))
        outside[picked] = False
        closer = distances[picked] < nearest
        nearest[closer], joins[closer] = distances[picked][closer], picked
    return sorted(edges)


def _punctuation(store: Store, rows: NDArray[np.int64], words: list[str]) -> NDArray[np.bool_]:
    """Whether each word is punctuation: by the label upos where there is one, else by its characters."""
    if "upos" in store.index.labels:
        labels = store.index.labels["upos"]
        return np.array([code >= 0 and labels.names[code] == "PUNCT" for code in labels.codes[rows].tolist()])
    return np.array([all(unicodedata.category(each)[0] in "PS" for each in word) for word in words])


def _gold(
    one: Explored, rows: NDArray[np.int64], positions: NDArray[np.int32], at: list[int], labels: tuple[str, ...]
) -> list[str | None] | None:
    """The labels of the column of the store that shares most labels with the probes, None where none shares half."""
    shared = {name: len({*own.names} & {*labels}) for name, own in one.store.index.own_labels.items()}
    best = max(shared, key=lambda name: shared[name], default=None)
    if best is None or 2 * shared[best] < len(labels):
        return None
    column = one.store.index.labels[best]
    codes = dict(zip(positions.tolist(), column.codes[rows].tolist(), strict=True))
    return [column.names[codes[place]] if codes.get(place, -1) >= 0 else None for place in at]
