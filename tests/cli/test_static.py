"""`embstore static`: what it writes, what it prints, what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import embstore as es
from embstore.analysis.static.vectors import static_vectors
from embstore.errors import InvalidValueError
from embstore.vectors import read_vectors
from embstore_cli.sizes import nbytes_of
from tests.cli.conftest import SENTENCES, Work


@pytest.mark.parametrize(
    ("out", "options", "format"),
    [
        ("v.txt", "", "text"),
        ("v.vec", "--format binary", "binary"),
        ("v.bin", "--method mean --min-contexts 2", "binary"),
        ("v.npy", "--method medoid --memory 20kB", "npy"),
        ("v.glove", "--format glove --method abtt --components 2", "glove"),
        ("v", "--scale rms --precision float32", "text"),
    ],
)
def test_files_hold_what_the_function_gives(out: str, options: str, format: str, work: Work) -> None:
    ran = work.run("static", "store.zarr", out, "--layer", "2", *options.split(), "--json")
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    said = dict(zip(options.split()[::2], options.split()[1::2], strict=True))
    vectors = static_vectors(
        es.open(work / "store.zarr"),
        layer=2,
        method=said.get("--method", "pc1"),
        min_contexts=int(said.get("--min-contexts", 1)),
        scale=said.get("--scale", "unit"),
        components=2 if "--components" in said else None,
        precision=said.get("--precision", "float64"),
    )
    read = read_vectors(work / out)
    assert read.words == vectors.words
    np.testing.assert_array_equal(read.vectors, vectors.vectors)
    assert (printed["out"], printed["format"], printed["layer"]) == (out, format, 2)
    assert (printed["words"], printed["dimensions"]) == vectors.vectors.shape
    assert printed["method"] == said.get("--method", "pc1")


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
        ("gone.zarr v.txt --layer 1", ("no store at gone.zarr",)),
        ("store.zarr v.txt", ("--layer",)),
        ("store.zarr v.txt --layer 9", ("layer 9 is not stored", "0, 1, 2, 3")),
        ("store.zarr v.txt --layer 1 --method pc2", ("'pc2'", "medoid")),
        ("store.zarr v.txt --layer 1 --method mean --scale rms", ("'rms'", "pc1")),
        ("store.zarr v.txt --layer 1 --components 2", ("abtt",)),
        ("store.zarr v.txt --layer 1 --method abtt --components 32", ("components 32", "0 to 31")),
        ("store.zarr v.txt --layer 1 --min-contexts 0", ("min_contexts 0", "1 or more")),
        ("store.zarr v.txt --layer 1 --min-contexts 99", ("99 different sentences",)),
        ("store.zarr v.txt --layer 1 --memory plenty", ("--memory 'plenty'", "2GiB")),
        ("store.zarr v.txt --layer 1 --device abacus", ("'abacus'", "cpu")),
        ("store.zarr gone/v.txt --layer 1", ("no folder gone",)),
        ("store.zarr model --layer 1", ("model is a folder",)),
        ("store.zarr v.txt.gz --layer 1", ("v.txt.gz", "uncompressed")),
        ("store.zarr v.txt --layer 1 --format npy", ("v.txt", ".npy")),
        ("store.zarr v.zarr --layer 1 --format text", ("v.zarr", "store")),
        ("store.zarr v.txt --layer 1 --format store", ("v.txt", ".zarr", ".h5")),
        ("store.zarr store.zarr --layer 1", ("store.zarr exists already",)),
    ],
)
def test_bad_input_is_one_line_and_leaves_everything_as_it_was(
    arguments: str, says: tuple[str, ...], work: Work
) -> None:
    before = work.contents()
    ran = work.run("static", *arguments.split())
    assert ran.status == 2, ran.err
    assert ran.err.startswith("embstore: ")
    assert ran.err.count("\n") == 1, ran.err
    for part in says:
        assert part in ran.err
    assert "EMBSTORE_DEBUG" not in ran.err
    assert work.contents() == before


def test_help_fits_eighty_columns(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = work.run("static", "--help")
    assert ran.status == 0
    assert max(map(len, ran.out.splitlines())) <= 80


def test_sizes_as_people_write_them() -> None:
    written = {
        "1": 1,
        "500MB": 500 * 10**6,
        "1.5 GiB": 3 * 2**29,
        "2g": 2 * 10**9,
        "3Ki": 3072,
        "10b": 10,
        "1TB": 10**12,
    }
    assert {text: nbytes_of(text, option="--memory") for text in written} == written
    for text in ("", "GB", "-1GB", "0", "1XB", "nan", "inf", "1e400", "1,5GB"):
        with pytest.raises(InvalidValueError, match=r"^--memory .* is not a size"):
            nbytes_of(text, option="--memory")
