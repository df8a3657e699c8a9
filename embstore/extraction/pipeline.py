"""From a plan to a committed store: windows, vectors, partition buffers, shards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.allocator import freed_memory_kept
from embstore.errors import InvalidValueError, NonFiniteError, StoreDamagedError, StoreFormatError
from embstore.extraction.cast import Cast
from embstore.extraction.center import center_of
from embstore.extraction.partition import PartitionReader, Window
from embstore.extraction.plan import Plan
from embstore.extraction.prefetch import prefetched
from embstore.extraction.recipe import require_same_recipe
from embstore.models.encoder import StageTimes
from embstore.store import (
    Store,
    StoreWriter,
    create_store,
    damaged_partitions,
    open_store,
    repair_layout,
    verify,
)
from embstore.store.backend import open_reader
from embstore.store.files import remove
from embstore.store.lock import StoreLock, new_path, old_path


@dataclass
class Timings:
    """Where the seconds of an extraction went; `write` and `tokenize` run beside the rest."""

    wall: float = 0.0
    stages: StageTimes = field(default_factory=StageTimes)
    cast: float = 0.0
    write: float = 0.0
    waited_for_text: float = 0.0
    waited_for_disk: float = 0.0
    rows: int = 0
    subwords: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Progress:
    """How far an extraction is: rows in the store, of how many, and subwords run in this call."""

    rows: int
    total_rows: int
    subwords: int


def extract(
    plan: Plan,
    store: str | Path,
    *,
    repair: bool = False,
    progress: Callable[[Progress], object] | None = None,
    timings: Timings | None = None,
) -> Store:
    """Carry out a plan: encode every partition not yet in the store and commit it.

    The same call again goes on where an earlier one ended; a finished store is left as it is. With `repair` the
    store is verified first, and only damaged or missing partitions are encoded.

    Raises StoreMismatchError where the store was made by another plan, StoreBusyError where another process
    writes it, NonFiniteError where a hidden state cannot be stored, StorageError where the disk is full; what is
    committed by then stays.
    """
    path = Path(store)
    _undo_swap(path)
    damaged: list[int] = []
    begun = not os.path.exists(path) and _create(plan, path)
    if repair and not begun:
        damaged = _mend_layout(plan, path)
    standing = Store(open_reader(path))
    require_same_recipe(plan.metadata, standing.metadata, path=str(path))
    if standing.finished and not damaged and not StoreLock(path).file.exists():
        return standing  # with nothing left to tidy, so that it may stand where nothing can be written
    began = time.perf_counter()
    with StoreWriter(path) as writer:
        if damaged:
            writer.discard(damaged)
        todo = writer.missing()
        try:
            if todo:
                _Extraction(plan, writer, todo, timings or Timings(), progress).run()
        except NonFiniteError:
            if begun and len(writer.missing()) == plan.layout.partitions:
                os.rename(path, new_path(path))  # nothing is in it, and nothing can be
                remove(new_path(path))
            raise
        writer.finish()
    if timings is not None:
        timings.wall = time.perf_counter() - began
    return open_store(path)


def _undo_swap(path: Path) -> None:
    """Take the lock where a repair was killed as it put a new store in the old one's place, which undoes that."""
    if os.path.lexists(old_path(path)):
        with StoreLock(path):
            pass


def _create(plan: Plan, path: Path) -> bool:
    """Lay the store out; False where another process has done so in the meantime."""
    plan.estimate.require_space()
    try:
        create_store(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    except InvalidValueError:
        if not os.path.exists(path):
            raise
        return False
    return True


def _center(plan: Plan) -> NDArray[np.float32] | None:
    return center_of(plan) if plan.metadata.dtype == "int8" else None


def _mend_layout(plan: Plan, path: Path) -> list[int]:
    """Verify a store and lay it out afresh where what is damaged is not vectors; returns the partitions to discard."""
    with suppress(StoreDamagedError, StoreFormatError):  # what cannot be read is verify's to judge
        require_same_recipe(plan.metadata, open_reader(path).metadata, path=str(path))
    report = verify(path)
    if all(fault.partition is not None for fault in report.faults):
        return damaged_partitions(report)
    repair_layout(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    return []


class _Extraction:
    """One run over the partitions to do: windows arrive from one thread, shards leave through another."""

    def __init__(
        self,
        plan: Plan,
        writer: StoreWriter,
        todo: list[int],
        timings: Timings,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        self._plan = plan
        self._layout = plan.layout
        self._writer = writer
        self._todo = todo
        self._timings = timings
        self._progress = progress
        self._reader = PartitionReader(plan.index, unit=plan.options.unit, limit=plan.limit)
        self._cast = Cast(self._layout, center=Store(open_reader(writer.path)).center)
        self._done = self._layout.rows - sum(stop - start for start, stop in map(self._layout.span, todo))

    def run(self) -> None:
        before = StageTimes(**vars(self._plan.encoder.times))
        buffers = [self._cast.buffer() for _ in range(min(2, len(self._todo)))]
        pending: list[Future[None]] = []
        with (
            freed_memory_kept(),
            ThreadPoolExecutor(1, "embstore-write") as disk,
            closing(prefetched(self._windows())) as windows,
        ):
            turn = 0
            for partition, window, last in self._timed(windows):
                if len(pending) == len(buffers):
                    self._wait(pending.pop(0))
                vectors = buffers[turn % len(buffers)]
                self._encode(partition, window, vectors)
                if last:
                    pending.append(disk.submit(self._write, partition, vectors))
                    turn += 1
            for future in pending:
                self._wait(future)
        for stage, seconds in vars(self._plan.encoder.times).items():
            setattr(self._timings.stages, stage, seconds - getattr(before, stage))

    def _windows(self) -> Iterator[tuple[int, Window, bool]]:
        """The windows of all partitions to do, each with its partition and whether it is that one's last."""
        for partition in self._todo:
            start, stop = self._layout.span(partition)
            held: Window | None = None
            for window in self._reader.windows(start, stop, self._plan.encoder):
                if held is not None:
                    yield partition, held, False
                held = window
            assert held is not None
            yield partition, held, True

    def _timed(self, windows: Iterator[tuple[int, Window, bool]]) -> Iterator[tuple[int, Window, bool]]:
        while True:
            start = time.perf_counter()
            item = next(windows, None)
            self._timings.waited_for_text += time.perf_counter() - start
            if item is None:
                return
            yield item

    def _wait(self, future: Future[None]) -> None:
        start = time.perf_counter()
        future.result()
        self._timings.waited_for_disk += time.perf_counter() - start

    def _encode(self, partition: int, window: Window, buffer: dict[str, torch.Tensor]) -> None:
        """Run the encoder over a window and cast its vectors into the partition's buffer."""
        options, layout = self._plan.options, self._layout
        offset = window.first_row - layout.span(partition)[0]
        seen = 0
        for pooled in self._plan.encoder.encode(
            window.tokenized,
            window.spans,
            layers=layout.layers,
            pooling=options.pooling,
            batch_subwords=options.batch_subwords,
        ):
            start = time.perf_counter()
            self._cast.into(buffer, pooled, offset=offset, window=window)
            self._timings.cast += time.perf_counter() - start
            seen += len(pooled.rows)
            self._done += len(pooled.rows)
            self._tell()
        if seen != len(window.spans.sentence):
            raise StoreDamagedError(
                f"the model returned {seen} of {len(window.spans.sentence)} vectors from row {window.first_row} on: "
                "the encoder is at fault; nothing of this partition was written"
            )
        self._timings.rows += seen
        self._timings.subwords += len(window.tokenized.ids)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(Progress(self._done, self._layout.rows, self._timings.subwords))

    def _write(self, partition: int, buffer: dict[str, torch.Tensor]) -> None:
        start = time.perf_counter()
        first, last = self._layout.span(partition)
        arrays = self._cast.arrays(buffer, last - first)
        self._writer.write(partition, arrays)
        self._timings.write += time.perf_counter() - start
        self._timings.nbytes += sum(array.nbytes for array in arrays.values())
