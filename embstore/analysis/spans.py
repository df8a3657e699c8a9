"""Vectors of spans of words compared without training: pronouns with what they may refer to, phrases with phrases."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.scan import gather_finite
from embstore.arguments import checked
from embstore.corpus import EdgeSentence
from embstore.errors import InvalidValueError, check_choice
from embstore.spacing import spaced
from embstore.store import Store
from embstore.store.layout import resolve_layers
from embstore.vectors.kmeans import unit_rows

Span = tuple[int, int]
POOLINGS = ("mean", "last", "ends")
SAME = "1"  # the label of two spans that corefer
TIE = 1e-9
# Pronouns of the third person, whose antecedent is a mention and not who speaks or is spoken to.
THIRD_PERSON = "he him his himself she her hers herself it its itself they them their theirs themselves"
PRONOUNS = frozenset(THIRD_PERSON.split())


@dataclass(frozen=True)
class Pronoun:
    """A pronoun with an antecedent in its sentence.

    `sentence`: the number of the sentence. `candidates`: the earlier mentions, in order of their ends; `right`: which
    of them corefer with it.
    """

    sentence: int
    span: Span
    candidates: tuple[Span, ...]
    right: tuple[bool, ...]

    @property
    def is_ambiguous(self) -> bool:
        """Whether some candidate is wrong."""
        return not all(self.right)


def find_pronouns(sentences: Sequence[EdgeSentence], *, forms: Collection[str] = PRONOUNS) -> list[Pronoun]:
    """Find the pronouns that have an antecedent, in sentences whose pairs of spans are labelled 1 if they corefer.

    Mentions are the spans of the pairs. Candidates are mentions that end before the pronoun begins. Coreference is
    transitive: two mentions corefer if labelled pairs connect them.
    """
    found = []
    for number, sentence in enumerate(sentences):
        entities = _entities(sentence)
        for span in sorted(entities):
            start, stop = span
            if stop != start + 1 or sentence.words[start].lower() not in forms:
                continue
            earlier = sorted((other for other in entities if other[1] <= start), key=lambda each: (each[1], each[0]))
            right = tuple(entities[other] == entities[span] for other in earlier)
            if any(right):
                found.append(Pronoun(number, span, tuple(earlier), right))
    return found


def _entities(sentence: EdgeSentence) -> dict[Span, Span]:
    """Return the first mention of the entity of each mention, along labelled pairs."""
    known = {span: {span} for target in sentence.targets for span in (target.span1, target.span2) if span}
    for target in sentence.targets:
        if target.span2 is not None and SAME in target.labels:
            together = known[target.span1] | known[target.span2]
            known |= dict.fromkeys(together, together)
    return {span: min(together) for span, together in known.items()}


class SpanVectors:
    """The vectors of spans of sentences, in a store that has all their words, one row a word.

    `pooling`: "mean" of the words of a span, its "last" word, or the mean of both "ends". `centered`: subtract the mean
    of the spans. Raises InvalidValueError for a sentence that the store does not have in full.
    """

    def __init__(self, store: Store, sentences: Sequence[EdgeSentence], spans: Sequence[tuple[int, Span]]) -> None:
        index = store.index
        place = {spaced(text): number for number, text in enumerate(index.texts)}
        first = {}
        for number in {number for number, _ in spans}:
            words = sentences[number].words
            at = place.get(" ".join(words), -1)
            if at < 0 or index.indptr[at + 1] - index.indptr[at] != len(words):
                raise InvalidValueError(
                    f"{store.path} does not have all words of {' '.join(words)!r}: extract them all"
                )
            first[number] = int(index.indptr[at])
        self.store = store
        self._ranges = np.array([(first[number] + start, first[number] + stop) for number, (start, stop) in spans])

    def at(self, layer: int, *, pooling: str = "mean", centered: bool = False) -> NDArray[np.float64]:
        """Return the unit vectors of the spans in a layer, float64 [n, hidden_size]; a zero vector stays zero."""
        check_choice("pooling", pooling, POOLINGS)
        start, stop = self._ranges.T
        if pooling == "mean":
            rows, place = np.unique(np.concatenate([np.arange(*each) for each in self._ranges]), return_inverse=True)
            ends = np.cumsum(stop - start)
            vectors = gather_finite(self.store, rows, layer).astype(np.float64)[place]
            sums = np.add.reduceat(vectors, ends - (stop - start))
            vectors = sums / (stop - start)[:, None]
        else:
            vectors = self._words(stop - 1, layer)
            if pooling == "ends":
                vectors = (self._words(start, layer) + vectors) / 2
        return unit_rows(vectors - vectors.mean(0) if centered else vectors)

    def _words(self, rows: NDArray[np.int64], layer: int) -> NDArray[np.float64]:
        distinct, place = np.unique(rows, return_inverse=True)
        return gather_finite(self.store, distinct, layer).astype(np.float64)[place]


@checked
def resolve_pronouns(
    data: Store,
    sentences: Sequence[EdgeSentence],
    pronouns: Sequence[Pronoun],
    *,
    layers: int | str | Sequence[int] | None = None,
    pooling: str = "mean",
    centered: bool = False,
) -> pl.DataFrame:
    """Choose the antecedent of each pronoun: the candidate whose vector has the highest cosine with its own.

    No parameter is trained (Peters et al. 2018). Columns, one row a layer and pronoun: `layer, pronoun` (its number),
    `sentence, n_candidates, value`, 1 if the choice corefers and a share of 1 if equal candidates include right ones,
    and the same for the nearest candidate (`recent`), the `first` one and a random one (`chance`). `pooling`: a span is
    the "mean" of its words, its "last" word, or the mean of both "ends". `centered`: subtract the mean of all spans.

    Raises InvalidValueError for no pronoun, an unknown layer, or a sentence that the store does not have in full.
    """
    if not pronouns:
        raise InvalidValueError("there is no pronoun to resolve: give sentences with labelled pairs of mentions")
    sizes = np.array([len(each.candidates) for each in pronouns])
    spans = [(each.sentence, span) for each in pronouns for span in (each.span, *each.candidates)]
    vectors = SpanVectors(data, sentences, spans)
    own = np.cumsum(sizes + 1) - sizes - 1
    is_candidate = np.ones(len(spans), bool)
    is_candidate[own] = False
    right = np.concatenate([each.right for each in pronouns])
    starts = np.cumsum(sizes) - sizes
    baselines = {
        "recent": right[starts + sizes - 1].astype(float),
        "first": right[starts].astype(float),
        "chance": np.add.reduceat(right.astype(float), starts) / sizes,
    }
    frames = []
    for layer in resolve_layers(layers, data.layers):
        unit = vectors.at(layer, pooling=pooling, centered=centered)
        cosine = (unit[is_candidate] * np.repeat(unit[own], sizes, axis=0)).sum(1)
        best = cosine >= np.repeat(np.maximum.reduceat(cosine, starts), sizes) - TIE
        value = np.add.reduceat((best & right).astype(float), starts) / np.add.reduceat(best.astype(float), starts)
        columns: dict[str, Any] = {
            "layer": np.full(len(pronouns), layer),
            "pronoun": np.arange(len(pronouns)),
            "sentence": [each.sentence for each in pronouns],
            "n_candidates": sizes,
            "value": value,
        }
        frames.append(pl.DataFrame(columns | baselines))
    return pl.concat(frames)


@dataclass(frozen=True)
class Phrase:
    """A span of a sentence, by its number, and its label."""

    sentence: int
    span: Span
    label: str


@checked
def nearest_phrases(
    data: Store,
    sentences: Sequence[EdgeSentence],
    phrases: Sequence[Phrase],
    *,
    layers: int | str | Sequence[int] | None = None,
    pooling: str = "mean",
    centered: bool = False,
) -> pl.DataFrame:
    """Find the nearest phrase of each phrase by cosine, among those of other words in other sentences.

    Columns, one row a layer and phrase: `layer, phrase` (its number), `sentence, label, nearest` (the number of the
    first of equally near ones), `score, value`, 1 if their labels are the same, a share of 1 among equally near ones.

    Raises InvalidValueError as `resolve_pronouns`, and for a phrase that no other phrase can be near to.
    """
    texts = [" ".join(sentences[each.sentence].words[slice(*each.span)]).lower() for each in phrases]
    text = np.unique(texts, return_inverse=True)[1]
    names, label = np.unique([each.label for each in phrases], return_inverse=True)
    sentence = np.array([each.sentence for each in phrases])
    vectors = SpanVectors(data, sentences, [(each.sentence, each.span) for each in phrases])
    frames = []
    for layer in resolve_layers(layers, data.layers):
        unit = vectors.at(layer, pooling=pooling, centered=centered)
        found = [_nearest(unit, rows, text, sentence, label) for rows in _blocks(len(unit))]
        nearest, score, value = (np.concatenate(each) for each in zip(*found, strict=True))
        if not np.isfinite(score).all():
            raise InvalidValueError("a phrase has no other phrase to compare with: give phrases of several sentences")
        columns = {"layer": np.full(len(unit), layer), "phrase": np.arange(len(unit)), "sentence": sentence}
        columns |= {"label": names[label], "nearest": nearest, "score": score, "value": value}
        frames.append(pl.DataFrame(columns))
    return pl.concat(frames)


def _blocks(count: int, size: int = 512) -> Iterator[NDArray[np.int64]]:
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def _nearest(
    unit: NDArray[np.float64],
    rows: NDArray[np.int64],
    text: NDArray[np.int64],
    sentence: NDArray[np.int64],
    label: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    cosine = unit[rows] @ unit.T
    cosine[(text[rows, None] == text) | (sentence[rows, None] == sentence)] = -np.inf
    score = cosine.max(1)
    best = cosine >= score[:, None] - TIE
    return best.argmax(1), score, (best & (label[rows, None] == label)).sum(1) / best.sum(1)
