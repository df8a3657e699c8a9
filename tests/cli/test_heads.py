"""`embstore heads`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import embstore as es
from embstore.errors import InvalidValueError
from tests.cli.conftest import Work
from tests.drawn import svg_texts
from tests.models.finetuning import planted

TUNE = ("--set", "batch_size=10", "--set", "learning_rate=2e-3", "--epochs", 1, "--device", "cpu")


@pytest.mark.slow
def test_heads_of_a_fine_tuned_model(work: Work) -> None:
    planted.folder(work / "data", "ner", train=20, dev=10)
    assert work.run("finetune", "ner", "data", "-m", "model", "--out", "tuned", *TUNE).status == 0
    few = ("--set", "resamples=50", "--set", "seeds=1,2", "--set", "n_sentences=8")
    ran = work.run("heads", "tuned", "data", *few, "--plot", "heads.svg", "--out", "heads.csv")
    assert (ran.status, ran.err) == (0, "")
    for text in ("f1 without a layer's heads", "f1 as heads are pruned", "of 12 heads have no effect beyond noise"):
        assert text in ran.out
    table = pl.read_csv(work / "heads.csv")
    assert table["table"].value_counts(sort=True).rows() == [("pruned", 33), ("disabled", 16), ("importance", 12)]
    assert {"share of heads pruned", "Importance by gradient (l2 norm of a layer: 1)"} <= svg_texts(work / "heads.svg")
    same = work.run("heads", "tuned", "data", *few, "--json")
    rows = json.loads(same.out)
    assert [row["value"] for row in rows] == pytest.approx(table["value"].to_list())


def test_how_heads_are_disabled_is_passed_on(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def disable(data: Path, *, how: str, **options: Any) -> None:
        given.append(how)
        raise InvalidValueError("enough is seen")

    planted.folder(work / "data", "ner", train=2, dev=2)
    monkeypatch.setattr(es.analysis, "disable_heads", disable)
    for more in ("", " --set how=zero"):
        work.refuses(f"heads model data{more}", "enough is seen")
    assert given == ["uniform", "zero"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("heads model gone", "no data at gone"),
        ("heads model data --set how=half", "how=half is not allowed"),
        ("heads model data --plot heads.doc", "--plot heads.doc has no known suffix"),
    ],
)
def test_bad_input_is_one_line(command: str, says: str, work: Work) -> None:
    if not (work / "data").exists():
        planted.folder(work / "data", "ner", train=2, dev=2)
    work.refuses(command, says)
