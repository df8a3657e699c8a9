"""What the commands print: JSON that is valid, tables that fit, files in the format asked for."""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from rich.cells import cell_len

import embstore as es
from embstore_cli.output import concordance
from tests.cli.conftest import Ran, Work
from tests.documents import check_command, commands
from tests.json_schemas import validator_of
from tests.store.example import flip
from tests.store_making import make_store

PLAN = ("extract", "corpus.txt", "planned.zarr", "--model", "model", "--dry-run")


def valid(ran: Ran, schema: str) -> Any:
    """What was printed, held against a schema."""
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    validator_of(schema).validate(printed)
    return printed


def test_plan_as_json(work: Work) -> None:
    plan = valid(work.run(*PLAN, "--json"), "plan")
    assert plan["sentences"] == 4
    assert plan["words"] == plan["occurrences"] == 33
    assert plan["layers"] == [0, 1, 2, 3]


def test_info_as_json(work: Work) -> None:
    described = valid(work.run("info", "store.zarr", "--json"), "info")
    assert described["path"] == "store.zarr"
    assert described["n_rows"] == described["n_committed_rows"] == 33
    assert described["model"]["architecture"] == "BertModel"
    make_store(work / "labels.h5")
    assert valid(work.run("info", "labels.h5", "--json"), "info")["labels"] == {"upos": 3}


@pytest.mark.parametrize("options", [(), ("--most", "1")])
def test_lookup_as_json(options: tuple[str, ...], work: Work) -> None:
    found = valid(work.run("lookup", "store.zarr", "bank", "--json", *options), "lookup")
    whole = es.open(work / "store.zarr").select(words="bank").table().to_dicts()
    assert found == (whole[:1] if options else whole)
    assert [row["text"].split()[row["position"]] for row in whole] == ["bank", "bank"]


def test_a_condition_chooses_occurrences(work: Work) -> None:
    rows = es.open(work / "store.zarr").select(words="bank", where="position > 2").rows.tolist()
    ran = work.run("lookup", "store.zarr", "bank", "--json", "--where", "position > 2")
    assert ([row["occurrence"] for row in json.loads(ran.out)], len(rows)) == (rows, 1)
    none = work.run("lookup", "store.zarr", "bank", "--where", "position > 99")
    assert (none.status, none.out.splitlines()[0]) == (0, "bank: 0 occurrences")


def test_verify_of_a_damaged_store(work: Work) -> None:
    shard = next((work / "store.zarr" / "hidden_states" / "c").rglob("0"))
    while shard.is_dir():
        shard = next(shard.iterdir())
    flip(shard, 1000)
    before = work.contents()
    ran = work.run("verify", "store.zarr", "--json")
    assert ran.status == 1
    report = valid(Ran(0, ran.out, ran.err), "verify")
    assert [fault["partition"] for fault in report["faults"]] == [0]
    shown = work.run("verify", "store.zarr")
    assert shown.status == 1
    assert "partition 0" in shown.out
    assert "--repair" in shown.out.splitlines()[-1]
    assert work.contents() == before
    assert work.run("extract", "corpus.txt", "store.zarr", "--model", "model", "--repair").status == 0
    report = valid(work.run("verify", "store.zarr", "--json"), "verify")
    assert (report["ok"], report["faults"], report["missing"]) == (True, [], [])


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_lookup_fits_the_width(columns: int, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    make_store(work / "labels.zarr")
    for arguments in (("labels.zarr", "new york"), ("labels.zarr", "évident"), ("store.zarr", "bank")):
        ran = work.run("lookup", *arguments, "--most", "9")
        assert (ran.status, ran.err) == (0, "")
        lines = ran.out.splitlines()
        assert max(map(cell_len, lines)) <= columns
        rows = [line for line in lines[2:] if not line.startswith("...")]
        assert len(rows) == len(lines) - 2 - (lines[-1].startswith("..."))
        column = lines[1].index("  word") + 2
        assert all(line[column:].startswith(arguments[1]) for line in rows), "the words are aligned in one column"


def test_lookup_has_labels_and_says_how_many_more_there_are(work: Work) -> None:
    made = make_store(work / "labels.zarr")
    found = valid(work.run("lookup", "labels.zarr", "new york", "--json"), "lookup")
    assert found == [row for row in made.table if row["word"] == "new york"]
    count = sum(row["word"] == "bank" for row in made.table)
    ran = work.run("lookup", "labels.zarr", "bank", "-n", "3")
    assert ran.out.startswith(f"bank: {count} occurrences")
    assert f"... {count - 3} more" in ran.out


def context(text: str, word: str, **labels: str | None) -> tuple[list[dict[str, Any]], list[tuple[str, str, str]]]:
    plain = {"occurrence": 7, "word": word, "sentence": 0, "position": 5, "subwords": 1, "source": 0, "document": 0}
    before, _, after = text.partition(f"[{word}]")
    return [{**plain, **labels, "text": text}], [(before, word, after)]


def test_a_concordance_cuts_from_the_word_outwards() -> None:
    text = "one two three four five [bank] six seven eight nine ten"
    (row,) = concordance(*context(text, "bank", ner=None), width=40)
    assert row["word"] == "bank"
    assert row["left context"].startswith("…")
    assert row["left context"].endswith("four five")
    assert row["right context"].startswith("six seven")
    assert row["right context"].endswith("…")
    assert "ner" not in row, "a column that says nothing of these rows"
    (row,) = concordance(*context("銀行 の 前 に [銀行] が あり ます ね え と 言い まし た", "銀行"), width=44)
    assert row["word"] == "銀行"
    assert sum(map(cell_len, row.values())) + 6 <= 44, "wide characters count as two"


def test_a_concordance_has_each_occurrence_in_a_line() -> None:
    (row,) = concordance(*context("one\r\ntwo\tthree\x1b [bank]\n\n of", "bank"), width=80)
    assert row == {"row": "7", "left context": "one↵two three\\x1b", "word": "bank", "right context": "↵↵ of"}
    (row,) = concordance(*context("she saw [sara foster] today", "sara foster", kind="person"), width=80)
    assert row == {
        "row": "7", "left context": "she saw", "word": "sara foster", "right context": "today", "kind": "person"
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_lookup_to_a_file(suffix: str, work: Work) -> None:
    before = set(work.contents())
    work.does("lookup", "store.zarr", "bank", "--most", "1", "--out", f"bank.{suffix}")
    read = {"csv": pl.read_csv, "parquet": pl.read_parquet, "json": pl.read_json}[suffix](work / f"bank.{suffix}")
    whole = es.open(work / "store.zarr").select(words="bank").table().to_dicts()
    assert read.select("occurrence", "word", "text").to_dicts() == [
        {name: row[name] for name in ("occurrence", "word", "text")} for row in whole
    ]
    assert set(work.contents()) - before == {f"bank.{suffix}"}


def test_a_table_that_cannot_be_written_leaves_the_old_one(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    work.write("bank.csv", "old\n")
    monkeypatch.setattr("os.replace", refuse)
    work.refuses("lookup store.zarr bank --out bank.csv", "bank.csv", "disk", status=1)


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every disk have a kilobyte left."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1, used=1, free=1024))


def test_plan_for_a_full_disk_is_printed_and_refused(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch)
    ran = work.run(*PLAN, "--json")
    assert (ran.status, json.loads(ran.out)["free_nbytes"]) == (1, 1024)
    assert ran.err.startswith("embstore: the store needs ")
    assert "1.0 KiB free" in ran.err
    assert "choose fewer layers or words, or another folder" in ran.err
    assert ran.err.count("\n") == 1


def test_an_unfinished_store_is_reported(work: Work) -> None:
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        make_store(work / "part.zarr", leave_out=(1,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [("default", None, Warning, None, 0)])
        ran = work.run("info", "part.zarr", "--json")
    assert ran.status == 0
    assert ran.err.startswith("embstore: part.zarr is not finished: ")
    assert ran.err.count("\n") == 1
    described = json.loads(ran.out)
    assert described["n_committed_rows"] < described["n_rows"]


@pytest.mark.parametrize("command", commands())
def test_help_fits_eighty_columns_and_ends_with_an_example(
    command: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = work.run(*command.split()[1:], "--help")
    assert ran.status == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "{" not in re.sub(r"\{(csv,parquet,json|png,svg,pdf)\}", "", ran.out)
    shown = re.sub(r"\[ARGS\]\.\.\.|[A-Z]\.\.\.", "", ran.out)
    assert "..." not in shown, "a summary that is cut short"
    if hasattr(commands()[command], "commands"):
        assert "[OPTIONS] COMMAND [ARGS]..." in ran.out
    else:
        example = ran.out.partition("Example: ")[2]
        assert example.startswith(f"{command} ")
        check_command(shlex.split(example))


def test_commands_are_listed_by_purpose(work: Work) -> None:
    shown = work.run("--help").out
    headings = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Options", "Start here", "Stores", "Analysis", "Models", "Probes and studies"]


def test_info_begins_with_what_people_ask_first(work: Work) -> None:
    lines = work.run("info", "store.zarr").out.splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == ["store", "vectors", "layers", "model", "words"]
    everything = work.run("info", "store.zarr", "--verbose").out.splitlines()
    assert {line.split(":")[0] for line in everything} > {line.split(":")[0] for line in lines}
    assert lines[0].endswith("store.zarr (finished)")
    assert "33 rows x 32 float16" in lines[1]
    assert not any(re.search(r"[0-9a-f]{32}", line) for line in everything), "checksums are in --json only"
