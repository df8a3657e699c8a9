"""Many binary probes as one batched model: layers x seeds x outputs, linear or with one hidden layer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod, sqrt
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.classes.examples import Examples, iter_batches

Kind = Literal["linear", "mlp"]
CPU_ROOM_NBYTES = 4 * 2**20  # activations of the probes computed together: they stay in the processor's caches
GPU_ROOM_NBYTES = 2**29


class Output(NamedTuple):
    """What one probe decides: whether an example is of the class `name` in the task `task`."""

    task: str
    name: str


@dataclass(frozen=True)
class Shape:
    """Which probes a bank has: one for each of layers x seeds x outputs, over vectors of `width` numbers.

    `hidden_size`: units of the hidden layer of each, 0 where `kind` is linear. `probes`: how many a layer has; probe
    `s * len(outputs) + t` is that of the seed s and the output t.
    """

    kind: str
    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    outputs: tuple[Output, ...]
    width: int
    hidden_size: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidValueError(f"unknown kind {self.kind!r} of probe; allowed are {', '.join(get_args(Kind))}")
        if (self.kind == "mlp") != (self.hidden_size > 0):
            raise InvalidValueError(
                f"hidden_size {self.hidden_size} is not allowed for {self.kind} probes: "
                + ("give 1 or more" if self.kind == "mlp" else "they have no hidden layer")
            )
        for what, held in (("layers", self.layers), ("seeds", self.seeds), ("outputs", self.outputs)):
            if not held or len(set(held)) < len(held):
                raise InvalidValueError(f"{what} must be one or more, each once, not {list(held)}")
        if min(self.seeds) < 0:
            raise InvalidValueError(f"seed {min(self.seeds)} is not allowed: give 0 or more")

    @property
    def probes(self) -> int:
        return len(self.seeds) * len(self.outputs)

    @property
    def parameters(self) -> int:
        """How many numbers one probe learns."""
        columns = self.width + 1
        return columns if self.kind == "linear" else self.hidden_size * (columns + 1) + 1

    def tensor_shapes(self, layers: int, probes: int) -> dict[str, tuple[int, ...]]:
        """The tensors of so many probes; the last column of what multiplies the vectors is the bias."""
        if self.kind == "linear":
            return {"weight": (layers, probes, self.width + 1)}
        hidden = (layers, probes, self.hidden_size)
        return {"hidden": (*hidden, self.width + 1), "output": hidden, "bias": (layers, probes)}


@dataclass(frozen=True, eq=False)
class ProbeBank:
    """Trained probes: their `shape`, and float32 `weights` as `Shape.tensor_shapes` lays them out."""

    shape: Shape
    weights: Mapping[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(4 * tensor.numel() for tensor in self.weights.values())

    def probe(self, layer: int, output: Output, seed: int) -> dict[str, torch.Tensor]:
        """The weights of one probe: `weight` [width + 1]; or `hidden` [units, width + 1], `output` [units], `bias`."""
        place = self.shape.layers.index(layer)
        number = self.shape.seeds.index(seed) * len(self.shape.outputs) + self.shape.outputs.index(output)
        return {name: tensor[place, number] for name, tensor in self.weights.items()}

    def at_layers(self, layers: Sequence[int]) -> ProbeBank:
        """The same probes of some layers only."""
        places = []
        for layer in layers:
            if layer not in self.shape.layers:
                known = ", ".join(map(str, self.shape.layers))
                raise InvalidValueError(f"there are no probes of layer {layer}: the bank has the layers {known}")
            places.append(self.shape.layers.index(layer))
        fields = {**self.shape.__dict__, "layers": tuple(layers)}
        return ProbeBank(Shape(**fields), {name: tensor[places] for name, tensor in self.weights.items()})

    def to(self, device: torch.device) -> ProbeBank:
        return ProbeBank(self.shape, {name: tensor.to(device) for name, tensor in self.weights.items()})

    def logits(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        """The probes' logits, float32 [layer, seed, output, n], for vectors [layer, n, width]; above 0 is a yes."""
        given = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
        if given.ndim != 3 or given.shape[0] != len(self.shape.layers) or given.shape[2] != self.shape.width:
            raise InvalidValueError(
                f"vectors of shape {tuple(given.shape)} do not fit probes of {len(self.shape.layers)} layers of "
                f"{self.shape.width} numbers: give [layer, n, {self.shape.width}]"
            )
        columns = torch.cat([given, torch.ones(*given.shape[:2], 1)], 2)
        parts = blocks_of(self.shape, self.weights, batch_size=max(1, given.shape[1]))
        out = logits_of(parts, columns, self.shape.probes)
        return out.view(len(self.shape.layers), len(self.shape.seeds), len(self.shape.outputs), -1).numpy()

    def iter_logits(
        self, examples: Examples, *, batch_size: int = 2048
    ) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """Yield (places, logits [layer, probes, n]) over all examples, on the device of the weights."""
        device = next(iter(self.weights.values())).device
        parts = blocks_of(self.shape, self.weights, batch_size=batch_size)
        order = np.arange(len(examples))
        for places, columns in iter_batches(examples, order, self.shape.layers, batch_size=batch_size, device=device):
            yield places, logits_of(parts, columns, self.shape.probes)


def initial_weights(shape: Shape, layers: Sequence[int], probes: range) -> dict[str, torch.Tensor]:
    """Weights to begin with, drawn as `torch.nn.Linear` draws its own: uniform within 1 / sqrt(inputs).

    Those of a probe depend on its seed, layer, task and class alone (and on the sizes of the probe), not on which
    others are trained beside it. `layers`: numbers of layers. `probes`: which of each layer's.
    """
    made = {name: torch.empty(size) for name, size in shape.tensor_shapes(len(layers), len(probes)).items()}
    generator = torch.Generator()
    for (place, layer), (row, probe) in product(enumerate(layers), enumerate(probes)):
        seed, output = divmod(probe, len(shape.outputs))
        key = repr((shape.seeds[seed], layer, *shape.outputs[output]))
        generator.manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little"))
        for name, tensor in made.items():
            inputs = shape.width if name in ("weight", "hidden") else shape.hidden_size
            tensor[place, row].uniform_(-1 / sqrt(inputs), 1 / sqrt(inputs), generator=generator)
    return made


class Block:
    """Probes that are computed together: `layers` and `probes` say which, as slices of the bank's axes."""

    layers: slice
    probes: slice
    parameters: dict[str, torch.Tensor]

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Logits [layers, probes, n] of a batch [layer, n, width + 1] whose last column is 1."""
        raise NotImplementedError

    def backward(self, columns: torch.Tensor, slopes: torch.Tensor) -> None:
        """Fill the gradients, given those of the loss in the last `forward`'s logits."""
        raise NotImplementedError


class LinearBlock(Block):
    """All layers at once: one batched product forward, one for the gradient."""

    def __init__(self, weights: Mapping[str, torch.Tensor], *, gradients: bool) -> None:
        self._weight = weights["weight"]
        self.layers, self.probes = slice(0, len(self._weight)), slice(0, self._weight.shape[1])
        self.parameters = dict(weights)
        if gradients:
            self._weight.grad = torch.empty_like(self._weight)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        return torch.bmm(self._weight, columns.transpose(1, 2))

    def backward(self, columns: torch.Tensor, slopes: torch.Tensor) -> None:
        torch.bmm(slopes, columns, out=self._weight.grad)


class HiddenRoom:
    """Memory for activations and gradients of one block at a time, shared by the blocks of a bank."""

    def __init__(self, activations: int, gradients: int, device: torch.device) -> None:
        self.activations = torch.empty(activations, device=device)
        self.gradients = torch.empty(gradients, device=device)
        self.products = torch.empty(gradients, device=device)


class HiddenBlock(Block):
    """Some probes of one layer: their hidden units are the rows of one wide product, never moved after.

    With V = [W, b] (units x columns), Z = V X^T, A = relu(Z) and logits w A + c, the slopes g of the loss give
    M = g * [Z > 0], made in place of A, and G = M X: the gradient of V is G scaled by w row by row, and, as A is Z
    wherever it is not 0, that of w is the dot product of the rows of V and G. So nothing but the two large products,
    the rectifier and the mask touches what is as large as the activations.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], layer: int, probes: slice, room: HiddenRoom) -> None:
        self.layers, self.probes = slice(layer, layer + 1), probes
        self.parameters = {name: tensor[layer, probes] for name, tensor in weights.items()}
        self._hidden, self._output, self._bias = (self.parameters[name] for name in ("hidden", "output", "bias"))
        self._room = room

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        count, units, width = self._hidden.shape
        vectors = columns[self.layers.start]
        active = self._active(len(vectors))
        torch.mm(self._hidden.view(count * units, width), vectors.t(), out=active)
        active.relu_()
        out = torch.bmm(self._output[:, None], active.view(count, units, -1))
        return out.add_(self._bias[:, None, None]).view(1, count, -1)

    def backward(self, columns: torch.Tensor, slopes: torch.Tensor) -> None:
        vectors = columns[self.layers.start]
        count, units, width = self._hidden.shape
        active = self._active(len(vectors))
        masked, spread = active.view(count, units, -1), slopes[0, :, None].expand(count, units, len(vectors))
        torch.ops.aten.threshold_backward.grad_input(spread, masked, 0, grad_input=masked)
        gradient = self._room.gradients[: self._hidden.numel()].view_as(self._hidden)
        torch.mm(active, vectors, out=gradient.view(count * units, width))
        products = self._room.products[: self._hidden.numel()].view_as(self._hidden)
        self._output.grad = torch.mul(self._hidden, gradient, out=products).sum(2)
        self._hidden.grad = gradient.mul_(self._output[:, :, None])
        self._bias.grad = slopes[0].sum(1)

    def _active(self, examples: int) -> torch.Tensor:
        rows = prod(self._hidden.shape[:2])
        return self._room.activations[: rows * examples].view(rows, examples)


def blocks_of(
    shape: Shape, weights: Mapping[str, torch.Tensor], *, batch_size: int, gradients: bool = False
) -> list[Block]:
    """Cut probes into blocks of which one batch's activations fit their room; these share one."""
    if shape.kind == "linear":
        return [LinearBlock(weights, gradients=gradients)]
    layers, probes, units, width = weights["hidden"].shape
    device = weights["hidden"].device
    most = CPU_ROOM_NBYTES if device.type == "cpu" else GPU_ROOM_NBYTES
    size = min(probes, max(1, most // (4 * units * batch_size)))
    room = HiddenRoom(size * units * batch_size, size * units * width if gradients else 0, device)
    starts = range(0, probes, size)
    return [
        HiddenBlock(weights, layer, slice(start, min(start + size, probes)), room)
        for layer, start in product(range(layers), starts)
    ]


def logits_of(blocks: Sequence[Block], columns: torch.Tensor, probes: int) -> torch.Tensor:
    """The logits of all blocks, [layer, probes, n]."""
    if len(blocks) == 1:
        return blocks[0].forward(columns)
    out = torch.empty(columns.shape[0], probes, columns.shape[1], device=columns.device)
    for block in blocks:
        out[block.layers, block.probes] = block.forward(columns)
    return out
