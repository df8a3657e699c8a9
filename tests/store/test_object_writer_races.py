"""Writers of one store in a bucket at once, and writers that die: one valid commit a partition, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.errors import EmbstoreError, InvalidValueError
from embstore.store import StoreWriter, create_store, verify
from embstore.store.backend import stands
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import CutShortError, Objects
from tests.store.example import Example, all_files, example
from tests.store.memory_bucket import URL, MemoryBucket, Turns

pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")


class Killed(BaseException):
    """Ends a writer at once, as a signal does."""


def pair(dtype: str) -> tuple[Example, Example]:
    """Two examples of one recipe whose vectors, and at int8 the centre too, differ in their bits."""
    one = example(rows=300, layers=(0, 2), hidden_size=4, dtype=dtype, labels=False)
    other = example(rows=300, layers=(0, 2), hidden_size=4, dtype=dtype, labels=False)
    for array in other.arrays.values():
        if array.dtype == np.int8:
            np.copyto(array, np.clip(array + 1, -126, 127))
        else:
            array *= array.dtype.type(1.01)
    assert other.center is None or one.center is not None
    center = None if other.center is None else (other.center * np.float32(1.0001)).astype(np.float32)
    return one, replace(other, center=center)


def extract(made: Example, url: str = URL) -> None:
    """Do what an extraction does: lay out, unless that was done; write what is missing; finish."""
    place = ObjectPath(url)
    if not stands(place):
        try:
            create_store(place, metadata=made.metadata, index=made.index, center=made.center)
        except InvalidValueError:
            if not stands(place):
                raise
    with StoreWriter(place) as writer:
        for partition in writer.missing():
            writer.write(partition, made.partition(partition))
        writer.finish()


def shards(files: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
    """The shards of a store by partition and name."""
    found: dict[str, dict[str, bytes]] = {}
    for name, data in files.items():
        if name.startswith(("hidden_states/c/", "scale/c/")):
            found.setdefault(name.split("/")[3], {})[name] = data
    return found


def assert_valid(memory: MemoryBucket, folder: Path, ways: Sequence[Example]) -> None:
    """The store verifies, is as a local one, and each partition is wholly one writer's."""
    report = verify(memory.download(folder / "got.zarr"))
    assert report.ok, report
    files = memory.files()
    local = [all_files(made.make(folder / f"{number}.zarr").path) for number, made in enumerate(ways)]
    assert set(files) == set(local[0])
    for partition, held in shards(files).items():
        assert any(held == shards(way)[partition] for way in local), partition


@pytest.mark.parametrize(
    ("dtype", "stride"),
    [("int8", 7), *(pytest.param(dtype, 1, marks=pytest.mark.slow) for dtype in ("float16", "int8"))],
)
def test_killed_at_any_request_and_run_again(memory: MemoryBucket, tmp_path: Path, dtype: str, stride: int) -> None:
    made = pair(dtype)[0]
    expected = all_files(made.make(tmp_path / "local.zarr").path)
    for when in ("begin", "end"):
        for number in range(0, 10_000, stride):
            for name in memory.objects.names():
                memory.objects.delete(name)
            if not _dies(memory, made, when, number):
                break
            memory.step = lambda *_: None
            extract(made)
            assert memory.files() == expected
        assert number > 30


def _dies(memory: MemoryBucket, made: Example, when: str, number: int) -> bool:
    left = [number]
    mutex = threading.Lock()

    def step(at: str, kind: str, name: str) -> None:
        if at != when or kind in ("read", "list"):
            return
        with mutex:
            left[0] -= 1
        if left[0] < 0:
            raise Killed

    memory.step = step
    try:
        extract(made)
    except Killed:
        return True
    return False


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_answers_lost_at_any_request_change_nothing(memory: MemoryBucket, tmp_path: Path, stride: int) -> None:
    made = pair("int8")[0]
    expected = all_files(made.make(tmp_path / "local.zarr").path)
    for lost in range(0, 1000, stride):
        for name in memory.objects.names():
            memory.objects.delete(name)
        left = [lost]

        def step(when: str, kind: str, name: str, left: list[int] = left) -> None:
            if when == "end" and kind in ("put", "copy"):
                left[0] -= 1
                if left[0] == -1:
                    raise CutShortError(f"cannot write {name}: the connection is lost in the middle")

        memory.step = step
        extract(made)
        assert memory.files() == expected
        if left[0] >= 0:
            break
    assert lost > 30


def test_shards_of_many_parts_are_copied_to_their_place(
    memory: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embstore.store.zarr.object_shards.PART_NBYTES", 1000)
    made = pair("float16")[0]
    kinds: dict[str, str] = {}

    def step(when: str, kind: str, name: str) -> None:
        if kind in ("put", "put_large", "copy"):
            kinds[name] = kind

    memory.step = step
    extract(made)
    assert memory.files() == all_files(made.make(tmp_path / "local.zarr").path)
    assert kinds["hidden_states/c/0/0/0"] == kinds["hidden_states/c/0/1/0"] == "copy"
    assert kinds["commits/c/0/0"] == "put"
    assert "put_large" in kinds.values()


@pytest.mark.parametrize(("dtype", "part"), [("float16", 2**24), ("float16", 1000), ("int8", 2**24)])
def test_the_upload_that_ends_after_the_others_commit_changes_nothing(
    memory: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, part: int
) -> None:
    monkeypatch.setattr("embstore.store.zarr.object_shards.PART_NBYTES", part)
    one, other = pair(dtype)
    create_store(ObjectPath(URL), metadata=one.metadata, index=one.index, center=one.center)
    slow = threading.current_thread()
    wins = [True]

    def step(when: str, kind: str, name: str) -> None:
        placed = when == "begin" and kind in ("put", "copy") and name == "hidden_states/c/0/0/0"
        if placed and threading.current_thread() is slow and wins.pop():
            thread = threading.Thread(target=extract, args=(other,))
            thread.start()
            thread.join()

    memory.step = step
    wins.append(False)
    wins.reverse()
    extract(one)
    assert_valid(memory, tmp_path, [other])


def test_a_leftover_shard_is_adopted(memory: MemoryBucket, tmp_path: Path) -> None:
    one, other = pair("float16")
    place = ObjectPath(URL)
    create_store(place, metadata=one.metadata, index=one.index)

    def step(when: str, kind: str, name: str) -> None:
        if when == "begin" and name == "commits/c/0/0" and kind == "put":
            raise Killed

    memory.step = step
    with pytest.raises(Killed):
        extract(one)
    memory.step = lambda *_: None
    extract(other)
    files = memory.files()
    ways = [all_files(made.make(tmp_path / f"{number}.zarr").path) for number, made in enumerate((one, other))]
    assert files["hidden_states/c/0/0/0"] == ways[0]["hidden_states/c/0/0/0"]
    assert files["hidden_states/c/0/1/0"] == ways[1]["hidden_states/c/0/1/0"]
    assert verify(memory.download(tmp_path / "got.zarr")).ok


@pytest.mark.parametrize("junk", [b"", b"x", bytes(4 * 256 * 2 * 2 + 20)])
def test_what_is_no_shard_is_not_adopted(memory: MemoryBucket, tmp_path: Path, junk: bytes) -> None:
    made = pair("float16")[0]
    create_store(ObjectPath(URL), metadata=made.metadata, index=made.index)
    memory.objects.put("hidden_states/c/0/1/0", junk)
    extract(made)
    assert memory.files() == all_files(made.make(tmp_path / "local.zarr").path)


def test_a_commit_that_is_not_the_shards_gives_way(memory: MemoryBucket, tmp_path: Path) -> None:
    made = pair("float16")[0]
    place = ObjectPath(URL)
    create_store(place, metadata=made.metadata, index=made.index)
    with StoreWriter(place) as writer:
        writer.write(0, made.partition(0))
        writer.missing()
        backend: Any = writer._backend
        crc = backend.write(1, made.partition(1))
        memory.objects.put("commits/c/1/0", np.array([44, crc ^ 1], "<u8").tobytes())
        backend.commit(1, np.array([44, crc], np.uint64))
        writer.finish()
    assert memory.files() == all_files(made.make(tmp_path / "local.zarr").path)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_discarded_partitions_are_written_again(memory: MemoryBucket, tmp_path: Path, dtype: str) -> None:
    one, other = pair(dtype)
    extract(one)
    before = memory.files()
    deleted: list[str] = []
    memory.step = lambda when, kind, name: deleted.append(name) if (when, kind) == ("end", "delete") else None
    with StoreWriter(ObjectPath(URL)) as writer:
        writer.discard([1])
        assert writer.missing() == [1]
        assert deleted[:2] == ["commits/c/1/0", "hidden_states/c/0/1/0"]
        assert "hidden_states/c/0/1/0" not in memory.files()
        writer.write(1, other.partition(1))
        writer.finish()
    files = memory.files()
    assert verify(memory.download(tmp_path / "got.zarr")).ok
    assert shards(files)["0"] == shards(before)["0"]
    assert shards(files)["1"] == shards(all_files(other.make(tmp_path / "other.zarr").path))["1"]
    assert set(files) == set(before)


def test_another_plan_is_refused_and_nothing_of_it_left(memory: MemoryBucket) -> None:
    made = example(rows=300, layers=(0, 2), hidden_size=4)
    place = ObjectPath(URL)
    create_store(place, metadata=made.metadata, index=made.index)
    before = memory.files()
    other = example(rows=300, layers=(0, 2), hidden_size=4, seed=1)
    with pytest.raises(InvalidValueError, match="exists already"):
        create_store(place, metadata=other.metadata, index=other.index)
    assert memory.files() == before
    memory.objects.delete("zarr.json")  # as an interrupted making leaves it
    with pytest.raises(InvalidValueError, match="belongs to another store whose making was interrupted") as raised:
        create_store(place, metadata=other.metadata, index=other.index)
    assert "\n" not in str(raised.value)
    create_store(place, metadata=made.metadata, index=made.index)
    assert memory.files() == before


def test_places_that_can_hold_no_store(memory: MemoryBucket) -> None:
    made = example()
    for url, message in [
        ("s3://bucket/x.h5", "a store in a bucket is a .zarr, HDF5 stands on a disk"),
        ("s3://bucket/x", "must end in .zarr or .h5, not 'x'"),
        ("https://host/x.zarr", "cannot write https://host/x.zarr: stores at https:// can only be read"),
    ]:
        with pytest.raises(InvalidValueError, match=message):
            create_store(url, metadata=made.metadata, index=made.index)
        with pytest.raises(InvalidValueError, match=message):
            StoreWriter(url)
    assert memory.files() == {}


def test_a_server_that_always_overwrites_is_refused(memory: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Objects.put
    monkeypatch.setattr(Objects, "put", lambda self, name, data, create=False: put(self, name, data))
    made = example()
    with pytest.raises(EmbstoreError, match="overwrites what should only be created"):
        create_store(URL, metadata=made.metadata, index=made.index)


def schedule(random: np.random.Generator) -> list[int]:
    """Whose turn it is: now one request each, now many of one writer at a time."""
    turns = random.integers(0, 6, 2000)
    return np.repeat(turns, random.geometric(random.choice([1, 0.5, 0.1]), len(turns))).tolist()


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 14), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_any_interleaving_leaves_one_valid_commit_a_partition(
    memory: MemoryBucket, tmp_path_factory: pytest.TempPathFactory, dtype: str, seeds: range
) -> None:
    for seed in seeds:
        race(memory, tmp_path_factory.mktemp("race"), pair(dtype), np.random.default_rng(seed))


def race(memory: MemoryBucket, folder: Path, ways: tuple[Example, Example], random: np.random.Generator) -> None:
    """Let two or three writers, of which one may die, make a store or fill one that is laid out."""
    for name in memory.objects.names():
        memory.objects.delete(name)
    one, other = ways
    laid_out, large, third, dies = (random.random(4) < 0.5).tolist()
    if laid_out:
        create_store(ObjectPath(URL), metadata=one.metadata, index=one.index, center=one.center)
    turns = Turns(schedule(random))
    left = [int(random.integers(1, 60 if laid_out else 200)) if dies else 10_000]
    mortal: list[threading.Thread] = []

    def step(when: str, kind: str, name: str) -> None:
        turns.step(when, kind, name)
        if threading.current_thread() in mortal:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    def first() -> None:
        mortal.append(threading.current_thread())
        extract(one)

    memory.step = step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embstore.store.zarr.object_shards.PART_NBYTES", 1000 if large else 2**24)
        raised = turns.run([first, lambda: extract(other), *([lambda: extract(one)] if third else [])])
    memory.step = lambda *_: None
    assert isinstance(raised[0], Killed | None), raised
    assert not any(raised[1:]), raised
    assert verify(memory.download(folder / "raced.zarr")).ok
    if raised[0] is not None:
        extract(other)  # tidies up what the dead one left
    assert_valid(memory, folder, ways)
