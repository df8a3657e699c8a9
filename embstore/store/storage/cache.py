"""A bucket with a local cache: shards are downloaded once, checked, and mapped from a folder."""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from embstore.errors import StoreDamagedError
from embstore.store.storage.base import Expected, KeyNotFoundError
from embstore.store.storage.client import setting
from embstore.store.storage.files import REPAIR_HINT, crc32c, opened, read_at, replacing, storing, write_at
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import ObjectStorage

SIZE_GIB = 64.0  # of copies, unless EMBSTORE_CACHE_GIB says otherwise: what a laptop's disk can give
_CACHED = re.compile(r"[0-9a-f]{64}\.cached")
_PARTIAL = re.compile(r"[0-9a-f]{64}\.[a-z0-9_]+\.partial")
_STALE_SECONDS = 86_400  # no download takes a day: what is older was left by a killed process


class CacheFolder:
    """Files in a folder, named by what they hold, of at most `nbytes` in total; the least recently used are removed.

    A file appears complete, by one rename. Processes may share the folder: a file that one removes stays readable
    for another that has mapped it.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        self._nbytes = nbytes

    def find(self, name: str, nbytes: int) -> Path | None:
        """Return the file of `name`, None where it is not there with all its bytes."""
        path = self._path(name)
        with suppress(OSError):  # of another user, or on a read-only file system
            os.utime(path)
        try:
            return path if path.stat().st_size == nbytes else None
        except OSError:
            return None

    def find_all(self, files: Sequence[tuple[str, int]]) -> list[Path] | None:
        """Return the files (name, nbytes), None where one of them is not there."""
        paths = [self.find(*file) for file in files]
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
                cached.append((status.st_mtime_ns, status.st_size, entry.path))
            elif _PARTIAL.fullmatch(entry.name) and time.time() - status.st_mtime > _STALE_SECONDS:
                Path(entry.path).unlink(missing_ok=True)
        total = sum(size for _, size, _ in cached) + nbytes
        for _, size, path in sorted(cached):
            if total <= self._nbytes:
                break
            Path(path).unlink(missing_ok=True)
            total -= size


def cached_names(expected: Expected, suffix: str = "") -> list[tuple[str, int]]:
    """Return the names and sizes of the files that hold what is expected."""
    return [
        (f"{expected.version} {key} {size} {expected.crc32c}{suffix}", size)
        for key, size in zip(expected.keys, expected.sizes, strict=True)
    ]


class CachedStorage(ObjectStorage):
    """The objects below a URL, of which `files` keeps local copies in the folder `cache`.

    A copy is named by the version and checksum of its bytes, so that bytes which were replaced are downloaded again.
    EMBSTORE_CACHE_GIB bounds the folder (64).
    """

    is_mapped = True

    def __init__(self, path: ObjectPath, client: Any, cache: Path) -> None:
        super().__init__(path, client)
        self.cache: Path = cache
        self._folder = CacheFolder(cache, int(setting("EMBSTORE_CACHE_GIB", SIZE_GIB) * 2**30))

    def files(self, expected: Expected) -> list[Path]:
        """Return local copies; what is missing is downloaded, all keys at once since the checksum covers them all."""
        names = cached_names(expected)
        for _ in range(2):
            paths = self._folder.find_all(names)
            if paths is not None:
                return paths
            self._download(expected, names)
        raise StoreDamagedError(f"{self.cache} has lost a file that was just written there: choose another folder")

    def _download(self, expected: Expected, names: Sequence[tuple[str, int]]) -> None:
        def write(descriptors: list[int]) -> None:
            crc = 0
            for key, size, descriptor in zip(expected.keys, expected.sizes, descriptors, strict=True):
                offset = 0
                for part in self.iter_parts(key, size):
                    offset = write_at(descriptor, part, offset)
                    crc = crc32c(part, crc)
            is_whole = crc == expected.crc32c
            for size, end, descriptor in zip(expected.sizes, expected.ends, descriptors, strict=bool(expected.ends)):
                stored = np.empty(len(end), np.uint8)
                read_at(descriptor, stored, size - len(end))
                is_whole &= stored.tobytes() == end
            if not is_whole:
                raise StoreDamagedError(f"{expected.what} of {self.path} was changed: {REPAIR_HINT}")

        try:
            self._folder.add(names, write)
        except KeyNotFoundError as error:
            raise StoreDamagedError(f"{error}, {expected.what}: {REPAIR_HINT}") from None
