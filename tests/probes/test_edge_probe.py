"""Edge probing: planted signals, joins of targets with a store, predictions on other stores, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.errors import InvalidValueError
from embstore.probes import EdgeProbe, ProbeResult, Training
from embstore.probes.edges.tasks import join_edges, join_task
from tests.probes.edge_store import LABELS, Made, make, write_store
from tests.probes.oracle import f1_of

SMALL: dict[str, Any] = {"hidden_size": 10}


def fit(made: Made, training: Training, **settings: Any) -> EdgeProbe:
    probe = EdgeProbe(**{**SMALL, "training": training, **settings})
    return probe.fit(made.store, made.splits["train"], made.splits["dev"])


def score(made: Made, probe: EdgeProbe, **options: Any) -> ProbeResult:
    return probe.score({"dev": made.splits["dev"], "test": made.splits["test"]}, **{"resamples": 0, **options})


def value(result: ProbeResult, metric: str, split: str = "test", layer: int | None = None) -> float:
    frame = result.frame.filter(metric=metric, split=split)
    frame = frame.filter(pl.col("layer").is_null() if layer is None else pl.col("layer") == layer)
    return float(frame["value"].item())


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [False, True])
def test_a_planted_signal_is_found_in_its_layer(tmp_path: Path, pairs: bool) -> None:
    made = make(tmp_path / "a.zarr", pairs=pairs)
    training = Training(epochs=16, batch_size=8, learning_rate=0.01, patience=0)
    probe = fit(made, training, layerwise=True)
    found = score(made, probe)
    for layer in (0, 1, 2):
        assert value(found, "f1", layer=layer) < 0.65
        assert value(found, "layer_f1", layer=layer) < 0.65
    assert value(found, "f1", layer=3) > 0.85
    assert value(found, "layer_f1", layer=3) > 0.85
    assert value(found, "layer_f1", layer=4) < 0.65
    assert value(found, "layer_f1", layer=0) == value(found, "f1", layer=0)
    weights = found.frame.filter(metric="mixing")["value"].to_numpy()
    assert weights.argmax() == 3
    assert value(found, "center_of_gravity", "train") == pytest.approx(weights @ np.arange(5))
    assert value(found, "center_of_gravity", "train") == pytest.approx(3, abs=0.8)  # 2 before training
    gained = [value(found, "differential", layer=layer) for layer in (1, 2, 3, 4)]
    assert int(np.argmax(gained)) == 2
    assert value(found, "expected_layer") == pytest.approx(3, abs=0.9)
    assert value(found, "mixing_kl", "train") > 0.1


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.quick(1)
def test_scores_are_those_of_the_probabilities(tmp_path: Path, several: bool) -> None:
    made = make(tmp_path / "a.zarr", sentences=40, several=several)
    probe = fit(made, Training(epochs=3, batch_size=8, learning_rate=0.01))
    found, names = score(made, probe), probe.fitted_.labels.labels
    assert names == tuple(sorted(LABELS))
    assert probe.fitted_.labels.single != several
    gold = [set(target.labels) for sentence in made.splits["test"] for target in sentence.targets]
    probabilities = probe.predict(made.splits["test"])
    for layer in range(5):
        half = [{names[n] for n in np.flatnonzero(row >= 0.5)} for row in probabilities[layer]]
        likeliest = [{names[int(row.argmax())]} for row in probabilities[layer]]
        assert value(found, "f1", layer=layer) == pytest.approx(f1_of(half if several else likeliest, gold))
    assert set(found.frame.filter(split="test")["count"]) == {sum(map(len, gold))}


def test_a_probability_of_one_half_is_enough(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1), planted=1, several=True)
    probe = fit(made, Training(epochs=1, patience=0))
    for name in ("output", "output_bias"):
        probe.fitted_.trained.weights[name].zero_()  # every probability is one half
    found = score(made, probe)
    n_gold = sum(len(set(target.labels)) for sentence in made.splits["test"] for target in sentence.targets)
    assert value(found, "f1", layer=1) == pytest.approx(2 * n_gold / (12 * 3 + n_gold)), "all 3 labels are said"
    assert (probe.predict(made.splits["test"]) == 0.5).all()


def test_spans_are_joined_by_the_positions_of_words(tmp_path: Path) -> None:
    words = [["a", "b", "c"], ["d", "a"], ["a", "b", "c"]]
    store = write_store(tmp_path / "a.zarr", words, np.zeros((1, 7, 2), np.float32), (0,), without=[(0, 1)])
    targets = [
        EdgeTarget((0, 1), None, ("x",)),
        EdgeTarget((1, 2), None, ("x",)),  # no row
        EdgeTarget((0, 3), None, ("y",)),  # one of three words without a row
        EdgeTarget((2, 3), None, ("y",)),
    ]
    train = [EdgeSentence(["d", "a"], [EdgeTarget((1, 2), None, ("x",))]), EdgeSentence(["a", "b", "c"], targets)]
    test = [EdgeSentence(["d", "a"], [EdgeTarget((0, 2), None, ("z",)), EdgeTarget((0, 1), None, ("x", "z"))])]
    task = join_task(store, train, name="task")
    assert task.train.spans[0].tolist() == [[3, 4], [0, 1], [0, 2], [1, 2]]
    assert task.train.first.tolist() == [0, 1, 4]
    assert (task.labels.labels, task.labels.single, task.labels.pairs) == (("x", "y"), True, False)
    joined = join_edges(store, test, task.labels)
    assert joined.split.gold.tolist() == [[False, False], [True, False]]
    assert joined.split.unknown.tolist() == [1, 1]
    assert (*task.notes, *joined.notes) == (
        "task: train: 1 targets are left out: the store has no row of one of their spans",
        "task: train: 1 targets have words without a row, and are read without these",
        "task: test: 2 labels that train does not have count as missed: z",
    )


def test_a_span_has_the_subwords_that_its_words_share_and_no_white_space_around(tmp_path: Path) -> None:
    store = write_store(tmp_path / "a.zarr", [list("abcd")], np.zeros((1, 8, 2), np.float32), (0,), unit="subword")
    vars(store.index.text)["word_subword"] = np.array([0, 1, 3, 6])
    vars(store.index.text)["word_subwords"] = np.array([2, 3, 1, 2])  # subwords 4 and 5 are white space
    spans = [(0, 1), (1, 2), (2, 3), (0, 3), (2, 4), (3, 4)]
    targets = [EdgeTarget(span, None, ("xy"[span[0] % 2],)) for span in spans]
    task = join_task(store, [EdgeSentence(list("abcd"), targets)])
    assert task.train.spans[0].tolist() == [[0, 2], [1, 4], [3, 4], [0, 4], [3, 8], [6, 8]]
    assert task.notes == ()


def test_other_stores_are_noted_or_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "made.zarr", sentences=20, layers=(0, 1, 3), planted=1)
    probe, test = fit(made, Training(epochs=1)), made.splits["test"]
    words = [["a", "b"]]

    def store(name: str, layers: tuple[int, ...] = (0, 1, 3), width: int = 12, unit: str = "word") -> Any:
        vectors = np.ones((len(layers), 4 if unit == "subword" else 2, width), np.float32)
        return write_store(tmp_path / name, words, vectors, layers, unit=unit)

    other = store("other.zarr", layers=(0, 1, 2, 3))
    targets = [EdgeSentence(words[0], [EdgeTarget((0, 1), None, ("red",))])]
    assert probe.join(targets, data=other).notes == ()
    other.metadata.model["name"] = "another"
    assert probe.score(targets, data=other).notes[:1] == (
        f"edges: the probes were fitted on vectors made otherwise than those of {other.path}: none (now another)",
    )
    for wrong, message in (
        (store("a.zarr", width=8), "a.zarr has vectors of 8 numbers, the probes of edges were trained on 12"),
        (store("b.zarr", unit="subword"), "the probes of edges read rows of unit word, .*b.zarr has those of unit sub"),
        (store("c.zarr", layers=(0, 3)), r"c.zarr has no layer 1, which the probes of edges read: .* 0, 3$"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            probe.score(targets, data=wrong)
    pair = [EdgeSentence(words[0], [EdgeTarget((0, 1), (1, 2), ("red",))])]
    with pytest.raises(InvalidValueError, match="the targets of a task have two spans or one, all the same"):
        probe.predict(pair, data=other)
    with pytest.raises(InvalidValueError, match="the probes of edges have no seed 1: they have 0"):
        probe.predict(test, seed=1)
    with pytest.raises(InvalidValueError, match=r"^resamples -1 is not allowed: give 0 or more$"):
        probe.score(test, resamples=-1)


def one(words: str, *targets: EdgeTarget) -> list[EdgeSentence]:
    return [EdgeSentence(words.split(" "), list(targets))]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    store = write_store(tmp_path / "a.zarr", [["a", "b c"], ["d", "a"]], np.zeros((2, 4, 2), np.float32), (0, 2))
    x, y = EdgeTarget((0, 1), None, ("x",)), EdgeTarget((1, 2), None, ("y",))
    mixed = EdgeTarget((0, 1), (1, 2), ("y",))
    good = one("d a", x, y)

    def fit(train: Any = good, dev: Any = good, **settings: Any) -> Callable[[], object]:
        return lambda: EdgeProbe(**settings).fit(store, train, dev)

    cases = [
        (fit(one("d b", x)), r"edges: train: 'd b' is not a sentence of .*a.zarr: give the store"),
        (fit(one("a b c", x)), "word 1 of 'a b c' is 'b', in the store 'b c'"),
        (fit([]), "edges: train has no target"),
        (fit(dev=one("d a")), "edges: dev has no target"),
        (
            fit(dev=one("d a", EdgeTarget((1, 3), None, ("x",)))),
            r"edges: dev: the span \[1, 3\] is not within the 2 words of 'd a'",
        ),
        (fit(one("d a", x)), "train has 1 labels: give targets of at least 2 labels"),
        (fit(one("d a", x, mixed)), "the targets of a task have two spans or one, all the same: give those of edges"),
        (fit(layers=[0, 1]), "layer 1 is not stored"),
        (fit(dev=None), "patience 3 needs dev targets"),
        (fit(seeds=(0, 0)), "seeds must be one or more, each once"),
        (fit(kind="tree"), r"^unknown kind 'tree'; allowed are mlp, linear$"),
    ]
    for call, message in cases:
        with pytest.raises(InvalidValueError, match=message):
            call()
