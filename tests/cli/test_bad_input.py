"""Bad input ends in one line that says what was wrong and what to do, and leaves everything as it was."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import SENTENCES, Work


@dataclass(frozen=True)
class Bad:
    """A bad input: `prepare` makes it, `command` meets it; the one line must hold every one of `says`."""

    command: str
    says: tuple[str, ...]
    prepare: Callable[[Work], object] = lambda work: None
    status: int = 2


def corpus(name: str, text: str | bytes, *says: str, options: str = "") -> Bad:
    command = f"extract {name} new.zarr --model model {options}".strip()
    return Bad(command, says, lambda work: work.write(name, text))


def option(options: str, *says: str) -> Bad:
    return Bad(f"extract corpus.txt new.zarr --model model {options}", says)


def model(prepare: Callable[[Path], object], *says: str, status: int = 2, options: str = "") -> Bad:
    command = f"extract corpus.txt new.zarr --model model {options}".strip()
    return Bad(command, says, lambda work: prepare(work / "model"), status)


CORPORA = {
    "missing corpus": Bad("extract gone.txt new.zarr --model model", ("no corpus at gone.txt",)),
    "wrong encoding": corpus("latin.txt", "a naïve café\n".encode("latin-1"), "latin.txt:1", "0xef", "--set encoding"),
    "unknown suffix": corpus("corpus.docx", SENTENCES, "corpus.docx", "'.docx'", "--format"),
}

OPTIONS = {
    "unknown layer": option("--layers 0,9", "layer 9", "0", "3"),
    "layers that are none": option("--layers first", "'first'", "0,3,6-12"),
    "layers backwards": option("--layers 3-1", "3-1"),
    "no layers": option("--layers ,", "','", "0,3,6-12"),
    "max contexts 0": option("--max-contexts 0", "--max-contexts", "0", "1"),
    "negative seed": option("--set seed=-1", "seed", "-1"),
    "unknown label column": option("--label ner", "--label ner", "plain text has no labels"),
    "labelled words of a corpus without labels": Bad(
        "extract plain.conllu new.zarr --model model --label any",
        ("plain.conllu", "no word is left", "not chosen"),
        lambda work: work.write("plain.conllu", "1\tthe" + 8 * "\t_" + "\n\n"),
    ),
    "word list missing": option("--word-list gone.txt", "gone.txt"),
    "word list of another encoding": Bad(
        "extract corpus.txt new.zarr --model model --word-list latin.txt",
        ("latin.txt:1", "0xef", "save it as UTF-8, or name the encoding of a corpus"),
        lambda work: work.write("latin.txt", "naïve\n".encode("latin-1")),
    ),
    "word list of none that occurs": Bad(
        "extract corpus.txt new.zarr --model model --word-list other.txt",
        ("corpus.txt", "no word is left", "not chosen"),
        lambda work: work.write("other.txt", "zebra\nQuixotic\n"),
    ),
    "negative batch size": option("--set batch_subwords=-8", "batch_subwords=-8", "0 or more"),
    "batch size that is no number": option("--set batch_subwords=many", "batch_subwords=many", "whole number"),
    "unknown unit": option("--set unit=letter", "letter", "word", "subword"),
    "unknown pooling": option("--pooling sum", "'sum'", "mean", "last"),
    "unknown dtype": option("--dtype float8", "'float8'", "float16", "int8"),
    "unknown option": option("--epochs 3", "--epochs", "--help"),
    "model not named": Bad("extract corpus.txt new.zarr", ("--model", "--help")),
    "no store named": Bad("extract corpus.txt --model model", ("STORE", "--help")),
    "unknown command": Bad("extrakt corpus.txt", ("extrakt", "extract")),
}


def _changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    """Write the weights again after a change."""

    def prepare(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return prepare


def _no_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def _scaled(weights: dict[str, torch.Tensor]) -> None:
    """Let the output of layer 2 reach beyond float16."""
    weights["encoder.layer.1.output.LayerNorm.bias"] += 1e5


MODELS = {
    "no tokenizer": model(_no_tokenizer, "'model'", "tokenizer.json"),
    "hub name that is none": Bad("extract corpus.txt new.zarr --model bert base", ("argument", "base")),
    "hub unreachable": Bad("extract corpus.txt new.zarr --model someone/some-model", ("'someone/some-model'", "hub")),
    "beyond float16": model(_changed(_scaled), "layer 2", "float16", "float32", "bfloat16", status=1),
}


def _newer(work: Work) -> None:
    _edit(work, lambda fields: fields.update(format_version=99))


def _edited(work: Work) -> None:
    _edit(work, lambda fields: fields.update(dtype="float32"))


def _edit(work: Work, change: Callable[[dict[str, object]], object]) -> None:
    file = work / "store.zarr" / "zarr.json"
    node = json.loads(file.read_text())
    change(node["attributes"]["embstore"])
    file.write_text(json.dumps(node))


AGAIN = "extract corpus.txt store.zarr --model model"
HDF5_HEADER = b"\x89HDF\r\n\x1a\n"

STORES = {
    "other pooling": Bad(f"{AGAIN} --pooling max", ("store.zarr", "pooling", "max", "mean")),
    "plan for another pooling": Bad("plan corpus.txt -m gone --store store.zarr --pooling max", ("pooling", "mean")),
    "plan for windows in no folder": Bad(
        "plan corpus.txt --model gone --store gone/x.zarr --context-window 0,full", ("gone/x-k0.zarr", "no folder gone")
    ),
    "endless batch": option("--set batch_subwords=99999999999999999999", "99999999999999999999", "64 bits"),
    "lookup of an unknown word": Bad("lookup store.zarr bnak", ("'bnak'", "'bank'")),
    "lookup in no store": Bad("lookup gone.zarr bank", ("no store at gone.zarr",)),
    "lookup of none": Bad("lookup store.zarr bank --most 0", ("--most 0", "1 or more")),
    "lookup to no known suffix": Bad("lookup store.zarr bank --out bank.xlsx", ("bank.xlsx", ".csv", ".parquet")),
    "lookup to no folder": Bad("lookup store.zarr bank --out gone/bank.csv", ("gone/bank.csv", "folder gone")),
    "lookup to a folder": Bad("lookup store.zarr bank --out model", ("model", "folder")),
    "info on a folder": Bad("info model", ("model", "Zarr")),
    "info on a newer store": Bad("info store.zarr", ("store.zarr", "99", "upgrade"), _newer),
    "info on edited metadata": Bad("info store.zarr", ("store.zarr", "changed", "verify"), _edited, status=1),
    "info on a header of HDF5": Bad(
        "info cut.h5", ("cut.h5", "verify"), lambda work: work.write("cut.h5", HDF5_HEADER + bytes(90)), status=1
    ),
    "export onto a file": Bad(
        "export store.zarr there.h5", ("there.h5",), lambda work: work.write("there.h5", b"precious")
    ),
    "import of no file": Bad("import gone.hdf5 new.zarr", ("gone.hdf5",)),
    "bench of no sentences": Bad("bench extract corpus.txt --model model --sentences 0", ("0",)),
    "bench of no store": Bad("bench all gone.zarr --quick", ("no store at gone.zarr",)),
    "bench into a table": Bad("bench all --out report.csv", ("report.csv", ".json")),
}

BAD = CORPORA | OPTIONS | MODELS | STORES


@pytest.fixture(autouse=True, scope="module")
def what_is_loaded_stays(made: Path) -> None:
    """Let each test's collection look at what that test left only, not at torch and transformers again."""
    gc.freeze()


@pytest.mark.parametrize("name", BAD)
@pytest.mark.quick(40)
def test_bad_input_is_one_line_and_leaves_everything_as_it_was(name: str, work: Work, tmp_path: Path) -> None:
    bad = BAD[name]
    bad.prepare(work)
    before = work.contents()

    ran = work.run(*bad.command.split())

    assert ran.err.startswith("embstore: "), ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert len(ran.err) < 600, ran.err
    assert ran.status == bad.status, ran.err
    for part in bad.says:
        assert part in ran.err, ran.err
    assert "Traceback" not in ran.out + ran.err
    assert "EMBSTORE_DEBUG" not in ran.err, "not an error that was foreseen"
    assert work.contents() == before
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("_helperlib.so: failed to map segment from shared object"),
        NameError("name 'PySeries' is not defined"),
        OSError("Could not find/load shared object file 'libllvmlite.so'"),
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
