"""A reader that stays open while its store is replaced, cut short or damaged says so, and never gives other rows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import StoreBusyError, StoreDamagedError
from embstore.store import Store, StoreWriter, export, open_store, verify
from embstore.store.storage.local import LocalStorage
from embstore.store.storage.lock import StoreLock
from tests.store.example import SUFFIXES, all_files, example, flip
from tests.store.memory_bucket import URL, MemoryBucket
from tests.store.test_shard_index import crafted, exchange

ROWS = np.arange(700)


def reads_of(store: Store) -> list[Callable[[], object]]:
    """Return what reads a store in every way; the first one gives row 1 of layer 0."""
    return [
        lambda: store.vectors([1], layers=0),
        lambda: store.vectors(ROWS[::-1], layers=3),
        lambda: list(store.scan(0)),
        lambda: list(store.scan(0, copy=False)),
        lambda: store.select(words="bank").rows,
        store.table,
        lambda: store.index.rows_of(0),
        store.source.refresh,
    ]


def is_refused(read: Callable[[], object], right: np.ndarray | None = None) -> bool:
    """Return whether a read is refused because the store was replaced; it must be, or give what is right."""
    try:
        found = read()
    except StoreDamagedError as error:
        return "\n" not in str(error) and ("open it again" in str(error) or "open the store again" in str(error))
    assert right is not None
    assert np.array_equal(found, right)  # type: ignore[arg-type]
    return False


@pytest.mark.parametrize("replace", ["rename", "remove", "in place"])
@pytest.mark.parametrize("used", [False, True], ids=["untouched", "one shard mapped"])
@pytest.mark.quick(1)
def test_a_folder_that_was_replaced(tmp_path: Path, replace: str, used: bool) -> None:
    """By a store of the same shape, as after a second extraction."""
    first, path, other = tmp_path / "first.zarr", tmp_path / "s.zarr", tmp_path / "other.zarr"
    example().make(first)
    example(seed=1).make(other)
    for number in range(8):
        shutil.copytree(first, path)
        store = open_store(path)
        if used:
            store.vectors([1], layers=0)
        if replace == "rename":
            os.rename(path, tmp_path / f"old{number}")
        elif replace == "remove":
            shutil.rmtree(path)
        shutil.copytree(other, path, dirs_exist_ok=True)
        assert is_refused(reads_of(store)[number]), number
        shutil.rmtree(path)
        assert is_refused(reads_of(store)[number]), number


def test_a_folder_with_the_same_contents_is_the_same_store(tmp_path: Path) -> None:
    made = example()
    store = made.make(tmp_path / "s.zarr")
    os.rename(tmp_path / "s.zarr", tmp_path / "old.zarr")
    shutil.copytree(tmp_path / "old.zarr", tmp_path / "s.zarr", copy_function=shutil.copyfile)
    np.testing.assert_array_equal(store.vectors(ROWS, layers=0), made.values[0])
    assert store.table().height == 700


def test_a_file_that_was_replaced(tmp_path: Path) -> None:
    """An HDF5 file stays mapped: rows are those of the file that was opened, or refused."""
    made = example()
    store = made.make(tmp_path / "s.h5")
    example(seed=1).make(tmp_path / "other.h5")
    os.replace(tmp_path / "other.h5", tmp_path / "s.h5")
    np.testing.assert_array_equal(store.vectors(ROWS, layers=0), made.values[0])
    np.testing.assert_array_equal(np.concatenate([block for _, block in store.scan(0)]), made.values[0])
    assert is_refused(store.source.refresh)


def test_a_bucket_that_was_replaced(memory: MemoryBucket, tmp_path: Path) -> None:
    made = example()
    before = all_files(made.make(tmp_path / "x.zarr").path)  # type: ignore[arg-type]
    after = all_files(example(seed=1).make(tmp_path / "y.zarr").path)  # type: ignore[arg-type]
    for used in (False, True):
        for number in range(8):
            upload(memory, before)
            store = open_store(URL)
            if used:
                store.vectors([1], layers=0)
            upload(memory, after)
            assert is_refused(reads_of(store)[number])
    upload(memory, before)
    store = open_store(URL)
    store.vectors([1], layers=0)
    memory.storage.delete("hidden_states/c/0/0/0")
    with pytest.raises(StoreDamagedError, match="was removed since it was opened"):
        store.vectors([2], layers=0)


def test_a_column_that_was_changed_in_a_bucket_is_refused(memory: MemoryBucket, tmp_path: Path) -> None:
    files = all_files(example().make(tmp_path / "x.zarr").path)  # type: ignore[arg-type]
    for name in ("occurrences/type", "types/form_bytes", "sentences/text_offsets", "labels/upos/name_bytes"):
        column = files[f"{name}/c/0"]
        upload(memory, {**files, f"{name}/c/0": bytes([column[0] ^ 1]) + column[1:]})
        with pytest.raises(StoreDamagedError, match=f"{name}/c/0 was changed, its checksum differs"):
            open_store(URL).table()


def upload(memory: MemoryBucket, files: dict[str, bytes]) -> None:
    for key, data in files.items():
        memory.storage.put(key, [data])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.slow
def test_a_mapped_file_that_is_cut_short_does_not_end_the_process(tmp_path: Path, suffix: str) -> None:
    path = example(rows=5000, hidden_size=64).make(tmp_path / f"s{suffix}").path
    code = (
        "import os, sys, numpy as np, embstore.store as store\n"
        "opened = store.open_store(sys.argv[1])\n"
        "opened.vectors(np.arange(5000), layers=0); opened.table()\n"
        "for file in sys.argv[2:]: os.truncate(file, 100)\n"
        "for work in (lambda: opened.vectors(np.arange(5000), layers=3), lambda: list(opened.scan(0)), opened.table,\n"
        "             lambda: opened.vectors([300], layers=0), lambda: list(opened.scan(0, copy=False)),\n"
        "             lambda: opened.select(words='bank').rows):\n"
        "    try: work(); print('read')\n"
        "    except RuntimeError as error: print(error)\n"
    )
    assert isinstance(path, Path)
    files = [path] if suffix == ".h5" else [path / "hidden_states/c/0/1/0", path / "occurrences/type/c/0"]
    done = subprocess.run([sys.executable, "-c", code, str(path), *map(str, files)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 6
    assert all("is cut short" in line for line in lines), lines


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_lazy_checks_find_a_flipped_bit_where_it_is_first_read(tmp_path: Path, suffix: str) -> None:
    made = example(dtype="int8")
    path = made.make(tmp_path / f"s{suffix}").path
    assert isinstance(path, Path)
    file = path if suffix == ".h5" else path / "hidden_states/c/0/1/0"
    flip(file, file.read_bytes().index(made.arrays["hidden_states"][1, 300].tobytes()) + 5)
    assert not np.array_equal(open_store(path).vectors([300], layers=3), made.values[1, [300]]), (
        "a plain read does not look"
    )
    lazy = open_store(path, verify="lazy")
    np.testing.assert_array_equal(lazy.vectors([0, 699], layers=3), made.values[1, [0, 699]])
    calls: list[Callable[[], object]] = [
        lambda: lazy.vectors([300], layers=0),
        lambda: lazy.vectors([0, 699, 256], layers=3),
        lambda: list(lazy.scan(0)),
        lambda: list(lazy.scan(0, copy=False)),
        lambda: list(lazy.select(rows=[1, 300]).scan()),
        lambda: list(lazy.select(rows=range(200, 400, 2)).scan()),
    ]
    for call in calls:
        with pytest.raises(StoreDamagedError, match=r"rows of partition 1 of .* were changed: run `embstore verify`"):
            call()
    assert sum(len(block) for _, block in lazy.scan(0, 0, 256)) == 256


def test_lazy_checks_compare_the_index_of_a_shard_and_the_columns(tmp_path: Path) -> None:
    path = example().make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    shard = path / "hidden_states/c/0/0/0"
    shard.write_bytes(crafted(shard.read_bytes(), exchange))
    lazy = open_store(path, verify="lazy")
    with pytest.raises(StoreDamagedError, match=r"the rows of partition 0 of .* were changed"):
        lazy.vectors([0], layers=0)
    column = path / "occurrences/position/c/0"
    column.write_bytes(b"\1" + column.read_bytes()[1:])
    with pytest.raises(StoreDamagedError, match=r"occurrences/position of .* was changed"):
        lazy.table()
    with pytest.raises(StoreDamagedError, match=r"occurrences/position of .* was changed"):
        export(path, tmp_path / "copy.zarr")


def test_lazy_checks_of_a_bucket(memory: MemoryBucket, tmp_path: Path) -> None:
    made = example()
    upload(memory, all_files(made.make(tmp_path / "x.zarr").path))  # type: ignore[arg-type]
    store = open_store(URL, verify="lazy")
    np.testing.assert_array_equal(store.vectors(ROWS, layers=0), made.values[0])
    shard = memory.storage.get("hidden_states/c/0/2/0")
    memory.storage.put("hidden_states/c/0/2/0", [bytes([shard[0] ^ 1]), shard[1:]])
    with pytest.raises(StoreDamagedError, match=r"partition 2 of s3://bucket/x\.zarr were changed"):
        open_store(URL, verify="lazy").vectors([699], layers=0)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_behind_a_link_is_written_locked_and_read_where_it_is(tmp_path: Path, suffix: str) -> None:
    made = example()
    (tmp_path / "home").mkdir()
    (tmp_path / "scratch").mkdir()
    link, real = tmp_path / f"home/s{suffix}", tmp_path / f"scratch/s{suffix}"
    link.symlink_to(real)
    made.create(link)  # a link to nothing yet
    with StoreWriter(link) as writer:
        assert StoreLock(real).file.exists()
        for path in (real, link):
            with pytest.raises(StoreBusyError):
                StoreWriter(path)
        for partition in writer.missing():
            writer.write(partition, made.partition(partition))
        writer.finish()
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "home").iterdir()] == [f"s{suffix}"]
    store = open_store(link)
    assert store.path == real
    assert verify(link).ok
    link.unlink()
    link.symlink_to(tmp_path / f"other{suffix}")
    example(seed=1).make(link)
    np.testing.assert_array_equal(store.vectors(ROWS, layers=5), made.values[2])


def test_folders_and_files_of_a_store_behind_links(tmp_path: Path) -> None:
    made = example()
    path = made.make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    for name in ("hidden_states", "occurrences/type/c/0"):
        (tmp_path / "far" / name).parent.mkdir(parents=True, exist_ok=True)
        os.rename(path / name, tmp_path / "far" / name)
        (path / name).symlink_to(tmp_path / "far" / name)
    assert verify(path).ok
    np.testing.assert_array_equal(open_store(path).vectors(ROWS, layers=0), made.values[0])
    (path / "occurrences/loop").symlink_to(path)  # every folder is listed once
    (path / "occurrences/nothing").symlink_to(path / "none")
    assert not [key for key in LocalStorage(path).sizes() if "loop" in key]
    assert verify(path).ok
