"""The study of Ethayarajh 2019 in small: its tables are those of its parts, next to the published figures."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
import embstore_studies as studies
from embstore.errors import InvalidValueError
from embstore_studies import Ethayarajh2019, StudyResult
from embstore_studies.ethayarajh2019 import report
from embstore_studies.evaluation.evaluate import evaluate
from embstore_studies.study import Section
from tests.studies.sections import rows_of

WORDS = ("the", "of", "to", "cat", "sat", "mat", "river", "hill", "money", "people", "sea", "bank", ",")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draws = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(" ".join(draws.choice(WORDS, draws.integers(4, 9))) + "\n" for _ in range(60)))
    return path


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Ethayarajh2019:
    folder = tmp_path_factory.mktemp("words")
    (folder / "similarity").mkdir()
    draws = np.random.default_rng(1)
    pairs = list(combinations(WORDS[:-1], 2))
    for name, drawn in (("SimLex", pairs), ("MEN", pairs[: report.MIN_ITEMS - 1])):
        lines = [f"{first}\t{second}\t{draws.integers(10)}\n" for first, second in drawn]
        (folder / "similarity" / f"{name}.tsv").write_text("".join(lines))
    vectors = "".join(f"{word} {' '.join(f'{x:.4f}' for x in draws.normal(size=4))}\n" for word in WORDS[:-1])
    (folder / "glove.txt").write_text(f"{len(WORDS) - 1} 4\n{vectors}")
    return Ethayarajh2019(
        vectors={"GloVe": folder / "glove.txt"}, benchmarks=folder / "similarity", sample=50, resamples=50, n_words=3
    )


@pytest.fixture(scope="module")
def study(corpus: Path, settings: Ethayarajh2019, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return studies.reproduce(
        settings, corpus, model={"tiny": model}, out=tmp_path_factory.mktemp("study"), progress=False
    )


def test_geometry_is_that_of_the_words_without_punctuation(study: StudyResult, settings: Ethayarajh2019) -> None:
    store = es.open(study.folder / "stores" / "tiny.zarr")
    words = store.select(words=list(WORDS[:-1]))
    table = es.geometry(words, baseline=50, seed=0)
    wanted = es.analysis.summarize_geometry(table, resamples=50, seed=0)
    assert study.frames["geometry"].drop("model").equals(wanted)
    shown = wanted.filter(pl.col("metric").cast(pl.String) == "selfsim").sort("layer")["adjusted"].to_list()
    by_layer = rows_of(study, "Figures 1-4 by layer (tiny)")
    assert [str(row["Self-similarity, adjusted"]).split()[0] for row in by_layer] == [f"{value:.3f}" for value in shown]
    assert not any("paper" in name for name in by_layer[0])  # no published model has this size
    listed = rows_of(study, "Most and least")[-1]["most context-specific"].split(", ")
    lowest = table.filter(
        (pl.col("layer") == store.layers[-1]) & (pl.col("metric") == "selfsim") & (pl.col("item") != "")
    )
    assert [each.split()[0] for each in listed] == lowest.sort("value", "item")["item"].to_list()[:3]


def test_table_1_is_that_of_evaluate(study: StudyResult, settings: Ethayarajh2019) -> None:
    store = es.open(study.folder / "stores" / "tiny.zarr")
    words = store.select(words=list(WORDS[:-1]))
    layers = [layer for layer in store.layers if layer > 0]
    made = {f"tiny, layer {each}": es.static_vectors(words, layers=each, min_contexts=5) for each in layers}
    systems = made | {"GloVe": es.vectors.read_vectors(settings.vectors["GloVe"])}
    assert settings.benchmarks is not None
    assert study.frames["evaluation"].equals(evaluate(systems, settings.benchmarks))
    assert study.frames["shared"].equals(evaluate(systems, settings.benchmarks, shared_vocabulary=True))
    table = {row["system"]: row for row in rows_of(study, "Table 1. Static")}
    assert table["paper: GloVe"]["SimLex999"] == "0.194"
    ours = study.frames["evaluation"].filter(system="GloVe", metric="spearman", benchmark="SimLex")["value"].item()
    assert table["GloVe"] == {"system": "GloVe", "SimLex999": f"{ours:.3f} (100%)", "MEN": ""}  # MEN: too few items
    assert table["difference"]["SimLex999"] == f"{ours - 0.194:+.3f}"
    few = study.frames["evaluation"].with_columns(coverage=pl.lit(0.5))
    scores = report.Scores(settings, {}, {"evaluation": few})
    assert "difference" not in {row["system"] for row in report.static(scores).rows}
    (shared,) = (row for row in rows_of(study, "Table 1 on shared") if row["system"] == "GloVe")
    assert (shared["SimLex999"], shared["MEN"]) == (f"{ours:.3f}", "")
    low, last = (study.frames["shared"].filter(system=f"tiny, layer {each}") for each in (layers[0], layers[-1]))
    won = low.filter(benchmark="SimLex")["value"][0] > last.filter(benchmark="SimLex")["value"][0]
    (found,) = (row["tiny"] for row in rows_of(study, "What holds") if "beat those" in row["the paper"])
    assert found == f"{'yes' if won else 'no'}: on {int(won)} of 1 benchmarks"
    assert table["paper: BERT, Layer 1"]["SimLex999"] == "0.315"


def test_published_means_are_adjusted_like_ours() -> None:
    frames = report.published_frames()
    assert list(frames) == ["BERT-base-cased", "GPT-2", "ELMo"]
    bert = frames["BERT-base-cased"]
    assert bert.filter(metric="selfsim", layer=12)["adjusted"].item() == pytest.approx(0.7548 - 0.477)
    assert bert.filter(metric="intrasim", layer=0)["adjusted"].item() == pytest.approx(0.435 - 0.105)
    assert bert.filter(metric="mev", layer=12)["adjusted"].item() == pytest.approx(0.0395 - 0.009)
    assert bert.filter(metric="mev", layer=0).is_empty()
    assert frames["ELMo"].filter(metric="anisotropy")["value"].to_list() == [0.008, 0.157, 0.136]


def test_a_model_of_the_paper_is_recognised_by_its_size() -> None:
    def named(architecture: str, layers: int, size: int, name: str = "m") -> Any:
        fields = {"architecture": architecture, "num_hidden_layers": layers, "hidden_size": size, "name": name}
        return SimpleNamespace(model=fields)

    models = {
        "a": named("BertModel", 12, 768),
        "b": named("BertModel", 12, 768, "bert-base-uncased"),
        "c": named("BertModel", 6, 384),
        "d": named("GPT2Model", 12, 768),
        "e": named("ELMo", 2, 1024),
        "f": named("DistilBertModel", 12, 768),
    }
    scores = report.Scores(Ethayarajh2019(), models, {})
    assert scores.paper_models == {"a": "BERT-base-cased", "d": "GPT-2", "e": "ELMo"}
    assert report.paper_system(scores, "a, layer 1") == "BERT, Layer 1"
    assert report.paper_system(scores, "c, layer 1") == ""
    assert report.paper_system(scores, "my glove") == "GloVe"


def test_one_layer_is_not_compared_with_itself() -> None:
    columns = {"system": ["m, layer 3", "glove"], "benchmark": ["SimLex"] * 2, "task": ["similarity"] * 2}
    columns |= {"metric": ["spearman"] * 2, "value": [0.5, 0.4], "count": [900] * 2, "coverage": [1.0] * 2}
    settings = Ethayarajh2019(vectors={"glove": "glove.txt"})
    scores = report.Scores(settings, {}, {"shared": pl.DataFrame(columns)})
    claims = report.static_findings(scores, "m")
    assert claims == {"static vectors of a low layer beat glove": ("on 1 of 1 benchmarks", "yes")}


def row(layer: int, shown: float, spread: float = 0.01) -> dict[str, Any]:
    return {"layer": layer, "shown": shown, "adjusted_low": shown - spread, "adjusted_high": shown + spread}


def test_a_finding_without_distinct_intervals_is_not_determined() -> None:
    assert report.falls([row(0, 0.9), row(1, 0.5)])[1] == "yes"
    assert report.falls([row(0, 0.5), row(1, 0.9)])[1] == "no"
    assert report.falls([row(0, 0.5), row(1, 0.49)])[1] == "not determined"
    assert report.alike([row(0, 0.0), row(1, 0.2), row(2, 0.4)])[1] == "as in ELMo"
    assert report.alike([row(0, 0.0), row(1, 0.4), row(2, 0.2)])[1] == "as in BERT"
    assert report.alike([row(0, 0.0), row(1, 0.4), row(2, 0.01)])[1] == "as in GPT-2"
    assert report.alike([row(0, 0.9), row(1, 0.4), row(2, 0.4)])[1] == "not determined"
    assert report.explained([row(0, 0.9), row(1, 0.02), row(2, 0.03)])[1] == "yes"
    assert report.explained([row(0, 0.01), row(1, 0.2), row(2, 0.03)])[1] == "no"
    assert report.explained([row(0, 0.01), row(1, 0.045), row(2, 0.03)])[1] == "not determined"
    alone = [row(0, 0.9), row(1, 0.5) | {"adjusted_low": None, "adjusted_high": None}]  # of one word
    for verdict in (report.falls, report.alike, report.explained):
        assert verdict(alone)[1] == "not determined"
    assert report.rises([row(0, 0.9), row(1, 0.1), row(2, 0.3), row(3, 0.2)]) == (
        "0.100 in the lower half, 0.200 in the upper",
        "yes",
    )
    assert report.rises([row(0, 0.9), row(1, 0.1)])[1] == "not determined"


def test_the_report_is_written_in_four_forms(study: StudyResult) -> None:
    text, page = study.report.read_text(), (study.folder / "report.html").read_text()
    for section in study.sections:
        assert f"## {section.title}" in text
        assert f"<h2>{section.title}</h2>" in page
    assert page.count("data:image/png;base64,") == len(study.figures) == 4
    assert "figures/" not in page.replace("## Figures", "")
    assert "SHA-256" in study.methods
    assert study.methods in text
    assert "@inproceedings{ethayarajh-2019-contextual" in (study.folder / "references.bib").read_text()
    tables = (study.folder / "tables.tex").read_text()
    assert tables.count(r"\begin{tabular}") == tables.count(r"\end{tabular}") == len(study.sections)


def test_latex_escapes_what_it_would_read_as_commands() -> None:
    table = Section("50 % of a_b", "", [{"item": r"\x{1}~&#$", "value": 1234}]).latex()
    assert r"50 \% of a\_b" in table
    assert r"\textbackslash{}x\{1\}\textasciitilde{}\&\#\$ & 1,234 \\" in table


@pytest.mark.slow
def test_the_same_call_does_nothing_twice(
    study: StudyResult,
    corpus: Path,
    settings: Ethayarajh2019,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    import embstore_studies.ethayarajh2019.study as running

    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError("measured again")

    for name in ("geometry", "static_vectors", "evaluate"):
        monkeypatch.setattr(running, name, refuse)
    again = studies.reproduce(settings, corpus, model={"tiny": model}, out=study.folder, progress=False)
    assert json.dumps([list(section.rows) for section in again.sections]) == json.dumps(
        [list(section.rows) for section in study.sections]
    )
    copy = shutil.copytree(str(settings.benchmarks), tmp_path / "similarity")
    with (copy / "SimLex.tsv").open("a") as file:
        file.write("cat\triver\t9\n")
    with pytest.raises(AssertionError, match="measured again"):
        studies.reproduce(
            replace(settings, benchmarks=copy), corpus, model={"tiny": model}, out=study.folder, progress=False
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"min_contexts": 1}, "min_contexts 1"),
        ({"baseline": "none"}, "baseline 'none'"),
        ({"n_words": 0}, "n_words 0"),
        ({"benchmarks": "gone"}, "no benchmarks at gone"),
        ({"vectors": {"GloVe": "gone.txt"}}, "gone.txt"),
        ({"vectors": {"tiny": "gone.txt"}}, "'tiny' is both a model and a file of word vectors"),
    ],
)
def test_bad_input_is_refused_before_the_extraction(
    change: dict[str, Any], said: str, corpus: Path, model: Path, tmp_path: Path
) -> None:
    with pytest.raises((InvalidValueError, es.errors.InputError)) as refused:
        studies.reproduce(Ethayarajh2019(**change), corpus, model={"tiny": model}, out=tmp_path / "out")
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()
