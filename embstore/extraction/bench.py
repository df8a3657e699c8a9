"""The speed of an extraction with a user's own model and text, and the limit of each stage on this machine."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embstore.arguments import checked
from embstore.corpus import Corpus, open_corpus
from embstore.errors import check_whole
from embstore.extraction.estimate import disk_rates
from embstore.extraction.extract import extract
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.partition import Part
from embstore.extraction.plan import Plan, plan
from embstore.extraction.worker import Timings
from embstore.models.encoder import Encoder
from embstore.store.layout import ITEM_NBYTES

PRODUCT_SIDE = {"cpu": 1024, "cuda": 8192}  # of the square matrices whose product is timed
COPIED_NBYTES = 2**28
DISK_NBYTES = 2**28
REPEATS = 5
BUSY_BATCHES = 8  # run once more to see how long the device computes
IDLE = "forward, idle"


@dataclass(frozen=True)
class Stage:
    """One stage of an extraction: how long it ran, what it did, and its limit on this machine.

    `amount` of `unit` in `seconds`; `limit`: the best rate per second, None if unknown; `limit_name`: of what.
    `parallel`: whether it runs in a thread of its own.
    """

    name: str
    seconds: float
    amount: float = 0.0
    unit: str = ""
    limit: float | None = None
    limit_name: str = ""
    parallel: bool = False

    @property
    def rate(self) -> float:
        return self.amount / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float | None:
        """The rate as a share of the limit."""
        return self.rate / self.limit if self.limit else None

    def row(self, wall: float) -> dict[str, Any]:
        """Return a row of the table; `wall`: the seconds of the whole extraction."""
        return {
            "stage": self.name,
            "seconds": self.seconds,
            "share %": 100 * self.seconds / wall,
            "runs": "parallel" if self.parallel else "in line",
            "rate": per_second(self.rate, self.unit) if self.amount else "",
            "limit": f"{per_second(self.limit, self.unit)} {self.limit_name}" if self.limit else "",
            "of limit %": None if self.share is None else 100 * self.share,
        }

    def as_json(self, wall: float) -> dict[str, Any]:
        return {**vars(self), "busy": self.seconds / wall, "rate": self.rate, "share": self.share}


@dataclass(frozen=True)
class ExtractionRate:
    """The figures of one measured extraction; `seconds`: from the finished plan to the closed store."""

    n_words: int
    n_subwords: int
    nbytes: int
    seconds: float
    plan_seconds: float
    stages: tuple[Stage, ...]

    @property
    def verdict(self) -> str:
        """Which stage is the bottleneck and how close it is to its limit, in one line."""
        stage = max((stage for stage in self.stages if stage.limit_name), key=lambda stage: stage.seconds)
        busy = 100 * stage.seconds / self.seconds
        if stage.name == IDLE:
            return f"launching operators is the bottleneck: {stage.limit_name} {busy:.0f} % of the time"
        if stage.share is None:
            return f"{stage.name} is the bottleneck: busy {busy:.0f} % of the time; its limit is unknown"
        return f"{stage.name} is the bottleneck: {100 * stage.share:.0f} % of the {stage.limit_name}"

    def rates(self) -> list[dict[str, Any]]:
        """Return the rates as a table: what, amount, per second."""
        amounts = [("words", self.n_words), ("subwords", self.n_subwords), ("GB stored", self.nbytes / 1e9)]
        return [{"what": what, "amount": amount, "per second": amount / self.seconds} for what, amount in amounts]

    def table(self) -> list[dict[str, Any]]:
        """Return the time of each stage, and its rate next to its limit."""
        return [stage.row(self.seconds) for stage in self.stages]

    def as_json(self) -> dict[str, Any]:
        stages = [stage.as_json(self.seconds) for stage in self.stages]
        return {**vars(self), "stages": stages, "verdict": self.verdict}


def per_second(rate: float, unit: str) -> str:
    """Format a rate, such as 1.25 GB/s."""
    prefixes = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
    letter, size = next(((letter, size) for letter, size in prefixes.items() if rate >= size), ("", 1.0))
    between = " " if letter and unit not in ("B", "FLOP") else ""
    return f"{rate / size:,.3g} {letter}{between}{unit}/s"


@checked
def bench_extract(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    n_sentences: int = 2000,
    options: ExtractionOptions | None = None,
    device: str = "auto",
    compute_dtype: str = "auto",
    folder: str | Path | None = None,
    suffix: str = ".zarr",
) -> ExtractionRate:
    """Measure an extraction of the first `n_sentences` of a corpus, and the limit of each of its stages here.

    The store is written to a temporary folder in `folder` and removed. The other arguments are those of `plan`.
    """
    check_whole("n_sentences", n_sentences, 1)
    some = list(islice(open_corpus(corpus), n_sentences))
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=folder) as temporary:
        store = Path(temporary) / f"bench{suffix}"
        start = time.perf_counter()
        made = plan(
            some, model=model, options=options, device=device, compute_dtype=compute_dtype, store=store, progress=False
        )
        planned = time.perf_counter()
        timings = Timings()
        extract(made, store, progress=False, timings=timings)
        seconds = time.perf_counter() - planned
        stages = (*limited_stages(made, timings, Path(temporary)), *other_stages(timings, seconds))
    return ExtractionRate(made.n_words, timings.n_subwords, timings.nbytes, seconds, planned - start, stages)


def other_stages(timings: Timings, seconds: float) -> tuple[Stage, ...]:
    """Return the stages that only wait, and the rest of the time of an extraction of `seconds`."""
    stages, waited = timings.stages, timings.waited_for_text + timings.waited_for_disk
    rest = seconds - waited - timings.cast - stages.forward - stages.copy
    return (
        Stage("wait for text", timings.waited_for_text),
        Stage("wait for disk", timings.waited_for_disk),
        Stage("open, close, rest", rest),
    )


def limited_stages(made: Plan, timings: Timings, folder: Path) -> tuple[Stage, ...]:
    """Return the stages that have a limit, which is measured now; the disk is measured in `folder`."""
    encoder, layout = made.encoder, made.layout
    device, before, lengths = encoder.device, encoder.times.tokenize, []
    for group in range(len(made.groups)):
        for passage in Part.of(made.index, *made.groups.span(group)).passages(encoder, made.text):
            bounds = passage.tokenized.word_indptr[passage.tokenized.sentence_indptr]
            lengths.append(np.diff(bounds)[np.unique(passage.spans.sentence)])
    n_subwords = np.concatenate(lengths)
    alone = encoder.times.tokenize - before
    text_rate = float(n_subwords.sum()) / alone if alone > 0 else None
    spent, n_run = timings.stages, float(n_subwords.sum())
    busy = min(spent.forward, n_run * forward_busy(made))
    flops = encoder.forward_flops(n_subwords + encoder.n_specials, layers=layout.layers)
    products = None if flops is None else product_rate(device, encoder.compute_dtype)
    stored, computed = (ITEM_NBYTES[name] for name in (layout.dtype, encoder.compute_dtype))
    on_gpu = device.type == "cuda"
    itemsize = computed if stored < 2 else min(stored, computed)
    copied = timings.n_rows * len(layout.layers) * layout.hidden_size * itemsize if on_gpu else 0
    pinned, name = (copy_rate(device), "pinned copy rate") if on_gpu else (None, "nothing leaves a CPU")
    text = n_run, "subwords", text_rate, "tokenizing alone"
    nbytes = float(timings.nbytes)
    return (
        Stage("tokenize", spent.tokenize, *text, parallel=True),
        Stage("forward", busy, flops or 0.0, "FLOP", products, "matrix-multiply rate"),
        Stage("copy", spent.copy, float(copied), "B", pinned, name),
        Stage("cast", timings.cast, nbytes, "B", copy_rate(torch.device("cpu")), "memory copy rate"),
        Stage("write", timings.write, nbytes, "B", disk_rates(folder, DISK_NBYTES)[0], "disk rate", parallel=True),
        Stage(IDLE, spent.forward - busy, limit_name=f"the {device.type} waits for them"),
    )


def forward_busy(made: Plan) -> float:
    """Run a few batches again, and return how many seconds the device computes for a subword."""
    n_subwords, most = 0, BUSY_BATCHES * made.text.batch_subwords
    seconds = 0.0
    for partition in range(made.layout.n_partitions):
        for passage in Part.of(made.index, *made.layout.span(partition)).passages(made.encoder, made.text):
            if n_subwords >= most:
                return seconds / n_subwords
            arguments = {"layers": made.layout.layers, **made.options.encoding}
            batches = made.encoder.encode(passage.tokenized, passage.spans, **arguments)
            seconds += busy_seconds(partial(deque, batches, 0), made.encoder.device)
            n_subwords += len(passage.tokenized.ids)
    return seconds / max(1, n_subwords)


def busy_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `work` in which the device computes: on a CPU processor time, by torch's threads.

    On CUDA the time in which at least one kernel runs, as the profiler sees them, copies not counted: the time between
    two events has the gaps in which the GPU waits for Python.
    """
    if device.type != "cuda":
        began = time.process_time()
        work()
        return (time.process_time() - began) / torch.get_num_threads()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize(device)
    return (
        covered(
            [
                (event.time_range.start, event.time_range.end)
                for event in found.events() or ()
                if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
            ]
        )
        / 1e6
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans (start, end)."""
    total, reached = 0.0, -float("inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def product_rate(device: torch.device, compute_dtype: str) -> float:
    """Measure products of square matrices in a dtype: operations per second."""
    side = PRODUCT_SIDE.get(device.type, 1024)
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, compute_dtype)) for _ in range(2))
    return 2.0 * side**3 / _fastest(lambda: torch.mm(left, right), device)


def copy_rate(device: torch.device) -> float:
    """Measure copies into pinned memory of the host, on a CPU from memory to memory, in bytes per second."""
    source = torch.zeros(COPIED_NBYTES, dtype=torch.uint8, device=device)
    target = torch.zeros(COPIED_NBYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return COPIED_NBYTES / _fastest(lambda: target.copy_(source, non_blocking=True), device)


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of several runs, after a warm-up."""
    seconds = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
