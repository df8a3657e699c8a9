"""`embstore static`: what it writes, what it prints, what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import embstore as es
from embstore.analysis.static import static_vectors
from embstore.vectors import read_vectors
from tests.cli.conftest import SENTENCES, Work


def test_means_are_made_without_a_store_of_occurrences(work: Work) -> None:
    command = ("--model", "model", "--layers", "0,2", "--set", "means=true", "--json")
    planned = json.loads(work.run("plan", "corpus.txt", *command).out)
    ran = work.run("extract", "corpus.txt", "means.zarr", *command)
    assert (ran.status, ran.err) == (0, "")
    store, full = es.open(work / "means.zarr"), es.open(work / "store.zarr")
    assert json.loads(ran.out)["n_rows"] == store.n_rows == planned["types"]
    assert planned["store_nbytes"] == json.loads(ran.out)["plan"]["store_nbytes"] == store.n_rows * 2 * 12 * 32
    vectors = static_vectors(full, layer=2, method="mean")
    assert tuple(store.index.words) == vectors.words
    np.testing.assert_array_equal(store.select(layers=[2]).vectors()[0], vectors.vectors)
    again = work.run("extract", "corpus.txt", "means.zarr", *command[:-1])
    assert f"means.zarr holds {store.n_rows:,} mean vectors in 2 layers" in again.out
    for options in (("--virtual",), ("--devices", "cpu"), ("--set", "workers=2"), ("--context-window", "1,2")):
        work.refuses(" ".join(("extract corpus.txt other.zarr", *command, *options)), "means")


@pytest.mark.slow
def test_a_virtual_store_says_that_no_vector_is_written(work: Work) -> None:
    ran = work.run("extract", "corpus.txt", "virtual.zarr", "-m", "model", "--virtual")
    assert (ran.status, ran.err) == (0, "")
    assert "\nvectors      not written (--virtual)\n" in ran.out


@pytest.mark.parametrize(
    ("out", "options", "format"),
    [
        ("v.txt", "", "text"),
        ("v.vec", "--set format=binary", "binary"),
        ("v.bin", "--method mean --min-contexts 2", "binary"),
        ("v.npy", "--method medoid --set memory=20kB", "npy"),
        ("v.glove", "--set format=glove --method abtt --set n_components=2", "glove"),
        ("v.txt", "--set scale=rms --set precision=float32", "text"),
    ],
)
def test_files_hold_what_the_function_gives(out: str, options: str, format: str, work: Work) -> None:
    ran = work.run("static", "store.zarr", out, "--layer", "2", *options.split(), "--json")
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    words = options.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    settings = dict(word.split("=") for word in words if "=" in word)
    vectors = static_vectors(
        es.open(work / "store.zarr"),
        layer=2,
        method=given.get("--method", "pc1"),
        min_contexts=int(given.get("--min-contexts", 1)),
        scale=settings.get("scale", "unit"),
        n_components=2 if "n_components" in settings else None,
        precision=settings.get("precision", "float64"),
    )
    read = read_vectors(work / out)
    assert read.words == vectors.words
    np.testing.assert_array_equal(read.vectors, vectors.vectors)
    assert (printed["out"], printed["format"], printed["layer"]) == (out, format, 2)
    assert (printed["words"], printed["dimensions"]) == vectors.vectors.shape
    assert printed["method"] == given.get("--method", "pc1")


@pytest.mark.parametrize("out", ["s.zarr", "s.h5"])
def test_a_store_of_one_row_a_word(out: str, work: Work) -> None:
    ran = work.run("static", "store.zarr", out, "--layer", "1", "--method", "mean")
    assert (ran.status, ran.err) == (0, "")
    words = len(set(SENTENCES.split()))
    assert ran.out == f"{out} holds the vectors of {words} words, 32 numbers each (mean of layer 1)\n"
    made = es.open(work / out)
    assert made.metadata.extraction["static"]["method"] == "mean"
    bank = es.open(work / "store.zarr").select(words="bank", layers=1).vectors(dtype="float64")[0]
    np.testing.assert_allclose(made.select(words="bank").vectors()[0, 0], bank.mean(0), atol=1e-6)
    assert work.run("verify", out).status == 0
    assert work.run("lookup", out, "bank").status == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("store.zarr v.xlsx", ("v.xlsx", ".txt")),
        ("store.zarr v", ("known suffix", ".bin")),
        ("store.zarr v.txt --layer 1 --method pc2", ("'pc2'", "medoid")),
        ("store.zarr v.txt --layer 1 --min-contexts 0", ("0", "--min-contexts")),
        ("store.zarr gone/v.txt --layer 1", ("the folder gone does not exist",)),
        ("store.zarr model --layer 1 --set format=text", ("model is a folder",)),
        ("store.zarr v.txt.gz --layer 1", ("v.txt.gz", "uncompressed")),
        ("store.zarr v.txt --layer 1 --set format=npy", ("v.txt", ".npy")),
        ("store.zarr v.zarr --layer 1 --set format=text", ("v.zarr", "store")),
        ("store.zarr v.txt --layer 1 --set format=store", ("v.txt", "format store")),
    ],
)
def test_bad_input_is_one_line_and_leaves_everything_as_it_was(
    arguments: str, says: tuple[str, ...], work: Work
) -> None:
    work.refuses(f"static {arguments}", *says)
