"""From a plan to a finished store: partitions are encoded here or by an executor's workers, and committed here."""

from __future__ import annotations

import pickle
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.config import settings
from embstore.devices import torch_threads
from embstore.errors import (
    EmbstoreError,
    ExecutorError,
    InvalidValueError,
    NonFiniteError,
    StoreDamagedError,
    StoreFormatError,
    WorkerWarning,
)
from embstore.executors import iter_completed, n_workers_of, one_line
from embstore.extraction.append import append as append_part
from embstore.extraction.partition import Part
from embstore.extraction.plan import Plan
from embstore.extraction.recompute import remember
from embstore.extraction.resume import require_same_plan
from embstore.extraction.window_plan import WINDOW_FIELD, WindowPlan
from embstore.extraction.worker import Destination, Job, Outcome, RemoteJob, Target, Task, Timings, Worker, run_tasks
from embstore.progress import Counter, Progress, reporting
from embstore.store import Store, StoreWriter, create_store, open_store
from embstore.store.backend import exists, open_reader
from embstore.store.check.repair import repair_layout
from embstore.store.check.verify import verify_one
from embstore.store.source import FileSource
from embstore.store.storage.files import storing
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.writer import place_mark, remove_store

CENTER_ROWS = 4096  # whose mean is taken from vectors that are stored as int8
MAX_FAILURES = 8  # failed partitions after which no more are submitted
MAX_DETAILED_FAILURES = 4
CALLS_PER_WORKER = 8  # or more, so that all end at about the same time
MAX_TASKS_PER_CALL = 4  # groups that a worker is sent at once: one is written as the next is encoded
MAX_TASKS_PER_GPU_CALL = 32  # so that the last one, written while nothing is encoded, is a small part


@checked
def extract(
    plan: Plan,
    path: str | Path | ObjectPath,
    *,
    append: bool = False,
    repair: bool = False,
    virtual: bool = False,
    executor: Executor | None = None,
) -> Store:
    """Write the hidden states of a plan into a store, or complete a store that an earlier call began.

    Every partition that the store does not have yet is encoded and committed. The same call resumes after an
    interruption, and leaves a finished store as it is. The bytes of the store depend on the plan alone.

    Parameters
    ----------
    plan : Plan
        From `embstore.plan`.
    path : str or Path
        NAME.zarr, NAME.h5, or s3://BUCKET/NAME.zarr.
    append : bool
        Add the documents of the plan to the finished store at `path`, a .zarr on a disk that was made with the same
        model and options (see `options_of`), as a part that is read when it is complete. A corpus that the store has
        already is not added again, which an AppendedTwiceWarning says.
    repair : bool
        Verify the store first, and encode damaged partitions again.
    virtual : bool
        Store no vectors, only the index and what identifies them: they are computed again when they are read, see
        docs/how-to/virtual.md. A .zarr on a disk.
    executor : concurrent.futures.Executor or None
        Such as `embstore.executors.Processes`: its workers encode and write the partitions and this process commits
        them. By default this process does both.

    Returns
    -------
    Store

    Raises
    ------
    StoreMismatchError
        If the store was made by another plan.
    StoreBusyError
        If another process writes it.
    NonFiniteError
        If a hidden state cannot be stored.
    StorageError
        If the disk is full.
    ExecutorError
        If workers were lost, or could not write some partitions. All that was committed stays.
    """

    def run(place: Path | ObjectPath, repair: bool) -> Store:
        stores, _ = extract_together([plan], [place], repair=repair, virtual=virtual, executor=executor)
        return stores[0]

    return append_part(plan, path, run, repair=repair) if append else run(parse_location(path), repair)


@checked
def extract_windows(
    plan: WindowPlan, path: str | Path | ObjectPath, *, repair: bool = False, executor: Executor | None = None
) -> dict[int | None, Store]:
    """Write the hidden states of several windows, each into a store of its own; the same call resumes.

    Returns the stores by window; see `WindowPlan.paths` for their paths. The other arguments, and the errors, are
    those of `extract`; nothing is begun if one of the stores that exist was made by another plan.
    """
    paths = plan.paths(path)
    if len(set(paths.values())) < len(paths):
        raise InvalidValueError(f"{path} names one store for several windows: put {WINDOW_FIELD} in the name")
    if isinstance(parse_location(path), Path):
        plan.estimate.require_space(share=sum(not exists(path) for path in paths.values()) / len(paths))
    for window, one in plan.plans.items():
        _refuse_other_plan(one, paths[window])
    plans = [(one, paths[window]) for window, one in plan.plans.items()]
    groups = [plans] if plan.kind == "context" else [[pair] for pair in plans]
    stores: list[Store] = []
    with reporting(settings().progress, total=plan.n_rows, unit="words", label="extract") as report:
        for group in groups:
            n_before = sum(store.n_rows for store in stores)
            stores += extract_together(
                [one for one, _ in group],
                [place for _, place in group],
                repair=repair,
                executor=executor,
                progress=lambda done, _, before=n_before: report(before + done),  # type: ignore[misc]
            )[0]
    return dict(zip(plan.windows, stores, strict=True))


def extract_together(
    plans: Sequence[Plan],
    paths: Sequence[Path | ObjectPath],
    *,
    repair: bool = False,
    virtual: bool = False,
    executor: Executor | None = None,
    progress: Progress = None,
) -> tuple[list[Store], Timings]:
    """Run plans that differ only in their context window together, and time it; see `extract`.

    A group with a partition that is missing in any of the stores is encoded for all of them, so that the batches, and
    with them the bits, are those of a run that was never interrupted.
    """
    targets = [_Target(plan, path, repair=repair, virtual=virtual) for plan, path in zip(plans, paths, strict=True)]
    timings = Timings()
    began = time.perf_counter()
    progress = settings().progress if progress is None else progress
    with torch_threads(settings().threads), ExitStack() as stack:
        stores = [target for target in targets if not target.complete]
        for store in stores:
            store.open(stack.enter_context(StoreWriter(store.path)))
        total = sum(plan.layout.n_rows for plan in plans)
        n_done = total - sum(store.n_missing_rows for store in stores)
        with reporting(progress, total=total, unit="words", label="extract") as report:
            try:
                if n_done < total:
                    advance = Counter(report, n_done).add
                    timings = _run_here(stores, advance) if executor is None else _run_on(executor, stores, advance)
            except NonFiniteError:
                for store in stores:
                    store.remove_if_empty()
                raise
        for store in stores:
            store.writer.finish()
    timings.wall = time.perf_counter() - began
    return [open_store(path) for path in paths], timings


def _refuse_other_plan(plan: Plan, path: Path | ObjectPath) -> None:
    """Raise StoreMismatchError for a store of another plan; one that cannot be read may be repaired later."""
    if exists(path):
        with suppress(StoreDamagedError, StoreFormatError):
            require_same_plan(plan.metadata, open_reader(path).metadata, path=path)


def _create(plan: Plan, path: Path | ObjectPath, *, virtual: bool) -> bool:
    """Create the store without rows; returns False if another process has created it in the meantime."""
    if isinstance(path, Path) and not virtual:
        plan.estimate.require_space()
    try:
        metadata = replace(plan.metadata, virtual=True) if virtual else plan.metadata
        create_store(path, metadata=metadata, index=plan.index, center=_center(plan))
    except InvalidValueError:
        if not exists(path):
            raise
        return False
    return True


def _center(plan: Plan) -> NDArray[np.float32] | None:
    """Return the mean of the first rows, float32 [n_layers, hidden_size], for int8; otherwise None.

    It is the same for the same plan, whatever other windows are extracted with it.
    """
    if plan.metadata.dtype != "int8":
        return None
    encoder, layout = plan.encoder, plan.layout
    part = Part.of(plan.index, 0, min(layout.n_rows, CENTER_ROWS))
    total = np.zeros((len(layout.layers), layout.hidden_size))
    for passage in part.passages(encoder, replace(plan.text, contexts=(plan.options.context_window,))):
        spans, encoding = passage.spans, plan.options.encoding
        for pooled in encoder.encode(passage.tokenized, spans, layers=layout.layers, **encoding):
            sources, _ = passage.rows_of(0, pooled.rows)
            vectors = pooled.vectors.double()
            total += (vectors if sources is None else vectors[:, sources]).sum(1).numpy()
    return (total / part.n_rows).astype(np.float32)


def _repair_layout(plan: Plan, path: Path | ObjectPath) -> list[int]:
    """Verify a store, and write all but its vectors again if that is damaged; returns the partitions to discard."""
    _refuse_other_plan(plan, path)
    report = verify_one(path)
    if all(fault.partition is not None for fault in report.faults):
        return report.damaged_partitions
    repair_layout(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    return []


class _Target:
    """A store to write: created, or checked to be the plan's; once open, with the partitions that it does not have."""

    writer: StoreWriter
    missing: list[int]

    def __init__(self, plan: Plan, path: Path | ObjectPath, *, repair: bool, virtual: bool) -> None:
        self.plan = plan
        self.path = path
        plan.use_recorded_batching(path)
        if virtual:
            if not isinstance(path, Path) or path.suffix != ".zarr":
                raise InvalidValueError(f"{path} cannot be virtual: only a .zarr on a disk can")
            remember(plan.encoder)
        self._created = not exists(path) and _create(plan, path, virtual=virtual)
        self._damaged = _repair_layout(plan, path) if repair and not self._created else []
        store = Store(FileSource(open_reader(path)))
        require_same_plan(plan.metadata, store.metadata, path=path)
        if virtual and not store.metadata.virtual:
            raise InvalidValueError(f"{path} exists with all its vectors: drop them by `embstore thin`")
        self.center = store.source.center
        self.window = plan.contexts.index(plan.options.context_window)
        # A leftover lock is tidied by a writer; without one a finished store may be on a read-only disk.
        with storing(path):
            locked = isinstance(path, Path) and StoreLock(path).file.exists()
        self.complete = store.finished and not self._damaged and not locked

    def open(self, writer: StoreWriter) -> None:
        """Take the writer of the store, and list what is missing."""
        self.writer = writer
        if self._damaged:
            writer.discard(self._damaged)
        self.missing = writer.missing()

    @property
    def n_missing_rows(self) -> int:
        layout = self.plan.layout
        missing = {partition % layout.n_partitions for partition in self.missing}
        return sum(stop - start for start, stop in map(layout.span, missing))

    def is_missing(self, partition: int) -> bool:
        position = bisect_left(self.missing, partition)  # there may be 100,000 partitions
        return position < len(self.missing) and self.missing[position] == partition

    def remove_if_empty(self) -> None:
        """Remove a store that this call created if nothing could be written into it."""
        if self._created and len(self.writer.missing()) == self.plan.metadata.n_partitions:
            remove_store(self.path)


def _tasks(stores: Sequence[_Target], job: Job) -> Iterator[Task]:
    """Yield the groups with partitions that any store does not have of any site."""
    plan = stores[0].plan
    layout, groups = plan.layout, plan.groups
    partitions = sorted({partition % layout.n_partitions for store in stores for partition in store.missing})
    for group, members in groupby(partitions, lambda partition: partition // groups.size):
        missing = {
            partition: tuple(
                number
                for number, destination in enumerate(job.destinations)
                if stores[destination.store].is_missing(destination.layout.first + partition)
            )
            for partition in members
        }
        yield Task(Part.of(plan.index, *groups.span(group)), missing)


def _job(stores: Sequence[_Target]) -> Job:
    plan = stores[0].plan
    destinations = tuple(
        Destination(number, layout, store.window, store.center)
        for number, store in enumerate(stores)
        for layout in store.plan.metadata.layouts
    )
    return Job(plan.metadata.layers, plan.options, plan.text, destinations, plan.groups.size)


def _run_here(stores: Sequence[_Target], advance: Callable[[int], None]) -> Timings:
    """Encode, write and commit all missing partitions in this process; raises the first error."""
    plan, job = stores[0].plan, _job(stores)
    plan.encoder.use_batching(plan.metadata.extraction["batching"])  # another plan may have chosen another meanwhile
    worker = Worker(plan.encoder, job, [store.writer.write for store in stores], on_rows=advance)
    for _ in worker.run(_tasks(stores, job)):
        pass  # the writers commit
    return worker.timings


def _run_on(executor: Executor, stores: Sequence[_Target], advance: Callable[[int], None]) -> Timings:
    """Let the workers of an executor encode and write all missing partitions, and commit them.

    Raises one error that names the partitions that could not be written, after the others are committed.
    """
    plan = stores[0].plan
    n_partitions = len({partition % plan.layout.n_partitions for store in stores for partition in store.missing})
    most = MAX_TASKS_PER_GPU_CALL if plan.encoder.casts_on_device else MAX_TASKS_PER_CALL
    size = max(1, min(most, n_partitions // (plan.groups.size * CALLS_PER_WORKER * n_workers_of(executor))))
    job, submitted, timings = _job(stores), dict[int, tuple[int, ...]](), Timings()
    failed: list[tuple[int, Exception]] = []
    warned: set[str] = set()

    def calls() -> Iterator[Callable[[], Outcome]]:
        remote = pickle.dumps(_remote_job(stores, job))
        tasks = _tasks(stores, job)
        while len(failed) < MAX_FAILURES and (some := list(islice(tasks, size))):
            for task in some:
                submitted.update(task.missing)
            yield partial(run_tasks, remote, some)

    n_committed = 0
    try:
        with closing(iter_completed(executor, calls())) as outcomes:
            for outcome in outcomes:
                for line in set(outcome.warnings) - warned:
                    warnings.warn(line, WorkerWarning, stacklevel=2)
                    warned.add(line)
                for done in outcome.done:
                    destinations = submitted.pop(done.partition)
                    if done.error is not None:
                        failed.append((done.partition, done.error))
                        continue
                    for number, record in zip(destinations, done.records, strict=True):
                        destination = job.destinations[number]
                        stores[destination.store].writer.commit(destination.layout.first + done.partition, record)
                    n_committed += 1
                    start, stop = plan.layout.span(done.partition)
                    n_rows = (stop - start) * len(job.first_of_stores(destinations))
                    timings.n_rows += n_rows
                    timings.n_subwords += done.n_subwords
                    advance(n_rows)
    except ExecutorError as error:
        raise ExecutorError(f"{error}; {_how_to_resume(n_committed, n_partitions)}") from error
    if failed:
        raise _summary(stores, failed, n_committed, n_partitions) from failed[0][1]
    return timings


def _remote_job(stores: Sequence[_Target], job: Job) -> RemoteJob:
    """Return what the workers need, for stores whose locks this process holds."""
    targets = []
    for store in stores:
        path = store.path.absolute() if isinstance(store.path, Path) else store.path
        targets.append(Target(path, place_mark(path), store.writer.metadata.fingerprint))
    plan = stores[0].plan
    return RemoteJob(job, tuple(targets), plan.encoder_spec, plan.metadata.software)


def _summary(
    stores: Sequence[_Target], failed: Sequence[tuple[int, Exception]], n_committed: int, n_partitions: int
) -> EmbstoreError:
    """Return one error for all partitions that failed, of their own type if that is one of embstore's."""
    plan = stores[0].plan
    parts = [f"{_named(plan, partition)}: {one_line(error)}" for partition, error in failed[:MAX_DETAILED_FAILURES]]
    if others := [str(partition) for partition, _ in failed[MAX_DETAILED_FAILURES:]]:
        parts.append(f"also {'partition' if len(others) == 1 else 'partitions'} {', '.join(others)}")
    if left := n_partitions - n_committed - len(failed):
        parts.append(f"{left:,} more were not tried")
    message = (
        f"{len(failed):,} of {n_partitions:,} partitions of {', '.join(str(store.path) for store in stores)} "
        f"could not be written: {'; '.join(parts)}; {_how_to_resume(n_committed, n_partitions)}"
    )
    kinds = {type(error) for _, error in failed}
    kind = kinds.pop()
    return ExecutorError(message) if kinds or not issubclass(kind, EmbstoreError) else kind(message)


def _named(plan: Plan, partition: int) -> str:
    start, stop = plan.layout.span(partition)
    first, last = plan.index.sentence[[start, stop - 1]].tolist()
    return f"partition {partition} (rows {start:,}-{stop - 1:,}, sentences {first:,}-{last:,})"


def _how_to_resume(n_committed: int, n_partitions: int) -> str:
    return f"{n_committed:,} of {n_partitions:,} partitions were committed: the same command continues with the rest"
