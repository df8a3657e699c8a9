"""From pooled spans to what comes before the tanh of an edge probe's hidden layer, and back: products alone.

Nothing stands between projection and hidden layer, so their product may be taken first. That pays where spans are many:
a span then costs width x hidden, not width x projection and projection x hidden more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from embstore.probes.edges.batches import SpanColumns

Weights = Mapping[str, torch.Tensor]


class Products(ABC):
    """Both ways of one batch; `spans` one or two, as many as the projections in `weights`."""

    def __init__(self, weights: Weights, spans: Sequence[SpanColumns]) -> None:
        self._weights, self._spans = weights, spans

    @abstractmethod
    def forward(self, pooled: Sequence[torch.Tensor]) -> torch.Tensor:
        """[probe, target, hidden] from the pooled spans [probe, span, width], one a kind."""

    @abstractmethod
    def slopes(self, given: torch.Tensor, whole: torch.Tensor, found: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Those in the pooled spans, from those in what `forward` gave; those in weights are put in `found`.

        `whole` [probe, hidden]: `given` summed over the targets.
        """


def products_of(weights: Weights, spans: Sequence[SpanColumns], targets: int) -> Products:
    """The way that takes fewer operations."""
    hidden = weights["hidden"].shape[1]
    _, projection, width = weights["projection1"].shape
    counts = [len(columns.begin) - 1 for columns in spans]
    apart, joined = operations(counts, targets, width=width, projection=projection, hidden=hidden)
    return Joined(weights, spans) if joined < apart else Apart(weights, spans)


def operations(spans: Sequence[int], targets: int, *, width: int, projection: int, hidden: int) -> tuple[int, int]:
    """The multiplications of a probe one way, apart and joined; back they are twice as many. `spans`: of each kind."""
    apart = sum(spans) * width * projection + targets * len(spans) * projection * hidden
    joined = sum(spans) * width * hidden + len(spans) * projection * width * hidden
    return apart, joined


class Apart(Products):
    """Spans are projected, and then go through the hidden layer."""

    def forward(self, pooled: Sequence[torch.Tensor]) -> torch.Tensor:
        held = self._weights
        self._pooled = pooled
        projected = [
            columns.by_target(linear(each, held[f"projection{number}"], held[f"projection{number}_bias"]))
            for number, (columns, each) in enumerate(zip(self._spans, pooled, strict=True), 1)
        ]
        self._both = projected[0] if len(projected) == 1 else torch.cat(projected, 2)
        return linear(self._both, held["hidden"], held["hidden_bias"])

    def slopes(self, given: torch.Tensor, whole: torch.Tensor, found: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        held = self._weights
        found["hidden"] = torch.bmm(given.transpose(1, 2), self._both)
        parts = torch.bmm(given, held["hidden"]).chunk(len(self._spans), 2)
        slopes = []
        for number, (columns, pooled, part) in enumerate(zip(self._spans, self._pooled, parts, strict=True), 1):
            own = _by_span(part, columns)
            found[f"projection{number}"] = torch.bmm(own.transpose(1, 2), pooled)
            found[f"projection{number}_bias"] = own.sum(1)
            slopes.append(torch.bmm(own, held[f"projection{number}"]))
        return slopes


class Joined(Products):
    """The product of projection and hidden layer is taken first, and what is given for it goes back to both."""

    def forward(self, pooled: Sequence[torch.Tensor]) -> torch.Tensor:
        held = self._weights
        self._pooled = pooled
        self._hidden = held["hidden"].chunk(len(self._spans), 2)
        self._joined: list[torch.Tensor] = []
        bias = held["hidden_bias"]
        out: torch.Tensor | None = None
        for number, (columns, each) in enumerate(zip(self._spans, pooled, strict=True), 1):
            self._joined.append(torch.bmm(self._hidden[number - 1], held[f"projection{number}"]))
            part = columns.by_target(torch.bmm(each, self._joined[-1].transpose(1, 2)))
            out = part if out is None else out.add_(part)
            bias = bias + torch.bmm(self._hidden[number - 1], held[f"projection{number}_bias"][:, :, None])[:, :, 0]
        assert out is not None
        return out.add_(bias[:, None])

    def slopes(self, given: torch.Tensor, whole: torch.Tensor, found: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        held = self._weights
        slopes: list[torch.Tensor] = []
        parts: list[torch.Tensor] = []
        for number, (columns, pooled) in enumerate(zip(self._spans, self._pooled, strict=True), 1):
            projection, bias = held[f"projection{number}"], held[f"projection{number}_bias"]
            hidden = self._hidden[number - 1]
            own = _by_span(given, columns)
            joined = torch.bmm(own.transpose(1, 2), pooled)
            parts.append(torch.bmm(joined, projection.transpose(1, 2)).baddbmm_(whole[:, :, None], bias[:, None]))
            found[f"projection{number}"] = torch.bmm(hidden.transpose(1, 2), joined)
            found[f"projection{number}_bias"] = torch.bmm(hidden.transpose(1, 2), whole[:, :, None])[:, :, 0]
            slopes.append(torch.bmm(own, self._joined[number - 1]))
        found["hidden"] = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        return slopes


def linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """[probe, n, out]; faster than one baddbmm, which is not the library's fast product."""
    return torch.bmm(values, weight.transpose(1, 2)).add_(bias[:, None])


def _by_span(slopes: torch.Tensor, columns: SpanColumns) -> torch.Tensor:
    """The slopes of targets summed by their spans, [probe, span, width]."""
    if columns.of is None:
        return slopes
    whole = slopes.new_zeros(len(slopes), len(columns.begin) - 1, slopes.shape[2])
    return whole.index_add_(1, columns.of, slopes)
