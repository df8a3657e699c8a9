"""One table of all scores: policies for words, the shared vocabulary, the shape of the paper's table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from embstore.errors import InvalidValueError
from embstore.vectors import WordVectors, read_vectors
from embstore_studies.evaluation.evaluate import PAPER_TABLE_1, evaluate, paper_table1, read_benchmarks, table1
from embstore_studies.evaluation.lexicon import Lexicon, on_shared_vocabulary
from tests.studies.evaluation import oracle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A benchmark of each kind about the words w0 to w11."""
    files = {
        "similarity/EN-SIMLEX-999.txt": "".join(f"w{n}\tw{(n * 5 + 1) % 12}\t{n * 7 % 12}\n" for n in range(12)),
        "similarity/ours.txt": "".join(f"W{n} w{n + 1} {n % 3}\n" for n in range(11)),
        "analogy/google-analogies.txt": ": family\nw0 w1 w2 w3\nw4 w5 w6 w7\n: gram1\nw8 w9 w10 w11\n",
        "categorisation/AP.txt": "".join(f"w{n}\tk{n % 3}\n" for n in range(12)),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(scope="module")
def glove(data: Path) -> WordVectors:
    path = data / "glove" / "glove50_4k.txt"
    return read_vectors(path, limit=4196)


def test_tidy(folder: Path) -> None:
    systems = {"one": oracle.vectors(12), "two": oracle.vectors(8, seed=1)}
    seen: list[tuple[int, int | None]] = []
    frame = evaluate(systems, folder, progress=lambda done, total: seen.append((done, total)))
    assert frame.columns == ["system", "benchmark", "task", "metric", "value", "count", "coverage"]
    assert seen == [(done, 8) for done in range(1, 9)]
    assert frame.select("system", "benchmark", "task", "metric").is_unique().all()
    one = frame.filter(pl.col("system") == "one")
    assert one["coverage"].to_list() == [1.0] * len(one)
    assert one.filter(pl.col("task") == "similarity")["count"].to_list() == [12, 11]
    two = frame.filter(pl.col("system") == "two", pl.col("task") == "categorisation").row(0, named=True)
    assert (two["count"], two["coverage"]) == (8, 8 / 12)
    assert frame.equals(evaluate(systems, read_benchmarks(folder)))


def test_case(folder: Path) -> None:
    system = {"s": oracle.vectors(12)}
    ours = pl.col("benchmark") == "ours"
    assert evaluate(system, folder).filter(ours)["coverage"].to_list() == [1.0]
    assert evaluate(system, folder, lowercase=False).filter(ours)["coverage"].to_list() == [0.0]


def test_how_a_word_is_found() -> None:
    vectors = WordVectors(("Bank", "bank", "new_york", "Paris"), np.eye(4))
    found = Lexicon(vectors).rows_of(["Bank", "bank", "BANK", "New York", "new york", "paris", "PARIS", "x"])
    assert found.tolist() == [0, 1, 1, 2, 2, -1, -1, -1]
    exact = Lexicon(vectors, lowercase=False).rows_of(["Bank", "BANK", "New York", "new york"])
    assert exact.tolist() == [0, -1, -1, 2]


def test_unit_vectors_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore_studies.evaluation.lexicon.BLOCK_ROWS", 3)
    system = oracle.vectors(8)
    expected = [oracle.unit(row) for row in (*oracle.table(system).values(), oracle.mean(system))]
    assert np.allclose(Lexicon(system).unit, expected, atol=1e-6)


def test_unknown_words_have_the_mean_vector(folder: Path) -> None:
    system = oracle.vectors(8)
    lexicon = Lexicon(system)
    assert np.allclose(lexicon.unit[-1], oracle.unit(oracle.mean(system)), atol=1e-6)
    skipped = evaluate({"s": system}, folder)
    replaced = evaluate({"s": system}, folder, oov="mean")
    assert skipped["coverage"].to_list() == replaced["coverage"].to_list()
    assert replaced.filter(pl.col("task") == "similarity")["count"].to_list() == [12, 11]


def test_shared_vocabulary(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match="no system is given"):
        on_shared_vocabulary({})
    many = oracle.vectors(12)
    few = WordVectors(("W3", "w2", "w1", "x", "W1", "w0"), oracle.vectors(6, seed=3).vectors)
    shared = on_shared_vocabulary({"many": many, "few": few})
    assert shared["many"].words == shared["few"].words == ("w0", "w1", "w2", "w3")
    assert shared["many"].vectors.tolist() == many.vectors[:4].tolist()
    assert shared["few"].vectors.tolist() == few.vectors[[5, 2, 1, 0]].tolist()
    exact = on_shared_vocabulary({"many": many, "few": few}, lowercase=False)
    assert exact["few"].words == ("w0", "w1", "w2")
    frame = evaluate({"many": many, "few": few}, folder, shared_vocabulary=True)
    coverage = table1(frame, of="coverage").drop("system")
    assert coverage.row(0) == coverage.row(1)
    alone = evaluate(shared, folder)
    assert frame.equals(alone)


def test_bad_arguments(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match="unknown oov 'drop'; allowed are skip, mean"):
        evaluate({"a": oracle.vectors(3)}, folder, oov="drop")
    with pytest.raises(InvalidValueError, match="no system to evaluate"):
        evaluate({}, folder)
    with pytest.raises(InvalidValueError, match="no word is in all of a, b: evaluate them one by one"):
        evaluate({"a": oracle.vectors(3), "b": oracle.vectors(3, prefix="x")}, folder, shared_vocabulary=True)


def test_the_shape_of_the_paper(folder: Path) -> None:
    frame = evaluate({"one": oracle.vectors(12), "two": oracle.vectors(12, seed=5)}, folder)
    table = table1(frame)
    assert table.columns == ["system", "SimLex999", "Google", "AP", "ours"]
    assert table["system"].to_list() == ["one", "two"]
    main = frame.filter(pl.col("system") == "two", ~pl.col("task").str.contains("/"), pl.col("metric") != "3CosMul")
    assert sorted(table.drop("system").row(1)) == sorted(main["value"].to_list())
    assert table1(frame, of="coverage").drop("system").row(0) == (1.0,) * 4


def test_names_of_the_papers_benchmarks() -> None:
    names = [
        "AP", "EN-WS-353-SIM", "EN-WS-353-REL", "EN-WS-353-ALL", "BLESS", "EN-RW-STANFORD", "msr-analogies",
        "EN-MEN-TR-3k", "semeval2012-task2", "google-analogies", "EN-SIMLEX-999", "EN-MC-30",
    ]  # fmt: skip
    rows = [("s", name, "similarity", "spearman", float(n), 1, 1.0) for n, name in enumerate(names)]
    schema = ["system", "benchmark", "task", "metric", "value", "count", "coverage"]
    table = table1(pl.DataFrame(rows, schema=schema, orient="row"))
    assert dict(zip(table.columns[1:], table.row(0)[1:], strict=True)) == {
        "SimLex999": 10, "MEN": 7, "WS353": 3, "RW": 5, "Google": 9, "MSR": 6, "SemEval2012(2)": 8, "BLESS": 4, "AP": 0,
        "EN-WS-353-SIM": 1, "EN-WS-353-REL": 2, "EN-MC-30": 11,
    }  # fmt: skip


def test_the_papers_own_table() -> None:
    table = paper_table1()
    assert table.shape == (12, 10)
    assert table["system"].to_list() == list(PAPER_TABLE_1)
    # "The best-performing PC static embeddings belong to the first layer of BERT": four of the nine are the best there
    best = table.unpivot(index="system").group_by("variable").agg(pl.col("system").sort_by("value").last())
    assert best.filter(pl.col("system") == "BERT, Layer 1").height >= 4


def test_similarity_and_analogies_as_gensim_scores_them(data: Path, glove: WordVectors) -> None:
    models = pytest.importorskip("gensim.models")
    keyed = models.KeyedVectors(glove.dimensions)
    keyed.add_vectors(list(glove.words), glove.vectors)
    folder = data / "word-benchmarks"
    frame = evaluate({"glove": glove}, folder / "similarity")
    for name in ("EN-SIMLEX-999", "EN-MEN-TR-3k", "EN-WS-353-ALL", "EN-SimVerb-3500", "EN-RW-STANFORD"):
        row = frame.row(by_predicate=pl.col("benchmark") == name, named=True)
        _, rho, missing = keyed.evaluate_word_pairs(str(folder / "similarity" / f"{name}.txt"))
        assert row["value"] == pytest.approx(rho.statistic, abs=1e-4), name
        assert row["coverage"] == pytest.approx(1 - missing / 100), name
    path = folder / "analogy" / "google-analogies.txt"
    frame = evaluate({"glove": glove}, path).filter(pl.col("metric") == "3CosAdd")
    _, sections = keyed.evaluate_word_analogies(str(path))
    for section in sections[:-1]:
        row = frame.row(by_predicate=pl.col("task") == f"analogy/{section['section']}", named=True)
        correct, wrong = len(section["correct"]), len(section["incorrect"])
        assert row["count"] == correct + wrong
        assert round((row["value"] or 0) * row["count"]) == correct


@pytest.mark.slow
def test_glove_on_every_benchmark(data: Path, glove: WordVectors) -> None:
    frame = evaluate({"glove": glove}, data / "word-benchmarks")
    [row] = table1(frame).to_dicts()
    expected = {"SimLex999": 0.24, "MEN": 0.62, "WS353": 0.53, "Google": 0.62, "MSR": 0.51, "BLESS": 0.65}
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=0.04)
    assert 0.1 < row["SemEval2012(2)"] < 0.3
    relations = frame.filter(pl.col("task").str.starts_with("relations/"), pl.col("metric") == "spearman")
    assert relations.height == 69
    again = evaluate({"glove": glove}, data / "word-benchmarks")
    assert frame.equals(again)
    random = WordVectors(glove.words, np.random.default_rng(0).standard_normal((len(glove), 50)))
    chance = table1(evaluate({"random": random}, data / "word-benchmarks")).row(0, named=True)
    assert all(abs(chance[name]) < 0.12 for name in ("SimLex999", "MEN", "Google", "MSR"))
    assert chance["BLESS"] < 0.5 < row["BLESS"]
