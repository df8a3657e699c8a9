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

CONLLU = "1\tthe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tbank\tbank\tNOUN\tNN\t_\t0\troot\t_\t_\n\n"


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
    "empty file": corpus("empty.txt", "", "empty.txt", "no sentence"),
    "binary file": corpus("binary.txt", bytes(range(256)) * 9, "binary.txt", "binary"),
    "wrong encoding": corpus("latin.txt", "a naïve café\n".encode("latin-1"), "latin.txt:1", "0xef", "--set encoding"),
    "unknown encoding": option("--set encoding=klingon", "'klingon'", "utf-8"),
    "JSON that is none": corpus("bad.jsonl", "{'text': 1}\n", "bad.jsonl:1", "JSON"),
    "unknown suffix": corpus("corpus.docx", SENTENCES, "corpus.docx", "'.docx'", "--format"),
    "unknown format": option("--format docx", "'docx'", "conllu"),
    "unknown split": option("--split letters", "'letters'", "sentences", "lines"),
    "unknown normal form": option("--set normalize=nfz", "'nfz'", "nfc"),
    "columns of plain text": option("--set columns=word,pos", "columns", "text"),
    "folder without a corpus": Bad(
        "extract nothing new.zarr --model model", ("nothing", "no file"), lambda work: (work / "nothing").mkdir()
    ),
    "folder of two formats": Bad(
        "extract both new.zarr --model model",
        ("conllu", "text", "--format"),
        lambda work: [(work / "both").mkdir(), work.write("both/a.txt", "a b\n"), work.write("both/b.conllu", CONLLU)],
    ),
}

OPTIONS = {
    "unknown layer": option("--layers 0,9", "layer 9", "0", "3"),
    "layer below all": option("--layers -5", "layer -5", "0", "3"),
    "layers that are none": option("--layers first", "'first'", "0,3,6-12"),
    "layers backwards": option("--layers 3-1", "3-1"),
    "no layers": option("--layers ,", "','", "0,3,6-12"),
    "min contexts 0": option("--set min_contexts=0", "min_contexts", "0", "1"),
    "max contexts 0": option("--max-contexts 0", "--max-contexts", "0", "1"),
    "negative max contexts": option("--max-contexts -3", "--max-contexts", "-3", "1"),
    "negative seed": option("--set seed=-1", "seed", "-1"),
    "per without max contexts": option("--set per=upos", "'upos'", "--max-contexts"),
    "per an unknown column": option("--max-contexts 2 --set per=upos", "'upos'", "none"),
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
    "word list empty": Bad(
        "extract corpus.txt new.zarr --model model --word-list none.txt",
        ("none.txt", "no word"),
        lambda work: work.write("none.txt", "\n\n"),
    ),
    "word list of none that occurs": Bad(
        "extract corpus.txt new.zarr --model model --word-list other.txt",
        ("corpus.txt", "no word is left", "not chosen"),
        lambda work: work.write("other.txt", "zebra\nQuixotic\n"),
    ),
    "max length too small": option("--set max_length=2", "2", "special", "3 or more"),
    "max length 0": option("--set max_length=0", "0", "1 to 16,777,216"),
    "max length too large": option("--set max_length=9999", "9999", "320 or less"),
    "batch size 0": option("--set batch_subwords=0", "batch size 0", "1 to 16,777,216"),
    "negative batch size": option("--set batch_subwords=-8", "batch_subwords=-8", "0 or more"),
    "batch size that is no number": option("--set batch_subwords=many", "batch_subwords=many", "whole number"),
    "unknown unit": option("--set unit=letter", "letter", "word", "subword"),
    "unknown pooling": option("--pooling sum", "'sum'", "mean", "last"),
    "unknown dtype": option("--dtype float8", "'float8'", "float16", "int8"),
    "unknown device": option("--device abacus", "'abacus'", "cuda"),
    "unknown compute dtype": option("--set compute_dtype=int3", "'int3'", "bfloat16"),
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


def _pickled(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")


def _nan(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.layer.1.output.dense.weight"][3, 5] = torch.nan


def _reshaped(weights: dict[str, torch.Tensor]) -> None:
    name = "encoder.layer.1.output.dense.weight"
    weights[name] = weights[name][:-1].clone()


def _config(**changes: object) -> Callable[[Path], object]:
    def prepare(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return prepare


def _write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def _scaled(weights: dict[str, torch.Tensor]) -> None:
    """Let the output of layer 2 reach beyond float16."""
    weights["encoder.layer.1.output.LayerNorm.bias"] += 1e5


MODELS = {
    "model folder missing": Bad("extract corpus.txt new.zarr --model ./gone", ("'./gone'", "config.json")),
    "model is a file": Bad("extract corpus.txt new.zarr --model corpus.txt", ("'corpus.txt'", "folder")),
    "config is no JSON": model(_write("config.json", b"{"), "'model'", "config.json"),
    "no tokenizer": model(_no_tokenizer, "'model'", "tokenizer.json"),
    "only pickled weights": model(_pickled, "'model'", "pickled", "safe_serialization"),
    "NaN in the weights": model(_changed(_nan), "'model'", "NaN", "encoder.layer.1.output.dense.weight"),
    "weights of another shape": model(_changed(_reshaped), "'model'", "cannot be loaded"),
    "unknown architecture": model(_config(model_type="quantumnet"), "'model'", "quantumnet"),
    "code in the folder": model(
        _config(model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModel": "own.Own"}), "'model'", "config.json"
    ),
    "hub name that is none": Bad("extract corpus.txt new.zarr --model bert base", ("argument", "base")),
    "hub unreachable": Bad("extract corpus.txt new.zarr --model someone/some-model", ("'someone/some-model'", "hub")),
    "beyond float16": model(_changed(_scaled), "layer 2", "float16", "float32", "bfloat16", status=1),
    "plan of a model without tokenizer": Bad(
        "plan corpus.txt --model model", ("'model'", "tokenizer.json"), lambda work: _no_tokenizer(work / "model")
    ),
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


def _other_folder(work: Work) -> None:
    (work / "other.zarr").mkdir()
    work.write("other.zarr/data", b"mine")


AGAIN = "extract corpus.txt store.zarr --model model"
HDF5_HEADER = b"\x89HDF\r\n\x1a\n"

STORES = {
    "suffix of no store": Bad("extract corpus.txt store.npz --model model", (".zarr", ".h5", "store.npz")),
    "store is a file": Bad(
        "extract corpus.txt file.zarr --model model",
        ("file.zarr", "folder"),
        lambda work: work.write("file.zarr", b"x"),
    ),
    "store is another folder": Bad(
        "extract corpus.txt other.zarr --model model", ("other.zarr", "Zarr"), _other_folder
    ),
    "HDF5 store is a folder": Bad(
        "extract corpus.txt new.h5 --model model", ("new.h5", "file"), lambda work: (work / "new.h5").mkdir()
    ),
    "HDF5 store is text": Bad(
        "extract corpus.txt text.h5 --model model", ("text.h5", "HDF5"), lambda work: work.write("text.h5", SENTENCES)
    ),
    "store in no folder": Bad("extract corpus.txt gone/new.zarr --model model", ("gone/new.zarr", "no folder gone")),
    "store in a file": Bad("extract corpus.txt corpus.txt/new.zarr --model model", ("corpus.txt/new.zarr", "folder")),
    "store of a newer format": Bad(AGAIN, ("store.zarr", "99", "upgrade"), _newer),
    "edited metadata": Bad(AGAIN, ("store.zarr", "changed", "verify"), _edited, status=1),
    "other pooling": Bad(f"{AGAIN} --pooling max", ("store.zarr", "pooling", "max", "mean")),
    "other layers": Bad(f"{AGAIN} --layers last", ("store.zarr", "layers")),
    "other dtype": Bad(f"{AGAIN} --dtype float32", ("store.zarr", "float32", "float16")),
    "other corpus": Bad(AGAIN, ("store.zarr", "corpus"), lambda work: work.write("corpus.txt", "another text\n")),
    "other model": Bad(
        AGAIN, ("store.zarr", "model"), lambda work: _changed(lambda weights: weights.popitem())(work / "model")
    ),
    "plan for a store in no folder": Bad(
        "plan corpus.txt --model model --store gone/x.zarr", ("gone/x.zarr", "no folder gone")
    ),
    "plan for a store of no format": Bad("plan corpus.txt --model model --store x.txt", ("x.txt", ".zarr or .h5")),
    "plan for a store of another corpus": Bad(
        "plan corpus.txt --model gone --store store.zarr",
        ("store.zarr", "corpus"),
        lambda work: work.write("corpus.txt", "b\n"),
    ),
    "plan for another pooling": Bad("plan corpus.txt -m gone --store store.zarr --pooling max", ("pooling", "mean")),
    "plan for windows in no folder": Bad(
        "plan corpus.txt --model gone --store gone/x.zarr --context-window 0,full", ("gone/x-k0.zarr", "no folder gone")
    ),
    "endless context window": Bad(
        "plan corpus.txt -m gone --context-window 99999999999999999999",
        ("context window 99999999999999999999", "1,000,000"),
    ),
    "endless batch": option("--set batch_subwords=99999999999999999999", "99999999999999999999", "64 bits"),
    "plan for a store in a file": Bad("plan corpus.txt --model gone/x/y", ("'gone/x/y'", "config.json")),
    "lookup of an unknown word": Bad("lookup store.zarr bnak", ("'bnak'", "'bank'")),
    "lookup of a word like none": Bad("lookup store.zarr 0123456789", ("'0123456789'", "spelled")),
    "lookup in no store": Bad("lookup gone.zarr bank", ("no store at gone.zarr",)),
    "lookup of none": Bad("lookup store.zarr bank --most 0", ("--most 0", "1 or more")),
    "lookup to no known suffix": Bad("lookup store.zarr bank --out bank.xlsx", ("bank.xlsx", ".csv", ".parquet")),
    "lookup to no folder": Bad("lookup store.zarr bank --out gone/bank.csv", ("gone/bank.csv", "folder gone")),
    "lookup to a folder": Bad("lookup store.zarr bank --out model", ("model", "folder")),
    "info on no store": Bad("info gone.zarr", ("no store at gone.zarr",)),
    "info on a corpus": Bad("info corpus.txt", ("corpus.txt", "HDF5")),
    "info on a folder": Bad("info model", ("model", "Zarr")),
    "info on a newer store": Bad("info store.zarr", ("store.zarr", "99", "upgrade"), _newer),
    "info on edited metadata": Bad("info store.zarr", ("store.zarr", "changed", "verify"), _edited, status=1),
    "info on a header of HDF5": Bad(
        "info cut.h5", ("cut.h5", "verify"), lambda work: work.write("cut.h5", HDF5_HEADER + bytes(90)), status=1
    ),
    "info on a Zarr array": Bad(
        "info store.zarr/hidden_states",
        ("store.zarr/hidden_states", "embstore"),
    ),
    "verify of no store": Bad("verify gone.zarr", ("no store at gone.zarr",)),
    "export of no store": Bad("export gone.zarr new.h5", ("no store at gone.zarr",)),
    "export onto a file": Bad(
        "export store.zarr there.h5", ("there.h5",), lambda work: work.write("there.h5", b"precious")
    ),
    "export onto itself": Bad("export store.zarr store.zarr", ("store.zarr",)),
    "export to no known suffix": Bad("export store.zarr new.npz", ("new.npz", ".zarr", ".h5")),
    "export to no folder": Bad("export store.zarr gone/new.h5", ("gone",)),
    "export of an unknown layer": Bad("export store.zarr new.h5 --layers 9", ("layer 9",)),
    "export of layers that are none": Bad("export store.zarr new.h5 --layers top", ("'top'",)),
    "export of an unknown dtype": Bad("export store.zarr new.h5 --dtype float8", ("'float8'", "float16")),
    "export of words that are not there": Bad(
        "export store.zarr new.h5 --word-list w.txt", ("'zebra'",), lambda work: work.write("w.txt", "zebra\n")
    ),
    "export of several layers as a map": Bad(
        "export store.zarr new.parquet --atlas --layers 0,2", ("--layers 0,2", "one")
    ),
    "export to both maps": Bad("export store.zarr new.parquet --atlas --projector", ("--atlas", "--projector", "one")),
    "export of a map to no table": Bad("export store.zarr new.csv --atlas", ("new.csv", ".parquet")),
    "export of a map as int8": Bad("export store.zarr new --projector --dtype int8", ("--dtype int8",)),
    "import of no file": Bad("import gone.hdf5 new.zarr", ("gone.hdf5",)),
    "import of text": Bad("import corpus.txt new.zarr", ("corpus.txt", "HDF5")),
    "import of a store": Bad("import store.zarr new.zarr", ("store.zarr",)),
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
@pytest.mark.quick(60)
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
