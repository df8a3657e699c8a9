"""Run something in a child process that is killed at one of its calls that change the disk."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

STEPS = ["replace", "rename", "mkdir", "unlink", "rmdir", "link", "fsync", "pwrite"]


def killed_at_each_step(work: Callable[[], Any], *, stride: int = 1) -> Iterator[int]:
    """Run `work` in a child killed at its first step, then its second ... until it comes to its end.

    `stride`: only one step in `stride` is killed. Yields after each kill. A write of more than a page that is killed
    has written half of its bytes.
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
            _strike_at(step)
            work()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.WIFSIGNALED(ended) or os.WEXITSTATUS(ended) == 0, f"the child failed at step {step}"
    return os.WIFSIGNALED(ended)


def _strike_at(step: int) -> None:
    left = [step]

    def struck(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step_towards_disk(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                if name == "pwrite" and len(args[1]) > mmap.PAGESIZE:
                    descriptor, data, offset = args
                    call(descriptor, bytes(data)[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **options)

        return step_towards_disk

    for name in STEPS:
        setattr(os, name, struck(name, getattr(os, name)))
