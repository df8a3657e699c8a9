"""Stores with a defect: refused in one line, or read as they were where all is compared; `verify` finds each defect."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import embstore as es
from embstore.errors import EmbstoreError, InvalidValueError, StoreDamagedError, StoreFormatError, StoreNotFoundError
from embstore.store import open_store, verify
from embstore.store.metadata import parse
from embstore.store.zarr.format import ABSENT, all_nodes
from tests.hostile.defects import REMOVED, VALUES, Bytes, Document, Edit, Kind, Place, defects, edited, outcome
from tests.resilience.conftest import campaign
from tests.store.example import all_files
from tests.store.example import example as example_store

SHARD, RECORDS, NODE = "hidden_states/c/0/1/0", "commits/c/0/0", "hidden_states/zarr.json"
INDEX_NBYTES = 3 * 16 + 4  # of a shard of three layers of one chunk


def with_checksum(attribute: dict[str, Any]) -> dict[str, Any]:
    attribute.pop("crc32c", None)
    text = json.dumps(attribute, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {**attribute, "crc32c": google_crc32c.value(text.encode("utf-8", "surrogatepass"))}


def change_metadata(path: Path, change: Edit) -> None:
    """Edit the metadata of a store and make their checksum right again."""
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            attribute = json.loads(file.attrs["embstore"])
            change(attribute)
            text = json.dumps(with_checksum(attribute)).encode()
            file.attrs["embstore"] = np.array(text, f"S{len(text)}") if len(text) < 60_000 else "too long"
        return

    def edit(root: dict[str, Any]) -> None:
        change(root["attributes"]["embstore"])
        root["attributes"]["embstore"] = with_checksum(root["attributes"]["embstore"])

    edited("zarr.json")(path, edit)


@dataclass(frozen=True)
class Column:
    """A column of the index, and all that vouches for it, is changed: a value at a position, or its order."""

    name: str | int
    position: int | str
    value: int = 0

    def make(self, path: Path, kind: Kind) -> None:
        name = self.name if isinstance(self.name, str) else COLUMNS[self.name % len(COLUMNS)]
        if path.suffix == ".h5":
            with h5py.File(path, "r+") as file:
                column = file[name][...] = self.changed(file[name][...])
        else:
            file, node = path / name / "c/0", json.loads((path / name / "zarr.json").read_bytes())
            column = self.changed(np.frombuffer(file.read_bytes(), node["data_type"]))
            file.write_bytes(column.tobytes())
        crc = google_crc32c.value(column.tobytes())
        change_metadata(path, lambda attribute: attribute["arrays"][name].update(crc32c=crc))

    def changed(self, column: np.ndarray) -> np.ndarray:
        if self.position == "backwards":
            return column[::-1].copy()
        if self.position == "descending":
            return np.sort(column)[::-1].copy()
        column = column.copy()
        if len(column) and isinstance(self.position, int):
            column[self.position % len(column)] = np.int64(self.value).astype(column.dtype)
        return column


@dataclass(frozen=True)
class Pair:
    """One offset or size of the index of a Zarr shard, whose checksum is made right again."""

    row: int
    part: int
    value: int

    def make(self, path: Path, kind: Kind) -> None:
        data = bytearray((path / SHARD).read_bytes())
        pairs = np.frombuffer(bytes(data[-INDEX_NBYTES:-4]), "<u8").reshape(3, 2).copy()
        pairs[self.row, self.part] = self.value
        data[-INDEX_NBYTES:] = pairs.tobytes() + google_crc32c.value(pairs.tobytes()).to_bytes(4, "little")
        (path / SHARD).write_bytes(data)


@dataclass(frozen=True)
class ByLibrary:
    """An array of an HDF5 file is written again by the library in a way of `WAYS`."""

    name: str
    way: str

    def make(self, path: Path, kind: Kind) -> None:
        with h5py.File(path, "r+") as file:
            WAYS[self.way](file, self.name)


COLUMNS = [
    f"{group}/{name}"
    for group, names in {
        "occurrences": ("type", "sentence", "position", "subwords", "labels/upos"),
        "types": ("form_offsets", "form_bytes", "indptr", "occurrences"),
        "sentences": (
            "text_offsets", "text_bytes", "start", "stop", "word_indptr", "subword_indptr", "indptr", "source",
        ),
        "words": ("start", "stop", "subword", "subwords"),
        "subwords": ("id",),
        "labels/upos": ("name_offsets", "name_bytes"),
    }.items()
    for name in names
]  # fmt: skip
ARRAYS = ("hidden_states", "occurrences/subwords", "commits")


def again(file: h5py.File, name: str, values: Any = None, **options: Any) -> None:
    values = file[name][...] if values is None else values
    del file[name]
    file.create_dataset(name, data=values, **options)


def external(file: h5py.File, name: str) -> None:
    values, secret = file[name][...], Path(file.filename).with_name("secret")
    secret.write_bytes(values.tobytes())
    del file[name]
    file.create_dataset(name, values.shape, values.dtype, external=[(str(secret), 0, values.nbytes)])


def virtual(file: h5py.File, name: str) -> None:
    values, source = file[name][...], Path(file.filename).with_name("source.h5")
    with h5py.File(source, "w") as other:
        other["x"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(source, "x", values.shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def linked(link: Callable[[str], object]) -> Callable[[h5py.File, str], None]:
    def change(file: h5py.File, name: str) -> None:
        file.move(name, "elsewhere")
        file[name] = link(file.filename)

    return change


def external_group(file: h5py.File, name: str) -> None:
    other = Path(file.filename).with_name("other.h5")
    with h5py.File(other, "w") as copy:
        file.copy(name, copy)
    instead(file, name, h5py.ExternalLink(str(other), name))


def instead(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


WAYS: dict[str, Callable[[h5py.File, str], object]] = {
    "external": external,
    "virtual": virtual,
    "soft link": linked(lambda name: h5py.SoftLink("/elsewhere")),
    "soft link to itself": linked(lambda name: h5py.SoftLink("/hidden_states")),
    "external link": linked(lambda name: h5py.ExternalLink(name, "/elsewhere")),
    "external group": lambda file, name: external_group(file, name.split("/")[0]),
    "missing": lambda file, name: file.__delitem__(name),
    "group": lambda file, name: (file.__delitem__(name), file.create_group(name)),
    "no elements": lambda file, name: instead(file, name, h5py.Empty("f2")),
    "float64": lambda file, name: again(file, name, dtype="f8"),
    "big-endian": lambda file, name: again(file, name, dtype=file[name].dtype.newbyteorder(">")),
    "references": lambda file, name: instead(file, name, np.empty(3, h5py.ref_dtype)),
    "shorter": lambda file, name: instead(file, name, file[name][:-1]),
    "another axis": lambda file, name: instead(file, name, file[name][...][None]),
}
HARMLESS_WAYS: dict[str, Callable[[h5py.File, str], object]] = {
    "compressed": lambda file, name: again(file, name, chunks=True, compression="gzip"),
    "with checksums": lambda file, name: again(file, name, chunks=True, fletcher32=True),
    "shuffled": lambda file, name: again(file, name, chunks=True, shuffle=True),
    "in chunks": lambda file, name: again(file, name, chunks=True),
    "contiguous": lambda file, name: again(file, name),
}
WAYS |= HARMLESS_WAYS


def read(path: Path, verify: Any = None) -> str:
    """Read rows of a store by gather and scan, and the table of its words."""
    store = es.open(path, verify=verify)
    rows = np.arange(min(store.n_rows, 1000))
    blocks = [block.tobytes() for layer in store.layers[:9] for _, block in store.scan(layer)]
    bank = store.select(words="bank")
    vectors = [each.tobytes() for each in (store.vectors(rows), bank.vectors())]
    return hashlib.sha256(repr((store.layers, vectors, blocks, store.table().to_dicts())).encode()).hexdigest()


def verified(path: Path) -> str:
    report = es.verify(path)
    assert all("\n" not in str(fault) for fault in report.faults)
    if not report.ok or report.missing:
        raise EmbstoreError("it is damaged or not finished")
    return ""


def made(suffix: str) -> Callable[[Path], Path]:
    return lambda folder: Path(example_store(rows=300).make(folder / f"store{suffix}").path)


DOCUMENTS = {"": change_metadata}
KINDS = {
    ".zarr": Kind(made(".zarr"), read, documents={**DOCUMENTS, "root": edited("zarr.json"), "node": edited(NODE)}),
    ".h5": Kind(made(".h5"), read, documents=DOCUMENTS),
}


@cache
def good(suffix: str) -> tuple[dict[str, bytes], str]:
    with TemporaryDirectory() as folder:
        path = KINDS[suffix].prepare(Path(folder))
        return all_files(path), read(path)


def outcomes(suffix: str, defect: Any) -> tuple[str, str, str, bool]:
    """Return what comes of reading, of reading that compares all, and of verifying, and whether any byte differs."""
    files, expected = good(suffix)
    with TemporaryDirectory() as folder:
        path = Path(folder, f"store{suffix}")
        for name, data in files.items():
            target = path / name if name else path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        defect.make(path, KINDS[suffix])
        is_changed = (not path.is_file() and not path.is_dir()) or is_special(path) or all_files(path) != files
        calls = [(lambda: read(path), expected), (lambda: read(path, "lazy"), expected), (lambda: verified(path), "")]
        plain, lazy, whole = (outcome(*call) for call in calls)
        return plain, lazy, whole, is_changed


def is_special(path: Path) -> bool:
    return any(not (each.is_file() or each.is_dir()) or each.is_symlink() for each in [path, *path.rglob("*")])


def require_foreseen(suffix: str, defect: Any) -> None:
    plain, lazy, whole, is_changed = outcomes(suffix, defect)
    if isinstance(defect, Column) or (isinstance(defect, Document) and defect.name == ""):  # all checksums are right
        assert whole == "refused" or "refused" not in (plain, lazy)
        return
    assert lazy != "other"
    assert (whole == "refused") == is_changed
    if not is_changed:
        assert (plain, lazy) == ("same", "same")


SETTINGS = settings(max_examples=campaign(600, 25))
MADE_RIGHT = st.builds(
    Column, st.integers(0, 40), st.integers(0, 400) | st.sampled_from(["backwards", "descending"]),
    st.sampled_from([-(2**31), -7, -1, 0, 1, 5, 99, 10**4, 2**31 - 1]),
)  # fmt: skip
PAIRS = st.builds(
    Pair, st.integers(0, 2), st.integers(0, 1), st.sampled_from([ABSENT, 0, 1, 8191, 8192, 2**40, 2**63, 2**64 - 8192])
)
REWRITTEN = st.builds(ByLibrary, st.sampled_from(ARRAYS), st.sampled_from(sorted(WAYS)))


@given(defect=defects(KINDS[".zarr"]) | PAIRS | MADE_RIGHT)
@example(defect=Pair(0, 0, 2**64 - 8192))  # offset + size overflowed
@example(defect=Pair(1, 0, 3))  # not aligned
@example(defect=Bytes(SHARD, "append", value=0))
@example(defect=Bytes(RECORDS, "cut", 0.97))
@example(defect=Place("zarr.json", "a pipe"))
@example(defect=Place(SHARD, "a device without end"))
@SETTINGS
def test_zarr(defect: Any) -> None:
    require_foreseen(".zarr", defect)


@given(defect=defects(KINDS[".h5"]) | REWRITTEN | MADE_RIGHT)
@example(defect=Bytes("", "append", value=0))
@example(defect=Bytes("", "byte less"))
@example(defect=ByLibrary("hidden_states", "external"))
@example(defect=ByLibrary("occurrences/subwords", "virtual"))
@example(defect=ByLibrary("commits", "external link"))
@example(defect=ByLibrary("occurrences/subwords", "external group"))
@SETTINGS
def test_hdf5(defect: Any) -> None:
    require_foreseen(".h5", defect)


# Defects that all checksums vouch for, which every way of reading refuses.
NUMBERS = [value for value in VALUES if value != 9 and not isinstance(value, bool)]
CRAFTED: list[Document | Column] = [
    *(Document((name,), value) for name in ("n_rows", "hidden_size", "partition_rows") for value in NUMBERS[:16]),
    *(Document((name,), REMOVED) for name in ("n_rows", "layers", "dtype", "model", "corpus", "extraction", "arrays")),
    *(Document(("layers",), value) for value in ([], [0, 3, 3], [5, 3, 0], [-1, 3, 5], [0, 3, 4, 5], 7, ["x"])),
    *(Document(("dtype",), value) for value in ("float63", ">f2", "float32", 2)),
    *(Document(("format_version",), value) for value in (0, 1, 3, 2**62, "1", REMOVED)),
    *(Document(("model",), value) for value in (None, {"name": 7})),
    *(Document(("dropped",), value) for value in ([{}], 7)),
    *(Document(("arrays",), value) for value in ([], {})),
    *(
        Document(("arrays", name), {"shape": [3], "crc32c": 0})
        for name in ("../../secret", "/etc/passwd", "", "labels/../x", "occurrences/labels/.x", "a" * 5000, "\0", "x")
    ),
    *(
        Document(("arrays", "occurrences/type", "shape"), value)
        for value in ([-5], [2**62], [10**400], [300, 1], [299], [], "many", None)
    ),
    *(Document(("arrays", "occurrences/type", "crc32c"), value) for value in ("x", REMOVED)),
    *(Document(("arrays", name), REMOVED) for name in ("occurrences/type", "types/indptr", "words/start")),
    *(Column("occurrences/type", 5, value) for value in (10**6, -2)),
    *(Column("occurrences/sentence", 5, value) for value in (10**9, -1)),
    *(Column(f"occurrences/{name}", 5, value) for name, value in (("position", -1), ("subwords", -7))),
    *(Column("occurrences/labels/upos", 5, value) for value in (99, -2)),
    *(Column(name, "backwards") for name in COLUMNS if name.endswith(("indptr", "offsets", "/occurrences", "/type"))),
    *(Column("types/form_offsets", *change) for change in ((1, -5), ("descending",), (0, 1), (-1, 3))),
    *(Column(f"{name}_bytes", 0, 0x80) for name in ("types/form", "sentences/text", "labels/upos/name")),
    *(Column("types/occurrences", 0, value) for value in (10**12, -1)),
    *(Column(name, 1, 2**40) for name in ("labels/upos/name_offsets", "types/indptr", "sentences/text_offsets")),
    Column("sentences/indptr", 2, -(2**62)),
    *(Column(f"sentences/{name}", 3, value) for name in ("start", "stop") for value in (-1, 2**30)),
    *(Column(f"words/{name}", 3, value) for name in ("start", "stop", "subword") for value in (-9999, 2**30)),
    Column("words/subwords", 3, -1),
    Column("subwords/id", 3, -2),
    Column("sentences/source", 0, -3),
    Column("layer", 0, 9),
]


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.quick(2)
def test_what_all_checksums_vouch_for_is_checked_too(suffix: str, part: int) -> None:
    read_anyway = [defect for defect in CRAFTED[part::8] if outcomes(suffix, defect)[:3] != ("refused",) * 3]
    assert read_anyway == []


def refusal(path: Path, kind: type[EmbstoreError]) -> str:
    """The one line that opening is refused with; verify says as much, and raises nothing but StoreNotFoundError."""
    with pytest.raises(kind) as caught:
        open_store(path)
    assert type(caught.value) is kind
    if kind is not StoreNotFoundError:
        assert not verify(path).ok
    return str(caught.value)


def test_what_is_no_store(tmp_path: Path) -> None:
    for name in ("file", "file.zarr", "empty.h5"):
        (tmp_path / name).write_text("")
    for name in ("folder.h5", "empty.zarr"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "binary.txt").write_bytes(b"PK\3\4\0")
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.arange(3)
    for name in ["none.zarr", "none.h5", "no/folder.zarr", "file/under.zarr"]:
        assert "there is no store at" in refusal(tmp_path / name, StoreNotFoundError)
        with pytest.raises(StoreNotFoundError):
            verify(tmp_path / name)
    for name, kind in (("notes.txt", "a text"), ("binary.txt", "another kind of file")):
        for act in (open_store, verify):  # nothing that reads advises to remove what it cannot read
            with pytest.raises(StoreNotFoundError, match=rf"{name} is {kind}, not a store: give NAME.zarr or NAME.h5$"):
                act(tmp_path / name)
    assert f"is a folder, not a store; did you mean {tmp_path / 'empty.h5'}?" in refusal(tmp_path, StoreNotFoundError)
    with pytest.raises(StoreNotFoundError, match="is a folder, not a store"):
        verify(tmp_path)
    with pytest.raises(StoreNotFoundError, match="is a pipe or device, not a store: give NAME"):
        open_store(tmp_path / "pipe")
    for name, message in {
        "file.zarr": "is a file; a Zarr store is a folder",
        "folder.h5": "is a folder; an HDF5 store is a file",
        "empty.zarr": "has no zarr.json",
        "empty.h5": "is not an HDF5 file",
        "other.h5": "no attribute 'embstore'",
    }.items():
        assert message in refusal(tmp_path / name, StoreFormatError)


def test_no_store_is_made_inside_of_another(tmp_path: Path) -> None:
    path = KINDS[".zarr"].prepare(tmp_path)
    for inside in (path / "copy.zarr", path / "hidden_states" / "copy.h5"):
        with pytest.raises(InvalidValueError, match=rf"cannot create {inside}: {path} is a store; choose another"):
            es.export(es.open(path), inside)
    assert verify(path).ok


@pytest.mark.parametrize(
    ("root", "kind", "message"),
    [
        (b"", StoreDamagedError, "is not JSON"),
        (b'{"zarr_format": 3, "node_type": "group"}', StoreFormatError, "no attribute 'embstore'"),
        (b'{"attributes": {"embstore": {"format_version": 2}}}', StoreDamagedError, "was changed"),
        (b'{"attributes": {"embstore": {"format_version": 1}}}', StoreFormatError, "extract its corpus again"),
        (b'{"attributes": {"embstore": {"format_version": 3}}}', StoreFormatError, "upgrade embstore"),
        (b'{"attributes": {"embstore": {"format_version": true}}}', StoreFormatError, "is not a whole number"),
    ],
)
def test_roots(tmp_path: Path, root: bytes, kind: type[EmbstoreError], message: str) -> None:
    path = KINDS[".zarr"].prepare(tmp_path)
    (path / "zarr.json").write_bytes(root)
    assert message in refusal(path, kind)


def test_long_hdf5_metadata_are_parts_of_fixed_length(tmp_path: Path) -> None:
    """The library looks without end for a string of variable length where the heap that should hold it is zeros."""
    store = example_store()
    long = {"name": "corpus.txt", "format": "text", "n_sentences": 700, "note": "é" * 200_000 + "x" * 100_000}
    path = Path(replace(store, metadata=replace(store.metadata, corpus=long)).make(tmp_path / "s.h5").path)
    assert open_store(path).metadata.corpus == long
    assert verify(path).ok
    with h5py.File(path, "r+") as file:
        assert sum(name.startswith("embstore") for name in file.attrs) > 10
        del file.attrs["embstore.3"]
    assert "the HDF5 library cannot read" in refusal(path, StoreDamagedError)
    with h5py.File(path, "r+") as file:
        file.attrs["embstore"] = "x"
    data = bytearray(path.read_bytes())
    heap = data.rindex(b"GCOL") + 16
    data[heap : heap + 4000] = bytes(4000)
    path.write_bytes(data)
    assert "is not a string of fixed length" in refusal(path, StoreDamagedError)


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_rows_that_the_metadata_only_claim_take_no_memory(tmp_path: Path, suffix: str) -> None:
    """The index of such a shard, and the table of the chunks of such a file, would fill gigabytes."""
    path, rows = KINDS[suffix].prepare(tmp_path), 2**33
    change_metadata(path, lambda a: a.update(n_rows=rows, partition_rows=rows))
    if suffix == ".zarr":
        metadata, arrays = parse(json.loads((path / "zarr.json").read_text())["attributes"]["embstore"], path="")
        for key, node in all_nodes(metadata, arrays).items():
            (path / key).write_bytes(node)
        (path / SHARD).unlink()
        (path / RECORDS).write_bytes(np.array([rows, 0 | (2**32 - 1) << 32], "<u8").tobytes())
    else:
        with h5py.File(path, "r+") as file:
            del file["hidden_states"], file["commits"]
            file.create_dataset("hidden_states", (3, rows, 16), "<f2", chunks=(1, 1024, 16), fillvalue=np.nan)
            commits = file.create_dataset("commits", (1, 2), "<u8")
            commits[...] = [[rows, (2**32 - 1) << 32]]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreDamagedError, match=r"hidden_states"):
        open_store(path).vectors([0, rows - 1], layers=3)
    assert not verify(path).ok
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("shape", [[3, 1], [1, 16], [3, 0], [3, 17], [16], [3, 16, 1], []])
def test_a_center_that_would_be_spread_over_other_rows_is_refused(tmp_path: Path, shape: list[int]) -> None:
    path = tmp_path / "s.zarr"
    example_store(dtype="int8").make(path)
    change_metadata(path, lambda attribute: attribute["arrays"]["center"].update(shape=shape))
    assert "center of int8 has the shape" in refusal(path, StoreDamagedError)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("corpus", "n_sentences", "many"),
        ("corpus", "n_words", -1),
        ("corpus", "shared_subwords", [1]),
        ("extraction", "max_length", "x"),
        ("extraction", "group_partitions", 0),
    ],
)
def test_sizes_in_the_metadata_that_are_no_numbers_are_refused(
    tmp_path: Path, part: str, name: str, value: object
) -> None:
    path = made(".zarr")(tmp_path)
    change_metadata(path, lambda attribute: attribute[part].update({name: value}))
    for way in (path, [path]):
        with pytest.raises(StoreDamagedError, match=rf"{part}\.{name} .* is not allowed"):
            open_store(way)
    assert not verify(path).ok


@pytest.mark.parametrize("keep", [7, {"words": 5}, {"unknown": 1}])
def test_a_choice_of_words_that_is_none_is_refused(tmp_path: Path, keep: object) -> None:
    path = made(".zarr")(tmp_path)
    change_metadata(path, lambda attribute: attribute["extraction"].update(keep=keep))
    with pytest.raises(InvalidValueError, match=r"extraction\.keep of a store is .*, which is no choice of words"):
        es.extraction.options_of(path)
