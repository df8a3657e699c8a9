"""What is not a store with a defect: probes, indexes, collections, models, word vectors, corpora."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import embstore as es
from embstore.errors import EmbstoreError
from embstore.models.elmo.weights import read_options
from embstore.probes.saved import read_tensors, write_tensors
from embstore.vectors.files import open_vector_table
from tests.analysis.index_store import hard_store
from tests.hostile.defects import (
    PLACES,
    REMOVED,
    Bytes,
    Document,
    Edit,
    Kind,
    Place,
    defects,
    edited,
    outcome,
    safetensors_header,
)
from tests.models import tiny
from tests.models.tiny_elmo import CNN, LSTM
from tests.privileges import reachable_folder, without_privileges
from tests.probes import class_store
from tests.resilience.conftest import campaign
from tests.store.example import example as example_store

ROW = "{}\t{}\tl\tX\tX\t_\t{}\tdep\t_\t_\n"
TREE = ROW.format(1, "a", 0) + ROW.format(2, "b", 1) + "\n"
EDGES = '{"text": "a b", "targets": [{"span1": [0, 1], "label": "x"}]}\n'


def written(name: str, content: bytes | str | object) -> Callable[[Path], Path]:
    """Return a function that writes a file."""

    def prepare(folder: Path) -> Path:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return folder / name

    return prepare


def make_index(folder: Path) -> Path:
    store = hard_store(folder / "store.zarr").store
    es.analysis.build_index(store, 2, kind="ivf")
    return Path(store.path) / "hidden_states/.index/layer2-ivf-cosine"


def read_index(path: Path) -> object:
    store = es.open(path.parents[2])
    hits = es.analysis.open_index(store, name=path.name).search(store.vectors([0, 5], layers=2), k=3)
    return hits.rows.tolist(), hits.scores.tolist()


def make_probes(folder: Path) -> Path:
    made = class_store.make(folder / "classes.zarr", words=16)
    probe = es.ClassProbe(training=es.probes.Training(epochs=1))
    probe.fit(made.store, es.probes.split_words(*made.lists)).save(folder / "probes")
    return folder / "probes"


def read_probes(path: Path) -> object:
    scores = es.probes.load(path).score(data=es.open(path.with_name("classes.zarr")))  # type: ignore[call-arg]
    return scores.frame.to_dicts()


def with_checksums(path: Path, change: Edit) -> None:
    """Edit the metadata of saved probes and make their checksums right again."""
    document, tensors = read_tensors(path)
    kept = {name: document.pop(name) for name in ("format_version", "software", "tensors_crc32c", "crc32c")}
    change(document)
    write_tensors(path, {name: value for name, value in document.items() if name not in kept}, tensors)


def make_collection(folder: Path) -> Path:
    for seed in (0, 1):
        example_store(rows=300, seed=seed).make(folder / f"{seed}.zarr")
    return written("all.json", ["0.zarr", "1.zarr"])(folder)


def read_store(path: Path, **options: Any) -> object:
    store = es.open(path, **options)
    return store.vectors(np.arange(300)).tobytes(), store.table().to_dicts()


def make_model(folder: Path) -> Path:
    (folder / "corpus.txt").write_text("the cat sat on the mat\n")
    return tiny.save("bert", folder / "model")


def read_model(path: Path) -> object:
    plan = es.plan(path.with_name("corpus.txt"), model=path, calibrate=False)
    with TemporaryDirectory() as folder:
        return es.extract(plan, Path(folder, "made.zarr")).vectors(np.arange(6)).tobytes()


def entry(word: bytes, *numbers: float) -> bytes:
    return word + b" " + struct.pack(f"<{len(numbers)}f", *numbers) + b"\n"


def fasttext() -> bytes:
    """A model of fastText of the words a and b, of two dimensions."""
    begin = struct.pack("<2i12id", 793712314, 12, 2, 5, 5, 1, 5, 1, 1, 2, 0, 3, 6, 100, 1e-4)
    words = b"".join(word + b"\0" + struct.pack("<qb", 5, 0) for word in (b"a", b"b"))
    matrix = struct.pack("<?2q", False, 2, 2) + np.arange(4, dtype="<f4").tobytes()
    return begin + struct.pack("<3i2q", 2, 2, 0, 100, -1) + words + matrix


def read_vectors(path: Path, format: str = "auto") -> object:
    return es.vectors.read_vectors(path, format=format).vectors.tolist()  # type: ignore[arg-type]


def read_corpus(path: Path, format: str | None = None) -> object:
    return [tuple(sentence.words) for sentence in es.open_corpus(path, **({"format": format} if format else {}))]


VECTORS = b"2 2\n" + entry(b"a", 1, 2) + entry(b"b", 3, 4)
KINDS = {
    "index": Kind(make_index, read_index, True, {"": edited("index.json")}),
    "probes": Kind(make_probes, read_probes, True, {"": with_checksums, "header": safetensors_header}),
    "collection": Kind(make_collection, read_store, False, {"": edited("")}),
    "model": Kind(  # some tokenizers end the process in their own library
        make_model, read_model, False, {"": edited("config.json")}, ("config.json", "model.safetensors")
    ),
    "options of ELMo": Kind(
        written("options.json", {"lstm": LSTM, "char_cnn": CNN}), read_options, False, {"": edited("")}
    ),
    "text vectors": Kind(written("v.txt", b"a 1 2\nb 3 4\n"), read_vectors),
    "binary vectors": Kind(written("v.bin", VECTORS), partial(read_vectors, format="binary")),
    "compressed vectors": Kind(written("v.gz", gzip.compress(b"a 1 2\nb 3 4\n", mtime=0)), read_vectors),
    "fastText": Kind(
        written("v.bin", fasttext()), lambda path: open_vector_table(path).vectors_of(["a", "b"]).tolist()
    ),
    "trees": Kind(written("a.conllu", TREE), lambda path: repr(list(es.corpus.read_trees(path)))),
    "edges": Kind(written("e.jsonl", EDGES), lambda path: repr(list(es.corpus.read_edges(path)))),
    **{
        f"corpus, {name}": Kind(written(name, content), read_corpus)
        for name, content in {
            "a.txt": "a b c\nd e\n", "a.conllu": TREE, "a.conll": "a X O\nb X O\n\n",
            "a.txt.gz": gzip.compress(b"a b\n"), "a.jsonl": EDGES,
            "a.csv": "text,year\na b,1\nc d,2\n", "a.pse": "x @York@-place y\n",
        }.items()
    },
}  # fmt: skip

# Defects that once came as tracebacks, without end, or as other numbers.
EXAMPLES: dict[str, list[Any]] = {
    "index": [Place("index.json", "a pipe"), Document(("layer",), REMOVED), Document(("format_version",), 9)],
    "probes": [
        Document(("fitted", "width"), 2**62), Document(("probe",), "structural"), Document(("settings",), []),
        Document((0, "data_offsets"), [8, 0], "header"), Document((0, "shape"), [2**40, 2**22], "header"),
    ],
    "collection": [Document((0,), []), Document((0,), "../../secret"), Document((0,), REMOVED)],
    "model": [
        Document(("model_type",), "../../x"), Document(("model_type",), ["bert"]), Document(("hidden_act",), "pickle"),
        Document(("hidden_size",), 10**400), Bytes("model.safetensors", "number", 0, 2**62),
    ],
    "options of ELMo": [Document(("lstm", "dim"), "many"), Document(("char_cnn",), [])],
    "trees": [Bytes("", "content", value=15)],
    "fastText": [Bytes("", "number", 0.13, 2**31 - 1), Bytes("", "cut", 0.5)],
}  # fmt: skip
REFUSED = ("index", "probes")  # whose examples are never read at all
UNBOUNDED = ("a pipe", "a device without end")  # corpora are also read from pipes


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, object]]:
    """Gives the good file of a kind, made once, and what it holds."""
    made: dict[str, tuple[Path, object]] = {}

    def good(name: str) -> tuple[Path, object]:
        if name not in made:
            path = KINDS[name].prepare(tmp_path_factory.mktemp("good"))
            made[name] = path, KINDS[name].read(path)
        return made[name]

    return good


def come_of(name: str, defect: Any, good: tuple[Path, object]) -> str:
    path, expected = good
    top = next(each for each in path.parents if each.name.startswith("good"))
    with TemporaryDirectory() as folder:
        shutil.copytree(top, folder, dirs_exist_ok=True)
        damaged = Path(folder, path.relative_to(top))
        defect.make(damaged, KINDS[name])
        return outcome(lambda: KINDS[name].read(damaged), expected)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_with_a_defect(name: str, goods: Callable[[str], tuple[Path, object]]) -> None:
    kind, good = KINDS[name], goods(name)
    places = tuple(place for place in PLACES if kind.is_checked or place not in UNBOUNDED)

    @given(defect=defects(kind, places=places))
    @settings(max_examples=campaign(300, 5))
    def campaign_of_kind(defect: Any) -> None:
        found = come_of(name, defect, good)
        assert found != "other" or not kind.is_checked or isinstance(defect, Document)

    campaign_of_kind()
    found = [come_of(name, defect, good) for defect in EXAMPLES.get(name, [])]
    assert set(found) <= {"refused"} if name in REFUSED else True


@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("corpus") and name != "index"])
def test_a_file_without_permission(name: str, tmp_path: Path) -> None:
    with reachable_folder() as folder:
        path = KINDS[name].prepare(folder)
        for each in (path, *path.rglob("*")):
            if each.is_file():
                each.chmod(0)
        with without_privileges(), pytest.raises(EmbstoreError):
            KINDS[name].read(path)
