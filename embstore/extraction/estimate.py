"""What an extraction will cost: bytes on disk, memory and time."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import Keep
from embstore.corpus.keep import blocks_of
from embstore.errors import StorageError
from embstore.extraction.options import ExtractionOptions, Window
from embstore.extraction.partition import (
    MAX_POOLED,
    Groups,
    Part,
    Passage,
    TextOptions,
    group_partitions,
    passage_nbytes,
    passage_words,
    truncated,
)
from embstore.extraction.survey import BLOCK, Survey
from embstore.extraction.windows import select_sentences
from embstore.models.encoder import Encoder, Spans, Tokenized
from embstore.store import Index, Metadata
from embstore.store.layout import ITEM_NBYTES, Layout, partition_rows
from embstore.store.storage.location import ObjectPath, parse_location

WRITERS = 4  # threads that write what a GPU encodes
HOST_BUFFERS = WRITERS + 2  # partitions in pinned memory: some are written while others are copied
BUFFERS = 2  # a group of partitions is filled while the previous one is written
MOST_BUFFERED_NBYTES = 2**30  # of several stores together; beyond it each has one buffer
MANY_ROWS = 10**9  # of a store whose size is not known yet
PASSAGE_FACTOR = 40  # bytes in memory for each byte of text: words as objects, subword ids, spans
WINDOW_WORD_NBYTES = 160  # bytes in memory for each word of the windows of a passage
SAMPLED_PASSAGES = 3
CALIBRATION_BATCHES = 3
CALIBRATION_SHARE = 0.01  # of the positions of an extraction that a calibration times
MOST_CALIBRATION_SHARE = 0.05  # where that is less than a few sentences
SMALL_SHARE = 0.03
CALIBRATIONS, CALIBRATION_SECONDS = 3, 0.3  # how often a CPU runs them at most, until they have taken this time
FEW_POSITIONS = 1024  # that a calibration has at least, where they are at most SMALL_SHARE of the extraction


@dataclass(frozen=True)
class Estimate:
    """The cost of an extraction.

    `store_nbytes` on disk; `memory_nbytes` at the peak, in main memory; `device_nbytes` on a GPU, and `pinned_nbytes`
    of main memory that the GPU copies into, next to `memory_nbytes`: None on a CPU; `free_nbytes` in `folder`, None for
    a bucket, which has no limit. `seconds`: time of the forward passes and the casts, None if it was not measured.
    `subwords_to_run`: what the model is given, equal windows once, without special subwords; `counted`: whether that is
    exact and not projected from a sample.
    """

    store_nbytes: int
    memory_nbytes: int
    free_nbytes: int | None
    folder: str
    subwords_per_second: float | None
    seconds: float | None
    subwords_to_run: int
    counted: bool
    device_nbytes: int | None = None
    pinned_nbytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        document = {**asdict(self), "subwords_counted": self.counted}
        absent = {name for name in ("device_nbytes", "pinned_nbytes") if document[name] is None}
        return {name: each for name, each in document.items() if name not in {"folder", "counted", *absent}}

    def lines(self) -> list[tuple[str, str]]:
        """Return the estimate as lines of text, each a name and a value."""
        free = "" if self.free_nbytes is None else f" of {format_nbytes(self.free_nbytes)} free"
        lines = [
            ("to run", f"{self.subwords_to_run:,} subwords" + ("" if self.counted else ", projected from a sample")),
            ("on disk", f"{format_nbytes(self.store_nbytes)}{free} in {self.folder}"),
            ("peak memory", format_nbytes(self.memory_nbytes)),
        ]
        if self.device_nbytes is not None and self.pinned_nbytes is not None:
            lines.append(("GPU memory", format_nbytes(self.device_nbytes)))
            lines.append(("pinned memory", f"{format_nbytes(self.pinned_nbytes)}, next to peak memory"))
        if self.seconds is not None and self.subwords_per_second is not None:
            lines.append(("time", f"{format_duration(self.seconds)} at {self.subwords_per_second:,.0f} subwords/s"))
        else:
            lines.append(("time", "not measured"))
        return lines

    def require_space(self, *, share: float = 1.0) -> None:
        """Raise StorageError if the store would not fit; `share`: the part of it that does not exist yet."""
        needed = round(share * self.store_nbytes)
        if self.free_nbytes is not None and needed > self.free_nbytes:
            raise StorageError(
                f"the store needs {format_nbytes(needed)}, but {self.folder} has {format_nbytes(self.free_nbytes)} "
                "free: choose fewer layers or words, or another folder"
            )


def estimate(
    found: Survey,
    index: Index,
    encoder: Encoder,
    options: ExtractionOptions,
    *,
    metadata: Metadata,
    text: TextOptions,
    store: str | Path | ObjectPath | None,
    calibrate: bool,
    n_stores: int = 1,
) -> Estimate:
    """Project the size of a store, and memory and time of an extraction into `n_stores` of its shape at once."""
    layout, groups = metadata.layout, Groups.of(metadata)
    place = None if store is None else parse_location(store)
    folder = place.parent if isinstance(place, ObjectPath) else existing_folder(place)
    counted = True
    if text.cuts_windows or (encoder.causal and options.keep != Keep(seed=options.keep.seed)):
        subwords, positions, counted, sample = count_windows(index, groups, encoder, text, seed=options.seed)
    elif found.context_subwords is not None:
        subwords, n_contexts = count_contexts(index, groups, found.context_subwords)
        positions = subwords + n_contexts * encoder.n_specials
        sample = next(Part.of(index, *groups.span(0)).passages(encoder, text)).tokenized
    else:
        sizes = found.spool.read("sentence/subwords", np.int32)  # sentences without a row are not run
        subwords = sum(int(sizes[index.source[some]].sum()) for some in blocks_of(len(index.source), BLOCK))
        positions = subwords + len(index.texts) * encoder.n_specials
        sample = truncated(encoder.tokenize(found.sample), text.limit)
    seconds = None
    if calibrate:
        rate = calibrated_rate(
            encoder, sample, positions, metadata=metadata, text=text, options=options, n_stores=n_stores
        )
        seconds = None if rate is None else positions / rate
    of_text, of_batches = memory_needed(metadata, encoder, text, n_stores=n_stores, longest=found.longest)
    on_device = encoder.casts_on_device
    ring = HOST_BUFFERS * n_stores * sum(each.partition_nbytes for each in metadata.layouts)
    return Estimate(
        store_nbytes=layout.n_rows * metadata.row_nbytes + index_nbytes(index),
        memory_nbytes=max(peak_nbytes(), resident_nbytes() + of_text + (0 if on_device else of_batches)),
        free_nbytes=shutil.disk_usage(folder).free if isinstance(folder, Path) else None,
        folder=str(folder),
        subwords_per_second=None if seconds is None else subwords / seconds,
        seconds=seconds,
        subwords_to_run=subwords,
        counted=counted,
        device_nbytes=of_batches if on_device else None,
        pinned_nbytes=ring if on_device else None,
    )


def count_contexts(index: Index, groups: Groups, subwords: NDArray[np.int64]) -> tuple[int, int]:
    """Return the subwords and the number of all contexts; one that the edge of a group divides is run twice."""
    assert index.contexts is not None
    bounds = index.contexts.indptr
    edges = np.array([groups.span(group)[0] for group in range(1, len(groups))], np.int64)
    times = np.searchsorted(edges, bounds[1:]) - np.searchsorted(edges, bounds[:-1], "right") + 1
    return int((subwords * times).sum()), int(times.sum())


def count_windows(
    index: Index, groups: Groups, encoder: Encoder, text: TextOptions, *, seed: int
) -> tuple[int, int, bool, Tokenized]:
    """Count the windows of an extraction: subwords, positions (special ones included), whether all rows were counted.

    If not, the counts are projected from the first passages of three groups of partitions, drawn by `seed`. The last
    item is a sample: the distinct windows of a passage.
    """
    drawn = np.random.default_rng(seed).permutation(len(groups))[:SAMPLED_PASSAGES]
    passages: list[Passage] = []
    for group in np.sort(drawn).tolist():
        some = Part.of(index, *groups.span(group)).passages(encoder, text)
        passages.extend(passage for _, passage in zip(range(SAMPLED_PASSAGES // len(drawn)), some, strict=False))
    n_rows = sum(passage.n_rows for passage in passages)
    subwords = sum(len(passage.tokenized.ids) for passage in passages)
    windows = sum(len(passage.tokenized.sentence_indptr) - 1 for passage in passages)
    factor = groups.layout.n_rows / n_rows
    positions = subwords + windows * encoder.n_specials
    return round(subwords * factor), round(positions * factor), n_rows == groups.layout.n_rows, passages[0].tokenized


def sample_typical_lengths(tokenized: Tokenized, *, n_specials: int, batch_subwords: int) -> Tokenized:
    """Return a batch of sentences from each third of the work, shortest first, each of about one length."""
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr]) + n_specials
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > n_specials]  # those that the model runs
    ends = np.cumsum(lengths[order])
    chosen = []
    for batch in range(CALIBRATION_BATCHES):
        middle = ends[-1] * (2 * batch + 1) // (2 * CALIBRATION_BATCHES)
        first, last = np.searchsorted(ends, [middle - batch_subwords // 2, middle + batch_subwords // 2])
        chosen.append(order[first : last + 1])
    return select_sentences(tokenized, np.unique(np.concatenate(chosen)))


def calibrated_rate(
    encoder: Encoder,
    sample: Tokenized,
    positions: int,
    *,
    metadata: Metadata,
    text: TextOptions,
    options: ExtractionOptions,
    n_stores: int = 1,
) -> float | None:
    """Measure positions per second of the encoder over typical sentences of a sample, special subwords included.

    They are a small share of the `positions` of the extraction, with as many vectors as these positions give; returns
    None if even a few sentences would be too many. They are run again where they take a CPU little time, whose median
    counts, and on a GPU, where the last counts. On a CPU the same threads cast what is stored, which is timed too, and
    what a batch takes however small it is, found by a short sentence, counts as often as the extraction has batches.
    """
    share = max(CALIBRATION_SHARE * positions, min(SMALL_SHARE * positions, FEW_POSITIONS))
    size = min(text.batch_subwords, int(share) // CALIBRATION_BATCHES)
    chosen = sample_typical_lengths(sample, n_specials=encoder.n_specials, batch_subwords=size)
    lengths = np.diff(chosen.sentence_bounds)
    n_positions = int(lengths.sum()) + int((lengths > 0).sum()) * encoder.n_specials
    if n_positions > MOST_CALIBRATION_SHARE * positions:
        return None
    spans = _typical_spans(chosen, text.unit)
    spans = spans.where(~encoder.without_vector(chosen, spans))
    if not len(spans.sentence):
        return None
    spans = _evenly(spans, round(metadata.n_rows * n_stores * n_positions / positions))
    seconds = _calibration_seconds(encoder, chosen, spans, metadata, options)
    shortest = int(spans.sentence[np.argmin(lengths[spans.sentence])])
    n_few = int(lengths[shortest]) + encoder.n_specials
    if encoder.device.type != "cpu" or not n_few < n_positions < text.batch_subwords:
        return n_positions / seconds
    own = spans.where(spans.sentence == shortest)
    few = select_sentences(chosen, np.array([shortest])), Spans(np.zeros_like(own.sentence), own.start, own.stop)
    few_seconds = _calibration_seconds(encoder, *few, metadata, options)
    each = max(seconds - few_seconds, seconds / 2) / (n_positions - n_few)
    return 1 / (each + max(0.0, few_seconds - n_few * each) / text.batch_subwords)


def _calibration_seconds(
    encoder: Encoder, chosen: Tokenized, spans: Spans, metadata: Metadata, options: ExtractionOptions
) -> float:
    from embstore.extraction.cast import Cast

    on_cpu = encoder.device.type == "cpu"
    casts = {each.site: Cast(each, center=_no_center(each)) for each in metadata.layouts if on_cpu}
    buffers = {site: cast.buffer(1) for site, cast in casts.items()}
    times: list[float] = []
    while not times or (len(times) < CALIBRATIONS and (not on_cpu or sum(times) < CALIBRATION_SECONDS)):
        start = time.perf_counter()
        for pooled in encoder.encode(chosen, spans, layers=metadata.layers, **options.encoding):
            if on_cpu:
                rows = pooled.rows % min(metadata.partition_rows, metadata.n_rows)
                casts[pooled.site].into(buffers[pooled.site], pooled.vectors, rows, None)
        times.append(time.perf_counter() - start)
    return statistics.median(times) if on_cpu else times[-1]


def _typical_spans(tokenized: Tokenized, unit: str) -> Spans:
    """Return the spans of all units of some sentences."""
    from embstore.models.batched import word_spans

    bounds = tokenized.sentence_bounds
    if unit == "sentence":
        some = np.flatnonzero(np.diff(bounds))
        return Spans(some, np.zeros_like(some), np.minimum(np.diff(bounds)[some], MAX_POOLED))
    if unit == "subword":
        sentence = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        start = np.arange(bounds[-1]) - bounds[sentence]
        return Spans(sentence, start, start + 1)
    return word_spans(tokenized, MAX_POOLED)


def _evenly(spans: Spans, count: int) -> Spans:
    """Return about `count` of some spans, at equal distances; all of them where there are no more."""
    n_spans = len(spans.sentence)
    some = np.unique(np.linspace(0, n_spans - 1, min(n_spans, max(1, count))).astype(np.int64))
    return Spans(spans.sentence[some], spans.start[some], spans.stop[some])


def _no_center(layout: Layout) -> NDArray[np.float32] | None:
    return np.zeros((len(layout.layers), layout.hidden_size), np.float32) if layout.dtype == "int8" else None


def index_nbytes(index: Index) -> int:
    """Return the bytes of all index arrays on disk, the occurrences of each word included."""
    by_word = 8 * (len(index.words) + 1 + len(index.type))
    return sum(column.nbytes for column in index.arrays().values()) + by_word


def buffers_of(layouts: Sequence[Layout], *, group: int, n_stores: int) -> int:
    """Return how many groups have buffers at a time: one is filled while the other is written, if memory allows it.

    `layouts`: of everything that is written of the rows of a partition; `group`: the partitions of a group.
    """
    if n_stores > 1 and BUFFERS * group * sum(layout.partition_nbytes for layout in layouts) > MOST_BUFFERED_NBYTES:
        return 1
    return BUFFERS


def buffered_nbytes(batch_subwords: int, *, n_features: int, dtype: str, n_stores: int) -> int:
    """Return the bytes of all buffers of groups of a large store for a batch size, from above: on a GPU they are there.

    `n_features`: of a row, in all layers and sites.
    """
    rows = partition_rows(MANY_ROWS, n_features, dtype)
    nbytes = rows * n_features * ITEM_NBYTES[dtype] * n_stores
    n_partitions = MANY_ROWS // rows
    size = group_partitions(n_partitions, partition_rows=rows, partition_nbytes=nbytes, batch_subwords=batch_subwords)
    return BUFFERS * size * nbytes


def memory_needed(
    metadata: Metadata, encoder: Encoder, text: TextOptions, *, n_stores: int, longest: int
) -> tuple[int, int]:
    """Return the bytes of a passage of text, and those of the weights, a batch and the buffers of partitions."""
    groups, layouts = Groups.of(metadata), metadata.layouts * n_stores
    n_buffers = groups.size * min(buffers_of(layouts, group=groups.size, n_stores=n_stores), len(groups))
    buffers = n_buffers * sum(layout.partition_nbytes for layout in layouts)
    batch = encoder.projected_nbytes(n_features=metadata.n_features, batch_subwords=text.batch_subwords)
    of_text = PASSAGE_FACTOR * passage_nbytes(text.batch_subwords)
    if text.cuts_windows:
        cut = sum(_window_words(width, longest) for width in text.contexts)
        n_rows = min(metadata.n_rows, groups.size * metadata.partition_rows)
        of_text += WINDOW_WORD_NBYTES * min(n_rows * cut, passage_words(text.batch_subwords))
    return of_text, buffers + batch


def _window_words(width: Window, longest: int) -> int:
    return longest if width is None else min(2 * width + 1, longest)


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


def existing_folder(path: str | Path | None) -> Path:
    """Return the nearest existing folder above a path, or the current folder."""
    folder = Path(path).absolute().parent if path is not None else Path.cwd()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def format_nbytes(nbytes: int) -> str:
    """Format bytes in the largest binary unit below them."""
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:,.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
