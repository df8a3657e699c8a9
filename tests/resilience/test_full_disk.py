"""A disk that fills up at any byte: one line, nothing corrupt, and the same call resumes once there is space."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embstore as es
from embstore.errors import StorageError
from tests.resilience.conftest import campaign
from tests.resilience.scene import Reference, assert_honest, assert_whole, make_plan

Get = Callable[..., Reference]
PAGE = 4096


class Disk:
    """A file system in memory whose size can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run("mount", "-t", "tmpfs", "-o", "size=64k", "embstore-test", str(folder))

    def resize(self, nbytes: int, *, files: int = 0) -> None:
        """Give it that many bytes and at most that many files (0: any number)."""
        self._run("mount", "-o", f"remount,size={nbytes},nr_inodes={files}", str(self.folder))

    def empty(self) -> None:
        for item in self.folder.iterdir():
            if item.is_dir():
                shutil.rmtree(item)
            else:
                item.unlink()
        if self.used():
            gc.collect()  # a store that nobody holds any more may still be mapped
        assert self.used() == 0  # nothing is held open

    def used(self) -> int:
        """Bytes in use, those of files that are removed but still open among them."""
        usage = os.statvfs(self.folder)
        return (usage.f_blocks - usage.f_bfree) * usage.f_frsize

    def unmount(self) -> None:
        self._run("umount", str(self.folder))

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        made = Disk(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small file system cannot be mounted here (it takes root): {error}")
    yield made
    made.unmount()


def needed(disk: Disk, suffix: str, dtype: str) -> int:
    """The most bytes that an uninterrupted run takes at any time, to the page."""
    disk.resize(2**24)
    most = 0

    def look(_done: int, _total: int | None) -> None:
        nonlocal most
        most = max(most, disk.used())

    with es.config(progress=look):
        es.extract(make_plan(dtype=dtype), disk.folder / f"store{suffix}")
    most = max(most, disk.used())
    disk.empty()
    return most


def assert_refused(disk: Disk, suffix: str, whole: Reference, *, dtype: str) -> str:
    """Run on a disk that is too small: one line that names the path; returns the state then."""
    path = disk.folder / f"store{suffix}"
    with pytest.raises(StorageError) as caught:
        es.extract(make_plan(dtype=dtype), path)
    message = str(caught.value)
    assert str(path) in message
    assert "the disk is full" in message
    assert "run the same command again" in message
    state = assert_honest(path, whole)
    assert [item.name for item in disk.folder.iterdir()] == ([path.name] if path.exists() else [])
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "dtype"), [(".zarr", "float32"), (".h5", "float32"), (".zarr", "int8"), (".h5", "int8")]
)
def test_disk_of_every_size(
    disk: Disk, reference: Get, suffix: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused in one line, resumed once there is space; here the HDF5 library itself finds the disk full."""
    states: Counter[str] = Counter()
    path = disk.folder / f"store{suffix}"
    whole = reference(suffix, dtype)
    sizes = range(PAGE, needed(disk, suffix, dtype), campaign(1, 8) * PAGE)
    for size in sizes:
        disk.resize(size)
        states[assert_refused(disk, suffix, whole, dtype=dtype)] += 1
        disk.resize(2**24)
        es.extract(make_plan(dtype=dtype), path)
        assert_whole(path, whole)
        disk.empty()
    assert states["no store"] >= 1  # the index did not fit
    assert any("of 5 partitions" in state for state in states)
    with capsys.disabled():
        print(f"\n{suffix} {dtype}: {len(sizes)} sizes of disk: {dict(states)}")
