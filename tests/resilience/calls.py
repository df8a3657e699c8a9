"""The calls by which a process changes a disk or a bucket: observed, made to fail, or ended by SIGKILL at one."""

from __future__ import annotations

import builtins
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

CHANGES = ("open", "mkdir", "pwrite", "ftruncate", "fsync", "rename", "replace", "link", "unlink", "rmdir")
READS = ("listdir", "scandir", "stat")
REQUESTS = ("put", "copy", "delete")  # of a bucket
RECORD_NBYTES = 16  # a write that a kill never splits
NAME_NBYTES = 64

_OPEN = os.open

Call = Callable[..., Any]
Hook = Callable[[str, Call, tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def watched(hook: Hook, *, reads: bool = False) -> Iterator[None]:
    """Let `hook(name, call, arguments, options)` replace each call of `os` that changes the disk, or a bucket.

    `reads`: also for those that only look, and for opening a file to read it. Files opened by `open` count as "open";
    the names of requests begin with "bucket".
    """

    def instead(name: str, call: Call) -> Call:
        def hooked(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not reads and not _writes(*arguments, **options):
                return call(*arguments, **options)
            return hook(name, call, arguments, options)

        return hooked

    with ExitStack() as stack:
        if find_spec("obstore") is not None:
            import obstore

            requests = {name: instead(f"bucket {name}", getattr(obstore, name)) for name in REQUESTS}
            stack.enter_context(mock.patch.multiple(obstore, **requests))
        calls = {name: instead(name, getattr(os, name)) for name in CHANGES + READS * reads}
        stack.enter_context(mock.patch.multiple(os, **calls))
        opened = instead("open", builtins.open)
        for module in (builtins, io):
            stack.enter_context(mock.patch.object(module, "open", opened))
        yield


def _writes(path: Any, mode: Any = "r", *_: Any, **options: Any) -> bool:
    mode = options.get("flags", options.get("mode", mode))
    return (
        bool(mode & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)) if isinstance(mode, int) else bool(set(mode) & set("wax+"))
    )


def named(name: str, arguments: tuple[Any, ...]) -> str:
    """The name of a call with that of the file or object it is about."""
    number = 1 if name in ("rename", "replace", "link", "bucket put", "bucket delete") else 0
    target = arguments[2 if name == "bucket copy" else number] if arguments else ""
    return f"{name} {Path(target).name}".strip() if isinstance(target, str | os.PathLike) else name


class Steps:
    """Counts the calls of one or more processes in the file `log`, and ends with SIGKILL before one of them. A hook.

    `kill_at`: the number of that call, counted from 0 over all processes; the one that comes to it kills itself or,
    with `kill_all`, its whole process group. A write of more than a record counts twice: nothing of it is written, and
    half of it. So does a request of a bucket: it was not sent, and it was answered.
    """

    def __init__(self, log: str, kill_at: int | None = None, *, kill_all: bool = False) -> None:
        self._log, self._kill_at, self._kill_all = log, kill_at, kill_all
        self._mutex = threading.Lock()
        self._file = -1

    def __reduce__(self) -> Any:
        return _steps, (self._log, self._kill_at, self._kill_all)

    @property
    def names(self) -> list[str]:
        """The names of the calls of all processes, in order."""
        found = Path(self._log).read_bytes()
        return [found[at : at + NAME_NBYTES].rstrip().decode() for at in range(0, len(found), NAME_NBYTES)]

    def __call__(self, name: str, call: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._pass(named(name, arguments))
        if name == "pwrite" and len(arguments[1]) > RECORD_NBYTES:
            descriptor, data, offset = arguments
            self._pass("half a pwrite", lambda: call(descriptor, bytes(data)[: len(data) // 2], offset))
        result = call(*arguments, **options)
        if name.startswith("bucket"):
            self._pass(f"after {named(name, arguments)}")
        return result

    def _pass(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        with self._mutex:
            if self._file < 0:
                self._file = _OPEN(self._log, os.O_WRONLY | os.O_APPEND)
            os.write(self._file, name.encode()[:NAME_NBYTES].ljust(NAME_NBYTES))  # appended at once, by all processes
            number = os.lseek(self._file, 0, os.SEEK_CUR) // NAME_NBYTES - 1
            if number == self._kill_at:
                half()
                if self._kill_all:
                    os.killpg(os.getpgid(0), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)


def _steps(log: str, kill_at: int | None, kill_all: bool) -> Steps:
    return Steps(log, kill_at, kill_all=kill_all)


class Failing:
    """Lets one call on a file in a folder, or on an open file, fail with an errno: number `at`, from 0. A hook.

    `name`: the call that failed.
    """

    def __init__(self, folder: Path, at: int | None = None, number: int = 0) -> None:
        self.count = 0
        self.name = ""
        self._folder, self._at, self._number = str(folder), at, number

    def __call__(self, name: str, call: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        path = os.fspath(arguments[0]) if arguments and isinstance(arguments[0], str | os.PathLike) else None
        is_here = str(path).startswith(self._folder) if path is not None else isinstance(arguments[0], int)
        if is_here:
            self.count += 1
            if self.count - 1 == self._at:
                self.name = named(name, arguments)
                raise OSError(self._number, os.strerror(self._number), path)
        return call(*arguments, **options)
