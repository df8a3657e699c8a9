"""The device, the dtype and the CPU threads of computations; torch is imported with the first call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from embstore.errors import InvalidValueError, check_whole, quoted

if TYPE_CHECKING:
    import torch

ALLOWED = "auto, cpu, cuda, cuda:N, mps, xpu"
OMP_THREADS = "OMP_NUM_THREADS"
CGROUPS = Path("/sys/fs/cgroup")
MAX_THREADS = 1024  # OpenMP ends the process where it cannot start as many threads
COMPUTE_DTYPES = ("float32", "float16", "bfloat16")


def choose_device(device: str = "auto", *, float64: bool = False) -> torch.device:
    """Return the torch device that every `device` argument of embstore names.

    "auto" is the first CUDA GPU, or the CPU without one. "mps" (Apple) and "xpu" (Intel) are used only by name.
    `float64`: the computation needs float64, which Apple GPUs do not have. Raises InvalidValueError for an unknown
    name and for a device that this machine does not have.
    """
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise InvalidValueError(f"unknown device {quoted(device)}; allowed are {ALLOWED}") from None
    if chosen.type not in ("cpu", "cuda", "mps", "xpu"):
        raise InvalidValueError(f"device {device!r} is not supported; allowed are {ALLOWED}")
    # torch 2.6 raises an error where there is none, and cannot be asked to check
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = "cpu" if accelerator is None else accelerator.type
    n_devices = 1 if chosen.type == "cpu" else torch.accelerator.device_count() if chosen.type == kind else 0
    if (chosen.index or 0) >= n_devices:
        found = "auto, cpu" if kind == "cpu" else f"auto, cpu, {kind}"
        raise InvalidValueError(f"device {device!r} is not available here; choose one of {found}")
    if float64 and chosen.type == "mps":
        raise InvalidValueError(f"device {device!r} has no float64, which analyses and probes need: choose cpu")
    return chosen


def thread_count(threads: int | None = None) -> int:
    """Return how many CPU threads to use: `threads`, else OMP_NUM_THREADS, else one for each core; see `n_cores`.

    Raises InvalidValueError for anything but a number from 1 to 1,024.
    """
    if threads is not None:
        return check_whole("threads", threads, 1, MAX_THREADS)
    variable = os.environ.get(OMP_THREADS, "")
    if variable.isdecimal() and int(variable):
        return int(variable)
    return n_cores()


def n_cores() -> int:
    """Return how many CPU cores this process may use: those of its affinity, at most the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else min(cores, quota)


def cpu_quota(root: Path = CGROUPS, process: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the CPU time that the cgroups of this process allow, in whole cores, at least one; None: no limit.

    `root`: where cgroups of version 2 are mounted. `process`: the file that names that of this process.
    """
    quotas = []
    with suppress(OSError, ValueError):
        (inside,) = [root / line[4:].rstrip() for line in process.read_text().splitlines() if line.startswith("0::/")]
        for folder in (inside, *inside.parents):
            limit = folder / "cpu.max"  # microseconds of CPU time for each period, by its microseconds; or "max"
            if limit.is_file() and (quota := limit.read_text().split())[0] != "max":
                quotas.append(int(quota[0]) / int(quota[1]))
            if folder == root:
                break
    return max(1, ceil(min(quotas))) if quotas else None


def choose_dtype(compute_dtype: str, device: torch.device) -> torch.dtype:
    """Return the torch dtype of a `compute_dtype` argument; "auto" is float16 on CUDA and float32 elsewhere.

    Raises InvalidValueError for an unknown name.
    """
    import torch

    if compute_dtype == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    if compute_dtype not in COMPUTE_DTYPES:
        raise InvalidValueError(
            f"unknown compute dtype {compute_dtype!r}; allowed are auto, {', '.join(COMPUTE_DTYPES)}"
        )
    dtype: torch.dtype = getattr(torch, compute_dtype)
    return dtype


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Let torch use `threads` CPU threads inside the block and restore the number afterwards.

    None changes nothing, unless torch has more threads than the CPU quota of this process allows, which it does not
    know. Raises InvalidValueError for anything but a number from 1 to 1,024.
    """
    quota = None
    if threads is None and (OMP_THREADS in os.environ or (quota := cpu_quota()) is None):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(thread_count(threads) if quota is None else min(before, quota))
    try:
        yield
    finally:
        torch.set_num_threads(before)
