"""verify finds any change to any file, names the partition where it concerns one, and calls nothing else damaged."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import embstore as es
from embstore.store import open_store, verify
from embstore.store.check.repair import repair_layout
from tests.store.example import SUFFIXES, all_files, example, flip


def test_a_changed_column_of_hdf5_is_named(tmp_path: Path) -> None:
    path = example().make(tmp_path / "s.h5").path
    with h5py.File(path) as file:
        offset = file["occurrences/type"].id.get_offset()
    flip(path, offset)
    assert [fault.part for fault in verify(path).faults] == ["occurrences/type"]


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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_repair_of_an_unfinished_store(tmp_path: Path, suffix: str) -> None:
    made = example(rows=1000)
    path = made.create(tmp_path / f"s{suffix}")
    made.fill(path, [3, 1])
    missing = repair_layout(path, metadata=made.metadata, index=made.index)
    assert (missing, verify(path).missing) == ([0, 2], (0, 2))
    assert verify(path).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_repair_of_int8_with_another_center_keeps_nothing(tmp_path: Path, suffix: str) -> None:
    """Codes mean nothing without the center that they were made with."""
    made = example(dtype="int8")
    path = made.make(tmp_path / f"s{suffix}").path
    assert made.center is not None
    other = np.nextafter(made.center, np.float32(np.inf))
    assert repair_layout(path, metadata=made.metadata, index=made.index, center=other) == [0, 1, 2]


def test_a_store_whose_heap_is_lost_is_read(tmp_path: Path) -> None:
    """The heap of the references to dimension scales, which embstore never reads."""
    made = example(rows=700)
    path = made.make(tmp_path / "s.h5").path
    content = path.read_bytes()
    start = content.index(b"GCOL")
    path.write_bytes(content[:start] + b"\xff" * 4096 + content[start + 4096 :])
    np.testing.assert_array_equal(open_store(path).vectors([0, 650], layers=3), made.values[1, [0, 650]])
    assert [fault.part for fault in verify(path).faults] == ["HDF5 structure"]
