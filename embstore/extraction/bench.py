"""The speed of an extraction with a user's own model and text, and the limit of each stage on this machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus import Corpus, open_corpus
from embstore.errors import InvalidValueError
from embstore.extraction.extract import extract
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.partition import Part
from embstore.extraction.plan import Plan, plan
from embstore.extraction.worker import Timings
from embstore.models.encoder import Encoder
from embstore.store.layout import ITEM_NBYTES

LARGEST_SIDE = {"cpu": 2048, "cuda": 8192}
COPIED_NBYTES = 2**28
DISK_NBYTES = 2**28
_REPEATS = 5
_PRODUCT_SECONDS = 0.5  # the longest time of one product
_UNITS = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}


@dataclass(frozen=True)
class Stage:
    """One stage of an extraction: how long it ran, what it did, and its limit on this machine.

    `amount` of `unit` in `seconds`; `limit`: the best rate per second, None if unknown; `limit_name`: of what.
    """

    name: str
    seconds: float
    amount: float
    unit: str
    limit: float | None
    limit_name: str

    @property
    def rate(self) -> float:
        return self.amount / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float | None:
        """The rate as a share of the limit."""
        return self.rate / self.limit if self.limit else None

    def row(self, wall: float) -> dict[str, Any]:
        """Return a row of the table: the rate and the limit."""
        return {
            "stage": self.name,
            "busy %": 100 * self.seconds / wall if wall > 0 else 0.0,
            "rate": per_second(self.rate, self.unit) if self.amount else "none",
            "limit": f"{per_second(self.limit, self.unit)} {self.limit_name}" if self.limit else "none",
            "of limit %": None if self.share is None else 100 * self.share,
        }

    def as_json(self, wall: float) -> dict[str, Any]:
        return {
            "stage": self.name,
            "seconds": self.seconds,
            "busy": self.seconds / wall if wall > 0 else 0.0,
            "unit": self.unit,
            "rate": self.rate,
            "limit": self.limit,
            "limit_name": self.limit_name,
            "share": self.share,
        }


def per_second(rate: float, unit: str) -> str:
    """Format a rate, such as 1.25 GB/s."""
    letter, size = next(((letter, size) for letter, size in _UNITS.items() if rate >= size), ("", 1.0))
    between = "" if unit in ("B", "FLOP") else " "
    return f"{rate / size:,.3g} {letter}{between}{unit}/s".replace("  ", " ")


def binding(stages: Sequence[Stage]) -> Stage:
    """Return the stage that the others wait for: the busiest."""
    return max(stages, key=lambda stage: stage.seconds)


def verdict(stages: Sequence[Stage], wall: float) -> str:
    """Return one line: which stage is the bottleneck, and how close it is to its limit."""
    stage = binding(stages)
    if stage.share is None:
        return (
            f"{stage.name} is the bottleneck: busy {100 * stage.seconds / wall:.0f} % of the time; its limit is unknown"
        )
    return f"{stage.name} is the bottleneck: {100 * stage.share:.0f} % of the {stage.limit_name}"


def product_rate(device: torch.device, compute_dtype: str) -> float:
    """Measure products of square matrices in a dtype: operations a second, the best of some."""
    dtype, side = getattr(torch, compute_dtype), 256
    largest = LARGEST_SIDE.get(device.type, 2048)
    seconds = _product(side, device, dtype)
    while side < largest and 8 * seconds < _PRODUCT_SECONDS:
        side *= 2
        seconds = _product(side, device, dtype)
    return 2.0 * side**3 / seconds


def _product(side: int, device: torch.device, dtype: torch.dtype) -> float:
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return _best(lambda: torch.mm(left, right, out=out), device)


def copy_rate(device: torch.device, *, nbytes: int = COPIED_NBYTES) -> float:
    """Measure copies into pinned memory of the host, on a CPU from memory to memory, in bytes per second."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return nbytes / _best(lambda: target.copy_(source, non_blocking=True), device)


def disk_rate(folder: str | Path, *, nbytes: int = DISK_NBYTES) -> float:
    """Measure writing one file until it is on the disk, in bytes per second. The file is removed."""
    block = os.urandom(min(nbytes, 2**24))  # zeros may never reach the disk
    with tempfile.NamedTemporaryFile(dir=folder, prefix="embstore-bench-", buffering=0) as file:
        started = time.perf_counter()
        written = 0
        while written < nbytes:
            written += file.write(block)
        os.fsync(file.fileno())
        return written / (time.perf_counter() - started)


def _best(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of several runs, after a warm-up."""
    work()
    taken = []
    for _ in range(_REPEATS):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        taken.append(time.perf_counter() - started)
        if sum(taken) > 2 * _PRODUCT_SECONDS:
            break
    return min(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class ExtractionRate:
    """The figures of one measured extraction; `seconds`: from the finished plan to the closed store."""

    n_words: int
    n_subwords: int
    nbytes: int
    seconds: float
    plan_seconds: float
    timings: Timings
    limits: tuple[Stage, ...] = ()

    @property
    def verdict(self) -> str:
        """Which stage is the bottleneck and how close it is to its limit, in one line."""
        return verdict(self.limits, self.seconds)

    def limits_table(self) -> list[dict[str, Any]]:
        """Return the rate of each stage next to its limit on this machine."""
        return [stage.row(self.seconds) for stage in self.limits]

    def rates(self) -> list[dict[str, Any]]:
        """Return the rates as a table: what, amount, per second."""
        amounts = [("words", self.n_words), ("subwords", self.n_subwords), ("GB stored", self.nbytes / 1e9)]
        return [{"what": what, "amount": amount, "per second": amount / self.seconds} for what, amount in amounts]

    def stages(self) -> list[dict[str, Any]]:
        """Return seconds and share of the wall time of each stage; parallel stages run in threads of their own."""
        timings = self.timings
        rows = [
            ("forward pass", timings.stages.forward, "in line"),
            ("pooling", timings.stages.pool, "in line"),
            ("copy to host", timings.stages.copy, "in line"),
            ("cast", timings.cast, "in line"),
            ("wait for text", timings.waited_for_text, "in line"),
            ("wait for disk", timings.waited_for_disk, "in line"),
        ]
        rest = self.seconds - sum(seconds for _, seconds, _ in rows)
        rows += [
            ("open, close, rest", rest, "in line"),
            ("tokenize", timings.stages.tokenize, "parallel"),
            ("write", timings.write, "parallel"),
        ]
        return [
            {"stage": stage, "seconds": seconds, "share %": 100 * seconds / self.seconds, "runs": runs}
            for stage, seconds, runs in rows
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "n_words": self.n_words,
            "n_subwords": self.n_subwords,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "plan_seconds": self.plan_seconds,
            "stages": self.stages(),
            "limits": [stage.as_json(self.seconds) for stage in self.limits],
            "verdict": self.verdict if self.limits else None,
        }


def bench_extract(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    sentences: int = 2000,
    options: ExtractionOptions | None = None,
    device: str = "auto",
    compute_dtype: str = "auto",
    folder: str | Path | None = None,
    suffix: str = ".zarr",
    disk_nbytes: int = DISK_NBYTES,
) -> ExtractionRate:
    """Measure an extraction of the first sentences of a corpus, and the limit of each of its stages on this machine.

    The store is written to a temporary folder in `folder` and removed. `disk_nbytes`: the size of the file that is
    written to measure the disk. The other arguments are those of `plan`.
    """
    if sentences < 1:
        raise InvalidValueError(f"sentences {sentences} is not allowed: give 1 or more")
    if disk_nbytes < 1:
        raise InvalidValueError(f"disk_nbytes {disk_nbytes} is not allowed: give 1 or more")
    some = list(islice(open_corpus(corpus), sentences))
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=folder) as temporary:
        store = Path(temporary) / f"bench{suffix}"
        start = time.perf_counter()
        made = plan(
            some,
            model=model,
            options=options,
            device=device,
            compute_dtype=compute_dtype,
            store=store,
            progress=False,
        )
        planned = time.perf_counter()
        timings = Timings()
        extract(made, store, progress=False, timings=timings)
        seconds = time.perf_counter() - planned
        limits = _limits(made, timings, Path(temporary), disk_nbytes=disk_nbytes)
    return ExtractionRate(made.n_words, timings.n_subwords, timings.nbytes, seconds, planned - start, timings, limits)


def _limits(made: Plan, timings: Timings, folder: Path, *, disk_nbytes: int) -> tuple[Stage, ...]:
    """Return the work of each stage and its limit, measured now."""
    encoder, layout, spent = made.encoder, made.layout, timings.stages
    device = encoder.device
    lengths, alone = _tokenized_alone(made)
    flops = encoder.forward_flops(lengths, layers=layout.layers)
    operations = 0.0 if flops is None else flops
    products = None if flops is None else product_rate(device, encoder.compute_dtype)
    stored, computed = (ITEM_NBYTES[name] for name in (layout.dtype, encoder.compute_dtype))
    itemsize = computed if stored < 2 else min(stored, computed)
    copied = timings.n_rows * len(layout.layers) * layout.hidden_size * itemsize
    on_gpu = device.type == "cuda"
    return (
        Stage("tokenize", spent.tokenize, float(_subwords(lengths, encoder)), "subwords", alone, "tokenizing alone"),
        Stage("forward", spent.forward + spent.pool, operations, "FLOP", products, "matrix-multiply rate"),
        Stage(
            "copy",
            spent.copy,
            float(copied if on_gpu else 0),
            "B",
            copy_rate(device) if on_gpu else None,
            "pinned copy rate" if on_gpu else "nothing leaves a CPU",
        ),
        Stage("cast", timings.cast, float(timings.nbytes), "B", copy_rate(torch.device("cpu")), "memory copy rate"),
        Stage("write", timings.write, float(timings.nbytes), "B", disk_rate(folder, nbytes=disk_nbytes), "disk rate"),
    )


def _tokenized_alone(made: Plan) -> tuple[NDArray[np.int64], float | None]:
    """Tokenize the sentences again, alone: their positions, and subwords per second if measured."""
    encoder = made.encoder
    before = encoder.times.tokenize
    lengths = []
    for partition in range(made.layout.n_partitions):
        for passage in Part.of(made.index, *made.layout.span(partition)).passages(encoder, made.text):
            tokenized = passage.tokenized
            bounds = tokenized.word_indptr[tokenized.sentence_indptr]
            lengths.append(np.diff(bounds)[np.unique(passage.spans.sentence)] + encoder.n_specials)
    positions = np.concatenate(lengths)
    seconds = encoder.times.tokenize - before
    return positions, _subwords(positions, encoder) / seconds if seconds > 0 else None


def _subwords(positions: NDArray[np.int64], encoder: Encoder) -> int:
    """Return the subwords of sentences with these numbers of positions."""
    return int(positions.sum()) - len(positions) * encoder.n_specials
