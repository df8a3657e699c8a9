"""What the C library does with freed memory: keeps that of one batch for the next, or gives it back."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST_KEPT = 32 << 20  # the most that glibc takes for M_MMAP_THRESHOLD, and what it comes to by itself
USUALLY_KEPT = 64 << 20  # what it then comes to for M_TRIM_THRESHOLD


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let glibc keep up to 256 MiB of freed memory inside the block, and give it back at its end.

    The peak stays what it is: what is kept was in use before. Does nothing under another C library, or where
    the environment already tunes this one's allocator.
    """
    with _thresholds(mapped=LARGEST_KEPT, kept=256 << 20):
        yield


@contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Let glibc give freed memory back at once inside the block, where each thread would keep tens of MiB.

    Slower by about a third where blocks of a few MiB come and go. Does nothing where freed_memory_kept does not.
    """
    with _thresholds(mapped=512 << 10, kept=1 << 20):
        yield


@contextmanager
def _thresholds(*, mapped: int, kept: int) -> Iterator[None]:
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, mapped)
    library.mallopt(M_TRIM_THRESHOLD, kept)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(M_TRIM_THRESHOLD, USUALLY_KEPT)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    tuned = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)
