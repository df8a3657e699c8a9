"""All cases on this machine, each group in a process of its own, with one thread and with all cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.bench.cases import Cases, in_each_round
from embstore.bench.measure import QUIET, Row, Spent, cores, interleaved, machine, row_of, run_of, watched_load
from embstore.errors import EmbstoreError, InvalidValueError, check_whole
from embstore.store.opening import open_store
from embstore.store.storage.files import replacing

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
INVALID = 2  # the exit status of bad input
START_TARGETS = {"info": 0.3, "lookup": 0.5, "neighbors": 0.7}  # seconds of the processor


@dataclass(frozen=True)
class Sizes:
    """How large the made store is, what is drawn from it, and how often each case runs."""

    rows: int
    layers: int
    hidden_size: int
    gathered: tuple[int, ...]
    queries: tuple[int, ...]
    sentences: tuple[int, ...]
    repeats: int
    budget: float  # seconds of one case


QUICK = Sizes(50_000, 3, 384, (50, 1_000, 20_000), (1, 32), (200,), 3, 1.0)
FULL = Sizes(200_000, 7, 384, (50, 1_000, 100_000), (1, 32, 1_000), (500, 2_000), 7, 5.0)


@dataclass(frozen=True)
class BenchReport:
    """The rows of a run, what it was run on and when, and the load of the machine."""

    rows: tuple[Row, ...]
    machine: dict[str, Any]
    run: dict[str, str | None]
    load: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The rivals that are not installed."""
        return sorted({name for row in self.rows for name, seconds in row.rivals.items() if seconds is None})

    @property
    def warning(self) -> str | None:
        """What makes the figures doubtful: other processes, in one line."""
        others = self.load["cores_of_others"]
        if others is None:
            return "how busy other processes were is unknown: trust a figure only if a second run gives it too"
        if others > QUIET:
            return f"other processes used {others:.1f} cores during the run: trust ratios with care, and run it again"
        return None

    def table(self) -> list[dict[str, Any]]:
        return [row.table_row() for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        """Return the report as `schemas/bench.schema.json` describes it."""
        rows = [row.as_json() for row in self.rows]
        facts = {"machine": self.machine, "load": self.load, "settings": self.settings, "missing": self.missing}
        return {"benchmark": "all", **self.run, **facts, "rows": rows}

    def save(self, path: str | Path) -> None:
        """Write the report as a JSON file. Raises StorageError."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(json.dumps(self.as_json(), indent=1) + "\n")


@checked
def bench_all(
    store: str | Path | None = None,
    *,
    quick: bool = False,
    model: str | None = None,
    folder: str | Path | None = None,
    each_row: Callable[[Row], object] | None = None,
    sizes: Sizes | None = None,
) -> BenchReport:
    """Measure embstore, the rivals that are installed, and the limits of this machine, in one run.

    `store`: a store of float16 or float32 on this machine; a temporary one with random vectors by default. `quick`:
    a smaller store and fewer rounds, about a minute. `model`: a Hugging Face model, to measure extraction too.
    `folder`: where temporary files are written; 4 GB, quick .5 GB. `each_row`: called with each row once measured.

    Raises StoreNotFoundError, InvalidValueError for another kind of store, ModelError.
    """
    chosen, n_cores = sizes or (QUICK if quick else FULL), cores()
    check_whole("rows", chosen.rows, 1)
    if store is not None:
        open_store(store)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=folder) as temporary:
        path = Path(store) if store is not None else Path(temporary) / "made.zarr"
        given = {"path": str(path), "folder": temporary, "model": model, "sizes": vars(chosen), "made": store is None}
        groups = [("prepare", n_cores), *([("extraction", n_cores)] if model else []), ("cold", 1), ("store", 1)]
        groups += [("store", n_cores)] if n_cores > 1 else []
        described = machine()
        with watched_load() as load:
            measured = (_child(given, group, threads) for group, threads in groups)
            for row in chain(chain.from_iterable(measured), start_rows(path, max(2, chosen.repeats // 2))):
                rows.append(row)
                if each_row is not None:
                    each_row(row)
    settings = {**vars(chosen), "quick": quick, "made": store is None, "model": model and Path(model).name}
    return BenchReport(tuple(rows), described, run_of(), load, settings)


def _child(given: dict[str, Any], group: str, threads: int) -> Iterator[Row]:
    """Run a group in a fresh process with its number of threads; yields its rows."""
    options = json.dumps({**given, "group": group, "threads": threads})
    command = [sys.executable, "-m", "embstore.bench.child", options]
    environment = {**os.environ, **dict.fromkeys(THREADS, str(threads))}
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process:
            for line in process.stdout or ():
                yield Row.of_json(json.loads(line))
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:] or ["no message"]
    if process.returncode == INVALID:
        raise InvalidValueError(last[0])
    if process.returncode:
        raise EmbstoreError(f"the measurements {group!r} ended with {process.returncode}: {last[0]}")


def start_rows(path: Path, repeats: int) -> Iterator[Row]:
    """Commands in fresh processes, by processor time; what it takes to import numpy is part of each.

    The bytecode of all modules is there after the first round, as installers write it.
    """
    index = open_store(path).index
    word = index.words[int(index.type[0])]
    with tempfile.TemporaryDirectory(prefix="embstore-bench-") as bytecode:
        for name, more in (("info", ()), ("lookup", (word,)), ("neighbors", (word, "--layer", "last", "-k", "1"))):
            cases: Cases = {
                "ours": in_each_round(_spent_by, bytecode, "-m", "embstore", name, str(path), *more),
                "limit": in_each_round(_spent_by, bytecode, "-c", "import numpy"),
            }
            times = interleaved(cases, repeats=repeats, warm=1)
            row: dict[str, Any] = {"targets": {"seconds": START_TARGETS[name]}, "clock": "processor"}
            yield row_of(f"embstore {name}", times, limit_name="importing numpy", **row)


def _spent_by(bytecode: str, *arguments: str) -> Spent:
    """Run a command of Python, whose compiled modules are kept in a folder, and return what it took."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise EmbstoreError(f"{' '.join(arguments[:3])} ended with status {process.returncode}")
    return Spent(time.perf_counter() - started, used.ru_utime + used.ru_stime)
