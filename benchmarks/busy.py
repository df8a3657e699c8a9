"""An extraction next to one process that keeps a core busy: the automatic number of threads, one, and all of them.

python benchmarks/busy.py --model MODEL_DIR --corpus en_ewt-ud-train.conllu --sentences 500 --repeats 5
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

from measure import Row, interleaved, parser_of, show_rows, timed, write_json

import embstore as es
from embstore.devices import n_cores

NOTICED = 0.5  # seconds after which a new process is seen as busy


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` cores busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(NOTICED)
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def extract(model: str, corpus: Path, folder: Path, environment: dict[str, str], number: int) -> float:
    """Return the seconds of the command in a process of its own, loading included; `environment`: more variables."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        command = [sys.executable, "-m", "embstore", "extract", str(corpus), f"{inside}/store.zarr", "--model", model]
        return timed(partial(subprocess.run, command, env=variables | environment, capture_output=True, check=True))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    parser.add_argument("--corpus", required=True, help="a corpus in any format that embstore reads")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    cases = {
        "ours": {},
        "one thread": {"OMP_NUM_THREADS": "1"},
        "all threads, which sleep": {"OMP_NUM_THREADS": str(n_cores())},
        "all threads, which spin": {"OMP_NUM_THREADS": str(n_cores()), "OMP_WAIT_POLICY": "active"},
    }
    with tempfile.TemporaryDirectory(prefix="embstore-bench-") as name:
        folder, some = Path(name), islice(es.open_corpus(arguments.corpus), arguments.sentences)
        text = folder / "corpus.txt"
        text.write_text("".join(" ".join(sentence.words) + "\n" for sentence in some))
        for count in (0, 1):
            runs = {case: partial(extract, arguments.model, text, folder, more) for case, more in cases.items()}
            with busy(count):
                times = interleaved(runs, repeats=arguments.repeats, tell=True)
            seconds = {case: each.median for case, each in times.items()}
            what = f"extract {arguments.sentences:,} sentences next to {count} busy processes, loading included"
            rows.append(Row(what, seconds.pop("ours"), seconds, threads=n_cores(), targets={"to_rival": 1.05}))
        held = show_rows(rows)
    write_json(arguments.out, {"benchmark": "busy", "rows": held})


if __name__ == "__main__":
    main()
