"""One writer at a time: a lock file next to the store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from filelock import FileLock, Timeout

from embstore.errors import StorageError, StoreBusyError
from embstore.store.storage.files import clean_up, remove, storing

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)  # of some mounts of NFS and Lustre


class ProcessLock:
    """A lock on `file` that one process holds at a time; a context manager.

    Entering raises StoreBusyError with the message `busy` where another process holds it. The operating system
    releases the lock when the process ends. The file is removed on release.
    """

    def __init__(self, file: Path, busy: str) -> None:
        self.file = file
        self._busy = busy
        self._lock = FileLock(file, thread_local=False, fallback_to_soft=False)

    def __enter__(self) -> ProcessLock:
        try:
            with storing(self.file):
                self._acquire()
        except BaseException:
            self.release()
            raise
        return self

    def _acquire(self) -> None:
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise StoreBusyError(self._busy) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise StorageError(
                f"cannot lock {self.file}: its file system has no locks; write the store to another disk, then copy it"
            ) from error

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock.is_locked:
            if os.name != "nt":  # Windows removes the file itself and does not allow removing an open one
                clean_up(self.file)  # one that stays is harmless
            with storing(self.file):
                self._lock.release()

    def __exit__(self, *exception: object) -> None:
        self.release()


class StoreLock(ProcessLock):
    """The exclusive lock on the store at `path`; entering also removes what an interrupted creation left behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        busy = f"another process is writing {path}; wait until it ends, or stop it"
        super().__init__(path.with_name(f"{path.name}.lock"), busy)

    def _acquire(self) -> None:
        super()._acquire()
        remove(new_path(self.path))


def new_path(path: Path) -> Path:
    """Return where a store is built before it is renamed to `path`."""
    return path.with_name(f".{path.name}.new")
