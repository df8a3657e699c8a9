"""A folder of files that can be made again: of partitions that a virtual store does not keep."""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from embstore.store.storage.files import crc32c, crc32c_of_spans, opened, read_at, replacing, storing, write_at

SIZE_GIB = 64.0  # of copies, unless EMBSTORE_CACHE_GIB says otherwise: what a laptop's disk can give
CRC_NBYTES = 4  # of the checksum at the end of a file
_CACHED = re.compile(r"[0-9a-f]{64}\.cached")
_PARTIAL = re.compile(r"[0-9a-f]{64}\.[a-z0-9_]+\.partial")
_STALE_SECONDS = 86_400  # no computation takes a day: what is older was left by a killed process


class CacheFolder:
    """Files in a folder, named by what they hold, of at most `nbytes` in total; the least recently used are removed.

    A file appears complete, by one rename, and ends with the CRC32C of its name and bytes, which a process compares
    before it first uses the file. Processes may share the folder: a file that one removes stays readable for another
    that has mapped it.
    """

    _compared: ClassVar[dict[Path, tuple[int, ...]]] = {}  # what distinguishes the files that this process has compared

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        self._nbytes = nbytes
        self._damaged: list[Path] = []  # files that were removed

    def find(self, name: str, nbytes: int, *, again: bool = False) -> Path | None:
        """Return the file of `name`, None where it is not there or damaged; `again`: compare it once more."""
        path = self._path(name)
        try:
            with opened(path) as descriptor:
                status = os.fstat(descriptor)
                identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
                if again or self._compared.get(path) != identity:
                    crc, _ = crc32c_of_spans(descriptor, [(0, nbytes)], crc32c(name.encode()))
                    stored = np.empty(CRC_NBYTES + 1, np.uint8)
                    if stored[: read_at(descriptor, stored, nbytes)].tobytes() != crc.to_bytes(CRC_NBYTES, "little"):
                        self._damaged.append(path)
                        self._compared.pop(path, None)
                        path.unlink(missing_ok=True)
                        return None
                    self._compared[path] = identity
        except OSError:
            return None
        with suppress(OSError):  # of another user, or on a read-only file system
            os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        return path

    def find_all(self, files: Sequence[tuple[str, int]], *, again: bool = False) -> list[Path] | None:
        """Return the files (name, nbytes), None where one of them is not there or damaged."""
        paths = [self.find(*file, again=again) for file in files]
        return None if None in paths else [path for path in paths if path is not None]

    def add(self, files: Sequence[tuple[str, int]], write: Callable[[list[int]], object]) -> None:
        """Create files (name, nbytes) with what `write` writes to their descriptors; not one of them if it fails."""
        with storing(f"{self.folder} (EMBSTORE_CACHE chooses another folder)"), ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_space(sum(nbytes for _, nbytes in files))
            descriptors = []
            for target in [self._path(name) for name, _ in files]:
                partial = self.folder / f"{target.stem}.{uuid.uuid4().hex}.partial"
                stack.enter_context(replacing(target, partial=partial))
                descriptors.append(stack.enter_context(opened(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL)))
            write(descriptors)
            for (name, nbytes), descriptor in zip(files, descriptors, strict=True):
                crc, _ = crc32c_of_spans(descriptor, [(0, nbytes)], crc32c(name.encode()))
                write_at(descriptor, crc.to_bytes(CRC_NBYTES, "little"), nbytes)

    def take_damaged(self) -> list[Path]:
        """Return the files that were found damaged since the last call."""
        damaged, self._damaged = self._damaged, []
        return damaged

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()}.cached"

    def _make_space(self, nbytes: int) -> None:
        cached = []
        for entry in os.scandir(self.folder):
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            if _CACHED.fullmatch(entry.name):
                cached.append((status.st_atime_ns, status.st_size - CRC_NBYTES, entry.path))
            elif _PARTIAL.fullmatch(entry.name) and time.time() - status.st_mtime > _STALE_SECONDS:
                Path(entry.path).unlink(missing_ok=True)
        total = sum(size for _, size, _ in cached) + nbytes
        for _, size, path in sorted(cached):
            if total <= self._nbytes:
                break
            Path(path).unlink(missing_ok=True)
            total -= size


@dataclass(frozen=True)
class Expected:
    """The bytes that some keys must hold: the first `sizes` bytes of `keys`, one after the other, have this CRC32C."""

    keys: tuple[str, ...]
    sizes: tuple[int, ...]
    crc32c: int
    version: str


def cached_names(expected: Expected, suffix: str = "") -> list[tuple[str, int]]:
    """Return the names and sizes of the files that hold what is expected."""
    return [
        (f"{expected.version} {key} {size} {expected.crc32c}{suffix}", size)
        for key, size in zip(expected.keys, expected.sizes, strict=True)
    ]
