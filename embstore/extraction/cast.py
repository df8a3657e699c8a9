"""From the model's floats to the numbers that a store keeps, checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import NonFiniteError
from embstore.extraction.partition import Passage
from embstore.models.encoder import Encoder, Pooled
from embstore.store import Layout, quantize

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
        rows = min(layout.partition_rows, layout.n_rows)
        itemsize = self._dtype.itemsize
        room = np.empty(len(layout.layers) * rows * layout.hidden_size * itemsize, np.uint8)  # in huge pages
        vectors = torch.from_numpy(room).view(self._dtype).view(len(layout.layers), rows, layout.hidden_size)
        buffer = {"hidden_states": vectors}
        if layout.dtype == "int8":
            buffer["scale"] = torch.empty(len(layout.layers), rows, dtype=torch.float32)
        return buffer

    def check(self, pooled: Pooled, passage: Passage) -> None:
        """Raise NonFiniteError for vectors that cannot be kept; what the device found of them is not sought again."""
        if pooled.extremes is None:
            low, high = (end.item() for end in torch.aminmax(pooled.vectors))
        else:
            low, high = pooled.extremes[0].min().item(), pooled.extremes[1].max().item()
        if not (-self._largest <= low and high <= self._largest):
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
        ends = pooled.extremes
        if ends is None:
            ends = torch.stack([pooled.vectors.amin((1, 2)), pooled.vectors.amax((1, 2))])
        ends = ends.double()  # in half precision the bound itself would be infinite
        layer = int((~(ends.abs() <= self._largest)).any(0).nonzero()[0])
        value = max((end for end in ends[:, layer].tolist() if not abs(end) <= self._largest), key=abs)
        sizes = pooled.vectors[layer].float().abs().nan_to_num(torch.inf, torch.inf).amax(1)  # cast, perhaps infinite
        row = int(sizes.argmax())
        place = passage.row_of(int(pooled.rows[row]))
        sentence = int(passage.sentence_of_row[place])
        where = f"layer {self._layout.layers[layer]}, sentence {sentence}, row {passage.first_row + place}"
        if np.isfinite(value):
            return f"{where}: {value:,.0f} is beyond float16's 65,504: choose dtype float32 or bfloat16"
        computed = str(pooled.computed or pooled.vectors.dtype).removeprefix("torch.")
        return f"{where}: the model gives {value} in {computed}: {ADVICE[computed]}"


def leaving_as(encoder: Encoder, dtype: str) -> dict[str, Any]:
    """What an encoder on a card is told beside the rest: what its vectors are kept as, for fewer bytes to copy.

    For int8 they leave as they were computed, as quantising is done here.
    """
    if not encoder.casts_on_device:
        return {}
    return {"dtype": torch.float32 if dtype == "int8" else TORCH_DTYPE[dtype]}
