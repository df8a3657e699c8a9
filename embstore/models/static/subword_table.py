"""Word vectors from a model's input embeddings alone: no context, no forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, ModelError
from embstore.models.encoder import Encoder
from embstore.vectors import WordVectors

_WORDS = 4096


def input_embeddings(encoder: Encoder) -> torch.Tensor:
    """The table of a model's subwords, [subwords, dimensions]; raises ModelError for a model that has none."""
    table = getattr(getattr(encoder, "model", None), "get_input_embeddings", lambda: None)()
    weight = getattr(table, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        raise ModelError(f"the model {encoder.info.name!r} has no table of subwords: it makes words in another way")
    return weight.detach()


def subword_table_vectors(encoder: Encoder, words: Sequence[str]) -> WordVectors:
    """The mean of each word's rows in the table of subwords, as the model's tokenizer splits it; float32.

    A phrase, its words joined by spaces, has the mean over the subwords of all its words. Raises InvalidValueError
    for no word and for one that has no subword.
    """
    table = input_embeddings(encoder)
    if not len(words):
        raise InvalidValueError("no word is given: name one or more")
    parts = [_means(encoder, table, words[start : start + _WORDS]) for start in range(0, len(words), _WORDS)]
    return WordVectors(tuple(words), np.concatenate(parts))


def _means(encoder: Encoder, table: torch.Tensor, words: Sequence[str]) -> NDArray[np.float32]:
    tokenized = encoder.tokenize([word.split(" ") for word in words])
    bounds = tokenized.word_indptr[tokenized.sentence_indptr]
    counts = np.diff(bounds)
    if not counts.all():
        raise InvalidValueError(f"the word {words[int(counts.argmin())]!r} has no subword in this model: leave it out")
    ids = torch.from_numpy(tokenized.ids.astype(np.int64)).to(table.device)
    offsets = torch.from_numpy(bounds[:-1].astype(np.int64)).to(table.device)
    rows = table[ids].float()
    means: NDArray[np.float32] = (
        torch.nn.functional.embedding_bag(torch.arange(len(ids), device=table.device), rows, offsets, mode="mean")
        .cpu()
        .numpy()
    )
    return means
