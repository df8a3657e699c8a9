"""Store or compute again: what one pass over vectors costs either way, and after how many passes storing is cheaper."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from embstore.arguments import checked
from embstore.corpus import Corpus, open_corpus
from embstore.errors import check_whole
from embstore.extraction.estimate import BreakEven, drop_cached
from embstore.extraction.extract import extract
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.plan import Plan, plan
from embstore.extraction.recompute import encoder_of
from embstore.models.encoder import Encoder
from embstore.store import Store, open_store
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.writer import remove_store

PARTS, PART_SENTENCES = 3, 100  # the latter at least
FEW_SENTENCES = 8  # whose seconds are those of any store, however small
LEAST = 0.1  # of the seconds of a part, what is left without those
PAGE = 4096


@checked
def bench_breakeven(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    n_sentences: int = 2000,
    options: ExtractionOptions | None = None,
    device: str = "auto",
    compute_dtype: str = "auto",
    folder: str | Path | None = None,
) -> BreakEven:
    """Measure what it costs to store the vectors of some sentences, to read them and to compute them again.

    They are the first `n_sentences` of the corpus. Their vectors are stored in `folder`, a folder or the URL of a
    bucket, read from there after they have left the memory of the system, and computed again as a virtual store on a
    disk does; all is removed. Three parts of the sentences are measured one after the other, which says how much the
    figures vary. What any store takes, however small, is measured with a few sentences and left out, as it counts
    little for a large one. The other arguments are those of `plan`.
    """
    check_whole("n_sentences", n_sentences, 1)
    some = list(islice(open_corpus(corpus), n_sentences))
    is_remote = folder is not None and "://" in str(folder)
    count = PARTS if len(some) >= PARTS * PART_SENTENCES else 1
    parts = [some[number::count] for number in range(count)]
    if len(some) >= PART_SENTENCES:
        parts.insert(0, some[:: len(some) // FEW_SENTENCES])
    found: list[BreakEven] = []
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=None if is_remote else folder) as temporary:
            path = parse_location(f"{folder}/{uuid.uuid4().hex}.zarr" if is_remote else Path(temporary) / "full.zarr")
            made = plan(
                part,
                model=model,
                options=options,
                device=device,
                compute_dtype=compute_dtype,
                calibrate=False,
                progress=False,
            )
            model = made.encoder
            found.append(_measured(made, path, Path(temporary)))
    return BreakEven.of(found if len(found) == count else [_beyond(found[0], part) for part in found[1:]])


def _beyond(few: BreakEven, part: BreakEven) -> BreakEven:
    """Return what a part takes without what even a few words do."""
    compute, read, store = [
        max(one - other, LEAST * one) * part.n_rows / max(1, part.n_rows - few.n_rows)
        for one, other in (
            (part.compute_seconds, few.compute_seconds),
            (part.read_seconds, few.read_seconds),
            (part.store_seconds, few.store_seconds),
        )
    ]
    return BreakEven(part.n_rows, part.nbytes, compute, read, store)


def _measured(made: Plan, path: Path | ObjectPath, folder: Path) -> BreakEven:
    try:
        began = time.perf_counter()
        extract(made, path, progress=False)
        store = time.perf_counter() - began
        drop_cached(path)
        read = seconds_of_pass(open_store(path))
    finally:
        remove_store(path)
    virtual = folder / "virtual.zarr"
    extract(made, virtual, virtual=True, progress=False)
    encoder_of(open_store(virtual))  # loads the model, once
    compute = seconds_of_pass(open_store(virtual, cache=folder / "cache"))
    nbytes = made.layout.n_rows * made.metadata.row_nbytes
    return BreakEven(made.layout.n_rows, nbytes, compute, read, store)


def seconds_of_pass(store: Store) -> float:
    """Return the seconds that reading all vectors of a store takes, in order, layer by layer."""
    began = time.perf_counter()
    for site in store.sites:
        one = store.site(site)
        for layer in one.layers:
            for _, vectors in one.scan(layer, copy=False):
                np.ascontiguousarray(vectors).view(np.uint8).reshape(-1)[::PAGE].max()  # is read when it is used
    return time.perf_counter() - began
