"""Stores that somebody crafted, each with one defect behind right checksums: refused in one line, in little memory."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pytest

from embstore.errors import EmbstoreError, MissingRowsError, StoreDamagedError, StoreFormatError
from embstore.store import StoreWriter, open_store, verify
from tests.store.example import SUFFIXES, example
from tests.store.test_hostile import change_metadata

Change = Callable[[np.ndarray], np.ndarray]


def edited(position: int, value: int) -> Change:
    """Return a function that changes one element of a column."""

    def change(column: np.ndarray) -> np.ndarray:
        column = column.copy()
        column[position] = value
        return column

    return change


def rewrite_column(path: Path, name: str, change: Change) -> None:
    """Change a column of a store and all that vouches for it."""
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            column = change(file[name][...])
            file[name][...] = column
            crc = google_crc32c.value(column.tobytes())
            change_attribute(file, lambda attribute: attribute["arrays"][name].update(crc32c=crc))
        return
    shard = path / name / "c/0"
    dtype = open_store(path).index.arrays().get(name, np.empty(0, np.int64)).dtype
    column = change(np.frombuffer(shard.read_bytes(), np.int32 if name == "layer" else dtype))
    shard.write_bytes(column.tobytes())
    crc = google_crc32c.value(column.tobytes())
    change_metadata(path, lambda attribute: attribute["arrays"][name].update(crc32c=crc))


def change_attribute(file: h5py.File, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the metadata of an HDF5 store and make its checksum right again."""
    attribute = json.loads(file.attrs["embstore"])
    change(attribute)
    attribute.pop("crc32c")
    text = json.dumps(attribute, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    file.attrs["embstore"] = np.bytes_(json.dumps({**attribute, "crc32c": google_crc32c.value(text.encode())}))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("occurrences/type", edited(5, 10**6)),
        ("occurrences/type", edited(5, -2)),
        ("occurrences/sentence", edited(5, 10**9)),
        ("occurrences/sentence", edited(0, 3)),
        ("occurrences/position", edited(5, -1)),
        ("occurrences/subwords", edited(5, -7)),
        ("occurrences/labels/upos", edited(5, 99)),
        ("labels/upos/name_offsets", edited(1, 2**40)),
        ("labels/upos/name_bytes", edited(0, 0xFF)),
        ("types/form_offsets", edited(1, -5)),
        ("types/form_bytes", edited(0, 0xFF)),
        ("types/indptr", edited(1, 10**9)),
        ("types/occurrences", edited(0, 10**12)),
        ("sentences/text_offsets", edited(0, 2**62)),
        ("sentences/text_bytes", edited(0, 0x80)),
        ("sentences/indptr", edited(2, -(2**62))),
        ("sentences/source", edited(0, -3)),
        ("layer", edited(0, 9)),
    ],
)
def test_columns_whose_content_is_wrong(tmp_path: Path, suffix: str, name: str, change: Change) -> None:
    path = example().make(tmp_path / f"s{suffix}").path
    assert isinstance(path, Path)
    rewrite_column(path, name, change)
    for read in (
        lambda: open_store(path).table(),
        lambda: open_store(path).select(words="bank").table(),
        lambda: open_store(path).select(labels={"upos": "NOUN"}).vectors(),
        lambda: open_store(path, verify="lazy").index,
    ):
        with pytest.raises(StoreDamagedError, match=r"the index of .* is damaged: .*; run `embstore verify`") as caught:
            read()
        assert "\n" not in str(caught.value)
    assert any(fault.part == "index" for fault in verify(path).faults)


HUGE: list[Callable[[dict[str, Any]], object]] = [
    lambda a: a.update(layers=list(range(10**6))),
    lambda a: a.update(n_rows=2**62),
    lambda a: a.update(n_rows=2**32, partition_rows=256),
    lambda a: a.update(hidden_size=2**62),
    lambda a: a.update(partition_rows=2**62),
    lambda a: a.update(hidden_size=2**39),
    lambda a: a["arrays"]["occurrences/type"].update(shape=[2**62]),
    lambda a: a["arrays"]["types/form_bytes"].update(shape=[2**39]),
    lambda a: a["arrays"]["occurrences/type"].update(shape=[-5]),
    lambda a: a["arrays"]["occurrences/type"].update(shape=[10**400]),
]


@pytest.mark.parametrize("change", HUGE)
def test_sizes_that_no_store_has(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = example().make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    change_metadata(path, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EmbstoreError) as caught:
        _ = open_store(path).index
    assert "\n" not in str(caught.value)
    assert not verify(path).ok
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


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


def test_an_hdf5_file_whose_every_array_was_compressed_is_read_and_not_written(tmp_path: Path) -> None:
    """As by h5repack."""
    made = example()
    path = made.make(tmp_path / "s.h5").path
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            values = file[name][...]
            if values.ndim and file[name].id.get_storage_size():
                del file[name]
                file.create_dataset(name, data=values, chunks=values.shape, compression="gzip")
    store = open_store(path)
    np.testing.assert_array_equal(store.gather_layers(np.arange(700)), made.values)
    assert store.table().equals(made.make(tmp_path / "t.h5").table())
    with pytest.raises(StoreFormatError, match="was rewritten by another tool: it can be read, but not written"):
        StoreWriter(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda node: "[" * 200_000, "nested too deeply"),
        (lambda node: node.replace('"chunk_shape": [1, 256, 16]', '"chunk_shape": [1, 0, 16]'), "chunk_shape"),
        (lambda node: node.replace('"chunk_shape": [1, 256, 16]', '"chunk_shape": [1, -256, 16]'), "chunk_shape"),
        (lambda node: node.replace('"node_type": "array"', '"node_type": "array", "x": ' + "9" * 5000), "digits"),
    ],
)
def test_nodes_of_arrays(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    path = example().make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    node = path / "hidden_states/zarr.json"
    text = json.dumps(json.loads(node.read_text()))
    assert change(text) != text
    node.write_text(change(text))
    with pytest.raises(StoreDamagedError, match=f"hidden_states/zarr.json cannot be read .*{message}") as caught:
        open_store(path)
    assert "\n" not in str(caught.value)
    assert not verify(path).ok


@pytest.mark.parametrize("name", ["hidden_states", "occurrences/type", "commits"])
@pytest.mark.parametrize("kind", ["external", "virtual", "external link", "soft link", "link of a group"])
def test_arrays_of_other_files(tmp_path: Path, name: str, kind: str) -> None:
    """Rows of a store never come from another file of the machine that reads it."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"root:x:0:0" * 10_000)
    example().make(tmp_path / "other.h5")
    path = example().make(tmp_path / "s.h5").path
    with h5py.File(path, "r+") as file:
        shape, dtype = file[name].shape, file[name].dtype
        group = name.partition("/")[0]
        del file[group if kind == "link of a group" else name]
        if kind == "external":
            nbytes = int(np.prod(shape)) * dtype.itemsize
            file.create_dataset(name, shape, dtype, external=[(str(secret), 0, nbytes)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            layout[...] = h5py.VirtualSource(tmp_path / "other.h5", name, shape)
            file.create_virtual_dataset(name, layout)
        elif kind == "soft link":
            file[name] = h5py.SoftLink("/occurrences/sentence")
        else:
            linked = group if kind == "link of a group" else name
            file[linked] = h5py.ExternalLink(str(tmp_path / "other.h5"), f"/{linked}")
    with pytest.raises(StoreDamagedError, match=r"of .* is (stored in another file|a link)") as caught:
        open_store(path)
    assert "\n" not in str(caught.value)
    assert not verify(path).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_index_that_is_missing_a_column_of_words(tmp_path: Path, suffix: str) -> None:
    path = example().make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    change_metadata(path, lambda a: a["arrays"].pop("types/indptr"))
    for read in (lambda: open_store(path).occurrences_of(0), lambda: open_store(path).select(words="bank")):
        with pytest.raises(StoreDamagedError, match="has no array 'types/indptr'"):
            read()


def test_a_partition_whose_record_is_torn_is_not_read(tmp_path: Path) -> None:
    path = example().make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    records = np.frombuffer((path / "commits/c/0/0").read_bytes(), "<u8").reshape(-1, 2).copy()
    records[1, 1] ^= 1
    (path / "commits/c/0/0").write_bytes(records.tobytes())
    with pytest.warns(UserWarning, match="1 of 3 partitions"):
        store = open_store(path)
    with pytest.raises(MissingRowsError):
        store.gather([300], 0)
