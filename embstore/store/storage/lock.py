"""One writer at a time: a lock file next to the store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from embstore.errors import StoreBusyError
from embstore.store.storage.files import clean_up, remove, storing

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class ProcessLock:
    """A lock on `file` that one process holds at a time; a context manager.

    Entering raises StoreBusyError with the message `busy` where another process holds it. The operating system
    releases the lock when the process ends. The file is removed on release.

    A file system without locks (some NFS and Lustre mounts) has a second file instead, whose existence is the lock
    and which names the process and machine that hold it. After a crash the next process on that machine removes it;
    a process on another machine says which file to remove.
    """

    def __init__(self, file: Path, busy: str) -> None:
        self.file = file
        self.held_file = file.with_name(f"{file.name}.held")
        self._busy = busy
        self._lock: BaseFileLock = FileLock(file, thread_local=False, fallback_to_soft=False)

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
            try:
                self._lock.acquire(blocking=False)
                if not self.held_file.exists():
                    return
                self._lock.release()
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            self._lock = SoftFileLock(self.held_file, thread_local=False)
            self.file.touch()
            self._lock.acquire(blocking=False)
        except Timeout:
            busy = self._busy
            if isinstance(self._lock, SoftFileLock):
                busy += f"; its file system has no locks: if process {self._lock.pid} on the machine where it runs has "
                busy += f"ended, remove {self.held_file}"
            raise StoreBusyError(busy) from None

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
