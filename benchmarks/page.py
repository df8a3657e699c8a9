"""Write docs/results/benchmarks.md and the table of README.md from benchmarks/results: page.py [--check]."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embstore.bench.measure import Row, shown_seconds

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "results" / "benchmarks.md", ROOT / "benchmarks" / "results"
ABOUT = {
    "all": "Everything in one run: `embstore bench all`",
    "extract": "Extraction: `benchmarks/extract.py`",
    "extract_parts": "Where the time of an extraction goes: `benchmarks/extract_parts.py`",
    "pipeline": "The stages of an extraction on a simulated GPU: `benchmarks/pipeline.py`",
    "busy": "Extraction on a busy machine: `benchmarks/busy.py`",
    "append": "Appends and collections: `benchmarks/append.py`",
    "query": "Reading: `benchmarks/query.py`",
    "neighbors": "Exact search and indexes: `benchmarks/neighbors.py`",
    "sketch": "Exact search through a sketch: `benchmarks/sketch.py`",
    "sql": "Ten questions in SQL: `benchmarks/sql.py`",
    "geometry": "Geometry: `benchmarks/geometry.py`",
    "attention": "Statistics of attention: `benchmarks/attention.py`",
    "change": "Change between two stores: `benchmarks/change.py`",
    "explore": "The explorer under load: `benchmarks/explore.py`",
    "growth": "Growth with the number of rows: `benchmarks/growth.py`",
    "breakeven": "Storing or computing again: `benchmarks/breakeven.py`",
    "memory": "Memory of an extraction: `benchmarks/memory.py`",
    "windows": "Context windows: `benchmarks/windows.py`",
    "bank": "Class probes: `benchmarks/bank.py`",
    "probe": "Edge probes: `benchmarks/probe.py`",
}
ORDER = tuple(ABOUT)
README, SPEED = ROOT / "README.md", re.compile(r"(<!-- [^>]*page.py[^>]* -->\n).*?(?=<!-- end -->)", re.S)
SHOWN = {  # rows of `bench all` with their clocks: what the README calls them
    ("extract 2,000 sentences, 7 layers", "wall"): "extract all layers of 2,000 sentences, two cores",
    ("exact search, ip, k 10, 32 queries", "wall"): "exact 10 nearest of 32 vectors among 200,000, two cores",
    ("geometry: selfsim, intrasim, anisotropy", "wall"): "three measures of geometry of a layer, two cores",
    ("gather 100,000 rows", "processor"): "read 100,000 rows at random, one core",
    ("200,000 vectors in shuffled batches", "processor"): "200,000 vectors in shuffled batches, one core",
}
HEAD = """# Benchmarks

<!-- Written by `python benchmarks/page.py` from the files in benchmarks/results: change these, not this page. -->

Each table is one run of a script (`benchmarks/README.md` says how to run and read them): embstore and its rivals take
turns in the same run, and the figure is the median. **The best rival is the fastest that was installed, weak and strong
ones measured alike**, and the limit is what the same machine does at best for the same result (one read of the bytes, a
matrix product, a copy), measured in the same run. ours/rival below 1 means that embstore is faster; ours/limit cannot
fall much below 1. The clock is given with the number of threads: "processor" is the time of the processor, which other
programs disturb least, "wall" the time that passes. A bold ratio misses the project's own target.

`embstore bench all --quick` measures the first table on your machine in about a minute.
"""

LEFT_OUT = {"extract_parts": "500 sentences"}  # rows that begin so: those of 2,000 sentences say the same
CROSSED = {"pipeline"}  # rows named "shape: case" are a table of shapes by cases


def results(folder: Path = RESULTS) -> list[tuple[str, dict[str, Any]]]:
    """Return the result files of speed, in the order of the page."""
    held = [(path.name, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    known = [(name, result) for name, result in held if result["benchmark"] in ORDER]
    return sorted(known, key=lambda each: ORDER.index(each[1]["benchmark"]))


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def compact_table(header: list[str], lines: list[list[str]]) -> str:
    """A table without empty columns; threads and clock are in its head where they are the same in all rows."""
    filled = [column for column in range(len(header)) if any(line[column] for line in lines)]
    if len(clocks := {line[1] for line in lines}) == 1:
        filled.remove(1)
        header = [header[0], header[1], f"ours ({clocks.pop()})", *header[3:]]
    return table([header[column] for column in filled], [[line[column] for column in filled] for line in lines])


def run_line(name: str, result: dict[str, Any]) -> str:
    """When, what and where a file was measured, and how quiet the machine was."""
    machine, load = result["machine"], result["load"]
    capability = f", {machine['cpu_capability']}" if machine.get("cpu_capability") else ""
    others = load["cores_of_others"]
    noise = "" if others is None else f"; other programs used {others:.2f} cores"
    quiet = " (**not a quiet run**)" if load["quiet"] is False else ""
    return (
        f"Run of {result['date']}, commit {result['commit'] or 'unknown'}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']:.0f} GiB{capability}{noise}{quiet}. File: `benchmarks/results/{name}`."
    )


def ratio(value: float | None, most: float | None) -> str:
    if value is None:
        return ""
    shown = f"{value:.2f}"
    return f"**{shown}** (<= {most:.2g})" if most is not None and value > most else shown


def row_line(row: Row) -> list[str]:
    rival, targets = row.best_rival, row.targets
    others = [
        f"{name} {'not installed' if seconds is None else shown_seconds(seconds)}"
        for name, seconds in sorted(row.rivals.items(), key=lambda each: each[1] or 1e9)
        if name != rival
    ]
    slow = targets.get("seconds")
    ours = f"**{shown_seconds(row.ours)}** (<= {slow:g} s)" if slow and row.ours > slow else shown_seconds(row.ours)
    return [
        row.what.replace("|", " "),
        f"{row.threads}, {row.clock}",
        ours,
        f"{shown_seconds(row.rivals[rival])} {rival}" if rival else "",
        f"{shown_seconds(row.limit)} {row.limit_name}" if row.limit else "",
        ratio(row.to_rival, targets.get("to_rival")),
        ratio(row.to_limit, targets.get("to_limit")),
        "; ".join(others),
    ]


def more_nbytes(each: dict[str, Any]) -> float:
    """How much more memory an operation takes for a row more."""
    rows, nbytes = each["rows"], each["own_nbytes"]
    return float((nbytes[-1] - nbytes[0]) / (rows[-1] - rows[0]))


def crossed_lines(rows: list[Row]) -> Iterator[str]:
    """The ratios to the limit of rows that are named "shape: case"."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        shape, _, case = row.what.partition(": ")
        cells.setdefault(shape, {})[case] = ratio(row.to_limit, row.targets.get("to_limit"))
    yield "Each figure is ours/limit: the time of all stages together, over that of the slowest stage alone."
    cases = list(next(iter(cells.values())))
    yield table(["", *cases], [[shape, *(each[case] for case in cases)] for shape, each in cells.items()])


def growth_lines(growth: list[dict[str, Any]], figure: str) -> Iterator[str]:
    sizes = [f"{rows:,} rows" for rows in growth[0]["rows"]]
    lines = [
        [each["operation"], *map(shown_seconds, each["seconds"]), f"{each['exponent']:.2f}",
         " / ".join(f"{nbytes / 2**20:.0f}" for nbytes in each["own_nbytes"]), f"{more_nbytes(each):.1f}"]
        for each in growth
    ]  # fmt: skip
    yield table(["operation", *sizes, "exponent", "own memory, MiB", "bytes a row more"], lines)
    yield (
        "The exponent is that of time between the last two sizes. Own memory is the most that an operation takes above "
        "the start without a file behind it (RssAnon), the libraries that it loads included (for geometry torch); the "
        "last column is its growth from the first to the last size for each row. A list of all rows would take 8 bytes."
    )
    if (PAGE.parent / figure).exists():
        yield f"![Time and own memory over the number of rows]({figure})"


def case_lines(cases: dict[str, dict[str, Any]]) -> str:
    """The cases of a script as they were measured, the fastest first."""
    timed = sorted(
        ((case["median_s"], name) for name, case in cases.items() if case.get("median_s")), key=lambda x: x[0]
    )
    return table(["case", "median"], [[name, shown_seconds(seconds)] for seconds, name in timed])


def targets_lines(targets: list[dict[str, Any]]) -> str:
    rows = [[each["what"], f"{each['bound']:g}", f"{each['value']:.3g}", "yes" if each["holds"] else "**no**"]
            for each in targets if each["value"] is not None]  # fmt: skip
    return table(["target", "bound", "measured", "holds"], rows)


def section(name: str, result: dict[str, Any]) -> Iterator[str]:
    yield f"## {ABOUT[result['benchmark']]}"
    yield run_line(name, result)
    rows = [Row.of_json(row) for row in result["rows"]]
    rows = [row for row in rows if not row.what.startswith(LEFT_OUT.get(result["benchmark"], "\0"))]
    if result["benchmark"] in CROSSED:
        yield from crossed_lines(rows)
    elif rows:
        header = ["what", "threads, clock", "ours", "best rival", "limit", "ours/rival", "ours/limit", "other rivals"]
        yield compact_table(header, [row_line(row) for row in rows])
    if result.get("growth"):
        yield from growth_lines(result["growth"], Path(name).with_suffix(".png").name)
    if result.get("cases"):
        yield case_lines(result["cases"])
    if result.get("targets"):
        yield targets_lines(result["targets"])


def page(folder: Path = RESULTS) -> str:
    """Return the whole page."""
    parts = [HEAD.rstrip()]
    for name, result in results(folder):
        parts += section(name, result)
    return "\n\n".join(parts) + "\n"


def readme() -> str:
    """Return the README with the rows of `bench all` that it shows."""
    rows = {
        (row.what, row.clock): row for row in map(Row.of_json, json.loads((RESULTS / "all.json").read_text())["rows"])
    }
    lines = []
    for key, name in SHOWN.items():
        _, _, ours, rival, *_ = row_line(rows[key])
        lines.append([name, ours, rival])
    return SPEED.sub(
        lambda found: found[1] + table(["", "embstore", "the fastest rival"], lines) + "\n", README.read_text()
    )


def main() -> None:
    made = {PAGE: page(), README: readme()}
    if "--check" in sys.argv:
        old = [path.name for path, text in made.items() if path.read_text() != text]
        sys.exit(f"{' and '.join(old)}: older than benchmarks/results: run python benchmarks/page.py" if old else 0)
    for path, text in made.items():
        path.write_text(text)
    print(f"written: {', '.join(path.name for path in made)}, {len(results())} files")


if __name__ == "__main__":
    main()
