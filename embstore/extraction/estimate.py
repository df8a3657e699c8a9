"""What an extraction will cost: bytes on disk, memory and time."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from embstore.corpus import Keep
from embstore.corpus.keep import blocks_of
from embstore.errors import StorageError
from embstore.extraction.partition import MAX_POOLED, Groups, Part, Reader, group_partitions, passage_sizes, truncated
from embstore.extraction.survey import BLOCK, Survey
from embstore.models.encoder import Tokenized
from embstore.store import Index, Metadata
from embstore.store.layout import ITEM_NBYTES, partition_rows
from embstore.store.storage.location import ObjectPath, parse_location

WRITERS = 4  # threads that write what a GPU encodes
HOST_BUFFERS = WRITERS + 2  # partitions in pinned memory: some are written while others are copied
BUFFERS = 2  # a group of partitions is filled while the previous one is written
MANY_ROWS = 10**9  # of a store whose size is not known yet
PASSAGE_FACTOR = 160  # bytes in memory for each subword: ids, spans, and words as objects where a model reads words
WINDOW_WORD_NBYTES = 160  # bytes in memory for each word of the windows of a passage
SAMPLED_PASSAGES = 3
CALIBRATION_BATCHES = 3
CALIBRATION_SHARE = 0.01  # of the positions of an extraction that a calibration times
MOST_CALIBRATION_SHARE = 0.05  # where that is less than a few sentences
SMALL_SHARE = 0.03
CALIBRATIONS, CALIBRATION_SECONDS = 3, 0.3  # how often they are run at most, until they have taken this time
FEW_POSITIONS = 1024  # that a calibration has at least, where they are at most SMALL_SHARE of the extraction


@dataclass(frozen=True)
class Estimate:
    """The cost of an extraction.

    `store_nbytes` on disk; `memory_nbytes` at the peak, in main memory; `device_nbytes` on a GPU, None on a CPU;
    `free_nbytes` in `folder`, None for a bucket, which has no limit. `seconds`: time of the forward passes and the
    casts, None if it was not measured. `subwords_to_run`: what the model is given, equal windows once, without special
    subwords; `subwords_counted`: whether that is exact and not projected from a sample.
    """

    store_nbytes: int
    memory_nbytes: int
    free_nbytes: int | None
    folder: str
    subwords_per_second: float | None
    seconds: float | None
    subwords_to_run: int
    subwords_counted: bool
    device_nbytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        del document["folder"]
        return {name: value for name, value in document.items() if name != "device_nbytes" or value is not None}

    def lines(self) -> list[tuple[str, str]]:
        """Return the disk, memory and time that are needed, as lines of a name and a value."""
        free = "" if self.free_nbytes is None else f" of {format_nbytes(self.free_nbytes)} free"
        disk = f"{format_nbytes(self.store_nbytes)}{free} in {self.folder}"
        time = "not measured"
        if self.seconds is not None:
            time = f"{format_duration(self.seconds)} at {self.subwords_per_second:,.0f} subwords/s"
        return [("on disk", f"{disk}; {format_nbytes(self.memory_nbytes)} of memory"), ("time", time)]

    def require_space(self) -> None:
        """Raise StorageError if the store would not fit."""
        if self.free_nbytes is not None and self.store_nbytes > self.free_nbytes:
            needed, free = format_nbytes(self.store_nbytes), format_nbytes(self.free_nbytes)
            advice = "choose fewer layers or words, or another folder"
            raise StorageError(f"the store needs {needed}, but {self.folder} has {free} free: {advice}")


def estimate(
    content: Survey,
    index: Index,
    reader: Reader,
    *,
    metadata: Metadata,
    store: str | Path | ObjectPath | None,
    calibrate: bool,
) -> Estimate:
    """Project the size of a store, and memory and time of its extraction."""
    encoder, options, limit = reader.encoder, reader.options, reader.limit
    layout, groups = metadata.layout, Groups.of(metadata)
    window, batch = options.context_window, options.batch_subwords or 0
    place = None if store is None else parse_location(store)
    if isinstance(place, ObjectPath):
        folder: Path | ObjectPath = place.parent
    else:
        folder = next(filter(Path.is_dir, [Path.cwd()] if place is None else place.absolute().parents))
    counted = True
    if window is not None or (encoder.causal and options.keep != Keep(seed=options.keep.seed)):
        subwords, positions, counted, sample = count_windows(index, groups, reader)
    elif index.contexts is not None:
        contexts, bounds = index.contexts, index.contexts.indptr
        edges = np.array([groups.span(group)[0] for group in range(1, len(groups))], np.int64)
        # A context that the edge of a group divides is run twice
        times = np.searchsorted(edges, bounds[1:]) - np.searchsorted(edges, bounds[:-1], "right") + 1
        subwords = int(((contexts.stop - contexts.start) * times).sum())
        positions = subwords + int(times.sum()) * encoder.n_specials
        sample = next(reader.passages(Part.of(index, *groups.span(0)))).tokenized
    else:
        sizes = content["n_subwords"]  # sentences without a row are not run
        blocks = blocks_of(len(index.source), BLOCK)
        subwords = sum(int(np.minimum(sizes[index.source[some]], limit).sum()) for some in blocks)
        positions = subwords + len(index.text) * encoder.n_specials
        sample = truncated(encoder.tokenize(content.sample, by=options.tokenize).tokenized, limit)
    rate = calibrated_rate(reader, sample, positions, metadata.layers) if calibrate else None
    seconds = None if rate is None else positions / rate
    partitions = sum(layout.partition_nbytes for layout in metadata.layouts)
    of_batches = groups.size * min(BUFFERS, len(groups)) * partitions
    of_batches += encoder.projected_nbytes(n_features=metadata.n_features, batch_subwords=batch)
    most_subwords, most_words = passage_sizes(batch)
    of_text = PASSAGE_FACTOR * most_subwords
    if window is not None:
        n_rows = min(metadata.n_rows, groups.size * metadata.partition_rows)
        words = n_rows * min(2 * window + 1, content.longest)
        of_text += WINDOW_WORD_NBYTES * min(words, most_words)
    on_device = encoder.casts_on_device
    of_host = HOST_BUFFERS * partitions if on_device else of_batches  # pinned memory that a GPU copies into
    of_index = sum(column.nbytes for column in index.arrays().values())
    of_words = 8 * (len(index.words) + 1 + len(index.type))  # the occurrences of each word
    return Estimate(
        store_nbytes=layout.n_rows * metadata.row_nbytes + of_index + of_words,
        memory_nbytes=max(peak_nbytes(), resident_nbytes() + of_text + of_host),
        free_nbytes=shutil.disk_usage(folder).free if isinstance(folder, Path) else None,
        folder=str(folder),
        subwords_per_second=None if seconds is None else subwords / seconds,
        seconds=seconds,
        subwords_to_run=subwords,
        subwords_counted=counted,
        device_nbytes=of_batches if on_device else None,
    )


def count_windows(index: Index, groups: Groups, reader: Reader) -> tuple[int, int, bool, Tokenized]:
    """Count the windows of an extraction: subwords, positions (special ones included), whether all rows were counted.

    If not, the counts are projected from the first passages of three groups of partitions, drawn by the seed. The last
    item is a sample: the distinct windows of a passage.
    """
    drawn = np.random.default_rng(reader.options.seed).permutation(len(groups))[:SAMPLED_PASSAGES]
    parts = (Part.of(index, *groups.span(group)) for group in np.sort(drawn).tolist())
    each = SAMPLED_PASSAGES // len(drawn)
    passages = list(chain.from_iterable(islice(reader.passages(part), each) for part in parts))
    n_rows = sum(passage.n_rows for passage in passages)
    subwords = sum(len(passage.tokenized.ids) for passage in passages)
    windows = sum(len(passage.tokenized) for passage in passages)
    factor = groups.layout.n_rows / n_rows
    positions = subwords + windows * reader.encoder.n_specials
    return round(subwords * factor), round(positions * factor), n_rows == groups.layout.n_rows, passages[0].tokenized


def calibrated_rate(reader: Reader, sample: Tokenized, positions: int, layers: Sequence[int]) -> float | None:
    """Measure positions per second of the encoder, special subwords included, on a batch from each third of the work.

    The batches are a small share of the `positions` of the extraction, and are run again where they take little time;
    the fastest run counts. Returns None if even a few sentences would be too many.
    """
    from embstore.models.batched import word_spans
    from embstore.models.running import wait

    encoder, options = reader.encoder, reader.options
    share = max(CALIBRATION_SHARE * positions, min(SMALL_SHARE * positions, FEW_POSITIONS))
    size = min(options.batch_subwords or 1, int(share) // CALIBRATION_BATCHES)
    lengths = np.diff(sample.bounds) + encoder.n_specials
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > encoder.n_specials]  # those that the model runs
    ends = np.cumsum(lengths[order])
    middles = [ends[-1] * (2 * batch + 1) // (2 * CALIBRATION_BATCHES) for batch in range(CALIBRATION_BATCHES)]
    places = [np.searchsorted(ends, [middle - size // 2, middle + size // 2]) for middle in middles]
    some = np.unique(np.concatenate([order[first : last + 1] for first, last in places]))
    n_positions = int(lengths[some].sum())
    if n_positions > MOST_CALIBRATION_SHARE * positions:
        return None
    chosen = sample.runs(sample.bounds[some], sample.bounds[some + 1])
    spans = word_spans(chosen, MAX_POOLED)
    if not len(spans.sentence):
        return None
    arguments = {**options.encoding, **({"on_device": True} if encoder.casts_on_device else {})}
    times: list[float] = []
    most = max(1, min(CALIBRATIONS, int(SMALL_SHARE * positions) // n_positions))
    while len(times) < most and sum(times) < CALIBRATION_SECONDS:
        start = time.perf_counter()
        for pooled in encoder.encode(chosen, spans, layers=layers, **arguments):
            del pooled
        wait(encoder.device)
        times.append(time.perf_counter() - start)
    return n_positions / min(times)


def buffered_nbytes(batch_subwords: int, *, n_features: int, dtype: str) -> int:
    """Return the bytes of all buffers of groups of a large store for a batch size, from above: on a GPU they are there.

    `n_features`: of a row, in all layers and sites.
    """
    rows = partition_rows(MANY_ROWS, n_features, dtype)
    nbytes = rows * n_features * ITEM_NBYTES[dtype]
    n_partitions = MANY_ROWS // rows
    size = group_partitions(n_partitions, partition_rows=rows, partition_nbytes=nbytes, batch_subwords=batch_subwords)
    return BUFFERS * size * nbytes


def peak_nbytes() -> int:
    """Return the largest resident size of this process so far; 0 on Windows, where it is not measured."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_nbytes() -> int:
    """Return the resident size of this process now, or its peak on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_nbytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def format_nbytes(nbytes: int) -> str:
    """Format bytes in the largest binary unit below them."""
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:,.1f} {unit}"


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
