"""The calls by which a process changes the disk: observed, stopped by SIGKILL at one of them, or made to fail."""

from __future__ import annotations

import builtins
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

CHANGES = ("open", "mkdir", "pwrite", "ftruncate", "fsync", "rename", "replace", "link", "unlink", "rmdir")
READS = ("listdir", "scandir", "stat")
RECORD_NBYTES = 16  # a write that a kill never splits

Call = Callable[..., Any]
Hook = Callable[[str, Call, tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def watched(hook: Hook, *, reads: bool = False) -> Iterator[None]:
    """Let `hook(name, call, arguments, options)` replace each call of `os` that changes the disk.

    `reads`: also for those that only look, and for opening a file to read it. Files opened by `open` count as "open".
    """

    def instead(name: str, call: Call) -> Call:
        def hooked(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not reads and not _writes(*arguments, **options):
                return call(*arguments, **options)
            return hook(name, call, arguments, options)

        return hooked

    with mock.patch.multiple(os, **{name: instead(name, getattr(os, name)) for name in CHANGES + READS * reads}):
        opened = instead("open", builtins.open)
        with mock.patch.object(builtins, "open", opened), mock.patch.object(io, "open", opened):
            yield


def _writes(path: Any, mode: Any = "r", *_: Any, **options: Any) -> bool:
    mode = options.get("flags", options.get("mode", mode))
    return (
        bool(mode & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)) if isinstance(mode, int) else bool(set(mode) & set("wax+"))
    )


def named(name: str, arguments: tuple[Any, ...]) -> str:
    """The name of a call with that of the file it is about."""
    target = arguments[1 if name in ("rename", "replace", "link") else 0] if arguments else ""
    return f"{name} {Path(target).name}".strip() if isinstance(target, str | os.PathLike) else name


class Steps:
    """Counts the calls; the process kills itself before number `kill_at`, counted from 0. A hook.

    A write of more than a record counts twice: nothing of it is written, and half of it.
    """

    def __init__(self, kill_at: int | None = None) -> None:
        self.names: list[str] = []
        self._kill_at = kill_at
        self._mutex = threading.Lock()

    def __call__(self, name: str, call: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._pass(named(name, arguments))
        if name == "pwrite" and len(arguments[1]) > RECORD_NBYTES:
            descriptor, data, offset = arguments
            self._pass("half a pwrite", lambda: call(descriptor, bytes(data)[: len(data) // 2], offset))
        return call(*arguments, **options)

    def _pass(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        with self._mutex:
            if len(self.names) == self._kill_at:
                half()
                os.kill(os.getpid(), signal.SIGKILL)
            self.names.append(name)


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


def killed_at_each_step(work: Callable[[], Any], *, stride: int = 1) -> Iterator[int]:
    """Run `work` in a forked process killed at its first step, then at every `stride`-th, until it comes to its end.

    Yields the number of the step after each kill.
    """
    step = 0
    while _dies_at(work, step):
        yield step
        step += stride


def _dies_at(work: Callable[[], Any], step: int) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with watched(Steps(step)):
                work()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.WIFSIGNALED(ended) or os.WEXITSTATUS(ended) == 0, f"the child failed at step {step}"
    return os.WIFSIGNALED(ended)
