"""Store or compute again: what one pass over vectors costs either way, and after how many passes storing is cheaper."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.corpus import Corpus, open_corpus
from embstore.errors import check_whole
from embstore.extraction.estimate import BreakEven, disk_rates, drop_cached
from embstore.extraction.extract import extract
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.plan import plan
from embstore.extraction.recompute import encoder_of
from embstore.extraction.worker import Timings
from embstore.models.encoder import Encoder
from embstore.store import Store, open_store
from embstore.store.storage.location import parse_location
from embstore.store.writer import remove_store

WRITTEN_NBYTES = 2**28


@checked
def bench_breakeven(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    sentences: int = 2000,
    options: ExtractionOptions | None = None,
    device: str = "auto",
    compute_dtype: str = "auto",
    folder: str | Path | None = None,
) -> BreakEven:
    """Measure what it costs to store the vectors of the first sentences of a corpus, to read and to compute them again.

    They are stored in `folder`, a folder or the URL of a bucket, read from there after they have left the memory of the
    system, and computed again as a virtual store on a disk does; all is removed. How fast a disk writes is measured
    with 256 MiB (or 64 times the vectors, if that is less), since many disks are several times as fast for the first
    ones. The other arguments are those of `plan`.
    """
    check_whole("sentences", sentences, 1)
    some = list(islice(open_corpus(corpus), sentences))
    is_remote = folder is not None and "://" in str(folder)
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=None if is_remote else folder) as temporary:
        virtual, cache = Path(temporary) / "virtual.zarr", Path(temporary) / "cache"
        path = parse_location(f"{folder}/{uuid.uuid4().hex}.zarr" if is_remote else Path(temporary) / "full.zarr")
        where: dict[str, Any] = {"device": device, "compute_dtype": compute_dtype}
        made = plan(some, model=model, options=options, **where, calibrate=False, progress=False)
        timings = Timings()
        try:
            extract(made, path, progress=False, timings=timings)
            drop_cached(path)
            read = seconds_of_pass(open_store(path))
            write = timings.write if is_remote else timings.nbytes / _write_rate(temporary, timings.nbytes)
        finally:
            remove_store(path)
        extract(made, virtual, virtual=True, progress=False)
        encoder_of(open_store(virtual))  # loads the model, once
        compute = seconds_of_pass(open_store(virtual, cache=cache))
    return BreakEven(made.layout.n_rows, timings.nbytes, compute, read, write)


def _write_rate(folder: str, nbytes: int) -> float:
    return disk_rates(Path(folder), min(WRITTEN_NBYTES, 64 * nbytes))[0]


def seconds_of_pass(store: Store) -> float:
    """Return the seconds that reading all vectors of a store takes, in order, layer by layer."""
    began = time.perf_counter()
    for site in store.sites:
        one = store.site(site)
        for layer in one.layers:
            for _, vectors in one.scan(layer, copy=False):
                vectors.max()  # a page of a map is read when it is used
    return time.perf_counter() - began
