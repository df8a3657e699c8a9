"""`embstore reproduce` refuses what it cannot use in one line, before any step."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Work

LISTS = "--train learn.tsv --test ask.tsv"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            f"zhao2020 corpus.txt -m model {LISTS} --vectors glove.txt",
            "--vectors 'glove.txt' is not allowed: give NAME=",
        ),
        (
            f"zhao2020 corpus.txt -m model {LISTS} --vectors GloVe=none.txt",
            "GloVe: there is no file or folder none.txt",
        ),
        (f"zhao2020 corpus.txt -m model {LISTS} --set context_windows=0,2", "full"),
        (f"zhao2020 corpus.txt -m model {LISTS} --set context_windows=wide", "context_windows=wide is not allowed"),
        (f"zhao2020 corpus.txt -m model {LISTS} --set seeds=one", "seeds=one is not allowed: give a whole number"),
        (f"zhao2020 corpus.txt -m model {LISTS} --set traces=3", "traces is not a setting of this command"),
        ("zhao2020 corpus.txt -m model", "train"),
        ("zhao2020 corpus.txt -m model --train learn.tsv --test learn.tsv", "must not overlap"),
        ("tenney2019 tasks -m model -m other/model", "--model: two models are named model"),
        ("tenney2019 tasks -m a:b", "'a:b' cannot be a file name: give NAME=MODEL"),
        ("tenney2019 tasks -m model --set unit=letter", "letter"),
        ("tenney2019 tasks -m model", "tasks"),
        ("tenney2019 tasks -m =", "--model '=' is not allowed: give MODEL or NAME=MODEL"),
        ("chomsky1957 tasks -m model", "unknown study 'chomsky1957': choose zhao2020"),
        ("ethayarajh2019 corpus.txt -m model --small", "ethayarajh2019 has one size"),
        ("hewitt2019 bank -m model --train learn.tsv", "--train is not for hewitt2019, but for zhao2020: leave it out"),
    ],
)
def test_bad_input(options: str, says: str, work: Work) -> None:
    work.write("learn.tsv", "".join(f"@{word}@\t-place=2\n" for word in ("bank", "river", "town", "suit", "court")))
    work.write("ask.tsv", "@sea@\t-place=2\n")
    ran = work.run("reproduce", *options.split(), "--out", "study")
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert not (work / "study" / "stores").exists()
