"""Measuring cases in turn: wall and processor time, rows of the table of results, and how quiet the machine is."""

from __future__ import annotations

import gc
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

PACKAGES = (
    *("embstore", "torch", "transformers", "tokenizers", "numpy", "zarr", "h5py", "polars", "google-crc32c"),
    *("faiss-cpu", "usearch", "tensorstore", "pylance", "tensordict"),
)
QUIET = 0.1  # cores that other processes may use, on average over a run


@dataclass
class Times:
    """The seconds of one case, one entry a round: by the clock, and of the processor (all threads)."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds) if self.seconds else math.nan

    def as_json(self) -> dict[str, Any]:
        return {"median_s": self.median, "repeats": len(self.seconds), "seconds": self.seconds}


@dataclass(frozen=True)
class Row:
    """One line of the table: the same work by embstore and by its rivals, in seconds, and the machine's limit.

    `clock`: "wall" or "processor". `rivals`: None for one that is not installed. `limit`: the seconds of the least
    work that the machine can do for the same result, named by `limit_name`. `targets`: the most that the project
    allows for ours / rival and ours / limit.
    """

    what: str
    ours: float
    rivals: Mapping[str, float | None] = field(default_factory=dict)
    limit: float | None = None
    limit_name: str = ""
    threads: int = 1
    clock: str = "wall"
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def best_rival(self) -> str | None:
        """The name of the fastest rival that is installed."""
        found = {name: seconds for name, seconds in self.rivals.items() if seconds is not None}
        return min(found, key=found.__getitem__) if found else None

    @property
    def to_rival(self) -> float | None:
        """Our time as a multiple of the best rival's: below 1 we are faster."""
        rival = self.rivals[self.best_rival] if self.best_rival else None
        return self.ours / rival if rival else None

    @property
    def to_limit(self) -> float | None:
        return self.ours / self.limit if self.limit else None

    def as_json(self) -> dict[str, Any]:
        derived = {"best_rival": self.best_rival, "to_rival": self.to_rival, "to_limit": self.to_limit}
        return {**vars(self), "rivals": dict(self.rivals), "targets": dict(self.targets), **derived}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Row:
        return cls(**{name: document[name] for name in cls.__dataclass_fields__})

    def table_row(self) -> dict[str, Any]:
        """Return the row as it is printed."""
        rival = f"{shown_seconds(self.rivals[self.best_rival])} {self.best_rival}" if self.best_rival else ""
        return {
            "what": self.what,
            "threads": self.threads,
            "clock": self.clock,
            "ours": shown_seconds(self.ours),
            "best rival": rival,
            "limit": f"{shown_seconds(self.limit)} {self.limit_name}" if self.limit else "",
            "ours/rival": None if self.to_rival is None else round(self.to_rival, 2),
            "ours/limit": None if self.to_limit is None else round(self.to_limit, 2),
        }


def shown_seconds(seconds: float | None) -> str:
    """Format a time, such as 12.3 ms."""
    if seconds is None:
        return "-"
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))
    return f"{seconds / size:#.3g}".rstrip(".") + f" {unit}"


def row_of(
    what: str, times: Mapping[str, Times], *, limit: float | None = None, missing: Mapping[str, None] = {}, **more: Any
) -> Row:
    """Return the row of interleaved cases: "ours", "limit" (unless its seconds are given), and the rivals."""
    clock = more.get("clock", "wall")
    taken = {name: median(each.processor if clock == "processor" else each.seconds) for name, each in times.items()}
    ours, least = taken.pop("ours"), taken.pop("limit", limit)
    return Row(what, ours, {**missing, **taken}, limit=least, **more)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Spent(NamedTuple):
    """The seconds of a call by the clock, and of the processor."""

    seconds: float
    processor: float

    def scaled(self, factor: float) -> Spent:
        """Return the seconds of `factor` times the work."""
        return Spent(self.seconds * factor, self.processor * factor)


def spent(call: Callable[[], object]) -> Spent:
    processor, start = time.process_time(), time.perf_counter()
    call()
    return Spent(time.perf_counter() - start, time.process_time() - processor)


def interleaved(
    cases: Mapping[str, Callable[[int], object]],
    *,
    repeats: int,
    budget: float = math.inf,
    warm: int = 0,
    rest: float = 0.0,
    tell: bool = False,
) -> dict[str, Times]:
    """Run the cases one after the other, A B C A B C ..., so that a slow minute of the machine affects all of them.

    A case is given the number of its round (negative in the `warm` rounds, which are not counted); its seconds are
    what it returns, if that is a float or `Spent`, or else those of the call. One that has used up its `budget` of
    seconds sits out the later rounds, but always runs once. `rest`: seconds before each, while threads of the previous
    library spin on. `tell`: print each time, as it comes, on stderr.
    """
    times = {name: Times() for name in cases}
    used = dict.fromkeys(cases, 0.0)
    for number in range(-warm, repeats):
        gc.collect()
        for name, case in cases.items():
            if used[name] > budget and times[name].seconds:
                continue
            time.sleep(rest)
            found: list[object] = []
            whole = spent(lambda case=case, found=found, number=number: found.append(case(number)))  # type: ignore[misc]
            used[name] += whole.seconds
            own = found[0] if isinstance(found[0], Spent) else whole
            own = Spent(found[0], whole.processor) if isinstance(found[0], float) else own
            if tell:
                print(f"round {number + 1}: {name} {own.seconds:.2f} s", file=sys.stderr, flush=True)
            if number >= 0 or used[name] > budget:
                times[name].seconds.append(own.seconds)
                times[name].processor.append(own.processor)
    return times


def machine() -> dict[str, Any]:
    """Describe the machine by what decides its speed; no names of hosts, users or paths."""
    described: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": cores(),
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


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_of() -> dict[str, str | None]:
    """Return the day of a run, and the commit of embstore if it runs from a checkout."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        tracked = subprocess.run(
            [*command[:3], "ls-files", "--error-unmatch", __file__], capture_output=True, check=False
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": None}
    commit = done.stdout.strip() if done.returncode == 0 and tracked.returncode == 0 else None
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit}


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


@contextmanager
def watched_load() -> Iterator[dict[str, Any]]:
    """Yield a dict that holds, after the block, the load averages and how many cores other processes used in it."""
    load: dict[str, Any] = {"start": os.getloadavg()[0], "end": None, "cores_of_others": None, "quiet": None}
    began, busy, own = time.perf_counter(), _busy_seconds(), _own_seconds()
    yield load
    load["end"] = os.getloadavg()[0]
    if busy is not None:
        others = (_busy_seconds() or busy) - busy - (_own_seconds() - own)
        load["cores_of_others"] = max(0.0, others / (time.perf_counter() - began))
        load["quiet"] = load["cores_of_others"] <= QUIET


def _busy_seconds() -> float | None:
    """The processor seconds of all processes since the start of the machine, and those its host took away."""
    try:
        user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
