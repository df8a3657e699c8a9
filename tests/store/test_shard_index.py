"""A shard whose index is another one than the layout requires is not vouched for, though its checksum is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from embstore.errors import EmbstoreError, StoreDamagedError
from embstore.store import StoreWriter, export, open_store, verify
from embstore.store.check.repair import repair_layout
from embstore.store.writer import PartitionWriter
from embstore.store.zarr.format import ABSENT
from tests.store.example import Example, all_files, example
from tests.store.memory_bucket import URL, MemoryBucket

SHARD = "hidden_states/c/0/1/0"
LAYERS = 3


def exchange(pairs: np.ndarray) -> None:
    pairs[[0, 1]] = pairs[[1, 0]]


def _overlap(pairs: np.ndarray) -> None:
    pairs[1, 0] -= 16


def _absent(pairs: np.ndarray) -> None:
    pairs[2] = ABSENT


def _into_itself(pairs: np.ndarray) -> None:
    pairs[2, 0] += 8


def _beyond(pairs: np.ndarray) -> None:
    pairs[0, 0] = 2**40


CRAFTS = [exchange, _overlap, _absent, _into_itself, _beyond]
Craft = Callable[[np.ndarray], None]


def crafted(shard: bytes, craft: Craft) -> bytes:
    """The shard with another index and its matching checksum: the CRC32C of the whole is what it was."""
    size = LAYERS * 16
    pairs = np.frombuffer(shard[-size - 4 : -4], "<u8").reshape(LAYERS, 2).copy()
    craft(pairs)
    changed = shard[: -size - 4] + pairs.tobytes() + google_crc32c.value(pairs.tobytes()).to_bytes(4, "little")
    assert changed != shard
    assert google_crc32c.value(changed) == google_crc32c.value(shard)
    return changed


@pytest.fixture(scope="module")
def made() -> Example:
    return example()


@pytest.fixture
def path(made: Example, tmp_path: Path) -> Path:
    return made.make(tmp_path / "s.zarr").path


@pytest.mark.parametrize("craft", CRAFTS)
@pytest.mark.quick(2)
def test_on_a_disk(made: Example, path: Path, tmp_path: Path, craft: Craft) -> None:
    whole = all_files(path)
    (path / SHARD).write_bytes(crafted(whole[SHARD], craft))
    assert [str(fault) for fault in verify(path).faults] == [f"{SHARD} (partition 1): its index was changed"]
    with pytest.raises(StoreDamagedError, match="changed"):
        export(path, tmp_path / "copy.h5")
    assert not (tmp_path / "copy.h5").exists()
    assert repair_layout(path, metadata=made.metadata, index=made.index) == [1]
    made.fill(path)
    assert all_files(path) == whole
    np.testing.assert_array_equal(open_store(path).vectors(np.arange(700)), made.values)


@pytest.mark.parametrize("craft", CRAFTS)
def test_of_a_long_column(made: Example, tmp_path: Path, craft: Craft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.arrays.COLUMN_CHUNK", 256)  # so that a column of 700 rows has three chunks
    path = made.make(tmp_path / "long.zarr").path
    assert isinstance(path, Path)
    assert verify(path).ok
    column = path / "occurrences/type/c/0"
    column.write_bytes(crafted(column.read_bytes(), craft))
    assert [str(fault) for fault in verify(path).faults] == ["occurrences/type/c/0: was changed: its checksum differs"]


@pytest.mark.parametrize("craft", CRAFTS)
def test_a_worker_does_not_adopt_it(made: Example, tmp_path: Path, craft: Craft) -> None:
    path = made.create(tmp_path / "s.zarr")
    with StoreWriter(path) as writer, PartitionWriter(path) as worker:
        record = worker.write(1, made.partition(1))
        shard = path / SHARD
        data = shard.read_bytes()
        shard.write_bytes(crafted(data, craft))
        assert worker.write(1, made.partition(1)) == record
        assert shard.read_bytes() == data
        writer.commit(1, record)
    made.fill(path)
    assert verify(path).ok


@pytest.mark.parametrize("craft", CRAFTS)
@pytest.mark.quick(2)
def test_in_a_bucket(made: Example, path: Path, memory: MemoryBucket, tmp_path: Path, craft: Craft) -> None:
    """Verified, adopted by a resume, repaired, exported."""
    pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")
    whole = all_files(path)
    for key, data in whole.items():
        memory.storage.put(key, [data if key != SHARD else crafted(data, craft)])
    assert verify(URL).damaged_partitions == [1]
    with pytest.raises(EmbstoreError, match="changed"):
        export(open_store(URL), tmp_path / "copy.zarr")
    with pytest.raises(StoreDamagedError, match="changed"):
        open_store(URL).vectors([300], layers=0)
    assert repair_layout(URL, metadata=made.metadata, index=made.index) == [1]
    memory.storage.put(SHARD, [crafted(whole[SHARD], craft)])  # what a writer without a commit has left
    with StoreWriter(URL) as writer:
        assert writer.missing() == [1]
        writer.write(1, made.partition(1))
        writer.finish()
    assert memory.files() == whole
