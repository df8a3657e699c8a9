"""What an extraction will cost: bytes on disk, memory and time."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embstore.errors import StorageError
from embstore.extraction.options import Options
from embstore.extraction.partition import WINDOW_NBYTES, truncated
from embstore.extraction.survey import Survey
from embstore.models.encoder import Encoder, Spans, Tokenized
from embstore.store import Index, Metadata

BUFFERS = 2  # a partition is filled while the one before it is written
WINDOW_FACTOR = 40  # bytes held a byte of text: words as objects, subword ids, spans
CALIBRATION_BATCHES = 3


@dataclass(frozen=True)
class Estimate:
    """`store_nbytes` on disk, `memory_nbytes` at the peak (main memory), `free_nbytes` where the store will stand.

    `seconds`: time of the forward passes from a calibration, None where none was made.
    """

    store_nbytes: int
    memory_nbytes: int
    free_nbytes: int
    folder: str
    subwords_per_second: float | None
    seconds: float | None

    def as_json(self) -> dict[str, Any]:
        return {
            "store_nbytes": self.store_nbytes,
            "memory_nbytes": self.memory_nbytes,
            "free_nbytes": self.free_nbytes,
            "subwords_per_second": self.subwords_per_second,
            "seconds": self.seconds,
        }

    def lines(self) -> list[tuple[str, str]]:
        told = [
            ("on disk", f"{size(self.store_nbytes)} of {size(self.free_nbytes)} free in {self.folder}"),
            ("peak memory", size(self.memory_nbytes)),
        ]
        if self.seconds is not None and self.subwords_per_second is not None:
            told.append(("time", f"{duration(self.seconds)} at {self.subwords_per_second:,.0f} subwords/s"))
        return told

    def require_space(self) -> None:
        """Raise StorageError where the store would not fit."""
        if self.store_nbytes > self.free_nbytes:
            raise StorageError(
                f"the store needs {size(self.store_nbytes)}, but {self.folder} has {size(self.free_nbytes)} free: "
                "choose fewer layers or words, or another folder"
            )


def estimate(
    metadata: Metadata,
    found: Survey,
    encoder: Encoder,
    options: Options,
    *,
    index: Index,
    limit: int,
    store: str | Path | None,
    calibrate: bool,
) -> Estimate:
    """Project bytes, memory and time of an extraction."""
    layout = metadata.layout
    folder = existing_folder(store)
    rate = None
    if calibrate:
        tokenized = truncated(encoder.tokenize(found.sample), limit)
        rate = calibrated_rate(encoder, tokenized, layers=layout.layers, options=options)
    return Estimate(
        store_nbytes=layout.rows * layout.row_nbytes + index_nbytes(index),
        memory_nbytes=memory_nbytes(metadata, encoder, options),
        free_nbytes=shutil.disk_usage(folder).free,
        folder=str(folder),
        subwords_per_second=rate,
        seconds=None if rate is None else found.subwords / rate,
    )


def index_nbytes(index: Index) -> int:
    """Bytes of all index arrays on disk, the words' occurrences included."""
    by_word = 8 * (len(index.words) + 1 + len(index.type))
    return sum(column.nbytes for column in index.arrays().values()) + by_word


def memory_nbytes(metadata: Metadata, encoder: Encoder, options: Options) -> int:
    """The peak: what the process holds now, the partition buffers, a window of text and the batch in work."""
    layout = metadata.layout
    buffers = min(BUFFERS, layout.partitions) * layout.partition_nbytes
    batch = encoder.projected_nbytes(layers=layout.layers, batch_subwords=options.batch_subwords)
    growing = buffers + batch + WINDOW_FACTOR * WINDOW_NBYTES
    return max(peak_nbytes(), resident_nbytes() + growing)


def peak_nbytes() -> int:
    """The largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_nbytes() -> int:
    """The resident size of this process now (its peak where the system does not tell)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_nbytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def calibrated_rate(encoder: Encoder, tokenized: Tokenized, *, layers: tuple[int, ...], options: Options) -> float:
    """Subwords per second of the encoder over a few batches of the sample, the first one not counted."""
    base = tokenized.word_indptr[tokenized.sentence_indptr]
    lengths = np.diff(base)
    ends = np.cumsum(lengths)
    count = int(np.searchsorted(ends, CALIBRATION_BATCHES * options.batch_subwords)) + 1
    sentences = np.flatnonzero(lengths[:count])
    sample = Tokenized(
        tokenized.ids[: base[min(count, len(lengths))]],
        tokenized.word_indptr[: tokenized.sentence_indptr[min(count, len(lengths))] + 1],
        tokenized.sentence_indptr[: count + 1],
    )
    spans = Spans(sentences, np.zeros(len(sentences), np.int64), np.ones(len(sentences), np.int64))
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        for _pooled in encoder.encode(
            sample, spans, layers=layers, pooling=options.pooling, batch_subwords=options.batch_subwords
        ):
            pass
        seconds.append(time.perf_counter() - start)
    return float(lengths[:count].sum()) / seconds[-1]


def existing_folder(path: str | Path | None) -> Path:
    """The nearest folder that exists above the store to be."""
    folder = Path(path).absolute().parent if path is not None else Path.cwd()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def size(nbytes: int) -> str:
    """Bytes in the unit that reads best, 1024 to a step."""
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
