"""The slow, obvious reference: one sentence a forward pass, pooled by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.encoder import Pooling, Spans, Tokenized
from embstore.models.transformer.inputs import InputMaker

if TYPE_CHECKING:
    from embstore.models.transformer.encoder import TransformerEncoder


@torch.inference_mode()
def plain_vectors(
    encoder: TransformerEncoder,
    tokenized: Tokenized,
    spans: Spans,
    *,
    layers: Sequence[int],
    pooling: Pooling,
    attention_window: int | None = None,
) -> NDArray[np.float32]:
    """Return the vectors of spans as a plain script computes them: float32 [layers, spans, hidden_size].

    One call of the model a sentence with `output_hidden_states=True`, no batching, no hooks. Sentences beyond
    the model's limit are cut as `encode` cuts them. With an attention window the mask is written row by row.
    """
    vectors = np.empty((len(layers), len(spans.sentence), encoder.info.hidden_size), np.float32)
    before = len(encoder.inputs.specials.prefix)
    for sentence in np.unique(spans.sentence):
        first_word, last_word = tokenized.sentence_indptr[sentence : sentence + 2]
        ids = tokenized.ids[tokenized.word_indptr[first_word] : tokenized.word_indptr[last_word]]
        ids = ids[: encoder.info.max_subwords]
        inputs = encoder.inputs.plain(encoder.inputs.with_specials(ids))
        if attention_window is not None:
            many = np.diff(tokenized.word_indptr[first_word : last_word + 1])
            words = np.repeat(np.arange(len(many)), many)[: len(ids)]
            inputs["attention_mask"] = written_mask(encoder.inputs, words, attention_window)
        states = encoder.model(**inputs, output_hidden_states=True).hidden_states
        for row in np.flatnonzero(spans.sentence == sentence):
            start, stop = before + int(spans.start[row]), before + int(spans.stop[row])
            for place, layer in enumerate(layers):
                vectors[place, row] = pooled(states[layer][0, start:stop].float().cpu(), pooling)
    return vectors


def written_mask(maker: InputMaker, words: NDArray[np.int64], reach: int) -> torch.Tensor | dict[str, torch.Tensor]:
    """Write the mask of one sentence for an attention window, one row a subword.

    `words`: int [subwords], the number of the word that each subword belongs to.
    """
    before, after = len(maker.specials.prefix), len(maker.specials.suffix)
    count = before + len(words) + after
    special = np.ones(count, bool)
    special[before : before + len(words)] = False
    rows = []
    for query in range(count):
        sees = special.copy()
        if not special[query]:
            sees[before : before + len(words)] = np.abs(words - words[query - before]) <= reach
        rows.append(sees)
    place = torch.arange(count, device=maker.device)
    allowed = torch.from_numpy(np.stack(rows))[None, None].to(maker.device)
    return maker.added(allowed, place[:, None] - place[None, :])


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
