"""How long planning takes and what memory it needs, as the corpus grows.

python benchmarks/plan.py --model MODEL_DIR --sentences 100000 1000000 --out benchmarks/results/plan.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import Target, anonymous_nbytes, in_fresh_process, machine, peak_nbytes, table, targets_table, write_json
from numpy.typing import NDArray

SECONDS_ALLOWED = 60.0
GROWTH_ALLOWED = 100e6  # bytes that ten times the sentences may add: the distinct words, not the sentences
MEAN_WORDS = 20
BLOCK = 10_000
SYLLABLES = [onset + nucleus for onset in (*"bdfghklmnprstvwz", "st", "tr") for nucleus in "aeiou"]


def vocabulary(size: int, rng: np.random.Generator) -> list[str]:
    """Distinct pronounceable words, the frequent ones short."""
    words: dict[str, None] = {}
    while len(words) < size:
        syllables = 1 + min(int(np.log10(len(words) + 1)), 5) // 2 + int(rng.integers(0, 3))
        words["".join(SYLLABLES[place] for place in rng.integers(0, len(SYLLABLES), syllables))] = None
    return list(words)


def words_of_texts(folder: Path) -> tuple[list[str], NDArray[np.float64]]:
    """The distinct words of a folder's text files and how often each occurs."""
    text = " ".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt")))
    words, counts = np.unique(np.array(text.split(), dtype=object), return_counts=True)
    return [str(word) for word in words], counts / counts.sum()


def zipf_shares(size: int) -> NDArray[np.float64]:
    shares = 1.0 / (np.arange(size, dtype=np.float64) + 2.7) ** 1.05
    shares /= shares.sum()
    return shares


def lines(count: int, words: list[str], shares: NDArray[np.float64], rng: np.random.Generator) -> Iterator[str]:
    """Yield sentences of 20 words on average, drawn by their shares."""
    spelled = np.array(words, dtype=object)
    bounds = np.cumsum(shares)
    for start in range(0, count, BLOCK):
        lengths = 1 + rng.poisson(MEAN_WORDS - 1, min(BLOCK, count - start))
        drawn = np.minimum(np.searchsorted(bounds, rng.random(int(lengths.sum()))), len(words) - 1)
        ends = np.cumsum(lengths)
        for begin, end in zip(ends - lengths, ends, strict=True):
            yield " ".join(spelled[drawn[begin:end]]) + "\n"


def child(model: str, corpus: str, dtype: str) -> None:
    """Plan one corpus in this process and print its figures."""
    import embstore as es

    began = time.perf_counter()
    encoder = es.load_encoder(model, device="cpu")
    loaded = time.perf_counter()
    before = peak_nbytes()
    anonymous = [anonymous_nbytes()]
    ended = threading.Event()
    watcher = threading.Thread(target=partial(_watch, anonymous, ended), daemon=True)
    watcher.start()
    made = es.plan(corpus, model=encoder, options=es.ExtractionOptions(dtype=dtype), calibrate=False)
    seconds = time.perf_counter() - loaded
    ended.set()
    watcher.join()
    figures = {
        "load_s": loaded - began,
        "plan_s": seconds,
        "peak_before_nbytes": before,
        "peak_nbytes": peak_nbytes(),
        "peak_anonymous_nbytes": max(anonymous),
        "anonymous_before_nbytes": anonymous[0],
        **{key: made.as_json()[key] for key in ("sentences", "words", "subwords", "occurrences", "types")},
    }
    print(json.dumps(figures))


def _watch(seen: list[int], ended: threading.Event) -> None:
    while not ended.wait(0.02):
        seen.append(anonymous_nbytes())


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(arguments.seed)
    if arguments.texts:
        words, shares = words_of_texts(Path(arguments.texts))
    else:
        words, shares = vocabulary(arguments.types, rng), zipf_shares(arguments.types)
    runs = []
    for count in sorted(arguments.sentences):
        corpus = folder / f"{count}.txt"
        with corpus.open("w", encoding="utf-8") as file:
            file.writelines(lines(count, words, shares, rng))
        of_count = [
            in_fresh_process(__file__, "--child", "--model", arguments.model, "--corpus", str(corpus))
            for _ in range(arguments.repeats)
        ]
        corpus.unlink()
        runs.append(sorted(of_count, key=lambda figures: figures["plan_s"])[len(of_count) // 2])
    show(runs)
    return {"runs": runs, "targets": [target.as_json() for target in targets_of(runs)]}


def show(runs: list[dict[str, Any]]) -> None:
    header = [
        "sentences",
        "words",
        "types",
        "plan, s",
        "words/s",
        "peak MB",
        "of it, own",
        "MB when the model is loaded",
    ]
    rows = [
        (
            f"{run['sentences']:,}",
            run["words"],
            run["types"],
            run["plan_s"],
            run["words"] / run["plan_s"],
            run["peak_nbytes"] / 1e6,
            run["peak_anonymous_nbytes"] / 1e6,
            run["peak_before_nbytes"] / 1e6,
        )
        for run in runs
    ]
    print(table(header, rows))
    print("\n'own': memory that is not a file's, sampled; the rest is mapped files, which the kernel may drop.\n")
    print(targets_table(targets_of(runs)))


def targets_of(runs: list[dict[str, Any]]) -> list[Target]:
    last = runs[-1]
    targets = [Target(f"seconds to plan {last['sentences']:,} sentences", last["plan_s"], SECONDS_ALLOWED, False)]
    if len(runs) > 1:
        grown = last["peak_anonymous_nbytes"] - runs[0]["peak_anonymous_nbytes"]
        times = last["sentences"] / runs[0]["sentences"]
        what = f"MB of own memory that {times:g} times the sentences add"
        targets.append(Target(what, grown / 1e6, GROWTH_ALLOWED / 1e6, False))
    return targets


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    parser.add_argument("--sentences", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--types", type=int, default=200_000, help="distinct words of the made-up vocabulary")
    parser.add_argument("--texts", help="folder of .txt files whose words are used instead")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tmp", help="folder for the files written (default: the system's)")
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.child:
        child(arguments.model, arguments.corpus, "float16")
        return
    described = machine()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        result = run(arguments, Path(folder))
    options = {"vocabulary": "texts" if arguments.texts else f"{arguments.types} made-up words", "seed": arguments.seed}
    write_json(arguments.out, {"benchmark": "plan", "machine": described, "options": options, **result})


if __name__ == "__main__":
    main()
