"""The study of Tenney et al. 2019 in small: its tables are those of its parts, and the same call does nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import transformers
from typer.testing import CliRunner

import embstore as es
import embstore_studies as studies
from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.errors import InvalidValueError
from embstore.probes import (
    EdgeProbe,
    ProbeResult,
    Training,
    load,
)
from embstore.probes.edges.tasks import Sample
from embstore_studies import StudyResult, Tenney2019
from embstore_studies.tasks import Sentences, find_tasks
from embstore_studies.tenney2019 import report
from embstore_studies.tenney2019.study import rank
from embstore_studies.tenney2019.traces import ambiguous_sentences, decision_reversals, trace
from tests.probes.edge_store import write_edges

WORDS = ("the", "cat", "sat", "mat", "because", "warm", "river", "hill", "money", "people", "need", "sea", "bank")
KINDS = {"cat": "animal", "people": "animal", "river": "place", "hill": "place", "sea": "place", "bank": "place"}
SETTINGS = Tenney2019(
    n_sentences=30, seeds=(0, 1), epochs=2, batch_size=8, hidden_size=8, control=True, resamples=50, traces=2
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks over the same sentences, one of them of pairs of spans."""
    folder = tmp_path_factory.mktemp("tasks")
    generator = np.random.default_rng(0)
    for split, count in (("train", 40), ("dev", 12), ("test", 12)):
        sentences = [[*generator.choice(WORDS, 6).tolist(), f"s{split}{number}"] for number in range(count)]
        made: dict[str, list[EdgeSentence]] = {"pos": [], "entities": [], "links": []}
        for words in sentences:
            single = [EdgeTarget((place, place + 1), None, (word[0],)) for place, word in enumerate(words[:6])]
            made["pos"].append(EdgeSentence(words, single))
            named = [EdgeTarget((place, place + 1), None, (KINDS.get(words[place], "none"),)) for place in (0, 3)]
            made["entities"].append(EdgeSentence(words, named))
            pair = EdgeTarget((0, 2), (3, 5), ("same" if words[0] in KINDS else "other",))
            made["links"].append(EdgeSentence(words, [pair]))
        for task, held in made.items():
            (folder / task).mkdir(exist_ok=True)
            write_edges(folder / task / f"{split}.jsonl", held)
    (folder / "notes").mkdir()
    return folder


@pytest.fixture(scope="module")
def study(data: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return studies.reproduce(
        SETTINGS, data, model={"tiny": model}, out=tmp_path_factory.mktemp("study"), progress=False
    )


def means(study: StudyResult, *, encoder: str = "trained") -> pl.DataFrame:
    return report.Scores(SETTINGS, {"tiny": ""}, (), study.frames["scores"]).means("tiny", encoder=encoder)


def test_tasks_are_found_in_the_papers_order(data: Path) -> None:
    assert list(find_tasks(data, None)) == ["pos", "entities", "links"]
    assert list(find_tasks(data, ["links", "pos"])) == ["pos", "links"]


@pytest.mark.slow
def test_each_sentence_is_extracted_once(study: StudyResult, data: Path) -> None:
    texts = set()
    for split in ("train", "dev", "test"):
        lines = (data / "pos" / f"{split}.jsonl").read_text().splitlines()
        texts |= {json.loads(line)["text"] for line in lines}
    drawn = [" ".join(sentence.words) for sentence in Sentences(find_tasks(data, None), Sample(30, 0))]
    assert len(drawn) == len(set(drawn)) == 30 + 12 + 12  # of train 30 of 40, which all tasks draw alike
    assert set(drawn) <= texts
    for name in ("tiny", "tiny-untrained"):
        store = es.open(study.folder / "stores" / f"{name}-subwords-30-0.zarr")
        assert sorted(store.index.texts) == sorted(drawn)


@pytest.mark.slow
def test_scores_are_those_of_the_probes(study: StudyResult, data: Path) -> None:
    store = es.open(study.folder / "stores" / "tiny-subwords-30-0.zarr")
    files = {split: data / "links" / f"{split}.jsonl" for split in ("train", "dev", "test")}
    probe = EdgeProbe(
        seeds=(0, 1),
        n_sentences=30,
        projection=8,
        hidden_size=8,
        control=True,
        training=Training(epochs=2, batch_size=8),
        device="cpu",
    )
    probe.fit(store, files["train"], files["dev"], name="links")
    wanted = probe.score({"dev": files["dev"], "test": files["test"]}, resamples=50)
    found = (
        study.frames["scores"]
        .filter(pl.col("task") == "links", pl.col("encoder") == "trained")
        .drop("model", "encoder")
    )
    assert found.equals(wanted.frame)


@pytest.mark.slow
def test_the_baseline_has_random_weights_and_the_outer_layers(study: StudyResult, model: Path) -> None:
    random = means(study, encoder="untrained")
    assert random.filter(pl.col("metric") == "f1")["layer"].unique().sort().to_list() == [0, study_layers(study)]
    trained = es.open(study.folder / "stores" / "tiny-subwords-30-0.zarr")
    other = es.open(study.folder / "stores" / "tiny-untrained-subwords-30-0.zarr")
    assert trained.metadata.model["weights_sha256"] != other.metadata.model["weights_sha256"]


@pytest.mark.slow
def test_where_a_task_is_solved_is_that_of_numpy(study: StudyResult) -> None:
    """Equations 2 and 4 of the paper, from the mixing weights and the scores of each layer."""
    frame = study.frames["scores"].filter(encoder="trained")
    for task in ("pos", "entities", "links"):
        for seed in (0, 1):
            own = frame.filter(task=task, seed=seed)
            weights = own.filter(metric="mixing").sort("layer")
            gravity = float(weights["layer"].to_numpy() @ weights["value"].to_numpy())
            assert weights["value"].sum() == pytest.approx(1, abs=1e-6)
            assert own.filter(metric="center_of_gravity")["value"].item() == pytest.approx(gravity, abs=1e-6)
            scores = own.filter(metric="f1", split="test").sort("layer")["value"].to_numpy()
            gains = np.diff(scores)
            found = own.filter(metric="expected_layer", split="test")["value"].to_list()
            if found and found[0] is not None:
                assert found[0] == pytest.approx(np.arange(1, len(scores)) @ gains / gains.sum(), abs=1e-6)
    table = {row["task"]: row for row in study.sections[0].rows}
    assert (table["POS"]["paper"], table["Entities"]["paper"]) == ("P(0) 0.890", "")
    (layers,) = (section for section in study.sections if section.title == "Figure 2. By layer")
    assert "layers 9-20 of 24" in layers.note
    mixing = means(study).filter(metric="mixing", task="pos")
    heaviest = mixing.sort("value", "layer")["layer"][-1]
    (row,) = (row for row in layers.rows if (row["task"], row[""]) == ("POS", "mixing weight"))
    assert row["highest"] == f"{heaviest} of {study_layers(study)}"


@pytest.mark.slow
def test_the_stores_hold_the_weights_they_are_named_for(study: StudyResult, model: Path) -> None:
    untrained = next((study.folder / "models").glob("tiny-untrained-*"))
    for name, weights in (("tiny", model), ("tiny-untrained", untrained)):
        store = es.open(study.folder / "stores" / f"{name}-subwords-30-0.zarr")
        network = transformers.AutoModel.from_pretrained(weights).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
        words = store.table().row(0, named=True)["text"].split(" ")
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            state = network(**encoded).last_hidden_state[0, 1].numpy()  # the first subword, after [CLS]
        np.testing.assert_allclose(
            store.vectors([0], layers=store.layers[-1])[0][0].astype(np.float64), state, atol=4e-3
        )


def study_layers(study: StudyResult) -> int:
    return int(means(study).filter(pl.col("metric") == "mixing")["layer"].max())  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_report_has_every_task_and_figure(study: StudyResult) -> None:
    text = (study.folder / "report.md").read_text()
    for said in ("POS", "Entities", "links", "30 of 40 sentences, drawn with seed 0", "center of gravity", "Time"):
        assert said in text
    traces = [name for name, title in study.figures.items() if title == "Figure 3. A trace"]
    assert len(traces) == SETTINGS.traces
    for name in ("figure1.png", "figure2.png", "figureA1.png", "reversals.png", *traces):
        assert f"figures/{name}" in text
        assert (study.folder / "figures" / name).read_bytes().startswith(b"\x89PNG")
    first = study.sections[0].rows[0]
    value = means(study).filter(metric="f1", task="pos", split="test", layer=0)["value"].item()
    assert str(first["P(0)"]).startswith(f"{value:.3f} ± ")
    assert set(first) >= {"majority", "random weights", "selectivity", "center of gravity", "expected layer"}


@pytest.mark.slow
def test_ambiguous_sentences_are_those_of_the_saved_probes(study: StudyResult, data: Path) -> None:
    store = es.open(study.folder / "stores" / "tiny-subwords-30-0.zarr")
    held = []
    for task in ("pos", "entities", "links"):
        (folder,) = (each for each in (study.folder / "probes").glob(f"tiny-{task}-*") if "untrained" not in each.name)
        held.append((load(folder), data / task / "dev.jsonl"))
    wanted = ambiguous_sentences(trace(store, held, split="dev"))
    assert pl.read_parquet(study.folder / "tables" / "ambiguous.parquet").equals(wanted)
    reversals = decision_reversals(*(trace(store, held, split="dev", seed=seed) for seed in (0, 1)))
    [section] = [each for each in study.sections if each.title == "Decision reversals"]
    shown = {(row["task"], row[""]): row for row in section.rows}
    for row in reversals.to_dicts():
        for change, name in report.CHANGES.items():
            cells = shown[report.title_of(row["task"]), name]
            assert (cells["edges"], cells[str(row["layer"])]) == (row["edges"], row[change])
    assert len(shown) == 12
    assert not list((study.folder / "probes").glob("*.checkpoint"))


def test_short_sentences_of_several_tasks_that_turn_are_drawn_first() -> None:
    words = {0: 40, 1: 10, 2: 10, 3: 10, 4: 10}
    tasks = ["pos, entities", "pos", "pos, entities", "pos, entities", "pos"]
    frame = pl.DataFrame(
        {"sentence": list(words), "ambiguous": [9, 8, 7, 6, 5], "turned": [3, 3, 0, 1, 3], "tasks": tasks}
    )
    traces = SimpleNamespace(sentences=[SimpleNamespace(words=["word"] * count) for count in words.values()])
    assert rank(frame, traces) == [3, 2, 1, 4, 0]  # type: ignore[arg-type]
    assert rank(frame.clear(), traces) == []  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_same_call_does_nothing_twice(
    study: StudyResult, data: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import embstore_studies.tenney2019.study as probing

    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError("probed again")

    monkeypatch.setattr(probing.EdgeProbe, "fit", refuse)
    again = studies.reproduce(SETTINGS, data, model={"tiny": model}, out=study.folder)
    assert again.frames["scores"].equals(study.frames["scores"])
    assert again.notes == study.notes


@pytest.mark.slow
def test_the_command_prints_the_tables_and_resumes(study: StudyResult, data: Path, model: Path) -> None:
    from embstore_cli.main import app

    given = ["reproduce", "tenney2019", str(data), "--model", f"tiny={model}", "--out", str(study.folder)]
    for pair in ("n_sentences=30", "seeds=0,1", "epochs=2", "hidden_size=8", "traces=1"):
        given += ["--set", pair]
    ran = CliRunner().invoke(app, [*given, "--task", "links"])
    assert ran.exit_code == 0, ran.output
    for text in ("Size: at most 30 sentences", "Figure 1. Tasks by metric", "The order of tasks", "report.md"):
        assert text in ran.stdout
    ran = CliRunner().invoke(app, [*given, "--task", "links", "--json"])
    document = json.loads(ran.stdout)
    assert {row["task"] for row in document["Figure 1. Tasks by metric"]} == {"links"}


def test_an_expected_layer_that_is_not_determined_is_not_ordered() -> None:
    rows = [("a", 2.0, 1.5, ""), ("b", None, None, "not determined: P(3) scores no higher than P(0)")]
    made = [
        dict(zip(("task", "value", "low", "item"), row, strict=True)) | {"metric": "expected_layer"} for row in rows
    ]
    common = {"model": "tiny", "encoder": "trained"}
    frame = ProbeResult.of(made, store="s", split="test", seed=0).frame
    frame = frame.with_columns(**{name: pl.lit(value) for name, value in common.items()})
    scores = report.Scores(SETTINGS, {"tiny": "tiny"}, ("a", "b"), frame)
    assert [task for task, _ in report.order(scores, "tiny", "expected_layer")] == ["a"]
    row = report.TaskScores(scores.means("tiny"), "b").row("expected_layer")
    assert report.with_interval(row) == "not determined"


def test_the_order_of_the_paper_is_counted_by_pairs() -> None:
    assert report.agreement(["pos", "constituents", "dependencies", "semantic-roles", "coreference"]) == (10, 10)
    assert report.agreement(["coreference", "relations", "pos", "dependencies"]) == (1, 3)
    assert report.agreement(["relations"]) == (0, 0)
    ends = {"low": 1.75, "high": 3.0}
    assert report.interval({"value": 2.0, "deviation": 0.2, "seeds": 3, **ends}) == (pytest.approx(1.503, abs=1e-3), 3)
    assert report.interval({"value": 2.0, "deviation": 0.1, "seeds": 3, **ends}) == (1.75, 3.0)
    ends_of_seeds = report.interval({"value": 2.0, "deviation": 0.1, "seeds": 4, "low": None, "high": None})
    assert ends_of_seeds == pytest.approx((1.8409, 2.1591))
    assert report.interval({"value": 2.0, "deviation": 0.1, "seeds": 40}) == pytest.approx((1.9642, 2.0358), abs=1e-4)
    assert report.interval({"value": 2.0, "deviation": 0.25, "seeds": 2, **ends}) is None
    assert report.interval({"value": 2.0, "deviation": None, "seeds": 1, **ends}) is None


@pytest.mark.parametrize(("seeds", "apart"), [((0, 1, 2), "1 of 1"), ((0, 1), None), ((0,), None)])
def test_tasks_are_distinct_by_three_seeds_or_more(seeds: tuple[int, ...], apart: str | None) -> None:
    made = [
        {"task": task, "metric": "center_of_gravity", "value": value + 0.05 * seed, "seed": seed}
        for task, value in (("pos", 1.0), ("coreference", 2.0))
        for seed in seeds
    ]
    frame = ProbeResult.of(made, store="s", split="train").frame
    frame = frame.with_columns(model=pl.lit("m"), encoder=pl.lit("trained"))
    table = report.order_table(report.Scores(SETTINGS, {"m": "m"}, ("pos", "coreference"), frame), "m", "")
    [row] = [row for row in table.rows if row["by"] == "center of gravity"]
    assert (row["in its order"], row["distinct"]) == ("1 of 1 pairs", apart or "not known: under 3 seeds")


def test_student_s_quantiles_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    assert pytest.approx(stats.t.ppf(0.975, range(2, 10)), abs=5e-4) == report.STUDENT


def test_layers_are_compared_with_the_paper_by_depth() -> None:
    made = [{"metric": "mixing", "layer": layer, "value": 0.5, "split": "train"} for layer in (0, 6)]
    made += [{"metric": "f1", "layer": layer, "value": value} for layer, value in ((0, 0.5), (6, 0.75))]
    made += [
        {"metric": "center_of_gravity", "value": 3.0, "split": "train"},
        {"metric": "expected_layer", "value": 1.5},
    ]
    frame = ProbeResult.of([{"split": "test", **row} for row in made], store="s", task="pos", seed=0).frame
    frame = frame.with_columns(model=pl.lit("m"), encoder=pl.lit("trained"))
    [row] = report.depth_table(report.Scores(SETTINGS, {"m": "m"}, ("pos",), frame)).rows
    ours = {"m: P(0) → P(L)": "0.500 → 0.750", "m: center of gravity": "0.50", "m: expected layer": "0.25"}
    assert row == {"task": "POS", **ours, "paper: center of gravity": "0.49", "paper: expected layer": "0.14"}
    assert report.next_to_ours(3.39, 4.0, 24) == "3.39 (+0.61)"
    assert (
        report.next_to_ours(3.39, 4.0, 6),
        report.next_to_ours(3.39, None, 24),
        report.next_to_ours(None, 4.0, 24),
    ) == (
        "3.39",
        "3.39",
        "",
    )


def test_differential_scores_are_also_given_as_shares() -> None:
    made = [{"metric": "mixing", "layer": layer, "value": 0.25, "split": "train"} for layer in range(4)]
    gains = {1: 0.3, 2: -0.1, 3: 0.2}
    made += [{"metric": "differential", "layer": layer, "value": gain} for layer, gain in gains.items()]
    frame = ProbeResult.of([{"split": "test", **row} for row in made], store="s", task="pos", seed=0).frame
    frame = frame.with_columns(model=pl.lit("m"), encoder=pl.lit("trained"))
    table = report.layers_table(report.Scores(SETTINGS, {"m": "m"}, ("pos",), frame), "m", "")
    rows = {row[""]: [row[str(layer)] for layer in range(4)] for row in table.rows}
    assert rows["differential (F1)"] == ["", "0.300", "-0.100", "0.200"]
    assert rows["differential, share of the sum"] == ["", "0.750", "-0.250", "0.500"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing", "is not a folder"),
        ("empty", "has no task"),
        ("unknown", "there is no task 'verbs' in"),
        ("no dev", "has no dev.jsonl"),
        ("broken", "dev.jsonl:1"),
        ("no target", "pos: dev has no target"),
        ("one label", "pos: train has 1 labels"),
        ("pairs", "some targets have two spans and some one"),
        ("no model", "none"),
    ],
)
def test_bad_input_is_refused_in_one_line(case: str, message: str, tmp_path: Path, data: Path) -> None:
    folder = {"missing": tmp_path / "gone", "unknown": data, "no model": data}.get(case, tmp_path)
    settings = Tenney2019(tasks=["verbs"] if case == "unknown" else None)
    texts = {
        "broken": "{",
        "no target": '{"text": "a b", "targets": []}',
        "one label": '{"text": "a b", "targets": [{"span1": [0, 1], "label": "a"}]}',
        "pairs": '{"text": "a b", "targets": [{"span1": [0, 1], "span2": [1, 2], "label": "a"}]}',
    }
    if case == "no dev" or case in texts:
        (tmp_path / "pos").mkdir()
        (tmp_path / "pos" / "train.jsonl").write_text((data / "pos" / "train.jsonl").read_text())
    for split in ("dev", "train") if case == "one label" else ("dev",) if case in texts else ():
        (tmp_path / "pos" / f"{split}.jsonl").write_text(texts[case] + "\n")
    with pytest.raises(es.errors.InputError) as refused:
        studies.reproduce(settings, folder, model={"tiny": "./none"}, out=tmp_path / "out")
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_unknown_studies_and_missing_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"unknown study .zhao.: choose zhao2020, ethayarajh2019,"):
        studies.reproduce("zhao", tmp_path, model="m", out=tmp_path)
    with pytest.raises(InvalidValueError, match="there is no model"):
        studies.reproduce("tenney2019", tmp_path, model={}, out=tmp_path)
    with pytest.raises(InvalidValueError, match="zhao2020 takes one model, not 2: a, b"):
        studies.reproduce("zhao2020", tmp_path, model={"a": "x", "b": "y"}, out=tmp_path)
