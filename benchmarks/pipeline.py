"""How near an extraction comes to its slowest stage, with a played device that sleeps for each batch, copy and write.

Batches, groups and partitions are those of the shapes below with all layers; only the width of the vectors is smaller,
so that this machine's processor does not count. Threads, queues and buffers are those of an extraction on a GPU. A
model that is split over GPUs is one device: of its GPUs one computes at a time (docs/explanation/scale.md).

python benchmarks/pipeline.py --batch-ms 100 --copy-ms 20 --write-ms 60
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from measure import Row, parser_of, show_rows, write_json

from embstore.extraction import worker
from embstore.extraction.cast import Cast
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.partition import Groups, Passage, TextOptions, group_partitions
from embstore.extraction.worker import Destination, Fetch, Job, Task, Worker
from embstore.models.encoder import Pooled, Spans, StageTimes, Tokenized
from embstore.store import Layout
from embstore.store.layout import partition_rows

WIDTH = 4  # of the vectors that are really moved
N_GROUPS = 20
SHARE = 0.9  # of the slowest stage, which must be reached
# What "at the rates of" plays, taken and not measured: operations/s of a GPU, bytes/s of copies and of one writer.
GPU_FLOPS, COPY_RATE, WRITE_RATE = 400e12, 50e9, 1e9


@dataclass(frozen=True)
class Shape:
    """A model with all layers; `batch`: the subwords of a batch; `flops`: operations of a subword."""

    name: str
    n_layers: int
    width: int
    batch: int
    flops: float

    def groups(self) -> Groups:
        """Return the partitions of a large store as the plan lays them out."""
        n_features = self.n_layers * self.width
        rows = partition_rows(10**9, n_features, "float16")
        nbytes = rows * n_features * 2
        size = group_partitions(10**9 // rows, partition_rows=rows, partition_nbytes=nbytes, batch_subwords=self.batch)
        layout = Layout(N_GROUPS * size * rows, tuple(range(self.n_layers)), WIDTH, "float16", rows)
        return Groups(layout, size)


SHAPES = (
    Shape("BERT-base", 13, 768, 65536, 0.17e9),
    Shape("BERT-large", 25, 1024, 65536, 0.6e9),
    Shape("7B", 33, 4096, 16384, 14e9),
    Shape("70B on 8 GPUs", 81, 8192, 16384, 140e9),
)


@dataclass(frozen=True)
class PlayedPart:
    """The rows of a group, one subword each, as one passage."""

    start: int
    stop: int

    def passages(self, encoder: Any, options: Any, *, is_needed: Any) -> Iterator[Passage]:
        rows = np.arange(self.stop - self.start)
        bounds = np.arange(len(rows) + 1)
        tokenized = Tokenized(np.zeros(len(rows), np.int32), bounds, bounds)
        yield Passage(self.start, rows, tokenized, Spans(rows, np.zeros_like(rows), np.ones_like(rows)))


class PlayedDevice:
    """Sleeps for each batch, in the thread that encodes; its vectors have a shape and no memory."""

    casts_on_device, device = True, torch.device("meta")

    def __init__(self, seconds: float, n_layers: int) -> None:
        self.seconds, self.n_layers, self.n_batches, self.times = seconds, n_layers, 0, StageTimes()

    def encode(self, tokenized: Any, spans: Spans, *, batch_subwords: int, **_: Any) -> Iterator[Pooled]:
        for rows in np.array_split(np.arange(len(spans.start)), -(-len(spans.start) // batch_subwords)):
            time.sleep(self.seconds)
            self.n_batches += 1
            yield Pooled(rows, torch.empty(self.n_layers, len(rows), WIDTH, dtype=torch.float16, device=self.device))

    def add_waiting_times(self) -> None:
        pass


class PlayedFetch(Fetch):
    """Sleeps for each copy."""

    seconds = 0.0

    def __call__(self, pairs: Iterable[Any]) -> None:
        time.sleep(self.seconds)


def run(shape: Shape, batch: float, copy: float, write: float) -> tuple[float, dict[str, float]]:
    """Extract; returns the seconds, and those that each stage alone would take."""
    groups = shape.groups()
    layout, n_written = groups.layout, 0
    options = ExtractionOptions(batch_subwords=shape.batch)
    job = Job(layout.layers, options, TextOptions("word", 512), (Destination(0, layout, 0, None),), groups.size)

    def writes(partition: int, arrays: Mapping[str, Any]) -> None:
        nonlocal n_written
        time.sleep(write)
        n_written += 1

    encoder = PlayedDevice(batch, shape.n_layers)
    ours = Worker(encoder, job, [writes])  # type: ignore[arg-type]
    ours.fetch = PlayedFetch(encoder.device)
    ours.fetch.seconds = copy
    tasks = (
        Task(PlayedPart(*groups.span(group)), dict.fromkeys(groups.partitions(group), (0,)))  # type: ignore[arg-type]
        for group in range(len(groups))
    )
    began = time.perf_counter()
    with patch.object(Cast, "check"):  # there are no values
        deque(ours.run(tasks), maxlen=0)
    seconds = time.perf_counter() - began
    assert n_written == layout.n_partitions
    alone = {"batches": encoder.n_batches * batch, "copies": n_written * copy, "writes": n_written * write}
    return seconds, {**alone, "writes": alone["writes"] / worker.WRITERS}


def balanced(shape: Shape, arguments: argparse.Namespace) -> list[tuple[str, float, float, float]]:
    """Return what each batch, copy and write takes where one of them is the slowest, and where all are equal."""
    if arguments.batch_ms is not None:
        given = (arguments.batch_ms / 1e3, arguments.copy_ms / 1e3, arguments.write_ms / 1e3)
        return [("as given", *given)]
    groups = shape.groups()
    n_batches = -(-groups.size * groups.layout.partition_rows // shape.batch)
    each = arguments.group_ms / 1e3
    whole = (each / n_batches, each / groups.size, worker.WRITERS * each / groups.size)
    cases = []
    for name, factors in {
        "batches are the slowest": (1, 0.5, 0.5),
        "copies are the slowest": (0.5, 1, 0.5),
        "writes are the slowest": (0.5, 0.5, 1),
        "all take as long": (1, 1, 1),
    }.items():
        batch, copy, write = (seconds * factor for seconds, factor in zip(whole, factors, strict=True))
        cases.append((name, batch, copy, write))
    rows, nbytes = groups.layout.partition_rows, groups.layout.partition_rows * shape.n_layers * shape.width * 2
    taken = (groups.size * rows * shape.flops / GPU_FLOPS / n_batches, nbytes / COPY_RATE, nbytes / WRITE_RATE)
    return [*cases, ("at the rates of 400 Tflop/s, copies of 50 GB/s, 1 GB/s a writer", *taken)]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--batch-ms", type=float, help="sleep for each batch; by default several cases are played")
    parser.add_argument("--copy-ms", type=float, default=0.0)
    parser.add_argument("--write-ms", type=float, default=0.0)
    parser.add_argument("--group-ms", type=float, default=1000.0, help="of the slowest stage, for each group")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for shape in SHAPES:
        groups = shape.groups()
        print(f"{shape.name}: groups of {groups.size} partitions of {groups.layout.partition_rows:,} rows", flush=True)
        for name, *seconds in balanced(shape, arguments):
            taken, alone = run(shape, *seconds)
            slowest = max(alone, key=alone.__getitem__)
            what = f"{shape.name}, {groups.size} x {groups.layout.partition_rows:,} rows a group: {name}"
            limit = f"{slowest} alone; all stages after one another {sum(alone.values()):.1f} s"
            limit += f"; {groups.layout.n_rows / taken:,.0f} words/s"
            rows.append(Row(what, taken, {}, alone[slowest], limit, targets={"to_limit": 1 / SHARE}))
    held = show_rows(rows)
    write_json(arguments.out, {"benchmark": "pipeline", "rows": held})


if __name__ == "__main__":
    main()
