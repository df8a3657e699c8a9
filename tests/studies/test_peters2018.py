"""The study of Peters et al. 2018 in small: its tables are those of the similarities, with documents resampled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import embstore as es
import embstore_studies as studies
from embstore.errors import InputError
from embstore_studies import Peters2018, StudyResult
from embstore_studies.peters2018.report import Scores, claim, examples
from embstore_studies.peters2018.study import NOTES, read_spans
from embstore_studies.pronouns import find_pronouns, resolve_pronouns
from tests.studies.sections import rows_of

SETTINGS = Peters2018(n_sentences=20, examples=2, resamples=50)
NOUNS = ("cat", "river", "hill", "people", "sea", "bank")


def write_data(folder: Path, *, reverse: bool = False) -> Path:
    """Sentences with two mentions and a pronoun that is one of them."""
    draws = np.random.default_rng(1)
    records = []
    for number in range(30):
        one, other, *rest = draws.choice(NOUNS, 4)
        words = ["the", one, "sat", "because", "the", other, "need", ("it", "they")[number % 2], *rest, f"w{number}"]
        right = number % 3 != 0
        pairs = [([0, 2], right), ([4, 6], not right)]
        targets = [{"span1": span, "span2": [7, 8], "label": str(int(same))} for span, same in pairs]
        records.append({"text": " ".join(words), "targets": targets, "info": {"document": f"document {number % 5}"}})
    task = folder / "coreference"
    task.mkdir(parents=True)
    lines = [json.dumps(record) for record in (records[::-1] if reverse else records)]
    (task / "train.jsonl").write_text("\n".join(lines[:20]) + "\n")
    (task / "dev.jsonl").write_text("\n".join(lines[20:]) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("tasks") / "edges")


@pytest.fixture(scope="module")
def study(data: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return studies.reproduce(
        SETTINGS, data, model={"tiny": model}, out=tmp_path_factory.mktemp("study"), progress=False
    )


def test_tables_are_those_of_the_similarities(study: StudyResult, data: Path) -> None:
    spans = read_spans(data, SETTINGS)
    (path,) = (study.folder / "stores").iterdir()
    store = es.open(path)
    assert len(spans.pronouns) == 20
    rows = rows_of(study, "Antecedents of pronouns")
    assert [row["layer"] for row in rows] == list(store.layers)
    for column, centered in (("accuracy", False), ("mean of all spans subtracted", True)):
        frame = resolve_pronouns(store, spans.sentences, spans.pronouns, centered=centered)
        means = frame.group_by("layer").agg(pl.col("value").mean()).sort("layer")["value"]
        assert [row[column].split(" ")[0] for row in rows] == [f"{value:.3f}" for value in means]
    assert [row["no earlier pronoun (20)"] for row in rows] == [row["accuracy"] for row in rows]
    frame = study.frames["pronouns"].filter(layer=0, centered=False)
    assert set(frame["document"]) <= {f"document {number}" for number in range(5)}
    assert study.notes == NOTES


def test_examples_mark_the_pronoun_and_its_antecedent(data: Path) -> None:
    spans = read_spans(data, SETTINGS)
    pronoun = spans.pronouns[0]
    text = spans.marked(pronoun.sentence, pronoun.span, (0, 2))
    assert text.startswith("[the ")
    assert f"[{spans.sentences[pronoun.sentence].words[7]}]" in text
    rows = [
        {"layer": layer, "pronoun": number, "value": float(layer == 2 and number < 3)}
        for layer in range(3)
        for number in range(5)
    ]
    options = {"model": pl.lit("m"), "centered": False, "ambiguous": True}
    frame = pl.DataFrame(rows).with_columns(**options)
    section = examples(Scores(SETTINGS, spans.pronouns, frame), "m", spans.marked)
    assert section.title == "Resolved in layer 2 and not in layer 0 (m)"
    assert section.note.startswith("3 pronouns are right in layer 2 alone of the two, 0 in layer 0")
    expected = {
        spans.marked(each.sentence, each.span, each.candidates[each.right.index(True)]) for each in spans.pronouns[:3]
    }
    assert len(section.rows) == 2
    assert {row["pronoun and antecedent"] for row in section.rows} < expected


def test_intervals_are_over_documents() -> None:
    """Two documents, right and wrong: resampling gives both ends; the sentences of one are not independent."""
    scores = Scores(Peters2018(), [], pl.DataFrame())
    frame = pl.DataFrame({"document": ["a", "a", "a", "b"], "value": [1.0, 1.0, 1.0, 0.0]})
    assert scores.mean(frame, "value") == (0.75, 0, 1)
    assert scores.mean(frame.head(3), "value") == (1, None, None)
    assert scores.mean(frame.with_columns(value=0.25), "value") == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "yes"), (-1, "no"), (0, "not determined")])
def test_the_claim_compares_the_halves_of_the_layers(sign: int, verdict: str) -> None:
    rows = [
        {"layer": layer, "document": f"d{number}", "value": 0.5 + sign * 0.1 * (layer - 2.5)}
        for layer in range(5)
        for number in range(4)
    ]
    frame = pl.DataFrame(rows).with_columns(model=pl.lit("m"), centered=False, ambiguous=True)
    row = claim(Scores(Peters2018(), [], frame))
    assert row["m"].startswith(f"{sign * 0.2:.3f} [")
    assert row["m"].endswith(f": {verdict}")


@pytest.mark.slow
def test_the_order_of_the_files_does_not_matter_and_the_study_resumes(
    study: StudyResult, data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import embstore_studies.peters2018.study as running

    other = write_data(tmp_path / "reversed", reverse=True)
    found = studies.reproduce(SETTINGS, other, model={"tiny": model}, out=tmp_path / "out", progress=False)
    for name, frame in study.frames.items():
        assert found.frames[name].equals(frame)
    assert [section.markdown() for section in found.sections] == [section.markdown() for section in study.sections]
    monkeypatch.setattr(running, "resolve_pronouns", None)
    again = studies.reproduce(SETTINGS, data, model={"tiny": model}, out=study.folder, progress=False)
    assert again.frames["pronouns"].equals(study.frames["pronouns"])


@pytest.mark.slow
def test_a_table_of_other_labels_is_not_taken(data: Path, model: Path, tmp_path: Path) -> None:
    """What corefers is not in the store, whose digest stays the same: a stored table has the old labels."""
    (tmp_path / "coreference").mkdir()
    for path in (data / "coreference").glob("*.jsonl"):
        text = path.read_text().replace('"label": "0"', '"label": "x"').replace('"label": "1"', '"label": "0"')
        (tmp_path / "coreference" / path.name).write_text(text.replace('"label": "x"', '"label": "1"'))
    first, other = (
        studies.reproduce(SETTINGS, folder, model={"tiny": model}, out=tmp_path / "study", progress=False)
        for folder in (data, tmp_path)
    )
    assert first.frames["pronouns"]["recent"].equals(1 - other.frames["pronouns"]["recent"])


def test_figures_are_drawn(study: StudyResult) -> None:
    assert set(study.figures) == {"layers.png"}
    assert (study.folder / "figures" / "layers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no folder", "has no coreference/train.jsonl"),
        ("no pronoun", "no pronoun has a right and a wrong earlier mention"),
        ("broken", "train.jsonl:1"),
        ("no model", "none"),
    ],
)
def test_bad_input_is_refused_before_the_extraction(case: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "edges"
    if case != "no folder":
        write_data(folder)
    if case in ("no pronoun", "broken"):
        (folder / "coreference" / "dev.jsonl").unlink()
        (folder / "coreference" / "train.jsonl").write_text(
            '{"text": "a b", "targets": []}' if case != "broken" else "{"
        )
    with pytest.raises(InputError) as refused:
        studies.reproduce(SETTINGS, folder, model={"tiny": "./none"}, out=tmp_path / "out")
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_sentences_without_a_document_are_documents(data: Path) -> None:
    spans = read_spans(data, SETTINGS)
    assert spans.documents(pl.Series([0])) == [spans.sentences[0].document]
    assert find_pronouns(spans.sentences)[: len(spans.pronouns)] == list(spans.pronouns)
