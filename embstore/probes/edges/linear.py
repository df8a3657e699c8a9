"""Linear edge probes (Liu et al. 2019): labels from the mean of a span alone, many probes as one batched model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from embstore.probes.edges.batches import EdgeBatch, SpanColumns
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.mixing import mixed, mixing_weights


@dataclass(frozen=True)
class LinearShape(EdgeShape):
    """The sizes of a linear edge probe: its output reads the mean of a span, or of two, one after the other.

    `hidden_size`: what the output reads, `spans * width`; there is no projection.
    """

    @classmethod
    def of(cls, layers: int, width: int, spans: int, labels: int) -> LinearShape:
        return cls(layers, width, spans, labels, projection=width, hidden_size=spans * width)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "mix": (self.layers,),
            "scale": (),
            "output": (self.labels, self.hidden_size),
            "output_bias": (self.labels,),
        }


class LinearBank(EdgeBank):
    """Linear probes of one shape, with all that an EdgeBank has.

    Mixing is linear too, so the means of spans are taken once for all probes, of each layer as it is stored, and only
    these are mixed.
    """

    def logits(self, batch: EdgeBatch, *, kept: torch.Tensor | None = None) -> torch.Tensor:
        """[probes, targets, labels]. `kept` [probes, targets, spans * width]: what dropout multiplies by."""
        means = torch.cat([_means(batch.vectors, columns) for columns in batch.spans], 2)
        read = mixed(means, mixing_weights(self.weights["mix"], self._allowed()), self.weights["scale"])
        if kept is not None:
            read = read * kept
        return torch.baddbmm(self.weights["output_bias"][:, None], read, self.weights["output"].transpose(1, 2))


def _means(vectors: torch.Tensor, columns: SpanColumns) -> torch.Tensor:
    """The mean of each target's span by layer, [layers, targets, width]."""
    if columns.single:
        return columns.by_target(vectors.index_select(1, columns.places))
    layers, count, width = vectors.shape
    which = torch.arange(layers, device=vectors.device)[:, None]
    pooled = functional.embedding_bag(
        (which * count + columns.places).view(-1),
        vectors.reshape(layers * count, width),
        (which * len(columns.places) + columns.begin[:-1]).view(-1),
        mode="mean",
    )
    return columns.by_target(pooled.view(layers, len(columns.begin) - 1, width))
