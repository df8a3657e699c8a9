"""All defects, and how the files of each kind are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl

import embstore as es
from embstore.errors import EmbstoreError
from embstore.models.elmo.weights import read_options
from embstore.store import backend
from embstore.store.storage.objects import ObjectStorage
from embstore.vectors.files import open_vector_table
from embstore_studies.finetuning.record import COMPARED, read_record
from embstore_studies.study import StudyFolder
from tests.analysis.index_store import hard_store
from tests.hostile_files import others, stores
from tests.hostile_files.defects import Defect
from tests.hostile_files.reading import Kind
from tests.models import tiny
from tests.models.tiny_elmo import CNN, LSTM
from tests.probes import class_store
from tests.store.example import all_files, example
from tests.store.memory_bucket import URL, MemoryBucket
from tests.vectors.test_files import entry, npy


def digest(*parts: object) -> str:
    """Identify contents."""
    made = hashlib.sha256()
    for part in parts:
        made.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return made.hexdigest()


def read_store(path: Path, verify: str | None = None) -> str:
    """Read rows of a store by gather and scan, and the table of its words."""
    store = es.open(path, verify=verify)  # type: ignore[arg-type]
    rows = np.arange(min(store.n_rows, 1000))
    blocks = [block for layer in store.layers[:9] for _, block in store.scan(layer)]
    bank = store.select(words="bank")
    return digest(store.layers, store.gather_layers(rows), *blocks, store.table().to_dicts(), bank.rows, bank.vectors())


def verify_store(path: Path) -> str:
    report = es.verify(path)
    if not report.ok:
        raise EmbstoreError(str(report.faults[0]) if report.faults else f"{path.name} is not finished")
    return ""


def _store(suffix: str) -> Kind:
    return Kind(
        lambda folder: Path(example(rows=300).make(folder / f"store{suffix}").path),
        read_store,
        {"lazy": partial(read_store, verify="lazy"), "verify": verify_store},
        "verify FILE",
    )


def _index() -> Kind:
    def prepare(folder: Path) -> Path:
        store = hard_store(folder / "store.zarr").store
        es.build_index(store, layer=2, kind="flat", name="x", centered=True, threads=1)
        return Path(store.path)

    def read(path: Path) -> str:
        store = es.open(path)
        hits = es.open_index(store, name="x").search(store.gather([0, 5], 2), k=3)
        return digest(hits.rows, hits.scores)

    return Kind(prepare, read, command="neighbors FILE same --layer 2 --index x --centered")


def _probes() -> Kind:
    def prepare(folder: Path) -> Path:
        made = class_store.make(folder / "classes.zarr", words=16)
        probe = es.ClassProbe(training=es.Training(epochs=1))
        probe.fit(made.store, es.probes.split_words(*made.lists)).save(folder / "probes")
        return folder / "probes"

    def read(path: Path) -> str:
        probe = es.probes.load(path)
        scores = probe.score(data=es.open(path.with_name("classes.zarr")))  # type: ignore[call-arg]
        return digest(probe.settings, scores.frame.to_dicts())

    return Kind(prepare, read, command="probe apply FILE classes.zarr")


def _model() -> Kind:
    def prepare(folder: Path) -> Path:
        (folder / "corpus.txt").write_text("the cat sat on the mat\n")
        return tiny.save("bert", folder / "model")

    def read(path: Path) -> str:
        plan = es.plan(path.with_name("corpus.txt"), model=path, calibrate=False)
        store = es.extract(plan, path.with_name("made.zarr"), progress=False)
        return digest(store.gather_layers(np.arange(6)))

    return Kind(prepare, read, command="plan corpus.txt --model FILE")


def _vectors(name: str, content: bytes, format: str, *, words: bytes = b"") -> Kind:
    def prepare(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        if words:
            (folder / name).with_suffix(".vocab").write_bytes(words)
        return folder / name

    def read(path: Path) -> str:
        if format == "table":
            table = open_vector_table(path)
            return digest(table.vectors_of(["a", "b"]))
        return digest(es.vectors.read_vectors(path, format=format).vectors)  # type: ignore[arg-type]

    return Kind(prepare, read, command="neighbors FILE a --k 1" if format == "auto" else "")


def _corpus() -> Kind:
    def prepare(folder: Path) -> Path:
        (folder / "texts").mkdir()
        (folder / "texts/a.txt").write_text("a b c\n")
        return folder / "texts"

    def read(path: Path) -> str:
        return digest([tuple(sentence.words) for sentence in es.open_corpus(path)])

    return Kind(prepare, read, command="plan FILE --model random:4")


def _trees() -> Kind:
    def prepare(folder: Path) -> Path:
        (folder / "a.conllu").write_text(others.TREE.format(0, 1))
        return folder / "a.conllu"

    return Kind(prepare, lambda path: digest(list(es.corpus.read_trees(path))))


def _study() -> Kind:
    frame = pl.DataFrame({"item": ["a", "b"], "value": [1.0, 2.0]})

    def read(path: Path) -> str:
        study = StudyFolder(path, progress=False)
        return digest(study.table("t", {"seed": 1}, lambda: frame).to_dicts())

    def prepare(folder: Path) -> Path:
        read(folder / "study")
        return folder / "study"

    return Kind(prepare, read)


def _cache() -> Kind:
    def opened(path: Path, verify: Any = None) -> str:
        bucket = MemoryBucket()
        with (
            mock.patch.object(ObjectStorage, "at", bucket.at),
            mock.patch.object(backend, "client", return_value=bucket.client),
        ):
            for name, data in all_files(path.with_name("x.zarr")).items():
                bucket.storage.put(name, [data])
            store = es.open(URL, cache=path, verify=verify)
            return digest(store.gather_layers(np.arange(300)), store.table().to_dicts())

    def prepare(folder: Path) -> Path:
        example(rows=300).make(folder / "x.zarr")
        opened(folder / "cache")
        return folder / "cache"

    return Kind(prepare, opened, {"lazy": partial(opened, verify="lazy")})


def _document(name: str, content: object, read: Callable[[Path], object]) -> Kind:
    def prepare(folder: Path) -> Path:
        (folder / name).write_text(json.dumps(content))
        return folder / name

    return Kind(prepare, lambda path: digest(read(path)))


ENTRIES = entry(b"a", 1, 2) + entry(b"b", 3, 4)
KINDS = {
    "zarr": _store(".zarr"),
    "hdf5": _store(".h5"),
    "index": _index(),
    "probes": _probes(),
    "model": _model(),
    "text vectors": _vectors("v.txt", b"a 1 2\nb 3 4\n", "auto"),
    "binary vectors": _vectors("v.bin", b"2 2\n" + ENTRIES, "binary"),
    "npy vectors": _vectors("v.npy", npy(np.eye(2)), "auto", words=b"a\nb\n"),
    "fastText": _vectors("v.bin", others.fasttext(), "table"),
    "corpus": _corpus(),
    "trees": _trees(),
    "study": _study(),
    "cache": _cache(),
    "options of ELMo": _document("options.json", {"lstm": LSTM, "char_cnn": CNN}, read_options),
    "record": _document("finetuning.json", dict.fromkeys(COMPARED, 0), read_record),
}


@cache
def defects() -> list[Defect]:
    return [*stores.all_defects(), *others.all_defects()]
