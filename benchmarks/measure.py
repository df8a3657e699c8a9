"""What the scripts share, besides `embstore.bench.measure`: memory, fresh processes, tables, targets, result files."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from embstore.bench.measure import Row, Times, interleaved, machine, run_of, timed, watched_load

__all__ = [
    "Row",
    "Target",
    "Times",
    "anonymous_nbytes",
    "in_fresh_process",
    "interleaved",
    "machine",
    "paired_ratios",
    "parser_of",
    "peak_nbytes",
    "show_rows",
    "table",
    "targets_table",
    "timed",
    "write_json",
]

_run = cache(run_of)
_LOAD = watched_load()
_AT_START = os.getloadavg()[0]
LOAD = _LOAD.__enter__()  # from the start of the script to its result


def parser_of(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options of a script, which has `--out` already."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file to write")
    return parser


def paired_ratios(slower: Times, faster: Times) -> list[float]:
    """How many times faster, round by round: rounds are compared with themselves, not medians of different rounds."""
    return [one / other for one, other in zip(slower.seconds, faster.seconds, strict=True)]


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


def show_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Print rows as they are measured, and return them as the result file holds them."""
    held = []
    for row in rows:
        shown = row.table_row()
        named = ", ".join(f"{name}: {'not installed' if s is None else f'{s:.3g} s'}" for name, s in row.rivals.items())
        print("  ".join(f"{key}: {value}" for key, value in shown.items() if value not in ("", None)))
        print(f"    {named}", flush=True)
        held.append(row.as_json())
    return held


def write_json(path: str | Path | None, result: Mapping[str, Any], *, tell: bool = True) -> None:
    """Write a result with its run, the machine and its load; without a path it is only shown.

    `targets` and `rows`, where the script has some, are `Target`s and those of `embstore.bench`; see
    `schemas/bench.schema.json`.
    """
    if path is None:
        return
    _LOAD.__exit__(None, None, None)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    described = {**machine(), "load_average_at_start": _AT_START}
    ended = {**_run(), "machine": described, "load": LOAD, "rows": [], **result}
    if "targets" in ended:
        ended["targets"] = [target.as_json() for target in ended["targets"]]
    partial = path.with_name(f".{path.name}.new")
    partial.write_text(json.dumps(_finite(ended), indent=1, ensure_ascii=False) + "\n")
    partial.replace(path)
    if tell:
        print(f"\nwritten: {path.name}")


def _finite(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
