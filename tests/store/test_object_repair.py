"""A store in a bucket is repaired object by object, and keeps no commit that its shard does not match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embstore.errors import InvalidValueError, StoreDamagedError, StoreMismatchError, StoreNotFoundError
from embstore.store import create_store
from embstore.store.check.repair import repair_layout
from embstore.store.storage.location import ObjectPath
from tests.store.example import Example, all_files, example
from tests.store.memory_bucket import URL, MemoryBucket

pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")

PLACE = ObjectPath(URL)


def small(dtype: str = "int8", *, seed: int = 0) -> Example:
    return example(rows=300, layers=(0, 2), hidden_size=4, dtype=dtype, seed=seed)


def repair(made: Example) -> list[int]:
    return repair_layout(PLACE, metadata=made.metadata, index=made.index, center=made.center)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [cut, flipped, None], ids=["cut", "flipped", "missing"])
@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.quick(1)
def test_any_damage_is_repaired(
    memory: MemoryBucket, tmp_path: Path, damage: Callable[[bytes], bytes] | None, stride: int
) -> None:
    made = small()
    expected = all_files(made.make(tmp_path / "x.zarr").path)
    create_store(PLACE, metadata=made.metadata, index=made.index, center=made.center)
    made.fill(PLACE)
    assert memory.files() == expected
    for name in {*sorted(expected)[::stride], "hidden_states/c/0/1/0", "commits/c/0/0"}:
        if damage is not None:
            memory.storage.put(name, [damage(expected[name])])
        elif name != "zarr.json":
            memory.storage.delete(name)
        missing = repair(made)
        vectors = {f"{array}/c/0/{k}": k for k in (0, 1) for array in ("hidden_states", "scale")}
        of_shard = [k for prefix, k in vectors.items() if name.startswith(prefix)]
        every = name.startswith(("center/c", "commits/c"))
        one = name.startswith("commits/c") and damage is flipped  # the record of the last partition
        assert missing == ([1] if one else [0, 1] if every else of_shard), name
        made.fill(PLACE)
        assert memory.files() == expected, name


def test_what_belongs_to_no_store_is_removed(memory: MemoryBucket, tmp_path: Path) -> None:
    made = small("float16")
    create_store(PLACE, metadata=made.metadata, index=made.index)
    made.fill(PLACE)
    memory.storage.put("hidden_states/c/0/9/0", [b"junk"])
    memory.storage.put("hidden_states/.index/x", [b"an index"])
    assert repair(made) == []
    files = memory.files()
    assert files.pop("hidden_states/.index/x") == b"an index"
    assert files == all_files(made.make(tmp_path / "x.zarr").path)


def test_another_plan_repairs_nothing(memory: MemoryBucket) -> None:
    made, other = small(), small(seed=1)
    with pytest.raises(StoreNotFoundError, match="there is no store"):
        repair(made)
    create_store(PLACE, metadata=made.metadata, index=made.index, center=made.center)
    made.fill(PLACE)
    before = memory.files()
    with pytest.raises(StoreMismatchError, match="was made with another"):
        repair(other)
    memory.storage.put("zarr.json", [b"junk"])
    with pytest.raises(StoreDamagedError, match="nothing else in it shows that this plan made it"):
        repair(other)
    assert memory.files() == {**before, "zarr.json": b"junk"}
    with pytest.raises(InvalidValueError, match="are read-only"):
        repair_layout("https://host/x.zarr", metadata=made.metadata, index=made.index)
