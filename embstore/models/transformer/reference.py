"""The slow, plain forward pass that batches are compared with: one sentence at a time, pooled by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.encoder import Pooling, Spans, Tokenized
from embstore.models.selfcheck import PROBES, pool_plainly
from embstore.models.transformer.inputs import InputMaker
from embstore.models.transformer.network import Network

LONGEST_WINDOW_SENTENCE = 1024  # words; a window as wide as this contains the sentence
SAME = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}


@torch.inference_mode()
def plain_vectors(
    network: Network,
    tokenized: Tokenized,
    spans: Spans,
    *,
    layers: Sequence[int],
    pooling: Pooling,
    attention_window: int | None = None,
) -> NDArray[np.float32]:
    """Return the vectors of spans as a plain script computes them: float32 [n_layers, n_spans, hidden_size].

    One call of the model per sentence with `output_hidden_states=True`: no batches, no hooks. Sentences beyond the
    model's limit are cut as `encode` cuts them. The mask of an attention window is written row by row.
    """
    vectors = np.empty((len(layers), len(spans.sentence), network.info.hidden_size), np.float32)
    before = len(network.inputs.specials.prefix)
    for sentence in np.unique(spans.sentence):
        first_word, last_word = tokenized.sentence_indptr[sentence : sentence + 2]
        ids = tokenized.ids[tokenized.word_indptr[first_word] : tokenized.word_indptr[last_word]]
        ids = ids[: network.info.max_subwords]
        inputs = network.inputs.plain(ids)
        if attention_window is not None:
            n_subwords = np.diff(tokenized.word_indptr[first_word : last_word + 1])
            words = np.repeat(np.arange(len(n_subwords)), n_subwords)[: len(ids)]
            inputs["attention_mask"] = window_mask(network.inputs, words, attention_window)
        states = network.model(**inputs, output_hidden_states=True).hidden_states
        for row in np.flatnonzero(spans.sentence == sentence):
            start, stop = before + int(spans.start[row]), before + int(spans.stop[row])
            for index, layer in enumerate(layers):
                vectors[index, row] = pool_plainly(states[layer][0, start:stop], pooling)
    return vectors


def window_mask(maker: InputMaker, words: NDArray[np.int64], reach: int) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the mask of one sentence for an attention window, written one subword at a time.

    `words`: int [n_subwords], the number of the word of each subword.
    """
    before = len(maker.specials.prefix)
    special = np.ones(maker.specials.count + len(words), bool)
    special[before : before + len(words)] = False
    rows = []
    for query in range(len(special)):
        row = special.copy()
        if not special[query]:
            row[before : before + len(words)] = np.abs(words - words[query - before]) <= reach
        rows.append(row)
    return maker.additive_mask(torch.from_numpy(np.stack(rows))[None, None].to(maker.device))


@torch.inference_mode()
def require_window_respected(network: Network, tokenized: Tokenized, reach: int) -> None:
    """Raise ModelError if words beyond an attention window change a vector of layer 1, or words within it do not.

    `tokenized`: sentences from which known subwords are taken.
    """
    refused = (
        f"the model {network.info.name!r} does not respect a mask of pairs of subwords, which attention windows need: "
    )
    if "attention_mask" not in network.inputs.parameters:
        raise ModelError(refused + "it takes no attention mask; use context windows")
    limit = network.info.max_subwords
    n_words = min(reach + 2, LONGEST_WINDOW_SENTENCE if limit is None else min(limit, LONGEST_WINDOW_SENTENCE))
    known = tokenized if len(tokenized.ids) else network.tokenizer.tokenize(PROBES)
    ids = known.ids[np.sort(np.unique(known.ids, return_index=True)[1])][:64]
    sentence = np.resize(ids, n_words)
    try:
        before = _layer_1(network, sentence, reach)
        first_changed, last_changed, next_changed = (
            _differs(network, before, _layer_1(network, _with_other_subword(sentence, index, ids), reach))
            for index in (0, n_words - 1, n_words - 2)
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(
            refused + f"it fails with one ({' '.join(str(error).split())}); use context windows"
        ) from error
    first = len(network.inputs.specials.prefix)
    last = first + n_words - 1
    special = np.ones(len(before), bool)
    special[first : last + 1] = False
    leaks = [changed[special].any() for changed in (first_changed, last_changed, next_changed)]
    if n_words == reach + 2:  # the two ends are outside each other's window
        leaks += [first_changed[last], last_changed[first]]
    if any(leaks):
        raise ModelError(refused + f"words more than {reach} words away change its layer 1; use context windows")
    if reach > 0 and not next_changed[last]:
        raise ModelError(refused + f"words {reach} words away change nothing in its layer 1; use context windows")


def _with_other_subword(sentence: NDArray[np.int32], index: int, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    changed = sentence.copy()
    changed[index] = next((other for other in ids if other != sentence[index]), sentence[index])
    return changed


def _layer_1(network: Network, ids: NDArray[np.int32], reach: int) -> torch.Tensor:
    """Return layer 1 of a sentence in which each word has one subword: [positions, features]."""
    inputs = network.inputs.plain(ids)
    inputs["attention_mask"] = window_mask(network.inputs, np.arange(len(ids)), reach)
    states = network.model(**inputs, **network.inputs.fixed, output_hidden_states=True).hidden_states
    layer: torch.Tensor = states[min(1, len(states) - 1)][0].float().cpu()
    return layer


def _differs(network: Network, one: torch.Tensor, other: torch.Tensor) -> NDArray[np.bool_]:
    """Return which positions differ: bool [positions]."""
    bound = SAME[network.compute_dtype] * float(one.abs().max())
    return np.asarray(((one - other).abs().amax(1) > bound).numpy(), np.bool_)
