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


def expected_rows(
    sentences: Sequence[Sentence], encoder: FakeEncoder, *, limit: int, unit: str, pooling: str, layers: Sequence[int]
) -> list[Row]:
    """Every occurrence of every sentence that has a subword within the limit, in corpus order."""
    rows = []
    for source, sentence in enumerate(sentences):
        pieces = [encoder.pieces(word) for word in sentence.words]
        flat = [piece for word in pieces for piece in word][:limit]
        starts = np.cumsum([0, *map(len, pieces)]).tolist()
        spans = dict(sentence.targets)
        word = 0
        while word < len(sentence.words):
            end = spans.get(word, word + 1)
            begin, stop = starts[word], starts[end]
            labels = {name: column[word] for name, column in sentence.labels.items()}
            parts = [(begin, stop)] if unit == "word" else [(at, at + 1) for at in range(begin, stop)]
            if begin < stop <= limit:
                for first, last in parts:
                    form = " ".join(sentence.words[word:end]) if unit == "word" else flat[first]
                    vectors = np.stack(
                        [span_vector(flat, first, last, layer=layer, pooling=pooling) for layer in layers]
                    )
                    text = " ".join(sentence.words)
                    rows.append(Row(form, source, text, word, last - first, labels, vectors))
            word = end
    return rows
