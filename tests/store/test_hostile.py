"""What is not a store, or no longer one, is refused in one line; every single defect is in tests/hostile_files."""

from __future__ import annotations

import json
import os
import resource
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import google_crc32c
import h5py
import numpy as np
import pytest

from embstore.errors import (
    EmbstoreError,
    StorageError,
    StoreDamagedError,
    StoreFormatError,
    StoreNotFoundError,
    UnfinishedStoreWarning,
)
from embstore.store import open_store, verify
from tests.hostile_files.stores import change_attribute, change_metadata
from tests.store.example import SUFFIXES, example


def refusal(path: Path, kind: type[EmbstoreError], *, named: bool = True) -> str:
    """The one line that opening is refused with; verify says as much, and raises nothing but StoreNotFoundError."""
    with pytest.raises(kind) as caught:
        open_store(path)
    assert type(caught.value) is kind
    assert str(path) in str(caught.value) or not named
    if kind is not StoreNotFoundError:
        report = verify(path)
        assert not report.ok
        assert all("\n" not in str(fault) for fault in report.faults)
    return str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ["none.zarr", "none.h5", "no/folder.zarr", "file/under.zarr"]:
        assert "there is no store at" in refusal(tmp_path / name, StoreNotFoundError)
        with pytest.raises(StoreNotFoundError):
            verify(tmp_path / name)


def test_the_wrong_kind_of_thing(tmp_path: Path) -> None:
    (tmp_path / "file.zarr").write_text("")
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "empty.zarr").mkdir()
    (tmp_path / "text.h5").write_text("not at all " * 100)
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("notes")
    assert "is a file; a Zarr store is a folder" in refusal(tmp_path / "file.zarr", StoreFormatError)
    assert "is a folder; an HDF5 store is a file" in refusal(tmp_path / "folder.h5", StoreFormatError)
    assert "has no zarr.json" in refusal(tmp_path / "empty.zarr", StoreFormatError)
    assert f"did you mean {tmp_path / 'empty.h5'}?" in refusal(tmp_path, StoreFormatError)
    for name in ["text.h5", "empty.h5", "notes.txt"]:
        assert "is not an HDF5 file" in refusal(tmp_path / name, StoreFormatError)


@pytest.mark.parametrize(
    ("root", "kind", "message"),
    [
        (b"", StoreDamagedError, "is not JSON"),
        (b'{"zarr_format": 3, "node_type": "group"}', StoreFormatError, "no attribute 'embstore'"),
        (b'{"attributes": {"embstore": {"format_version": "1"}}}', StoreFormatError, "no attribute 'embstore'"),
        (b'{"attributes": {"embstore": {"format_version": 1}}}', StoreDamagedError, "was changed"),
        (b'{"attributes": {"embstore": {"format_version": 2}}}', StoreFormatError, "upgrade embstore"),
    ],
)
def test_roots(tmp_path: Path, root: bytes, kind: type[EmbstoreError], message: str) -> None:
    path = example().make(tmp_path / "s.zarr").path
    (path / "zarr.json").write_bytes(root)
    assert message in refusal(path, kind)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    """Impossible metadata, arrays that no store has, and nodes and columns that are not whole."""
    path = example().make(tmp_path / "s.zarr").path
    before = (path / "zarr.json").read_bytes()
    change_metadata(path, lambda a: a.update(layers=[1, 1]))
    assert "is incomplete" in refusal(path, StoreDamagedError)
    for change, message in (
        (lambda a: a["arrays"].update({"../../secret": {"shape": [3], "crc32c": 0}}), "unknown array"),
        (lambda a: a["arrays"].pop("occurrences/type"), "has no array 'occurrences/type'"),
    ):
        (path / "zarr.json").write_bytes(before)
        change_metadata(path, change)
        with pytest.raises(StoreDamagedError, match=message):
            _ = open_store(path).index
        assert not verify(path).ok
    (path / "zarr.json").write_bytes(before)
    column = path / "types/form_bytes"
    os.truncate(column / "c/0", 3)
    for remove, message in (
        (lambda: None, "c/0 is cut short"),
        ((column / "c/0").unlink, "c/0 is missing"),
        ((column / "zarr.json").unlink, "zarr.json is missing"),
    ):
        remove()
        with pytest.raises(StoreDamagedError, match=f"types/form_bytes/{message}"):
            _ = open_store(path).index
    (path / "hidden_states/zarr.json").unlink()
    assert "hidden_states/zarr.json is missing" in refusal(path, StoreDamagedError)


def test_hdf5_roots(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(3)
    assert "no attribute 'embstore'" in refusal(tmp_path / "other.h5", StoreFormatError)
    for number, text in enumerate(["{", "[[[", "\x01"]):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file.attrs["embstore"] = np.bytes_(text)
        assert "the HDF5 library cannot read" in refusal(path, StoreDamagedError)
    path = example().make(tmp_path / "s.h5").path
    with h5py.File(path, "r+") as file:
        attribute = json.loads(file.attrs["embstore"])
        file.attrs["embstore"] = np.bytes_(json.dumps({**attribute, "format_version": 9}))
    assert "store format 9, newer than 1" in refusal(path, StoreFormatError)
    with h5py.File(path, "r+") as file:
        file.attrs["embstore"] = np.bytes_(json.dumps(attribute))
        del file["occurrences/type"]
        file["occurrences/type"] = np.zeros(3)
    assert "occurrences/type of" in refusal(path, StoreDamagedError)


def test_long_hdf5_metadata_are_parts_of_fixed_length(tmp_path: Path) -> None:
    """The library looks without end for a string of variable length where the heap that should hold it is zeros."""
    made = example()
    long = {"name": "corpus.txt", "format": "text", "n_sentences": 700, "note": "é" * 200_000 + "x" * 100_000}
    path = replace(made, metadata=replace(made.metadata, corpus=long)).make(tmp_path / "s.h5").path
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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), "is missing"),
        (lambda file: os.truncate(file, 0), "is empty"),
        (lambda file: os.truncate(file, 40), "is cut short"),
        (lambda file: os.truncate(file, 5000), "the index of .* is damaged"),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), "the index of .* is damaged"),
        (lambda file: (file.unlink(), file.mkdir()), "is missing"),
    ],
)
def test_a_committed_shard_that_is_not_whole(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    made = example()
    path = made.make(tmp_path / "s.zarr").path
    damage(path / "hidden_states/c/0/1/0")
    store = open_store(path)
    for call in (lambda: store.gather([300], 0), lambda: list(store.scan(0))):
        with pytest.raises((StoreDamagedError, StorageError), match=message) as caught:
            call()
        assert "0/1/0" in str(caught.value)
    np.testing.assert_array_equal(store.gather([0, 699], 0), made.values[0, [0, 699]])
    report = verify(path)
    assert {fault.partition for fault in report.faults} == {1}


def test_commits_that_no_writer_made(tmp_path: Path) -> None:
    """A record that is not whole counts as not written; nothing is read by it."""
    for content in [b"", b"\x00" * 48, b"\x01" * 47, b"\xff" * 48]:
        made = example()
        path = made.make(tmp_path / f"{len(content)}{content[:1].hex()}.zarr").path
        (path / "commits/c/0/0").write_bytes(content)
        with pytest.warns(UnfinishedStoreWarning, match="700 of 700 rows"):
            store = open_store(path)
        assert not store.committed.any()
        report = verify(path)
        assert {fault.partition for fault in report.faults} | set(report.missing) == {0, 1, 2}
        made.fill(path)
        assert verify(path).ok


def test_chunks_that_are_left_out_take_no_memory(tmp_path: Path) -> None:
    """A shard whose every chunk is left out would fill terabytes; only the requested rows are made."""
    made = example(rows=300)
    path = made.make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    rows, size = 2**26, 2**10
    node = json.loads((path / "hidden_states/zarr.json").read_text())
    node["shape"] = [3, rows, size]
    node["chunk_grid"]["configuration"]["chunk_shape"] = [3, rows, size]
    node["codecs"][0]["configuration"]["chunk_shape"] = [1, rows // 16, size]
    (path / "hidden_states/zarr.json").write_text(json.dumps(node))
    index = b"\xff" * 16 * 3 * 16
    shard = index + google_crc32c.value(index).to_bytes(4, "little")
    (path / "hidden_states/c/0/0/0").write_bytes(shard)
    for name in ("hidden_states/c/0/1/0",):
        (path / name).unlink()
    change_metadata(path, lambda a: a.update(n_rows=rows, partition_rows=rows, hidden_size=size))
    record = np.array([rows, 0 | (2**32 - 1) << 32], "<u8")
    (path / "commits/c/0/0").write_bytes(record.tobytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = open_store(path)
    assert np.isnan(store.gather([0, rows - 1], 3)).all()
    assert np.isnan(next(iter(store.scan(0)))[1]).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.slow
def test_an_hdf5_file_without_its_chunks_takes_no_memory(tmp_path: Path) -> None:
    path = example(rows=300).make(tmp_path / "s.h5").path
    rows = 2**33
    with h5py.File(path, "r+") as file:
        for name in ("hidden_states", "commits", "occurrences/subwords"):
            del file[name]
        file.create_dataset("hidden_states", (3, rows, 16), "<f2", chunks=(1, 64, 16), fillvalue=np.nan)
        file["commits"] = np.array([[rows, (2**32 - 1) << 32]], "<u8")
        file.create_dataset("occurrences/subwords", (rows,), "<i2", chunks=(64,))
        change_attribute(file, lambda a: a.update(n_rows=rows, partition_rows=rows))
        change_attribute(file, lambda a: a["arrays"]["occurrences/subwords"].update(shape=[rows]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = open_store(path)
    assert np.isnan(store.gather([0, rows - 1], 3)).all()
    with pytest.raises(StoreDamagedError, match=r"occurrences/subwords of .* expands 0 bytes to 17,179,869,184"):
        store.table()
    assert not verify(path).ok
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.slow
def test_random_damage_never_escapes(tmp_path: Path, suffix: str) -> None:
    """Bytes changed anywhere: opening and reading either give an embstore error or the values of some bytes."""
    random = np.random.default_rng(3)
    path = example(rows=300).make(tmp_path / f"s{suffix}").path
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for _ in range(60):
        file = files[random.integers(len(files))]
        content = file.read_bytes()
        damaged = bytearray(content)
        for place in random.integers(0, len(damaged), random.integers(1, 9)):
            damaged[place] = random.integers(256)
        file.write_bytes(damaged)
        assert "\n" not in _outcome(path)
        assert damaged == content or not verify(path).ok
        file.write_bytes(content)
    assert verify(path).ok


def _outcome(path: Path) -> str:
    """Open and read a store; returns the error of embstore that this ended in, or nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnfinishedStoreWarning)
            store = open_store(path)
        store.gather([0, 299], 3, missing="nan")
        _ = store.index
    except EmbstoreError as error:
        return str(error)
    return ""
