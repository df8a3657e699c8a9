"""The extraction loop: partitions in, written shards out; used in this process and by the workers of an executor."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ExecutorError, StoreDamagedError, StoreNotFoundError
from embstore.executors import portable
from embstore.extraction.cast import Cast, device_cast
from embstore.extraction.encoder_spec import EncoderSpec, compare_software
from embstore.extraction.estimate import buffers_of
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.partition import Part, Passage, TextOptions
from embstore.models.encoder import Encoder, Pooled, StageTimes
from embstore.store import Layout
from embstore.store.storage.location import ObjectPath
from embstore.store.writer import PartitionWriter, sees_mark

T = TypeVar("T")
Write = Callable[[int, Mapping[str, NDArray[Any]]], Any]
_Buffer = dict[str, torch.Tensor]
_Encoded = tuple["Task", Passage, Pooled | None]  # some vectors of a passage of a task; None at the passage's end


@dataclass
class Timings:
    """Where the seconds of an extraction were spent; `write` and `stages.tokenize` run in threads of their own.

    With an executor only `wall`, `n_rows` and `n_subwords` are known.
    """

    wall: float = 0.0
    stages: StageTimes = field(default_factory=StageTimes)
    cast: float = 0.0
    write: float = 0.0
    waited_for_text: float = 0.0
    waited_for_disk: float = 0.0
    n_rows: int = 0
    n_subwords: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Task:
    """The rows of a partition to encode, and the numbers of the destinations that do not have them."""

    partition: int
    part: Part
    destinations: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        rows, sentences = (self.part.start, self.part.stop), self.part.sentences
        return (
            f"partition {self.partition} (rows {rows[0]:,}-{rows[1] - 1:,}, "
            f"sentences {sentences[0]:,}-{sentences[1] - 1:,})"
        )


@dataclass(frozen=True)
class Done:
    """The outcome of a task: what the writer of each destination returned, or the `error`."""

    partition: int
    records: tuple[Any, ...] = ()
    n_subwords: int = 0
    error: Exception | None = None


@dataclass(frozen=True)
class Destination:
    """A site of a store: where vectors of all partitions are written.

    `store`: the number of the store. `window`: that of its context window. `center`: the mean of each layer, for int8
    only.
    """

    store: int
    layout: Layout
    window: int
    center: NDArray[np.float32] | None


@dataclass(frozen=True)
class Job:
    """How all partitions are encoded, and where they are written."""

    layers: tuple[int, ...]
    options: ExtractionOptions
    text: TextOptions
    destinations: tuple[Destination, ...]

    def n_stores(self, task: Task) -> int:
        """Return the number of stores that a task is written to."""
        return len({self.destinations[number].store for number in task.destinations})


class Worker:
    """Encodes partitions one after another; the previous one is written and the next one's text read meanwhile.

    `writes`: for each store the function that writes the arrays of a partition, numbered over the sites of the store.
    `on_rows`: called with the number of rows just encoded.
    """

    def __init__(
        self,
        encoder: Encoder,
        job: Job,
        writes: Sequence[Write],
        *,
        timings: Timings | None = None,
        on_rows: Callable[[int], object] = lambda n_rows: None,
    ) -> None:
        self._encoder = encoder
        self._job = job
        self._writes = writes
        self._timings = timings or Timings()
        self._on_rows = on_rows
        self._casts = [Cast(each.layout, center=each.center) for each in job.destinations]
        self._n_buffers = buffers_of([each.layout for each in job.destinations], n_stores=len(writes))
        self._buffers: list[list[_Buffer]] = []

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """Encode and write partitions; yields the outcome of each in order.

        The first error is raised once the outcomes of the other partitions that were encoded are yielded.
        """
        before = StageTimes(**vars(self._encoder.times))
        pending: deque[Future[Done]] = deque()
        error: Exception | None = None
        turn = n_subwords = 0
        with (
            ThreadPoolExecutor(1, "embstore-write") as disk,
            closing(prefetched(self._passages(tasks))) as passages,
            closing(self._ahead(self._encoded(passages))) as encoded,
        ):
            try:
                for task, passage, pooled in encoded:
                    if len(pending) == self._n_buffers:
                        yield self._wait(pending.popleft())
                    buffers = self._buffers_of(turn)
                    if pooled is not None:
                        self._take(task, passage, pooled, buffers)
                        continue
                    n_subwords += len(passage.tokenized.ids)
                    if passage.first_row + passage.n_rows == task.part.stop:
                        pending.append(disk.submit(self._write, task, buffers, n_subwords))
                        turn, n_subwords = turn + 1, 0
            except Exception as failure:
                error = failure
            while pending:
                yield self._wait(pending.popleft())
            if error is not None:
                raise error
        for stage, seconds in vars(self._encoder.times).items():
            setattr(self._timings.stages, stage, seconds - getattr(before, stage))

    def _passages(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Passage]]:
        for task in tasks:
            for passage in task.part.passages(self._encoder, self._job.text):
                yield task, passage

    def _encoded(self, passages: Iterator[tuple[Task, Passage]]) -> Generator[_Encoded]:
        """Yield the vectors of each passage, and None at its end."""
        while True:
            start = time.perf_counter()
            following = next(passages, None)
            self._timings.waited_for_text += time.perf_counter() - start
            if following is None:
                return
            task, passage = following
            for pooled in iter_encoded(self._encoder, passage, self._job):
                yield task, passage, pooled
            yield task, passage, None

    def _ahead(self, encoded: Generator[_Encoded]) -> Generator[_Encoded]:
        """Let a GPU continue with the next passage, in a thread of its own, while vectors are cast and written."""
        return prefetched(encoded) if self._encoder.casts_on_device else encoded

    def _buffers_of(self, turn: int) -> list[_Buffer]:
        while len(self._buffers) <= turn % self._n_buffers:
            self._buffers.append([cast.buffer() for cast in self._casts])
        return self._buffers[turn % self._n_buffers]

    def _take(self, task: Task, passage: Passage, pooled: Pooled, buffers: Sequence[_Buffer]) -> None:
        """Cast vectors of a passage into the buffers of the partition."""
        start = time.perf_counter()
        offset, n_rows = passage.first_row - task.part.start, 0
        every = self._job.destinations
        first = {every[number].store: number for number in reversed(task.destinations)}  # each row is counted once
        chosen = [number for number in task.destinations if every[number].layout.site == pooled.site]
        for number in chosen:
            if number == chosen[0]:
                self._casts[number].check(pooled, passage)
            sources, rows = passage.rows_of(every[number].window, pooled.rows)
            self._casts[number].into(buffers[number], pooled.vectors, rows + offset, sources)
            n_rows += len(rows) if first[every[number].store] == number else 0
        self._timings.n_rows += n_rows
        self._timings.cast += time.perf_counter() - start
        self._on_rows(n_rows)

    def _write(self, task: Task, buffers: Sequence[_Buffer], n_subwords: int) -> Done:
        start = time.perf_counter()
        records = []
        for number in task.destinations:
            destination = self._job.destinations[number]
            arrays = self._casts[number].arrays(buffers[number], task.part.n_rows)
            records.append(self._writes[destination.store](destination.layout.first + task.partition, arrays))
            self._timings.nbytes += sum(array.nbytes for array in arrays.values())
        self._timings.n_subwords += n_subwords
        self._timings.write += time.perf_counter() - start
        return Done(task.partition, tuple(records), n_subwords)

    def _wait(self, future: Future[Done]) -> Done:
        start = time.perf_counter()
        done = future.result()
        self._timings.waited_for_disk += time.perf_counter() - start
        return done


def iter_encoded(encoder: Encoder, passage: Passage, job: Job) -> Iterator[Pooled]:
    """Run the encoder over a passage and yield all its vectors; raises StoreDamagedError if one is missing."""
    # buffers are reused: an unfilled row has old values
    seen = {site: np.zeros(len(passage.spans.sentence), bool) for site in job.options.sites}
    arguments = {**job.options.encoding, **device_cast(encoder, job.options.dtype)}
    for pooled in encoder.encode(passage.tokenized, passage.spans, layers=job.layers, **arguments):
        seen[pooled.site][pooled.rows] = True
        yield pooled
    if not all(rows.all() for rows in seen.values()):
        found = min(rows.sum() for rows in seen.values())
        raise StoreDamagedError(
            f"the model returned {found} of {len(passage.spans.sentence)} vectors from row {passage.first_row} on: "
            "the encoder is at fault; nothing of this partition was written"
        )


def prefetched(items: Iterable[T], *, ahead: int = 3) -> Generator[T]:
    """Yield items that another thread produces up to `ahead` in advance; its errors are raised here.

    Closing the generator ends the thread once it has produced the item at hand.
    """
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1, "embstore-prefetch") as thread:
        pending = deque(thread.submit(next, iterator, end) for _ in range(ahead))
        try:
            while (item := pending.popleft().result()) is not end:
                pending.append(thread.submit(next, iterator, end))
                yield item  # type: ignore[misc]
        finally:
            for future in pending:
                future.cancel()


@dataclass(frozen=True)
class Target:
    """A store that worker processes write into, and how they recognize it.

    `mark`: a token in the lock file, which tells the store from one of the same name on another disk.
    """

    path: Path | ObjectPath
    mark: str
    fingerprint: str


@dataclass(frozen=True)
class RemoteJob:
    """All that a worker process needs besides the tasks: the job, the stores and the model."""

    job: Job
    targets: tuple[Target, ...]
    encoder: EncoderSpec
    software: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """What a worker process did with some tasks; `warnings`: for the user."""

    done: list[Done]
    warnings: tuple[str, ...]


def run_tasks(job: bytes, tasks: Sequence[Task]) -> Outcome:
    """Encode and write some partitions in a worker process; the model is loaded once for each (pickled) job.

    An error of one partition is part of its outcome, and the next one follows.
    """
    with _LOCK:  # threads of one process share the model
        worker, warnings = _process_worker(job)
        done: dict[int, Done] = {}
        while left := [task for task in tasks if task.partition not in done]:
            try:
                done.update((one.partition, one) for one in worker.run(left))
            except Exception as error:
                failed = next(task.partition for task in left if task.partition not in done)
                done[failed] = Done(failed, error=portable(error))
        return Outcome(list(done.values()), warnings)


_LOCK = Lock()


@lru_cache(maxsize=1)
def _process_worker(pickled: bytes) -> tuple[Worker, tuple[str, ...]]:
    remote: RemoteJob = pickle.loads(pickled)
    warnings = compare_software(remote.software)
    writers = [_open_target(target) for target in remote.targets]
    encoder = remote.encoder.load(remote.job.layers, remote.job.options)
    return Worker(encoder, remote.job, [writer.write for writer in writers]), warnings


def _open_target(target: Target) -> PartitionWriter:
    """Open a store for writing its shards; raises ExecutorError unless it is the coordinator's own."""
    try:
        writer = PartitionWriter(target.path)
        if writer.metadata.fingerprint == target.fingerprint and sees_mark(target.path, target.mark):
            return writer
    except StoreNotFoundError:
        pass
    raise ExecutorError(
        f"store {target.path} is not accessible from this worker: the machines of a cluster must share its disk, "
        "or it must be in a bucket (s3://...)"
    )
