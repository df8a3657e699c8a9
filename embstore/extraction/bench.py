"""How fast an extraction is with a user's own model and text, and which stage takes the time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus, open_corpus
from embstore.errors import InvalidValueError
from embstore.extraction.pipeline import Timings, extract
from embstore.extraction.plan import plan
from embstore.models.encoder import Encoder, Pooling


@dataclass(frozen=True)
class ExtractionRate:
    """The figures of one measured extraction; `seconds` is the time from the plan made to the store closed."""

    words: int
    subwords: int
    nbytes: int
    seconds: float
    plan_seconds: float
    timings: Timings

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
) -> ExtractionRate:
    """Extract the first sentences of a corpus into a store that is thrown away, and measure it."""
    if sentences < 1:
        raise InvalidValueError(f"sentences {sentences} is not allowed: give 1 or more")
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
    return ExtractionRate(made.words, timings.subwords, timings.nbytes, seconds, planned - start, timings)
