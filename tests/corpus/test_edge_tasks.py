"""Edge probing tasks derived from corpora: checked by hand and against targets made with other tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

import embstore as es
from embstore.corpus import EdgeSentence, derivable_tasks, derived_edges, open_corpus
from embstore.errors import CorpusError, InvalidValueError, StoreMismatchError
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of

CONLLU = """# text = Don't go to New York .
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tgone\tgo\tVERB\tVBN\t_\t_\t_\t3:conj\t_
4\tto\tto\tADP\tIN\t_\t5\tcase\t_\t_
5\tNew York\tNew York\tPROPN\t_\t_\t3\tobl:arg\t_\t_
6\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
WORDS = ["Do", "n't", "go", "to", "New", "York", "."]
COLUMNS = """New\tNNP\tB-place
York\tNNP\tI-place
Times\tNNP\tB-place
met\tVBD\tO
Ada\tNNP\tB-person
Ben\tNNP\tB-person

Ada\tNNP\tB-person
Smith\tNNP\tI-person
"""


def spans(sentences: list[EdgeSentence]) -> list[list[tuple[object, ...]]]:
    return [
        [(each.span1, *(() if each.span2 is None else (each.span2,)), *each.labels) for each in sentence.targets]
        for sentence in sentences
    ]


@pytest.fixture
def conllu(tmp_path: Path) -> Path:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    return path


def test_parts_of_speech(conllu: Path) -> None:
    found = derived_edges(conllu, "pos")
    assert [list(each.words) for each in found] == [WORDS, ["Yes"]]
    assert spans(found) == [
        [((0, 1), "VBP"), ((1, 2), "RB"), ((2, 3), "VB"), ((3, 4), "IN"), ((6, 7), ".")],
        [((0, 1), "UH")],
    ]
    assert spans(derived_edges(conllu, "upos"))[0][3:5] == [((3, 4), "ADP"), ((4, 6), "PROPN")]


def test_dependencies_are_from_the_word_to_its_head(conllu: Path) -> None:
    first, second = spans(derived_edges(conllu, "dependencies"))
    go, york = (2, 3), (4, 6)
    assert first[:3] == [((0, 1), go, "aux"), ((1, 2), go, "advmod"), (go, go, "root")]
    assert first[3:] == [((3, 4), york, "case"), (york, go, "obl:arg"), ((6, 7), go, "punct")]
    assert second == [((0, 1), (0, 1), "root")]


def test_entities(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(COLUMNS)
    assert spans(derived_edges(path, "entities")) == [
        [((0, 2), "place"), ((2, 3), "place"), ((4, 5), "person"), ((5, 6), "person")],
        [((0, 2), "person")],
    ]


def test_broken_entities_are_refused_or_repaired(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    for tags, message, repaired in (
        (["O", "I-x", "I-x"], r"a.conll:3: 'I-x' after 'O' continues no span", [((1, 3), "x")]),
        (["I-x", "I-y", "B-y"], r"a.conll:2: 'I-x' after the start of a sentence", [((0, 1), "x"), ((1, 2), "y"),
                                                                                   ((2, 3), "y")]),
        (["B-x", "I-y", "O"], r"a.conll:3: 'I-y' after 'B-x' continues no span", [((0, 1), "x"), ((1, 2), "y")]),
    ):  # fmt: skip
        path.write_text("\n" + "".join(f"w\t{tag}\n" for tag in tags))
        with pytest.raises(CorpusError, match=message):
            derived_edges(path, "entities")
        assert spans(derived_edges(path, "entities", repair=True)) == [repaired]
    for tag in ("S-x", "B", "B-", "o"):
        path.write_text(f"w\t{tag}\n")
        with pytest.raises(CorpusError, match=rf"a.conll:1: the tag '{tag}' is not O, B- or I- with a label"):
            derived_edges(path, "entities", repair=True)


def test_corpora_without_targets_are_refused(conllu: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.conllu"
    bare.write_text("1\tYes\tyes\t_\t_\t_\t0\t_\t_\t_\n")
    (tmp_path / "none.conll").write_text("Yes\tO\n")
    (tmp_path / "headless.conllu").write_text("1\tYes\tyes\t_\t_\t_\t4\troot\t_\t_\n")
    for path, task, message in (
        (bare, "pos", r"bare.conllu: no word has an xpos \(column 5\): use the task upos \(read as conllu\)$"),
        (bare, "dependencies", r"bare.conllu:1: the relation \(column 8\) of 'Yes' is missing"),
        (tmp_path / "headless.conllu", "dependencies", r"headless.conllu:1: the head \(column 7\) of 'Yes' is '4'"),
        (tmp_path / "none.conll", "entities", r"none.conll: no span in its last column"),
    ):
        with pytest.raises(CorpusError, match=message):
            derived_edges(path, task)
    with pytest.raises(InvalidValueError, match="task 'roles' cannot be derived from a corpus: choose pos, upos, dep"):
        derived_edges(conllu, "roles")
    assert derivable_tasks("a.conllu.gz") == ("pos", "upos", "dependencies")
    assert derivable_tasks("a.conll") == ("entities",)
    assert derivable_tasks("a.jsonl") == derivable_tasks("a.txt") == derivable_tasks("a") == ()


def test_a_folder_of_tasks_is_the_sentences_of_all_once(tmp_path: Path) -> None:
    texts = {"pos": {"train": ["a b", "c"], "dev": ["d"]}, "roles": {"train": ["c", "e f"], "dev": ["a b"]}}
    for task, parts in texts.items():
        (tmp_path / "tasks" / task).mkdir(parents=True)
        for part, sentences in parts.items():
            lines = [json.dumps({"text": text, "targets": [{"span1": [0, 1], "label": task}]}) for text in sentences]
            (tmp_path / "tasks" / task / f"{part}.jsonl").write_text("\n".join(lines))
    (tmp_path / "tasks" / ".cache").mkdir()
    (tmp_path / "tasks" / ".cache" / "x.jsonl").write_text("nothing")
    corpus = open_corpus(tmp_path / "tasks")
    assert (corpus.format, corpus.options["tasks"]) == ("edge", ["pos", "roles"])
    for _ in range(2):
        assert [" ".join(sentence.words) for sentence in corpus] == ["d", "a b", "c", "e f"]
    assert not any(sentence.labels for sentence in corpus)
    plan = plan_of(tmp_path / "tasks", model=FakeEncoder(), store=tmp_path / "s.zarr")
    assert (plan.survey.n_sentences, plan.as_json()["tasks"]) == (4, ["pos", "roles"])
    assert re.search(r"tasks +pos, roles\n", plan.text(verbose=True))
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "plan.schema.json").read_text())
    jsonschema.validate(plan.as_json(), schema)
    es.extract(plan, tmp_path / "s.zarr")
    assert es.extract(plan_of(tmp_path / "tasks", model=FakeEncoder(), store=tmp_path / "s.zarr"), tmp_path / "s.zarr")
    (tmp_path / "tasks" / "roles").rename(tmp_path / "roles")
    with pytest.raises(StoreMismatchError, match=r"corpus\.options\.tasks"):
        plan_of(tmp_path / "tasks", model=FakeEncoder(), store=tmp_path / "s.zarr")
    one = open_corpus(tmp_path / "tasks" / "pos")  # a folder with files of its own: as they are, with their labels
    assert "tasks" not in one.options
    assert [sentence.labels["label"][0] for sentence in one] == ["pos"] * 3
