"""Peak memory of extractions of different size, each in a fresh process, compared with the plan's estimate.

python benchmarks/memory.py --model MODEL_DIR --texts FOLDER --small 1023_bleak_house.txt
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from measure import Target, in_fresh_process, parser_of, peak_nbytes, table, targets_table, write_json

GROWTH_ALLOWED = 1.10


def child(arguments: argparse.Namespace) -> None:
    """Plan and extract in this process and print the figures."""
    import embstore as es

    paths = [Path(path) for path in arguments.files]
    corpus: Any = paths
    if arguments.max_sentences:
        corpus = Some(paths, arguments.max_sentences)
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        store = Path(folder) / f"memory{arguments.suffix}"
        began = time.perf_counter()
        made = es.plan(
            corpus,
            model=arguments.model,
            options=es.ExtractionOptions(layers=arguments.layers, dtype=arguments.dtype),
            store=store,
        )
        planned = time.perf_counter()
        after_plan = peak_nbytes()
        projected = made.estimate.memory_nbytes
        es.extract(made, store)
        figures = {
            "occurrences": made.layout.n_rows,
            "partitions": made.layout.n_partitions,
            "projected_nbytes": projected,
            "peak_after_plan_nbytes": after_plan,
            "peak_nbytes": peak_nbytes(),
            "plan_s": planned - began,
            "extract_s": time.perf_counter() - planned,
        }
    print(json.dumps(figures))


class Some:
    """The first sentences of a corpus, as an iterable that can be read repeatedly."""

    def __init__(self, paths: list[Path], count: int) -> None:
        self._paths = paths
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        import embstore as es

        return islice(iter(es.open_corpus(self._paths)), self._count)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    texts = sorted(Path(arguments.texts).glob("*.txt"))
    small = [path for path in texts if path.name == arguments.small]
    if not small:
        raise SystemExit(f"there is no {arguments.small} in the folder of texts")
    runs = {}
    for name, files in ((arguments.small, small), (f"all {len(texts)} texts", texts)):
        options = [
            "--child",
            *("--model", arguments.model),
            *("--layers", arguments.layers),
            *("--dtype", arguments.dtype),
            *("--suffix", arguments.suffix),
            *("--max-sentences", str(arguments.max_sentences)),
            *(("--tmp", arguments.tmp) if arguments.tmp else ()),
            "--files",
        ]
        runs[name] = in_fresh_process(__file__, *options, *map(str, files))
    show(runs)
    return {"runs": runs, "targets": targets_of(runs)}


def show(runs: dict[str, Any]) -> None:
    header = [
        "corpus",
        "rows",
        "partitions",
        "peak MB",
        "projected MB",
        "of projection",
        "peak of plan MB",
        "extract, s",
    ]
    rows = [
        (
            name,
            run["occurrences"],
            run["partitions"],
            run["peak_nbytes"] / 1e6,
            run["projected_nbytes"] / 1e6,
            f"{100 * run['peak_nbytes'] / run['projected_nbytes']:.0f} %",
            run["peak_after_plan_nbytes"] / 1e6,
            run["extract_s"],
        )
        for name, run in runs.items()
    ]
    print(table(header, rows) + "\n")
    print(targets_table(targets_of(runs)))


def targets_of(runs: dict[str, Any]) -> list[Target]:
    small, large = runs.values()
    targets = [
        Target(f"{name}: peak over projection", run["peak_nbytes"] / run["projected_nbytes"], 1.0, False)
        for name, run in runs.items()
    ]
    grown = large["peak_nbytes"] / small["peak_nbytes"]
    times = large["occurrences"] / small["occurrences"]
    return [*targets, Target(f"peak with {times:.1f} times the rows, times the peak", grown, GROWTH_ALLOWED, False)]


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    parser.add_argument("--texts", help="folder of .txt files with one sentence a line")
    parser.add_argument("--small", default="1023_bleak_house.txt", help="the one text compared with all of them")
    parser.add_argument("--layers", default="all", help="fewer for a quick look; all for the figures")
    parser.add_argument("--max-sentences", type=int, default=0, help="0: all")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--suffix", choices=[".zarr", ".h5"], default=".zarr")
    parser.add_argument("--tmp", help="folder for temporary stores (default: the system's)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--files", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.child:
        child(arguments)
        return
    result = run(arguments)
    options = {key: getattr(arguments, key) for key in ("layers", "max_sentences", "dtype", "suffix")}
    write_json(arguments.out, {"benchmark": "memory", "options": options, **result})


if __name__ == "__main__":
    main()
