"""The slow, obvious reference: one sentence a forward pass, pooled by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.encoder import Pooling, Spans, Tokenized

if TYPE_CHECKING:
    from embstore.models.transformer import TransformerEncoder


@torch.inference_mode()
def plain_vectors(
    encoder: TransformerEncoder, tokenized: Tokenized, spans: Spans, *, layers: Sequence[int], pooling: Pooling
) -> NDArray[np.float32]:
    """Return the vectors of spans as a plain script computes them: float32 [layers, spans, hidden_size].

    One call of the model a sentence with `output_hidden_states=True`, no batching, no hooks. Sentences beyond
    the model's limit are cut as `encode` cuts them.
    """
    vectors = np.empty((len(layers), len(spans.sentence), encoder.info.hidden_size), np.float32)
    before = len(encoder.inputs.specials.prefix)
    for sentence in np.unique(spans.sentence):
        first_word, last_word = tokenized.sentence_indptr[sentence : sentence + 2]
        ids = tokenized.ids[tokenized.word_indptr[first_word] : tokenized.word_indptr[last_word]]
        inputs = encoder.inputs.plain(encoder.inputs.with_specials(ids[: encoder.info.max_subwords]))
        states = encoder.model(**inputs, output_hidden_states=True).hidden_states
        for row in np.flatnonzero(spans.sentence == sentence):
            start, stop = before + int(spans.start[row]), before + int(spans.stop[row])
            for place, layer in enumerate(layers):
                vectors[place, row] = pooled(states[layer][0, start:stop].float().cpu(), pooling)
    return vectors


def pooled(pieces: torch.Tensor, pooling: Pooling) -> NDArray[np.float32]:
    """Pool subwords [n, hidden_size] into one vector."""
    subwords = pieces.numpy()
    if pooling == "first":
        return np.asarray(subwords[0], np.float32)
    if pooling == "last":
        return np.asarray(subwords[-1], np.float32)
    if pooling == "max":
        return np.asarray(subwords.max(axis=0), np.float32)
    return np.asarray(subwords.mean(axis=0), np.float32)
