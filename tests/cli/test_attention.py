"""`embstore attention`: what it prints, writes and draws."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.cli.conftest import Work, settings
from tests.drawn import svg_texts
from tests.json_schemas import validator_of

TREES = """\
1\tthe\t_\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsat\t_\tVERB\t_\t_\t0\troot\t_\t_
4\t.\t_\tPUNCT\t_\t_\t3\tpunct\t_\t_

1\tthe\t_\tDET\t_\t_\t2\tdet\t_\t_
2\tbank\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\twas\t_\tVERB\t_\t_\t0\troot\t_\t_

"""


@pytest.mark.slow
def test_statistics_are_printed_written_and_drawn(work: Work) -> None:
    (work / "c.conllu").write_text(TREES)
    command = ("attention", "c.conllu", "-m", "model")
    ran = work.run(*command, "--plot", "a.svg", "--out", "a.csv")
    assert (ran.status, ran.err) == (0, "")
    for text in ("share of attention to, mean of heads", "nsubj", "trees: best heads", "2 sentences"):
        assert text in ran.out
    frame = pl.read_csv(work / "a.csv")
    assert {"share", "entropy", "pattern", "uuas", "relation_to_head"} <= set(frame["metric"])
    assert {"share of attention", "entropy (nats)", "best fixed offset", "share of maps", "layer"} <= svg_texts(
        work / "a.svg"
    )
    rows = json.loads(work.run(*command, "--json", *settings(statistics=["trees", "shares"]), "--layers", "-1,1").out)
    validator_of("attention").validate(rows)
    assert {row["metric"] for row in rows} == {"uuas", "share"}
    assert {row["layer"] for row in rows} == {1, 3, None}


@pytest.mark.slow
def test_stores_and_collections_are_read_as_their_corpus(work: Work) -> None:
    assert work.run("extract", "corpus.txt", "s.zarr", "-m", "model", "--sites", "query,key").status == 0
    (work / "all.json").write_text(json.dumps(["store.zarr"]))
    command = ("-m", "model", "--json", *settings(statistics=["shares"]), "--layers", "1")
    ran = [work.run("attention", name, *command) for name in ("corpus.txt", "all.json", "s.zarr", "s.zarr#query")]
    assert [(each.status, each.err) for each in ran] == [(0, "")] * 4
    assert len({each.out for each in ran}) == 1
    work.refuses("verify s.zarr#query", "there is no store at s.zarr#")
