"""Progress of long work: a bar on standard error or in a notebook, or a function of the caller."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol, TypeAlias

DELAY_SECONDS = 2.0  # work that ends sooner shows no bar

# What a public function takes as `progress`: None shows a bar to a person, True shows one always, False never does,
# and a function is called with (done, total) instead.
Progress: TypeAlias = Callable[[int, int | None], object] | bool | None


class Report(Protocol):
    """Report how much is done; `total` replaces the total given at the start, once it is known."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


@contextmanager
def reporting(progress: Progress, *, total: int | None = None, unit: str = "rows", label: str = "") -> Iterator[Report]:
    """Report the progress of the work inside the block; yields the function to call as it advances.

    With `progress` None a bar with the rate and the time left is shown where a person can see it: standard error is a
    terminal, or the code runs in a notebook. The bar appears after two seconds, disappears at the end and uses no
    colors. `unit`: what is counted; `label`: the text in front of the bar.
    """
    if callable(progress):
        function, whole = progress, total

        def forward(done: int, total: int | None = None, /) -> None:
            nonlocal whole
            whole = whole if total is None else total
            function(done, whole)

        yield forward
        return
    if progress is False or (progress is None and not _is_visible()):
        yield lambda done, total=None: None
        return
    bar = _Bar(total, unit, label)
    try:
        yield bar.report
    finally:
        bar.close()


class Counter:
    """Adds up the work that several threads have done, beginning with `done`, and reports the sum."""

    def __init__(self, report: Callable[[int], object], done: int = 0) -> None:
        self._report, self.done = report, done
        self._lock = Lock()

    def add(self, amount: int) -> None:
        with self._lock:
            self.done += amount
            self._report(self.done)


class _Bar:
    """A bar of tqdm, which is imported once the work has taken long enough to show one."""

    def __init__(self, total: int | None, unit: str, label: str) -> None:
        self._total = total
        self._look = {"desc": label or None, "unit": f" {unit}", "unit_scale": True, "leave": False}
        self._began = time.time()
        self._bar: Any = None

    def report(self, done: int, total: int | None = None, /) -> None:
        self._total = self._total if total is None else total
        if self._bar is None:
            if time.time() - self._began < DELAY_SECONDS:
                return
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self._total, **self._look)
            self._bar.start_t = self._began
        self._bar.total = self._total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _is_visible() -> bool:
    """Return whether a bar reaches a person: in a terminal, or a notebook."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
