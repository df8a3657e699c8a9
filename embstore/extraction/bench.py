"""How fast an extraction is with a user's own model and text, and which stage takes the time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus import Corpus, open_corpus
from embstore.errors import InvalidValueError
from embstore.extraction.limits import DISK_NBYTES, Stage, copy_rate, disk_rate, product_rate, verdict
from embstore.extraction.pipeline import Timings, extract
from embstore.extraction.plan import Plan, plan
from embstore.models.encoder import Encoder, Pooling
from embstore.store.layout import ITEM_NBYTES


@dataclass(frozen=True)
class ExtractionRate:
    """The figures of one measured extraction; `seconds` is the time from the plan made to the store closed."""

    words: int
    subwords: int
    nbytes: int
    seconds: float
    plan_seconds: float
    timings: Timings
    limits: tuple[Stage, ...] = ()

    @property
    def verdict(self) -> str:
        """Which stage binds and how far it is from its own limit, in one line."""
        return verdict(self.limits, self.seconds)

    def limits_table(self) -> list[dict[str, Any]]:
        """What each stage did a second, beside the best that the machine can do."""
        return [stage.row(self.seconds) for stage in self.limits]

    def rates(self) -> list[dict[str, Any]]:
        """Rates as a table: what, amount, a second."""
        amounts = [("words", self.words), ("subwords", self.subwords), ("GB stored", self.nbytes / 1e9)]
        return [{"what": what, "amount": amount, "a second": amount / self.seconds} for what, amount in amounts]

    def stages(self) -> list[dict[str, Any]]:
        """Seconds and share of the wall time of each stage; those marked beside run in threads of their own."""
        timings = self.timings
        told = [
            ("forward pass", timings.stages.forward, "in line"),
            ("pooling", timings.stages.pool, "in line"),
            ("copy to host", timings.stages.copy, "in line"),
            ("cast", timings.cast, "in line"),
            ("wait for text", timings.waited_for_text, "in line"),
            ("wait for disk", timings.waited_for_disk, "in line"),
        ]
        rest = self.seconds - sum(seconds for _, seconds, _ in told)
        told += [
            ("open, close, rest", rest, "in line"),
            ("tokenise", timings.stages.tokenize, "beside"),
            ("write", timings.write, "beside"),
        ]
        return [
            {"stage": stage, "seconds": seconds, "share %": 100 * seconds / self.seconds, "runs": runs}
            for stage, seconds, runs in told
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "words": self.words,
            "subwords": self.subwords,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "plan_seconds": self.plan_seconds,
            "stages": self.stages(),
            "limits": [stage.as_json(self.seconds) for stage in self.limits],
            "binds": self.verdict if self.limits else None,
        }


def bench_extract(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    sentences: int = 2000,
    layers: str | Iterable[int] = "all",
    pooling: Pooling = "mean",
    device: str = "auto",
    compute_dtype: str = "auto",
    batch_subwords: int | None = None,
    folder: str | Path | None = None,
    suffix: str = ".zarr",
    disk_nbytes: int = DISK_NBYTES,
) -> ExtractionRate:
    """Extract the first sentences of a corpus into a store that is thrown away, and measure it.

    Then measure, in the same run, what each stage could do at best; `disk_nbytes`: how large a file is written for
    the rate of the disk.
    """
    if sentences < 1:
        raise InvalidValueError(f"sentences {sentences} is not allowed: give 1 or more")
    if disk_nbytes < 1:
        raise InvalidValueError(f"a file of {disk_nbytes} bytes measures no disk: give 1 or more")
    some = list(islice(open_corpus(corpus), sentences))
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=folder) as temporary:
        store = Path(temporary) / f"bench{suffix}"
        start = time.perf_counter()
        made = plan(
            some,
            model=model,
            layers=layers,
            pooling=pooling,
            device=device,
            compute_dtype=compute_dtype,
            batch_subwords=batch_subwords,
            store=store,
        )
        planned = time.perf_counter()
        timings = Timings()
        extract(made, store, timings=timings)
        seconds = time.perf_counter() - planned
        limits = _limits(made, timings, Path(temporary), disk_nbytes=disk_nbytes)
    return ExtractionRate(made.words, timings.subwords, timings.nbytes, seconds, planned - start, timings, limits)


def _limits(made: Plan, timings: Timings, folder: Path, *, disk_nbytes: int) -> tuple[Stage, ...]:
    """Each stage's work and the best rate of it here, measured now."""
    encoder, layout, spent = made.encoder, made.layout, timings.stages
    device = encoder.device
    lengths, alone = _tokenized_alone(made)
    flops = encoder.forward_flops(lengths, layers=layout.layers)
    operations = 0.0 if flops is None else flops
    products = None if flops is None else product_rate(device, encoder.compute_dtype)
    kept, computed = (ITEM_NBYTES[name] for name in (layout.dtype, encoder.compute_dtype))
    leaving = timings.rows * len(layout.layers) * layout.hidden_size * (computed if kept < 2 else min(kept, computed))
    on_card = device.type == "cuda"
    return (
        Stage("tokenise", spent.tokenize, float(_subwords(lengths, encoder)), "subwords", alone, "tokenising alone"),
        Stage("forward", spent.forward + spent.pool, operations, "FLOP", products, "matrix-multiply rate"),
        Stage(
            "copy",
            spent.copy,
            float(leaving if on_card else 0),
            "B",
            copy_rate(device) if on_card else None,
            "pinned copy rate" if on_card else "nothing leaves a CPU",
        ),
        Stage("cast", timings.cast, float(timings.nbytes), "B", copy_rate(torch.device("cpu")), "memory copy rate"),
        Stage("write", timings.write, float(timings.nbytes), "B", disk_rate(folder, nbytes=disk_nbytes), "disk rate"),
    )


def _tokenized_alone(made: Plan) -> tuple[NDArray[np.int64], float | None]:
    """Make the extraction's sentences again with nothing beside: their positions, and subwords a second if known."""
    encoder = made.encoder
    before = encoder.times.tokenize
    lengths = []
    for partition in range(made.layout.n_partitions):
        for passage in made.reader().passages(*made.layout.span(partition), encoder):
            tokenized = passage.tokenized
            bounds = tokenized.word_indptr[tokenized.sentence_indptr]
            lengths.append(np.diff(bounds)[np.unique(passage.spans.sentence)] + encoder.n_specials)
    positions = np.concatenate(lengths)
    seconds = encoder.times.tokenize - before
    return positions, _subwords(positions, encoder) / seconds if seconds > 0 else None


def _subwords(positions: NDArray[np.int64], encoder: Encoder) -> int:
    """Subwords of sentences of so many positions."""
    return int(positions.sum()) - len(positions) * encoder.n_specials
