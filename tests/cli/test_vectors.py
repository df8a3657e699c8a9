"""embstore train-vectors, and stores of what it makes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import embstore as es
from embstore.vectors import read_vectors
from tests.cli.conftest import Work

PSE = "i like @new_york@-place and @rome@-place .\n" * 9 + "@rare_bird@-animal .\n"


@pytest.mark.parametrize("name", ["v.bin", pytest.param("v.txt", marks=pytest.mark.slow)])
def test_train_then_extract(work: Work, name: str) -> None:
    work.write("corpus.pse", PSE)
    options = ["--size", "8", "--epochs", "1", "--set", "min_count=2", "--seed", "4"]
    runs = []
    for out in (name, f"again-{name}"):
        runs.append(work.run("train-vectors", "corpus.pse", out, *options))
        assert (runs[-1].status, runs[-1].err) == (0, "")
    assert (work / name).read_bytes() == (work / f"again-{name}").read_bytes()
    assert runs[0].out == f"{name} holds the skip-gram vectors of 6 words, 8 numbers each\n"
    vectors = read_vectors(work / name)
    assert set(vectors.words) == {"i", "like", "new_york", "and", "rome", "."}
    model = f"vectors:{name}?missing=drop"
    ran = work.run("extract", "corpus.pse", "v.zarr", "--model", model, "--label", "any", "--dtype", "float32")
    assert (ran.status, ran.err) == (0, "")
    assert "no vector: the table of words has none" in ran.out
    store = es.open(work / "v.zarr")
    assert sorted(set(store.index.words)) == ["new york", "rome"]
    for word, row in zip(store.index.words, (vectors.row_of("new_york"), vectors.row_of("rome")), strict=True):
        found = store.select(words=word).vectors()[0]
        np.testing.assert_array_equal(found, np.repeat(vectors.vectors[[row]], 9, axis=0))


def test_json(work: Work) -> None:
    work.write("corpus.pse", PSE)
    ran = work.run(
        "train-vectors", "corpus.pse", "v.txt", "--size", 4, "--epochs", 1, "--set", "phrases=false", "--json"
    )
    printed = json.loads(ran.out)
    assert printed == {"corpus": "corpus.pse", "out": "v.txt", "words": 7, "dimensions": 4}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train-vectors corpus.txt gone/v.txt", "the folder gone does not exist"),
        ("train-vectors corpus.txt v.zarr", "v.zarr has no known suffix: choose .txt"),
        ("train-vectors corpus.txt model", "model has no known suffix"),
        ("train-vectors corpus.txt v.txt --set out_format=npy", "a name that ends in .npy"),
        ("extract corpus.txt new.zarr --model random:4 --layers 1", "layer 1 does not exist"),
    ],
)
def test_bad_input_is_one_line(work: Work, command: str, says: str) -> None:
    work.refuses(command, says)
