"""What a store must hold, worked out word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embstore.corpus import Sentence
from tests.extraction.fake import FakeEncoder, span_vector


@dataclass
class Row:
    """One expected occurrence."""

    form: str
    source: int
    text: str
    position: int
    subwords: int
    labels: dict[str, str | None]
    vectors: np.ndarray


def plain_contexts(
    sizes: Sequence[int], words: Sequence[int], limit: int, *, n_words: int, n_subwords: int, both: bool
) -> list[tuple[int, int, int, int]]:
    """Cut units of `sizes` subwords and `words` words: of each context its units, and those that it owns."""
    found: list[tuple[int, int, int, int]] = []
    own = low = 0
    if sum(sizes) <= limit:
        return [(0, len(sizes), 0, len(sizes))]
    while own < len(sizes):
        if sizes[own] > limit:
            own = low = own + 1
            continue
        start, stop = own, own + 1
        while start > low and sum(sizes[start - 1 : own + 1]) <= limit:
            if sum(words[start:own]) >= n_words and sum(sizes[start:own]) >= n_subwords:
                break
            start -= 1
        while stop < len(sizes) and sum(sizes[start : stop + 1]) <= limit:
            stop += 1
        end = stop
        if both and stop < len(sizes) and sizes[stop] <= limit:
            while end > own + (stop - own + 1) // 2:
                if sum(words[end:stop]) >= n_words and sum(sizes[end:stop]) >= n_subwords:
                    break
                end -= 1
        found.append((start, stop, own, end))
        own = end
    return found


def expected_rows(
    sentences: Sequence[Sentence],
    encoder: FakeEncoder,
    *,
    limit: int,
    unit: str,
    pooling: str,
    layers: Sequence[int],
    context: str = "sentence",
    min_left: int | None = None,
) -> list[Row]:
    """Every occurrence that has a subword and is no longer than the limit, in corpus order."""
    rows = []
    share = limit // (4 if encoder.causal else 8)
    n_words, n_subwords = (0, share) if min_left is None else (min_left, 0)
    for document in documents_of(sentences) if context == "document" else [[each] for each in enumerate(sentences)]:
        units = [(source, sentence, *span) for source, sentence in document for span in unit_spans(sentence, unit)]
        pieces = [
            [piece for word in sentence.words[first:last] for piece in encoder.pieces(word)]
            for _, sentence, first, last in units
        ]
        sizes, lengths = [len(some) for some in pieces], [last - first for *_, first, last in units]
        if unit == "sentence":
            sizes = [min(size, limit) for size in sizes]
        for begin, end, owned, stop in plain_contexts(
            sizes, lengths, limit, n_words=n_words, n_subwords=n_subwords, both=not encoder.causal
        ):
            flat = [piece for some in pieces[begin:end] for piece in some][:limit]
            for number in range(owned, stop):
                source, sentence, word, last = units[number]
                labels = {name: column[word] for name, column in sentence.labels.items()}
                place = sum(sizes[begin:number])
                places = [(place, place + sizes[number])]
                if unit == "subword":
                    places = [(at, at + 1) for at in range(*places[0])]
                for one in places:
                    if one[1] > one[0]:
                        form = " ".join(sentence.words[word:last]) if unit != "subword" else flat[one[0]]
                        vectors = np.stack([span_vector(flat, *one, layer=layer, pooling=pooling) for layer in layers])
                        text = " ".join(sentence.words)
                        rows.append(Row(form, source, text, word, one[1] - one[0], labels, vectors))
    return rows


def documents_of(sentences: Sequence[Sentence]) -> list[list[tuple[int, Sentence]]]:
    """The sentences of each document, with their numbers."""
    found: list[list[tuple[int, Sentence]]] = []
    for source, sentence in enumerate(sentences):
        if not found or sentence.document is None or found[-1][-1][1].document is not sentence.document:
            found.append([])
        found[-1].append((source, sentence))
    return found


def unit_spans(sentence: Sentence, unit: str) -> list[tuple[int, int]]:
    """The words of each unit of a sentence."""
    if unit == "sentence":
        return [(0, len(sentence.words))]
    spans = dict(sentence.targets)
    inside = {word for start, stop in spans.items() for word in range(start + 1, stop)}
    return [(word, spans.get(word, word + 1)) for word in range(len(sentence.words)) if word not in inside]
