"""What the machine could do at best, measured: products of matrices, copies, the disk; and which stage binds."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from embstore.models.loading import DTYPES

LARGEST_SIDE = {"cpu": 2048, "cuda": 8192}
COPIED_NBYTES = 2**28
DISK_NBYTES = 2**28
_REPEATS = 5
_PATIENCE = 0.5  # seconds that one product may take at most
_UNITS = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}


@dataclass(frozen=True)
class Stage:
    """One stage of an extraction: how busy it was, what it got done, and the best that the machine can do.

    `amount` of `unit` in `seconds`; `limit`: the best rate a second, None where there is none; `limit_name`: of what.
    """

    name: str
    seconds: float
    amount: float
    unit: str
    limit: float | None
    limit_name: str

    @property
    def rate(self) -> float:
        return self.amount / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float | None:
        """How much of its limit it reached, 1 being all."""
        return self.rate / self.limit if self.limit else None

    def row(self, wall: float) -> dict[str, Any]:
        """A row of the table: what it did, and could have done."""
        return {
            "stage": self.name,
            "busy %": 100 * self.seconds / wall if wall > 0 else 0.0,
            "rate": per_second(self.rate, self.unit) if self.amount else "none",
            "limit": f"{per_second(self.limit, self.unit)} {self.limit_name}" if self.limit else "none",
            "of limit %": None if self.share is None else 100 * self.share,
        }

    def as_json(self, wall: float) -> dict[str, Any]:
        return {
            "stage": self.name,
            "seconds": self.seconds,
            "busy": self.seconds / wall if wall > 0 else 0.0,
            "unit": self.unit,
            "rate": self.rate,
            "limit": self.limit,
            "limit_name": self.limit_name,
            "share": self.share,
        }


def per_second(rate: float, unit: str) -> str:
    """A rate as people read it, such as 1.25 GB/s."""
    letter, size = next(((letter, size) for letter, size in _UNITS.items() if rate >= size), ("", 1.0))
    between = "" if unit in ("B", "FLOP") else " "
    return f"{rate / size:,.3g} {letter}{between}{unit}/s".replace("  ", " ")


def binding(stages: Sequence[Stage]) -> Stage:
    """The stage that the others wait for: the busiest."""
    return max(stages, key=lambda stage: stage.seconds)


def verdict(stages: Sequence[Stage], wall: float) -> str:
    """One plain line: which stage binds, and how far it is from what the machine can do."""
    stage = binding(stages)
    if stage.share is None:
        return f"{stage.name} binds: busy {100 * stage.seconds / wall:.0f} % of the time; no limit of it is known"
    return f"{stage.name} binds: {100 * stage.share:.0f} % of the {stage.limit_name}"


def product_rate(device: torch.device, compute_dtype: str) -> float:
    """Measure products of square matrices in a dtype: operations a second, the best of some."""
    dtype, side = DTYPES[compute_dtype], 256
    largest = LARGEST_SIDE.get(device.type, 2048)
    seconds = _product(side, device, dtype)
    while side < largest and 8 * seconds < _PATIENCE:
        side *= 2
        seconds = _product(side, device, dtype)
    return 2.0 * side**3 / seconds


def _product(side: int, device: torch.device, dtype: torch.dtype) -> float:
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return _best(lambda: torch.mm(left, right, out=out), device)


def copy_rate(device: torch.device, *, nbytes: int = COPIED_NBYTES) -> float:
    """Measure copies into pinned memory of the host, on a CPU from memory to memory: bytes a second."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return nbytes / _best(lambda: target.copy_(source, non_blocking=True), device)


def disk_rate(folder: str | Path, *, nbytes: int = DISK_NBYTES) -> float:
    """Measure the writing of one file until it is on the disk: bytes a second. The file is removed."""
    piece = os.urandom(min(nbytes, 2**24))  # what is all zeros may never reach the disk
    with tempfile.NamedTemporaryFile(dir=folder, prefix="embstore-bench-", buffering=0) as file:
        started = time.perf_counter()
        written = 0
        while written < nbytes:
            written += file.write(piece)
        os.fsync(file.fileno())
        return written / (time.perf_counter() - started)


def _best(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest run of some, the first not counted."""
    work()
    taken = []
    for _ in range(_REPEATS):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        taken.append(time.perf_counter() - started)
        if sum(taken) > 2 * _PATIENCE:
            break
    return min(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
