"""Row probes against scikit-learn, means by hand, and splits of which every row is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

import embstore as es
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.intervals import exact
from embstore.probes import RowProbe, Training, load
from embstore.probes.rows.examples import LabelledRows
from embstore.probes.rows.scores import Scores
from embstore.store import Labels, Store, Strings, Text
from embstore.store.index import Field
from tests.models import tiny
from tests.probes.class_store import write_rows

NAMES = ("high", "low", "mid")
FAST = Training(epochs=3, patience=2, learning_rate=0.03)


def make(
    path: Path, *, documents: int = 60, rows: int = 6, classes: int = 3, copies: int = 0, by_document: float = 0
) -> Store:
    """Write documents of two sentences; a noisy label can be read in layer 1, of each row or (if not 0) `by_document`.

    Label columns `mood`, `part` (by document) and `mixed` (by row); the field `fold` counts the documents modulo 5.
    The last `copies` documents have the text of the first ones.
    """
    rng = np.random.default_rng(classes)
    n = documents * rows
    document, vectors = np.repeat(np.arange(documents), rows), rng.normal(size=(2, n, 5))
    codes = rng.integers(classes, size=n)
    codes = codes[document * rows] if by_document else codes
    vectors[1] += (by_document or 0.9) * np.eye(classes, 5)[codes]
    texts = [["text", f"{each // 2 % (documents - copies)}", "ab"[each % 2]] for each in range(2 * documents)]
    folds = np.arange(documents, dtype=np.int32) % 5
    columns = {
        "type": (np.arange(n) % 7).astype(np.int32),
        "sentence": 2 * document + (np.arange(n) % rows >= rows // 2),
        "position": (np.arange(n) % 3).astype(np.int32),
        "words": Strings.of([f"word{each}" for each in range(7)]),
        "text": Text.of_words(texts),
        "document": np.repeat(np.arange(documents), 2),
        "fields": {"fold": Field(folds, Strings.of(map(str, range(5))), "int")},
        "labels": {
            "mood": Labels(codes.astype(np.int32), Strings.of(NAMES)),
            "part": Labels(np.array([0, 0, 0, 1, 2], np.int32)[document % 5], Strings.of(["train", "dev", "test"])),
            "mixed": Labels(np.where(np.arange(n) % 4, 0, 2).astype(np.int32), Strings.of(["train", "dev", "test"])),
        },
    }
    return write_rows(path, vectors, (0, 1), **columns)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make(tmp_path_factory.mktemp("rows") / "rows.zarr")


def parts(store: Store, **settings: Any) -> tuple[pl.DataFrame, RowProbe]:
    """Return the table of a store with the split that a probe gives each row, None for none."""
    probe = RowProbe(**{"label": "mood", "training": FAST, **settings}).fit(store)
    rows = LabelledRows(store.select(), probe.label, probe.split, probe.fitted_.units)
    names = [("train", "dev", "test")[place] if place >= 0 else None for place in rows.places.tolist()]
    return store.table().with_columns(pl.Series("drawn", names, pl.String)), probe


def metric(result: Any, name: str, layer: int | None = 1, split: str = "test", task: str = "mood") -> dict[str, Any]:
    own = {"metric": name, "split": split, "task": task}
    (row,) = [row for row in result.frame.to_dicts() if row["layer"] == layer and own.items() <= row.items()]
    return row


@pytest.mark.parametrize("classes", [2, 3])
def test_converged_probes_are_those_of_scikit_learn(tmp_path: Path, classes: int) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.multiclass import OneVsRestClassifier

    store = make(tmp_path / "s.zarr", documents=200, classes=classes)
    training = Training(epochs=40, patience=0)
    probe = RowProbe(label="mood", split="part", training=training, control="none").fit(store)
    table, vectors = store.table(), store.vectors(layers=1)
    train, test = (np.flatnonzero(table["part"] == split) for split in ("train", "test"))
    gold = table["mood"].cast(pl.String).to_numpy()
    other = OneVsRestClassifier(LogisticRegression(C=1e6)).fit(vectors[train], gold[train])
    assert probe.classes_ == tuple(sorted(NAMES[:classes])) == tuple(other.classes_)
    said = probe.predict(layers=1)["predicted"].to_numpy()
    assert (said == other.predict(vectors)).mean() > 0.985
    result = probe.score()
    assert metric(result, "accuracy")["value"] == pytest.approx((said == gold)[test].mean())
    assert metric(result, "accuracy")["value"] == pytest.approx(other.score(vectors[test], gold[test]), abs=0.015)
    assert metric(result, "macro_f1")["value"] == pytest.approx(f1_score(gold[test], said[test], average="macro"))
    own = f1_score(gold[test], said[test], average=None)
    assert result.frame.filter(metric="class_f1", layer=1, split="test")["value"].to_list() == pytest.approx(
        own.tolist()
    )
    assert not probe.fitted_.trained.capped.any()
    directions = np.stack([each.coef_[0] for each in other.estimators_])
    np.testing.assert_allclose(probe.directions_[1], directions, atol=0.1)


@pytest.mark.parametrize("classes", [2, 3])
def test_differences_are_those_of_means(tmp_path: Path, classes: int) -> None:
    store = make(tmp_path / "s.zarr", classes=classes)
    table, probe = parts(store, kind="difference", split="part")
    train = (table["part"] == "train").to_numpy()
    codes = np.array([probe.classes_.index(name) for name in table["mood"]])
    for layer, vectors in zip(store.layers, store.vectors().astype(np.float64), strict=True):
        means, rest = (
            np.stack([vectors[train & ((codes == code) == own)].mean(0) for code in range(classes)])
            for own in (True, False)
        )
        weights, values = means - rest, vectors @ (means - rest).T - ((means**2 - rest**2) / 2).sum(1)
        shown = probe.project(layers=layer, label="low")[f"layer_{layer}"].to_numpy()
        np.testing.assert_allclose(shown, values[:, probe.classes_.index("low")], atol=1e-5)
        np.testing.assert_allclose(probe.direction(layer, label="low"), weights[probe.classes_.index("low")], atol=1e-6)
        right = (values.argmax(1) == codes)[(table["part"] == "test").to_numpy()]
        assert metric(probe.score(), "accuracy", layer)["value"] == pytest.approx(right.mean())
    assert probe.directions_.shape == (2, classes if classes > 2 else 1, 5)
    with pytest.raises(InvalidValueError, match="label 'good' is not one of the probe: choose high, low"):
        probe.direction(1, label="good")
    if classes == 2:
        np.testing.assert_array_equal(probe.direction(1, label="high"), -probe.direction(1))
        near = es.neighbors(store, probe.direction(1), metric="ip", layers=1, k=9)
        best = probe.project(layers=1).sort("layer_1", descending=True)
        assert near["occurrence"].to_list() == best["occurrence"][:9].to_list()
        np.testing.assert_allclose(near["score"], best["layer_1"][:9] - probe.intercepts_[1, 0], atol=1e-5)


def test_documents_and_words_are_on_one_side(tmp_path: Path) -> None:
    store = make(tmp_path / "s.zarr", copies=20)
    table, probe = parts(store)
    assert table.group_by("document").agg(pl.col("drawn").n_unique())["drawn"].to_list() == [1] * 60
    counts = table.unique("document")["drawn"].value_counts()
    texts = table.sort("occurrence").group_by("document", maintain_order=True).agg(pl.col("text").str.join())
    drawn = table.unique("document").join(texts, on="document").group_by("text_right").agg(pl.col("drawn").n_unique())
    assert (len(drawn), drawn["drawn"].to_list()) == (40, [1] * 40), "equal texts are together"
    of_texts = {name: len(keys) for name, keys in probe.fitted_.units._asdict().items()}
    assert of_texts == {"train": 26, "dev": 6}
    assert sum(counts["count"]) == 60
    again, _ = parts(store)
    assert again.equals(table)
    assert not parts(store, seeds=1)[0].equals(table)
    table, _ = parts(store, split="word", kind="difference", test_share=0.4)
    assert table.group_by("word").agg(pl.col("drawn").n_unique())["drawn"].to_list() == [1] * 7
    assert set(table["drawn"]) == {"train", "test"}


def test_a_column_or_conditions_say_the_split(store: Store) -> None:
    table, probe = parts(store, split="part")
    assert table["drawn"].to_list() == table["part"].to_list()
    table, _ = parts(store, split={"train": "fold < 3", "test": "fold = 4"})
    folds = {name: set(table.filter(drawn=name)["fold"]) for name in ("train", "dev", "test")}
    assert folds == {"train": {0, 1, 2}, "dev": {0, 1, 2}, "test": {4}}, "dev documents are drawn from train"
    dev = table.filter(drawn="dev")["document"].unique()
    assert len(dev) == 7
    assert not set(dev) & set(table.filter(drawn="train")["document"])
    assert table.filter(pl.col("drawn").is_null())["fold"].unique().to_list() == [3]
    assert "72 labelled rows are in no split and left out" in " ".join(_.fitted_.notes)
    part = store.select(where="fold <> 4 or position = 0")
    assert metric(probe.score(part), "accuracy")["count"] == len(part) - len(store.select(where="fold < 4"))


def test_other_documents_are_of_test(store: Store, tmp_path: Path) -> None:
    _, probe = parts(store)
    probe.save(tmp_path / "probe")
    loaded, more = load(tmp_path / "probe"), make(tmp_path / "more.zarr", documents=80)
    first, second = (loaded.score(each) for each in (store, more))  # type: ignore[arg-type]
    count = metric(first, "accuracy")["count"]
    assert (count, metric(second, "accuracy")["count"]) == (12 * 6, count + 20 * 6)
    assert metric(probe.score(), "accuracy") == metric(first, "accuracy")


def test_splits_that_tell_nothing_are_refused(store: Store, tmp_path: Path) -> None:
    whole = make(tmp_path / "d.zarr", by_document=1)
    few = store.select(where="document < 3")
    bad: list[tuple[Any, dict[str, Any], str]] = [
        (store, {"label": "moods"}, "there is no label column 'moods': the store has mixed, mood, part, fold"),
        (store.select(labels={"mood": "low"}), {}, "1 labels are in train: give two or more, or change the split"),
        (store, {"split": "fold"}, "the column 'fold' has the value '0': a split is train, dev or test"),
        (store, {"split": {"train": "fold < 4", "tset": "fold = 4"}}, "unknown split 'tset'; allowed are train, dev"),
        (store, {"split": {"train": "fold < 4", "test": "fold = 3"}}, "72 rows are in two splits by these conditions"),
        (store, {"split": {"train": "mood <> 'low'", "test": "mood = 'low'"}}, "1 labels of dev or test are not in"),
        (whole, {"split": "mixed"}, r"\d+ of \d+ test documents have train rows too, each with one label: give split"),
        (few, {"test_share": 0.1}, "a share of 0.1 of 3 documents or words leaves none for test or train"),
        (few, {"test_share": 0.4, "kind": "difference"}, "test has 1 document or word only: give more of them"),
        (store, {"dev_share": 0}, "a share of 0 of 48 documents or words leaves none for dev or train"),
    ]
    for data, settings, message in bad:
        with pytest.raises(InvalidValueError, match=message) as caught:
            RowProbe(**{"label": "mood", **settings}).fit(data)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidValueError, match="this RowProbe is not fitted: call fit first"):
        _ = RowProbe(label="mood").directions_
    probe = RowProbe(label="mood", split="mixed", kind="difference").fit(store)
    assert "60 of 60 test documents have train rows too, or the text" in " ".join(probe.fitted_.notes)
    copied = RowProbe(label="mood", split="part", kind="difference").fit(
        make(tmp_path / "c.zarr", by_document=1, copies=3)
    )
    assert "1 of 12 test documents have train rows too, or the text of a train" in " ".join(copied.fitted_.notes)
    with pytest.raises(InvalidValueError, match=r"no labelled row of .* is in dev: give other splits"):
        probe.score(splits=["dev"])


def test_labels_without_information_are_not_found(tmp_path: Path) -> None:
    """A control task of documents is learned on train, and not found on test, as are shuffled labels."""
    store = make(tmp_path / "d.zarr", documents=150, by_document=2.5)
    _, probe = parts(store, control="auto", training=Training(epochs=30, patience=5, learning_rate=0.03))
    assert probe.fitted_.control_unit == "document"
    result = probe.score(splits=("train", "test"))
    accuracy, control, gained = (
        metric(result, name, task=task)
        for name, task in (("accuracy", "mood"), ("accuracy", "control"), ("selectivity", "mood"))
    )
    assert gained["value"] == pytest.approx(accuracy["value"] - control["value"])
    assert gained["low"] > 0.05
    assert control["low"] < 1 / 3 < control["high"]
    majority = metric(result, "majority_accuracy", None)
    mood = store.table()["mood"].cast(pl.String)
    assert majority["seed"] is None
    assert majority["low"] < (mood == probe.fitted_.majority).mean() < majority["high"]
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(mood.to_numpy()[::6]).repeat(6)
    other = RowProbe(label="none", training=FAST).fit(store.with_labels("none", shuffled)).score()
    row = metric(other, "accuracy", task="none")
    assert row["low"] < 0.45
    assert metric(other, "selectivity", task="none")["low"] < 0
    assert (
        RowProbe(label="mood", kind="difference", split="part").fit(make(tmp_path / "w.zarr")).fitted_.control_unit
        == "word"
    )


def test_intervals_are_over_documents() -> None:
    rng = np.random.default_rng(0)
    keys, gold = np.repeat(np.arange(40), 12), rng.integers(3, size=480)
    is_good = np.repeat(rng.random(40) < 0.7, 12)
    said = np.where(is_good, gold, rng.integers(3, size=480)).astype(np.int32)
    scores = Scores(gold, keys, ("a", "b", "c"))
    share, f1 = next(scores.share((said == gold)[None])), next(scores.f1(said[None]))
    drawn = []
    for _ in range(800):
        some = np.concatenate([np.flatnonzero(keys == each) for each in rng.integers(40, size=40)])
        drawn.append(
            (
                np.mean(said[some] == gold[some]),
                next(Scores(gold[some], keys[some], ("a", "b", "c")).f1(said[some][None]))["value"],
            )
        )
    for row, deviation in zip((share, f1), np.std(drawn, 0), strict=True):
        assert row["high"] - row["low"] == pytest.approx(4.04 * deviation, rel=0.15)
    all_right = next(Scores(gold[:72], keys[:72], ("a", "b", "c")).share(np.ones((1, 72), bool)))
    assert (all_right["low"], all_right["high"]) == exact(np.ones(6), np.ones(6)), "six documents, not 72 rows"
    few = Scores(gold[:48], keys[:48], ("a", "b", "c"))
    for row in (next(few.share((said == gold)[None, :48])), next(few.f1(said[None, :48]))):
        assert (row["low"], row["high"]) == (None, None)
    one_wrong = gold.copy().astype(np.int32)
    one_wrong[0] = (gold[0] + 1) % 3
    assert next(scores.f1(one_wrong[None]))["low"] is None, "one document has an error"


def test_vectors_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    vectors, table = np.ones((1, 40, 3), np.float32), {"text": [f"text {n}" for n in range(40)], "y": ["a", "b"] * 20}
    vectors[0, 7] = np.nan
    store = write_rows(
        tmp_path / "n.zarr",
        vectors,
        (4,),
        type=np.zeros(40, np.int32),
        sentence=np.arange(40),
        position=np.zeros(40, np.int32),
        words=Strings.of(["text"]),
        text=Text.of_words([text.split() for text in table["text"]]),
    ).with_labels("y", table["y"])
    with pytest.raises(NonFiniteError, match="examples of layer 4 contain NaN or infinity"):
        RowProbe(label="y", kind="difference", test_share=0.1, seeds=1).fit(store)


def test_a_saved_direction_steers_a_model(tmp_path: Path) -> None:
    """Added to the residual stream, the difference of the states of two words makes the first more likely."""
    folder = tiny.save("gpt2", tmp_path / "gpt2")
    rows = [{"text": f"the {word} {number}", "kind": word} for number in range(30) for word in ("bank", "cat")]
    es.extract(es.plan(rows, model=folder, calibrate=False), tmp_path / "s.zarr")
    store = es.open(tmp_path / "s.zarr").select(words=["bank", "cat"])
    probe = RowProbe(label="kind", kind="difference").fit(store)
    probe.save(tmp_path / "probe.safetensors")
    saved = load_file(tmp_path / "probe.safetensors")
    direction = saved["directions"][saved["layers"].tolist().index(2), 0]
    assert probe.classes_ == ("bank", "cat")
    np.testing.assert_array_equal(direction, probe.direction(2))
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer("the old")["input_ids"]])
    bank, cat = (tokenizer(f" {word}")["input_ids"][-1] for word in ("bank", "cat"))
    gains = []
    for strength in (0, 4, -4):
        hook = model.transformer.h[2].register_forward_pre_hook(
            lambda block, given, strength=strength: (given[0] + strength * direction, *given[1:])
        )
        logits = model(ids).logits[0, -1].detach()
        gains.append(float(logits[cat] - logits[bank]))
        hook.remove()
    assert gains[2] < gains[0] < gains[1]
