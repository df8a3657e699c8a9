"""`embstore sql`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os

import polars as pl

import embstore as es
from tests.cli.conftest import Work

NEAREST = "select word, cos(h1, vec('the [bank] lends money', 1)) s from occurrences order by s desc limit 2"


def test_it_prints_and_writes_the_rows(work: Work) -> None:
    store = es.open(work / "store.zarr")
    ran = work.run("sql", "store.zarr", NEAREST, "--model", "model", "--out", "near.parquet", "--json")
    assert (ran.status, ran.err) == (0, "")
    expected = es.sql(store, NEAREST, model=work / "model")
    assert json.loads(ran.out) == expected.to_dicts()
    assert pl.read_parquet(work / "near.parquet").rows() == expected.rows()
    ran = work.run("sql", "old=store.zarr", "new=store.zarr", "near=near.parquet",
                   "select count(*) n, any_value(o.h1) v from old.types join new.occurrences o using (word) "
                   "where (select count(*) from near) = 2")  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.split()[:3] == ["n", "v", str(store.n_rows)]
    assert ran.out.endswith(f"... ({store.hidden_size})\n")
    ran = work.run("sql", "store.zarr", "select * exclude (h0, h1) from occurrences a, types b")
    assert "more: --out FILE writes all" in ran.out
    assert work.run("sql", "store.zarr", "select 1 from types where count < 0").out == "no rows\n"


def test_what_it_refuses(work: Work) -> None:
    work.refuses("sql store.zarr store.zarr select(1)", "NAME=STORE")
    work.refuses("sql old=store.zarr store.zarr select(1)", "NAME=STORE")
    work.write("near.csv", b"a,b\n1,2,3\n")
    work.refuses("sql store.zarr near=near.csv select(1)", "near.csv cannot be read as a table")
    if hasattr(os, "mkfifo"):
        os.mkfifo(work / "pipe.csv")
        work.refuses(
            "sql store.zarr near=pipe.csv select(1)", "pipe.csv cannot be read as a table", "a pipe or a device"
        )
    ran = work.run("sql", "store.zarr", "select h1 from occurrences", "--out", "vectors.csv")
    assert (ran.status, ran.out) == (2, "")
    assert "vectors.csv" in ran.err
    assert ran.err.count("\n") == 1
