"""What an extraction will cost: bytes on disk, memory and time."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embstore.errors import StorageError
from embstore.extraction.options import Options
from embstore.extraction.partition import PartitionReader, passage_nbytes, passage_words, truncated
from embstore.extraction.survey import Survey
from embstore.extraction.workload import count_windows, first_sentences, positions_a_second, windows_of_typical_lengths
from embstore.models.encoder import Encoder
from embstore.store import Index, Layout, Metadata
from embstore.store.storage.location import ObjectPath, parse_location

BUFFERS = 2  # a partition is filled while the one before it is written
MOST_BUFFERED_NBYTES = 2**30  # of several stores together; beyond it each has one buffer
PASSAGE_FACTOR = 40  # bytes held a byte of text: words as objects, subword ids, spans
WINDOW_WORD_NBYTES = 160  # held a word of the windows of a passage: what is cut, what is run, what waits


@dataclass(frozen=True)
class Estimate:
    """`store_nbytes` on disk, `memory_nbytes` at the peak (main memory), `free_nbytes` where the store will stand,
    None in a bucket, which is never full.

    `seconds`: time of the forward passes from a calibration, None where none was made. `subwords_to_run`: what the
    model is given, equal windows once, special subwords not counted; `counted`: not projected from a sample.
    """

    store_nbytes: int
    memory_nbytes: int
    free_nbytes: int | None
    folder: str
    subwords_per_second: float | None
    seconds: float | None
    subwords_to_run: int
    counted: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "store_nbytes": self.store_nbytes,
            "memory_nbytes": self.memory_nbytes,
            "free_nbytes": self.free_nbytes,
            "subwords_per_second": self.subwords_per_second,
            "seconds": self.seconds,
            "subwords_to_run": self.subwords_to_run,
            "subwords_counted": self.counted,
        }

    def lines(self) -> list[tuple[str, str]]:
        told = [
            ("to run", f"{self.subwords_to_run:,} subwords" + ("" if self.counted else ", projected from a sample")),
            ("on disk", self._room()),
            ("peak memory", size(self.memory_nbytes)),
        ]
        if self.seconds is not None and self.subwords_per_second is not None:
            told.append(("time", f"{duration(self.seconds)} at {self.subwords_per_second:,.0f} subwords/s"))
        return told

    def _room(self) -> str:
        if self.free_nbytes is None:
            return f"{size(self.store_nbytes)} in {self.folder}"
        return f"{size(self.store_nbytes)} of {size(self.free_nbytes)} free in {self.folder}"

    def require_space(self, *, fresh: float = 1.0) -> None:
        """Raise StorageError where the store would not fit; `fresh`: the share of it that does not stand yet."""
        needed = round(fresh * self.store_nbytes)
        if self.free_nbytes is not None and needed > self.free_nbytes:
            raise StorageError(
                f"the store needs {size(needed)}, but {self.folder} has {size(self.free_nbytes)} free: "
                "choose fewer layers or words, or another folder"
            )


def estimate(
    metadata: Metadata,
    found: Survey,
    encoder: Encoder,
    options: Options,
    *,
    index: Index,
    reader: PartitionReader,
    limit: int,
    store: str | Path | ObjectPath | None,
    calibrate: bool,
    stores: int = 1,
) -> Estimate:
    """Project the bytes of a store, and memory and time of an extraction into `stores` of its shape at once."""
    layout = metadata.layout
    place = None if store is None else parse_location(store)
    folder = place.parent if isinstance(place, ObjectPath) else existing_folder(place)
    size = options.batch_subwords
    if options.cuts_windows:
        work = count_windows(reader, layout, encoder, seed=options.seed)
        subwords, positions, counted = work.subwords, work.positions, work.counted
        sample = windows_of_typical_lengths(work.sample, specials=encoder.n_specials, batch_subwords=size)
    else:
        chosen = len(index.texts.data) / max(1, found.spool.length("text"))  # sentences without a row are not run
        subwords, counted = round(found.subwords * chosen), len(index.texts) == found.sentences
        positions = subwords + len(index.texts) * encoder.n_specials
        sample = first_sentences(truncated(encoder.tokenize(found.sample), limit), batch_subwords=size)
    seconds = None
    if calibrate:
        seconds = positions / positions_a_second(encoder, sample, layers=layout.layers, options=options)
    return Estimate(
        store_nbytes=layout.n_rows * layout.row_nbytes + index_nbytes(index),
        memory_nbytes=memory_nbytes(metadata, encoder, options, stores=stores, longest=found.longest),
        free_nbytes=shutil.disk_usage(folder).free if isinstance(folder, Path) else None,
        folder=str(folder),
        subwords_per_second=None if seconds is None else subwords / seconds,
        seconds=seconds,
        subwords_to_run=subwords,
        counted=counted,
    )


def index_nbytes(index: Index) -> int:
    """Bytes of all index arrays on disk, the words' occurrences included."""
    by_word = 8 * (len(index.words) + 1 + len(index.type))
    return sum(column.nbytes for column in index.arrays().values()) + by_word


def buffers_of(layout: Layout, *, stores: int) -> int:
    """How many buffers each store has: one is filled while the other is written, where memory allows it."""
    if stores > 1 and BUFFERS * stores * layout.partition_nbytes > MOST_BUFFERED_NBYTES:
        return 1
    return BUFFERS


def memory_nbytes(metadata: Metadata, encoder: Encoder, options: Options, *, stores: int, longest: int) -> int:
    """The peak: what the process holds now, the partition buffers, a passage of text and the batch in work."""
    layout = metadata.layout
    buffers = stores * min(buffers_of(layout, stores=stores), layout.n_partitions) * layout.partition_nbytes
    batch = encoder.projected_nbytes(layers=layout.layers, batch_subwords=options.batch_subwords)
    growing = buffers + batch + PASSAGE_FACTOR * passage_nbytes(options.batch_subwords)
    if options.cuts_windows:
        cut = sum(longest if width is None else min(2 * width + 1, longest) for width in options.contexts)
        rows = min(layout.n_rows, layout.partition_rows)
        growing += WINDOW_WORD_NBYTES * min(rows * cut, passage_words(options.batch_subwords))
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
