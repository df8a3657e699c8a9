"""Read files into the page cache, evict them from it, and measure how much of them is in it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.bench.measure import Spent, spent

READ_NBYTES = 2**22
_LIBC = ctypes.CDLL(None, use_errno=True)


def files_of(path: Path) -> Iterator[Path]:
    yield from (file for file in sorted(path.rglob("*")) if file.is_file()) if path.is_dir() else iter([path])


def read_in_order(path: Path, each: Callable[[memoryview], object] | None = None) -> None:
    """Read all files of a path in blocks, and do something with each block."""
    buffer = bytearray(READ_NBYTES)
    view = memoryview(buffer)
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            while got := opened.readinto(buffer):
                if each is not None:
                    each(view[:got])


def evict(path: Path) -> None:
    """Ask the kernel to drop the clean pages of all files; pages that a process has mapped remain."""
    for file in files_of(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bring_in(path: Path) -> None:
    """Read the files once, unless every page is in memory already (other processes may have evicted some)."""
    if resident_share(path) < 1.0:
        read_in_order(path)


def resident_share(path: Path) -> float:
    """Return the share of the files' pages that is in memory."""
    resident = total = 0
    for file in files_of(path):
        size = file.stat().st_size
        if not size:
            continue
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as mapped:
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            view = np.frombuffer(mapped, np.uint8)
            address = ctypes.c_void_p(view.ctypes.data)
            status = _LIBC.mincore(address, ctypes.c_size_t(size), pages.ctypes.data_as(ctypes.c_char_p))
            del view
            if status != 0:
                raise OSError(ctypes.get_errno(), "mincore failed")
            resident += int((pages & 1).sum())
            total += len(pages)
    return resident / max(total, 1)


@dataclass
class Cold:
    """Times reads whose pages are not in memory; in a process that maps none of these files, or they would stay."""

    stayed: float = 0.0

    def __call__(self, path: Path, read: Callable[[], object], number: int) -> Spent:
        gc.collect()
        evict(path)
        self.stayed = max(self.stayed, resident_share(path))
        return spent(read)

    @property
    def note(self) -> str:
        return f" (NOT cold: {self.stayed:.0%} of the pages stayed)" if self.stayed > 0.01 else ""
