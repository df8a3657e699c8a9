"""Two writers, a reader next to a writer, and read-only folders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import StorageError, StoreBusyError
from embstore.store import StoreWriter, create_store
from embstore.store.collection import JoinedSource
from embstore.store.storage.lock import StoreLock
from tests.privileges import reachable_folder, without_privileges
from tests.resilience.running import Running
from tests.resilience.scene import (
    BACKENDS,
    Reference,
    assert_rows,
    assert_whole,
    make_plan,
    open_quietly,
    tree,
    write_tree,
)
from tests.resilience.scenes import SCENES, Whole, damage

Get = Callable[..., Reference]
SCENE = {".zarr": "extraction to Zarr", ".h5": "extraction to HDF5"}


APPENDS = ("append", "append of another corpus")


def parts_of(path: Path) -> list[dict[str, bytes | None]]:
    """The bytes of the store at `path` and of each of its parts, without order."""
    store = es.open(path)
    assert isinstance(store.source, JoinedSource)
    found = [tree(each.path) for each in store.source.opened]
    return [{name: data for name, data in each.items() if "appended" not in name} for each in found]


@pytest.mark.slow
def test_appends_of_two_corpora_at_once_are_refused_or_added_whole(
    tmp_path: Path, whole: Callable[[str], Whole]
) -> None:
    """Each of them, repeated, has added its corpus once, whichever came first."""
    write_tree(whole("append").before, tmp_path)
    running = [Running(name, tmp_path) for name in APPENDS * 2]
    statuses, failures = [each.join() for each in running], [each.failure() for each in running]
    assert 0 in statuses
    assert all("StoreBusyError" in error for error in failures if error is not None), failures
    for name in APPENDS:
        SCENES[name].work(tmp_path)
    path = tmp_path / "store.zarr"
    expected = []
    for name in APPENDS:
        write_tree(whole(name).after, tmp_path / name)
        expected += parts_of(tmp_path / name / "store.zarr")[-1:]
    first, *others = parts_of(path)
    before = whole("append").before
    assert {f"store.zarr/{name}": data for name, data in first.items()} | {"store.zarr": None} == before
    assert others in (expected, expected[::-1])
    assert es.verify(path).ok


@pytest.mark.slow
@pytest.mark.parametrize("suffix", BACKENDS)
def test_a_reader_sees_what_is_committed_and_more_on_refresh(tmp_path: Path, reference: Get, suffix: str) -> None:
    whole = reference(suffix)
    path = tmp_path / "alone" / f"store{suffix}"
    path.parent.mkdir()
    running = Running(SCENE[path.suffix], path.parent, held=True)
    done = running.wait_for("progress")
    store, warned = open_quietly(path)
    assert len(warned) == 1
    seen = {store.n_committed_rows}
    while done is not None:
        before = store.source.committed.copy()
        assert_rows(store, whole)
        assert (store.source.committed == before).all()  # nothing changes but by `refresh`
        limit = time.monotonic() + 600
        while store.n_committed_rows < (done - 1) // 256 * 256:  # another thread writes
            assert time.monotonic() < limit
            store.source.refresh()
        assert (store.source.committed >= before).all()
        seen.add(store.n_committed_rows)
        done = running.go_on()
    assert running.join() == 0
    assert len(seen) >= 3
    store.source.refresh()
    assert_rows(store, whole)
    assert store.finished
    assert store.n_committed_rows == store.n_rows
    assert_whole(path, whole)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        try:
            StoreLock(tmp_path / "s.zarr").__enter__()
        finally:
            os.kill(os.getpid(), SIGKILL)
    assert os.waitpid(child, 0)[1] == SIGKILL
    (left,) = tmp_path.iterdir()
    with StoreLock(tmp_path / "s.zarr") as lock:
        assert lock.file == left


@pytest.mark.slow
@pytest.mark.parametrize("suffix", BACKENDS)
def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path, reference: Get, suffix: str) -> None:
    path = tmp_path / "alone" / f"store{suffix}"
    path.parent.mkdir()
    first = Running(SCENE[path.suffix], path.parent, held=True)
    assert first.wait_for("progress") is not None
    with pytest.raises(StoreBusyError):
        StoreWriter(path)
    first.kill()
    assert first.join() == -SIGKILL
    assert path.with_name(f"{path.name}.lock").exists()
    es.extract(make_plan(), path)
    assert_whole(path, reference(suffix))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", BACKENDS)
def test_many_writers_at_once_make_one_store(tmp_path: Path, reference: Get, suffix: str) -> None:
    """A writer that is refused changes nothing, at whatever moment it comes."""
    path = tmp_path / "alone" / f"store{suffix}"
    path.parent.mkdir()
    running = [Running(SCENE[path.suffix], path.parent) for _ in range(4)]
    statuses = [writer.join() for writer in running]
    failures = [writer.failure() for writer in running]
    assert statuses.count(0) >= 1
    assert all("StoreBusyError" in error for error in failures if error is not None), failures
    assert_whole(path, reference(suffix))


@pytest.mark.parametrize("suffix", BACKENDS)
@pytest.mark.quick(1)
def test_a_store_created_by_another_process_is_filled(
    tmp_path: Path, reference: Get, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "alone" / f"store{suffix}"
    path.parent.mkdir()

    def second(*args: Any, **options: Any) -> None:
        create_store(*args, **options)  # the other, between our look at the path and our lock
        create_store(*args, **options)

    monkeypatch.setattr("embstore.extraction.extract.create_store", second)
    es.extract(make_plan(), path)
    assert_whole(path, reference(suffix))


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that everybody may read and nobody may write in, once it is closed."""
    with reachable_folder() as folder:
        yield folder


@pytest.mark.parametrize("suffix", BACKENDS)
def test_a_read_only_folder(closed: Path, suffix: str) -> None:
    path = closed / f"store{suffix}"
    plan = make_plan()
    closed.chmod(0o555)
    with without_privileges(), pytest.raises(StorageError, match=r"cannot write .*: Permission denied"):
        es.extract(plan, path)
    assert list(closed.iterdir()) == []


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("suffix", BACKENDS)
@pytest.mark.quick(2)
def test_a_finished_store_in_a_read_only_folder(closed: Path, reference: Get, suffix: str, repair: bool) -> None:
    path = closed / f"store{suffix}"
    write_tree(reference(suffix).tree, path)
    plan = make_plan()
    closed.chmod(0o555)
    with without_privileges():
        store = es.extract(plan, path, repair=repair)
        assert store.finished
        np.testing.assert_array_equal(store.vectors([5], layers=1), reference(suffix).vectors[1, 5:6])
    assert_whole(path, reference(suffix))


@pytest.mark.parametrize("suffix", BACKENDS)
def test_a_damaged_store_in_a_read_only_folder_is_not_changed(closed: Path, reference: Get, suffix: str) -> None:
    path = closed / f"store{suffix}"
    write_tree(reference(suffix).tree, path)
    damage(path)
    before = tree(path)
    plan = make_plan()
    closed.chmod(0o555)
    with without_privileges(), pytest.raises(StorageError, match=r"cannot write .*: Permission denied"):
        es.extract(plan, path, repair=True)
    assert (tree(path), [item.name for item in closed.iterdir()]) == (before, [path.name])
