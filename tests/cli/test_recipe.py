"""`embstore recipe` refuses what it cannot use in one line, before any step."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Work

LISTS = "--train learn.tsv --test ask.tsv"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (f"{LISTS} --scale huge", "--scale 'huge' is not known: choose paper or cpu"),
        (f"{LISTS} --vectors glove.txt", "--vectors 'glove.txt' cannot be read: give NAME=FILE"),
        (f"{LISTS} --vectors GloVe=none.txt", "--vectors GloVe: there is no file none.txt"),
        (f"{LISTS} --context-windows 0,2", "the context windows lack the whole sentence: add full"),
        (f"{LISTS} --context-windows -1,full", "context window '-1' cannot be read"),
        (f"{LISTS} --seeds one", "--seeds 'one' is no seed: give numbers like 0,1,2"),
        ("", "there is no list of train words beside corpus.txt: name one with --train"),
        ("--train learn.tsv --test learn.tsv", "must not overlap"),
    ],
)
def test_bad_input(options: str, says: str, work: Work) -> None:
    work.write("learn.tsv", "".join(f"@{word}@\t-place=2\n" for word in ("bank", "river", "town", "suit", "court")))
    work.write("ask.tsv", "@sea@\t-place=2\n")
    ran = work.run("recipe", "zhao2020", "corpus.txt", "--model", "model", "--out", "study", *options.split())
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert not (work / "study" / "stores" / "bert-full.zarr").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("tasks -m model --scale huge", "--scale 'huge' is not known: choose paper or cpu"),
        ("tasks -m model -m other/model", "--model: two are called model: name them, as in first=model"),
        ("tasks -m a:b", "'a:b' is no name for files: give NAME=MODEL"),
        ("tasks -m model --unit letter", "unit 'letter' is not allowed: choose subword or word"),
        ("tasks -m model --seeds one", "--seeds 'one' is no seed: give numbers like 0,1,2"),
        ("tasks -m model", "tasks is no folder: give one that holds a folder a task"),
        ("tasks -m =", "--model '=' cannot be read: give MODEL, or NAME=MODEL"),
    ],
)
def test_bad_input_of_edge_probing(arguments: str, says: str, work: Work) -> None:
    ran = work.run("recipe", "tenney2019", *arguments.split(), "--out", "study")
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert not (work / "study").exists()
