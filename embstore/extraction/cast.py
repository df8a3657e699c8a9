"""From the model's floats to the numbers that a store keeps, checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.extraction.partition import Passage
from embstore.models.encoder import Pooled
from embstore.store import Layout, quantize

TORCH_DTYPE = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}


class Cast:
    """Casts pooled vectors into the buffers of a partition.

    `center`: float32 [layer, feature], the mean taken from the vectors before they are quantised to int8.
    """

    def __init__(self, layout: Layout, *, center: NDArray[np.float32] | None) -> None:
        self._layout = layout
        self._dtype = TORCH_DTYPE[layout.dtype]
        self._largest = 65504.0 if layout.dtype == "float16" else torch.finfo(torch.float32).max
        self._center = center

    def buffer(self) -> dict[str, torch.Tensor]:
        """Room for the arrays of one partition."""
        layout = self._layout
        rows = min(layout.partition_rows, layout.rows)
        itemsize = self._dtype.itemsize
        room = np.empty(len(layout.layers) * rows * layout.hidden_size * itemsize, np.uint8)  # in huge pages
        vectors = torch.from_numpy(room).view(self._dtype).view(len(layout.layers), rows, layout.hidden_size)
        buffer = {"hidden_states": vectors}
        if layout.dtype == "int8":
            buffer["scale"] = torch.empty(len(layout.layers), rows, dtype=torch.float32)
        return buffer

    def check(self, pooled: Pooled, passage: Passage) -> None:
        """Raise NonFiniteError for vectors that cannot be kept."""
        low, high = torch.aminmax(pooled.vectors)
        if not (-self._largest <= low.item() and high.item() <= self._largest):
            raise NonFiniteError(self._complaint(pooled, passage))

    def into(
        self,
        buffer: Mapping[str, torch.Tensor],
        vectors: torch.Tensor,
        rows: NDArray[np.int64],
        sources: NDArray[np.int64] | None,
    ) -> None:
        """Put vectors into rows of a buffer; `sources`: which vector each row gets, None for one each."""
        if not len(rows):
            return
        chosen = vectors if sources is None else vectors.index_select(1, torch.from_numpy(sources))
        for name, array in self._stored(chosen).items():
            buffer[name].index_copy_(1, torch.from_numpy(rows), array)

    def _stored(self, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._center is None:
            return {"hidden_states": vectors.to(self._dtype)}
        arrays = quantize(vectors.float().numpy(), self._center)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def arrays(self, buffer: Mapping[str, torch.Tensor], rows: int) -> dict[str, NDArray[Any]]:
        """The first `rows` rows of a buffer as the store's writer takes them."""
        if self._dtype == torch.bfloat16:
            return {"hidden_states": buffer["hidden_states"][:, :rows].view(torch.uint16).numpy()}
        return {name: array[:, :rows].numpy() for name, array in buffer.items()}

    def _complaint(self, pooled: Pooled, passage: Passage) -> str:
        bad = ~(pooled.vectors.abs() <= self._largest)
        layer, row, _ = (int(axis[0]) for axis in torch.nonzero(bad, as_tuple=True))
        value = float(pooled.vectors[layer, row][bad[layer, row]][0])
        place = passage.row_of(int(pooled.rows[row]))
        sentence = int(passage.sentence_of_row[place])
        where = f"layer {self._layout.layers[layer]}, sentence {sentence}, row {passage.first_row + place}"
        if np.isfinite(value):
            return f"{where}: {value:,.0f} is beyond float16's 65,504: choose dtype float32 or bfloat16"
        return f"{where}: the model gives {value}: check its weights, or compute in float32"
