"""The extraction loop: partitions in, written shards out; used in this process and by the workers of an executor."""

from __future__ import annotations

import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ExecutorError, StoreDamagedError, StoreNotFoundError
from embstore.executors import portable
from embstore.extraction.cast import Buffer, Cast, Written
from embstore.extraction.encoder_spec import EncoderSpec, require_software
from embstore.extraction.estimate import BUFFERS, HOST_BUFFERS, WRITERS
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.partition import Groups, Part, Passage, Reader
from embstore.models.encoder import Encoder, Pooled
from embstore.models.memory import ADVICE, memory_needed
from embstore.models.running import mark
from embstore.store.metadata import Metadata
from embstore.store.storage.location import ObjectPath
from embstore.store.writer import PartitionWriter, sees_mark

T = TypeVar("T")
Write = Callable[[int, Mapping[str, NDArray[Any]]], Any]


@dataclass(frozen=True)
class Task:
    """A group of partitions to encode together; `missing`: those to write, each with the sites without it."""

    part: Part
    missing: Mapping[int, tuple[int, ...]]

    def without(self, done: Container[int]) -> Task:
        """Return the task without some partitions."""
        return Task(self.part, {number: sites for number, sites in self.missing.items() if number not in done})


@dataclass(frozen=True)
class Done:
    """The outcome of a partition: what the writer returned for each site, or the `error`."""

    partition: int
    records: tuple[Any, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True)
class Job:
    """How all partitions of a store are encoded; see `Reader` for `limit`.

    `center`: the mean of each layer, for int8 only.
    """

    metadata: Metadata
    options: ExtractionOptions
    limit: int
    center: NDArray[np.float32] | None


class Ring(Generic[T]):
    """Buffers that are reused, made when they are first needed and at most `size`; `take` waits for a free one."""

    def __init__(self, make: Callable[[], T], size: int) -> None:
        self._make, self._size = make, size
        self._made: list[T] = []
        self.restart()

    def restart(self) -> None:
        """Make all buffers free; nothing may use one."""
        self._free: SimpleQueue[T] = SimpleQueue()
        for buffer in self._made:
            self._free.put(buffer)

    def take(self) -> T:
        if self._free.empty() and len(self._made) < self._size:
            self._made.append(self._make())
            return self._made[-1]
        return self._free.get()

    def give(self, buffer: T) -> None:
        self._free.put(buffer)


class Group:
    """A task with the buffers that its rows are written into, until each of its partitions has left them.

    `writes`: bool [sites, partitions of a group], what is written. `failure`: why no further partition of it can be
    stored.
    """

    def __init__(self, task: Task, job: Job, ring: Ring[list[Buffer]]) -> None:
        self.task, self.layout, self._ring = task, job.metadata.layout, ring
        self.first = task.part.start // self.layout.partition_rows
        self.writes = np.zeros((len(job.metadata.layouts), Groups.of(job.metadata).size), bool)
        for partition, sites in task.missing.items():
            self.writes[list(sites), partition - self.first] = True
        self._left, self._mutex = set(task.missing), Lock()
        self._waiting = deque(sorted(task.missing))
        self.failure: Exception | None = None
        self.buffers = ring.take()

    def complete(self, stop: int) -> Iterator[int]:
        """Yield the partitions whose rows all come before `stop`, each once."""
        while self._waiting and self.layout.span(self._waiting[0])[1] <= stop:
            yield self._waiting.popleft()

    def leave(self, partition: int) -> None:
        """Note that a partition needs the buffers no more; they are free after the last one."""
        with self._mutex:
            self._left.discard(partition)
            if not self._left:
                self._ring.give(self.buffers)


@dataclass(frozen=True)
class Full:
    """A partition of a group whose rows are all in its buffers, or will be when `mark` has passed on the device.

    `written`: what must be checked before it and those after it leave, by site.
    """

    group: Group
    partition: int
    written: Mapping[int, list[Written]]
    mark: Any


class Worker:
    """Encodes groups of partitions; earlier ones are copied and written, and text is read, in other threads.

    `write`: writes the arrays of a partition, numbered over the sites of the store; on a GPU several threads call it at
    a time. `on_rows`: called with the number of rows just encoded. `fetch`: copies what leaves a GPU.
    """

    def __init__(
        self, encoder: Encoder, job: Job, write: Write, *, on_rows: Callable[[int], object] = lambda n_rows: None
    ) -> None:
        self._encoder = encoder
        self._job = job
        self._write_partition = write
        self._on_rows = on_rows
        self._on_device = encoder.casts_on_device
        self._casts = [Cast(layout, center=job.center, device=encoder.device) for layout in job.metadata.layouts]
        self._ring = Ring(self._buffers, BUFFERS)
        self._host = Ring(lambda: [cast.host_buffer() for cast in self._casts], HOST_BUFFERS)
        self._n_writers = WRITERS if self._on_device else 1
        self.fetch = Fetch(encoder.device)

    def _buffers(self) -> list[Buffer]:
        advice = f"give a smaller --batch-subwords, which makes smaller groups, or {ADVICE}"
        size = Groups.of(self._job.metadata).size
        with memory_needed(f"a group of {size} partitions", self._encoder.device, advice=advice):
            return [cast.buffer(size) for cast in self._casts]

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """Encode and write partitions; yields the outcome of each in order.

        The first error is raised once the outcomes of the other partitions that were encoded are yielded.
        """
        pending: deque[Future[Future[Done]]] = deque()
        error: Exception | None = None
        self._ring.restart()
        self._host.restart()
        with (
            ThreadPoolExecutor(self._n_writers, "embstore-write") as disk,
            ThreadPoolExecutor(1, "embstore-copy") as copies,
        ):
            leave = partial(self._leave, disk)
            try:
                with closing(self._encoded(tasks)) as encoded:
                    for full in encoded:
                        pending.append(copies.submit(leave, full))
                        while pending and is_done(pending[0]):
                            yield pending.popleft().result().result()
            except Exception as failure:
                error = failure
            try:
                for future in pending:
                    try:
                        done = future.result().result()
                    except Exception as failure:
                        error = error or failure
                    else:
                        yield done
            finally:
                for future in pending:
                    future.cancel()
        if error is not None:
            raise error

    def _encoded(self, tasks: Iterable[Task]) -> Generator[Full]:
        """Fill the buffers of group after group; yields each partition when all its rows are there."""
        group: Group | None = None
        written: defaultdict[int, list[Written]] = defaultdict(list)
        with closing(prefetched(self._passages(tasks))) as passages:
            for task, passage in passages:
                if group is None or group.task is not task:
                    group = Group(task, self._job, self._ring)
                for pooled in iter_encoded(self._encoder, passage, self._job):
                    self._take(group, passage, pooled, written)
                    del pooled  # vectors are freed before the next batch is run
                for partition in group.complete(passage.first_row + passage.n_rows):
                    yield Full(group, partition, written, mark(self._encoder.device))
                    written = defaultdict(list)

    def _passages(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Passage]]:
        size = self._job.metadata.partition_rows
        reader = Reader(self._encoder, self._job.options, self._job.limit)

        def is_needed(start: int, stop: int) -> bool:
            return any(number in task.missing for number in range(start // size, (stop - 1) // size + 1))

        for task in tasks:
            for passage in reader.passages(task.part, is_needed):
                yield task, passage

    def _take(self, group: Group, passage: Passage, pooled: Pooled, written: Mapping[int, list[Written]]) -> None:
        """Cast vectors of a passage into the buffers of their partitions; adds what is checked later to `written`."""
        number = [layout.site for layout in self._job.metadata.layouts].index(pooled.site)
        offset = passage.first_row - group.task.part.start
        sources, rows = passage.rows_of(pooled.rows)
        rows = rows + offset
        partitions = rows // group.layout.partition_rows
        if not (is_written := group.writes[number, partitions]).all():
            sources = np.flatnonzero(is_written) if sources is None else sources[is_written]
            rows, partitions = rows[is_written], partitions[is_written]
        if not len(rows):
            return
        cast, buffer = self._casts[number], group.buffers[number]
        extremes = cast.into(buffer, pooled.vectors, rows, sources)
        if extremes is not None:
            written[number].append(Written(extremes, rows, passage, offset, pooled.vectors.dtype))
            if not self._on_device:
                cast.check(buffer, written[number])
                written[number].clear()
        self._on_rows(int((group.writes[:number, partitions].sum(0) == 0).sum()))  # of the first site written

    def _leave(self, disk: Executor, full: Full) -> Future[Done]:
        """Let a partition leave the device, if there is one, and be written."""
        group, place = full.group, full.partition - full.group.first
        if not self._on_device:
            return disk.submit(self._write, full, group.buffers, place, partial(group.leave, full.partition))
        host = self._host.take()
        try:
            self._bring(full, place, host)
        except BaseException as error:
            self._host.give(host)
            group.failure = error if isinstance(error, Exception) else group.failure
            raise
        finally:
            group.leave(full.partition)
        return disk.submit(self._write, full, host, 0, partial(self._host.give, host))

    def _bring(self, full: Full, place: int, host: list[Buffer]) -> None:
        """Check what was written on the device since the partition before, and copy a partition, in one stream."""
        group = full.group
        if group.failure is not None:
            raise group.failure
        with self.fetch.after(full.mark):
            for number, written in full.written.items():
                self._casts[number].check(group.buffers[number], written)
            self.fetch(
                (array[place], host[number][name][0])
                for number in group.task.missing[full.partition]
                for name, array in group.buffers[number].items()
            )

    def _write(self, full: Full, buffers: list[Buffer], place: int, leave: Callable[[], object]) -> Done:
        records = []
        try:
            start, stop = full.group.layout.span(full.partition)
            for number in full.group.task.missing[full.partition]:
                arrays = self._casts[number].arrays(buffers[number], place, stop - start)
                records.append(self._write_partition(self._job.metadata.layouts[number].first + full.partition, arrays))
        finally:
            leave()
        return Done(full.partition, tuple(records))


def is_done(future: Future[Future[Done]]) -> bool:
    """Return whether a partition is written, or has failed."""
    return future.done() and (future.exception() is not None or future.result().done())


class Fetch:
    """Copies arrays of a device to main memory in a stream of its own, in the thread that calls it, and waits."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def after(self, mark: Any) -> Iterator[None]:
        """Queue what the block does in the own stream, after a mark has passed."""
        if self._stream is None:
            yield
            return
        self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            yield

    def __call__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy each first tensor into the second one, inside of `after`, and wait for the copies."""
        for source, target in pairs:
            target.copy_(source, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()


def iter_encoded(encoder: Encoder, passage: Passage, job: Job) -> Iterator[Pooled]:
    """Run the encoder over a passage and yield all its vectors; raises StoreDamagedError if one is missing."""
    # buffers are reused: an unfilled row has old values
    seen = {site: np.zeros(len(passage.spans.sentence), bool) for site in job.options.sites}
    arguments = {**job.options.encoding, **({"on_device": True} if encoder.casts_on_device else {})}
    for pooled in encoder.encode(passage.tokenized, passage.spans, layers=job.metadata.layers, **arguments):
        seen[pooled.site][pooled.rows] = True
        yield pooled
        del pooled
    if not all(rows.all() for rows in seen.values()):
        n_vectors = min(rows.sum() for rows in seen.values())
        raise StoreDamagedError(
            f"the model returned {n_vectors} of {len(passage.spans.sentence)} vectors from row {passage.first_row} on: "
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
class RemoteJob:
    """All that a worker process needs besides the tasks: the job, the store and the model.

    `mark`: a token in the store's lock file, which tells it from one of the same name on another disk.
    """

    job: Job
    path: Path | ObjectPath
    mark: str
    fingerprint: str
    encoder: EncoderSpec


def run_tasks(job: bytes, tasks: Sequence[Task]) -> list[Done]:
    """Encode and write some partitions in a worker process; the model is loaded once for each (pickled) job.

    An error of one partition is part of its outcome, and the next one follows.
    """
    with _LOCK:  # threads of one process share the model
        try:
            worker = _process_worker(job)
        except Exception as error:
            raise portable(error) from None
        done: dict[int, Done] = {}
        while left := [one for task in tasks if (one := task.without(done)).missing]:
            try:
                done.update((one.partition, one) for one in worker.run(left))
            except Exception as error:
                failed = portable(error)
                stuck = next(one for task in left if (one := task.without(done)).missing)
                done |= {number: Done(number, error=failed) for number in stuck.missing}
        return list(done.values())


_LOCK = Lock()


@lru_cache(maxsize=1)
def _process_worker(pickled: bytes) -> Worker:
    remote: RemoteJob = pickle.loads(pickled)
    require_software(remote.job.metadata.software)
    is_own = False
    with suppress(StoreNotFoundError):
        writer = PartitionWriter(remote.path)
        is_own = writer.metadata.fingerprint == remote.fingerprint and sees_mark(remote.path, remote.mark)
    if not is_own:
        raise ExecutorError(
            f"store {remote.path} is not accessible from this worker: the machines of a cluster must share its disk, "
            "or it must be in a bucket (s3://...)"
        )
    return Worker(remote.encoder.load(), remote.job, writer.write)
