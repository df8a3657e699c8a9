"""Bad input ends in one line that says what was wrong and what to do, and leaves everything as it was."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from embstore_studies import STUDIES
from embstore_studies.study import SETTINGS
from tests.cli.conftest import Work

EXTRACT = "extract corpus.txt new.zarr --model model"


def edited(**fields: object) -> Callable[[Work], None]:
    """Edit the metadata of the store."""

    def prepare(work: Work) -> None:
        file = work / "store.zarr" / "zarr.json"
        node = json.loads(file.read_text())
        node["attributes"]["embstore"].update(fields)
        file.write_text(json.dumps(node))

    return prepare


def file(name: str, content: str | bytes) -> Callable[[Work], object]:
    return lambda work: work.write(name, content)


# A command, what its one line says, and what is done before.
Bad = tuple[str, tuple[str, ...], Callable[[Work], object] | None]
NOTHING_KEPT = ("no word is left", "not chosen")
BAD: dict[str, Bad] = {
    "missing corpus": ("extract gone.txt new.zarr --model model", ("no corpus at gone.txt",), None),
    "wrong encoding": (
        "extract latin.txt new.zarr --model model",
        ("latin.txt:1", "0xef"),
        file("latin.txt", "a naïve café\n".encode("latin-1")),
    ),
    "unknown layer": (f"{EXTRACT} --layers 0,9", ("layer 9", "0", "3"), None),
    "layers backwards": (f"{EXTRACT} --layers 3-1", ("3-1",), None),
    "two windows": (
        f"{EXTRACT} --context-window 2 --attention-window 3",
        ("context window 2 and attention window 3 exclude",),
        None,
    ),
    "no word that occurs": (
        f"{EXTRACT} --config list.toml",
        NOTHING_KEPT,
        lambda work: (work.write("other.txt", "zebra\n"), work.write("list.toml", "word_list = 'other.txt'\n")),
    ),
    "model not named": ("extract corpus.txt new.zarr", ("--model", "--help"), None),
    "unknown command": ("extrakt corpus.txt", ("extrakt", "extract"), None),
    "hub unreachable": ("extract corpus.txt new.zarr --model some/model", ("'some/model'", "hub"), None),
    "other pooling": (
        "extract corpus.txt store.zarr --model model --pooling max",
        ("store.zarr", "pooling", "max", "mean"),
        None,
    ),
    "lookup of an unknown word": ("lookup store.zarr bnak", ("'bnak'", "'bank'"), None),
    "lookup to no folder": ("lookup store.zarr bank --out gone/bank.csv", ("gone/bank.csv", "folder gone"), None),
    "a table in a store": ("lookup store.zarr bank --out store.zarr/zarr.json", ("store.zarr is a store",), None),
    "a figure in a store": ("cka store.zarr --plot store.zarr/a.png", ("store.zarr is a store",), None),
    "a name that is not UTF-8": ("lookup store.zarr bank --out \udcff.csv", ("is not text", "UTF-8"), None),
    "labels with a name that is not UTF-8": (
        "label store.zarr \udcff.csv",
        ("is not text", "UTF-8"),
        file("\udcff.csv", "occurrence,x\n0,A\n"),
    ),
    "Parquet with a name that is not UTF-8": (
        "extract \udcff.parquet new.zarr --model model",
        ("is not text", "UTF-8"),
        file("\udcff.parquet", b"PAR1"),
    ),
    "verify a device": ("verify /dev/zero", ("/dev/zero is a pipe or device, not a store",), None),
    "condition before the model": ("extract corpus.txt n.zarr -m no/model --where word=", ("where 'word='",), None),
    "an option in a file": (
        f"{EXTRACT} --config a.toml",
        ("layers is not a setting", "options of the command are typed"),
        file("a.toml", "\ufefflayers = 0\n"),
    ),
    "newer store": ("info store.zarr", ("store.zarr", "99", "upgrade"), edited(format_version=99)),
    "edited metadata": ("info store.zarr", ("store.zarr", "changed", "verify"), edited(dtype="float32")),
    "export onto a file": ("export store.zarr there.h5", ("there.h5",), file("there.h5", b"precious")),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.quick(8)
def test_bad_input_is_one_line_and_leaves_everything_as_it_was(name: str, work: Work, tmp_path: Path) -> None:
    command, says, prepare = BAD[name]
    if prepare is not None:
        prepare(work)
    work.refuses(command, *says, status=1 if name == "edited metadata" else 2)
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("_helperlib.so: failed to map segment from shared object"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_too_little_memory_is_named_whatever_reports_it(
    error: Exception, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        try:
            raise error
        except Exception as cause:
            raise type(cause)(*cause.args) from cause

    monkeypatch.setattr("embstore.open", fail)
    ran = work.run("lookup", "store.zarr", "bank")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("embstore: out of memory: free some")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "settings", "says"),
    [
        ("zhao2020 corpus.txt -m model", "context_windows = [0, 2]", "full"),
        ("zhao2020 corpus.txt -m model", "traces = 3", "traces is not a setting"),
        ("zhao2020 corpus.txt -m model", "", "train"),
        ("tenney2019 tasks -m model -m other/model", "", "'model' cannot name a file of its own: give NAME=MODEL"),
        ("tenney2019 tasks -m a:b", "", "'a:b' cannot name a file of its own: give NAME=MODEL"),
        ("zhao2020 corpus.txt -m model", 'kind = "letter"', "letter"),
        ("tenney2019 tasks -m =", "", "--model '=': '' cannot name"),
        ("chomsky1957 tasks -m model", "", "unknown study 'chomsky1957': choose zhao2020"),
        ("zhao2020 corpus.txt -m model --kind a", "", "--kind is a setting: write kind = VALUE (text in"),
        ("ethayarajh2019 corpus.txt -m model --small", "", "ethayarajh2019 has one size"),
    ],
)
def test_bad_input_of_reproduce(options: str, settings: str, says: str, work: Work) -> None:
    work.write("study.toml", settings + "\n")
    ran = work.run("reproduce", *options.split(), "--out", "study", "--config", "study.toml")
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert not (work / "study" / "stores").exists()


@pytest.mark.parametrize("study", STUDIES)
def test_the_help_of_a_study_lists_its_settings_with_their_defaults(study: str, work: Work) -> None:
    ran = work.run("reproduce", study, "--help")
    assert ran.status == 0
    shown = " ".join(ran.out.partition(f"Settings of {study}")[2].split())
    for field in fields(STUDIES[study]):
        assert f" {field.name} " in shown, "a setting"
        assert SETTINGS[field.name][1] in shown, "what it is"
    assert "[default: 0]" in shown.partition(" seed ")[2]
    if study == "hewitt2019":
        assert 'epochs Of the training of probes, at most; none: the default of each probe. [default: "none"]' in shown
        assert "[default: [1, 2, 4, 8, 16, 32, 64]]" in shown
    assert f"Settings of {study}" not in work.run("reproduce", "--help").out
