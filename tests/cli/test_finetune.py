"""`embstore finetune` and `embstore attention --other`: what they print, write and refuse."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.cli.conftest import Work
from tests.drawn import svg_texts
from tests.json_schemas import validator_of
from tests.models.finetuning import planted

TUNE = ("--set", "batch_size=10", "--set", "learning_rate=2e-3", "--epochs", 2, "--device", "cpu")

COMPARE = ("attention", "corpus.txt", "-m", "model", "--other")


@pytest.mark.slow
def test_fine_tuned_extracted_and_compared(work: Work) -> None:
    planted.folder(work / "data", "ner", train=20, dev=10)
    ran = work.run("finetune", "ner", "data", "-m", "model", "--out", "tuned", *TUNE, "--scores", "scores.csv")
    assert (ran.status, ran.err) == (0, "")
    for text in ("ner: 20 sentences, 2 labels", "loss on train", "f1 on dev", "best", "tuned: f1 "):
        assert text in ran.out
    assert pl.read_csv(work / "scores.csv").columns == ["task", "epoch", "split", "metric", "value", "best"]

    again = work.run("finetune", "ner", "data", "-m", "model", "--out", "tuned", *TUNE, "--json")
    assert (again.status, again.err) == (0, "")
    validator_of("finetune_output").validate(json.loads(again.out))
    other = work.run("finetune", "ner", "data", "-m", "model", "--out", "tuned", *TUNE, "--set", "max_length=64")
    assert (other.status, other.out) == (2, "")
    assert "max length 128, this command has 64" in other.err

    assert work.run("extract", "corpus.txt", "tuned.zarr", "-m", "tuned", "--pooling", "last").status == 0
    maps = work.run(*COMPARE, "tuned", "--json", "--plot", "maps.svg", "--out", "maps.csv")
    assert (maps.status, maps.err) == (0, "")
    rows = json.loads(maps.out)
    validator_of("attention").validate(rows)
    assert len(rows) == 12
    assert {"head", "layer", "cosine similarity"} <= svg_texts(work / "maps.svg")
    assert pl.read_csv(work / "maps.csv").height == 12
    shown = work.run(*COMPARE, "model")
    assert "cosine of self-attention weights" in shown.out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("finetune parse data -m model --out tuned", "parse"),
        ("finetune pos gone -m model --out tuned", "no data at gone"),
        ("finetune pos corpus.txt -m model --out tuned", "corpus.txt is a file"),
        ("finetune pos -m model --out tuned --scores scores.txt", "--scores scores.txt has no known suffix"),
        ("finetune pos -m model --out tuned --set attention_window=-1", "attention_window=-1 is not allowed"),
        ("attention corpus.txt -m model --plot maps.doc", "--plot maps.doc has no known suffix"),
    ],
)
def test_bad_input_is_one_line(command: str, says: str, work: Work) -> None:
    before = work.contents()
    ran = work.run(*command.split())
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert work.contents() == before
