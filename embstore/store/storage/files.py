"""Files that are whole or not there: writing, renaming, mapping and checksums."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StorageError, StoreDamagedError

Bytes = NDArray[np.uint8]

MEND = "run `embstore verify` on the store, then `embstore extract --repair`"

_PIECE_NBYTES = 16 * 2**20
_FULL = {errno.ENOSPC, errno.EDQUOT}


def as_bytes(data: NDArray[Any] | bytes) -> Bytes:
    """View an array (copied where it is not contiguous) or bytes as a flat array of bytes."""
    if isinstance(data, bytes):
        return np.frombuffer(data, np.uint8)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def crc32c(data: NDArray[Any] | bytes, crc: int = 0) -> int:
    """Extend a CRC32C, in pieces so that other threads get their turn."""
    flat = as_bytes(data)
    for start in range(0, len(flat), _PIECE_NBYTES):
        crc = google_crc32c.extend(crc, flat[start : start + _PIECE_NBYTES])
    return crc


@contextmanager
def storing(path: object) -> Iterator[None]:
    """Say in one line why something could not be written at `path`."""
    try:
        yield
    except EmbstoreError:
        raise
    except OSError as error:
        number = error.errno or _errno_in(str(error))
        if number in _FULL:
            message = f"cannot write {path}: the disk is full; free some space and run the same command again"
        else:
            reason = os.strerror(number) if number else str(error).splitlines()[0]
            message = f"cannot write {path}: {reason}"
        raise StorageError(message) from error


@contextmanager
def reading(path: str | os.PathLike[str], of: str = "") -> Iterator[None]:
    """Say in one line why a file of a store could not be read; `of` is what it holds."""
    try:
        yield
    except EmbstoreError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise StoreDamagedError(f"{path}{of} is missing: {MEND}") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise StorageError(f"cannot read {path}{of}: {reason}") from error


def _errno_in(message: str) -> int:
    found = re.search(r"errno = (\d+)", message)
    return int(found[1]) if found else 0


def write_all(descriptor: int, data: NDArray[Any] | bytes, offset: int) -> int:
    """Write all bytes at `offset` of an open file; returns the offset past them."""
    flat = as_bytes(data)
    start = 0
    while start < len(flat):
        written = os.pwrite(descriptor, flat[start : start + _PIECE_NBYTES].data, offset + start)
        start += written
    return offset + start


def write_file(path: Path, pieces: Iterable[NDArray[Any] | bytes], *, fsync: bool = True, crc: int = 0) -> int:
    """Write a new file piece after piece and return the CRC32C of its bytes; a file cut short is removed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        offset = 0
        for piece in pieces:
            offset = write_all(descriptor, piece, offset)
            crc = crc32c(piece, crc)
        if fsync:
            os.fsync(descriptor)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return crc


def fsync_folder(path: Path) -> None:
    """Make the names in a folder outlast a power cut."""
    fsync(path)


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(path: Path) -> None:
    """Make a file, or a folder with all that is in it, outlast a power cut."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            fsync(Path(folder, name))
        fsync(Path(folder))
    if path.is_file():
        fsync(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, where there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def map_file(path: str | os.PathLike[str], *, advice: int | None = None) -> mmap.mmap | None:
    """Map a whole file for reading; None where it is empty."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if status.st_size == 0:
            return None
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    if advice is not None:
        mapped.madvise(advice)
    return mapped


def crc32c_of_file(path: str | os.PathLike[str], crc: int = 0) -> tuple[int, int]:
    """Extend a CRC32C by a file's bytes; returns it with the file's size."""
    buffer = np.empty(_PIECE_NBYTES, np.uint8)
    size = 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer.data):
            crc = google_crc32c.extend(crc, buffer[:count])
            size += count
    return crc, size
