"""Keeps the memory of one batch for the next: the C library would hand it to the kernel and fetch it back zeroed."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST_KEPT = 32 << 20  # the most that glibc takes for M_MMAP_THRESHOLD
KEPT_NBYTES = 256 << 20
DEFAULT_TRIM_THRESHOLD = 128 << 10


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let glibc keep up to 256 MiB of freed memory inside the block, and give it back at its end.

    The peak stays what it is: what is kept was in use before. Does nothing under another C library, or where
    the environment already tunes this one's allocator.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    library.mallopt(M_TRIM_THRESHOLD, KEPT_NBYTES)
    try:
        yield
    finally:
        library.mallopt(M_TRIM_THRESHOLD, DEFAULT_TRIM_THRESHOLD)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    tuned = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)
