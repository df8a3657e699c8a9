"""Vectors of the model as the numbers of a store: checked, cast and placed into the buffers of partitions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.extraction.partition import Passage
from embstore.models.running import to_device
from embstore.store.layout import RESIDUAL, Layout

Buffer = dict[str, torch.Tensor]  # the arrays of some partitions, each [partition, layer, row, ...]

TORCH_DTYPE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}

ADVICE = {
    "float32": "check its weights",
    "bfloat16": "check its weights, or compute in float32",
    "float16": "its numbers may be too large for that; compute in bfloat16 or float32",
}
LARGEST_CODE = 127
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Written:
    """Vectors that were written into a buffer: what must be checked before it is stored.

    `extremes`: [2, layers], the minimum and the maximum of each layer before the cast, NaN if a value is NaN. `rows`:
    int64 [n], counted over the buffer. `passage`: the passage of them, which begins at row `offset` of the buffer.
    """

    extremes: torch.Tensor
    rows: NDArray[np.int64]
    passage: Passage
    offset: int
    computed: torch.dtype


class Cast:
    """Casts pooled vectors into the buffers of a group of partitions, on the device that computes them.

    `center`: float32 [layer, feature], the mean taken from the vectors before they are quantized to int8. `device`:
    where the buffers are.
    """

    def __init__(self, layout: Layout, *, center: NDArray[np.float32] | None, device: torch.device = CPU) -> None:
        self._layout, self._device = layout, device
        self._dtype = TORCH_DTYPE[layout.dtype]
        self._largest = 65504.0 if layout.dtype == "float16" else torch.finfo(torch.float32).max
        self._n_rows = min(layout.partition_rows, layout.n_rows)
        self._layers = torch.arange(len(layout.layers), device=device)[:, None] * self._n_rows
        self._center = None if center is None else torch.from_numpy(center).to(device)[:, None]

    def buffer(self, n_partitions: int) -> Buffer:
        return self._made(n_partitions, self._device, pinned=False)

    def host_buffer(self) -> Buffer:
        """Return a buffer in main memory for one partition that leaves the device, in pinned memory for a GPU."""
        return self._made(1, CPU, pinned=self._device.type == "cuda")

    def _made(self, n_partitions: int, device: torch.device, *, pinned: bool) -> Buffer:
        layout = self._layout
        shape = (n_partitions, len(layout.layers), self._n_rows)
        arrays: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            layout.vectors: ((*shape, layout.hidden_size), self._dtype)
        }
        if layout.dtype == "int8":
            arrays["scale"] = (shape, torch.float32)
        if device.type != "cpu" or pinned:
            return {
                name: torch.empty(each, dtype=dtype, device=device, pin_memory=pinned)
                for name, (each, dtype) in arrays.items()
            }
        return {  # numpy's memory is in huge pages
            name: torch.from_numpy(np.empty(math.prod(each) * dtype.itemsize, np.uint8)).view(dtype).view(each)
            for name, (each, dtype) in arrays.items()
        }

    def into(
        self, buffer: Buffer, vectors: torch.Tensor, rows: NDArray[np.int64], sources: NDArray[np.int64] | None
    ) -> torch.Tensor | None:
        """Write vectors into rows of a buffer, counted over its partitions, and return the extremes of each layer.

        `sources`: which vector each row gets, None for one each. Returns None if it is known that all can be stored;
        a GPU is not waited for.
        """
        chosen = vectors if sources is None else vectors.index_select(1, to_device(sources, self._device))
        stored = self._stored(chosen)
        first = to_device(rows // self._n_rows * len(self._layers) * self._n_rows + rows % self._n_rows, self._device)
        places = first + self._layers
        for name, array in stored.items():  # their layers are apart in memory: `index_copy_` would copy them first
            every = buffer[name].flatten(0, 2)
            if every.device == CPU:
                _as_items(every.view(len(every), -1))[places.numpy()] = _as_items(array.reshape(*places.shape, -1))
            else:
                every.index_put_((places,), array)
        if self._center is not None:  # it is infinite also where finite values are too far from the center
            return _extremes(stored["scale"])
        if chosen.device.type == "cpu" and self._fit(chosen):
            return None
        return _extremes(chosen.flatten(1))

    def _fit(self, vectors: torch.Tensor) -> bool:
        """Return whether all can be stored, which sums of squares mostly show, in a third of the time of extremes."""
        bound = min((0.99 * self._largest) ** 2, torch.finfo(torch.float32).max)
        flat = (layer.reshape(-1) for layer in vectors)
        if vectors.dtype == torch.float32 and all(torch.dot(each, each).item() <= bound for each in flat):
            return True
        low, high = torch.aminmax(vectors)
        return -self._largest <= low.item() and high.item() <= self._largest

    def _stored(self, vectors: torch.Tensor) -> Buffer:
        """Return vectors as the arrays of a store; int8 as `embstore.store.quantize` has it."""
        if self._center is None:
            return {self._layout.vectors: vectors.to(self._dtype)}
        residual = vectors.float() - self._center
        peak = residual.abs().amax(2)
        scale = peak / torch.full_like(peak, LARGEST_CODE)  # by a number, a GPU would multiply with its inverse
        scale.masked_fill_(scale < torch.finfo(torch.float32).tiny, 0)
        residual *= torch.where(scale > 0, 1 / scale, 0)[:, :, None]
        codes = residual.round_().clamp_(-LARGEST_CODE, LARGEST_CODE)
        return {self._layout.vectors: codes.to(torch.int8), "scale": scale}

    def check(self, buffer: Buffer, written: list[Written]) -> None:
        """Raise NonFiniteError for vectors that cannot be stored; `buffer`: where they are. Waits for the device."""
        if not written:
            return
        every = torch.stack([each.extremes for each in written]).double().cpu()
        wrong = ~(every.abs() <= self._largest)
        if wrong.any():
            number, _, layer = wrong.nonzero()[0].tolist()
            layer = int(wrong[number].any(0).nonzero()[0])
            raise NonFiniteError(self._message(buffer, written[number], layer, every[number, :, layer].tolist()))

    def arrays(self, buffer: Buffer, place: int, n_rows: int) -> dict[str, NDArray[Any]]:
        """Return the first `n_rows` rows of a partition of a buffer as the store's writer takes them."""
        arrays = {name: array[place, :, :n_rows] for name, array in buffer.items()}
        if self._dtype == torch.bfloat16:
            return {name: array.view(torch.uint16).numpy() for name, array in arrays.items()}
        return {name: array.numpy() for name, array in arrays.items()}

    def _message(self, buffer: Buffer, written: Written, layer: int, ends: list[float]) -> str:
        value = max((end for end in ends if not abs(end) <= self._largest), key=abs)
        array = buffer["scale" if self._center is not None else self._layout.vectors]
        partition, row = torch.from_numpy(np.stack(np.divmod(written.rows, array.shape[2]))).to(array.device)
        sizes = array[partition, layer, row].float().flatten(1 if array.dim() == 4 else 0).cpu()  # perhaps infinite
        sizes = sizes.abs().nan_to_num(torch.inf, torch.inf)
        sizes = sizes.amax(1) if sizes.dim() == 2 else sizes
        at = int(written.rows[(sizes == sizes.max()).numpy()].min()) - written.offset
        passage = written.passage
        at_site = "" if self._layout.site == RESIDUAL else f"{self._layout.site} of "
        sentence = passage.sentence_of_row[at]
        where = f"{at_site}layer {self._layout.layers[layer]}, sentence {sentence}, row {passage.first_row + at}"
        if np.isfinite(value):
            return f"{where}: {value:,.0f} is beyond float16's 65,504: choose dtype float32 or bfloat16"
        computed = str(written.computed).removeprefix("torch.")
        return f"{where}: the model computes {value} in {computed}: {ADVICE[computed]}"


def _as_items(vectors: torch.Tensor) -> NDArray[Any]:
    """View vectors [..., feature] as items of bytes, each of which numpy copies at once."""
    items = vectors.view(torch.uint8).numpy()
    return items.view(f"V{items.shape[-1]}")[..., 0]


def _extremes(vectors: torch.Tensor) -> torch.Tensor:
    return torch.stack([vectors.amin(1), vectors.amax(1)])
