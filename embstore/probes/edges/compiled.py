"""Edge probes on a processor: their logits and, written out, the slopes of these in the weights.

What `EdgeBank` computes in plain torch on other devices, and the same but for rounding. Products are torch's; what is
none is a loop over the vectors as they are stored (edge_kernels). Spans are pooled before they are projected, which
projection and sum allow, so that a span costs a product and not each of its words: a word's score v (W h + b) needs
W^T v alone, since the bias makes no difference within a span.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.probes.edges import kernels
from embstore.probes.edges.batches import EdgeBatch, SpanColumns
from embstore.probes.edges.products import Weights, linear, products_of


def compiled_logits(
    weights: Weights, mixing: torch.Tensor, allowed: NDArray[np.bool_], batch: EdgeBatch, kept: torch.Tensor | None
) -> torch.Tensor:
    """[probes, targets, labels], of which backward() gives the slopes in `mixing` and in the weights.

    `mixing` [probes, layers]: gamma times s. `kept` [probes or 1, targets, hidden_size]: what dropout multiplies by.
    """
    names = tuple(name for name in weights if name not in ("mix", "scale"))
    held = (weights[name] for name in names)
    found: torch.Tensor = _Logits.apply(allowed, batch, kept, names, mixing, *held)  # type: ignore[no-untyped-call]
    return found


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        allowed: NDArray[np.bool_],
        batch: EdgeBatch,
        kept: torch.Tensor | None,
        names: tuple[str, ...],
        mixing: torch.Tensor,
        *held: torch.Tensor,
    ) -> torch.Tensor:
        ctx.names = names
        passed = _Passed(dict(zip(names, held, strict=True)), mixing, allowed, batch, kept)
        ctx.passed = passed
        return passed.logits()

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mixing, found = ctx.passed.slopes(slopes)
        return None, None, None, None, mixing, *(found.get(name) for name in ctx.names)


class _Passed:
    """A batch that goes through the probes, and back."""

    def __init__(
        self,
        weights: Weights,
        mixing: torch.Tensor,
        allowed: NDArray[np.bool_],
        batch: EdgeBatch,
        kept: torch.Tensor | None,
    ) -> None:
        self._weights = weights
        self._mixing = mixing.detach()
        self._kept = torch.empty(0, 0, 0) if kept is None else kept
        self._which = np.arange(len(mixing)) if len(self._kept) == len(mixing) else np.zeros(len(mixing), np.int64)
        self._pooling = _Pooling(self._mixing, allowed, batch)
        self._spans = batch.spans
        self._products = products_of(weights, batch.spans, len(batch))

    def logits(self) -> torch.Tensor:
        held = self._weights
        scored = [number for number, columns in enumerate(self._spans, 1) if not columns.single]
        directions = [
            torch.bmm(held[f"attention{number}"][:, None], held[f"projection{number}"])[:, 0] for number in scored
        ]
        self._hidden = self._products.forward(self._pooling.pooled(directions)).tanh_()
        self._normed, self._active = torch.empty_like(self._hidden), torch.empty_like(self._hidden)
        self._scale = self._hidden.new_empty(self._hidden.shape[:2])
        _spread(
            kernels.norm_units,
            len(self._mixing),
            *_arrays(self._hidden, held["norm"], held["norm_bias"], self._kept),
            self._which,
            *_arrays(self._normed, self._scale, self._active),
        )
        return linear(self._active, held["output"], held["output_bias"])

    def slopes(self, given: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The slopes in the mixing weights and in the others by name, from those in the logits."""
        held = self._weights
        found = {"output": torch.bmm(given.transpose(1, 2), self._active), "output_bias": given.sum(1)}
        before = torch.bmm(given, held["output"])
        for name in ("norm", "norm_bias", "hidden_bias"):
            found[name] = torch.empty_like(held[name])
        _spread(
            kernels.unnorm_units,
            len(self._mixing),
            *_arrays(before, self._hidden, held["norm"], self._kept),
            self._which,
            *_arrays(self._normed, self._scale, found["norm"], found["norm_bias"], found["hidden_bias"]),
        )
        slopes = self._products.slopes(before, found["hidden_bias"], found)
        mixing, directions = self._pooling.slopes(slopes)
        scored = [number for number, columns in enumerate(self._spans, 1) if not columns.single]
        for number, slope in zip(scored, directions, strict=True):
            attention, projection = held[f"attention{number}"], held[f"projection{number}"]
            found[f"attention{number}"] = torch.bmm(projection, slope[:, :, None])[:, :, 0]
            found[f"projection{number}"].baddbmm_(attention[:, :, None], slope[:, None])
        return mixing, found


class _Pooling:
    """The words of a batch mixed, and pooled by span."""

    def __init__(self, mixing: torch.Tensor, allowed: NDArray[np.bool_], batch: EdgeBatch) -> None:
        stored = batch.stored
        empty = np.empty((0, 0, 0), np.float32)
        half = stored.dtype == torch.float16
        self._read = (
            stored.view(torch.int16).numpy() if half else empty.astype(np.int16),
            empty if half else stored.numpy(),
        )
        self._allowed, self._mixing = allowed, mixing.numpy()
        self._spans = batch.spans
        probes, words, width = len(mixing), stored.shape[1], stored.shape[2]
        self._mixed = torch.empty(probes, words, width)
        self._shares = [
            None if columns.single else np.empty((probes, len(columns.places)), np.float32) for columns in batch.spans
        ]

    def pooled(self, directions: list[torch.Tensor]) -> list[torch.Tensor]:
        """[probe, span, width], one a kind of spans. `directions` [probe, width]: of the kinds that need a score."""
        probes, words, width = self._mixed.shape
        self._directions = torch.stack(directions).numpy() if directions else np.empty((0, probes, width), np.float32)
        self._scores = np.empty((len(directions), probes, words), np.float32)
        _spread(
            kernels.mix_words,
            probes,
            *self._read,
            self._allowed,
            self._mixing,
            self._directions,
            self._mixed.numpy(),
            self._scores,
        )
        scored = iter(self._scores)
        found = []
        for columns, shares in zip(self._spans, self._shares, strict=True):
            if shares is None:
                whole = _in_order(columns, words)
                found.append(self._mixed if whole else self._mixed.index_select(1, columns.places))
                continue
            out = torch.empty(probes, len(columns.begin) - 1, width)
            _spread(
                kernels.pool_spans,
                probes,
                *(self._mixed.numpy(), next(scored), columns.places.numpy(), columns.begin.numpy(), shares),
                out.numpy(),
            )
            found.append(out)
        return found

    def slopes(self, given: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Those in the mixing weights and in the directions, from those in what was pooled."""
        mixed, scores = self._unpooled(given)
        weights = np.empty(self._allowed.shape, np.float64)
        directions = np.empty_like(self._directions)
        _spread(
            kernels.unmix_words,
            len(self._mixed),
            *self._read,
            *(self._allowed, self._directions, self._mixed.numpy(), mixed.numpy(), scores, weights, directions),
        )
        return torch.from_numpy(weights.astype(np.float32)), list(torch.from_numpy(directions))

    def _unpooled(self, given: list[torch.Tensor]) -> tuple[torch.Tensor, NDArray[np.float32]]:
        """Those in the mixed words, [probe, n, width], and in their scores, [kind, probe, n]."""
        scores = np.zeros(self._scores.shape, np.float32)
        if len(given) == 1 and _in_order(self._spans[0], self._mixed.shape[1]):
            return given[0], scores
        mixed = torch.zeros_like(self._mixed)
        scored = iter(scores)
        for columns, shares, slope in zip(self._spans, self._shares, given, strict=True):
            if shares is None:
                mixed.index_add_(1, columns.places, slope)
                continue
            _spread(
                kernels.unpool_spans,
                len(mixed),
                *(slope.numpy(), self._mixed.numpy(), shares, columns.places.numpy(), columns.begin.numpy()),
                *(mixed.numpy(), next(scored)),
            )
        return mixed, scores


def _in_order(columns: SpanColumns, words: int) -> bool:
    """Whether the spans are the words of the batch, one after the other."""
    return columns.single and len(columns.places) == words and bool((columns.places == torch.arange(words)).all())


def _arrays(*tensors: torch.Tensor) -> tuple[NDArray[np.float32], ...]:
    return tuple(tensor.detach().numpy() for tensor in tensors)


def _spread(kernel: Callable[..., None], probes: int, *arguments: Any) -> None:
    """Run a kernel over all probes, shared out among as many threads as torch has."""
    threads = min(torch.get_num_threads(), probes)
    if threads == 1:
        kernel(*arguments, 0, probes)
        return
    edges = [probes * part // threads for part in range(threads + 1)]
    own, *others = pairwise(edges)
    waiting = [_threads(threads - 1).submit(kernel, *arguments, *part) for part in others]
    kernel(*arguments, *own)
    for future in waiting:
        future.result()


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "embstore-probes")
