"""The slow, plain biLM that batches are compared with: one sentence, one direction, one word at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.elmo.network import BiLstm, ElmoNetwork
from embstore.models.elmo.words import CHARACTERS, WordNumbers, spell
from embstore.models.encoder import Pooling, Spans, Tokenized
from embstore.models.selfcheck import pool_plainly


@torch.inference_mode()
def plain_vectors(
    network: ElmoNetwork,
    numbers: WordNumbers,
    tokenized: Tokenized,
    spans: Spans,
    *,
    layers: Sequence[int],
    pooling: Pooling,
) -> NDArray[np.float32]:
    """Return the vectors of spans without batches or reuse of words: float32 [n_layers, n_spans, hidden_size]."""
    vectors = np.empty((len(layers), len(spans.sentence), 2 * network.projection_dim), np.float32)
    begin, end = CHARACTERS.sentence_words
    bounds = tokenized.sentence_bounds
    for sentence in np.unique(spans.sentence):
        ids = tokenized.ids[bounds[sentence] : bounds[sentence + 1]].tolist()
        words = [begin, *map(numbers.word, ids), end]
        states = _layers(network, torch.from_numpy(spell(words, width=network.words.width)))
        for row in np.flatnonzero(spans.sentence == sentence):
            start, stop = int(spans.start[row]) + 1, int(spans.stop[row]) + 1
            for index, layer in enumerate(layers):
                vectors[index, row] = pool_plainly(states[layer][start:stop], pooling)
    return vectors


def _layers(network: ElmoNetwork, characters: torch.Tensor) -> list[torch.Tensor]:
    """Return all layers of one sentence, each [n_words, 2 * projection_dim]."""
    words = network.words(characters.to(network.device))
    sides = [words, words]
    layers = [torch.cat(sides, -1)]
    for layer in network.layers:
        forward = _lstm(layer, 0, sides[0])
        backward = _lstm(layer, 1, sides[1].flip(0)).flip(0)
        sides = [sides[0] + forward, sides[1] + backward] if layer.residual else [forward, backward]
        layers.append(torch.cat(sides, -1))
    return layers


def _lstm(layer: BiLstm, side: int, words: torch.Tensor) -> torch.Tensor:
    output, cell = (part[side, 0] for part in layer.zero_state(1))
    outputs = []
    for word in words:
        gates = word @ layer.input[side] + output @ layer.recurrent[side] + layer.bias[side, 0]
        admit, forget, emit, value = gates.chunk(4)
        cell = cell * torch.sigmoid(forget) + torch.sigmoid(admit) * torch.tanh(value)
        if layer.cell_clip is not None:
            cell = cell.clamp(-layer.cell_clip, layer.cell_clip)
        output = (torch.sigmoid(emit) * torch.tanh(cell)) @ layer.projection[side]
        if layer.projection_clip is not None:
            output = output.clamp(-layer.projection_clip, layer.projection_clip)
        outputs.append(output)
    return torch.stack(outputs)
