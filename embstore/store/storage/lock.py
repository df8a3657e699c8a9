"""One writer at a time: a lock file beside the store, and what an interrupted swap left behind."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from embstore.errors import StoreBusyError
from embstore.store.storage.files import fsync_folder, remove, storing


class StoreLock:
    """An exclusive lock on the store at `path`, held by one process; released when that process ends.

    Raises StoreBusyError where another holds it. The file is removed on release, by its holder only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.with_name(f"{path.name}.lock")
        self._descriptor: int | None = None

    def __enter__(self) -> StoreLock:
        try:
            with storing(self.file):
                while not self._acquire():
                    pass
                recover(self.path)
        except BaseException:
            self.release()
            raise
        return self

    def _acquire(self) -> bool:
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.path.samestat(os.fstat(descriptor), os.stat(self.file))
        except BlockingIOError:
            os.close(descriptor)
            raise StoreBusyError(f"another process is writing {self.path}; wait until it ends, or stop it") from None
        except FileNotFoundError:
            same = False
        if not same:
            os.close(descriptor)  # its holder removed the file between our open and our lock
            return False
        self._descriptor = descriptor
        return True

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        """Remove the file while it is locked, then let go; a second call does nothing."""
        if self._descriptor is None:
            return
        self.file.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def new_path(path: Path) -> Path:
    """Where a store is built before it is renamed to `path`."""
    return path.with_name(f".{path.name}.new")


def old_path(path: Path) -> Path:
    """Where a store stands while another takes its place."""
    return path.with_name(f".{path.name}.old")


def recover(path: Path) -> None:
    """Undo an interrupted swap and remove what an interrupted creation left; the lock must be held."""
    old, new = old_path(path), new_path(path)
    if os.path.lexists(old) and not os.path.lexists(path):
        os.rename(old, path)
        fsync_folder(path.parent)
    for leftover in (old, new):
        remove(leftover)


def swap(path: Path) -> None:
    """Put the store at `new_path(path)` in the place of the one at `path`; the lock must be held."""
    old, new = old_path(path), new_path(path)
    if new.is_file() and not path.is_dir():
        os.replace(new, path)
    else:
        os.rename(path, old)
        os.rename(new, path)
        remove(old)
    fsync_folder(path.parent)
