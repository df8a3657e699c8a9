"""Pronouns and what they may refer to, found by the similarity of vectors without training."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.scan import gather_finite
from embstore.arguments import checked
from embstore.corpus import EdgeSentence
from embstore.errors import InvalidValueError
from embstore.spacing import spaced
from embstore.store import Store
from embstore.store.layout import Layers, resolve_layers
from embstore.vectors.linalg import unit_rows

Span = tuple[int, int]
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


def _rows_of(store: Store, sentences: Sequence[EdgeSentence], spans: Sequence[tuple[int, Span]]) -> NDArray[np.int64]:
    """Return the first row and the end of each span, int64 [2, n], in a store that has all words of its sentence."""
    index = store.index
    place = {spaced(text): number for number, text in enumerate(index.texts)}
    first = {}
    for number in {number for number, _ in spans}:
        words = sentences[number].words
        at = place.get(" ".join(words), -1)
        if at < 0 or index.indptr[at + 1] - index.indptr[at] != len(words):
            raise InvalidValueError(f"{store.path} does not have all words of {' '.join(words)!r}: extract them all")
        first[number] = int(index.indptr[at])
    return np.array([(first[number] + start, first[number] + stop) for number, (start, stop) in spans]).T


@checked
def resolve_pronouns(
    data: Store,
    sentences: Sequence[EdgeSentence],
    pronouns: Sequence[Pronoun],
    *,
    layers: Layers = None,
    centered: bool = False,
) -> pl.DataFrame:
    """Choose the antecedent of each pronoun: the candidate whose vector has the highest cosine with its own.

    No parameter is trained (Peters et al. 2018). Columns, one row a layer and pronoun: `layer, pronoun` (its number),
    `sentence, n_candidates, value`, 1 if the choice corefers and a share of 1 if equal candidates include right ones,
    and the same for the nearest candidate (`recent`), the `first` one and a random one (`chance`). A span is the mean
    of its words. `centered`: subtract the mean of all spans.

    Raises InvalidValueError for no pronoun, an unknown layer, or a sentence that the store does not have in full.
    """
    if not pronouns:
        raise InvalidValueError("there is no pronoun to resolve: give sentences with labelled pairs of mentions")
    sizes = np.array([len(each.candidates) for each in pronouns])
    spans = [(each.sentence, span) for each in pronouns for span in (each.span, *each.candidates)]
    start, stop = _rows_of(data, sentences, spans)
    words = np.concatenate([np.arange(*each) for each in zip(start, stop, strict=True)])
    rows, place = np.unique(words, return_inverse=True)
    lengths = stop - start
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
        of_words = gather_finite(data, rows, layer).astype(np.float64)[place]
        vectors = np.add.reduceat(of_words, np.cumsum(lengths) - lengths) / lengths[:, None]
        unit = unit_rows(vectors - vectors.mean(0) if centered else vectors)
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
