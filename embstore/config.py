"""Settings of computation that hold for every function: the device, the threads, the memory and the progress bar.

import embstore as es

es.config(threads=4)                # from now on
with es.config(progress=False):     # inside the block
    es.geometry(store)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from embstore.devices import MAX_THREADS
from embstore.errors import InvalidValueError, check_whole, quoted
from embstore.progress import Progress

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class Settings:
    """What `es.config` has set; functions read it once, when they are called."""

    device: str = "auto"
    threads: int | None = None
    memory: int | str = "4GiB"  # what a laptop of 8 GiB can give to one computation
    progress: Progress = None

    @property
    def nbytes(self) -> int:
        """The memory in bytes."""
        return parse_nbytes(self.memory)


_settings = Settings()
_of_thread = threading.local()  # threads of a server that change settings do not change those of each other


def settings() -> Settings:
    """Return the settings that hold now."""
    return getattr(_of_thread, "settings", None) or _settings


def _set(changed: Settings | None) -> None:
    global _settings
    if changed is not None and threading.current_thread() is threading.main_thread():
        _settings = changed
    else:
        _of_thread.settings = changed


class config:
    """Set the device, the threads, the memory and the progress bar of everything that is called from here on.

    The settings are those of the process; what another thread than the main one sets holds in that thread alone. As a
    context manager it restores at the end of the block what held before.

    Parameters
    ----------
    device : str
        "auto" (the first CUDA GPU, else the CPU), "cpu", "cuda", "cuda:N", "mps" or "xpu".
    threads : int or None
        CPU threads; None takes OMP_NUM_THREADS, else one for each core.
    memory : int or str
        What one computation may hold in memory, in bytes or as a text such as "4GiB".
    progress : bool, callable or None
        None shows a bar where a person can see it, True always, False never; a function is called with
        (done, total) instead.

    Raises
    ------
    InvalidValueError
        For an unknown name or a value that is not allowed.
    """

    def __init__(self, **changes: Any) -> None:
        for name in changes:
            if name not in Settings.__dataclass_fields__:
                raise InvalidValueError(f"unknown setting {name!r}; allowed are device, threads, memory, progress")
        is_main = threading.current_thread() is threading.main_thread()
        self._before = _settings if is_main else getattr(_of_thread, "settings", None)
        changed = replace(settings(), **changes)
        _check(changed)
        _set(changed)

    def __enter__(self) -> Settings:
        return settings()

    def __exit__(self, *error: object) -> None:
        _set(self._before)

    def __repr__(self) -> str:
        return repr(settings()).replace("Settings", "config")


def _check(changed: Settings) -> None:
    if not isinstance(changed.device, str):
        raise InvalidValueError(f"device {quoted(changed.device)} is not allowed: give a name, such as cpu or cuda:0")
    if changed.threads is not None:
        check_whole("threads", changed.threads, 1, MAX_THREADS)
    parse_nbytes(changed.memory)
    if changed.progress not in (None, True, False) and not callable(changed.progress):
        raise InvalidValueError(f"progress {quoted(changed.progress)} is not allowed: give True, False or a function")


def parse_nbytes(size: int | str) -> int:
    """Return the bytes of a number or of a text such as "500MB", "1.5GiB" or "2g"; raises InvalidValueError."""
    if not isinstance(size, str):
        return check_whole("memory", size, 1, unit='bytes, or a text such as "2GiB"')
    compact = size.replace(" ", "").lower().removesuffix("b")
    digits = compact.rstrip("kmgti")
    try:
        nbytes = int(float(digits) * _UNITS[compact[len(digits) :]])
    except (ValueError, KeyError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise InvalidValueError(
            f"memory {quoted(size)} is not a size: give bytes, or a number with a unit such as 500MB or 2GiB"
        )
    return nbytes
