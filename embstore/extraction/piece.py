"""A partition as it travels to a worker: the part of the index that its rows are made from, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.extraction.options import Options
from embstore.extraction.partition import PartitionReader, Passage
from embstore.extraction.survey import ranges
from embstore.models.encoder import Encoder
from embstore.store import Index, Layout, Strings


@dataclass(frozen=True)
class Piece:
    """One partition: the index of all its sentences, texts too, counted from `first_row` and `first_sentence`.

    `rows`: the partition's own, `[start, stop)` of the store.
    """

    partition: int
    rows: tuple[int, int]
    first_row: int
    first_sentence: int
    index: Index

    @property
    def sentences(self) -> tuple[int, int]:
        """The sentences `[start, stop)` of the store in which its rows stand."""
        return self.first_sentence, self.first_sentence + len(self.index.texts)

    def passages(self, encoder: Encoder, options: Options, *, limit: int) -> Iterator[Passage]:
        """Yield the passages of the partition, the same as those that are read from the whole index."""
        reader = PartitionReader(
            self.index,
            unit=options.unit,
            limit=limit,
            contexts=options.contexts,
            causal=encoder.causal,
            batch_subwords=options.batch_subwords,
            first_row=self.first_row,
            first_sentence=self.first_sentence,
        )
        start, stop = self.rows
        return reader.passages(start - self.first_row, stop - self.first_row, encoder)


def cut_pieces(index: Index, layout: Layout, partitions: Iterable[int]) -> Iterator[Piece]:
    """Cut partitions out of an index, one after the other as they are asked for."""
    for partition in partitions:
        yield cut_piece(index, layout, partition)


def cut_piece(index: Index, layout: Layout, partition: int) -> Piece:
    start, stop = layout.span(partition)
    first, last = int(index.sentence[start]), int(index.sentence[stop - 1]) + 1
    rows = slice(int(index.indptr[first]), int(index.indptr[last]))
    types, renumbered = np.unique(np.asarray(index.type[rows]), return_inverse=True)
    part = Index(
        type=renumbered.astype(np.int32),
        sentence=np.asarray(index.sentence[rows]) - first,
        position=np.array(index.position[rows]),
        subwords=np.array(index.subwords[rows]),
        words=_some(index.words, types.astype(np.int64)),
        texts=_run(index.texts, first, last),
        indptr=np.asarray(index.indptr[first : last + 1]) - rows.start,
        source=np.array(index.source[first:last]),
    )
    return Piece(partition, (start, stop), rows.start, first, part)


def _run(strings: Strings, first: int, last: int) -> Strings:
    offsets = np.asarray(strings.offsets[first : last + 1])
    return Strings(offsets - offsets[0], np.array(strings.data[offsets[0] : offsets[-1]]))


def _some(strings: Strings, chosen: NDArray[np.int64]) -> Strings:
    starts, stops = strings.offsets[chosen], strings.offsets[chosen + 1]
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    return Strings(offsets, np.asarray(strings.data[ranges(starts, stops)]))
