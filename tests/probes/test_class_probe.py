"""Class probes find a signal where it is, and nowhere else; splits are by word, disjoint and complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError
from embstore.probes import ClassProbe, ProbeResult, Training, split_words
from embstore.probes.classes.bank import Output, Shape
from embstore.probes.classes.examples import ArrayExamples, ClassExamples
from embstore.probes.classes.scores import Decisions, decide, scored
from embstore.probes.classes.training import train_bank
from embstore.probes.splits import SPLITS, WordSplit
from embstore.probes.training import Schedule
from tests.json_schemas import validator_of
from tests.probes.class_store import CLASSES, Made, make
from tests.probes.oracle import f1, logits_of_bank, rule_of_half
from tests.store_making import make_store

FAST = Training(epochs=12, batch_size=16, learning_rate=0.02)


@pytest.fixture(scope="module", params=["zarr", pytest.param("h5", marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("stores") / f"made.{request.param}", words=90)


@pytest.fixture(scope="module")
def probe(made: Made) -> ClassProbe:
    return fit(made, control=True, seeds=(0, 1))


@pytest.fixture(scope="module")
def result(probe: ClassProbe) -> ProbeResult:
    return probe.score(splits=SPLITS)


def fit(made: Made, **settings: Any) -> ClassProbe:
    return ClassProbe(**{"training": FAST, **settings}).fit(made.store, split_words(*made.lists))


def examples(made: Made, level: str = "context", max_contexts: int | None = None, seed: int = 0) -> ClassExamples:
    options: dict[str, Any] = {"level": level, "max_contexts": max_contexts, "seed": seed}
    return ClassExamples(made.store.select(), split_words(*made.lists), "class", **options)


def rows(result: ProbeResult, metric: str, *, task: str = "class", split: str = "test") -> pl.DataFrame:
    return result.summary().filter(metric=metric, task=task, split=split, item="")


def value(result: ProbeResult, layer: int, metric: str = "f1", *, task: str = "class") -> float:
    return float(rows(result, metric, task=task).filter(layer=layer)["value"].item())


def test_a_planted_signal_is_found_in_its_layer(result: ProbeResult) -> None:
    assert value(result, 1) > 0.8
    assert max(value(result, 0), value(result, 4)) < 0.6
    assert value(result, 1, task="control") < 0.6
    assert value(result, 1, "selectivity") == pytest.approx(value(result, 1) - value(result, 1, task="control"))


def test_scores_are_those_of_the_logits_counted_slowly(made: Made, probe: ClassProbe, result: ProbeResult) -> None:
    _, test = made.lists
    chosen = [
        row for row, (word, name) in enumerate(zip(made.words, made.classes, strict=True)) if name and word in test
    ]
    logits = logits_of_bank(probe.fitted_.bank, made.vectors[:, chosen])
    words, own = [made.words[row] for row in chosen], [made.classes[row] for row in chosen]
    for place, layer in enumerate(made.store.layers):
        for at, seed in enumerate((0, 1)):
            yes = [dict(zip(CLASSES, column.tolist(), strict=True)) for column in (logits[place, at, :3] > 0).T]
            expected, _ = rule_of_half(yes, words, own, sorted(CLASSES))
            mine = result.frame.filter(layer=layer, seed=seed, task="class", split="test", item="")
            scores = dict(mine.select("metric", "value").iter_rows())
            assert scores["f1"] == pytest.approx(expected["f1"])
            assert scores["contexts_f1"] == pytest.approx(expected["contexts_f1"])


def test_the_frame_is_tidy_and_valid(result: ProbeResult, tmp_path: Path) -> None:
    validator_of("probe_output").validate(result.frame.to_dicts())
    assert not result.frame.select("store", "task", "layer", "split", "metric", "item", "seed").is_duplicated().any()
    assert set(result.summary().filter(metric="f1", item="")["seeds"]) == {2}
    two = result.frame.filter(metric="f1", layer=1, task="class")
    for split, values in two.group_by("split").agg("value").iter_rows():
        row = rows(result, "f1", split=split).filter(layer=1)
        assert row["value"].item() == pytest.approx(np.mean(values))
        assert row["deviation"].item() == pytest.approx(np.std(values, ddof=1))
    for suffix, read in (("csv", pl.read_csv), ("parquet", pl.read_parquet), ("json", pl.read_json)):
        result.save(tmp_path / f"scores.{suffix}")
        assert read(tmp_path / f"scores.{suffix}")["value"].to_list() == result.frame["value"].to_list()
    with pytest.raises(InvalidValueError, match=r"no known suffix: choose \.csv, \.parquet, \.json"):
        result.save(tmp_path / "scores.txt")
    assert repr(result).startswith("ProbeResult(")
    assert "<table" in result._repr_html_()
    with pytest.raises(InvalidValueError, match="there are no results to join"):
        ProbeResult.concat([])


def test_a_seed_without_a_value_is_not_counted() -> None:
    row = {"store": "a", "task": "x", "layer": 0, "split": "test", "metric": "f1", "count": 3}
    found = ProbeResult.of([{**row, "value": value, "seed": seed} for seed, value in enumerate([0.5, None, 0.7])])
    assert found.summary().select("value", "seeds").rows() == [(0.6, 2)]


def test_predictions_name_every_pair(made: Made, probe: ClassProbe, result: ProbeResult) -> None:
    frame = probe.predict(layers=1)
    _, test = made.lists
    pairs = {(word, name) for word, name in zip(made.words, made.classes, strict=True) if word in test and name}
    assert {(word, names[0]) for word, names in frame.select("word", "classes").iter_rows()} == pairs
    right = sum(names[0] in found for names, found in frame.select("classes", "found").iter_rows())
    recall = result.frame.filter(metric="recall", layer=1, seed=0, split="test", task="class")
    assert right / len(frame) == pytest.approx(recall["value"].item())
    assert probe.predict(layers=-1).equals(probe.predict(layers=4))
    by_seed = [logits_of_bank(probe.fitted_.bank, made.vectors)[0, number] for number in (0, 1)]
    assert not np.array_equal(*by_seed)
    with pytest.raises(InvalidValueError, match=r"layers \[0, 1\] are 2 layers: give one"):
        probe.predict(layers=[0, 1])


def test_a_class_needs_two_words_and_one_of_them_in_train(made: Made) -> None:
    """Words of one class in train, dev and test, by how many of each split there are."""
    animals = [word for word in dict.fromkeys(made.words) if "animal" in made.lists[0].get(word, ())]
    foods = [word for word in dict.fromkeys(made.words) if made.lists[0].get(word, ()) == ["food"]]
    own, test = dict.fromkeys(foods[:4], ("food",)), {foods[4]: ["food"]}
    for n_train, n_dev, fits in ((2, 0, True), (1, 1, True), (1, 0, False), (0, 2, False), (0, 0, None)):
        dev = dict.fromkeys(animals[:n_dev], ("animal",)) | {foods[5]: ("food",)}
        train = own | dict.fromkeys(animals[n_dev : n_dev + n_train], ("animal",))
        fit, unfit = ClassExamples(made.store.select(), split_words(train, test, dev=dev), "class").classes()
        assert (fit, unfit) == ((["animal"] if fits else []) + ["food"], ["animal"] if fits is False else [])


def test_a_logit_of_zero_is_no(made: Made, probe: ClassProbe) -> None:
    bank = probe.fitted_.bank
    zero = replace(bank, weights={name: tensor * 0 for name, tensor in bank.weights.items()})
    assert not decide(zero, examples(made).of("test", CLASSES)).positives.any()


@pytest.mark.parametrize("level", ["context", "type"])
def test_no_word_is_in_two_splits(made: Made, level: str) -> None:
    split = split_words(*made.lists)
    source = examples(made, level)
    words = [set(source.of(name, CLASSES).words) for name in SPLITS]
    assert sum(map(len, words)) == len(set().union(*words))
    for name, own in zip(SPLITS, words, strict=True):
        assert own == set(split.of(name))


def test_examples_of_a_store_train_the_same_probes_as_in_memory(made: Made) -> None:
    data = examples(made).of("train", CLASSES).labelled(None)
    stored = data.examples._rows  # type: ignore[attr-defined]
    memory = ArrayExamples({layer: made.vectors[place, stored] for place, layer in enumerate(made.store.layers)})
    shape = Shape("linear", made.store.layers, (0,), tuple(Output("class", name) for name in CLASSES), 8)
    one, other = (
        train_bank(shape, each, schedule=Schedule(3, 16)).weights["weight"]
        for each in (data, replace(data, examples=memory))
    )
    assert one.equal(other)


def test_types_are_means_with_all_their_classes(made: Made) -> None:
    split, part = split_words(*made.lists), examples(made, "type").of("test", CLASSES)
    out = np.empty((3, len(part.words), 8), np.float32)
    part.examples.read(np.arange(len(part.words)), made.store.layers, out)
    for place, word in enumerate(part.words):
        own = [row for row, each in enumerate(made.words) if each == word and made.classes[row]]
        np.testing.assert_allclose(out[:, place], made.vectors[:, own].mean(1), atol=1e-5)
        assert [name for name, own in zip(CLASSES, part.gold[place], strict=True) if own] == sorted(split.test[word])
    found = fit(made, level="type").score()
    assert value(found, 1) > value(found, 0) + 0.1
    assert value(found, 1) == pytest.approx(value(found, 1, "contexts_f1"))


def test_types_need_no_label_column_if_the_words_have_classes(tmp_path: Path) -> None:
    bare = make(tmp_path / "bare.zarr", words=90, labelled=False)
    assert value(fit(bare, level="type").score(), 1) > 0.6
    with pytest.raises(InvalidValueError, match=r"^there is no label column 'class': the store has none$"):
        fit(bare)


def test_contexts_of_a_pair_are_the_same_in_every_store(made: Made, tmp_path: Path) -> None:
    other = make(tmp_path / "other.zarr", words=90, width=5, planted=None)
    drawn = []
    for each, seed in ((made, 0), (other, 0), (made, 1)):
        part = examples(each, max_contexts=2, seed=seed).of("train", CLASSES)
        assert part.contexts.max() == 2
        drawn.append(part.examples._rows.tolist())  # type: ignore[attr-defined]
        assert (np.minimum(examples(each, seed=seed).of("train", CLASSES).contexts, 2) == part.contexts).all()
    assert drawn[0] == drawn[1] != drawn[2]


def test_probes_score_other_stores_of_their_width(
    made: Made, probe: ClassProbe, result: ProbeResult, tmp_path: Path
) -> None:
    assert probe.score(data=made.store, splits=SPLITS).frame.equals(result.frame)
    assert probe.score(splits=SPLITS, layers=[4]).frame.equals(result.frame.filter(layer=4))
    fewer = make(tmp_path / "fewer.zarr", words=90, layers=(0, 1))
    assert value(probe.score(data=fewer.store, layers=[1]), 1) == value(result, 1)
    narrow = make(tmp_path / "narrow.zarr", words=90, width=5)
    for options, message in (
        ({"data": narrow.store}, r"narrow\.zarr has vectors of 5 numbers, the probes were trained on 8"),
        ({"data": fewer.store}, r"fewer\.zarr has no layer 4, which the probes read"),
        ({"data": fewer.store, "layers": 2}, "layer 2 is not stored"),
        ({"words": made.lists[0]}, "the train and the test words must not overlap"),
        ({"splits": []}, "no split is given to score: give some of train, dev, test"),
        ({"splits": ["tset"]}, "unknown split 'tset'; allowed are train, dev, test"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            probe.score(**options)
    with pytest.raises(InvalidValueError, match="this ClassProbe is not fitted: call fit first"):
        ClassProbe().score()


def test_what_is_left_out_is_noted(made: Made) -> None:
    train, test = made.lists
    lonely = {word: ["animal", "food"] for word in train} | {"word 0": ["place"], "nowhere": ["animal"]}
    probe = ClassProbe(training=FAST).fit(made.store, split_words(lonely, test))
    notes = " | ".join(probe.score().notes)
    assert "made: classes of fewer than two train words have no probe (1): place" in notes
    assert "pairs of a class without probe" in notes
    assert probe.fitted_.classes == ("animal", "food")


def test_a_class_without_dev_words_is_noted(made: Made) -> None:
    """Its dev loss is the same after every epoch, so that its probe keeps the weights of the first."""
    train, test = made.lists
    words = {word: tuple(names) for word, names in train.items() if len(names) == 1}
    animals = [word for word, (name,) in words.items() if name == "animal"]
    dev = {word: names for word, names in list(words.items())[::3] if word not in animals}
    own = {word: names for word, names in words.items() if word not in dev}
    settings = {"training": Training(epochs=3, patience=2), "classes": ["animal", "food"]}
    probe = ClassProbe(**settings).fit(made.store, split_words(own, test, dev=dev))  # type: ignore[arg-type]
    assert "made: classes without a dev word, whose probes keep the weights of the first epoch (1): animal" in (
        probe.score().notes
    )
    both = ClassProbe(**settings).fit(made.store, split_words(train, test))  # type: ignore[arg-type]
    assert not any("without a dev word" in note for note in both.score().notes)


@pytest.mark.filterwarnings("ignore::embstore.errors.UnfinishedStoreWarning")
def test_missing_rows_are_an_error(tmp_path: Path) -> None:
    made = make_store(tmp_path / "part.zarr", leave_out=(1,))
    words = split_words({"bank": [], "river": [], "the": []}, {"suit": []}, dev_share=0.34)
    with pytest.raises(MissingRowsError):
        ClassProbe(label="upos", training=Training(epochs=1)).fit(made.store, words)


def test_examples_that_are_not_finite_are_not_scored(made: Made, probe: ClassProbe) -> None:
    part = examples(made, "type").of("test", CLASSES)
    vectors = {layer: np.zeros((len(part.words), 8), np.float32) for layer in made.store.layers}
    vectors[4][3, 1] = np.nan
    with pytest.raises(NonFiniteError, match="examples of layer 4 contain NaN or infinity"):
        decide(probe.fitted_.bank, replace(part, examples=ArrayExamples(vectors)))


WORDS = st.dictionaries(st.text(min_size=1, max_size=4), st.lists(st.sampled_from("abc"), max_size=3), min_size=2)


@settings(max_examples=20)
@given(WORDS, WORDS, st.floats(0, 0.9), st.integers(0, 100))
def test_splits_are_disjoint_and_complete(
    train: dict[str, list[str]], test: dict[str, list[str]], share: float, seed: int
) -> None:
    train = {word: names for word, names in train.items() if word not in test}
    count = round(share * len(train))
    if not train or (share and not 0 < count < len(train)):
        with pytest.raises(InvalidValueError):
            split_words(train, test, dev_share=share, seed=seed)
        return
    split = split_words(train, test, dev_share=share, seed=seed)
    parts = [set(split.of(part)) for part in SPLITS]
    assert len(parts[0] | parts[1] | parts[2]) == sum(map(len, parts)) == len(train) + len(test)
    assert (parts[0] | parts[1], len(parts[1])) == (set(train), count)
    for part in SPLITS:
        for word, names in split.of(part).items():
            assert names == tuple(sorted(set((train if word in train else test)[word])))
    turned = split_words(dict(reversed(train.items())), test, dev_share=share, seed=seed)
    assert turned.sha256 == split.sha256  # whatever the order of the lists
    assert WordSplit.from_json(split.as_json()) == split


def test_another_seed_draws_other_words() -> None:
    train, test = {f"w{number}": ["a"] for number in range(50)}, {"x": ["a"]}
    drawn = {frozenset(split_words(train, test, seed=seed).dev) for seed in range(5)}
    assert (len(drawn), {len(words) for words in drawn}) == (5, {10})


def test_words_in_two_lists_are_refused_by_name() -> None:
    train = {f"w{number}": ["a"] for number in range(9)}
    with pytest.raises(InvalidValueError) as refused:
        split_words(train, {**{f"w{number}": ["b"] for number in range(5)}, "x": ["a"]}, dev_share=0)
    assert str(refused.value) == (
        "the train and the test words must not overlap: both have 'w0', 'w1', 'w2' and 2 more"
    )
    with pytest.raises(InvalidValueError, match=r"^the train and the dev words must not overlap: both have 'w1'$"):
        split_words(train, {"x": ["a"]}, dev={"w1": ["a"]})
    with pytest.raises(InvalidValueError, match=r"^the dev and the test words must not overlap: both have 'x'$"):
        split_words(train, {"x": ["a"]}, dev={"x": ["a"]})


NAMES = ("a", "b", "c")


def values_of(decisions: Decisions) -> dict[tuple[str, str], float | None]:
    return {(row["metric"], row["item"]): row["value"] for row in scored(decisions, 0, 0, NAMES)}


def decisions(words: list[str], own: list[str], yes: np.ndarray) -> Decisions:
    """Count the decisions on contexts, `yes` bool [n, class]."""
    pairs = sorted(set(zip(words, own, strict=True)))
    named = sorted(set(words))
    positives = np.zeros((len(pairs), 1, 1, len(NAMES)), np.int32)
    contexts = np.zeros(len(pairs), np.int64)
    for word, name, row in zip(words, own, yes, strict=True):
        place = pairs.index((word, name))
        positives[place, 0, 0] += row
        contexts[place] += 1
    gold = np.array([[name == each for each in NAMES] for _, name in pairs])
    return Decisions(positives, contexts, gold, np.array([named.index(word) for word, _ in pairs]))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.floats(0.05, 0.95))
def test_scores_are_those_of_a_slow_count(seed: int, count: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    words = [f"w{number}" for number in rng.integers(0, 9, count)]
    own = [NAMES[number] for number in rng.integers(0, 3, count)]
    yes = rng.random((count, 3)) < share
    made = decisions(words, own, yes)
    rows = list(scored(made, 0, 0, NAMES))
    listed = [dict(zip(NAMES, row.tolist(), strict=True)) for row in yes]
    expected, counts = rule_of_half(listed, words, own, list(NAMES))
    values = values_of(made)
    assert values["f1", ""] == pytest.approx(expected["f1"])
    assert values["contexts_f1", ""] == pytest.approx(expected["contexts_f1"])
    for name in NAMES:
        value = values["class_f1", name]
        assert (0.0 if value is None else value) == pytest.approx(f1(counts[name]))
    assert [row["count"] for row in rows if row["metric"] == "f1"] == [len(made.contexts)]


def test_half_of_the_contexts_is_enough_for_either_kind_of_decision() -> None:
    yes = np.array([[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0]], bool)
    made = decisions(["w"] * 4, ["a"] * 4, yes)
    values = values_of(made)
    assert values["recall", ""] == 1.0  # 2 of 4 on its own class
    assert values["precision", ""] == 0.5  # b: 2 of 4 wrong is right by half; c: 3 of 4 wrong is not


def test_words_of_all_classes_count_each_decision() -> None:
    gold = np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0]], bool)
    yes = np.array([[1, 0, 1], [0, 0, 1], [0, 1, 1]], np.int32)
    values = values_of(Decisions(yes[:, None, None], np.ones(3, np.int64), gold, np.arange(3)))
    assert (values["precision", ""], values["recall", ""]) == (3 / 5, 3 / 4)
    assert values["f1", ""] == values["contexts_f1", ""] == pytest.approx(2 * 3 / (5 + 4))


def test_a_control_task_counts_the_pairs_of_the_task() -> None:
    """With the pairs of a word joined there would be 2 decisions to find, and 3 in the task."""
    made = decisions(["v", "w", "w", "w"], ["a", "a", "b", "b"], np.ones((4, 3), bool))
    control = made.of_classes(slice(0, 3), np.array([[1, 0, 0], [0, 0, 1]], bool))
    assert control.gold.argmax(1).tolist() == [0, 2, 2]
    for task in (made, control):
        [row] = [row for row in scored(task, 0, 0, NAMES) if row["metric"] == "f1"]
        assert (row["count"], row["value"]) == (3, 2 * 3 / (9 + 3))


def test_nothing_to_find_and_nothing_found_has_no_score() -> None:
    gold = np.array([[True, False, False]])
    made = Decisions(np.zeros((1, 1, 1, 3), np.int32), np.ones(1, np.int64), gold, np.zeros(1, np.int64))
    values = values_of(made)
    assert (values["f1", ""], values["precision", ""], values["recall", ""]) == (0.0, None, 0.0)
    assert (values["class_f1", "a"], values["class_f1", "b"]) == (0.0, None)
