"""All measurements of the documentation in one quiet run of at most 14 minutes, and the page that is made of them.

python benchmarks/all.py --model MODEL_DIR --corpus en_ewt-ud-train.conllu

Each step is a script in a process of its own with a limit of time; a step that fails or takes too long is reported, and
its result file stays as it was. `--tiny` runs every step at sizes that say nothing, in `--results FOLDER`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "results"


class Step(NamedTuple):
    """The name of the result, its command, and its limit in seconds."""

    name: str
    command: list[str]
    seconds: int


def script(name: str, *options: object) -> list[str]:
    return [sys.executable, str(HERE / name), *map(str, options)]


def steps(arguments: argparse.Namespace, store: Path, results: Path) -> list[Step]:
    tiny, model = arguments.tiny, ("--model", arguments.model) if arguments.model else ()
    bench = [sys.executable, "-m", "embstore", "bench", "all", *model, "--out", str(results / "all.json")]
    bench += ["--folder", arguments.tmp] if arguments.tmp else []
    tmp = ("--tmp", arguments.tmp) if arguments.tmp else ()
    repeats = 1 if tiny else 5
    query = ("--rows", 2_000 if tiny else 100_000, "--layers", 2 if tiny else 3, "--budget", 0.1 if tiny else 3)
    growth = ("--rows", *((2e3, 4e3) if tiny else (1e5, 3e5, 1e6, 5e6)), "--repeats", 1 if tiny else 3)
    growth += ("--plot", results / "growth.png", *tmp)
    neighbors = (store, "--repeats", repeats, "--most-queries", 32 if tiny else 10_000, *tmp)
    found = [
        Step("all", [*bench, *(["--quick"] if tiny else [])], 300),
        Step("query", script("query.py", *query, "--repeats", repeats, *tmp), 110),
        Step("neighbors", script("neighbors.py", *neighbors), 110),
        Step("geometry", script("geometry.py", store, "--repeats", repeats, "--pair-words", 20), 60),
        Step("growth", script("growth.py", *growth), 150),
    ]
    if arguments.model and arguments.corpus:
        sentences = ("--sentences", 20 if tiny else 1_000, "--repeats", 1)
        extract = ("--model", arguments.model, "--corpus", arguments.corpus, *sentences)
        found.append(Step("extract", script("extract.py", *extract), 100))
    return found


def run(step: Step, results: Path) -> str:
    """Run a step; returns how it ended."""
    out = results / f"{step.name}.json"
    options = [] if step.name == "all" else ["--out", str(out)]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [*step.command, *options], capture_output=True, text=True, check=False, timeout=step.seconds
        )
    except subprocess.TimeoutExpired:
        return f"over its {step.seconds} s"
    took = f"{time.perf_counter() - began:.0f} s"
    if done.returncode:
        return f"failed after {took}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return f"done in {took}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a Hugging Face model, for extraction")
    parser.add_argument("--corpus", help="a corpus in any format that embstore reads, for extract.py")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that every step runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--tmp", help="folder for temporary stores (default: the system's); needs 4 GB")
    return parser.parse_args()


def main() -> None:
    from embstore.bench.made import write_stores

    arguments = parse()
    arguments.results.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        store = Path(folder) / "made.zarr"
        write_stores(
            [store], n_rows=4_000 if arguments.tiny else 100_000, n_layers=2, hidden_size=64 if arguments.tiny else 384
        )
        for step in steps(arguments, store, arguments.results):
            ended = run(step, arguments.results)
            print(f"{step.name}: {ended}", flush=True)
            failed += [] if ended.startswith("done") else [step.name]
    if arguments.results == RESULTS:
        subprocess.run(script("page.py"), check=True)
    if failed:
        sys.exit(f"without a new result: {', '.join(failed)}")


if __name__ == "__main__":
    main()
