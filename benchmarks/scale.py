"""The bookkeeping of a large store, with no vectors: plan, layout, commits, a kill, a resume, a loss.

    python benchmarks/scale.py --occurrences 1e6 1e7 1e8

A stream of made-up sentences is planned for a model of BERT-base's shape; 70 % of the partitions are committed in
random order by a process that then kills itself, the rest by another, which then discards 30 % of the finished store
and commits these again. Partitions and commits go through the writer of an extraction; only the vectors are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from made import made_words, save_model
from measure import memory_nbytes

import embstore as es

SHAPE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 64}
TYPES, MEAN_WORDS, LOST = 1_000_000, 20, 0.3


class Sentences:
    """A corpus of sentences of 20 words on average; word number n of the list comes 1/n as often as the first."""

    def __init__(self, occurrences: int, words: list[str]) -> None:
        self._occurrences, self._words = occurrences, np.array(words, dtype=object)

    def __iter__(self) -> Iterator[list[str]]:
        rng, left = np.random.default_rng(0), self._occurrences
        while left > 0:
            lengths = 1 + rng.poisson(MEAN_WORDS - 1, 4096)
            types = np.exp(rng.random(int(lengths.sum())) * np.log(len(self._words))).astype(np.int64) - 1
            for part in np.split(self._words[types], np.cumsum(lengths)[:-1]):
                yield part[:left].tolist()
                left -= len(part)
                if left <= 0:
                    return


class Phases:
    """The seconds of the phases of this process, and its memory without mapped files after each."""

    def __init__(self) -> None:
        self.figures: dict[str, str] = {}
        self._began = time.perf_counter()

    def end(self, name: str) -> None:
        now = time.perf_counter()
        self.figures[name] = f"{now - self._began:.1f} s, {memory_nbytes('RssAnon') / 1e6:,.0f} MB"
        self._began = time.perf_counter()


def lay_out(store: Path, occurrences: int) -> Phases:
    words = made_words(TYPES)
    encoder = es.load_encoder(save_model(store.parent / "model", words, **SHAPE))
    phases = Phases()
    plan = es.plan(Sentences(occurrences, words), model=encoder, calibrate=False)
    phases.end("plan")
    es.store.create_store(store, metadata=plan.metadata, index=plan.index)
    phases.end("lay out")
    return phases


def commit(writer: Any, partitions: list[int]) -> None:
    """Commit partitions by the writer of an extraction, whose shards are not written."""
    from embstore.store.zarr.writer import ZarrWriter

    ZarrWriter.write = lambda self, partition, arrays: partition  # type: ignore[method-assign,assignment]
    layout = writer.metadata.layout
    for partition in partitions:
        start, stop = layout.span(partition)
        shape = (len(layout.layers), stop - start, layout.hidden_size)
        writer.write(partition, {"hidden_states": np.broadcast_to(np.float16(0), shape)})


def fill(store: Path, occurrences: int) -> Phases:
    """Commit seven partitions of ten; the process is killed after it has printed its figures."""
    phases, writer = Phases(), es.store.StoreWriter(store)
    missing = np.random.default_rng(0).permutation(np.array(writer.missing()))
    commit(writer, missing[: round((1 - LOST) * len(missing))].tolist())
    phases.end("commit 70 %")
    return phases


def resume(store: Path, occurrences: int) -> Phases:
    """Finish what was killed; then lose three partitions of ten of the finished store, and write them again."""
    phases = Phases()
    with es.store.StoreWriter(store) as writer:
        commit(writer, writer.missing())
        phases.end("commit 30 %")
        writer.finish()
    phases.end("finish")
    n_partitions = es.open(store).metadata.n_partitions
    phases.end("open")
    lost = np.random.default_rng(1).permutation(n_partitions)[: round(LOST * n_partitions)].tolist()
    with es.store.StoreWriter(store) as writer:
        writer.discard(lost)
        assert writer.missing() == sorted(lost)
        commit(writer, sorted(lost))
        writer.finish()
    phases.end("discard 30 % and commit them again")
    return phases


STEPS = {step.__name__: step for step in (lay_out, fill, resume)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--occurrences", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--tmp", help="folder for temporary stores (default: the system's)")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(STEPS[arguments.step](arguments.store, int(arguments.occurrences[0])).figures), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    for count in map(int, arguments.occurrences):
        with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
            store = Path(folder) / "scale.zarr"
            print(f"{count:,} occurrences")
            for step in STEPS:
                command = [sys.executable, __file__, "--step", step, "--store", str(store), "--occurrences", str(count)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != -signal.SIGKILL:
                    raise SystemExit(f"{step} ended with status {done.returncode}: {done.stderr[-2000:]}")
                for name, figure in json.loads(done.stdout.splitlines()[-1]).items():
                    print(f"  {name}: {figure}")
            shutil.rmtree(store)


if __name__ == "__main__":
    main()
