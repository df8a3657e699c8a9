"""From a plan to a committed store: passages, vectors, partition buffers, shards."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.allocator import freed_memory_kept
from embstore.errors import InvalidValueError, NonFiniteError, StoreDamagedError, StoreFormatError
from embstore.executor import Executor
from embstore.extraction.cast import Cast
from embstore.extraction.center import center_of
from embstore.extraction.distribution import distribute
from embstore.extraction.encoding import iter_encoded
from embstore.extraction.estimate import buffers_of
from embstore.extraction.job import Written
from embstore.extraction.partition import Passage
from embstore.extraction.piece import Piece
from embstore.extraction.plan import Plan
from embstore.extraction.prefetch import prefetched
from embstore.extraction.recipe import require_same_recipe
from embstore.models.encoder import Pooled, StageTimes
from embstore.store import (
    Store,
    StoreWriter,
    create_store,
    damaged_partitions,
    open_store,
    repair_layout,
    verify,
)
from embstore.store.backend import exists, open_reader
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.writer import remove_store

ONE_PROCESS = (
    "several context windows share one pass, which one process makes: extract one window at a time by other workers, "
    "or all of them without"
)


@dataclass
class Timings:
    """Where the seconds of an extraction went; `write` and `tokenize` run beside the rest.

    With an executor `wall`, `rows` and `subwords` alone are known.
    """

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
    """How far an extraction is: rows in its stores, of how many, and subwords run in this call."""

    rows: int
    total_rows: int
    subwords: int


def extract(
    plan: Plan,
    store: str | Path | ObjectPath,
    *,
    repair: bool = False,
    executor: Executor | None = None,
    progress: Callable[[Progress], object] | None = None,
    timings: Timings | None = None,
) -> Store:
    """Carry out a plan: encode every partition not yet in the store and commit it.

    The same call again goes on where an earlier one ended; a finished store is left as it is. With `repair` the
    store is verified first, and only damaged or missing partitions are encoded. `executor`: whose workers encode
    and write the partitions, each by itself, while this process commits them; None is the fast path of this process
    alone. The store is the same bytes by whichever.

    Raises StoreMismatchError where the store was made by another plan, StoreBusyError where another process
    writes it, NonFiniteError where a hidden state cannot be stored, StorageError where the disk is full,
    ExecutorError where an executor's workers are gone; what is committed by then stays.
    """
    return extract_together(
        [plan], [parse_location(store)], repair=repair, executor=executor, progress=progress, timings=timings
    )[0]


def extract_together(
    plans: Sequence[Plan],
    paths: Sequence[Path | ObjectPath],
    *,
    repair: bool = False,
    executor: Executor | None = None,
    progress: Callable[[Progress], object] | None = None,
    timings: Timings | None = None,
) -> list[Store]:
    """Carry out plans that differ in their context window alone, one pass for all of them; see `extract`.

    A partition that any of the stores lacks is encoded for all of them, so that the batches, and with them the
    bits, are those of a run that was never interrupted.
    """
    if executor is not None and len(plans) > 1:
        raise InvalidValueError(ONE_PROCESS)
    _refuse_others(plans, paths)
    standing = [_stand(plan, path, repair=repair) for plan, path in zip(plans, paths, strict=True)]
    open_ones = [store for store in standing if not store.at_rest]
    if not open_ones:
        return [open_store(path) for path in paths]
    began = time.perf_counter()
    with ExitStack() as stack:
        targets = [_Target(store, stack.enter_context(StoreWriter(store.path))) for store in open_ones]
        for target in targets:
            if target.standing.damaged:
                target.writer.discard(target.standing.damaged)
            target.missing = target.writer.missing()
        try:
            if executor is not None and targets[0].missing:
                _distributed(plans[0], targets[0], executor, timings or Timings(), progress)
            elif any(target.missing for target in targets):
                _Extraction(plans, targets, timings or Timings(), progress).run()
        except NonFiniteError:
            for target in targets:
                target.remove_if_empty()
            raise
        for target in targets:
            target.writer.finish()
    if timings is not None:
        timings.wall = time.perf_counter() - began
    return [open_store(path) for path in paths]


def _refuse_others(plans: Sequence[Plan], paths: Sequence[Path | ObjectPath]) -> None:
    """Where one of several stores cannot be resumed, say so before another is begun."""
    if len(plans) == 1:
        return
    for plan, path in zip(plans, paths, strict=True):
        if _stands(path):
            with suppress(StoreDamagedError, StoreFormatError):  # repair may mend them
                require_same_recipe(plan.metadata, open_reader(path).metadata, path=str(path))


@dataclass(frozen=True)
class _Standing:
    """A store as it stands before an extraction; `begun`: laid out in this call; `at_rest`: nothing is to do."""

    plan: Plan
    path: Path | ObjectPath
    begun: bool
    damaged: list[int]
    at_rest: bool


def _stand(plan: Plan, path: Path | ObjectPath, *, repair: bool) -> _Standing:
    """Lay a store out, or see that the one that stands there is the plan's."""
    damaged: list[int] = []
    begun = not _stands(path) and _create(plan, path)
    if repair and not begun:
        damaged = _mend_layout(plan, path)
    store = Store(open_reader(path))
    require_same_recipe(plan.metadata, store.metadata, path=str(path))
    # with nothing left to tidy, so that it may stand where nothing can be written
    locked = isinstance(path, Path) and StoreLock(path).file.exists()
    at_rest = store.finished and not damaged and not locked
    return _Standing(plan, path, begun, damaged, at_rest)


def _stands(path: Path | ObjectPath) -> bool:
    return os.path.exists(path) if isinstance(path, Path) else exists(path)


def _create(plan: Plan, path: Path | ObjectPath) -> bool:
    """Lay the store out; False where another process has done so in the meantime."""
    if isinstance(path, Path):
        plan.estimate.require_space()
    try:
        create_store(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    except InvalidValueError:
        if not _stands(path):
            raise
        return False
    return True


def _center(plan: Plan) -> NDArray[np.float32] | None:
    return center_of(plan) if plan.metadata.dtype == "int8" else None


def _mend_layout(plan: Plan, path: Path | ObjectPath) -> list[int]:
    """Verify a store and lay it out afresh where what is damaged is not vectors; returns the partitions to discard."""
    with suppress(StoreDamagedError, StoreFormatError):  # what cannot be read is verify's to judge
        require_same_recipe(plan.metadata, open_reader(path).metadata, path=str(path))
    report = verify(path)
    if all(fault.partition is not None for fault in report.faults):
        return damaged_partitions(report)
    repair_layout(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    return []


class _Target:
    """A store that is being written: which partitions it lacks, and how floats become its numbers."""

    def __init__(self, standing: _Standing, writer: StoreWriter) -> None:
        self.standing = standing
        self.writer = writer
        self.missing: list[int] = []
        self.context = standing.plan.options.contexts.index(standing.plan.options.context_window)
        self.cast = Cast(standing.plan.layout, center=Store(open_reader(writer.path)).center)

    def lacks(self, partition: int) -> bool:
        """Tell whether a partition is to be written; asked for every passage, of 100,000 partitions or more."""
        place = bisect_left(self.missing, partition)
        return place < len(self.missing) and self.missing[place] == partition

    def remove_if_empty(self) -> None:
        """Remove a store that this call began, in which nothing is and nothing can be."""
        if self.standing.begun and len(self.writer.missing()) == self.standing.plan.layout.n_partitions:
            remove_store(self.standing.path)


def _distributed(
    plan: Plan,
    target: _Target,
    executor: Executor,
    timings: Timings,
    progress: Callable[[Progress], object] | None,
) -> None:
    """Have an executor's workers fill a store, and tell how far it is as they report."""
    done = plan.layout.n_rows - sum(stop - start for start, stop in map(plan.layout.span, target.missing))

    def committed(piece: Piece, written: Written) -> None:
        nonlocal done
        rows = piece.rows[1] - piece.rows[0]
        done += rows
        timings.rows += rows
        timings.subwords += written.subwords
        if progress is not None:
            progress(Progress(done, plan.layout.n_rows, timings.subwords))

    with freed_memory_kept():
        distribute(plan, target.writer, target.missing, executor, committed=committed)


_Buffer = dict[str, torch.Tensor]
_Encoded = tuple[
    int, Passage, Pooled | None, bool
]  # the vectors of a partition's passage; or its end, and whether its last


class _Extraction:
    """One run over the partitions to do: passages arrive from one thread, shards leave through another."""

    def __init__(
        self,
        plans: Sequence[Plan],
        targets: Sequence[_Target],
        timings: Timings,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        self._plan = plans[0]
        self._layout = self._plan.layout
        self._encoder = self._plan.encoder
        self._targets = targets
        self._todo = sorted({partition for target in targets for partition in target.missing})
        self._timings = timings
        self._progress = progress
        self._total = self._layout.n_rows * len(plans)
        lacking = [partition for target in targets for partition in target.missing]
        self._done = self._total - sum(stop - start for start, stop in map(self._layout.span, lacking))

    def run(self) -> None:
        before = StageTimes(**vars(self._encoder.times))
        if self._encoder.batching != (batching := self._plan.metadata.extraction["batching"]):
            self._encoder.use_batching(batching)  # another plan may have settled on another in the meantime
        turns = min(buffers_of(self._layout, stores=len(self._targets)), len(self._todo))
        buffers = [[target.cast.buffer() for target in self._targets] for _ in range(turns)]
        pending: list[Future[None]] = []
        with (
            freed_memory_kept(),
            ThreadPoolExecutor(1, "embstore-write") as disk,
            closing(prefetched(self._passages())) as passages,
            closing(self._ahead(self._encoded(passages))) as encoded,
        ):
            turn = 0
            for partition, passage, pooled, last in encoded:
                if len(pending) == turns:
                    self._wait(pending.pop(0))
                filled = buffers[turn % turns]
                if pooled is not None:
                    self._take(partition, passage, pooled, filled)
                    continue
                self._timings.subwords += len(passage.tokenized.ids)
                self._tell()
                if last:
                    pending.append(disk.submit(self._write, partition, filled))
                    turn += 1
            for future in pending:
                self._wait(future)
        for stage, seconds in vars(self._encoder.times).items():
            setattr(self._timings.stages, stage, seconds - getattr(before, stage))

    def _passages(self) -> Iterator[tuple[int, Passage, bool]]:
        """The passages of all partitions to do, each with its partition and whether it is that one's last."""
        reader = self._plan.reader()
        for partition in self._todo:
            start, stop = self._layout.span(partition)
            held: Passage | None = None
            for passage in reader.passages(start, stop, self._encoder):
                if held is not None:
                    yield partition, held, False
                held = passage
            assert held is not None
            yield partition, held, True

    def _timed(self, passages: Iterator[tuple[int, Passage, bool]]) -> Iterator[tuple[int, Passage, bool]]:
        while True:
            start = time.perf_counter()
            item = next(passages, None)
            self._timings.waited_for_text += time.perf_counter() - start
            if item is None:
                return
            yield item

    def _wait(self, future: Future[None]) -> None:
        start = time.perf_counter()
        future.result()
        self._timings.waited_for_disk += time.perf_counter() - start

    def _encoded(self, passages: Iterator[tuple[int, Passage, bool]]) -> Generator[_Encoded]:
        """What the encoder makes of the passages, and where each ends."""
        for partition, passage, last in self._timed(passages):
            for pooled in iter_encoded(self._encoder, passage, layers=self._layout.layers, options=self._plan.options):
                yield partition, passage, pooled, False
            yield partition, passage, None, last

    def _ahead(self, encoded: Generator[_Encoded]) -> Generator[_Encoded]:
        """Let a card go on with the next passage, in a thread of its own, while vectors are cast and written here."""
        return prefetched(encoded) if self._encoder.casts_on_device else encoded

    def _take(self, partition: int, passage: Passage, pooled: Pooled, buffers: Sequence[_Buffer]) -> None:
        """Cast some vectors of a passage into the partition's buffers."""
        start = time.perf_counter()
        offset = passage.first_row - self._layout.span(partition)[0]
        writing = [
            (target, buffer) for target, buffer in zip(self._targets, buffers, strict=True) if target.lacks(partition)
        ]
        writing[0][0].cast.check(pooled, passage)
        for target, buffer in writing:
            sources, rows = passage.rows_of(target.context, pooled.rows)
            target.cast.into(buffer, pooled.vectors, rows + offset, sources)
            self._done += len(rows)
            self._timings.rows += len(rows)
        self._timings.cast += time.perf_counter() - start
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(Progress(self._done, self._total, self._timings.subwords))

    def _write(self, partition: int, buffers: Sequence[_Buffer]) -> None:
        start = time.perf_counter()
        first, last = self._layout.span(partition)
        for target, buffer in zip(self._targets, buffers, strict=True):
            if target.lacks(partition):
                arrays = target.cast.arrays(buffer, last - first)
                target.writer.write(partition, arrays)
                self._timings.nbytes += sum(array.nbytes for array in arrays.values())
        self._timings.write += time.perf_counter() - start
