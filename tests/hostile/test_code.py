"""No file that embstore opens runs code: each reader is given files that would, and refuses them in one line."""

from __future__ import annotations

import ast
import bz2
import gzip
import io
import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zstandard

import embstore as es
from embstore.corpus.lines import read_word_list
from embstore.errors import EmbstoreError, ModelError
from embstore.models import load_encoder
from embstore.models.elmo.weights import read_options
from embstore.vectors.files import open_vector_table
from tests.models import tiny

ROOT = Path(__file__).parents[2]
MARKER = "the-code-ran"


class Runs:
    """An object whose pickle makes a folder when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (MARKER,)


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([[Runs()]], object), allow_pickle=True)
    return stream.getvalue()


def torch_file(*, zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save({"weight": Runs()}, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def archive(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(name, content)
    return stream.getvalue()


def hdf5() -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["0"] = np.frombuffer(pickle.dumps(Runs()), np.uint8)
        file.attrs["embstore"] = np.bytes_(pickle.dumps(Runs(), 0))
        file["sentence_to_index"] = np.bytes_(pickle.dumps(Runs(), 0))
    return stream.getvalue()


HOSTILE: dict[str, bytes] = {
    "pickle": pickle.dumps(Runs()),
    "pickle of text": pickle.dumps(Runs(), 0),
    "deep pickle": pickle.dumps({"__recursive_saveloads": ["a"], "a": {"__recursive_saveloads": ["b"], "b": Runs()}}),
    "npy of objects": npy(),
    "npz of objects": archive("vectors.npy", npy()),
    "torch": torch_file(zipped=True),
    "torch before 1.6": torch_file(zipped=False),
    "gzip of a pickle": gzip.compress(pickle.dumps(Runs())),
    "bz2 of a pickle": bz2.compress(pickle.dumps(Runs())),
    "zstd of a pickle": zstandard.ZstdCompressor().compress(pickle.dumps(Runs())),
    "zip of a pickle": archive("data.pkl", pickle.dumps(Runs())),
    "hdf5 of pickles": hdf5(),
    "python": f"__import__('os').mkdir({MARKER!r})\n".encode(),
    "yaml": f"!!python/object/apply:os.mkdir [{MARKER!r}]\n".encode(),
}


def corpus(path: Path, format: str) -> list[Any]:
    return list(es.open_corpus(path, format=format))  # type: ignore[arg-type]


def model(path: Path, name: str) -> Any:
    """Load a model whose file `name` is the hostile one."""
    folder = tiny.save("bert", path.parent / "model")
    own = path.read_bytes()
    if name.startswith("pytorch_model"):
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(own)
    return es.load_encoder(folder)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "word vectors": ("v.kv", es.vectors.read_vectors),
    "word vectors as text": ("v.txt", lambda path: es.vectors.read_vectors(path, format="text")),
    "word vectors as binary": ("v.bin", lambda path: es.vectors.read_vectors(path, format="binary")),
    "table of word vectors": ("v.vec", open_vector_table),
    "model of word vectors": ("v.bin", lambda path: load_encoder(f"vectors:{path}")),
    "model of a file": ("v.kv", lambda path: load_encoder(str(path))),
    **{f"corpus, {name}": ("c", lambda path, name=name: corpus(path, name)) for name in es.corpus.FORMATS},
    "trees": ("c.conllu", lambda path: list(es.corpus.read_trees(path))),
    "word list": ("w.txt", lambda path: read_word_list(path)),
    "word classes": ("w.txt", lambda path: es.corpus.read_word_classes(path)),
    "edges": ("e.jsonl", lambda path: list(es.corpus.read_edges(path))),
    "store, HDF5": ("s.h5", es.open),
    "store, Zarr": ("zarr.json", lambda path: es.open(path.parent)),
    "saved probes": ("p.probe", es.probes.load),
    "weights, torch": ("w", lambda path: model(path, "pytorch_model.bin")),
    "weights, safetensors": ("w", lambda path: model(path, "model.safetensors")),
    "configuration": ("w", lambda path: model(path, "config.json")),
    "tokenizer": ("w", lambda path: model(path, "tokenizer.json")),
    "options of ELMo": ("options.json", read_options),
}
READ_AS_TEXT = {"word list", "word classes"} | {f"corpus, {name}" for name in es.corpus.FORMATS}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file that runs code leaves its mark."""
    monkeypatch.chdir(tmp_path)


def test_the_files_do_run_code_where_they_are_loaded() -> None:
    for load in (pickle.loads, lambda data: np.load(io.BytesIO(npy()), allow_pickle=True)):
        load(HOSTILE["pickle"])
        Path(MARKER).rmdir()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.quick(16)
def test_hostile_files_are_refused_in_one_line(reader: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    for number, (hostile, content) in enumerate(HOSTILE.items()):
        path = tmp_path / f"given{number}" / name
        path.parent.mkdir()
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read(path)
            except EmbstoreError as error:
                assert "\n" not in str(error), hostile  # noqa: PT017 - some are read, as the words of a text
            else:
                assert reader in READ_AS_TEXT, f"{hostile} was read"
        assert not Path(MARKER).exists(), f"{hostile} ran code"


def test_code_in_the_folder_of_a_model_is_not_run(tmp_path: Path) -> None:
    folder = tiny.save("bert", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_bytes(HOSTILE["python"])
    with pytest.raises(ModelError):
        es.load_encoder(folder)
    assert not Path(MARKER).exists()


# What can run code or load objects that do, and the files in which it may: only between processes of one run.
UNSAFE = {
    "pickle": {"embstore/executors.py", "embstore/extraction/extract.py", "embstore/extraction/worker.py",
               "embstore/analysis/scan.py"},
    "eval": set(), "exec": set(), "compile": set(), "__import__": set(), "yaml": set(), "marshal": set(),
    "shelve": set(), "dill": set(), "joblib": set(),
}  # fmt: skip
SUSPECT = re.compile(  # what a file has that is worth parsing
    rf"\b({'|'.join(UNSAFE)}|allow_pickle|trust_remote_code)\b|torch\s*\.\s*load\b".replace(
        "compile", r"(?<!\.)compile"
    )
)
TORCH_LOAD = ast.dump(ast.parse("torch.load", mode="eval").body)


def test_nothing_that_loads_objects_is_used() -> None:
    wrong = []
    for folder in ("embstore", "cli", "studies", "explorer"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, text = str(path.relative_to(ROOT)), path.read_text()
            for node in ast.walk(ast.parse(text)) if SUSPECT.search(text) else ():
                used = set()
                if isinstance(node, ast.Import):
                    used = {each.name.split(".")[0] for each in node.names}
                elif isinstance(node, ast.ImportFrom):
                    used = {str(node.module).split(".")[0]}
                elif isinstance(node, ast.Call):
                    called = ast.dump(node.func) if getattr(node.func, "attr", "") == "load" else ""
                    used = {node.func.id} if isinstance(node.func, ast.Name) else set()
                    options = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
                    is_unsafe = options.get("allow_pickle", False) is not False
                    is_unsafe |= options.get("trust_remote_code", False) is not False
                    is_unsafe |= called == TORCH_LOAD and options.get("weights_only") is not True
                    if is_unsafe:
                        wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
                wrong += [f"{name} uses {each}" for each in used if name not in UNSAFE.get(each, {name})]
    assert not wrong, "\n".join(wrong)
