"""Files that are either complete or absent: writing, renaming, mapping and checksums, on every platform."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import re
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.arguments import checked, require_utf8
from embstore.errors import EmbstoreError, InvalidValueError, StorageError, StoreDamagedError

if TYPE_CHECKING:
    import polars as pl

Bytes = NDArray[np.uint8]
Name = str | os.PathLike[str]

TOO_MANY_FILES = (
    "this process has too many files open, of which each field and label column takes some: raise the limit (ulimit -n)"
)
REPAIR_HINT = "run `embstore verify` on the store, then `embstore extract --repair`"

IN_MEMORY_NBYTES = 64 * 2**20  # longer columns that are made are in temporary files without a name

_PART_NBYTES = 16 * 2**20  # written or checked at a time, so that other threads get their turn
_EARLY_NBYTES = 2**20
_START_WRITING = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None  # Linux only
_CACHED_NBYTES = 2**19  # read and checked before they leave the processor's cache
FAR_NBYTES = 2**21  # to keep a disk busy that answers after milliseconds
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_BINARY = getattr(os, "O_BINARY", 0)  # Windows only
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # not on Windows; without effect on regular files
_POSITION = threading.Lock()  # where a file has one shared position: no pread and pwrite


def as_bytes(data: NDArray[Any] | bytes) -> Bytes:
    """View an array (copied where it is not contiguous) or bytes as a flat array of bytes."""
    if isinstance(data, bytes):
        return np.frombuffer(data, np.uint8)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def crc32c(data: NDArray[Any] | bytes, crc: int = 0) -> int:
    """Extend a CRC32C by `data`, 16 MiB at a time so that other threads can run in between."""
    flat = as_bytes(data)
    for start in range(0, len(flat), _PART_NBYTES):
        crc = google_crc32c.extend(crc, flat[start : start + _PART_NBYTES])
    return crc


@contextmanager
def storing(path: object) -> Iterator[None]:
    """Raise StorageError with a one-line message where `path` cannot be written."""
    try:
        yield
    except EmbstoreError:
        raise
    except OSError as error:
        numbered = re.search(r"errno = (\d+)|\(os error (28)\)", str(error))  # of the HDF5 library; of Polars
        number = error.errno or (int(numbered[1] or numbered[2]) if numbered else 0)
        if number in _DISK_FULL:
            message = f"cannot write {path}: the disk is full; free some space and run the same command again"
        else:
            reason = os.strerror(number) if number else str(error).splitlines()[0]
            message = f"cannot write {path}: {reason}"
        raise StorageError(message) from error


@contextmanager
def reading(path: Name, of: str = "") -> Iterator[None]:
    """Raise a one-line error where a file of a store cannot be read; `of` says what it holds."""
    try:
        yield
    except EmbstoreError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise StoreDamagedError(f"{path}{of} is missing: {REPAIR_HINT}") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        reason = TOO_MANY_FILES if error.errno == errno.EMFILE else reason
        raise StorageError(f"cannot read {path}{of}: {reason}") from error


def allow_files(count: int) -> None:
    """Let this process open `count` files more than it has open, if it may."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = count + len(os.listdir("/dev/fd"))
        if resource.RLIM_INFINITY != soft < needed:
            most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def opened(path: Name, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file in binary mode and yield its descriptor, which child processes do not inherit.

    Raises StorageError at once for a pipe, a socket or a device, which an open or a read could wait for without end.
    """
    descriptor = os.open(path, flags | _BINARY | _NONBLOCK, 0o666)
    try:
        if stat.S_IFMT(os.fstat(descriptor).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise StorageError(f"cannot read {path}: it is not a regular file, but a pipe, socket or device")
        yield descriptor
    finally:
        os.close(descriptor)


def write_at(descriptor: int, data: NDArray[Any] | bytes, offset: int) -> int:
    """Write all bytes at `offset` of an open file; returns the offset after them."""
    flat = as_bytes(data)
    start = 0
    while start < len(flat):
        part = flat[start : start + _PART_NBYTES].data
        if hasattr(os, "pwrite"):
            count = os.pwrite(descriptor, part, offset + start)
            if _START_WRITING is not None and count >= _EARLY_NBYTES:  # the disk works while the next part is copied
                _START_WRITING(descriptor, ctypes.c_int64(offset + start), ctypes.c_int64(count), 2)
            start += count
        else:
            with _POSITION:
                os.lseek(descriptor, offset + start, os.SEEK_SET)
                start += os.write(descriptor, part)
    return offset + start


def read_at(descriptor: int, out: Bytes, offset: int) -> int:
    """Fill `out` from `offset` of an open file; returns the number of bytes read, fewer at the end of the file."""
    done = 0
    while done < len(out):
        if hasattr(os, "preadv"):
            count = os.preadv(descriptor, [out[done:].data], offset + done)
        else:
            with _POSITION:
                os.lseek(descriptor, offset + done, os.SEEK_SET)
                part = os.read(descriptor, min(len(out) - done, _PART_NBYTES))
            count = len(part)
            out[done : done + count] = np.frombuffer(part, np.uint8)
        if count == 0:
            break
        done += count
    return done


def write_file(path: Path, parts: Iterable[NDArray[Any] | bytes]) -> None:
    """Write a new file part by part; the caller makes it durable, or removes an incomplete one."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        offset = 0
        for part in parts:
            offset = write_at(descriptor, part, offset)


def fsync(path: Path) -> None:
    """Make the bytes of a file survive a power failure."""
    with opened(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power failure; Windows has no such call and needs none."""
    if os.name != "nt":
        fsync(path)


def fsync_tree(path: Path) -> None:
    """Make a file, or a folder with everything in it, survive a power failure."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            fsync(Path(folder, name))
        fsync_folder(Path(folder))
    if path.is_file():
        fsync(path)


def regular_file(path: Path) -> Path:
    """Return the path of a file; raises OSError for a folder, and for a pipe or device, which could be waited for."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or device, not a file", str(path))
    return path


def read_json(path: Path) -> Any:
    """Read a JSON document. Raises OSError, and ValueError for anything else or one that is nested too deeply."""
    try:
        return json.loads(regular_file(path).read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def replacing(
    path: Path, *, partial: Path | None = None, move: Callable[[Path, Path], object] | None = None
) -> Iterator[Path]:
    """Yield a temporary path; the file or folder made there becomes `path`, atomically and durably.

    Where the block or a step fails, what was at `path` stays and the temporary one is removed. `partial`: the temporary
    path, by default .NAME.new beside `path`. `move`: renames it, by default `os.replace`. Raises StorageError.
    """
    target = Path(os.path.realpath(path))  # a link stays, and what it names is replaced
    partial = partial or target.with_name(f".{path.name}.new")
    with storing(path):
        if target.exists() and not (target.is_file() or target.is_dir()):
            raise StorageError(f"cannot write {path}: it is a pipe, socket or device, not a file")
        try:
            remove(partial)  # what a killed process has left
            yield partial
            fsync_tree(partial)
            (move or os.replace)(partial, target)
            fsync_folder(target.parent)
        finally:
            clean_up(partial)


def require_outside(path: Path, but: str | None = None) -> None:
    """Raise InvalidValueError for a path inside a Zarr store, but for its folder `but`."""
    for folder in path.absolute().parents:
        allowed = but is not None and path.absolute().parent == folder / but
        if folder.suffix == ".zarr" and (folder / "zarr.json").exists() and not allowed:
            raise InvalidValueError(f"cannot create {path}: {folder} is a store; choose another folder")


@contextmanager
def replacing_table(path: Path) -> Iterator[Path]:
    """`replacing` for what Polars writes: its ComputeError, as of Parquet on a full disk, becomes a StorageError."""
    from polars.exceptions import ComputeError

    require_utf8(path)
    require_outside(path)
    try:
        with replacing(path) as partial:
            yield partial
    except ComputeError as error:
        raise StorageError(f"cannot write {path} ({str(error).splitlines()[0]}): is the disk full?") from error


@checked
def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame to a .csv, .parquet or .json file, atomically and durably."""
    writers: dict[str, Callable[[Path], object]] = {
        ".csv": frame.write_csv,
        ".parquet": frame.write_parquet,
        ".json": frame.write_json,
    }
    if path.suffix not in writers:
        raise InvalidValueError(f"{path} has no known suffix: choose {', '.join(writers)}")
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    if nested and path.suffix == ".csv":
        raise InvalidValueError(f"{path} cannot hold the lists of the column {nested[0]!r}: choose .parquet or .json")
    others = [name for name, dtype in frame.schema.items() if re.search(r"Binary|Map\((?!String|Enum)", str(dtype))]
    if others and path.suffix != ".parquet":
        raise InvalidValueError(
            f"{path} cannot hold the column {others[0]!r} ({frame[others[0]].dtype}): choose .parquet"
        )
    with replacing_table(path) as partial:
        writers[path.suffix](partial)


def new_column(length: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array to fill: in memory, or where it is long in a temporary file that vanishes with it."""
    nbytes = length * np.dtype(dtype).itemsize
    if nbytes <= IN_MEMORY_NBYTES:
        return np.empty(length, dtype)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk must be an error here, not a SIGBUS later
            else:
                file.truncate(nbytes)
            return np.memmap(file, dtype, "r+", shape=(length,)).view(np.ndarray)
    except OSError as error:
        raise StorageError(
            f"a column of {nbytes:,} bytes does not fit into {tempfile.gettempdir()}: {error.strerror}; make space "
            "there or set TMPDIR to a larger folder"
        ) from None  # says nothing about a store that is verified


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, each name on disk when this returns."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


def clean_up(path: Path) -> None:
    """Remove what a failed write left, if possible: a second failure must not hide the first one."""
    with suppress(OSError):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):  # of a file that is not there, a read-only file system says that it is read-only
        path.unlink(missing_ok=True)


class MappedFile:
    """A file mapped for reading; a missing, empty or unreadable one raises a one-line error that names it.

    `random`: the file is read at random places, so that the kernel should not read ahead. `nbytes`: only its first
    ones. `of` says in messages what the file holds. `is_held`: a descriptor is kept, which tells the size fastest.
    """

    is_file = True
    descriptor = -1

    def __init__(
        self, path: Name, *, random: bool = False, nbytes: int | None = None, of: str = "", is_held: bool = False
    ) -> None:
        self.path = str(path)
        with reading(path, of), opened(path) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError
            if status.st_size == 0:
                raise StoreDamagedError(f"{path}{of} is empty: {REPAIR_HINT}")
            self._identity = _identity(status)
            self.is_own = hasattr(os, "geteuid") and os.geteuid() in (0, status.st_uid)
            self.map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            if is_held:
                self.descriptor = os.dup(descriptor)
                weakref.finalize(self, os.close, self.descriptor)
        if random and hasattr(mmap, "MADV_RANDOM"):
            self.map.madvise(mmap.MADV_RANDOM)
        self._hold(nbytes)

    def _hold(self, nbytes: int | None = None) -> None:
        self.bytes: Bytes = np.frombuffer(self.map, np.uint8)[:nbytes]
        self.address = self.bytes.ctypes.data
        self.nbytes = len(self.bytes)
        self.size = self.map.size

    def require_whole(self) -> None:
        """Raise StoreDamagedError where the file has become shorter: reading the map there would end the process."""
        if self.size() < self.nbytes:
            raise StoreDamagedError(f"{self.path} is cut short since it was opened: {REPAIR_HINT}")

    @contextmanager
    def reopened(self) -> Iterator[int]:
        """Open the same file again and yield its descriptor; StoreDamagedError where another file has its name."""
        replaced = f"{self.path} was replaced or removed since it was opened: open the store again"
        if not os.path.exists(self.path):
            raise StoreDamagedError(replaced)
        with reading(self.path), opened(self.path) as descriptor:
            device, inode, *times = _identity(os.fstat(descriptor))
            if (device, inode) != self._identity[:2] and tuple(times) != self._identity[2:]:
                raise StoreDamagedError(replaced)
            yield descriptor


def reads_far_ahead(path: object) -> bool:
    """Whether the system itself reads as far ahead as disks need of bytes that are used in order: Linux often not."""
    try:
        return _reads_far_ahead(os.stat(str(path)).st_dev)
    except OSError:
        return False


@lru_cache
def _reads_far_ahead(device: int) -> bool:
    try:
        limit = Path("/sys/class/bdi", f"{os.major(device)}:{os.minor(device)}", "read_ahead_kb").read_text()
        return int(limit) * 1024 >= FAR_NBYTES
    except (OSError, ValueError, AttributeError):
        return False


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """Return what distinguishes a file from others: some network disks renumber a file, but keep its times."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def crc32c_of_spans(descriptor: int, spans: Iterable[tuple[int, int]], crc: int = 0) -> tuple[int, int]:
    """Extend a CRC32C by bytes `[start, stop)` of an open file, as far as they exist; returns it with their number."""
    buffer = np.empty(_CACHED_NBYTES, np.uint8)
    nbytes = 0
    for start, stop in spans:
        while 0 <= start < stop:
            part = buffer[: stop - start]
            count = read_at(descriptor, part, start)
            crc = google_crc32c.extend(crc, part[:count])
            nbytes += count
            start = start + count if count == len(part) else stop
    return crc, nbytes


def crc32c_of_file(path: Name, crc: int = 0) -> tuple[int, int]:
    """Extend a CRC32C by a file's bytes; returns it with the file's size."""
    with opened(path) as descriptor:
        return crc32c_of_spans(descriptor, [(0, 2**63)], crc)
