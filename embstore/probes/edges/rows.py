"""The rows that probing a task comes to: what is learned in train, and scores with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.probes.edges.bootstrap import drawn_f1, interval
from embstore.probes.edges.scores import EdgeCounts
from embstore.probes.edges.training import TrainedEdges
from embstore.probes.mixing import center_of_gravity, cumulative, kl_from_uniform

SCHEMA = {
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "seed": pl.Int64,
}
Row = dict[str, Any]
Key = tuple[str, int | None]  # metric, layer


@dataclass(frozen=True)
class Probes:
    """Which probe of a bank is which: seed after seed, P(0) ... P(L), then with `layerwise` those of layers 1 to L.

    The probe of layer 0 by itself is P(0).
    """

    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    layerwise: bool

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """The layers that each may mix, bool [probes, layers]."""
        count = len(self.layers)
        one = np.concatenate(
            [cumulative(count), np.eye(count, dtype=bool)[1:]] if self.layerwise else [cumulative(count)]
        )
        return np.tile(one, (len(self.seeds), 1))

    @property
    def seed_of(self) -> NDArray[np.int64]:
        return np.repeat(np.array(self.seeds, np.int64), self._each)

    def cumulative(self, seed: int) -> NDArray[np.int64]:
        """The places of P(0) ... P(L)."""
        return self._first(seed) + np.arange(len(self.layers))

    def by_layer(self, seed: int) -> NDArray[np.int64]:
        """The places of the probes of each layer by itself."""
        places = np.arange(len(self.layers)) + len(self.layers) - 1
        places[0] = 0
        return self._first(seed) + places

    @property
    def _each(self) -> int:
        return len(self.layers) * 2 - 1 if self.layerwise else len(self.layers)

    def _first(self, seed: int) -> int:
        return self.seeds.index(seed) * self._each


def mixing_rows(probes: Probes, trained: TrainedEdges) -> Iterator[Row]:
    scale = trained.bank.weights["scale"].detach().cpu().numpy()
    mixing = trained.bank.mixing()
    for seed in probes.seeds:
        last = int(probes.cumulative(seed)[-1])
        weights = mixing[last]
        told: Row = {"split": "train", "seed": seed}
        for layer, value in zip(probes.layers, weights.tolist(), strict=True):
            yield {**told, "layer": layer, "metric": "mixing", "value": value}
        yield {**told, "metric": "center_of_gravity", "value": center_of_gravity(weights, probes.layers)}
        yield {**told, "metric": "mixing_kl", "value": kl_from_uniform(weights)}
        yield {**told, "metric": "gamma", "value": float(scale[last])}
        for layer, place in zip(probes.layers, probes.cumulative(seed).tolist(), strict=True):
            yield {**told, "layer": layer, "metric": "best_epoch", "value": float(trained.epochs[place])}


@dataclass(frozen=True, eq=False)
class SplitCounts:
    """What the probes of a task have found in a split, by sentence.

    `own`: by the rule of the task; `half`: by that of one half; `constant`: the best constant answer; `control`: the
    probes of the control task, by the rule of the task.
    """

    own: EdgeCounts
    half: EdgeCounts
    constant: EdgeCounts
    control: EdgeCounts | None = None

    def score_rows(self, probes: Probes, *, resamples: int, seed: int) -> Iterator[Row]:
        """Values of each seed; intervals of their mean over the seeds."""
        wanted = self.own.tally.wanted
        named = {"own": self.own, "half": self.half, "constant": self.constant}
        if self.control is not None:
            named["control"] = self.control
        f1 = drawn_f1(named, resamples, seed=seed)
        of_seeds = [dict(_scores(f1, probes, each)) for each in probes.seeds]
        ends = {key: interval(np.mean([held[key][1:] for held in of_seeds], 0)) for key in of_seeds[0]}
        for number, held in zip(probes.seeds, of_seeds, strict=True):
            for (metric, layer), drawn in held.items():
                low, high = ends[metric, layer]
                told = {"metric": metric, "value": known(drawn[0]), "low": low, "high": high}
                yield {"seed": number, "count": wanted, "layer": layer, **told}
            yield {"seed": number, "count": wanted, "metric": "differential_kl", "value": _gained_kl(held, probes)}
        constant = f1["constant"][:, 0]
        low, high = interval(constant[1:])
        yield {"count": wanted, "metric": "majority_f1", "value": known(constant[0]), "low": low, "high": high}


def _scores(
    f1: Mapping[str, NDArray[np.float64]], probes: Probes, seed: int
) -> Iterator[tuple[Key, NDArray[np.float64]]]:
    """Each metric of one seed, over the draws; the first is of the sentences as they are."""
    places = probes.cumulative(seed)
    kinds = [("f1", "own", places), ("half_f1", "half", places)]
    if probes.layerwise:
        kinds.append(("layer_f1", "own", probes.by_layer(seed)))
    for metric, rule, at in kinds:
        yield from _by_layer(metric, f1[rule][:, at], probes.layers)
    scores = np.nan_to_num(f1["own"][:, places])
    yield from _by_layer("differential", np.diff(scores), probes.layers[1:])
    yield ("expected_layer", None), expected_layers(scores, probes.layers)
    if "control" not in f1:
        return
    for metric, rule, at in kinds:
        if rule == "own":
            before = metric.removesuffix("f1")
            yield from _by_layer(f"{before}control_f1", f1["control"][:, at], probes.layers)
            yield from _by_layer(f"{before}selectivity", f1["own"][:, at] - f1["control"][:, at], probes.layers)


def _by_layer(
    metric: str, values: NDArray[np.float64], layers: Sequence[int]
) -> Iterator[tuple[Key, NDArray[np.float64]]]:
    for layer, column in zip(layers, values.T, strict=True):
        yield (metric, layer), column


def expected_layers(scores: NDArray[np.float64], layers: Sequence[int]) -> NDArray[np.float64]:
    """Equation 4 of each row of scores [draws, layers]; NaN where P(L) scores no higher than P(0)."""
    total = scores[:, -1] - scores[:, 0]
    gained = np.diff(scores) @ np.asarray(layers[1:], np.float64)
    return np.where(total > 0, gained / np.where(total > 0, total, 1), np.nan)


def _gained_kl(held: Mapping[Key, NDArray[np.float64]], probes: Probes) -> float | None:
    gained = [held["differential", layer][0] for layer in probes.layers[1:]]
    return kl_from_uniform(gained) if gained else None


def known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
