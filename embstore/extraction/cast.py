"""Vectors of the model as the numbers of a store: checked, cast and placed into the buffers of partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.extraction.partition import Passage
from embstore.models.encoder import Encoder, Pooled
from embstore.store import Layout, quantize
from embstore.store.layout import RESIDUAL

Buffer = dict[str, torch.Tensor]  # the arrays of a group of partitions, each [partition, layer, row, ...]

TORCH_DTYPE = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}

ADVICE = {
    "float32": "check its weights",
    "bfloat16": "check its weights, or compute in float32",
    "float16": "its numbers may be too large for that; compute in bfloat16 or float32",
}


class Cast:
    """Casts pooled vectors into the buffers of a group of partitions.

    `center`: float32 [layer, feature], the mean taken from the vectors before they are quantized to int8.
    """

    def __init__(self, layout: Layout, *, center: NDArray[np.float32] | None) -> None:
        self._layout = layout
        self._dtype = TORCH_DTYPE[layout.dtype]
        self._largest = 65504.0 if layout.dtype == "float16" else torch.finfo(torch.float32).max
        self._center = center

    def buffer(self, n_partitions: int) -> Buffer:
        """Return a buffer for the arrays of some partitions."""
        layout = self._layout
        shape = (n_partitions, len(layout.layers), min(layout.partition_rows, layout.n_rows))
        memory = np.empty(math.prod(shape) * layout.hidden_size * self._dtype.itemsize, np.uint8)  # in huge pages
        buffer = {layout.vectors: torch.from_numpy(memory).view(self._dtype).view(*shape, layout.hidden_size)}
        if layout.dtype == "int8":
            buffer["scale"] = torch.empty(shape, dtype=torch.float32)
        return buffer

    def check(self, pooled: Pooled, passage: Passage) -> None:
        """Raise NonFiniteError for vectors that cannot be stored; extremes that the device found are used."""
        if pooled.extremes is None:
            low, high = (end.item() for end in torch.aminmax(pooled.vectors))
        else:
            low, high = pooled.extremes[0].min().item(), pooled.extremes[1].max().item()
        if not (-self._largest <= low and high <= self._largest):
            raise NonFiniteError(self._message(pooled, passage))

    def into(
        self,
        buffer: Mapping[str, torch.Tensor],
        vectors: torch.Tensor,
        rows: NDArray[np.int64],
        sources: NDArray[np.int64] | None,
    ) -> None:
        """Write vectors into rows of a buffer; `sources`: which vector each row gets, None for one each.

        `rows`: counted over the partitions of the buffer.
        """
        if not len(rows):
            return
        chosen = vectors if sources is None else vectors.index_select(1, torch.from_numpy(sources))
        for name, array in self._stored(chosen).items():
            n_layers, n_rows = buffer[name].shape[1:3]
            places = (rows // n_rows * n_layers + np.arange(n_layers)[:, None]) * n_rows + rows % n_rows
            flat = buffer[name].flatten(0, 2)
            flat.index_copy_(0, torch.from_numpy(places.reshape(-1)), array.flatten(0, 1))

    def _stored(self, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._center is None:
            return {self._layout.vectors: vectors.to(self._dtype)}
        arrays = quantize(vectors.float().numpy(), self._center)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def arrays(self, buffer: Mapping[str, torch.Tensor], place: int, n_rows: int) -> dict[str, NDArray[Any]]:
        """Return the first `n_rows` rows of a partition of a buffer as the store's writer takes them."""
        arrays = {name: array[place, :, :n_rows] for name, array in buffer.items()}
        if self._dtype == torch.bfloat16:
            return {name: array.view(torch.uint16).numpy() for name, array in arrays.items()}
        return {name: array.numpy() for name, array in arrays.items()}

    def _message(self, pooled: Pooled, passage: Passage) -> str:
        ends = pooled.extremes
        if ends is None:
            ends = torch.stack([pooled.vectors.amin((1, 2)), pooled.vectors.amax((1, 2))])
        ends = ends.double()  # in half precision the bound itself would be infinite
        layer = int((~(ends.abs() <= self._largest)).any(0).nonzero()[0])
        value = max((end for end in ends[:, layer].tolist() if not abs(end) <= self._largest), key=abs)
        sizes = pooled.vectors[layer].float().abs().nan_to_num(torch.inf, torch.inf).amax(1)  # cast, perhaps infinite
        row = int(sizes.argmax())
        at = passage.row_of(int(pooled.rows[row]))
        sentence = int(passage.sentence_of_row[at])
        at_site = "" if self._layout.site == RESIDUAL else f"{self._layout.site} of "
        where = f"{at_site}layer {self._layout.layers[layer]}, sentence {sentence}, row {passage.first_row + at}"
        if np.isfinite(value):
            return f"{where}: {value:,.0f} is beyond float16's 65,504: choose dtype float32 or bfloat16"
        computed = str(pooled.computed or pooled.vectors.dtype).removeprefix("torch.")
        return f"{where}: the model computes {value} in {computed}: {ADVICE[computed]}"


def device_cast(encoder: Encoder, dtype: str) -> dict[str, Any]:
    """Return the argument of `encode` that lets a GPU cast vectors to the stored dtype, for fewer bytes to copy.

    For int8 they are not cast there, since the CPU quantizes them.
    """
    if not encoder.casts_on_device:
        return {}
    return {"dtype": torch.float32 if dtype == "int8" else TORCH_DTYPE[dtype]}
