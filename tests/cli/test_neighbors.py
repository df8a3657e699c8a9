"""`embstore neighbors`: what it prints, writes and refuses; cold, it loads no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.vectors import WordVectors, write_vectors
from tests.cli.conftest import Work
from tests.json_schemas import validator_of


def word_of(work: Work) -> str:
    """A word of several occurrences."""
    contexts = es.open(work / "store.zarr").table()
    counts = contexts.group_by(pl.col("word").cast(pl.String)).len().sort("len", "word", descending=[True, False])
    return str(counts["word"][0])


def test_it_prints_each_query_with_its_sentence(work: Work) -> None:
    word = word_of(work)
    ran = work.run("neighbors", "store.zarr", word, "-k", "3", "--layers", "1", "--queries", "1")
    assert (ran.status, ran.err) == (0, "")
    row = int(es.open(work / "store.zarr").select(words=word).rows[0])
    assert ran.out.startswith(f"layer 1, row {row}: ")
    assert f"[{word}]" in ran.out.splitlines()[0]
    assert f"more occurrences of {word}: see --queries" in ran.out
    store = es.open(work / "store.zarr")
    found = es.neighbors(store, store.select(rows=[row]), layers=1, k=3)
    for score in found["score"]:
        assert f"{score:.3f}" in ran.out


def test_json_follows_the_schema_and_files_hold_the_same(work: Work) -> None:
    word = word_of(work)
    arguments = ("neighbors", "store.zarr", word, "-k", "4", "--queries", "0", "--exclude", "word", "--out", "n.csv")
    ran = work.run(*arguments, "--json")
    assert (ran.status, ran.err) == (0, "")
    rows = json.loads(ran.out)
    validator_of("neighbors").validate(rows)
    assert (
        rows
        == es.neighbors(es.open(work / "store.zarr"), word, k=4, exclude="word")
        .with_columns(store=pl.lit("store.zarr"))
        .to_dicts()
    )
    assert pl.read_csv(work / "n.csv").height == len(rows)
    assert all(row["word"] != word for row in rows)


@pytest.mark.slow
def test_fields_of_documents_are_of_their_kind_in_json(work: Work) -> None:
    rows = [{"text": f"the cat sat on the mat {number}", "year": 1900 + number} for number in range(3)]
    es.extract(es.plan(rows, model=work / "model", calibrate=False), work / "years.zarr")
    printed = json.loads(work.run("neighbors", "years.zarr", "cat", "-k", "1", "--json").out)
    validator_of("neighbors").validate(printed)
    assert {each["year"] for each in printed} <= {1900, 1901, 1902}


def test_a_new_sentence(work: Work) -> None:
    word = word_of(work)
    ran = work.run("neighbors", "store.zarr", f"so [{word}] it {{is}}", "-k", "2")
    assert (ran.status, ran.err) == (0, "")
    assert f"so [{word}] it {{is}}" in ran.out


def test_a_file_of_word_vectors(work: Work) -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    write_vectors(WordVectors(tuple("abcdefghi"), vectors), work / "vectors.txt")
    ran = work.run("neighbors", "vectors.txt", "c", "-k", "2")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == "c"
    assert len(ran.out.strip().splitlines()) == 4
    ran = work.run("neighbors", "vectors.txt", "c", "--layers", "1")
    assert (ran.status, ran.out) == (2, "")


@pytest.mark.slow
def test_a_few_queries_load_neither_torch_nor_transformers(work: Work) -> None:
    code = (
        "import sys; import embstore as es\n"
        f"store = es.open({str(work / 'store.zarr')!r}); es.neighbors(store, store.select(rows=[0, 1]), k=3)\n"
        "assert not {'torch', 'transformers', 'faiss', 'zarr'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
