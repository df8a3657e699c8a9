"""Progress of long work: a bar on standard error or in a notebook, or a function of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        yield _forwarding(progress, total)
        return
    if progress is False or (progress is None and not _is_visible()):
        yield lambda done, total=None: None
        return
    from tqdm.auto import tqdm

    with tqdm(
        total=total, desc=label or None, unit=f" {unit}", unit_scale=True, delay=DELAY_SECONDS, leave=False
    ) as bar:

        def report(done: int, total: int | None = None, /) -> None:
            if total is not None:
                bar.total = total
            bar.update(done - bar.n)

        yield report


def _forwarding(function: Callable[[int, int | None], object], whole: int | None) -> Report:
    def report(done: int, total: int | None = None, /) -> None:
        nonlocal whole
        whole = whole if total is None else total
        function(done, whole)

    return report


def _is_visible() -> bool:
    """Return whether a bar reaches a person."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    import tqdm.auto
    import tqdm.std

    notebook: Any = getattr(tqdm.auto, "notebook_tqdm", tqdm.std.tqdm)
    return notebook is not tqdm.std.tqdm
