"""Stores of many partitions: the commits are read once, not once per partition."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import MissingRowsError
from embstore.store import StoreWriter, open_store
from embstore.store.zarr import writer as zarr_writer
from tests.store.example import SUFFIXES, Example, example

PARTITIONS = 12


@pytest.fixture(scope="module")
def many() -> Example:
    return example(rows=256 * PARTITIONS - 100, layers=(0,), hidden_size=1, labels=False)


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[int]:
    calls: list[int] = []
    real: Callable[..., object] = getattr(module, name)

    def call(*arguments: object, **options: object) -> object:
        calls.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, call)
    return calls


def test_a_writer_reads_the_commits_once_however_much_it_writes(
    tmp_path: Path, many: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many.create(tmp_path / "a.zarr")
    read = counted(monkeypatch, zarr_writer, "read_records")
    with StoreWriter(path) as writer:
        assert writer.missing() == list(range(PARTITIONS))
        before = len(read)
        for partition in range(PARTITIONS):
            writer.write(partition, many.partition(partition))
        assert len(read) == before
        writer.discard([3])
        writer.write(3, many.partition(3))
        assert len(read) <= before + 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_finished_store_that_lost_a_third_is_resumed(tmp_path: Path, many: Example, suffix: str) -> None:
    whole, resumed = tmp_path / f"whole{suffix}", tmp_path / f"resumed{suffix}"
    many.fill(many.create(whole))
    many.fill(many.create(resumed))
    lost = [0, 5, 7, 11]
    with StoreWriter(resumed) as writer:
        writer.discard(lost)
        assert writer.missing() == lost
    with pytest.warns(UserWarning, match="4 of 12 partitions"):
        assert np.flatnonzero(~open_store(resumed).committed).tolist() == lost
    many.fill(resumed)
    store = open_store(resumed)
    np.testing.assert_array_equal(store.gather(np.arange(store.n_rows), 0), many.values[0])
    assert files(whole) == files(resumed)


def test_all_rows_are_read_without_being_listed(tmp_path: Path, many: Example) -> None:
    store = many.make(tmp_path / "a.zarr")
    everything, listed = store.select(), store.select(rows=np.arange(store.n_rows))
    blocks, same = list(everything.iter_blocks(block_rows=100)), list(listed.iter_blocks(block_rows=100))
    assert len(everything) == len(listed) == store.n_rows
    assert "rows" not in vars(everything)
    for block, other in zip(blocks, same, strict=True):
        np.testing.assert_array_equal(block.rows, other.rows)
        np.testing.assert_array_equal(block.vectors, other.vectors)
    np.testing.assert_array_equal(everything.rows, listed.rows)


def test_all_rows_of_an_unfinished_store_are_refused(tmp_path: Path, many: Example) -> None:
    path = many.create(tmp_path / "a.zarr")
    many.fill(path, [0, 1])
    with pytest.warns(UserWarning, match="not finished"):
        store = open_store(path)
    with pytest.raises(MissingRowsError, match="2,460 of the rows 0 to 2972"):
        next(store.select().iter_blocks())
    assert sum(len(block.rows) for block in store.select().committed().iter_blocks()) == 512


def files(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    found = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return {str(file.relative_to(path)): file.read_bytes() for file in found}
