"""verify finds any change to any file, names the partition where it concerns one, and calls nothing else damaged."""

from __future__ import annotations

import json
from pathlib import Path

import google_crc32c
import h5py
import numpy as np
import pytest

import embstore as es
from embstore.errors import StoreMismatchError, StoreNotFoundError
from embstore.store import verify
from embstore.store.arrays import commit_record
from embstore.store.check.repair import repair_layout
from embstore.store.zarr.format import array_node
from tests.store.example import SUFFIXES, Example, all_files, example, flip


def spans_of_rows(path: Path) -> list[tuple[int, int, int]]:
    """The bytes (start, stop) of an HDF5 store that hold rows, with their partition."""
    found: list[tuple[int, int, int]] = []
    with h5py.File(path) as file:
        for name in {"hidden_states", "scale"} & set(file):
            file[name].id.chunk_iter(
                lambda c: found.append((c.byte_offset, c.byte_offset + c.size, c.chunk_offset[1] // 256))
            )
        start = file["commits"].id.get_offset()
        found.extend((start + 16 * number, start + 16 * number + 16, number) for number in range(len(file["commits"])))
    return found


@pytest.mark.parametrize("part", range(4))
@pytest.mark.quick(1)
def test_a_bit_of_any_file_of_zarr(tmp_path: Path, part: int) -> None:
    random = np.random.default_rng(part)
    path = example(rows=600, dtype="int8").make(tmp_path / "s.zarr").path
    for name in sorted(all_files(path))[part::4]:
        file = path / name
        content = file.read_bytes()
        for place in {0, len(content) - 1, int(random.integers(len(content)))}:
            flip(file, place, int(random.integers(8)))
            faults = verify(path).faults
            assert faults, (name, place)
            parts = name.split("/")
            if parts[0] in ("hidden_states", "scale") and name.count("/") > 1:
                assert {fault.partition for fault in faults} == {int(parts[3])}, name
            elif name == "commits/c/0/0":
                assert {fault.partition for fault in faults} == {place // 16}
            else:
                assert {fault.partition for fault in faults} <= {None}, name
                assert any(fault.part in (name, "metadata") for fault in faults), name
            file.write_bytes(content)
    assert verify(path).ok


@pytest.mark.parametrize("part", range(4))
@pytest.mark.quick(1)
def test_a_bit_anywhere_in_hdf5(tmp_path: Path, part: int) -> None:
    random = np.random.default_rng(part)
    path = example(rows=600, dtype="int8").make(tmp_path / "s.h5").path
    content = path.read_bytes()
    rows = spans_of_rows(path)
    places = random.integers(0, len(content), 20).tolist() + [start + 5 for start, _, _ in rows[part::4]]
    for place in [*places, len(content) - 1]:
        flip(path, place, int(random.integers(8)))
        faults = verify(path).faults
        assert faults, place
        partition = [number for start, stop, number in rows if start <= place < stop]
        named = {fault.partition for fault in faults}
        assert named == set(partition) if partition else None in named, place
        path.write_bytes(content)
    assert verify(path).ok


def test_a_changed_column_of_hdf5_is_named(tmp_path: Path) -> None:
    path = example().make(tmp_path / "s.h5").path
    with h5py.File(path) as file:
        offset = file["occurrences/type"].id.get_offset()
    flip(path, offset)
    assert [fault.part for fault in verify(path).faults] == ["occurrences/type"]


def test_a_bit_of_each_commit_of_an_unfinished_store(tmp_path: Path) -> None:
    made = example(rows=600)
    path = made.create(tmp_path / "s.zarr")
    made.fill(path, [0, 2])
    assert verify(path).missing == (1,)
    for partition in (0, 2):
        for place in (0, 7, 8, 11, 12, 15):
            file = path / "commits/c/0/0"
            content = file.read_bytes()
            flip(file, 16 * partition + place, 3)
            report = verify(path)
            assert report.damaged_partitions == [partition]
            assert report.missing == (1,)
            file.write_bytes(content)
    assert verify(path).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_edited_record(tmp_path: Path, suffix: str) -> None:
    path = example().make(tmp_path / f"s{suffix}").path
    file, start = path / "commits/c/0/0", 0
    if suffix == ".h5":
        with h5py.File(path) as opened:
            file, start = path, opened["commits"].id.get_offset()
    for record in [(255, 1), (256, 5), (256, 2**40), (0, 0), (2**64 - 1, 7)]:
        content = file.read_bytes()
        edited = bytearray(content)
        edited[start + 16 : start + 32] = np.array(record, np.uint64).tobytes()
        file.write_bytes(edited)
        assert verify(path).damaged_partitions == [1], record
        file.write_bytes(content)


def test_edited_metadata(tmp_path: Path) -> None:
    path = example().make(tmp_path / "s.zarr").path
    root = (path / "zarr.json").read_text()
    for old, new in [
        ("tiny", "huge"),
        ('"seed": 0', '"seed": 1'),
        ('"word"', '"subword"'),
        ('"n_rows": 700', '"n_rows": 699'),
    ]:
        assert old in root
        (path / "zarr.json").write_text(root.replace(old, new))
        assert [fault.part for fault in verify(path).faults] == ["metadata"]
    (path / "zarr.json").write_text(root.replace("  ", " "))  # the same JSON in other bytes is no longer what we wrote
    assert [fault.part for fault in verify(path).faults] == ["zarr.json"]


def test_an_index_that_is_inconsistent_though_its_checksums_are_right(tmp_path: Path) -> None:
    """Columns edited by a hand that also puts the checksums right are found by what they mean."""
    path = example().make(tmp_path / "s.zarr").path
    root = (path / "zarr.json").read_text()
    for name, dtype, place, value in [
        ("occurrences/sentence", "<i8", 3, 99),
        ("occurrences/type", "<i4", 5, 8),
        ("occurrences/subwords", "<i2", 0, 0),
        ("occurrences/labels/upos", "<i4", 1, 3),
        ("sentences/indptr", "<i8", 2, 0),
        ("types/indptr", "<i8", 1, 0),
        ("types/occurrences", "<i8", 0, 699),
        ("types/form_offsets", "<i8", 1, 40),
        ("sentences/text_bytes", "|u1", 0, 255),
        ("layer", "<i4", 0, 1),
    ]:
        file = path / name / "c/0"
        content = file.read_bytes()
        array = np.frombuffer(content, dtype).copy()
        array[place] = value
        file.write_bytes(array.tobytes())
        document = json.loads(root)
        attribute = document["attributes"]["embstore"]
        attribute["arrays"][name]["crc32c"] = google_crc32c.value(array.tobytes())
        attribute.pop("crc32c")
        canonical = json.dumps(attribute, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        attribute["crc32c"] = google_crc32c.value(canonical.encode())
        document["attributes"]["embstore"] = dict(sorted(attribute.items()))
        (path / "zarr.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        assert {fault.part for fault in verify(path).faults} == {"index"}, name
        file.write_bytes(content)
        (path / "zarr.json").write_text(root)
    assert verify(path).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_progress_ends_at_all_bytes(tmp_path: Path, suffix: str) -> None:
    path = example().make(tmp_path / f"s{suffix}").path
    seen: list[tuple[int, int]] = []
    with es.config(progress=lambda done, total: seen.append((done, total))):
        report = verify(path)
    assert seen == sorted(seen)
    assert seen[-1] == (report.checked_nbytes, report.checked_nbytes)
    size = sum(len(content) for content in all_files(path).values())
    assert report.checked_nbytes == size


def remade(made: Example, path: Path) -> list[int]:
    """Repair a store, write what is missing, and return what that was."""
    missing = repair_layout(path, metadata=made.metadata, index=made.index, center=made.center)
    made.fill(path)
    return missing


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_repair_of_an_unfinished_store(tmp_path: Path, suffix: str) -> None:
    made = example(rows=1000)
    path = made.create(tmp_path / f"s{suffix}")
    made.fill(path, [3, 1])
    missing = repair_layout(path, metadata=made.metadata, index=made.index)
    assert missing == [0, 2]
    assert verify(path).missing == (0, 2)
    assert verify(path).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_repair_of_int8_with_another_center_keeps_nothing(tmp_path: Path, suffix: str) -> None:
    """Codes mean nothing without the center that they were made with."""
    made = example(dtype="int8")
    path = made.make(tmp_path / f"s{suffix}").path
    assert made.center is not None
    other = np.nextafter(made.center, np.float32(np.inf))
    assert repair_layout(path, metadata=made.metadata, index=made.index, center=other) == [0, 1, 2]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_repair_with_another_plan_is_refused(tmp_path: Path, suffix: str) -> None:
    made, other = example(seed=1), example(seed=2)
    path = made.make(tmp_path / f"s{suffix}").path
    before = all_files(path)
    with pytest.raises(StoreMismatchError, match="made with another extraction than this plan"):
        repair_layout(path, metadata=other.metadata, index=other.index)
    assert all_files(path) == before
    with pytest.raises(StoreNotFoundError):
        repair_layout(tmp_path / f"none{suffix}", metadata=made.metadata, index=made.index)
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_shard_whose_index_is_not_that_of_the_layout_is_found(tmp_path: Path) -> None:
    """Also where its bytes match their commit record: no reader could find its rows."""
    made = example()
    path = made.make(tmp_path / "s.zarr").path
    shard = path / "hidden_states/c/0/1/0"
    flip(shard, shard.stat().st_size - 10)
    record = commit_record(256, google_crc32c.value(shard.read_bytes())).tobytes()
    commits = bytearray((path / "commits/c/0/0").read_bytes())
    commits[16:32] = record
    (path / "commits/c/0/0").write_bytes(commits)
    assert [str(fault) for fault in verify(path).faults] == [
        "hidden_states/c/0/1/0 (partition 1): its index was changed"
    ]


def test_nodes_are_what_zarr_itself_understands() -> None:
    """A node with a fill of NaN must be JSON without NaN."""
    from embstore.store.arrays import payload_specs

    for dtype in ("float16", "float32", "bfloat16", "int8"):
        for spec in payload_specs(example(dtype=dtype).metadata):
            json.loads(array_node(spec), parse_constant=lambda constant: pytest.fail(constant))
