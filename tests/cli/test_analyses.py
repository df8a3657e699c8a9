"""`embstore geometry`, `attention` and `static`: what they print, write, draw and refuse."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis.static import static_vectors
from embstore.vectors import read_vectors
from tests.cli.conftest import SENTENCES, Work, settings
from tests.drawn import svg_texts
from tests.json_schemas import validator_of


def test_it_prints_a_table_a_metric(work: Work) -> None:
    ran = work.does("geometry", "store.zarr", "--min-contexts", "2", "--metrics", "all")
    for title in (
        "self-similarity of words",
        "anisotropy",
        "intra-sentence",
        "explainable",
        "mean norm",
        "context-spec",
    ):
        assert title in ran.out
    assert "95 % interval" not in ran.out, "there are four sentences"
    work.write(
        "more.txt", "".join(f"the river {word} to the sea .\n" for word in ("runs", "flows", "goes", "is", "fell"))
    )
    assert work.run("extract", "more.txt", "more.zarr", "-m", "model").status == 0
    assert "95 % interval" in work.run("geometry", "more.zarr", "--min-contexts", "2").out


def test_a_file_has_every_row_of_the_function(work: Work) -> None:
    out = "geometry.parquet"
    options = settings(baseline=9)
    work.does("geometry", "store.zarr", "--min-contexts", "2", "--layers", "0,2", "--out", out, *options)
    read = pl.read_parquet(work / out)
    table = es.geometry(es.open(work / "store.zarr"), min_contexts=2, layers=(0, 2), baseline=9)
    assert read.height == table.height
    assert read["value"].to_list() == pytest.approx(table["value"].to_list(), nan_ok=True)
    assert read["layer"].to_list() == table["layer"].to_list()


def test_json_of_two_stores_follows_the_schema(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    ran = work.does("geometry", "store.zarr", "other.h5", "--min-contexts", "1", "--metrics", "all", "--json")
    rows = json.loads(ran.out)
    validator_of("geometry").validate(rows)
    assert {row["store"] for row in rows} == {"store", "other"}


@pytest.mark.slow
def test_one_figure_of_several_stores(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    work.does("geometry", "store.zarr", "other.h5", "--min-contexts", "1", "--plot", "figure.svg")
    assert {"store", "other", "layer", "Intra-sentence similarity"} <= svg_texts(work / "figure.svg")


def test_cka_of_one_store_and_of_two(work: Work) -> None:
    assert work.run("export", "store.zarr", "other.h5").status == 0
    ran = work.does("cka", "store.zarr", "--layers", "0,-1", "--json")
    store = es.open(work / "store.zarr")
    expected = es.analysis.linear_cka(store, layers=[0, store.layers[-1]])
    assert json.loads(ran.out) == expected.to_dicts()
    ran = work.run("cka", "store.zarr", "other.h5", "--layers", "0,last", "--json")
    assert [(row["layer"], row["other_layer"]) for row in json.loads(ran.out)] == [
        (one, other) for one in (0, store.layers[-1]) for other in (0, store.layers[-1])
    ]
    ran = work.does("cka", "store.zarr", "other.h5", "--out", "cka.csv", "--plot", "cka.svg")
    assert ran.out.splitlines()[0] == "linear CKA with each store layer"
    assert ran.out.split()[6:8] == ["other", "layer"]
    assert pl.read_csv(work / "cka.csv").filter(pl.col("layer") == pl.col("other_layer"))["value"].min() > 0.999
    assert {"store layer", "other layer", "linear CKA", "1.0"} <= svg_texts(work / "cka.svg")


def test_cka_of_fewer_occurrences_than_features(work: Work) -> None:
    work.write("few.txt", "the river\n")
    assert work.run("extract", "few.txt", "few.zarr", "--model", "model").status == 0
    ran = work.run("cka", "few.zarr", "--layers", "0,1")
    assert ran.status == 0
    assert ran.err.startswith(f"embstore: 2 occurrences are fewer than the {es.open(work / 'few.zarr').hidden_size} f")


def test_bad_input_of_cka_is_one_line(work: Work) -> None:
    work.refuses("cka store.zarr store.zarr", "given twice")
    work.refuses("cka store.zarr --plot nowhere/cka.png", "nowhere")


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
    ran = work.does(*command, "--plot", "a.svg", "--out", "a.csv")
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


@pytest.mark.slow
def test_a_virtual_store_says_that_no_vector_is_written(work: Work) -> None:
    ran = work.does("extract", "corpus.txt", "virtual.zarr", "-m", "model", "--virtual")
    assert "\nvectors     not written (--virtual)\n" in ran.out


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
    ran = work.does("static", "store.zarr", out, "--layers", "2", *words, "--json")
    printed = json.loads(ran.out)
    typed = dict(zip(words[::2], words[1::2], strict=True))
    method, least = typed.get("--method", "pc1"), int(typed.get("--min-contexts", 1))
    vectors = static_vectors(es.open(work / "store.zarr"), layers=2, method=method, min_contexts=least)
    read = read_vectors(work / out)
    assert read.words == vectors.words
    np.testing.assert_array_equal(read.vectors, vectors.vectors)
    assert (printed["out"], printed["format"], printed["layer"]) == (out, format, 2)
    assert (printed["words"], printed["dimensions"]) == vectors.vectors.shape
    assert printed["method"] == method


@pytest.mark.parametrize("out", ["s.zarr", "s.h5"])
def test_a_store_of_one_row_a_word(out: str, work: Work) -> None:
    ran = work.does("static", "store.zarr", out, "--layers", "1", "--method", "mean")
    words = len(set(SENTENCES.split()))
    assert ran.out == f"{out} holds the vectors of {words} words, 32 numbers each (mean of layer 1)\n"
    made = es.open(work / out)
    assert made.metadata.extraction["static"]["method"] == "mean"
    bank = es.open(work / "store.zarr").select(words="bank", layers=1).vectors(dtype="float64")
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
