"""`embstore evaluate`: a table for people, JSON that is valid, one line for bad input."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from embstore.vectors import WordVectors, evaluate, write_vectors
from tests.cli.conftest import Ran
from tests.json_schemas import validator_of
from tests.vectors.evaluation import oracle

Run = Callable[..., Ran]
VALIDATOR = validator_of("evaluate")
ALL = ("one.txt", "two.bin", "--benchmarks", "benchmarks")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of vectors, `one` of 12 words and `two` of eight, and benchmarks about w0 to w11."""
    monkeypatch.chdir(tmp_path)
    write_vectors(oracle.vectors(12), tmp_path / "one.txt")
    write_vectors(oracle.vectors(8, seed=1), tmp_path / "two.bin")
    files = {
        "similarity/EN-SIMLEX-999.txt": "".join(f"w{n}\tw{(n * 5 + 1) % 12}\t{n * 7 % 12}\n" for n in range(12)),
        "similarity/ours.txt": "".join(f"W{n} w{n + 1} {n % 3}\n" for n in range(11)),
        "analogy/google-analogies.txt": ": family\nw0 w1 w2 w3\nw4 w5 w6 w7\n: gram1\nw8 w9 w10 w11\n",
        "categorisation/AP.txt": "".join(f"w{n}\tk{n % 3}\n" for n in range(12)),
    }
    for name, text in files.items():
        path = tmp_path / "benchmarks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def systems() -> dict[str, WordVectors]:
    return {"one": oracle.vectors(12), "two": oracle.vectors(8, seed=1)}


def test_table(run: Run) -> None:
    ran = run("evaluate", *ALL)
    assert (ran.status, ran.err) == (0, "")
    lines = [line.split() for line in ran.out.splitlines() if line.strip()]
    assert lines[0] == ["system", "SimLex999", "Google", "AP"]
    assert [line[0] for line in lines] == ["system", "one", "coverage", "two", "coverage"] * 2
    assert lines[2] == ["coverage", "100%", "100%", "100%"]
    assert lines[5] == ["system", "ours"]
    similarity = evaluate(systems(), "benchmarks").filter(pl.col("benchmark") == "EN-SIMLEX-999")["value"]
    assert [lines[1][1], lines[3][1]] == [f"{value:.3f}" for value in similarity]


def test_equal_coverage_is_printed_once(run: Run) -> None:
    out = run("evaluate", *ALL, "--shared-vocabulary").out
    first = [line.split()[0] for line in out.splitlines()[:4] if line]
    assert first == ["system", "one", "two", "coverage"]


def test_the_papers_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = run("evaluate", *ALL, "--set", "paper=true").out
    assert "Ethayarajh 2019, Table 1, as printed" in out
    line = next(line for line in out.splitlines() if line.startswith("BERT, Layer 1 "))
    assert line.split()[3:] == ["0.315", "0.200", "0.394", "0.208", "0.236", "0.389", "0.166", "0.365", "0.321"]


def test_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = run("evaluate", *ALL, "--set", "paper=true").out
    assert max(map(len, out.splitlines())) <= 40
    assert out.count("0.315") == out.count("0.389") == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"oov": "mean"},
        {"shared_vocabulary": True},
        {"lowercase": False},
        {"seed": 7, "oov": "mean"},
    ],
)
def test_json(options: dict[str, Any], run: Run) -> None:
    flags = {"oov": "--oov=mean", "shared_vocabulary": "--shared-vocabulary"}
    given = [flags.get(name, f"--set={name}={str(value).lower()}") for name, value in options.items()]
    ran = run("evaluate", *ALL, *given, "--json")
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    VALIDATOR.validate(printed)
    assert printed["scores"] == evaluate(systems(), "benchmarks", **options).to_dicts()
    assert printed["systems"][1] == {"name": "two", "path": "two.bin", "words": 8, "dimensions": 6}
    assert {name: printed[name] for name in options} == options


INVALID: dict[str, tuple[Callable[[Any], object], str]] = {
    "no systems": (lambda it: it.pop("systems"), "$"),
    "unknown member": (lambda it: it.update(more=1), "$"),
    "unknown oov": (lambda it: it.update(oov="drop"), "$.oov"),
    "negative seed": (lambda it: it.update(seed=-1), "$.seed"),
    "no scores": (lambda it: it.update(scores=[]), "$.scores"),
    "system without words": (lambda it: it["systems"][0].update(words=0), "$.systems[0].words"),
    "score without value": (lambda it: it["scores"][0].pop("value"), "$.scores[0]"),
    "value beyond one": (lambda it: it["scores"][0].update(value=1.5), "$.scores[0].value"),
    "coverage in percent": (lambda it: it["scores"][0].update(coverage=97), "$.scores[0].coverage"),
    "unknown task": (lambda it: it["scores"][0].update(task="rhyme"), "$.scores[0].task"),
    "unknown metric": (lambda it: it["scores"][0].update(metric="mse"), "$.scores[0].metric"),
}


@pytest.mark.parametrize(("break_", "where"), INVALID.values(), ids=INVALID)
def test_the_schema_refuses(break_: Callable[[Any], object], where: str) -> None:
    score = {"system": "s", "benchmark": "b", "task": "similarity", "metric": "spearman"}
    good = {
        "systems": [{"name": "s", "path": "s.txt", "words": 3, "dimensions": 2}],
        "benchmarks": "folder",
        "oov": "skip",
        "lowercase": True,
        "shared_vocabulary": False,
        "seed": 0,
        "scores": [{**score, "value": None, "count": 0, "coverage": 0.0}],
    }
    VALIDATOR.validate(good)
    bad = copy.deepcopy(good)
    break_(bad)
    assert [error.json_path for error in VALIDATOR.iter_errors(bad)] == [where]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
def test_out(suffix: str, run: Run) -> None:
    assert run("evaluate", *ALL, "--out", f"scores{suffix}").status == 0
    read = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".json": pl.read_json}[suffix]
    assert read(f"scores{suffix}").to_dicts() == evaluate(systems(), "benchmarks").to_dicts()


def test_limit(run: Run) -> None:
    printed = json.loads(run("evaluate", *ALL, "--set", "limit=5", "--json").out)
    assert [system["words"] for system in printed["systems"]] == [5, 5]


def test_systems_of_the_same_name_go_by_their_folders(folder: Path, run: Run) -> None:
    (folder / "more").mkdir()
    write_vectors(oracle.vectors(3), folder / "more" / "one.txt")
    printed = json.loads(run("evaluate", "one.txt", "more/one.txt", *ALL[1:], "--json").out)
    assert [system["name"] for system in printed["systems"]] == [f"{folder.name}/one.txt", "more/one.txt", "two"]


def test_unknown_files_and_surplus_words_are_reported(folder: Path, run: Run) -> None:
    (folder / "benchmarks" / "notes.md").write_text("Notes.\n")
    (folder / "one.txt").write_text((folder / "one.txt").read_text().replace("12 6", "11 6", 1))
    ran = run("evaluate", *ALL)
    assert ran.status == 0
    assert ran.err.splitlines() == [
        "embstore: benchmarks: 1 file is not of a known format: notes.md",
        "embstore: one.txt: 12 words, but its header says 11: the others are ignored",
    ]


def test_an_undefined_score(folder: Path, run: Run) -> None:
    (folder / "benchmarks" / "similarity" / "other.txt").write_text("x y 1\n")
    assert "none" in run("evaluate", *ALL).out


BAD: dict[str, tuple[str, str]] = {
    "no option": ("one.txt", "Missing option '--benchmarks'"),
    "oov": ("one.txt --benchmarks benchmarks --oov drop", "--oov 'drop' is not allowed: give skip, mean"),
    "seed": ("one.txt --benchmarks benchmarks --set seed=-1", "seed=-1 is not allowed"),
    "out": ("one.txt --benchmarks benchmarks --out scores.txt", "--out scores.txt has no known suffix"),
    "same file twice": ("one.txt one.txt --benchmarks benchmarks", "two files of vectors are called"),
}


@pytest.mark.parametrize(("command", "says"), BAD.values(), ids=BAD)
def test_bad_input(command: str, says: str, folder: Path, run: Run) -> None:
    before = sorted(folder.rglob("*"))
    ran = run("evaluate", *command.split())
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1
    assert sorted(folder.rglob("*")) == before


def test_help(run: Run) -> None:
    out = run("evaluate", "--help").out
    assert "Usage: embstore evaluate [OPTIONS] VECTORS...\n" in out
    assert "--shared-vocabulary" in out
