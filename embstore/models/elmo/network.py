"""The biLM of Peters et al. 2018 in torch: characters to words, words to the layers of both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.elmo.weights import CHARACTERS, Array, ElmoArrays, ElmoOptions
from embstore.models.encoder import ragged_indices

State = tuple[torch.Tensor, torch.Tensor]

DIRECTIONS = ("RNN_0", "RNN_1")  # forward, backward


@dataclass(frozen=True)
class TimeMajor:
    """Order of the positions of sentences step after step, without padding.

    `counts`: how many sentences have a word at each step; always the first ones, as the longest come first. `order`:
    int64 [2, n_positions], where each position of the forward and of the backward reading is in the sentences one after
    the other; `inverse`: the inverse of `order`.
    """

    counts: tuple[int, ...]
    order: NDArray[np.int64]
    inverse: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> TimeMajor:
        """Return the order for sentences of `lengths` words, descending."""
        longest = int(lengths[0]) if len(lengths) else 0
        counts = len(lengths) - np.searchsorted(lengths[::-1], np.arange(longest), side="right")
        step = np.repeat(np.arange(longest), counts)
        row = ragged_indices(np.zeros(longest, np.int64), counts)
        first = (np.cumsum(lengths) - lengths)[row]
        order = np.stack([first + step, first + lengths[row] - 1 - step])
        inverse = np.empty_like(order)
        np.put_along_axis(inverse, order, np.arange(order.shape[1])[None], axis=1)
        return cls(tuple(counts.tolist()), order, inverse)


class CharacterCnn:
    """Vectors of words from their characters: convolutions, the maximum over the word, highways, a projection."""

    def __init__(self, options: ElmoOptions, arrays: ElmoArrays, tensor: Callable[[Array], torch.Tensor]) -> None:
        def pair(weight: str, bias: str, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
            return tensor(arrays.take(weight, *shape)), tensor(arrays.take(bias, shape[-1]))

        n, width = sum(count for _, count in options.filters), options.projection_dim
        self.reach = max(width for width, _ in options.filters)
        self.activation = torch.relu if options.activation == "relu" else torch.tanh
        characters = arrays.take("char_embed", CHARACTERS, options.character_dim)
        self.characters = tensor(np.concatenate([np.zeros_like(characters[:1]), characters]))
        self.convolutions = []
        for number, (reach, count) in enumerate(options.filters):
            kernel = arrays.take(f"CNN/W_cnn_{number}", 1, reach, options.character_dim, count)[0]
            bias = tensor(arrays.take(f"CNN/b_cnn_{number}", count))
            self.convolutions.append((tensor(kernel.transpose(2, 1, 0)), bias))
        self.highways = [
            (*pair(f"{at}/W_carry", f"{at}/b_carry", n, n), *pair(f"{at}/W_transform", f"{at}/b_transform", n, n))
            for at in (f"CNN_high_{number}" for number in range(options.highways))
        ]
        projected = n != width or "CNN_proj" in arrays.opened
        self.projection = pair("CNN_proj/W_proj", "CNN_proj/b_proj", n, width) if projected else None

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors [n_words, projection_dim] of words spelled in `ids` [n_words, characters]."""
        characters = self.characters[ids].transpose(1, 2)
        found = [torch.nn.functional.conv1d(characters, kernel, bias).amax(-1) for kernel, bias in self.convolutions]
        hidden: torch.Tensor = self.activation(torch.cat(found, -1))
        for carry, carry_bias, transform, transform_bias in self.highways:
            gate = torch.addmm(carry_bias, hidden, carry).sigmoid_()
            hidden = torch.lerp(hidden, torch.addmm(transform_bias, hidden, transform).relu_(), gate)
        if self.projection is None:
            return hidden
        return torch.addmm(self.projection[1], hidden, self.projection[0])


class BiLstm:
    """One layer in both directions: an LSTM with projected output, cell and output clipped."""

    def __init__(
        self, options: ElmoOptions, arrays: ElmoArrays, tensor: Callable[[Array], torch.Tensor], number: int
    ) -> None:
        width, dim = options.projection_dim, options.cell_dim
        self.residual = options.skip_connections and number > 0
        self.cell_dim, self.projection_dim = dim, width
        self.cell_clip, self.projection_clip = options.cell_clip, options.projection_clip
        cells = [f"{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell" for direction in DIRECTIONS]
        kernels = [_sigmoid_gates_first(arrays.take(f"{cell}/W_0", 2 * width, 4 * dim)) for cell in cells]
        biases = [_sigmoid_gates_first(arrays.take(f"{cell}/B", 4 * dim)) for cell in cells]
        self.input = tensor(np.stack([kernel[:width] for kernel in kernels]))
        self.recurrent = tensor(np.stack([kernel[width:] for kernel in kernels]))
        forget = np.repeat(np.array([0, 1, 0, 0], np.float32), dim)  # the 1 that the published cell adds at run time
        self.bias = tensor(np.stack([(bias + forget)[None] for bias in biases]))
        self.projection = tensor(np.stack([arrays.take(f"{cell}/W_P_0", dim, width) for cell in cells]))

    def zero_state(self, rows: int) -> State:
        """Return the output and the cell before the first word: [2, rows, projection_dim] and [2, rows, cell_dim]."""
        like = self.projection
        return like.new_zeros(2, rows, self.projection_dim), like.new_zeros(2, rows, self.cell_dim)

    def __call__(self, words: torch.Tensor, counts: Sequence[int], state: State, *, rows: int) -> torch.Tensor:
        """Run over words [2, positions, projection_dim] in time-major order; `state` becomes that of each row's end.

        The contribution of the input to the gates is computed for about `rows` positions at a time.
        """
        outputs = self.projection.new_empty(2, sum(counts), self.projection_dim)
        runs = _runs(counts, rows)
        buffer = self.bias.new_empty(max(map(sum, runs)) * self.bias.numel())  # reused: new memory is slow
        start = 0
        for steps in runs:
            stop = start + sum(steps)
            gates = buffer[: (stop - start) * self.bias.numel()].view(2, stop - start, -1)
            torch.baddbmm(self.bias, words[:, start:stop], self.input, out=gates)
            self._steps(gates, steps, state, outputs[:, start:stop])
            start = stop
        return outputs.add_(words) if self.residual else outputs

    def _steps(self, gates: torch.Tensor, counts: Sequence[int], state: State, outputs: torch.Tensor) -> None:
        start, sigmoids = 0, 3 * self.cell_dim
        for count in counts:
            output, cell = state[0][:, :count], state[1][:, :count]
            step = gates[:, start : start + count].baddbmm_(output, self.recurrent)
            admit, forget, emit = step[..., :sigmoids].sigmoid_().chunk(3, -1)
            cell.mul_(forget).addcmul_(admit, step[..., sigmoids:].tanh_())
            if self.cell_clip is not None:
                cell.clamp_(-self.cell_clip, self.cell_clip)
            projected = torch.bmm(torch.tanh(cell).mul_(emit), self.projection)
            if self.projection_clip is not None:
                projected.clamp_(-self.projection_clip, self.projection_clip)
            output.copy_(projected)
            outputs[:, start : start + count] = projected
            start += count


class ElmoNetwork:
    """The whole biLM on its device; layer 0 is the words themselves, the same in both directions."""

    def __init__(self, options: ElmoOptions, arrays: ElmoArrays, *, device: torch.device, dtype: torch.dtype) -> None:
        self.nbytes = 0  # of the weights

        def tensor(array: Array) -> torch.Tensor:
            weights = torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)
            self.nbytes += weights.nbytes
            return weights

        self.device, self.dtype = device, dtype
        self.words = CharacterCnn(options, arrays, tensor)
        self.layers = [BiLstm(options, arrays, tensor, number) for number in range(options.num_layers)]

    def run(
        self,
        vectors: torch.Tensor,
        index: NDArray[np.int64],
        order: TimeMajor,
        layers: Sequence[int],
        receive: Callable[[int, torch.Tensor], None],
        *,
        states: Sequence[State] | None = None,
        rows: int = 1024,
    ) -> None:
        """Pass each of `layers` to `receive`, as [positions, 2 * projection_dim], sentence after sentence.

        `vectors` [n_words, projection_dim] and `index` int64 [positions]: the word at each position. `states`: those of
        every layer, changed in place; None: zero. Layers above the last one in `layers` are not computed.
        """
        inverse = torch.from_numpy(order.inverse).to(self.device)
        hidden = vectors[torch.from_numpy(index[order.order]).to(self.device)]
        for number in range(max(layers) + 1):
            if number > 0:
                layer = self.layers[number - 1]
                state = layer.zero_state(order.counts[0]) if states is None else states[number - 1]
                hidden = layer(hidden, order.counts, state, rows=rows)
            if number in layers:
                receive(number, torch.cat([hidden[0][inverse[0]], hidden[1][inverse[1]]], -1))


def _sigmoid_gates_first(gates: Array) -> Array:
    """Reorder the gates of the last axis from (input, value, forget, output) to (input, forget, output, value)."""
    admit, value, forget, emit = np.split(gates, 4, axis=-1)
    return np.concatenate([admit, forget, emit, value], axis=-1)


def _runs(counts: Sequence[int], rows: int) -> list[list[int]]:
    """Cut steps into runs of at least `rows` positions; the last one may be shorter."""
    runs: list[list[int]] = [[]]
    size = 0
    for count in counts:
        if size >= rows:
            runs.append([])
            size = 0
        runs[-1].append(count)
        size += count
    return runs


def plain_layers(network: ElmoNetwork, characters: torch.Tensor) -> list[torch.Tensor]:
    """Return all layers of one sentence, each [n_words, 2 * projection_dim]: one direction, one word at a time.

    `characters`: int64 [n_words, width]. This is the slow pass that batches are compared with.
    """
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
