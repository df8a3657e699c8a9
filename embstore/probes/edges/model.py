"""Edge probes, many as one batched model: those of Tenney et al. 2019 and linear ones (Liu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from embstore.probes.edges.batches import EdgeBatch, SpanColumns
from embstore.probes.training import seeded

MIXING = ("mix", "scale")
Kind = Literal["mlp", "linear"]
DROPOUT: dict[Kind, float] = {"mlp": 0.2, "linear": 0.0}


@dataclass(frozen=True)
class EdgeShape:
    """The sizes of an edge probe: `layers` that it may mix, `width` of the vectors, `spans` 1 or 2, `labels`.

    An mlp probe projects vectors to `hidden_size` numbers and has a hidden layer of as many units; a linear probe reads
    the mean of each span, and of two spans also the product of their means, number by number.
    """

    layers: int
    width: int
    spans: int
    labels: int
    hidden_size: int = 256
    kind: Kind = "mlp"

    @property
    def n_read(self) -> int:
        """The numbers that the output layer reads, which dropout applies to."""
        return (2 * self.spans - 1) * self.width if self.kind == "linear" else self.hidden_size

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the weights of one probe; second spans have a projection and an attention of their own."""
        sizes: dict[str, tuple[int, ...]] = {"mix": (self.layers,), "scale": ()}
        if self.kind == "mlp":
            for number in range(1, self.spans + 1):
                sizes[f"projection{number}"] = (self.hidden_size, self.width)
                sizes[f"projection{number}_bias"] = (self.hidden_size,)
                sizes[f"attention{number}"] = (self.hidden_size,)
            sizes["hidden"] = (self.hidden_size, self.spans * self.hidden_size)
            sizes["hidden_bias"] = sizes["norm"] = sizes["norm_bias"] = (self.hidden_size,)
        sizes["output"] = (self.labels, self.n_read)
        sizes["output_bias"] = (self.labels,)
        return sizes


def initial_weights(shape: EdgeShape, seed: int) -> dict[str, torch.Tensor]:
    """Return the initial weights of a probe, which depend on its seed and sizes only: all P(l) of a seed begin alike.

    Matrices are drawn as in `torch.nn.Linear`, uniform within 1 / sqrt(inputs); mixing weights are equal and gamma 1.
    """
    n_inputs = {"projection": shape.width, "attention": shape.hidden_size, "hidden": shape.spans * shape.hidden_size}
    weights = {}
    for name, size in shape.tensor_shapes().items():
        if name in ("mix", "norm_bias"):
            weights[name] = torch.zeros(size)
        elif name in ("scale", "norm"):
            weights[name] = torch.ones(size)
        else:
            bound = 1 / sqrt(n_inputs.get(name.removesuffix("_bias").rstrip("12"), shape.n_read))
            weights[name] = torch.empty(size).uniform_(-bound, bound, generator=seeded(seed, name))
    return weights


@dataclass(eq=False)
class EdgeBank:
    """Probes of one shape as stacked `weights` [probes, ...]; `allowed` bool [probes, layers]: what each may mix.

    `seeds` int64 [probes]: of their initial weights, which they have where none are given, and of their dropout.
    """

    shape: EdgeShape
    allowed: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seeds)

    def take(self, numbers: NDArray[np.int64], device: torch.device | None = None) -> Self:
        """Return a copy of some of the probes on a device; those without weights get their initial ones."""
        seeds, weights = self.seeds[numbers], {}
        drawn = {} if self.weights else {seed: initial_weights(self.shape, seed) for seed in set(seeds.tolist())}
        for name in self.shape.tensor_shapes():
            if self.weights:
                tensor = self.weights[name].detach()
                weights[name] = tensor.index_select(0, torch.from_numpy(numbers).to(tensor.device)).to(device)
            else:
                weights[name] = torch.stack([drawn[seed][name] for seed in seeds.tolist()]).to(device)
        return replace(self, allowed=self.allowed[numbers], seeds=seeds, weights=weights)

    def mixing(self) -> NDArray[np.float64]:
        """Return the mixing weights s of each probe, [probes, layers]."""
        weights = mixing_weights(self.weights["mix"].detach().double(), self._allowed())
        return weights.cpu().numpy()

    def logits(self, batch: EdgeBatch, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return [probes, targets, labels]; `mask` [probes or 1, targets, n_read] are the factors of dropout."""
        mixing = mixing_weights(self.weights["mix"], self._allowed())
        read = self._mean(batch, mixing) if self.shape.kind == "linear" else self._hidden(batch, mixing)
        if mask is not None:
            read = read * mask
        return _linear(read, self.weights["output"], self.weights["output_bias"])

    def losses(self, batch: EdgeBatch, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean binary cross-entropy over targets and labels of each probe, [probes]."""
        logits = self.logits(batch, mask=mask)
        gold = batch.gold.expand_as(logits)
        return functional.binary_cross_entropy_with_logits(logits, gold, reduction="none").mean((1, 2))

    def _allowed(self) -> torch.Tensor:
        return torch.from_numpy(self.allowed).to(self.weights["mix"].device)

    def _mean(self, batch: EdgeBatch, mixing: torch.Tensor) -> torch.Tensor:
        """Return the mixed means of spans and the product of two; means of layers are mixed, as that is linear."""
        parts = [mixed(_means(batch.vectors, columns), mixing, self.weights["scale"]) for columns in batch.spans]
        return parts[0] if len(parts) == 1 else torch.cat([*parts, parts[0] * parts[1]], 2)

    def _hidden(self, batch: EdgeBatch, mixing: torch.Tensor) -> torch.Tensor:
        """Return the normalized hidden layer; spans are pooled, then projected: one product a span, not a word."""
        weights, vectors = self.weights, batch.vectors
        words = None
        pooled = []
        for number, columns in enumerate(batch.spans, 1):
            if columns.single:  # a span of one vector is that vector: select before mixing
                pooled.append(mixed(columns.single_vectors(vectors), mixing, weights["scale"]))
                continue
            words = mixed(vectors, mixing, weights["scale"]) if words is None else words
            pooled.append(_pool(words, columns, weights[f"attention{number}"], weights[f"projection{number}"]))
        fused = len(batch) > self.shape.width  # then the product of both matrices takes fewer operations
        read = weights["hidden_bias"][:, None]
        parts = weights["hidden"].chunk(len(pooled), 2)
        for number, (columns, span, part) in enumerate(zip(batch.spans, pooled, parts, strict=True), 1):
            matrix, bias = weights[f"projection{number}"], weights[f"projection{number}_bias"]
            if fused:
                own = torch.bmm(span, torch.bmm(part, matrix).transpose(1, 2))
                read = read + columns.by_target(own) + torch.bmm(part, bias[:, :, None]).transpose(1, 2)
            else:
                own = columns.by_target(_linear(span, matrix, bias))
                read = read + torch.bmm(own, part.transpose(1, 2))
        hidden = read.tanh()
        normed = functional.layer_norm(hidden, hidden.shape[2:])
        return torch.addcmul(weights["norm_bias"][:, None], normed, weights["norm"][:, None])


def mixing_weights(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return s = softmax(a) over the layers that each probe may read; [probes, layers], 0 for the others.

    `logits`: a, [probes, layers]. `allowed`: bool, of the same shape, with at least one layer per probe.
    """
    return logits.masked_fill(~allowed, -torch.inf).softmax(1)


def mixed(vectors: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return equation 1 for all probes in one product: gamma * sum_l s_l h_l; [probes, n, width].

    `vectors`: h, [layers, n, width]. `weights`: s, [probes, layers]. `scale`: gamma, [probes].
    """
    layers, count, width = vectors.shape
    whole = (weights * scale[:, None]) @ vectors.reshape(layers, count * width)
    return whole.view(len(weights), count, width)


def dropout_factors(
    rate: float, size: tuple[int, int], *, key: tuple[int, ...], device: torch.device
) -> torch.Tensor | None:
    """Return the factors of dropout [1, targets, n_read], which depend on `key` only; None for a rate of 0.

    They are 0 with the probability `rate` (to 2^-16), and else 1 / (1 - rate).
    """
    if not rate:
        return None
    drawn = np.random.Generator(np.random.SFC64(key)).bytes(2 * size[0] * size[1])
    mask = np.frombuffer(drawn, "<u2").reshape(1, *size) >= round(rate * 2**16)
    return torch.from_numpy(np.multiply(mask, 1 / (1 - rate), dtype=np.float32)).to(device)


def _linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return [probes, n, out]; on a CPU faster than one baddbmm."""
    return torch.bmm(values, weight.transpose(1, 2)).add_(bias[:, None])


def _pool(words: torch.Tensor, columns: SpanColumns, attention: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean of the words of each span; b of the scores v (W h + b) is one in it: W^T v is enough."""
    n_probes, n_words, width = words.shape
    direction = torch.bmm(attention[:, None], projection)
    scores = torch.bmm(words, direction.transpose(1, 2))[:, :, 0].index_select(1, columns.places)
    owner = torch.repeat_interleave(torch.arange(columns.n_spans, device=scores.device), columns.begin.diff())
    highest = scores.new_full((n_probes, columns.n_spans), -torch.inf)
    highest.scatter_reduce_(1, owner.expand_as(scores), scores.detach(), "amax")
    parts = (scores - highest.index_select(1, owner)).exp()
    total = scores.new_zeros(n_probes, columns.n_spans).index_add(1, owner, parts)
    share = parts / total.index_select(1, owner)
    which = torch.arange(n_probes, device=words.device)[:, None]
    return functional.embedding_bag(
        (which * n_words + columns.places).view(-1),
        words.view(n_probes * n_words, width),
        (which * len(columns.places) + columns.begin[:-1]).view(-1),
        mode="sum",
        per_sample_weights=share.view(-1),
    ).view(n_probes, -1, width)


def _means(vectors: torch.Tensor, columns: SpanColumns) -> torch.Tensor:
    """Return the mean of each target's span by layer, [layers, targets, width]."""
    if columns.single:
        return columns.by_target(columns.single_vectors(vectors))
    layers, count, width = vectors.shape
    which = torch.arange(layers, device=vectors.device)[:, None]
    pooled = functional.embedding_bag(
        (which * count + columns.places).view(-1),
        vectors.reshape(layers * count, width),
        (which * len(columns.places) + columns.begin[:-1]).view(-1),
        mode="mean",
    )
    return columns.by_target(pooled.view(layers, columns.n_spans, width))
