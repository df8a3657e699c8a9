"""How similar the words of one sentence are to each other, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.store import Store


@dataclass(frozen=True)
class SentenceSimilarity:
    """The cosine of every two words of a sentence: `values` float64 [layer, word, word]."""

    words: tuple[str, ...]
    layers: tuple[int, ...]
    values: NDArray[np.float64]


def sentence_similarity(
    store: Store, sentence: int, *, layers: int | Sequence[int] | None = None
) -> SentenceSimilarity:
    """The cosine of every two words of a sentence at each layer; a zero vector has cosine 0 with all.

    `sentence`: a row of `index.texts`, as in the column `sentence` of contexts. Only words that the store holds are
    there. Raises InvalidValueError (no such sentence or layer), MissingRowsError, NonFiniteError.
    """
    selection = store.select(sentences=sentence, layers=layers)
    index = store.index
    vectors = selection.vectors(dtype="float64")
    finite = np.isfinite(vectors).all(2)
    if not finite.all():
        place, number = np.argwhere(~finite)[0].tolist()
        raise NonFiniteError(
            f"layer {selection.layers[place]}, row {int(selection.rows[number])} holds a value that is not finite: "
            "run embstore verify, or choose other layers"
        )
    norms = np.linalg.norm(vectors, axis=2, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1)
    return SentenceSimilarity(
        words=tuple(index.words[int(number)] for number in index.type[selection.rows]),
        layers=selection.layers,
        values=np.clip(unit @ unit.transpose(0, 2, 1), -1, 1),
    )
