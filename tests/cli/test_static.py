"""`embstore static`: what it writes, what it prints, what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import embstore as es
from embstore.analysis.static import static_vectors
from embstore.vectors import read_vectors
from tests.cli.conftest import SENTENCES, Work


@pytest.mark.slow
def test_a_virtual_store_says_that_no_vector_is_written(work: Work) -> None:
    ran = work.run("extract", "corpus.txt", "virtual.zarr", "-m", "model", "--virtual")
    assert (ran.status, ran.err) == (0, "")
    assert "\nvectors      not written (--virtual)\n" in ran.out


@pytest.mark.parametrize(
    ("out", "options", "format"),
    [
        ("v.txt", "", "text"),
        ("v.bin", "--method mean --min-contexts 2", "binary"),
        ("v.glove", "", "glove"),
        ("v.vec", "", "text"),
    ],
)
def test_files_hold_what_the_function_gives(out: str, options: str, format: str, work: Work) -> None:
    words = options.split()
    ran = work.run("static", "store.zarr", out, "--layers", "2", *words, "--json")
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    typed = dict(zip(words[::2], words[1::2], strict=True))
    vectors = static_vectors(
        es.open(work / "store.zarr"),
        layers=2,
        method=typed.get("--method", "pc1"),
        min_contexts=int(typed.get("--min-contexts", 1)),
    )
    read = read_vectors(work / out)
    assert read.words == vectors.words
    np.testing.assert_array_equal(read.vectors, vectors.vectors)
    assert (printed["out"], printed["format"], printed["layer"]) == (out, format, 2)
    assert (printed["words"], printed["dimensions"]) == vectors.vectors.shape
    assert printed["method"] == typed.get("--method", "pc1")


@pytest.mark.parametrize("out", ["s.zarr", "s.h5"])
def test_a_store_of_one_row_a_word(out: str, work: Work) -> None:
    ran = work.run("static", "store.zarr", out, "--layers", "1", "--method", "mean")
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
        ("store.zarr v.txt.gz", ("v.txt.gz", "uncompressed")),
        ("store.zarr gone/v.txt", ("the folder gone does not exist",)),
        ("store.zarr v.txt --layers 9", ("layer 9 is not stored",)),
    ],
)
def test_bad_input_is_one_line_and_leaves_everything_as_it_was(
    arguments: str, says: tuple[str, ...], work: Work
) -> None:
    work.refuses(f"static {arguments}", *says)
