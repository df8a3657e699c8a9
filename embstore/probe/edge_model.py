"""Edge probes (Tenney et al. 2019), many as one batched model: scalar mixing, span pooling, a small classifier."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from embstore.errors import InvalidValueError
from embstore.probe.edge_batches import EdgeBatch, SpanColumns
from embstore.probe.mixing import mixed, mixing_weights

MIXING = ("mix", "scale")


@dataclass(frozen=True)
class EdgeShape:
    """The sizes of an edge probe: `layers` it may mix, `width` of the vectors, `spans` 1 or 2, `labels`.

    `projection`: the width that vectors are projected to; `hidden_size`: units of the classifier's hidden layer.
    """

    layers: int
    width: int
    spans: int
    labels: int
    projection: int = 256
    hidden_size: int = 256

    def __post_init__(self) -> None:
        for name in ("projection", "hidden_size"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} {getattr(self, name)} is not allowed: give 1 or more")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of one probe. The projection and the pooling of the second spans are others than the first's."""
        sizes: dict[str, tuple[int, ...]] = {"mix": (self.layers,), "scale": ()}
        for number in range(1, self.spans + 1):
            sizes[f"projection{number}"] = (self.projection, self.width)
            sizes[f"projection{number}_bias"] = (self.projection,)
            sizes[f"attention{number}"] = (self.projection,)
        sizes["hidden"] = (self.hidden_size, self.spans * self.projection)
        sizes["hidden_bias"] = sizes["norm"] = sizes["norm_bias"] = (self.hidden_size,)
        sizes["output"] = (self.labels, self.hidden_size)
        sizes["output_bias"] = (self.labels,)
        return sizes


def initial_weights(shape: EdgeShape, seed: int) -> dict[str, torch.Tensor]:
    """The weights that a probe begins with, by its seed and sizes alone: so all P(l) of a seed begin alike.

    Products as `torch.nn.Linear` draws them, uniform within 1 / sqrt(inputs); equal mixing weights and gamma 1.
    """
    made = {}
    for name, size in shape.tensor_shapes().items():
        if name in ("mix", "norm_bias"):
            made[name] = torch.zeros(size)
        elif name in ("scale", "norm"):
            made[name] = torch.ones(size)
        else:
            made[name] = torch.empty(size)
            inputs = {
                "projection": shape.width,
                "attention": shape.projection,
                "hidden": shape.spans * shape.projection,
            }
            bound = 1 / sqrt(inputs.get(name.removesuffix("_bias").rstrip("12"), shape.hidden_size))
            key = hashlib.sha256(repr((seed, name)).encode()).digest()[:7]
            made[name].uniform_(-bound, bound, generator=torch.Generator().manual_seed(int.from_bytes(key, "little")))
    return made


@dataclass(eq=False)
class EdgeBank:
    """Probes of one shape as stacked `weights` [probes, ...]; `allowed` bool [probes, layers]: what each mixes.

    `seeds` int64 [probes]: of their initial weights and their dropout.
    """

    shape: EdgeShape
    allowed: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    weights: dict[str, torch.Tensor]

    @classmethod
    def initial(
        cls, shape: EdgeShape, allowed: NDArray[np.bool_], seeds: NDArray[np.int64], *, device: torch.device
    ) -> EdgeBank:
        drawn = {seed: initial_weights(shape, seed) for seed in sorted(set(seeds.tolist()))}
        weights = {
            name: torch.stack([drawn[seed][name] for seed in seeds.tolist()]).to(device)
            for name in shape.tensor_shapes()
        }
        return cls(shape, allowed, seeds, weights)

    def __len__(self) -> int:
        return len(self.seeds)

    def of(self, places: NDArray[np.int64]) -> EdgeBank:
        """A copy of some of the probes."""
        chosen = torch.from_numpy(places).to(self.weights["mix"].device)
        held = {name: tensor.detach().index_select(0, chosen) for name, tensor in self.weights.items()}
        return EdgeBank(self.shape, self.allowed[places], self.seeds[places], held)

    def mixing(self) -> NDArray[np.float64]:
        """s of each probe, [probes, layers]."""
        weights = mixing_weights(self.weights["mix"].detach().double(), self._allowed())
        return weights.cpu().numpy()

    def logits(self, batch: EdgeBatch, *, kept: torch.Tensor | None = None) -> torch.Tensor:
        """[probes, targets, labels]. `kept` [probes, targets, hidden_size]: what dropout multiplies by."""
        held = self.weights
        weights = mixing_weights(held["mix"], self._allowed())
        vectors = mixed(batch.vectors, weights, held["scale"])
        pooled = [_pooled(vectors, columns, held, str(number)) for number, columns in enumerate(batch.spans, 1)]
        both = pooled[0] if len(pooled) == 1 else torch.cat(pooled, 2)
        hidden = torch.baddbmm(held["hidden_bias"][:, None], both, held["hidden"].transpose(1, 2)).tanh()
        normed = functional.layer_norm(hidden, hidden.shape[2:])
        active = torch.addcmul(held["norm_bias"][:, None], normed, held["norm"][:, None])
        if kept is not None:
            active = active * kept
        return torch.baddbmm(held["output_bias"][:, None], active, held["output"].transpose(1, 2))

    def losses(self, batch: EdgeBatch, *, kept: torch.Tensor | None = None) -> torch.Tensor:
        """The mean binary cross-entropy over targets and labels of each probe, [probes]."""
        logits = self.logits(batch, kept=kept)
        gold = batch.gold.expand_as(logits)
        return functional.binary_cross_entropy_with_logits(logits, gold, reduction="none").mean((1, 2))

    def kept(self, rate: float, targets: int, *, key: tuple[int, ...]) -> torch.Tensor | None:
        """Dropout's factors by seed and `key` alone, the same for all probes of a seed; None for a rate of 0."""
        if not rate:
            return None
        distinct, inverse = np.unique(self.seeds, return_inverse=True)
        masks = torch.empty(len(distinct), targets, self.shape.hidden_size)
        for number, seed in enumerate(distinct.tolist()):
            drawn = hashlib.sha256(repr((seed, *key)).encode()).digest()[:7]
            masks[number].bernoulli_(1 - rate, generator=torch.Generator().manual_seed(int.from_bytes(drawn, "little")))
        kept = masks.div_(1 - rate).to(self.weights["mix"].device)
        return kept if len(distinct) == 1 else kept[torch.from_numpy(inverse).to(kept.device)]

    def _allowed(self) -> torch.Tensor:
        return torch.from_numpy(self.allowed).to(self.weights["mix"].device)


def _pooled(
    vectors: torch.Tensor, columns: SpanColumns, weights: Mapping[str, torch.Tensor], number: str
) -> torch.Tensor:
    """Project the vectors of spans, and take the mean of each span by a learned attention; [probes, targets, width].

    A span of one vector is that vector. Spans are summed in one `embedding_bag` over the vectors of all probes: what
    lies outside a span is never touched.
    """
    own = vectors if columns.used is None else vectors.index_select(1, columns.used)
    projected = torch.baddbmm(
        weights[f"projection{number}_bias"][:, None], own, weights[f"projection{number}"].transpose(1, 2)
    )
    if columns.single:
        return projected.index_select(1, columns.places)
    probes, count, width = projected.shape
    scores = torch.bmm(projected, weights[f"attention{number}"][:, :, None])[:, :, 0]
    share = _softmax_by_span(scores.index_select(1, columns.places), columns)
    which = torch.arange(probes, device=projected.device)[:, None]
    pooled = functional.embedding_bag(
        (which * count + columns.places).view(-1),
        projected.view(probes * count, width),
        (which * len(columns.places) + columns.first).view(-1),
        mode="sum",
        per_sample_weights=share.view(-1),
    )
    return pooled.view(probes, len(columns.first), width)


def _softmax_by_span(scores: torch.Tensor, columns: SpanColumns) -> torch.Tensor:
    """[probes, entries], over the entries of each span."""
    spans = len(scores), len(columns.first)
    highest = scores.new_full(spans, -torch.inf)
    highest.scatter_reduce_(1, columns.target.expand_as(scores), scores.detach(), "amax")
    parts = (scores - highest.index_select(1, columns.target)).exp()
    whole = scores.new_zeros(spans).index_add(1, columns.target, parts)
    return parts / whole.index_select(1, columns.target)
