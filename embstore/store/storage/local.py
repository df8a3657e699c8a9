"""A storage in a local folder: files are written under a temporary name, then renamed."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from embstore.errors import StorageError, StoreDamagedError
from embstore.store.storage.base import MAX_GET_NBYTES, KeyExistsError, KeyNotFoundError, Parts, Storage, Version
from embstore.store.storage.files import (
    REPAIR_HINT,
    Bytes,
    crc32c_of_file,
    make_folders,
    opened,
    read_at,
    reading,
    remove,
    replacing,
    storing,
    write_at,
    write_file,
)


class LocalStorage(Storage):
    """The files below the folder `path`, by their relative paths.

    `temporary`: the folder, relative to `path`, in which files are written before they get their name; `finish`
    removes it.
    """

    is_in_place = True

    def __init__(self, path: Path, *, temporary: str = ".tmp") -> None:
        self.path: Path = path
        self._name = str(path)
        self._temporary = path / temporary

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        with self._reading(key), opened(f"{self._name}/{key}") as descriptor:
            status = os.fstat(descriptor)
            if status.st_size > MAX_GET_NBYTES:
                raise StoreDamagedError(f"{self.path / key} has {status.st_size:,} bytes: {REPAIR_HINT}")
            data = np.empty(status.st_size + 1, np.uint8)
            return data[: read_at(descriptor, data, 0)].tobytes(), _version(status)

    def version(self, key: str) -> Version | None:
        name = f"{self._name}/{key}"
        try:
            return _version(os.stat(name))  # every gather looks at a store's root: no context managers here
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot read {name}: {error.strerror}") from error

    def get_range(self, key: str, start: int, stop: int, version: Version | None = None) -> Bytes:
        out = np.empty(stop - start, np.uint8)
        with self._reading(key), opened(self.path / key) as descriptor:
            if read_at(descriptor, out, start) < len(out):
                raise StoreDamagedError(f"{self.path / key} is cut short: {REPAIR_HINT}")
        return out

    def size(self, key: str) -> int | None:
        try:
            with self._reading(key):
                status = os.stat(f"{self._name}/{key}")
        except KeyNotFoundError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every key below the folder `prefix`; links are followed, each folder is listed once."""
        sizes: dict[str, int] = {}
        seen: set[tuple[int, int]] = set()
        with reading(self.path):
            for folder, folders, names in os.walk(self.path / prefix, followlinks=True, onerror=_raise_unless_missing):
                status = os.stat(folder)
                if (status.st_dev, status.st_ino) in seen:
                    folders.clear()
                    continue
                seen.add((status.st_dev, status.st_ino))
                for name in names:
                    file = Path(folder, name)
                    with suppress(FileNotFoundError):  # removed since, or a link to nothing
                        sizes[file.relative_to(self.path).as_posix()] = file.stat().st_size
        return sizes

    def put(self, key: str, parts: Parts) -> None:
        self._put(key, parts, os.replace)

    def put_new(self, key: str, parts: Parts) -> bool:
        try:
            if not os.path.lexists(self.path / key):
                self._put(key, parts, _link)
                return True
        except KeyExistsError:
            pass
        return False

    def _put(self, key: str, parts: Parts, move: Callable[[Path, Path], object]) -> None:
        """Write a file below the temporary folder, then `move` it to its name."""
        target = self.path / key
        with storing(target):
            self._temporary.mkdir(parents=True, exist_ok=True)
            make_folders(target.parent)
        with replacing(target, partial=self._temporary / uuid.uuid4().hex, move=move) as partial:
            write_file(partial, parts)

    def delete(self, key: str) -> None:
        with storing(self.path / key):
            remove(self.path / key)

    def write_at(self, key: str, data: bytes, offset: int) -> None:
        with storing(self.path / key), opened(self.path / key, os.O_RDWR) as descriptor:
            write_at(descriptor, data, offset)
            os.fsync(descriptor)

    def finish(self) -> None:
        if not self.is_tidy():  # a power failure may bring the folder back: the next writer removes it
            with storing(self.path):
                remove(self._temporary)

    def is_tidy(self) -> bool:
        return not os.path.lexists(self._temporary)

    def crc32c(self, key: str, size: int, crc: int = 0) -> int:
        with self._reading(key):
            crc, nbytes = crc32c_of_file(self.path / key, crc)
        if nbytes != size:
            raise StoreDamagedError(f"{self.path / key} has {nbytes} bytes, not {size}: {REPAIR_HINT}")
        return crc

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with reading(f"{self._name}/{key}"):
            try:
                yield
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                error.__traceback__ = None  # in Python 3.13 its frames hold the error and open files
                raise KeyNotFoundError(f"{self.path / key} does not exist") from None


def _link(partial: Path, target: Path) -> None:
    """Give a file a name that must not exist yet."""
    try:
        os.link(partial, target)  # fails where the name exists, unlike a rename
    except OSError as error:
        if isinstance(error, FileExistsError) or os.path.lexists(target):
            raise KeyExistsError(f"{target} exists already") from None
        os.replace(partial, target)  # on a file system without hard links


def _version(status: os.stat_result) -> Version:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
