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
    words: Sequence[int], limit: int, *, n_words: int, n_subwords: int, both: bool
) -> list[tuple[int, int, int, int]]:
    """Cut subwords, of the `words` with these numbers: of each context its subwords, and those that it owns."""
    n, found, own = len(words), list[tuple[int, int, int, int]](), 0
    if n <= limit:
        return [(0, n, 0, n)]

    def enough(start: int, at: int) -> bool:
        """Whether there is the overlap between two places, from the beginning of a word on."""
        return at - start >= n_subwords and (not n_words or not start or words[start - 1] < words[at] - n_words)

    while own < n:
        start, stop = own, own + 1
        while start > 0 and own + 1 - start < limit and not enough(start, own):
            start -= 1
        while stop < n and stop - start < limit:
            stop += 1
        end = stop
        if both and stop < n:
            while end > own + (stop - own + 1) // 2 and not enough(end, stop):
                end -= 1
        if (n_words or n_subwords) and stop < n:  # blocks overlap: the next one has the whole word
            while end > own + 1 and words[end - 1] == words[end]:
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
        pieces, numbers, units = list[str](), list[int](), list[tuple[int, Sentence, int, int, int, int]]()
        word = 0
        for source, sentence in document:
            firsts = []
            for each in sentence.words:
                firsts.append(len(pieces))
                pieces += encoder.pieces(each)
                numbers += [word] * (len(pieces) - firsts[-1])
                word += 1
            firsts.append(len(pieces))
            for first, last in unit_spans(sentence, unit):
                units.append((source, sentence, first, last, firsts[first], firsts[last]))
        contexts = plain_contexts(numbers, limit, n_words=n_words, n_subwords=n_subwords, both=not encoder.causal)
        if unit == "sentence" and context == "sentence":
            contexts = [(0, min(len(pieces), limit), 0, len(pieces))]
        for source, sentence, first, last, start, stop in units:
            if stop - start > limit and unit == "word":
                continue
            labels = {name: column[first] for name, column in sentence.labels.items()}
            for place in [(at, at + 1) for at in range(start, stop)] if unit == "subword" else [(start, stop)]:
                own = [each for each in contexts if each[2] <= place[0] < each[3]]
                if not own or place[0] == place[1]:
                    continue
                begin, end, *_ = own[0]
                flat, one = pieces[begin:end], (place[0] - begin, min(place[1], end) - begin)
                form = " ".join(sentence.words[first:last]) if unit != "subword" else pieces[place[0]]
                vectors = np.stack([span_vector(flat, *one, layer=layer, pooling=pooling) for layer in layers])
                rows.append(Row(form, source, str(sentence), first, one[1] - one[0], labels, vectors))
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
