"""One writer at a time: a lock file next to the store."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from embstore.errors import StoreBusyError
from embstore.store.storage.files import remove, storing


class StoreLock:
    """An exclusive lock on the store at `path`, held by one process; a context manager.

    Entering raises StoreBusyError where another process holds the lock, and removes what an interrupted creation
    left behind. The operating system releases the lock when the process ends. The lock file is removed on release.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.with_name(f"{path.name}.lock")
        self._lock = FileLock(self.file, thread_local=False)

    def __enter__(self) -> StoreLock:
        try:
            with storing(self.file):
                try:
                    self._lock.acquire(blocking=False)
                except Timeout:
                    busy = f"another process is writing {self.path}; wait until it ends, or stop it"
                    raise StoreBusyError(busy) from None
                remove(new_path(self.path))
        except BaseException:
            self.release()
            raise
        return self

    @property
    def is_held(self) -> bool:
        return self._lock.is_locked

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self.is_held:
            if os.name != "nt":  # Windows removes the file itself and does not allow removing an open one
                self.file.unlink(missing_ok=True)
            self._lock.release()

    def __exit__(self, *exception: object) -> None:
        self.release()


def new_path(path: Path) -> Path:
    """Return where a store is built before it is renamed to `path`."""
    return path.with_name(f".{path.name}.new")
