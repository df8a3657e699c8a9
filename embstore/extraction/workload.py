"""How much an extraction gives the model to do: subwords to run, counted or projected, and the rate of a sample."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from embstore.extraction.options import Options
from embstore.extraction.partition import PartitionReader
from embstore.extraction.windows import select_sentences
from embstore.models.encoder import Encoder, Spans, Tokenized
from embstore.store import Layout

SAMPLED_PASSAGES = 3
CALIBRATION_BATCHES = 3


@dataclass(frozen=True)
class Workload:
    """What the windows of an extraction come to: `subwords` and `positions`, these with the special ones.

    `counted`: over all rows, else projected from `sample`, the distinct windows of some passages.
    """

    subwords: int
    positions: int
    counted: bool
    sample: Tokenized


def count_windows(reader: PartitionReader, layout: Layout, encoder: Encoder, *, seed: int) -> Workload:
    """Cut the windows of up to three partitions' first passages, drawn by `seed`; exact where that is all."""
    drawn = np.random.default_rng(seed).permutation(layout.n_partitions)[:SAMPLED_PASSAGES]
    rows = subwords = windows = 0
    sample: Tokenized | None = None
    for partition in np.sort(drawn).tolist():
        wanted = SAMPLED_PASSAGES // len(drawn)
        for passage in reader.passages(*layout.span(partition), encoder):
            sample = sample or passage.tokenized
            rows += passage.rows
            subwords += len(passage.tokenized.ids)
            windows += len(passage.tokenized.sentence_indptr) - 1
            wanted -= 1
            if not wanted:
                break
    assert sample is not None
    grown = layout.n_rows / rows
    positions = subwords + windows * encoder.n_specials
    return Workload(round(subwords * grown), round(positions * grown), rows == layout.n_rows, sample)


def first_sentences(tokenized: Tokenized, *, batch_subwords: int) -> Tokenized:
    """As many sentences as fill the batches of a calibration, in corpus order."""
    base = tokenized.word_indptr[tokenized.sentence_indptr]
    count = int(np.searchsorted(np.cumsum(np.diff(base)), CALIBRATION_BATCHES * batch_subwords)) + 1
    return Tokenized(
        tokenized.ids[: base[min(count, len(base) - 1)]],
        tokenized.word_indptr[: tokenized.sentence_indptr[min(count, len(base) - 1)] + 1],
        tokenized.sentence_indptr[: count + 1],
    )


def windows_of_typical_lengths(tokenized: Tokenized, *, specials: int, batch_subwords: int) -> Tokenized:
    """A batch of windows from each third of the work, shortest first, each of about one length."""
    base = tokenized.word_indptr[tokenized.sentence_indptr]
    lengths = np.diff(base) + specials
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    chosen = []
    for batch in range(CALIBRATION_BATCHES):
        middle = ends[-1] * (2 * batch + 1) // (2 * CALIBRATION_BATCHES)
        first, last = np.searchsorted(ends, [middle - batch_subwords // 2, middle + batch_subwords // 2])
        chosen.append(order[first : last + 1])
    return select_sentences(tokenized, np.unique(np.concatenate(chosen)))


def positions_a_second(encoder: Encoder, sample: Tokenized, *, layers: tuple[int, ...], options: Options) -> float:
    """Positions per second of the encoder over some sentences, special subwords counted, the first time not."""
    lengths = np.diff(sample.word_indptr[sample.sentence_indptr])
    sentences = np.flatnonzero(lengths)
    spans = Spans(sentences, np.zeros(len(sentences), np.int64), np.ones(len(sentences), np.int64))
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        for _pooled in encoder.encode(
            sample,
            spans,
            layers=layers,
            pooling=options.pooling,
            batch_subwords=options.batch_subwords,
            **options.encoding,
        ):
            pass
        seconds.append(time.perf_counter() - start)
    return float(lengths.sum() + len(sentences) * encoder.n_specials) / seconds[-1]
