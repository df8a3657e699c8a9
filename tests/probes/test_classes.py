"""Probing classes of stores whose vectors are known: signal found where it is, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest

from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError
from embstore.probes.classes.bank import Output, Shape
from embstore.probes.classes.classes import ProbeResult, apply_probes, probe_classes
from embstore.probes.classes.examples import HeldExamples
from embstore.probes.classes.tasks import Source
from embstore.probes.scores import decided
from embstore.probes.splits import PARTS, split_words
from embstore.probes.training import Training, train_bank
from tests.probes.class_store import CLASSES, Made, make
from tests.probes.oracle import rule_of_half
from tests.store_making import make_store

FAST: dict[str, Any] = {"epochs": 12, "batch_size": 16, "learning_rate": 0.02}


@pytest.fixture(scope="module", params=["zarr", pytest.param("h5", marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("stores") / f"made.{request.param}", words=90)


@pytest.fixture(scope="module")
def result(made: Made) -> ProbeResult:
    train, test = made.lists
    return probe_classes(made.store, train=train, test=test, control=True, splits=PARTS, seeds=(0, 1), **FAST)


def value(result: ProbeResult, layer: int, metric: str = "f1", *, task: str = "class", split: str = "test") -> float:
    row = result.summary().filter(
        (pl.col("layer") == layer) & (pl.col("metric") == metric) & (pl.col("task") == task) & (pl.col("item") == "")
        & (pl.col("split") == split)
    )  # fmt: skip
    return float(row["value"].item())


def test_a_planted_signal_is_found_in_its_layer(result: ProbeResult) -> None:
    assert value(result, 1) > 0.9
    assert max(value(result, 0), value(result, 4)) < 0.6
    assert value(result, 1, task="control") < 0.6
    assert value(result, 1, "selectivity") == pytest.approx(value(result, 1) - value(result, 1, task="control"))


def test_shuffled_labels_give_none(tmp_path: Path) -> None:
    made = make(tmp_path / "made.zarr", planted=None, words=90)
    train, test = made.lists
    found = probe_classes(made.store, train=train, test=test, **FAST)
    assert max(value(found, layer) for layer in made.store.layers) < 0.6


def test_scores_are_what_the_bank_says_counted_slowly(made: Made, result: ProbeResult) -> None:
    _, test = made.lists
    rows = [row for row, (word, name) in enumerate(zip(made.words, made.classes, strict=True)) if name and word in test]
    logits = result.bank.bank.logits(made.vectors[:, rows])
    words, own = [made.words[row] for row in rows], [made.classes[row] for row in rows]
    for place, layer in enumerate(made.store.layers):
        for at, seed in enumerate((0, 1)):
            said = [dict(zip(CLASSES, column.tolist(), strict=True)) for column in (logits[place, at, :3] > 0).T]
            expected, _ = rule_of_half(said, words, own, sorted(CLASSES))
            mine = result.frame.filter(
                (pl.col("layer") == layer) & (pl.col("seed") == seed) & (pl.col("task") == "class")
                & (pl.col("split") == "test") & (pl.col("item") == "")
            )  # fmt: skip
            told = dict(mine.select("metric", "value").iter_rows())
            assert told["f1"] == pytest.approx(expected["f1"])
            assert told["contexts_f1"] == pytest.approx(expected["contexts_f1"])


def test_the_frame_is_tidy_and_valid(result: ProbeResult) -> None:
    schema = json.loads(resources.files("embstore.schemas").joinpath("probe.schema.json").read_text("utf-8"))
    jsonschema.validate(result.frame.to_dicts(), schema)
    keys = ["store", "task", "layer", "split", "metric", "item", "seed"]
    assert not result.frame.select(keys).is_duplicated().any()
    summary = result.summary()
    assert set(summary["seeds"]) == {2}
    two = result.frame.filter((pl.col("metric") == "f1") & (pl.col("layer") == 1) & (pl.col("task") == "class"))
    for split, values in two.group_by("split").agg("value").iter_rows():
        row = summary.filter(
            (pl.col("metric") == "f1")
            & (pl.col("layer") == 1)
            & (pl.col("split") == split)
            & (pl.col("task") == "class")
        )
        assert row["value"].item() == pytest.approx(np.mean(values))
        assert row["deviation"].item() == pytest.approx(np.std(values, ddof=1))


def test_predictions_name_every_pair(made: Made, result: ProbeResult) -> None:
    frame = result.predictions(1)
    _, test = made.lists
    pairs = {(word, name) for word, name in zip(made.words, made.classes, strict=True) if word in test and name}
    assert {(word, names[0]) for word, names in frame.select("word", "classes").iter_rows()} == pairs
    right = sum(names[0] in found for names, found in frame.select("classes", "found").iter_rows())
    recall = result.frame.filter(
        (pl.col("metric") == "recall") & (pl.col("layer") == 1) & (pl.col("seed") == 0) & (pl.col("split") == "test")
        & (pl.col("task") == "class")
    )  # fmt: skip
    assert right / len(frame) == pytest.approx(recall["value"].item())


@pytest.mark.parametrize("level", ["context", "type"])
def test_no_word_is_in_two_splits(made: Made, level: str) -> None:
    split = split_words(*made.lists)
    source = Source(made.store.select(), split, label="class", level=level, max_contexts=None, seed=0)
    parts = {name: source.part(name, CLASSES) for name in PARTS}
    held = [set(part.words) for part in parts.values()]
    assert sum(map(len, held)) == len(set().union(*held))
    for name, words in zip(PARTS, held, strict=True):
        assert words == set(split.of(name))


def test_streamed_is_as_in_memory(made: Made) -> None:
    source = Source(
        made.store.select(), split_words(*made.lists), label="class", level="context", max_contexts=None, seed=0
    )
    data = source.part("train", CLASSES).with_control(None)
    rows = data.examples._rows  # type: ignore[attr-defined]
    held = HeldExamples({layer: made.vectors[place, rows] for place, layer in enumerate(made.store.layers)})
    shape = Shape("linear", made.store.layers, (0,), tuple(Output("class", name) for name in CLASSES), 8)
    training = Training(epochs=3, batch_size=16, patience=None)
    one, other = (
        train_bank(shape, each, training=training).bank.weights["weight"]
        for each in (data, replace(data, examples=held))
    )
    assert one.equal(other)


def test_types_are_means_of_all_their_classes(made: Made) -> None:
    split = split_words(*made.lists)
    source = Source(made.store.select(), split, label="class", level="type", max_contexts=None, seed=0)
    part = source.part("test", CLASSES)
    out = np.empty((3, len(part.words), 8), np.float32)
    part.examples.read(np.arange(len(part.words)), made.store.layers, out)
    for place, word in enumerate(part.words):
        rows = [row for row, each in enumerate(made.words) if each == word and made.classes[row]]
        np.testing.assert_allclose(out[:, place], made.vectors[:, rows].mean(1), atol=1e-5)
        assert [name for name, own in zip(CLASSES, part.gold[place], strict=True) if own] == sorted(split.test[word])
    train, test = made.lists
    found = probe_classes(made.store, train=train, test=test, level="type", **FAST)
    assert value(found, 1) > value(found, 0) + 0.1
    assert value(found, 1) == pytest.approx(value(found, 1, "contexts_f1"))


def test_types_need_no_labels_where_lists_have_the_classes(made: Made, tmp_path: Path) -> None:
    bare = make(tmp_path / "bare.zarr", words=90, labelled=False)
    train, test = made.lists
    found = probe_classes(bare.store, train=train, test=test, level="type", **FAST)
    assert value(found, 1) > 0.6
    with pytest.raises(InvalidValueError, match=r"^there is no label column 'class': the store has none$"):
        probe_classes(bare.store, train=train, test=test, **FAST)


def test_contexts_of_a_pair_are_drawn_alike_in_every_store(made: Made, tmp_path: Path) -> None:
    split = split_words(*made.lists)
    other = make(tmp_path / "other.zarr", words=90, width=5, planted=None)
    drawn = []
    for each, seed in ((made, 0), (other, 0), (made, 1)):
        source = Source(each.store.select(), split, label="class", level="context", max_contexts=2, seed=seed)
        part = source.part("train", CLASSES)
        assert part.contexts.max() == 2
        drawn.append(part.examples._rows.tolist())  # type: ignore[attr-defined]
        whole = Source(each.store.select(), split, label="class", level="context", max_contexts=None, seed=seed)
        assert (np.minimum(whole.part("train", CLASSES).contexts, 2) == part.contexts).all()
    assert drawn[0] == drawn[1] != drawn[2]


def test_several_stores_have_each_their_probes(made: Made, tmp_path: Path) -> None:
    other = make(tmp_path / "made.h5", words=90, width=5, planted=4)
    train, test = made.lists
    told: list[tuple[int, int]] = []
    found = probe_classes(
        [made.store, other.store],
        train=train,
        test=test,
        layers=[1, 4],
        progress=lambda *done: told.append(done),
        **FAST,
    )
    assert list(found.banks) == ["made", "made-2"]
    best = found.summary().filter((pl.col("metric") == "f1") & (pl.col("split") == "test")).sort("value")["layer"]
    assert set(best[-2:]) == {1, 4}
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    with pytest.raises(InvalidValueError, match="there are 2 stores: name one of made, made-2"):
        _ = found.bank


def test_probes_are_applied_to_a_store_of_their_width(made: Made, result: ProbeResult, tmp_path: Path) -> None:
    again = apply_probes(result.bank, made.store, splits=PARTS)
    assert again.frame.equals(result.frame)
    narrow = make(tmp_path / "narrow.zarr", words=90, width=5)
    with pytest.raises(InvalidValueError, match=r"narrow\.zarr has vectors of 5 numbers, the probes were trained on 8"):
        apply_probes(result.bank, narrow.store)
    fewer = make(tmp_path / "fewer.zarr", words=90, layers=(0, 1))
    with pytest.raises(InvalidValueError, match=r"fewer\.zarr has no layer 4, which there are probes of"):
        apply_probes(result.bank, fewer.store)
    some = apply_probes(result.bank, fewer.store, layers=[1])
    assert value(some, 1) == value(result, 1)
    with pytest.raises(InvalidValueError, match="there are no probes of layer 2"):
        apply_probes(result.bank, fewer.store, layers=2)
    with pytest.raises(InvalidValueError, match="in the train and in the test words"):
        apply_probes(result.bank, made.store, test=made.lists[0])


def test_what_takes_no_part_is_counted(made: Made) -> None:
    train, test = made.lists
    lonely = {word: ["animal", "food"] for word in train} | {"word 0": ["place"], "nowhere": ["animal"]}
    found = probe_classes(made.store, train=lonely, test=test, **FAST)
    told = " | ".join(found.notes)
    assert "made: classes of fewer than two train words have no probe (1): place" in told
    assert "pairs of no class that is probed" in told
    assert found.bank.classes == ("animal", "food")
    assert "word 0" not in made.lists[1]


def test_bad_input_is_one_line(made: Made) -> None:
    train, test = made.lists
    ask: dict[str, Any] = {"train": train, "test": test, **FAST}
    for changed, message in (
        ({"train": None}, "probes need words to learn from and to be asked"),
        ({"train": {**train, **test}}, "in the train and in the test words"),
        ({"test": {"nowhere": ["animal"]}}, "no test word has a labelled occurrence in .*made"),
        ({"train": {f"no {n}": ["animal"] for n in range(9)}}, "no class has two train words in .*made"),
        ({"label": "upos"}, "there is no label column 'upos': the store has class"),
        ({"level": "sentence"}, "unknown level 'sentence'; allowed are context, type"),
        ({"kind": "deep"}, "unknown kind 'deep' of probe; allowed are linear, mlp"),
        ({"kind": "mlp", "hidden_size": 0}, "hidden_size 0 is not allowed for mlp probes"),
        ({"layers": [2]}, "layer 2 is not stored"),
        ({"classes": ["robot"]}, "class 'robot' has no train word in .*made"),
        ({"splits": []}, "no split is to be scored: give some of train, dev, test"),
        ({"splits": ["tset"]}, "unknown split 'tset'; allowed are train, dev, test"),
        ({"max_contexts": 0}, "max_contexts 0 is not allowed"),
        ({"dev_share": 0.0}, "patience 3 needs dev words"),
        ({"seeds": ()}, "seeds must be one or more"),
        ({"seeds": (-1,)}, "seed -1 is not allowed"),
        ({"data_seed": -1}, "data_seed -1 is not allowed"),
        ({"memory": 0}, "memory 0 is not allowed"),
    ):
        with pytest.raises(InvalidValueError, match=message) as refused:
            probe_classes(made.store, **ask | changed)
        assert "\n" not in str(refused.value)
    with pytest.raises(InvalidValueError, match="no store is given to probe"):
        probe_classes([], **ask)


@pytest.mark.filterwarnings("ignore::embstore.errors.UnfinishedStoreWarning")
def test_rows_not_yet_written_are_an_error(tmp_path: Path) -> None:
    made = make_store(tmp_path / "part.zarr", leave_out=(1,))
    words = {"train": {"bank": [], "river": [], "the": []}, "test": {"suit": []}}
    with pytest.raises(MissingRowsError):
        probe_classes(made.store, label="upos", dev_share=0.34, epochs=1, **words)


def test_examples_that_are_not_finite_are_not_scored(made: Made, result: ProbeResult) -> None:
    part = Source(
        made.store.select(), split_words(*made.lists), label="class", level="type", max_contexts=None, seed=0
    ).part("test", CLASSES)
    vectors = {layer: np.zeros((len(part.words), 8), np.float32) for layer in made.store.layers}
    vectors[4][3, 1] = np.nan
    with pytest.raises(NonFiniteError, match="examples of layer 4 hold values that are not finite"):
        decided(result.bank.bank, replace(part, examples=HeldExamples(vectors)))
