"""Edge probes (Tenney et al. 2019), many as one batched model: scalar mixing, span pooling, a small classifier."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from embstore.errors import InvalidValueError
from embstore.probes.edges.batches import EdgeBatch, SpanColumns
from embstore.probes.edges.compiled import compiled_logits
from embstore.probes.mixing import mixed, mixing_weights

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
    ) -> Self:
        drawn = {seed: initial_weights(shape, seed) for seed in sorted(set(seeds.tolist()))}
        weights = {
            name: torch.stack([drawn[seed][name] for seed in seeds.tolist()]).to(device)
            for name in shape.tensor_shapes()
        }
        return cls(shape, allowed, seeds, weights)

    def __len__(self) -> int:
        return len(self.seeds)

    def of(self, places: NDArray[np.int64]) -> Self:
        """A copy of some of the probes."""
        chosen = torch.from_numpy(places).to(self.weights["mix"].device)
        held = {name: tensor.detach().index_select(0, chosen) for name, tensor in self.weights.items()}
        return type(self)(self.shape, self.allowed[places], self.seeds[places], held)

    def view(self, places: NDArray[np.int64]) -> Self:
        """Probes that stand side by side, as they are here: no copy."""
        own = slice(int(places[0]), int(places[-1]) + 1)
        held = {name: tensor.detach()[own] for name, tensor in self.weights.items()}
        return type(self)(self.shape, self.allowed[own], self.seeds[own], held)

    def mixing(self) -> NDArray[np.float64]:
        """s of each probe, [probes, layers]."""
        weights = mixing_weights(self.weights["mix"].detach().double(), self._allowed())
        return weights.cpu().numpy()

    def logits(self, batch: EdgeBatch, *, kept: torch.Tensor | None = None) -> torch.Tensor:
        """[probes, targets, labels]. `kept` [probes or 1, targets, hidden_size]: what dropout multiplies by."""
        held = self.weights
        weights = mixing_weights(held["mix"], self._allowed())
        if weights.device.type == "cpu":
            return compiled_logits(held, weights * held["scale"][:, None], self.allowed, batch, kept)
        return plain_logits(held, mixed(batch.vectors, weights, held["scale"]), batch, kept)

    def losses(self, batch: EdgeBatch, *, kept: torch.Tensor | None = None) -> torch.Tensor:
        """The mean binary cross-entropy over targets and labels of each probe, [probes]."""
        logits = self.logits(batch, kept=kept)
        gold = batch.gold.expand_as(logits)
        return functional.binary_cross_entropy_with_logits(logits, gold, reduction="none").mean((1, 2))

    def kept(self, rate: float, targets: int, *, key: tuple[int, ...]) -> torch.Tensor | None:
        """Dropout's factors by seed and `key` alone, the same for all probes of a seed; None for a rate of 0.

        [probes, targets, hidden_size], or [1, ...] where all probes have the same seed.
        """
        if not rate:
            return None
        distinct, inverse = np.unique(self.seeds, return_inverse=True)
        masks = np.stack(
            [_factors(rate, (targets, self.shape.hidden_size), (seed, *key)) for seed in distinct.tolist()]
        )
        kept = torch.from_numpy(masks).to(self.weights["mix"].device)
        return kept if len(distinct) == 1 else kept[torch.from_numpy(inverse).to(kept.device)]

    def _allowed(self) -> torch.Tensor:
        return torch.from_numpy(self.allowed).to(self.weights["mix"].device)


def _factors(rate: float, size: tuple[int, int], key: tuple[int, ...]) -> NDArray[np.float32]:
    """0 at random with the probability `rate`, to 2^-16, and else 1 / (1 - rate)."""
    drawn = np.random.Generator(np.random.SFC64(key)).bytes(2 * size[0] * size[1])
    stays = np.frombuffer(drawn, "<u2").reshape(size) >= round(rate * 2**16)
    return np.multiply(stays, 1 / (1 - rate), dtype=np.float32)


def plain_logits(
    weights: Mapping[str, torch.Tensor], vectors: torch.Tensor, batch: EdgeBatch, kept: torch.Tensor | None
) -> torch.Tensor:
    """[probes, targets, labels] from the mixed vectors [probes, n, width], on any device."""
    held = weights
    pooled = [
        columns.by_target(_pooled(vectors, columns, held, str(number))) for number, columns in enumerate(batch.spans, 1)
    ]
    both = pooled[0] if len(pooled) == 1 else torch.cat(pooled, 2)
    hidden = torch.baddbmm(held["hidden_bias"][:, None], both, held["hidden"].transpose(1, 2)).tanh()
    normed = functional.layer_norm(hidden, hidden.shape[2:])
    active = torch.addcmul(held["norm_bias"][:, None], normed, held["norm"][:, None])
    if kept is not None:
        active = active * kept
    return torch.baddbmm(held["output_bias"][:, None], active, held["output"].transpose(1, 2))


def _pooled(
    vectors: torch.Tensor, columns: SpanColumns, weights: Mapping[str, torch.Tensor], number: str
) -> torch.Tensor:
    """Take the mean of each span by a learned attention, and project it; [probes, spans, projection].

    So a span costs a product, and not each of its words: the score of a word, v (W h + b), needs W^T v alone, as the
    bias makes no difference within a span. A span of one vector is that vector. Spans are summed in one
    `embedding_bag` over the vectors of all probes.
    """
    projection, bias = weights[f"projection{number}"], weights[f"projection{number}_bias"]
    if columns.single:
        pooled = vectors.index_select(1, columns.places)
    else:
        probes, count, width = vectors.shape
        direction = torch.bmm(weights[f"attention{number}"][:, None], projection)
        scores = torch.bmm(vectors, direction.transpose(1, 2))[:, :, 0]
        share = _softmax_by_span(scores.index_select(1, columns.places), columns)
        which = torch.arange(probes, device=vectors.device)[:, None]
        pooled = functional.embedding_bag(
            (which * count + columns.places).view(-1),
            vectors.view(probes * count, width),
            (which * len(columns.places) + columns.begin[:-1]).view(-1),
            mode="sum",
            per_sample_weights=share.view(-1),
        ).view(probes, -1, width)
    return torch.baddbmm(bias[:, None], pooled, projection.transpose(1, 2))


def _softmax_by_span(scores: torch.Tensor, columns: SpanColumns) -> torch.Tensor:
    """[probes, entries], over the entries of each span."""
    spans = len(columns.begin) - 1
    owner = torch.repeat_interleave(torch.arange(spans, device=scores.device), columns.begin.diff())
    highest = scores.new_full((len(scores), spans), -torch.inf)
    highest.scatter_reduce_(1, owner.expand_as(scores), scores.detach(), "amax")
    parts = (scores - highest.index_select(1, owner)).exp()
    whole = scores.new_zeros(len(scores), spans).index_add(1, owner, parts)
    return parts / whole.index_select(1, owner)
