"""Many binary probes as one batched model: layers x seeds x outputs, linear or with one hidden layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod, sqrt
from typing import Literal, NamedTuple

import torch

from embstore.probes.training import seeded

Kind = Literal["linear", "mlp"]
CPU_BLOCK_NBYTES = 4 * 2**20  # activations of probes that are computed together fit the caches of the processor
GPU_BLOCK_NBYTES = 2**29


class Output(NamedTuple):
    """What one probe decides: whether an example is of the class `name` in the task `task`."""

    task: str
    name: str


@dataclass(frozen=True)
class Shape:
    """Which probes a bank has: one for each of layers x seeds x outputs, over vectors of `width` numbers.

    `hidden_size`: units of each probe's hidden layer, 0 for `kind` linear. A layer has `n_probes` probes; number
    `s * len(outputs) + t` is that of the seed s and the output t.
    """

    kind: str
    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    outputs: tuple[Output, ...]
    width: int
    hidden_size: int = 0

    @property
    def n_probes(self) -> int:
        """Probes per layer."""
        return len(self.seeds) * len(self.outputs)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of layers, seeds and outputs."""
        return len(self.layers), len(self.seeds), len(self.outputs)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the weights of one probe; the last column of what multiplies the vectors is the bias."""
        if self.kind == "linear":
            return {"weight": (self.width + 1,)}
        return {"hidden": (self.hidden_size, self.width + 1), "output": (self.hidden_size,), "bias": ()}


@dataclass(frozen=True, eq=False)
class ProbeBank:
    """Trained probes: their `shape`, and float32 `weights` [layer, probe, ...], see `Shape.tensor_shapes`."""

    shape: Shape
    weights: Mapping[str, torch.Tensor]

    def at_layers(self, layers: Sequence[int], device: torch.device) -> ProbeBank:
        """Return the probes of some of the layers, on a device."""
        places = [self.shape.layers.index(layer) for layer in layers]
        chosen = {name: tensor[places].to(device) for name, tensor in self.weights.items()}
        return ProbeBank(replace(self.shape, layers=tuple(layers)), chosen)


def initial_weights(shape: Shape) -> dict[str, torch.Tensor]:
    """Return initial weights [layer, probe, ...], uniform within 1 / sqrt(inputs), as in `torch.nn.Linear`.

    Those of a probe depend only on its seed, layer, task, class and sizes, and not on the other probes.
    """
    sizes = shape.tensor_shapes()
    weights = {name: torch.empty(len(shape.layers), shape.n_probes, *size) for name, size in sizes.items()}
    probes = enumerate(product(shape.seeds, shape.outputs))
    for (row, layer), (column, (seed, output)) in product(enumerate(shape.layers), probes):
        generator = seeded(seed, layer, *output)
        for name, tensor in weights.items():
            n_inputs = shape.width if name in ("weight", "hidden") else shape.hidden_size
            tensor[row, column].uniform_(-1 / sqrt(n_inputs), 1 / sqrt(n_inputs), generator=generator)
    return weights


class LinearBlock:
    """All layers at once: one batched product forward, one for the gradient.

    `layers` and `probes` of a block are its slices of the bank's axes. `forward` returns logits [layer, probe, n] of a
    batch [layer, n, width + 1] whose last column is 1; `backward` fills the gradients of the parameters, given those of
    the loss with respect to the last logits.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], *, gradients: bool) -> None:
        self._weight = weights["weight"]
        self.layers, self.probes = slice(0, len(self._weight)), slice(0, self._weight.shape[1])
        self.parameters = dict(weights)
        if gradients:
            self._weight.grad = torch.empty_like(self._weight)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        return torch.bmm(self._weight, columns.transpose(1, 2))

    def backward(self, columns: torch.Tensor, gradients: torch.Tensor) -> None:
        torch.bmm(gradients, columns, out=self._weight.grad)


class HiddenBlock:
    """Some probes of one layer: their hidden units are the rows of one wide matrix product.

    With V = [W, b] (units x columns), Z = V X^T, A = relu(Z) and logits w A + c, the gradients g of the loss with
    respect to the logits give M = g * [Z > 0], computed in place of A, and G = M X. The gradient of V is G scaled by w
    row by row. As A is Z wherever it is not 0, the gradient of w is the dot product of the rows of V and G. So only
    the two large products, the rectifier and the mask touch the activations.
    """

    def __init__(
        self, weights: Mapping[str, torch.Tensor], layer: int, probes: slice, buffers: tuple[torch.Tensor, ...]
    ) -> None:
        self.layers, self.probes = slice(layer, layer + 1), probes
        self.parameters = {name: tensor[layer, probes] for name, tensor in weights.items()}
        self._hidden, self._output, self._bias = (self.parameters[name] for name in ("hidden", "output", "bias"))
        self._activations, self._gradients, self._products = buffers

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        count, units, width = self._hidden.shape
        vectors = columns[self.layers.start]
        active = self._active(len(vectors))
        torch.mm(self._hidden.view(count * units, width), vectors.t(), out=active)
        active.relu_()
        out = torch.bmm(self._output[:, None], active.view(count, units, -1))
        return out.add_(self._bias[:, None, None]).view(1, count, -1)

    def backward(self, columns: torch.Tensor, gradients: torch.Tensor) -> None:
        vectors = columns[self.layers.start]
        count, units, width = self._hidden.shape
        active = self._active(len(vectors))
        masked, spread = active.view(count, units, -1), gradients[0, :, None].expand(count, units, len(vectors))
        torch.ops.aten.threshold_backward.grad_input(spread, masked, 0, grad_input=masked)
        gradient = self._gradients[: self._hidden.numel()].view_as(self._hidden)
        torch.mm(active, vectors, out=gradient.view(count * units, width))
        products = self._products[: self._hidden.numel()].view_as(self._hidden)
        self._output.grad = torch.mul(self._hidden, gradient, out=products).sum(2)
        self._hidden.grad = gradient.mul_(self._output[:, :, None])
        self._bias.grad = gradients[0].sum(1)

    def _active(self, n_examples: int) -> torch.Tensor:
        n_units = prod(self._hidden.shape[:2])
        return self._activations[: n_units * n_examples].view(n_units, n_examples)


Block = LinearBlock | HiddenBlock


def blocks_of(weights: Mapping[str, torch.Tensor], *, batch_size: int, gradients: bool = False) -> list[Block]:
    """Cut probes into blocks whose activations of one batch fit the caches; all blocks share their buffers."""
    if "hidden" not in weights:
        return [LinearBlock(weights, gradients=gradients)]
    layers, probes, units, width = weights["hidden"].shape
    device = weights["hidden"].device
    most = CPU_BLOCK_NBYTES if device.type == "cpu" else GPU_BLOCK_NBYTES
    size = min(probes, max(1, most // (4 * units * batch_size)))
    n_gradients = size * units * width if gradients else 0
    buffers = tuple(torch.empty(n, device=device) for n in (size * units * batch_size, n_gradients, n_gradients))
    return [
        HiddenBlock(weights, layer, slice(start, min(start + size, probes)), buffers)
        for layer, start in product(range(layers), range(0, probes, size))
    ]


def logits_of(blocks: Sequence[Block], columns: torch.Tensor, n_probes: int) -> torch.Tensor:
    """Return the logits of all blocks, [layer, probe, n]."""
    if len(blocks) == 1:
        return blocks[0].forward(columns)
    out = torch.empty(columns.shape[0], n_probes, columns.shape[1], device=columns.device)
    for block in blocks:
        out[block.layers, block.probes] = block.forward(columns)
    return out
