"""The study of Liu et al. 2019 in small: its tables are those of its probes, and hand-made scores give known tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
import embstore_studies as studies
from embstore.corpus import EdgeSentence, EdgeTarget, derived_edges
from embstore.errors import InputError
from embstore.probes import EdgeProbe, ProbeResult, Training, summary
from embstore_studies import Liu2019, StudyResult
from embstore_studies.liu2019 import report
from embstore_studies.liu2019.study import found_words, sentence_rows
from embstore_studies.liu2019.tasks import GENERALISATION, ORDER_TASKS, load_tasks
from tests.probes.edge_store import make, write_edges

SETTINGS = Liu2019(n_sentences=12, epochs=2, seeds=(0, 1), resamples=50)
FIRST = (("the", "DET", 2, "det"), ("cat", "NOUN", 4, "nsubj"), ("is", "AUX", 4, "cop"), ("warm", "ADJ", 0, "root"))
LATER = (
    ("sea", "NOUN", 2, "compound"), ("people", "NOUN", 7, "nsubj"), ("who", "PRON", 5, "nsubj"),
    ("can", "AUX", 5, "aux"), ("flow", "VERB", 2, "acl"), ("will", "AUX", 7, "aux"), ("sat", "VERB", 0, "root"),
)  # fmt: skip


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of two kinds, the second with another noun and auxiliary before those of the main clause."""
    folder = tmp_path_factory.mktemp("treebank")
    for split, count in (("train", 20), ("dev", 6), ("test", 6)):
        text = ""
        for number in range(count):
            words = [
                *(LATER if number % 3 == 2 else FIRST),
                *(("hill", "X", 1, "dep"),) * 6,
                (f"{split}{number}", "X", 1, "dep"),
            ]
            text += (
                "".join(f"{n}\t{w}\t_\t{t}\t_\t_\t{h}\t{r}\t_\t_\n" for n, (w, t, h, r) in enumerate(words, 1)) + "\n"
            )
        (folder / f"made-{split}.conllu").write_text(text)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one task, without test."""
    path = tmp_path_factory.mktemp("tasks")
    (path / "pos").mkdir()
    for split, count in (("train", 16), ("dev", 8)):
        words = ("the", "cat", "sat", "mat")
        held = [
            EdgeSentence([*words, f"{split}{n}"], [EdgeTarget((p, p + 1), None, (w[0],)) for p, w in enumerate(words)])
            for n in range(count)
        ]
        write_edges(path / "pos" / f"{split}.jsonl", held)
    return path


@pytest.fixture(scope="module")
def study(treebank: Path, folder: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    out = tmp_path_factory.mktemp("study")
    return studies.reproduce(
        replace(SETTINGS, treebank=treebank), folder, model={"tiny": model}, out=out, progress=False
    )


def rows_of(study: StudyResult, title: str) -> dict[str, dict[str, Any]]:
    (found,) = (section for section in study.sections if section.title.startswith(title))
    return {str(next(iter(row.values()))): dict(row) for row in found.rows}


def test_sentences_whose_element_is_not_the_first_are_never_trained_on(treebank: Path, folder: Path) -> None:
    tasks = load_tasks(replace(SETTINGS, treebank=treebank, n_sentences=None), folder)
    assert list(tasks) == ["pos", "upos", "arcs", "dependencies", *ORDER_TASKS]
    for name in ("main-auxiliary", "subject"):
        splits = tasks[name].splits
        assert {split: len(held) for split, held in splits.items()} == {
            "train": 14,
            "dev": 4,
            "test": 4,
            GENERALISATION: 10,
        }
        assert all(each.words[0] == "sea" for each in splits[GENERALISATION])
        assert all(each.words[0] == "the" for split in ("train", "dev", "test") for each in splits[split])
    assert len(load_tasks(replace(SETTINGS, treebank=treebank), folder)["upos"].splits["train"]) == 12
    assert list(load_tasks(replace(SETTINGS, tasks=("subject",)), treebank)) == ["subject"]
    short = [each for each in derived_edges(treebank / "made-train.conllu", "index") if len(each.words) < 10]
    assert not short
    assert {len(each.words) for each in tasks["index"].splits["train"]} == {11, 14}


def test_the_word_with_the_highest_score_is_found(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=30, planted=2, layers=(0, 2))
    probe = EdgeProbe(
        kind="linear",
        seeds=(0, 3),
        training=Training(epochs=2, batch_size=8, learning_rate=0.02, patience=0),
        device="cpu",
    )
    probe.fit(made.store, made.splits["train"], made.splits["dev"])
    sentences = made.splits["test"]
    found = found_words(probe, sentences, ("blue", "red"), 3)
    scores = probe.predict(sentences, seed=3, layerwise=True)
    assert found.shape == (2, 2, len(sentences))
    names, at = probe.fitted_.labels.labels, 0
    for number, sentence in enumerate(sentences):
        for layer in (0, 1):
            for place, label in enumerate(("blue", "red")):
                own = [float(scores[layer, at + n, names.index(label)]) for n in range(len(sentence.targets))]
                right = label in sentence.targets[own.index(max(own))].labels
                assert found[place, layer, number] == right
        at += len(sentence.targets)
    assert 0 < found.mean() < 1


def scores_of(
    values: dict[str, list[float]], *, width: float = 0.01, dev: dict[str, list[float]] | None = None
) -> report.Scores:
    rows: list[dict[str, Any]] = []
    for task, held in values.items():
        for split, of_split in (("test", held), ("dev", (dev or values)[task])):
            for layer, value in enumerate(of_split):
                ends = {"low": value - width, "high": value + width}
                common = {"task": task, "split": split, "seed": 0, "count": 100, "layer": layer, "value": value, **ends}
                order = task in ORDER_TASKS
                rows.append({**common, "metric": "sentence_accuracy" if order else "layer_f1"})
                rows.append({**common, "metric": "f1"})
            best = int(np.argmax(of_split))
            common = {"task": task, "split": split, "seed": 0, "count": 100}
            rows.append({**common, "metric": "best_layer", "value": best, "low": best, "high": best})
            rows.append({**common, "metric": "majority_f1", "value": 0.1})
    frame = ProbeResult.of(rows, store="s").frame.with_columns(model=pl.lit("m"), encoder=pl.lit("trained"))
    return report.Scores({"m": "m"}, tuple(values), frame)


TASKS = {"pos": [0.5, 0.9, 0.7], "arcs": [0.2, 0.4, 0.4], "x": [0.1, 0.3, 0.2]}


def test_a_report_of_scores_without_intervals() -> None:
    scores = scores_of(TASKS)
    empty = scores.frame.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("low", "high"))
    scores = replace(scores, frame=empty)
    row = report.tasks_table(scores, "m", "").rows[0]
    assert [row[name] for name in ("best layer", "its score", "mix")] == ["1", "0.900", "0.700"]
    found = {row["here"]: row["verdict"] for row in report.findings(scores, "m", "").rows}
    assert found["POS: layer 1 of 2, interval not determined"] == "not determined"


def test_a_single_sentence_has_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(settings=SETTINGS)
    probe: Any = SimpleNamespace(fitted=SimpleNamespace(grid=SimpleNamespace(seeds=(0,), layers=(0, 1))))
    for count, has_none in ((1, True), (2, False)):
        monkeypatch.setattr(
            "embstore_studies.liu2019.study.found_words", lambda *_, count=count: np.ones((1, 2, count))
        )
        rows = list(sentence_rows(run, probe, (), "test", ("nsubj",)))
        assert [(row["low"] is None, row["high"] is None) for row in rows] == [(has_none, has_none)] * 2


def test_layers_are_compared_over_tasks_by_normalized_scores() -> None:
    scores = scores_of(TASKS)
    held = report.Transfer.of(scores, "m")
    np.testing.assert_allclose(held.normalized, [[0, 1, 0.5], [0, 1, 1], [0, 1, 0.5]])
    np.testing.assert_allclose(held.ranks, [[3, 1, 2], [3, 1.5, 1.5], [3, 1, 2]])
    rows = list(report.transfer_table(scores, "m", "").rows)
    assert [row["mean score"] for row in rows] == ["0.267", "0.533", "0.433"]
    assert [row["mean rank"] for row in rows] == ["3.0", "1.2", "1.8"]
    assert [row["highest in"] for row in rows] == [0, 3, 1]
    assert rows[1]["less layer 1"] == "best on dev"
    half = 4.30 * np.std([0.5, 0, 0.5], ddof=1) / np.sqrt(3)  # of Student's t with two degrees of freedom
    assert rows[2]["less layer 1"] == f"-0.33 [{-1 / 3 - half:.2f}, {-1 / 3 + half:.2f}]"
    assert report.findings(scores, "m", "").rows[0]["verdict"] == "not determined"
    held = report.Transfer.of(scores_of(TASKS | {"arcs": [0.2, 0.4, 0.3]}), "m")
    assert report.middle_finding(held) == ("layer 1 of 2 is best on dev, over 3 tasks; all others are lower", "holds")
    falling = {task: values[::-1] for task, values in (TASKS | {"pos": [0.1, 0.2, 0.9]}).items()}
    assert report.middle_finding(report.Transfer.of(scores_of(falling | {"arcs": [0.4, 0.3, 0.2]}), "m"))[1] != "holds"
    last = report.Transfer.of(scores_of({task: [0.1, 0.2, 0.9] for task in TASKS}), "m")
    assert report.middle_finding(last)[1] == "does not hold"
    two = report.Transfer.of(scores_of({"pos": [0.1, 0.2, 0.1], "x": [0.1, 0.2, 0.1]}), "m")
    assert report.middle_finding(two)[1] == "not determined: 3 tasks are needed"


def test_the_best_layer_is_that_of_dev() -> None:
    scores = scores_of(TASKS, dev=TASKS | {"pos": [0.5, 0.6, 0.8]})
    row = report.tasks_table(scores, "m", "").rows[0]
    assert (row["best layer"], row["its score"]) == ("2 [1.0, 1.0]", "0.700 [0.690, 0.710]")
    assert row["mix"] == "0.700 [0.690, 0.710]"
    rising = scores_of(TASKS, dev={task: [0.1, 0.2, 0.3] for task in TASKS})
    assert [row["less layer 2"] for row in report.transfer_table(rising, "m", "").rows][2] == "best on dev"
    pos = report.findings(scores, "m", "").rows[1]
    assert (pos["here"], pos["verdict"]) == ("POS: layer 2 of 2, interval 1.0 to 1.0", "holds")


@pytest.mark.parametrize(
    ("values", "width", "verdict"),
    [
        ([0.9, 0.8, 0.4], 0.05, "holds"),
        ([0.4, 0.5, 0.9], 0.05, "does not hold"),
        ([0.9, 0.8, 0.7], 0.2, "not determined"),
    ],
)
def test_the_order_of_words_is_compared_by_intervals(values: list[float], width: float, verdict: str) -> None:
    row = report.findings(scores_of({"index": values}, width=width), "m", "").rows[0]
    assert row["verdict"] == verdict
    if verdict == "holds":
        assert (
            row["here"]
            == "0.900 [0.850, 0.950] at layer 0, 0.400 [0.350, 0.450] at layer 2; falls most from layer 1 to 2 (-0.400)"
        )


@pytest.mark.slow
def test_scores_are_those_of_the_probes(study: StudyResult, treebank: Path, folder: Path) -> None:
    tasks = load_tasks(replace(SETTINGS, treebank=treebank), folder)
    (path,) = (each for each in (study.folder / "stores").glob("tiny-12-0.zarr"))
    store = es.open(path)
    assert store.metadata.extraction["pooling"] == "last"
    texts = {" ".join(each.words) for task in tasks.values() for each in task}
    assert sorted(store.index.texts) == sorted(texts)
    for name in ("pos", "arcs", "subject"):
        splits = tasks[name].splits
        probe = SETTINGS.probe("cpu").fit(store, splits["train"], splits["dev"], name=name)
        held = {split: found for split, found in splits.items() if split != "train"}
        wanted = probe.score(held, resamples=50, name=store.path.stem).frame
        found = study.frames["scores"].filter(encoder="trained", task=name).drop("model", "encoder")
        assert found.filter(pl.col("metric") != "sentence_accuracy").equals(wanted)
        if name == "subject":
            right = [found_words(probe, splits[GENERALISATION], ["subject"], seed)[0].mean(1) for seed in (0, 1)]
            own = summary(found.filter(metric="sentence_accuracy", split=GENERALISATION))
            np.testing.assert_allclose(own["value"], np.mean(right, 0))
            assert (own["low"] <= own["value"]).all()
            assert (own["value"] <= own["high"]).all()
            row = rows_of(study, "Linear order")["subject, not the first"]
            assert row["sentences"] == len(splits[GENERALISATION]) == 10
            assert [row[str(layer)] for layer in store.layers] == [f"{value:.3f}" for value in own["value"]]
    table = rows_of(study, "Linear probes by layer")
    assert set(table) == {"POS", "POS (UD)", "Arcs", "Deps."}
    means = summary(study.frames["scores"].filter(encoder="untrained", task="arcs").drop("model", "encoder"))
    random = means.filter(metric="f1", split="test", layer=store.layers[-1])["value"].item()
    assert table["Arcs"]["random weights"] == f"{random:.3f}"


@pytest.mark.slow
def test_the_report_has_its_figures_and_the_same_call_does_nothing_twice(
    study: StudyResult, treebank: Path, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = study.report.read_text()
    for said in ("Liu et al. 2019", "Transferability of layers", "What of the papers holds here", "not the first"):
        assert said in text
    assert "the expected layer" not in text
    for name in ("layers.png", "transfer.png", "order.png"):
        assert (study.folder / "figures" / name).read_bytes().startswith(b"\x89PNG")
    import embstore_studies.liu2019.study as probing

    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError("probed again")

    monkeypatch.setattr(probing.EdgeProbe, "fit", refuse)
    settings = replace(SETTINGS, treebank=treebank)
    again = studies.reproduce(settings, folder, model={"tiny": model}, out=study.folder, progress=False)
    assert again.frames["scores"].equals(study.frames["scores"])
    assert again.notes == study.notes


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing", "is not a folder"),
        ("empty", "has no folder of a task with train.jsonl and no treebank"),
        ("unknown", "there is no task 'verbs': choose pos"),
        ("no treebank", "there is no task 'upos': choose pos"),
        ("no dev", "has no dev.jsonl"),
        ("headless", r"-dev.conllu:1: the head (column 7) of 'the' is '_'"),
        ("split", "has 0 files *test*.conllu"),
        ("no auxiliary", "no root has an auxiliary"),
        ("no model", "none"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    case: str, message: str, tmp_path: Path, treebank: Path, folder: Path
) -> None:
    data = {"missing": tmp_path / "gone", "unknown": folder, "no treebank": folder, "no model": folder}.get(
        case, tmp_path
    )
    tasks = {"unknown": ("verbs",), "no treebank": ("upos",), "no auxiliary": ("main-auxiliary",)}.get(case, ())
    if case == "no dev":
        (tmp_path / "pos").mkdir()
        (tmp_path / "pos" / "train.jsonl").write_text((folder / "pos" / "train.jsonl").read_text())
    if case in ("headless", "split", "no auxiliary"):
        for path in treebank.glob("*.conllu"):
            text = path.read_text().replace("AUX", "VERB" if case == "no auxiliary" else "AUX")
            if case == "headless" and "dev" in path.name:
                text = text.replace("\t2\tdet\t", "\t_\tdet\t")
            if not (case == "split" and "test" in path.name):
                (tmp_path / path.name).write_text(text)
    with pytest.raises(InputError) as refused:
        studies.reproduce(Liu2019(tasks=tasks), data, model={"tiny": "./none"}, out=tmp_path / "out")
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()
