"""The metrics of edge probing (Tenney et al. 2019, eq. 1 to 4): mixing weights, cumulative and differential scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.probes.edges.model import EdgeBank
from embstore.probes.edges.scores import EdgeCounts, interval, resampled_f1
from embstore.probes.mixing import center_of_gravity, cumulative, kl_from_uniform
from embstore.probes.result import Row

Key = tuple[str, int | None]  # metric, layer


@dataclass(frozen=True)
class ProbeGrid:
    """Which probe of a bank is which: seed after seed, P(0) ... P(L), then with `layerwise` those of layers 1 to L.

    The probe of layer 0 alone is P(0).
    """

    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    layerwise: bool

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """The layers that each probe may mix, bool [probes, layers]."""
        count = len(self.layers)
        one = (
            np.concatenate([cumulative(count), np.eye(count, dtype=bool)[1:]]) if self.layerwise else cumulative(count)
        )
        return np.tile(one, (len(self.seeds), 1))

    @property
    def seed_of(self) -> NDArray[np.int64]:
        """The seed of each probe, int64 [probes]."""
        return np.repeat(np.array(self.seeds, np.int64), self._per_seed)

    def cumulative(self, seed: int) -> NDArray[np.int64]:
        """Return the numbers of P(0) ... P(L)."""
        return self.seeds.index(seed) * self._per_seed + np.arange(len(self.layers))

    def by_layer(self, seed: int) -> NDArray[np.int64]:
        """Return the numbers of the probes of each layer alone."""
        numbers = np.arange(len(self.layers)) + len(self.layers) - 1
        numbers[0] = 0
        return self.seeds.index(seed) * self._per_seed + numbers

    @property
    def _per_seed(self) -> int:
        return len(self.layers) * 2 - 1 if self.layerwise else len(self.layers)


def mixing_rows(grid: ProbeGrid, bank: EdgeBank, epochs: NDArray[np.int64]) -> Iterator[Row]:
    """Yield what the probes have learned about the layers, as rows of split train."""
    scale = bank.weights["scale"].detach().cpu().numpy()
    mixing = bank.mixing()
    for seed in grid.seeds:
        last = int(grid.cumulative(seed)[-1])
        weights = mixing[last]
        common: Row = {"split": "train", "seed": seed}
        for layer, value in zip(grid.layers, weights.tolist(), strict=True):
            yield {**common, "layer": layer, "metric": "mixing", "value": value}
        yield {**common, "metric": "center_of_gravity", "value": center_of_gravity(weights, grid.layers)}
        yield {**common, "metric": "mixing_kl", "value": kl_from_uniform(weights)}
        yield {**common, "metric": "gamma", "value": float(scale[last])}
        for layer, number in zip(grid.layers, grid.cumulative(seed).tolist(), strict=True):
            yield {**common, "layer": layer, "metric": "best_epoch", "value": float(epochs[number])}


@dataclass(frozen=True, eq=False)
class SplitCounts:
    """What the probes of a task have found in a split, by sentence.

    `own`: by the rule of the task; `half`: by the rule of one half; `constant`: the best constant answer; `control`:
    the probes of the control task, by the rule of the task.
    """

    own: EdgeCounts
    half: EdgeCounts
    constant: EdgeCounts
    control: EdgeCounts | None = None

    def rows(self, grid: ProbeGrid, *, n_resamples: int, seed: int) -> Iterator[Row]:
        """Yield the metrics of each seed; intervals are of the mean over the seeds."""
        count = int(self.own.wanted.sum())
        counts = {"own": self.own, "half": self.half, "constant": self.constant}
        if self.control is not None:
            counts["control"] = self.control
        f1 = resampled_f1(counts, n_resamples, seed=seed)
        of_seeds = [dict(_metrics(f1, grid, each)) for each in grid.seeds]
        ends = {key: interval(np.mean([values[key][1:] for values in of_seeds], 0)) for key in of_seeds[0]}
        for number, values in zip(grid.seeds, of_seeds, strict=True):
            for (metric, layer), drawn in values.items():
                low, high = ends[metric, layer]
                own: Row = {"metric": metric, "value": _defined(drawn[0]), "low": low, "high": high}
                yield {"seed": number, "count": count, "layer": layer, **own}
            gained = [values["differential", layer][0] for layer in grid.layers[1:]]
            kl = kl_from_uniform(gained) if gained else None
            yield {"seed": number, "count": count, "metric": "differential_kl", "value": kl}
        constant = f1["constant"][:, 0]
        low, high = interval(constant[1:])
        yield {"count": count, "metric": "majority_f1", "value": _defined(constant[0]), "low": low, "high": high}


def _metrics(
    f1: Mapping[str, NDArray[np.float64]], grid: ProbeGrid, seed: int
) -> Iterator[tuple[Key, NDArray[np.float64]]]:
    """Yield each metric of one seed, over the sentences and then over the resamples."""
    numbers = grid.cumulative(seed)
    kinds = [("f1", "own", numbers), ("half_f1", "half", numbers)]
    if grid.layerwise:
        kinds.append(("layer_f1", "own", grid.by_layer(seed)))
    for metric, rule, at in kinds:
        yield from _by_layer(metric, f1[rule][:, at], grid.layers)
    scores = np.nan_to_num(f1["own"][:, numbers])
    yield from _by_layer("differential", np.diff(scores), grid.layers[1:])
    yield ("expected_layer", None), expected_layers(scores, grid.layers)
    if "control" not in f1:
        return
    for metric, rule, at in kinds:
        if rule == "own":
            before = metric.removesuffix("f1")
            yield from _by_layer(f"{before}control_f1", f1["control"][:, at], grid.layers)
            yield from _by_layer(f"{before}selectivity", f1["own"][:, at] - f1["control"][:, at], grid.layers)


def _by_layer(
    metric: str, values: NDArray[np.float64], layers: Sequence[int]
) -> Iterator[tuple[Key, NDArray[np.float64]]]:
    for layer, column in zip(layers, values.T, strict=True):
        yield (metric, layer), column


def expected_layers(scores: NDArray[np.float64], layers: Sequence[int]) -> NDArray[np.float64]:
    """Return equation 4 for each row of scores [resamples, layers]; NaN if P(L) scores no higher than P(0)."""
    total = scores[:, -1] - scores[:, 0]
    gained = np.diff(scores) @ np.asarray(layers[1:], np.float64)
    return np.where(total > 0, gained / np.where(total > 0, total, 1), np.nan)


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
