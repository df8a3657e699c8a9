"""`embstore probe edges --save` and `probe trace`: what is saved, listed, printed, drawn and refused."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.cli.conftest import Work, settings
from tests.cli.test_output import valid
from tests.drawn import svg_texts
from tests.probes.edge_store import make, write_edges

ASK = (
    "--device",
    "cpu",
    "--json",
    *settings(epochs=2, batch_size=8, hidden_size=6, projection=6, resamples=0, patience=0),
)
TREES = """1\tw{n}\t_\tX\tA\t_\t2\tmark\t_\t_
2\tgoes\t_\tV\tB\t_\t0\troot\t_\t_
3\thome\t_\tX\t{tag}\t_\t2\tobj\t_\t_

"""


def tasks(folder: Work) -> None:
    made = make(folder / "made.zarr", sentences=20, layers=(0, 1, 3), planted=1)
    made.write(folder / "tasks" / "colours")
    for name, held in made.splits.items():
        (folder / "tasks" / "hues").mkdir(exist_ok=True)
        write_edges(folder / "tasks" / "hues" / f"{name}.jsonl", held[1:] if name == "dev" else held)


@pytest.fixture
def folder(work: Work) -> Work:
    return work.put(tasks)


@pytest.fixture
def saved(folder: Work) -> Work:
    ran = folder.run("probe", "edges", "made.zarr", "tasks/colours", "tasks/hues", *ASK, "--save", "saved")
    assert (ran.status, ran.err) == (0, "")
    assert sorted(path.name for path in (folder / "saved").iterdir()) == ["colours", "hues"]
    return folder


def test_sentences_are_listed_and_traced(saved: Work) -> None:
    ask = ("probe", "trace", "made.zarr", "saved", "--targets", "tasks", "--device", "cpu")
    listed = valid(saved.run(*ask, "--most", 2, "--json", "--out", "listed.csv"), "trace_output")
    assert len(listed) == 2
    assert pl.read_csv(saved / "listed.csv")["sentence"].to_list() == [row["sentence"] for row in listed]
    assert saved.run(*ask).out.startswith("4 of 4 sentences have more than one edge of 0.7 or less\n")
    words = str(listed[0]["text"])
    ran = saved.run(*ask, "--sentence", words, *settings(all="true"), "--plot", "trace.svg")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == f"sentence {listed[0]['sentence']}: {words}"
    assert lines[1].split() == ["span", "task", "label", "0", "1", "3", "mean"]
    assert [line.split()[-6] for line in lines[2:4]] == ["right", "wrong"]
    assert {"layers up to", "mean"} <= svg_texts(saved / "trace.svg")
    rows = valid(saved.run(*ask, "--sentence", listed[0]["sentence"], *settings(all="true"), "--json"), "trace_output")
    assert len(rows) == int(str(listed[0]["edges"])) * 3
    ambiguous = valid(saved.run(*ask, "--sentence", listed[0]["sentence"], "--json"), "trace_output")
    assert len(ambiguous) == int(str(listed[0]["ambiguous"])) * 3
    one = ("probe", "trace", "made.zarr", "saved/colours", "--device", "cpu", "--sentence", words, "--json")
    whole = [row for row in rows if row["task"] == "colours"]
    for targets in ("tasks/colours", "tasks/colours/dev.jsonl", "tasks"):
        found = valid(saved.run(*one, "--targets", targets, *settings(all="true")), "trace_output")
        assert [row["right_probability"] for row in found] == [row["right_probability"] for row in whole]


@pytest.mark.slow
def test_tasks_are_taken_from_corpora(work: Work) -> None:
    (work / "ud").mkdir()
    every = ""
    for split, numbers in (("train", range(6)), ("dev", range(6, 9)), ("test", range(9, 12))):
        text = "".join(TREES.format(n=number, tag="CD"[number % 2]) for number in numbers)
        (work / "ud" / f"en_x-ud-{split}.conllu").write_text(text)
        every += text
    (work / "every.conllu").write_text(every)
    assert work.run("extract", "every.conllu", "ud.zarr", "--model", "model").status == 0
    ran = work.run(
        "probe", "edges", "ud.zarr", "ud", "--task", "pos", "--task", "dependencies", *ASK, "--save", "saved"
    )
    assert ran.status == 0, ran.err
    assert {row["task"] for row in json.loads(ran.out)} == {"pos", "dependencies"}
    train, dev = "ud/en_x-ud-train.conllu", "ud/en_x-ud-dev.conllu"
    one = work.run("probe", "edges", "ud.zarr", train, *settings(dev=dev), "--task", "dependencies", *ASK)
    same = [row for row in json.loads(ran.out) if row["task"] == "dependencies" and row["metric"] == "mixing"]
    assert [row for row in json.loads(one.out) if row["metric"] == "mixing"] == same
    whole = (*settings(all="true"), "--json")
    for targets in ("ud", dev):
        rows = valid(
            work.run("probe", "trace", "ud.zarr", "saved", "--targets", targets, "--sentence", "w7", *whole),
            "trace_output",
        )
        assert {row["task"] for row in rows} == {"pos", "dependencies"}
        assert [row["right"] for row in rows if row["layer"] == 0] == ["mark", "root", "obj", "A", "B", "D"]


def test_bad_input_is_one_line(saved: Work) -> None:
    saved.write("a.conllu", TREES.format(n=1, tag="C"))
    (saved / "twice").mkdir()
    for name in ("train-a", "train-b"):
        saved.write(f"twice/{name}.conll", "w\tB-x\n")
    targets = ("--targets", "tasks")
    for arguments, message in (
        (("trace", "made.zarr", "saved", "--targets", "none"), "no targets at none"),
        (("trace", "made.zarr", "saved", "--targets", "saved"), "there are no dev targets of colours at saved"),
        (("trace", "made.zarr", "saved", *targets, "--split", "x"), "there are no x targets of colours at tasks"),
        (
            ("trace", "made.zarr", "saved", *targets, *settings(limit=0), "--plot", "a.svg"),
            "no sentence to draw has two ambiguous edges, of probability 0 or less",
        ),
        (("edges", "made.zarr", "tasks/colours", "--task", "pos"), "--task pos is for corpora"),
        (
            ("edges", "made.zarr", "a.conllu"),
            "a.conllu contains several tasks: give --task pos, upos, dependencies, arcs,",
        ),
        (("edges", "made.zarr", "a.conllu", "--task", "entities"), "a.conllu does not contain the task 'entities'"),
        (("edges", "made.zarr", "twice"), "twice has two files called train, train-a.conll and train-b.conll"),
        (
            ("edges", "made.zarr", "tasks/colours", "--save", "tasks"),
            "tasks exists and is not a file of saved probes",
        ),
    ):
        saved.refuses(" ".join(("probe", *arguments)), message)
