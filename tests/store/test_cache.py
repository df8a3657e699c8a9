"""The folder of files that can be made again: all or nothing, and never more than allowed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embstore.errors import StorageError
from embstore.store.storage.cache import CacheFolder


def test_a_download_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    kept = CacheFolder(tmp_path / "cache", 10**6)

    def write(descriptors: list[int]) -> None:
        os.write(descriptors[0], b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.add([("one", 8), ("two", 8)], write)
    assert not any((tmp_path / "cache").iterdir())


def test_the_folder_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    kept = CacheFolder(tmp_path, 250)
    for number, name in enumerate("abc"):
        kept.add([(name, 100)], lambda descriptors: os.write(descriptors[0], bytes(100)))
        if kept.find(name, 100) is not None and name != "c":
            os.utime(kept.find(name, 100) or "", (number, number))
        if name == "b":
            assert kept.find("a", 100) is not None  # used again, so b is the one that goes
    (tmp_path / "mine.txt").write_text("mine")
    assert [kept.find(name, 100) is not None for name in "abc"] == [True, False, True]
    kept.add([("large", 10**4)], lambda descriptors: os.write(descriptors[0], bytes(10**4)))
    assert sorted(path.name[-7:] for path in tmp_path.iterdir()) == [".cached", "ine.txt"]


def test_a_folder_that_may_only_be_read_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CacheFolder(tmp_path, 250)
    kept.add([("a", 100)], lambda descriptors: os.write(descriptors[0], bytes(100)))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("utime", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    assert kept.find("a", 100) is not None
    with pytest.raises(StorageError, match=r"cannot write /.* \(EMBSTORE_CACHE chooses another folder\): Read-only"):
        CacheFolder(tmp_path / "new", 250).add([("b", 1)], lambda descriptors: None)
