"""Metrics of edge probing: intervals against loops by hand, control tasks, and data whose truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.intervals import exact, expanded
from embstore.probes import EdgeProbe, Training
from embstore.probes.control import ControlTask
from embstore.probes.edges.batches import EdgeSplit
from embstore.probes.edges.scores import (
    EdgeCounts,
    ProbeGrid,
    SplitCounts,
    constant_counts,
    expected_layers,
    kl_from_uniform,
    majority,
    micro_f1,
    resampled_f1,
    undetermined,
)
from embstore.probes.edges.tasks import control_split, control_task, join_edges, join_task
from tests.probes.edge_store import make, write_store


def expected_layer(scores: Sequence[float], layers: Sequence[int]) -> float | None:
    """Equation 4 as a loop over the layers."""
    gained = [high - low for low, high in pairwise(scores)]
    whole = sum(layer * gain for layer, gain in zip(layers[1:], gained, strict=True))
    return whole / sum(gained) if scores[-1] > scores[0] else None


def test_f1_and_majority_by_hand() -> None:
    assert micro_f1([3, 0, 0], [4, 2, 0], 6).tolist() == [0.6, 0.0, 0.0]
    assert np.isnan(micro_f1([0], [0], 0)).all()
    gold = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 1, 1]], bool)
    split = EdgeSplit(np.array([0, 4]), (), gold, np.array([0, 0, 0, 1]))
    assert majority(split, single=True).tolist() == [True, False, False]
    # of 4 targets with 8 labels: one label 2*3/(4+8), two 2*6/(8+8), three 2*7/(12+8)
    assert majority(split, single=False).tolist() == [True, True, False]
    counts = constant_counts(majority(split, single=False), split)
    assert micro_f1(counts.right.sum(1), counts.said.sum(1), counts.wanted.sum()).tolist() == [0.75]


def counts_of(rng: np.random.Generator, probes: int, sentences: int) -> EdgeCounts:
    wanted = rng.integers(1, 6, sentences)
    said = rng.integers(0, 6, (probes, sentences))
    right = rng.binomial(np.minimum(said, wanted), np.resize([0.1, 0.4, 0.9, 0.2, 0.6], probes)[:, None])
    return EdgeCounts(right, said, wanted)


def f1_by_hand(counts: EdgeCounts, probe: int, sentences: list[int]) -> float:
    right = sum(int(counts.right[probe, each]) for each in sentences)
    said = sum(int(counts.said[probe, each]) for each in sentences)
    wanted = sum(int(counts.wanted[each]) for each in sentences)
    return 2 * right / (said + wanted)


def test_intervals_are_those_of_sentences_resampled_by_hand() -> None:
    rng = np.random.default_rng(0)
    layers, seeds, sentences, draws = (0, 2, 5), (3, 8), 17, 60
    grid = ProbeGrid(layers, seeds, layerwise=True)
    own, control = (counts_of(rng, 2 * 5, sentences) for _ in range(2))
    constant = counts_of(rng, 1, sentences)
    own = EdgeCounts(own.right, own.said, constant.wanted)
    split = SplitCounts(own, constant, control)
    rows = list(split.rows(grid, n_resamples=draws, seed=4))
    found = {(row["metric"], row.get("layer"), row.get("seed")): row for row in rows}
    picked = np.random.default_rng((4, sentences)).integers(0, sentences, (draws, sentences)).tolist()
    assert Counter(map(len, picked)) == {sentences: draws}

    def ends(values: Sequence[Any]) -> Any:
        return expanded(np.array(values), own.wanted.sum() ** 2 / (own.wanted**2).sum())

    def scores(counts: EdgeCounts, places: np.ndarray, sample: list[int]) -> list[float]:
        return [f1_by_hand(counts, int(place), sample) for place in places]

    of_seed, alone = (dict(zip(seeds, grid.kinds[kind], strict=True)) for kind in ("", "layer_"))
    for metric, counts, places in (
        ("f1", own, of_seed),
        ("layer_f1", own, alone),
        ("control_f1", control, of_seed),
        ("layer_control_f1", control, alone),
    ):
        for number, layer in enumerate(layers):
            probes = [int(places[seed][number]) for seed in seeds]
            right, said = counts.right[probes].mean(0), counts.said[probes].mean(0)
            for seed in seeds:
                row = found[metric, layer, seed]
                assert (row["low"], row["high"]) == pytest.approx(exact(right, (said + counts.wanted) / 2))
                whole = scores(counts, places[seed], list(range(sentences)))[number]
                assert row["value"] == pytest.approx(whole)

    def difference(seed: int, sample: list[int]) -> float:
        return scores(own, of_seed[seed], sample)[1] - scores(control, of_seed[seed], sample)[1]

    taken = [np.mean([difference(seed, each) for seed in seeds]) for each in picked]
    row = found["selectivity", 2, 3]
    assert (row["low"], row["high"]) == pytest.approx(ends(taken)), "both tasks have the same resamples"
    gained = [np.mean([np.diff(scores(own, of_seed[s], each))[1] for s in seeds]) for each in picked]
    assert (found["differential", 5, 8]["low"], found["differential", 5, 8]["high"]) == pytest.approx(ends(gained))
    expected = [[expected_layer(scores(own, of_seed[s], each), layers) for s in seeds] for each in picked]
    defined = [np.mean(np.array(each, float)) for each in expected if None not in each]
    assert len(defined) >= 57
    for seed in seeds:
        row = found["expected_layer", None, seed]
        assert (row["value"], row.get("low")) == (None, None)
        low, high = ends(defined)
        assert row["item"] == f"not determined: its interval, {low:.2f} to {high:.2f}, is not within the layers 0 to 5"
    row = found["majority_f1", None, None]
    assert (row["low"], row["high"]) == exact(constant.right[0], (constant.said[0] + constant.wanted) / 2)
    assert found["differential_kl", None, 3].get("low") is None


@pytest.mark.parametrize("n_different", [4, 5])
def test_what_few_sentences_differ_in_has_no_interval(n_different: int) -> None:
    own, constant = (counts_of(np.random.default_rng(seed), 1, 17) for seed in (0, 1))
    right, said = np.repeat(own.right, 2, 0), np.repeat(own.said + 1, 2, 0)
    said[1, :n_different] += 1
    split = SplitCounts(EdgeCounts(right, said, own.wanted), constant)
    rows = list(split.rows(ProbeGrid((0, 1), (0,), layerwise=False), n_resamples=50, seed=0))
    (low,) = [row["low"] for row in rows if row["metric"] == "differential"]
    assert (low is None) == (n_different < 5)


def test_expected_layers_of_resamples_equal_those_of_single_rows() -> None:
    scores = np.random.default_rng(0).random((50, 4))
    found = expected_layers(scores, (0, 3, 4, 9))
    expected = [expected_layer(row, (0, 3, 4, 9)) for row in scores]
    assert None in expected
    np.testing.assert_allclose(found, [np.nan if each is None else each for each in expected])
    # (1 * 0.2 - 2 * 0.1 + 3 * 0.3) / 0.4
    assert expected_layers(np.array([[0.4, 0.6, 0.5, 0.8]]), (0, 1, 2, 3)) == pytest.approx(2.25)
    assert np.isnan(expected_layers(np.array([[0.5]]), (0,))).all()
    assert kl_from_uniform([0.25] * 4) == pytest.approx(0)
    assert kl_from_uniform([0, 3, 0, 0]) == pytest.approx(log(4))
    assert kl_from_uniform([0.2, -0.1, 0.6]) == pytest.approx(0.25 * log(0.25) + 0.75 * log(0.75) + log(3))
    assert kl_from_uniform([0.0, -1.0]) is kl_from_uniform([]) is None
    assert expanded(np.array([1.0] * 95 + [np.nan] * 5), 9) == (1.0, 1.0), "one in twenty may be undefined"
    assert expanded(np.array([1.0] * 94 + [np.nan] * 6), 9) == expanded(np.array([]), 9) == (None, None)
    assert np.isnan(expected_layers(np.array([[0.5, 0.7, 0.5]]), (0, 1, 2))).all(), "nothing is gained in all"


def test_an_expected_layer_outside_the_layers_is_not_determined() -> None:
    layers = (0, 3, 6)
    assert undetermined([0.0, 6.0], (0.0, 6.0), layers) == undetermined([1.5], None, layers) == ""
    for values, ends, why in (
        ([1.0, np.nan], (0.5, 2.0), "P(6) scores no higher than P(0)"),
        ([1.0, -0.96], (0.5, 2.0), "-0.96 is not within the layers 0 to 6, as some layers lower the score"),
        ([6.01], None, "6.01 is not within the layers 0 to 6, as some layers lower the score"),
        ([1.0], (None, None), "in more than one resample of twenty P(6) scores no higher than P(0)"),
        ([0.5], (-24.5, 0.92), "its interval, -24.50 to 0.92, is not within the layers 0 to 6"),
        ([0.5], (0.1, 6.2), "its interval, 0.10 to 6.20, is not within the layers 0 to 6"),
    ):
        assert undetermined(values, ends, layers) == f"not determined: {why}"


def test_a_single_sentence_has_no_intervals() -> None:
    assert EdgeCounts(*np.zeros((2, 1, 9), int), np.zeros(9, int)).interval([0]) == (None, None), "nothing to find"
    counts = EdgeCounts(np.array([[1], [2], [3]]), np.full((3, 1), 4), np.array([4]))
    rows = list(SplitCounts(counts, counts).rows(ProbeGrid((0, 1, 2), (0,), False), n_resamples=9, seed=0))
    assert [row.get("low") for row in rows] == [row.get("high") for row in rows] == [None] * len(rows)
    assert next(row["value"] for row in rows if row["metric"] == "expected_layer") == 1.5


def test_an_expected_layer_that_is_determined_has_its_interval() -> None:
    """Every sentence gains one label from layer 1 on, so that the expected layer is 1 in all resamples."""
    grid, full = ProbeGrid((0, 1, 2), (3, 8), layerwise=False), np.full((6, 10), 4)
    right = np.tile([[2], [3], [3]], (2, 10))
    own = EdgeCounts(right, full, full[0])
    rows = list(SplitCounts(own, EdgeCounts(right[:1], full[:1], full[0])).rows(grid, n_resamples=20, seed=0))
    found = [row for row in rows if row["metric"] == "expected_layer"]
    assert [(row["value"], row["low"], row["high"], row.get("item")) for row in found] == [(1.0, 1.0, 1.0, None)] * 2
    few = EdgeCounts(*(counts[..., :9] for counts in (right, full, full[0])))
    rows = [row for row in SplitCounts(few, few).rows(grid, n_resamples=20, seed=0) if row.get("item")]
    assert {row["item"] for row in rows} == {"not determined: only 9 sentences differ between P(0) and P(2)"}


def test_resamples_do_not_depend_on_the_size_of_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counts_of(np.random.default_rng(0), 3, 11)
    whole = resampled_f1({"a": counts}, 20, seed=1)["a"]
    assert whole.shape == (21, 3)
    monkeypatch.setattr("embstore.intervals.BLOCK", 40)
    np.testing.assert_array_equal(resampled_f1({"a": counts}, 20, seed=1)["a"], whole)
    np.testing.assert_array_equal(resampled_f1({"a": counts}, 0, seed=1)["a"], whole[:1])


def test_control_labels_depend_on_forms_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [[f"v{int(n)}" for n in rng.integers(0, 12, 6)] for _ in range(120)]
    store = write_store(tmp_path / "a.zarr", words, np.zeros((1, 720, 2), np.float32), (0,))
    kinds = [("x",), ("x",), ("x",), ("y", "z"), ("y",)]

    def edges(of: list[list[str]]) -> list[EdgeSentence]:
        targets = [
            [EdgeTarget((at, at + size), (0, 1), kinds[int(rng.integers(5))]) for at in (1, 2, 3) for size in (1, 2)]
            for _ in of
        ]
        return [EdgeSentence(each, own) for each, own in zip(of, targets, strict=True)]

    train, dev, test = edges(words[:60]), edges(words[60:80]), edges(words[80:])
    test[0].targets[0] = EdgeTarget((0, 1), (1, 2), ("strange",))
    task = join_task(store, train, dev)
    control = ControlTask.of(task.train.gold, 1)
    drawn, joined = control_task(task, store, control), join_edges(store, test, task.labels).split
    of_forms: dict[tuple[str, str], set[tuple[bool, ...]]] = {}
    for split, sentences in ((drawn.train, train), (drawn.dev, dev), (control_split(joined, store, control), test)):
        assert split is not None
        targets = [(each.words, target) for each in sentences for target in each.targets]
        assert not split.unknown.any()
        for (own, target), gold in zip(targets, split.gold.tolist(), strict=True):
            assert target.span2 is not None
            forms = " ".join(own[slice(*target.span1)]), " ".join(own[slice(*target.span2)])
            of_forms.setdefault(forms, set()).add(tuple(gold))
    assert len(of_forms) > 300
    assert {len(each) for each in of_forms.values()} == {1}
    shares = Counter(next(iter(each)) for each in of_forms.values())
    assert set(shares) == {tuple(row) for row in task.train.gold.tolist()}
    alone = tuple(label == "x" for label in task.labels.labels)
    assert shares[alone] / len(of_forms) == pytest.approx(0.6, abs=0.07), "the frequencies of train"
    loaded = ControlTask.from_json(control.as_json(), 3)
    assert (control_split(joined, store, loaded).gold == control_split(joined, store, control).gold).all()
    other = ControlTask.of(task.train.gold, 2)
    assert (control_split(joined, store, other).gold != control_split(joined, store, control).gold).any()


@pytest.mark.slow
def test_selectivity_is_high_for_a_planted_signal(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", layers=(0, 1, 2), planted=1, sentences=60, longest=1)
    settings: dict[str, Any] = {"hidden_size": 10}
    settings |= {
        "layerwise": True,
        "seeds": (0, 1),
        "training": Training(epochs=8, batch_size=8, learning_rate=0.01, patience=0),
    }

    def score(resamples: int, **more: Any) -> Any:
        probe = EdgeProbe(**settings, **more).fit(made.store, made.splits["train"], made.splits["dev"])
        return probe.score(made.splits["test"], resamples=resamples)

    found = score(100, control=True)

    def row(metric: str, layer: int) -> dict[str, float]:
        own: dict[str, float] = found.summary().filter(split="test", metric=metric, layer=layer).to_dicts()[0]
        return own

    for before in ("", "layer_"):
        control = row(f"{before}control_f1", 1)
        assert control["value"] < 0.6, "words are not in the vectors"
        taken = row(f"{before}selectivity", 1)
        assert taken["value"] == pytest.approx(row(f"{before}f1", 1)["value"] - control["value"])
        assert taken["low"] > 0.2
        assert taken["low"] <= taken["value"] <= taken["high"]
    assert row("layer_selectivity", 0)["value"] < 0.25
    plain = score(0).frame
    assert plain["low"].null_count() == len(plain)
    same = found.frame.filter(~found.frame["metric"].str.contains("control|selectivity"))
    assert same.drop("low", "high").equals(plain.drop("low", "high"))
