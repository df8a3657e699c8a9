"""What the scripts share: cases that take turns, the page cache, fresh processes, tables, and result files."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import mmap
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PACKAGES = ("embstore", "torch", "transformers", "numpy", "zarr", "h5py", "polars", "faiss-cpu", "usearch", "pylance")
READ_NBYTES = 2**22  # of a block: large enough for the full rate of a disk
SIDE = 1024  # of the square matrices whose product is timed
REST = 0.2  # seconds before a case: threads of the library before it wait actively for about as long

Case = Callable[[int], object]  # it is given the number of its round, and may return its own seconds


@dataclass(frozen=True)
class Row:
    """One operation: the median seconds of embstore, of its rivals, and of the least work for the same result."""

    what: str
    ours: float
    rivals: Mapping[str, float] = field(default_factory=dict)
    limit: float | None = None
    limit_name: str = ""
    target: float | None = None  # the most that the project allows for ours over the fastest rival, or the limit

    @property
    def best(self) -> str | None:
        """The name of the fastest rival; a case named "ours, ..." is another way of embstore."""
        rivals = {name: seconds for name, seconds in self.rivals.items() if not name.startswith("ours")}
        return min(rivals, key=rivals.__getitem__) if rivals else None

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "rivals": dict(self.rivals), "best_rival": self.best, **self.ratios}

    @property
    def ratios(self) -> dict[str, float | None]:
        """Our time over that of the fastest rival, and over the limit."""
        to_rival = self.ours / self.rivals[self.best] if self.best else None
        return {"to_rival": to_rival, "to_limit": self.ours / self.limit if self.limit else None}


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options of a script, which has `--out`, `--repeats` and `--tmp` already."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tmp", help="folder for temporary files (default: the system's)")
    return parser


def measure(
    what: str, cases: Mapping[str, Case], *, repeats: int, limit: str = "", target: float | None = None, warm: int = 1
) -> Row:
    """Run cases in turns, A B C A B C ..., so that a slow minute of the machine affects all of them; print the row.

    "ours" and "limit" are what they say, all others are rivals.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(-warm, repeats):
        for name, case in cases.items():
            time.sleep(REST)
            began = time.perf_counter()
            result = case(number)
            taken = result if isinstance(result, float) else time.perf_counter() - began
            if number >= 0:
                seconds[name].append(taken)
    medians = {name: median(each) for name, each in seconds.items()}
    row = Row(what, medians.pop("ours"), limit=medians.pop("limit", None), rivals=medians, limit_name=limit,
              target=target)  # fmt: skip
    print(line_of(row), flush=True)
    return row


def line_of(row: Row) -> str:
    """Return a row as it is printed: our time, and the ratios to the fastest rival and to the limit."""
    parts = [f"{row.what}: {shown(row.ours)}"]
    if row.best is not None:
        parts.append(f"{row.ratios['to_rival']:.2f} of {row.best} ({shown(row.rivals[row.best])})")
    if row.limit:
        parts.append(f"{row.ratios['to_limit']:.2f} of {row.limit_name} ({shown(row.limit)})")
    return "; ".join(parts) + ("" if row.target is None else f"; at most {row.target:g} asked")


def shown(seconds: float) -> str:
    """Format a time, such as 12.3 ms."""
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def products(flops: float) -> Case:
    """Return the case of float32 matrix products with as many operations, by the faster of torch and numpy."""
    import torch

    one = torch.randn(SIDE, SIDE)
    same, out = one.numpy(), torch.empty_like(one)
    calls = partial(torch.mm, one, one, out=out), partial(np.matmul, same, same, out=out.numpy())
    return lambda number: min(map(timed, calls)) * flops / (2.0 * SIDE**3)


def reading(vectors: np.ndarray[Any, Any]) -> Case:
    """Return the case of reading an array in memory once, with one thread."""
    words = vectors.reshape(-1).view(np.int64)
    return lambda number: timed(words.sum)


def evict(path: Path) -> None:
    """Ask the kernel to drop the pages of all files of a path; those that a process has mapped remain."""
    for file in files_of(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def files_of(path: Path) -> Iterator[Path]:
    yield from (file for file in sorted(path.rglob("*")) if file.is_file()) if path.is_dir() else iter([path])


def read_in_order(path: Path) -> None:
    """Read all files of a path in blocks."""
    buffer = bytearray(READ_NBYTES)
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def resident_share(path: Path) -> float:
    """Return the share of the pages of a path's files that is in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    resident = total = 0
    for file in files_of(path):
        if not (size := file.stat().st_size):
            continue
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as mapped:
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            view = np.frombuffer(mapped, np.uint8)
            address, vector = ctypes.c_void_p(view.ctypes.data), pages.ctypes.data_as(ctypes.c_char_p)
            if libc.mincore(address, ctypes.c_size_t(size), vector) != 0:
                raise OSError(ctypes.get_errno(), "mincore failed")
            del view, address
            resident, total = resident + int((pages & 1).sum()), total + len(pages)
    return resident / max(total, 1)


def memory_nbytes(name: str = "VmHWM") -> int:
    """Return the largest resident size of this process, or with "RssAnon" its memory without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the system does not report {name} of a process in /proc/self/status")


def in_fresh_process(script: str | Path, *arguments: str) -> Any:
    """Run a Python script and return the JSON of its last line of output. Raises RuntimeError where it fails."""
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"{Path(script).name} ended with status {done.returncode}: {last[0]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> dict[str, Any]:
    """Describe the machine by what decides its speed; no names of hosts, users or paths."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = dict(line.split(":", 1) for line in lines if ":" in line)
    model = {key.strip(): value.strip() for key, value in named.items()}.get("model name", platform.machine())
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "load_average": os.getloadavg()[0],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_result(path: str | Path | None, rows: Iterable[Row], **more: Any) -> None:
    """Write rows and other figures with the day and the machine."""
    rows = list(rows)
    for row in rows:
        if row.target is not None and (row.ratios["to_rival"] or row.ratios["to_limit"] or 0) > row.target:
            print(f"above its target: {row.what}")
    if path is None:
        return
    script = Path(sys.argv[0]).stem
    result = {"benchmark": script, "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(),
              "rows": [row.as_json() for row in rows], **more}  # fmt: skip
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(_finite(result), indent=1, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
