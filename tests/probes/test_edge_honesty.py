"""Intervals and control tasks of edge probes: against loops by hand, and on data whose truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.errors import InvalidValueError
from embstore.probes.edges.bootstrap import drawn_f1, drawn_sentences, interval
from embstore.probes.edges.control import control_task
from embstore.probes.edges.edges import EdgeResult, probe_edges
from embstore.probes.edges.rows import Probes, SplitCounts, expected_layers
from embstore.probes.edges.scores import EdgeCounts
from embstore.probes.edges.tasks import join_task
from embstore.probes.mixing import expected_layer
from tests.probes.edge_store import Made, make, write_store


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


def test_intervals_are_those_of_sentences_drawn_by_hand() -> None:
    rng = np.random.default_rng(0)
    layers, seeds, sentences, draws = (0, 2, 5), (3, 8), 17, 60
    probes = Probes(layers, seeds, layerwise=True)
    own, half, control = (counts_of(rng, 2 * 5, sentences) for _ in range(3))
    constant = counts_of(rng, 1, sentences)
    own = EdgeCounts(own.right, own.said, constant.wanted)
    split = SplitCounts(own, half, constant, control)
    rows = list(split.score_rows(probes, resamples=draws, seed=4))
    found = {(row["metric"], row.get("layer"), row.get("seed")): row for row in rows}
    picked = np.concatenate(list(drawn_sentences(sentences, draws, seed=4))).tolist()
    assert Counter(map(len, picked)) == {sentences: draws}

    def ends(values: Sequence[Any]) -> Any:
        return tuple(np.quantile(values, [0.025, 0.975]).tolist())

    def scores(counts: EdgeCounts, places: np.ndarray, sample: list[int]) -> list[float]:
        return [f1_by_hand(counts, int(place), sample) for place in places]

    for metric, counts, places in (
        ("f1", own, probes.cumulative),
        ("half_f1", half, probes.cumulative),
        ("layer_f1", own, probes.by_layer),
        ("control_f1", control, probes.cumulative),
        ("layer_control_f1", control, probes.by_layer),
    ):
        for number, layer in enumerate(layers):
            drawn = [np.mean([scores(counts, places(seed), each)[number] for seed in seeds]) for each in picked]
            for seed in seeds:
                row = found[metric, layer, seed]
                assert (row["low"], row["high"]) == pytest.approx(ends(drawn))
                whole = scores(counts, places(seed), list(range(sentences)))[number]
                assert row["value"] == pytest.approx(whole)

    def difference(seed: int, sample: list[int]) -> float:
        return scores(own, probes.cumulative(seed), sample)[1] - scores(control, probes.cumulative(seed), sample)[1]

    taken = [np.mean([difference(seed, each) for seed in seeds]) for each in picked]
    row = found["selectivity", 2, 3]
    assert (row["low"], row["high"]) == pytest.approx(ends(taken)), "the same draws for both tasks"
    gained = [np.mean([np.diff(scores(own, probes.cumulative(s), each))[1] for s in seeds]) for each in picked]
    assert (found["differential", 5, 8]["low"], found["differential", 5, 8]["high"]) == pytest.approx(ends(gained))
    expected = [[expected_layer(scores(own, probes.cumulative(s), each), layers) for s in seeds] for each in picked]
    defined = [np.mean(np.array(each, float)) for each in expected if None not in each]
    assert len(defined) >= 57
    row = found["expected_layer", None, 3]
    assert (row["low"], row["high"]) == pytest.approx(ends(defined))
    guessed = [f1_by_hand(constant, 0, each) for each in picked]
    row = found["majority_f1", None, None]
    assert (row["low"], row["high"]) == pytest.approx(ends(guessed))
    assert found["differential_kl", None, 3].get("low") is None


def test_the_expected_layer_of_draws_is_that_of_one() -> None:
    scores = np.random.default_rng(0).random((50, 4))
    found = expected_layers(scores, (0, 3, 4, 9))
    expected = [expected_layer(row, (0, 3, 4, 9)) for row in scores]
    assert None in expected
    np.testing.assert_allclose(found, [np.nan if each is None else each for each in expected])
    assert interval(np.array([1.0] * 18 + [np.nan] * 2)) == (None, None), "one in ten is not defined"
    assert interval(np.array([1.0] * 96 + [np.nan] * 4)) == (1.0, 1.0)


def test_draws_do_not_depend_on_how_many_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counts_of(np.random.default_rng(0), 3, 11)
    whole = drawn_f1({"a": counts}, 20, seed=1)["a"]
    assert whole.shape == (21, 3)
    monkeypatch.setattr("embstore.probes.edges.bootstrap.BLOCK", 40)
    np.testing.assert_array_equal(drawn_f1({"a": counts}, 20, seed=1)["a"], whole)
    np.testing.assert_array_equal(drawn_f1({"a": counts}, 0, seed=1)["a"], whole[:1])


def test_intervals_cover_a_known_truth_where_sentences_hang_together() -> None:
    """A sentence is easy or hard as a whole, so that its ten targets are far from ten independent ones."""
    rng = np.random.default_rng(0)
    tries, sentences, targets = 300, 60, 10
    covered = naive = 0
    for number in range(tries):
        easy = rng.random(sentences) < 0.5
        right = rng.binomial(targets, np.where(easy, 0.9, 0.3))[None]  # so F1, here accuracy, is 0.6
        full = np.full(sentences, targets)
        low, high = interval(drawn_f1({"a": EdgeCounts(right, full[None], full)}, 200, seed=number)["a"][1:, 0])
        assert low is not None
        assert high is not None
        covered += low <= 0.6 <= high
        share = right.sum() / (sentences * targets)
        naive += abs(share - 0.6) <= 1.96 * np.sqrt(share * (1 - share) / (sentences * targets))
    assert 0.91 <= covered / tries <= 0.98
    assert naive / tries < 0.85, "as targets drawn one by one would have it"


def probe(made: Made, **options: Any) -> EdgeResult:
    small: dict[str, Any] = {"device": "cpu", "projection": 8, "hidden_size": 10}
    return probe_edges(made.store, **made.splits, **{**small, **options})


def test_control_labels_are_those_of_forms_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [[f"v{int(n)}" for n in rng.integers(0, 12, 6)] for _ in range(120)]
    store = write_store(tmp_path / "a.zarr", words, np.zeros((1, 720, 2), np.float32), (0,))
    kinds = [("x",), ("x",), ("x",), ("y", "z"), ("y",)]

    def edges(of: list[list[str]]) -> list[EdgeSentence]:
        targets = [
            [EdgeTarget((at, at + size), (0, 1), kinds[int(rng.integers(5))]) for at in (1, 2, 3) for size in (1, 2)]
            for _ in of
        ]
        return [EdgeSentence(each, held) for each, held in zip(of, targets, strict=True)]

    splits: dict[str, Any] = {"train": edges(words[:60]), "dev": edges(words[60:80]), "test": edges(words[80:])}
    splits["test"][0].targets[0] = EdgeTarget((0, 1), (1, 2), ("strange",))
    task = join_task(store, **splits)
    drawn = control_task(task, store, seed=1)
    of_forms: dict[tuple[str, str], set[tuple[bool, ...]]] = {}
    for name, sentences in splits.items():
        targets = [(each.words, target) for each in sentences for target in each.targets]
        assert not drawn.splits[name].unknown.any()
        for (own, target), gold in zip(targets, drawn.splits[name].gold.tolist(), strict=True):
            assert target.span2 is not None
            forms = " ".join(own[slice(*target.span1)]), " ".join(own[slice(*target.span2)])
            of_forms.setdefault(forms, set()).add(tuple(gold))
    assert len(of_forms) > 300
    assert {len(each) for each in of_forms.values()} == {1}
    shares = Counter(next(iter(each)) for each in of_forms.values())
    given = {tuple(row) for row in task.splits["train"].gold.tolist()}
    assert set(shares) == given
    alone = tuple(label == "x" for label in task.labels)
    assert shares[alone] / len(of_forms) == pytest.approx(0.6, abs=0.07), "as often as train has it"
    again = control_task(task, store, seed=1).splits["dev"].gold
    assert (again == drawn.splits["dev"].gold).all()
    assert (control_task(task, store, seed=2).splits["dev"].gold != drawn.splits["dev"].gold).any()


def test_selectivity_is_high_where_a_signal_was_planted(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", layers=(0, 1, 2), planted=1, sentences=60, longest=1)
    options: dict[str, Any] = {
        "epochs": 8,
        "patience": None,
        "learning_rate": 0.01,
        "mixing_rate": 0.1,
        "batch_size": 8,
    }
    found = probe(made, **options, control=True, layerwise=True, seeds=(0, 1), resamples=100)

    def row(metric: str, layer: int) -> dict[str, float]:
        held = found.summary().filter(pl.col("split") == "test", pl.col("metric") == metric, pl.col("layer") == layer)
        return held.to_dicts()[0]

    for before in ("", "layer_"):
        control = row(f"{before}control_f1", 1)
        assert control["value"] < 0.6, "words are not in the vectors"
        taken = row(f"{before}selectivity", 1)
        assert taken["value"] == pytest.approx(row(f"{before}f1", 1)["value"] - control["value"])
        assert taken["low"] > 0.2
        assert taken["low"] <= taken["value"] <= taken["high"]
    assert row("layer_selectivity", 0)["value"] < 0.25
    plain = probe(made, **options, layerwise=True, seeds=(0, 1), resamples=0)
    assert plain.control is None
    assert plain.frame["low"].null_count() == len(plain.frame)
    same = found.frame.filter(~pl.col("metric").str.contains("control|selectivity"))
    assert same.drop("low", "high").equals(plain.frame.drop("low", "high"))


def test_the_control_task_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1), planted=1)
    told: list[tuple[int, int]] = []
    whole = probe(made, epochs=2, control=True, checkpoint=tmp_path / "kept.pt", resamples=20)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zarr", "kept.control.pt", "kept.pt"]
    again = probe(
        made, epochs=2, control=True, checkpoint=tmp_path / "kept.pt", resamples=20,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert again.frame.equals(whole.frame)
    assert told == [(24, 48), (48, 48)], "nothing was left to train"


def test_resamples_below_zero_are_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=10, layers=(0, 1), planted=1)
    with pytest.raises(InvalidValueError, match=r"^resamples -1 is not allowed: give 0 \(no intervals\) or more$"):
        probe(made, resamples=-1)
