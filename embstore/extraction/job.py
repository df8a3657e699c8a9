"""What a worker does with a partition: encode its rows, write its shard, report its record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import LifoQueue
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.allocator import freed_memory_kept
from embstore.errors import ExecutorError, StoreNotFoundError, WorkerWarning
from embstore.extraction.cast import Cast
from embstore.extraction.encoder_recipe import EncoderRecipe
from embstore.extraction.encoding import iter_encoded
from embstore.extraction.options import Options
from embstore.extraction.partition import Passage
from embstore.extraction.piece import Piece
from embstore.extraction.prefetch import prefetched
from embstore.extraction.versions import software
from embstore.models.encoder import Encoder
from embstore.store import Layout
from embstore.store.storage.location import ObjectPath
from embstore.store.writer import PartitionWriter, Record, sees_mark

PIECES_AT_A_TIME = 2  # one is written as the next is encoded
EXACT = "embstore"

T = TypeVar("T")


@dataclass(frozen=True)
class Written:
    """A partition that is written but not committed: its record, and the subwords that were run."""

    record: Record
    subwords: int


@dataclass(frozen=True)
class ExtractionJob:
    """What all partitions of a plan need on a worker; `encoder` stays in the process that made the plan.

    `mark`: stands in the store's lock file, so that a worker knows the store from one of the same name on a disk of
    its own. `center`: float32 [layer, feature], for int8.
    """

    path: Path | ObjectPath
    mark: str
    recipe_sha256: str
    layout: Layout
    options: Options
    limit: int
    center: NDArray[np.float32] | None
    recipe: EncoderRecipe
    software: Mapping[str, str]
    encoder: Encoder | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "encoder": None}

    @property
    def pieces_at_a_time(self) -> int:
        return PIECES_AT_A_TIME

    def begin(self) -> Callable[[Piece], Written]:
        """Load the model and open the store; raises ExecutorError where this is not what the plan was made with."""
        if self.encoder is not None:
            return _Worker(self, self.encoder, self._open())
        _compare_software(self.software)
        writer = self._open()
        return _Worker(self, self.recipe.load(self.layout.layers, self.options), writer, own_process=True)

    def _open(self) -> PartitionWriter:
        """Open the store for writing its shards, once it is certain that it is the coordinator's own."""
        try:
            writer = PartitionWriter(self.path)
            if writer.metadata.recipe_sha256 == self.recipe_sha256 and sees_mark(self.path, self.mark):
                return writer
        except StoreNotFoundError:
            pass
        raise ExecutorError(
            f"the store {self.path} is not to be seen here: the machines of a cluster must share its disk, "
            "or it stands in a bucket (s3://...)"
        )


def _compare_software(planned: Mapping[str, str]) -> None:
    """Refuse another embstore, and tell of other packages, which may change the last bits."""
    ours = software()
    if ours.get(EXACT) != planned.get(EXACT):
        raise ExecutorError(f"embstore {ours.get(EXACT)} is here, {planned.get(EXACT)} made the plan: install the same")
    other = [
        f"{package} {ours.get(package, 'none')} (the plan's is {version})"
        for package, version in planned.items()
        if ours.get(package) != version
    ]
    if other:
        warnings.warn(
            f"{', '.join(other)}: the last bits of vectors may differ between workers", WorkerWarning, stacklevel=2
        )


class _Worker:
    """Encodes one partition at a time; meanwhile the one before is written, and the next one's text is read."""

    def __init__(
        self, job: ExtractionJob, encoder: Encoder, writer: PartitionWriter, *, own_process: bool = False
    ) -> None:
        self._job = job
        self._encoder = encoder
        self._writer = writer
        self._cast = Cast(job.layout, center=job.center)
        self._context = job.options.contexts.index(job.options.context_window)
        self._reading, self._encoding = Lock(), Lock()
        self._buffers: LifoQueue[dict[str, torch.Tensor] | None] = LifoQueue()
        for _ in range(PIECES_AT_A_TIME):
            self._buffers.put(None)
        self._settings = ExitStack()
        if own_process:
            self._settings.enter_context(freed_memory_kept())

    def __call__(self, piece: Piece) -> Written:
        buffer = self._buffers.get()
        try:
            if buffer is None:
                buffer = self._cast.buffer()
            subwords = self._encode(piece, buffer)
            start, stop = piece.rows
            record = self._writer.write(piece.partition, self._cast.arrays(buffer, stop - start))
        finally:
            self._buffers.put(buffer)
        return Written(record, subwords)

    def _encode(self, piece: Piece, buffer: Mapping[str, torch.Tensor]) -> int:
        """Fill a buffer with the vectors of a partition; returns how many subwords were run."""
        subwords = 0
        read = one_at_a_time(piece.passages(self._encoder, self._job.options, limit=self._job.limit), self._reading)
        with closing(prefetched(read)) as passages:
            first = next(passages)
            with self._encoding:
                for passage in _chain(first, passages):
                    self._encode_passage(piece, passage, buffer)
                    subwords += len(passage.tokenized.ids)
        return subwords

    def _encode_passage(self, piece: Piece, passage: Passage, buffer: Mapping[str, torch.Tensor]) -> None:
        offset = passage.first_row - piece.rows[0]
        for pooled in iter_encoded(self._encoder, passage, layers=self._job.layout.layers, options=self._job.options):
            self._cast.check(pooled, passage)
            sources, rows = passage.rows_of(self._context, pooled.rows)
            self._cast.into(buffer, pooled.vectors, rows + offset, sources)


def one_at_a_time(items: Iterator[T], lock: Lock) -> Iterator[T]:
    """Yield the items, each made while nobody else holds the lock."""
    while True:
        with lock:
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def _chain(first: T, rest: Iterable[T]) -> Iterator[T]:
    yield first
    yield from rest
