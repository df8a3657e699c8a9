"""The study of Clark et al. 2019 in small: its tables are those of `attention`, and bad input is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import embstore as es
import embstore_studies as studies
from embstore.analysis import HeadDistances
from embstore.errors import EmbstoreError
from embstore_studies import Clark2019, StudyResult
from embstore_studies.attention_importance import attention_importance
from embstore_studies.clark2019 import report
from tests.analysis.test_attention import trees, write_conllu
from tests.models import tiny
from tests.studies.sections import rows_of
from tests.studies.test_attention_importance import language_model

MENTIONS = {
    "text": "the cat sat because the cat was cold and it was the bank",
    "targets": [
        {"span1": [0, 2], "span2": [4, 6], "label": "1"},
        {"span1": [0, 2], "span2": [9, 10], "label": "1"},
        {"span1": [4, 6], "span2": [9, 10], "label": "1"},
        {"span1": [11, 13], "span2": [9, 10], "label": "0"},
    ],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_conllu(folder / "some-dev.conllu", trees() * 9)
    (folder / "dev.jsonl").write_text(json.dumps(MENTIONS) + "\n")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model("bert", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def study(data: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    settings = Clark2019(coreference=data, importance_sentences=5, every=3)
    return studies.reproduce(
        settings, data, model={"tiny": model}, out=tmp_path_factory.mktemp("study"), device="cpu", progress=False
    )


@pytest.mark.slow
def test_tables_are_those_of_attention(study: StudyResult, data: Path, model: Path) -> None:
    options: dict[str, Any] = {"model": model, "device": "cpu"}
    frame = es.attention(
        data / "some-dev.conllu",
        statistics=["shares", "entropy", "relations", "trees", HeadDistances(every=3)],
        **options,
    ).frame
    where = frame.filter(metric="share", item="sep", layer=2)["value"].mean()
    assert rows_of(study, "Where attention goes")[1]["sep"] == f"{where:.3f}"
    low = frame.filter(metric="entropy", item="all", layer=3).sort("value").row(0, named=True)
    assert rows_of(study, "Entropy")[2]["lowest head"] == f"3.{low['head']}: {low['value']:.3f}"
    table = {row["relation"]: row for row in rows_of(study, "Table 1")}
    both = frame.filter(pl.col("metric").str.starts_with("relation"), item="det").sort("value", descending=True)
    assert table["det"]["score"] == f"{100 * both['value'][0]:.1f}"
    assert table["det"]["paper"] == "det 8.10: 94.3"
    assert table["punct"]["paper"] is None
    assert all(row["edges"] >= report.LEAST_EDGES for row in table.values())
    uuas = frame.filter(metric="uuas", layer=1)["value"].max()
    assert rows_of(study, "Trees")[0]["UUAS"] == f"{uuas:.3f}"
    distances = frame.filter(pl.col("item").str.starts_with("1."), metric="jensen_shannon", layer=1)
    same = distances["value"].sum() / 12  # of a head to the three others
    assert rows_of(study, "Distances")[0]["same layer"] == f"{same:.3f}"
    found = es.attention(data / "dev.jsonl", statistics=["coreference"], **options).frame
    rules = {row["choice of the antecedent"]: row["accuracy"] for row in rows_of(study, "Table 2")}
    assert rules["nearest with the same head word"] == "0.500"
    assert rules["nearest mention"] == "1.000"
    assert rows_of(study, "Table 2")[3]["accuracy"] == f"{found.drop_nulls('head')['value'].max():.3f}"
    gradients = attention_importance(data / "some-dev.conllu", n_sentences=5, **options)
    shown = float(rows_of(study, "Importance")[0]["sep"])
    assert shown == pytest.approx(gradients.filter(item="sep", layer=1)["value"].mean(), rel=0.06)


@pytest.mark.slow
def test_the_report_has_its_figures_and_the_study_resumes(study: StudyResult, data: Path, model: Path) -> None:
    assert set(study.figures) == {
        f"tiny-{name}.png" for name in ("attention", "heads", "relations", "trees", "importance", "coreference")
    }
    page = (study.folder / "report.html").read_text()
    assert page.count("<img") == 6
    assert page.count("<table>") == len([section for section in study.sections if section.rows]) + 1
    tables = {path: path.stat().st_mtime_ns for path in (study.folder / "tables").glob("*.parquet")}
    settings = Clark2019(coreference=data, importance_sentences=5, every=3)
    again = studies.reproduce(settings, data, model={"tiny": model}, out=study.folder, device="cpu", progress=False)
    assert {path: path.stat().st_mtime_ns for path in tables} == tables
    assert [section.rows for section in again.sections] == [section.rows for section in study.sections]


@pytest.mark.slow
def test_a_model_without_a_language_model_has_no_importance(data: Path, tmp_path: Path) -> None:
    settings = Clark2019(n_sentences=20, importance_sentences=5)
    made = studies.reproduce(
        settings, data, model=tiny.save("llama", tmp_path / "m"), out=tmp_path / "out", device="cpu", progress=False
    )
    assert "importance" not in made.frames
    assert "coreference" not in made.frames
    assert any("has no language modeling head" in note for note in made.notes)
    assert any("no Table 2" in note for note in made.notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": "none"}, "none"),
        ({"data": "empty"}, r"has 0 files \*dev\*\.conllu"),
        ({"data": "dev.jsonl"}, "has no trees"),
        ({"data": "flat.conllu"}, "flat.conllu"),
        ({"coreference": "other.jsonl"}, "has no coreference"),
        ({"coreference": "empty"}, r"has no dev\.jsonl"),
        ({"model": "vectors.txt"}, "has no attention"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_computed(
    change: dict[str, str], says: str, data: Path, tmp_path: Path
) -> None:
    (data / "empty").mkdir(exist_ok=True)
    (data / "flat.conllu").write_text("1\tthe\t_\t_\t_\t_\t_\t_\t_\t_\n\n")
    (data / "vectors.txt").write_text("the 0.1 0.2\ncat 0.3 0.4\n")
    other = {"text": "the cat", "targets": [{"span1": [0, 1], "span2": [1, 2], "label": "Cause"}]}
    (data / "other.jsonl").write_text(json.dumps(other) + "\n")
    given = {"data": "some-dev.conllu", "coreference": "dev.jsonl", "model": "nothing", **change}
    with pytest.raises(EmbstoreError, match=says):
        studies.reproduce(
            Clark2019(coreference=data / given["coreference"]),
            data / given["data"],
            model=data / given["model"],
            out=tmp_path / "out",
            progress=False,
        )
    assert not (tmp_path / "out").exists()
