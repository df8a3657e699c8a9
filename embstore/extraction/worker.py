"""The extraction loop: partitions in, written shards out; used in this process and by the workers of an executor."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from queue import Full, Queue
from threading import Event, Lock, Thread
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

CENTER_ROWS = 4096

T = TypeVar("T")
Write = Callable[[int, Mapping[str, NDArray[Any]]], Any]
_Buffer = dict[str, torch.Tensor]
# The vectors of a passage of a task; or None at its end, and whether it is the last one; or an error.
_Encoded = tuple["Task", Passage | None, Pooled | Exception | None, bool]


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
    """A partition to encode, and the numbers of the stores that it is written to."""

    partition: int
    part: Part
    stores: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        rows, sentences = (self.part.start, self.part.stop), self.part.sentences
        return (
            f"partition {self.partition} (rows {rows[0]:,}-{rows[1] - 1:,}, "
            f"sentences {sentences[0]:,}-{sentences[1] - 1:,})"
        )


@dataclass(frozen=True)
class Done:
    """The outcome of a task: what each store's writer returned, or the `error`."""

    partition: int
    records: tuple[Any, ...] = ()
    n_subwords: int = 0
    error: Exception | None = None


class Worker:
    """Encodes partitions one after another; the previous one is written and the next one's text read meanwhile.

    For each store, `windows`: the number of its context window; `casts`: how vectors become its numbers; `writes`: the
    function that writes the arrays of a partition. `on_rows`: called with the number of rows just encoded.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        layout: Layout,
        options: ExtractionOptions,
        text: TextOptions,
        windows: Sequence[int],
        casts: Sequence[Cast],
        writes: Sequence[Write],
        timings: Timings | None = None,
        on_rows: Callable[[int], object] = lambda n_rows: None,
    ) -> None:
        self._encoder = encoder
        self._layout = layout
        self._options = options
        self._text = text
        self._windows = windows
        self._casts = casts
        self._writes = writes
        self._timings = timings or Timings()
        self._on_rows = on_rows
        self.warnings: tuple[str, ...] = ()  # for the user, to be shown once
        self._n_buffers = buffers_of(layout, n_stores=len(writes))
        self._buffers: list[list[_Buffer]] = []

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """Encode and write partitions; yields the outcome of each in order.

        An error of one partition is part of its outcome, and the next one follows.
        """
        before = StageTimes(**vars(self._encoder.times))
        pending: deque[Future[Done]] = deque()
        failed: Task | None = None
        turn = n_subwords = 0
        with (
            ThreadPoolExecutor(1, "embstore-write") as disk,
            closing(prefetched(self._passages(tasks))) as passages,
            closing(self._ahead(self._encoded(passages))) as encoded,
        ):
            for task, passage, pooled, last in encoded:
                if task is failed:
                    continue
                if len(pending) == self._n_buffers:
                    yield self._wait(pending.popleft())
                try:
                    if isinstance(pooled, Exception):
                        raise pooled
                    assert passage is not None
                    if pooled is not None:
                        self._take(task, passage, pooled, self._buffers_of(turn))
                        continue
                except Exception as error:
                    failed, n_subwords = task, 0
                    while pending:
                        yield self._wait(pending.popleft())
                    yield Done(task.partition, error=error)
                    continue
                n_subwords += len(passage.tokenized.ids)
                if last:
                    pending.append(disk.submit(self._write, task, self._buffers_of(turn), n_subwords))
                    turn, n_subwords = turn + 1, 0
            while pending:
                yield self._wait(pending.popleft())
        for stage, seconds in vars(self._encoder.times).items():
            setattr(self._timings.stages, stage, seconds - getattr(before, stage))

    def _passages(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Passage | Exception, bool]]:
        """Yield the passages of each task with whether it is the last one; a failure ends its task."""
        for task in tasks:
            held: Passage | None = None
            try:
                for passage in task.part.passages(self._encoder, self._text):
                    if held is not None:
                        yield task, held, False
                    held = passage
            except Exception as error:
                yield task, error, True
                continue
            assert held is not None
            yield task, held, True

    def _encoded(self, passages: Iterator[tuple[Task, Passage | Exception, bool]]) -> Generator[_Encoded]:
        """Yield the vectors of each passage and then its end; a failure ends its task."""
        failed: Task | None = None
        while True:
            start = time.perf_counter()
            task, passage, last = next(passages, (None, None, True))
            self._timings.waited_for_text += time.perf_counter() - start
            if task is None or passage is None:
                return
            if task is failed:
                continue
            if isinstance(passage, Exception):
                yield task, None, passage, True
                continue
            try:
                for pooled in iter_encoded(self._encoder, passage, layers=self._layout.layers, options=self._options):
                    yield task, passage, pooled, False
            except Exception as error:
                failed = task
                yield task, None, error, True
                continue
            yield task, passage, None, last

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
        offset = passage.first_row - task.part.start
        self._casts[task.stores[0]].check(pooled, passage)
        n_rows = 0
        for store in task.stores:
            sources, rows = passage.rows_of(self._windows[store], pooled.rows)
            self._casts[store].into(buffers[store], pooled.vectors, rows + offset, sources)
            n_rows += len(rows)
        self._timings.n_rows += n_rows
        self._timings.cast += time.perf_counter() - start
        self._on_rows(n_rows)

    def _write(self, task: Task, buffers: Sequence[_Buffer], n_subwords: int) -> Done:
        start = time.perf_counter()
        records = []
        try:
            for store in task.stores:
                arrays = self._casts[store].arrays(buffers[store], task.part.n_rows)
                records.append(self._writes[store](task.partition, arrays))
                self._timings.nbytes += sum(array.nbytes for array in arrays.values())
        except Exception as error:
            return Done(task.partition, error=error)
        self._timings.n_subwords += n_subwords
        self._timings.write += time.perf_counter() - start
        return Done(task.partition, tuple(records), n_subwords)

    def _wait(self, future: Future[Done]) -> Done:
        start = time.perf_counter()
        done = future.result()
        self._timings.waited_for_disk += time.perf_counter() - start
        return done


def iter_encoded(
    encoder: Encoder, passage: Passage, *, layers: Sequence[int], options: ExtractionOptions
) -> Iterator[Pooled]:
    """Run the encoder over a passage and yield all its vectors; raises StoreDamagedError if one is missing."""
    seen = np.zeros(len(passage.spans.sentence), bool)  # buffers are reused: an unfilled row has old values
    cast = device_cast(encoder, options.dtype)
    for pooled in encoder.encode(passage.tokenized, passage.spans, layers=layers, **options.encoding, **cast):
        seen[pooled.rows] = True
        yield pooled
    if not seen.all():
        raise StoreDamagedError(
            f"the model returned {seen.sum()} of {len(seen)} vectors from row {passage.first_row} on: "
            "the encoder is at fault; nothing of this partition was written"
        )


def layer_means(
    part: Part, encoder: Encoder, *, layers: Sequence[int], options: ExtractionOptions, text: TextOptions
) -> NDArray[np.float32]:
    """Return the mean vector of each layer over the rows of a part, float32 [n_layers, hidden_size], for int8."""
    total = np.zeros((len(layers), encoder.info.hidden_size))
    for passage in part.passages(encoder, text):
        for pooled in encoder.encode(passage.tokenized, passage.spans, layers=layers, **options.encoding):
            sources, _ = passage.rows_of(0, pooled.rows)
            vectors = pooled.vectors.double()
            total += (vectors if sources is None else vectors[:, sources]).sum(1).numpy()
    return (total / part.n_rows).astype(np.float32)


def prefetched(items: Iterable[T], *, ahead: int = 2) -> Generator[T]:
    """Yield items that another thread produces up to `ahead` in advance; its errors are raised here.

    Closing the generator ends the thread.
    """
    queue: Queue[tuple[T | None, BaseException | None]] = Queue(ahead)
    closed = Event()

    def put(item: T | None, error: BaseException | None) -> bool:
        while not closed.is_set():
            try:
                queue.put((item, error), timeout=0.1)
            except Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = Thread(target=produce, name="embstore-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join()


@dataclass(frozen=True)
class Target:
    """A store that workers write into: its path, and how they recognize it and quantize its vectors.

    `window`: the number of its context window. `mark`: a token in the lock file, which tells the store from one of the
    same name on another disk.
    """

    path: Path | ObjectPath
    mark: str
    fingerprint: str
    window: int
    center: NDArray[np.float32] | None


@dataclass(frozen=True)
class Job:
    """All that a worker process needs besides the tasks: the stores, the model and the options."""

    targets: tuple[Target, ...]
    layout: Layout
    options: ExtractionOptions
    text: TextOptions
    encoder: EncoderSpec
    software: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """What a worker process did with some tasks; `warnings`: for the user, the first time only."""

    done: list[Done]
    warnings: tuple[str, ...]


def run_tasks(job: bytes, tasks: Sequence[Task]) -> Outcome:
    """Encode and write some partitions in a worker process; the model is loaded once for each (pickled) job."""
    with _LOCK:  # threads of one process share the model
        worker = _process_worker(job)
        done = [one if one.error is None else replace(one, error=portable(one.error)) for one in worker.run(tasks)]
        warnings, worker.warnings = worker.warnings, ()
        return Outcome(done, warnings)


_LOCK = Lock()


@lru_cache(maxsize=1)
def _process_worker(pickled: bytes) -> Worker:
    job: Job = pickle.loads(pickled)
    warnings = compare_software(job.software)
    writers = [_open_target(target) for target in job.targets]
    worker = Worker(
        job.encoder.load(job.layout.layers, job.options),
        layout=job.layout,
        options=job.options,
        text=job.text,
        windows=[target.window for target in job.targets],
        casts=[Cast(job.layout, center=target.center) for target in job.targets],
        writes=[writer.write for writer in writers],
    )
    worker.warnings = warnings
    return worker


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
