"""What the benchmarks share: interleaved repeats, medians, the machine's description, tables and JSON."""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

PACKAGES = ("embstore", "torch", "transformers", "tokenizers", "numpy", "zarr", "h5py", "tensorstore", "polars")


@dataclass
class Times:
    """The seconds of one case, one entry a repeat."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds) if self.seconds else math.nan

    @property
    def spread(self) -> float:
        """Largest over smallest."""
        return max(self.seconds) / min(self.seconds) if self.seconds else math.nan

    def as_json(self) -> dict[str, Any]:
        return {"median_s": self.median, "repeats": len(self.seconds), "seconds": self.seconds}


def paired_ratios(slower: Times, faster: Times) -> list[float]:
    """How many times faster, round by round: rounds are compared with themselves, not medians of different rounds."""
    return [one / other for one, other in zip(slower.seconds, faster.seconds, strict=True)]


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(
    cases: Mapping[str, Callable[[int], float]],
    *,
    repeats: int,
    budget: float = math.inf,
    warm: int = 0,
    tell: bool = False,
) -> dict[str, Times]:
    """Run the cases one after the other, A B C A B C ..., so that a slow minute of the machine strikes them all.

    A case gets the number of its round (negative in the `warm` rounds, which are not counted) and returns its
    seconds. One that has used up its `budget` of seconds sits out the later rounds, but always runs once. `tell`:
    say each time, as it comes, on stderr.
    """
    times = {name: Times() for name in cases}
    used = dict.fromkeys(cases, 0.0)
    for number in range(-warm, repeats):
        for name, case in cases.items():
            if used[name] > budget and times[name].seconds:
                continue
            gc.collect()
            start = time.perf_counter()
            seconds = case(number)
            used[name] += time.perf_counter() - start
            if tell:
                print(f"round {number + 1}: {name} {seconds:.2f} s", file=sys.stderr, flush=True)
            if number >= 0 or used[name] > budget:
                times[name].seconds.append(seconds)
    return times


def machine() -> dict[str, Any]:
    """Describe the machine by what decides its speed; no names of hosts, users or paths."""
    described: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "load_average_at_start": os.getloadavg()[0],
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        described["torch_threads"] = torch.get_num_threads()
        described["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
        if torch.cuda.is_available():
            described["gpu"] = torch.cuda.get_device_name(0)
    return described


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    parts = [named.get("model name", platform.machine())]
    if "model" in named:
        parts.append(f"family {named.get('cpu family')} model {named['model']}")
    return ", ".join(parts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def peak_nbytes() -> int:
    """The largest resident size of this process's own image.

    Not `ru_maxrss`: that one starts from the resident size of the process that started this one.
    """
    return _status_nbytes("VmHWM")


def anonymous_nbytes() -> int:
    """Return the memory of this process, in bytes, without mapped files."""
    return _status_nbytes("RssAnon")


def _status_nbytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the system does not tell {name} of a process in /proc/self/status")


def in_fresh_process(script: str | Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run a Python script and return the JSON of its last line of output. Raises RuntimeError where it fails."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"{Path(script).name} ended with status {done.returncode}: {last[0]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay out text columns: the first to the left, the others to the right."""
    cells = [list(header), *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _shown(cell: object) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


@dataclass(frozen=True)
class Target:
    """A figure that the project promises: at least, or at most, `bound`."""

    what: str
    value: float
    bound: float
    at_least: bool

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "value": self.value, "bound": self.bound, "holds": self.holds}


def targets_table(targets: Iterable[Target]) -> str:
    return table(
        ["target", "asked", "measured", "holds"],
        [(t.what, f"{'>=' if t.at_least else '<='} {t.bound:g}", t.value, "yes" if t.holds else "NO") for t in targets],
    )


def write_json(path: str | Path | None, result: Mapping[str, Any]) -> None:
    """Write a result with the machine's load at the end; without a path it is only shown."""
    if path is None:
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    ended = {**result, "load_average_at_end": os.getloadavg()[0]}
    path.write_text(json.dumps(_finite(ended), indent=2, ensure_ascii=False) + "\n")
    print(f"\nwritten: {path.name}")


def _finite(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
