"""verify finds any change to any file, names the partition where it concerns one, and calls nothing else damaged."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import embstore as es
from embstore.errors import StoreMismatchError, StoreNotFoundError
from embstore.store import verify
from embstore.store.check.repair import repair_layout
from embstore.store.zarr.format import array_node
from tests.store.example import SUFFIXES, Example, all_files, example, flip


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


def test_nodes_are_what_zarr_itself_understands() -> None:
    """A node with a fill of NaN must be JSON without NaN."""
    from embstore.store.arrays import payload_specs

    for dtype in ("float16", "float32", "bfloat16", "int8"):
        for spec in payload_specs(example(dtype=dtype).metadata):
            json.loads(array_node(spec), parse_constant=lambda constant: pytest.fail(constant))
