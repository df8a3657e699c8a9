"""Peak memory of extractions of different size, each in a fresh process, compared with the plan's estimate.

python benchmarks/memory.py --model "$MODEL" --small one.txt --large novels/*.txt
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from measure import in_fresh_process, memory_nbytes

import embstore as es

GROWTH_ALLOWED = 1.10  # of the peak, from the small corpus to the large one


def child(arguments: argparse.Namespace) -> None:
    """Plan and extract in this process and print the figures."""
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder, es.config(progress=False):
        store = Path(folder) / "memory.zarr"
        plan = es.plan(es.open_corpus(arguments.files), model=arguments.model, store=store)
        projected, rows = plan.estimate.memory_nbytes, plan.layout.n_rows
        es.extract(plan, store)
    print(json.dumps({"rows": rows, "projected_nbytes": projected, "peak_nbytes": memory_nbytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    parser.add_argument("--small", nargs="+", help="texts of a small corpus")
    parser.add_argument("--large", nargs="+", help="texts of a large one")
    parser.add_argument("--tmp", help="folder for temporary stores (default: the system's)")
    parser.add_argument("--files", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.files:
        child(arguments)
        return
    peaks = []
    for name, files in (("small", arguments.small), ("large", arguments.large)):
        tmp = ("--tmp", arguments.tmp) if arguments.tmp else ()
        run = in_fresh_process(__file__, "--model", arguments.model, *tmp, "--files", *files)
        peaks.append(run["peak_nbytes"])
        share = run["peak_nbytes"] / run["projected_nbytes"]
        print(f"{name}: {run['rows']:,} rows, peak {run['peak_nbytes'] / 1e6:,.0f} MB, {share:.0%} of the projection "
              f"({'holds' if share <= 1 else 'ABOVE it'})")  # fmt: skip
    grown = peaks[1] / peaks[0]
    print(f"the peak grows by {grown:.2f}; at most {GROWTH_ALLOWED} asked")


if __name__ == "__main__":
    main()
