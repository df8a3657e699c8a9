"""Scores of edge probes: micro F1, the metrics of Tenney et al. 2019 (eq. 1 to 4), and their intervals.

The targets of a sentence are not independent. Intervals of F1 are exact ones of as many answers as they are worth;
those of differences and expected layers resample sentences with replacement: a resample is how often each sentence is
in it, and counts by sentence times a matrix of resamples are the counts of all resamples at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.intervals import MIN_UNITS, Interval, exact, expanded, resampled, worth
from embstore.probes.edges.batches import EdgeSplit
from embstore.probes.edges.model import EdgeBank
from embstore.probes.edges.training import EdgeStream, iter_logits
from embstore.probes.result import Row
from embstore.probes.training import Trained

# Sentences that two probes answer differently, of which resamples make an interval of their difference that holds in
# nine of ten cases; an expected layer divides by one. Of two such sentences it holds in .84, of five in .92; if these
# are all sentences that there are, in .7.
MIN_DIFFERENT, MIN_SENTENCES = {"expected_layer": 10}, 10


@dataclass(frozen=True, eq=False)
class EdgeCounts:
    """Labels by sentence: `right` and `said` int64 [probes, sentences], `wanted` int64 [sentences]."""

    right: NDArray[np.int64]
    said: NDArray[np.int64]
    wanted: NDArray[np.int64]

    @classmethod
    def of(cls, split: EdgeSplit, right: NDArray[np.int64], said: NDArray[np.int64]) -> EdgeCounts:
        """Sum counts by target, [probes, targets], over the sentences."""
        wanted = split.gold.sum(1) + split.unknown
        return cls(*(np.add.reduceat(counts, split.first[:-1], axis=-1) for counts in (right, said, wanted)))

    def interval(self, probes: Sequence[int] | NDArray[np.int64]) -> Interval:
        """Return the interval of the mean F1 of some probes; None if there was nothing to find and nothing was said."""
        size = (self.said[probes].mean(0) + self.wanted) / 2
        return exact(self.right[probes].mean(0), size) if size.any() else (None, None)

    def n_different(self, probes: NDArray[np.int64], others: EdgeCounts, of_others: NDArray[np.int64]) -> int:
        """Return how many sentences some probes answer differently from others, in the mean over the seeds."""
        pairs = (self.right[probes], others.right[of_others]), (self.said[probes], others.said[of_others])
        return int(np.any([one.mean(0) != other.mean(0) for one, other in pairs], 0).sum())


def micro_f1(right: ArrayLike, said: ArrayLike, wanted: ArrayLike) -> NDArray[np.float64]:
    """Return 2 TP / (2 TP + FP + FN); NaN if there was nothing to find and nothing was said."""
    whole = np.asarray(np.add(said, wanted), np.float64)
    return np.where(whole > 0, 2 * np.asarray(right) / np.maximum(whole, 1), np.nan)


def score_edges(bank: EdgeBank, stream: EdgeStream, split: EdgeSplit, *, single: bool) -> EdgeCounts:
    """Return the counts of all probes.

    With a `single` label per target the answer is the label of highest probability, else all labels of a probability of
    one half or more. Labels that train does not have are wanted and never found.
    """
    right, said = np.zeros((2, len(bank), len(split)), np.int64)
    for targets, logits in iter_logits(bank, stream, split):
        gold = torch.from_numpy(split.gold[targets]).to(logits.device)
        answer = logits >= 0
        if single:
            answer = torch.zeros_like(answer).scatter_(2, logits.argmax(2, keepdim=True), value=True)
        right[:, targets] = (answer & gold).sum(2).cpu().numpy()
        said[:, targets] = answer.sum(2).cpu().numpy()
    return EdgeCounts.of(split, right, said)


def majority(train: EdgeSplit, *, single: bool) -> NDArray[np.bool_]:
    """Return the best constant answer to train targets, bool [labels].

    The most frequent label if every target has one; else the k most frequent, of that k with the best micro F1 on
    train (the smallest of equals).
    """
    counts = train.gold.sum(0)
    order = np.argsort(-counts, kind="stable")
    n_labels = np.arange(1, len(counts) + 1)
    f1 = 2 * np.cumsum(counts[order]) / (n_labels * len(train) + int((train.gold.sum(1) + train.unknown).sum()))
    answer = np.zeros(len(counts), bool)
    answer[order[: 1 if single else 1 + int(f1.argmax())]] = True
    return answer


def constant_counts(answer: NDArray[np.bool_], split: EdgeSplit) -> EdgeCounts:
    """Return the counts of one probe that gives the same answer to every target of a split."""
    right = split.gold[:, answer].sum(1)
    return EdgeCounts.of(split, right[None], np.full((1, len(split)), answer.sum()))


def resampled_f1(counts: Mapping[str, EdgeCounts], n_resamples: int, *, seed: int) -> dict[str, NDArray[np.float64]]:
    """Return the micro F1 of probes by name, float64 [1 + resamples, probes]: of the sentences, then of each resample.

    All `counts` are of the same sentences and resamples, so that differences between them can be resampled too.
    """
    n_sentences = len(next(iter(counts.values())).wanted)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in counts}
    random = np.random.default_rng((seed, n_sentences))
    for weights in chain([np.ones((1, n_sentences))], resampled(n_sentences, n_resamples, random)):
        for name, each in counts.items():
            right, said = weights @ each.right.T.astype(np.float64), weights @ each.said.T.astype(np.float64)
            parts[name].append(micro_f1(right, said, (weights @ each.wanted.astype(np.float64))[:, None]))
    return {name: np.concatenate(values) for name, values in parts.items()}


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
        one = np.concatenate([np.tri(count), np.eye(count)[1:]]) if self.layerwise else np.tri(count)
        return np.tile(one.astype(bool), (len(self.seeds), 1))

    @property
    def seed_of(self) -> NDArray[np.int64]:
        """The seed of each probe, int64 [probes]."""
        return np.repeat(np.array(self.seeds, np.int64), self._per_seed)

    @property
    def kinds(self) -> dict[str, NDArray[np.int64]]:
        """The numbers of P(0) ... P(L), and with `layerwise` of the probes of each layer alone, int64 [seed, layer]."""
        first, at = np.arange(len(self.seeds))[:, None] * self._per_seed, np.arange(len(self.layers))
        alone = {"layer_": first + np.where(at, at + len(at) - 1, 0)} if self.layerwise else {}
        return {"": first + at} | alone

    def named(self, *metrics: str) -> Iterator[tuple[Key, NDArray[np.int64]]]:
        """Yield the names that metrics have for each kind of probe, by layer, and the probes of all seeds."""
        for (before, of_seeds), metric in product(self.kinds.items(), metrics):
            for layer, probes in zip(self.layers, of_seeds.T, strict=True):
                yield (f"{before}{metric}", layer), probes

    @property
    def _per_seed(self) -> int:
        return len(self.layers) * 2 - 1 if self.layerwise else len(self.layers)


def mixing_rows(grid: ProbeGrid, bank: EdgeBank, trained: Trained) -> Iterator[Row]:
    """Yield what the probes have learned about the layers, as rows of split train."""
    mixing = bank.mixing()
    for seed, probes in zip(grid.seeds, grid.kinds[""].tolist(), strict=True):
        weights = mixing[probes[-1]]
        common: Row = {"split": "train", "seed": seed}
        for layer, value in zip(grid.layers, weights.tolist(), strict=True):
            yield {**common, "layer": layer, "metric": "mixing", "value": value}
        yield {**common, "metric": "center_of_gravity", "value": float(weights @ np.array(grid.layers))}
        yield {**common, "metric": "mixing_kl", "value": kl_from_uniform(weights)}
        for layer, number in zip(grid.layers, probes, strict=True):
            yield from ({**common, "layer": layer, **row} for row in trained.rows(np.array([number])))


@dataclass(frozen=True, eq=False)
class SplitCounts:
    """What the probes of a task have found in a split, by sentence.

    `own`: the probes; `constant`: the best constant answer; `control`: the probes of the control task.
    """

    own: EdgeCounts
    constant: EdgeCounts
    control: EdgeCounts | None = None

    def rows(self, grid: ProbeGrid, *, n_resamples: int, seed: int) -> Iterator[Row]:
        """Yield the metrics of each seed; intervals are of the mean over seeds, none of fewer than five sentences."""
        count, n_sentences = int(self.own.wanted.sum()), len(self.own.wanted)
        n_resamples = n_resamples if n_sentences >= MIN_UNITS else 0
        counts = {"own": self.own, "constant": self.constant}
        if self.control is not None:
            counts["control"] = self.control
        f1 = resampled_f1(counts, n_resamples, seed=seed)
        of_seeds = [dict(_metrics(f1, grid, each)) for each in grid.seeds]
        units = worth(self.own.wanted)
        ends = {key: expanded(np.mean([values[key][1:] for values in of_seeds], 0), units) for key in of_seeds[0]}
        least = MIN_UNITS if n_sentences >= MIN_SENTENCES else n_sentences + 1
        few = {key: n for key, n in self._n_different(grid) if n < MIN_DIFFERENT.get(key[0], least)}
        ends |= dict.fromkeys(few, (None, None))
        if n_resamples:
            ends |= ((key, self.own.interval(probes)) for key, probes in grid.named("f1"))
        if n_resamples and self.control is not None:
            ends |= ((key, self.control.interval(probes)) for key, probes in grid.named("control_f1"))
        expected = [float(values["expected_layer", None][0]) for values in of_seeds]
        differ = few.get(("expected_layer", None))
        why_not = undetermined(expected, ends["expected_layer", None] if n_resamples else None, grid.layers, differ)
        for number, values in zip(grid.seeds, of_seeds, strict=True):
            for (metric, layer), drawn in values.items():
                common: Row = {"seed": number, "count": count, "layer": layer, "metric": metric}
                if metric == "expected_layer" and why_not:
                    yield {**common, "value": None, "item": why_not}
                    continue
                low, high = ends[metric, layer]
                yield {**common, "value": _defined(drawn[0]), "low": low, "high": high}
            gained = [values["differential", layer][0] for layer in grid.layers[1:]]
            yield {"seed": number, "count": count, "metric": "differential_kl", "value": kl_from_uniform(gained)}
        low, high = self.constant.interval([0]) if n_resamples else (None, None)
        value = _defined(f1["constant"][0, 0])
        yield {"count": count, "metric": "majority_f1", "value": value, "low": low, "high": high}

    def _n_different(self, grid: ProbeGrid) -> Iterator[tuple[Key, int]]:
        """Yield in how many sentences the probes differ whose scores are subtracted."""
        at = grid.kinds[""].T
        yield ("expected_layer", None), self.own.n_different(at[-1], self.own, at[0])
        for layer, one, other in zip(grid.layers[1:], at[1:], at[:-1], strict=True):
            yield ("differential", layer), self.own.n_different(one, self.own, other)
        if self.control is not None:
            for key, probes in grid.named("selectivity"):
                yield key, self.own.n_different(probes, self.control, probes)


def _metrics(
    f1: Mapping[str, NDArray[np.float64]], grid: ProbeGrid, seed: int
) -> Iterator[tuple[Key, NDArray[np.float64]]]:
    """Yield each metric of one seed, over the sentences and then over the resamples."""
    own, at = f1["own"], grid.seeds.index(seed)
    yield from ((key, own[:, probes[at]]) for key, probes in grid.named("f1"))
    scores = np.nan_to_num(own[:, grid.kinds[""][at]])
    for layer, gained in zip(grid.layers[1:], np.diff(scores).T, strict=True):
        yield ("differential", layer), gained
    yield ("expected_layer", None), expected_layers(scores, grid.layers)
    if "control" in f1:
        for key, probes in grid.named("control_f1", "selectivity"):
            control = f1["control"][:, probes[at]]
            yield key, own[:, probes[at]] - control if key[0].endswith("selectivity") else control


def expected_layers(scores: NDArray[np.float64], layers: Sequence[int]) -> NDArray[np.float64]:
    """Return equation 4 for each row of scores [resamples, layers]; NaN if P(L) scores no higher than P(0)."""
    total = scores[:, -1] - scores[:, 0]
    gained = np.diff(scores) @ np.asarray(layers[1:], np.float64)
    return np.where(total > 0, gained / np.where(total > 0, total, 1), np.nan)


def undetermined(
    values: Sequence[float], ends: Interval | None, layers: Sequence[int], n_different: int | None = None
) -> str:
    """Return why an expected layer is not a position among the layers, empty if it is one.

    `ends`: of its interval, None without resamples. `n_different`: sentences that P(0) and P(L) answer differently, if
    they are too few.
    """
    first, last = layers[0], layers[-1]
    known = f"the layers {first} to {last}"
    if np.isnan(values).any():
        return f"not determined: P({last}) scores no higher than P({first})"
    outside = [value for value in values if not first <= value <= last]
    if outside:
        return f"not determined: {outside[0]:.2f} is not within {known}, as some layers lower the score"
    if ends is None:
        return ""
    if n_different is not None:
        return f"not determined: only {n_different} sentences differ between P({first}) and P({last})"
    low, high = ends
    if low is None or high is None:
        return f"not determined: in more than one resample of twenty P({last}) scores no higher than P({first})"
    if low < first or high > last:
        return f"not determined: its interval, {low:.2f} to {high:.2f}, is not within {known}"
    return ""


def kl_from_uniform(weights: ArrayLike) -> float | None:
    """Return KL(w || uniform) in nats of weights divided by their sum; negative weights count as 0.

    So a layer that lowers a score counts as one that adds nothing. None if no weight is above 0.
    """
    values = np.maximum(np.asarray(weights, np.float64), 0)
    if not (values > 0).any():
        return None
    share = values[values > 0] / values.sum()
    return float((share * np.log(share)).sum() + np.log(len(values)))


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
