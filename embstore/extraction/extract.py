"""From a plan to a finished store: partitions are encoded here or by an executor's workers, and committed here."""

from __future__ import annotations

import pickle
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
from embstore.extraction.cast import Cast
from embstore.extraction.partition import Part
from embstore.extraction.plan import Plan, text_options
from embstore.extraction.resume import require_same_plan
from embstore.extraction.worker import (
    CENTER_ROWS,
    Done,
    Job,
    Outcome,
    Target,
    Task,
    Timings,
    Worker,
    layer_means,
    run_tasks,
)
from embstore.progress import Progress, Report, reporting
from embstore.store import (
    Store,
    StoreWriter,
    create_store,
    open_store,
    verify,
)
from embstore.store.backend import exists, open_reader
from embstore.store.check.repair import repair_layout
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.writer import place_mark, remove_store

MAX_FAILURES = 8  # failed partitions after which no more are submitted
MAX_DETAILED_FAILURES = 4
MAX_TASKS_PER_CALL = 4  # partitions that a worker is sent at once: one is written as the next is encoded


def extract(
    plan: Plan,
    path: str | Path | ObjectPath,
    *,
    repair: bool = False,
    executor: Executor | None = None,
    progress: Progress = None,
    timings: Timings | None = None,
) -> Store:
    """Write the hidden states of a plan into a store, or complete a store that an earlier call began.

    Every partition that the store does not have yet is encoded and committed. The same call resumes after an
    interruption, and leaves a finished store as it is. The bytes of the store depend on the plan alone.

    Parameters
    ----------
    plan:
        From `embstore.plan`.
    path:
        NAME.zarr, NAME.h5, or s3://BUCKET/NAME.zarr.
    repair:
        Verify the store first, and encode damaged partitions again.
    executor:
        Any `concurrent.futures.Executor`, such as `embstore.executors.Processes`: its workers encode and write the
        partitions and this process commits them. By default this process does both.
    progress:
        None for a progress bar, False for none, or a function called with (rows, total rows).
    timings:
        Filled with where the time was spent.

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
    return extract_together(
        [plan], [parse_location(path)], repair=repair, executor=executor, progress=progress, timings=timings
    )[0]


def extract_together(
    plans: Sequence[Plan],
    paths: Sequence[Path | ObjectPath],
    *,
    repair: bool = False,
    executor: Executor | None = None,
    progress: Progress = None,
    timings: Timings | None = None,
) -> list[Store]:
    """Run plans that differ only in their context window together; see `extract`.

    A partition that is missing in any of the stores is encoded for all of them, so that the batches, and with them
    the bits, are those of a run that was never interrupted.
    """
    if len(plans) > 1:
        for plan, path in zip(plans, paths, strict=True):
            _refuse_other_plan(plan, path)
    targets = [_Target(plan, path, repair=repair) for plan, path in zip(plans, paths, strict=True)]
    timings = timings or Timings()
    began = time.perf_counter()
    with ExitStack() as stack:
        stores = [target for target in targets if not target.complete]
        for store in stores:
            store.open(stack.enter_context(StoreWriter(store.path)))
        total = sum(plan.layout.n_rows for plan in plans)
        missing = sum(store.n_missing_rows for store in stores)
        try:
            with reporting(progress, total=total, unit="words", label="extract") as report:
                if missing:
                    run = _run_here if executor is None else partial(_run_on, executor)
                    run(plans, stores, timings, report, total - missing)
        except NonFiniteError:
            for store in stores:
                store.remove_if_empty()
            raise
        for store in stores:
            store.writer.finish()
    timings.wall = time.perf_counter() - began
    return [open_store(path) for path in paths]


def _refuse_other_plan(plan: Plan, path: Path | ObjectPath) -> None:
    """Raise StoreMismatchError for a store of another plan; one that cannot be read may be repaired later."""
    if exists(path):
        with suppress(StoreDamagedError, StoreFormatError):
            require_same_plan(plan.metadata, open_reader(path).metadata, path=path)


def _create(plan: Plan, path: Path | ObjectPath) -> bool:
    """Create the store without rows; returns False if another process has created it in the meantime."""
    if isinstance(path, Path):
        plan.estimate.require_space()
    try:
        create_store(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    except InvalidValueError:
        if not exists(path):
            raise
        return False
    return True


def _center(plan: Plan) -> NDArray[np.float32] | None:
    """Return the mean of the first rows of each layer for int8, the same for the same plan; otherwise None."""
    if plan.metadata.dtype != "int8":
        return None
    return layer_means(
        Part.of(plan.index, 0, min(plan.layout.n_rows, CENTER_ROWS)),
        plan.encoder,
        layers=plan.layout.layers,
        options=plan.options,
        text=text_options(plan.reading, plan.options, (plan.options.context_window,)),
    )


def _repair_layout(plan: Plan, path: Path | ObjectPath) -> list[int]:
    """Verify a store, and write all but its vectors again if that is damaged; returns the partitions to discard."""
    _refuse_other_plan(plan, path)
    report = verify(path)
    if all(fault.partition is not None for fault in report.faults):
        return report.damaged_partitions
    repair_layout(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    return []


class _Target:
    """A store to write: created, or checked to be the plan's; once open, with the partitions that it does not have."""

    writer: StoreWriter
    missing: list[int]

    def __init__(self, plan: Plan, path: Path | ObjectPath, *, repair: bool) -> None:
        self.plan = plan
        self.path = path
        self._created = not exists(path) and _create(plan, path)
        self._damaged = _repair_layout(plan, path) if repair and not self._created else []
        store = Store(open_reader(path))
        require_same_plan(plan.metadata, store.metadata, path=path)
        self.center = store.center
        self.window = plan.contexts.index(plan.options.context_window)
        # A leftover lock is tidied by a writer; without one a finished store may be on a read-only disk.
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
        return sum(stop - start for start, stop in map(self.plan.layout.span, self.missing))

    def is_missing(self, partition: int) -> bool:
        position = bisect_left(self.missing, partition)  # there may be 100,000 partitions
        return position < len(self.missing) and self.missing[position] == partition

    def remove_if_empty(self) -> None:
        """Remove a store that this call created if nothing could be written into it."""
        if self._created and len(self.writer.missing()) == self.plan.layout.n_partitions:
            remove_store(self.path)


def _tasks(plan: Plan, stores: Sequence[_Target]) -> Iterator[Task]:
    """Yield the partitions that any store does not have."""
    for partition in sorted({partition for store in stores for partition in store.missing}):
        chosen = tuple(number for number, store in enumerate(stores) if store.is_missing(partition))
        yield Task(partition, Part.of(plan.index, *plan.layout.span(partition)), chosen)


def _run_here(plans: Sequence[Plan], stores: Sequence[_Target], timings: Timings, report: Report, n_done: int) -> None:
    """Encode, write and commit all missing partitions in this process; raises the first error."""
    plan = plans[0]
    batching = plan.metadata.extraction["batching"]
    if plan.encoder.batching != batching:
        plan.encoder.use_batching(batching)  # another plan may have chosen another one in the meantime

    def advance(n_rows: int) -> None:
        nonlocal n_done
        n_done += n_rows
        report(n_done)

    worker = Worker(
        plan.encoder,
        layout=plan.layout,
        options=plan.options,
        text=plan.text,
        windows=[store.window for store in stores],
        casts=[Cast(plan.layout, center=store.center) for store in stores],
        writes=[store.writer.write for store in stores],
        timings=timings,
        on_rows=advance,
    )
    with closing(worker.run(_tasks(plan, stores))) as outcomes:
        for done in outcomes:
            if done.error is not None:
                raise done.error


def _run_on(
    executor: Executor,
    plans: Sequence[Plan],
    stores: Sequence[_Target],
    timings: Timings,
    report: Report,
    n_done: int,
) -> None:
    """Have an executor's workers write the missing partitions, and commit each as it is completed.

    Raises one error that names the partitions that could not be written, after the others are committed.
    """
    plan = plans[0]
    partitions = {partition for store in stores for partition in store.missing}
    size = max(1, min(MAX_TASKS_PER_CALL, len(partitions) // (8 * n_workers_of(executor))))
    submitted: dict[int, Task] = {}
    failures: list[Done] = []

    def calls() -> Iterator[Callable[[], Outcome]]:
        job = pickle.dumps(_job(plan, stores))
        tasks = _tasks(plan, stores)
        while len(failures) < MAX_FAILURES and (some := list(islice(tasks, size))):
            submitted.update((task.partition, task) for task in some)
            yield partial(run_tasks, job, some)

    n_committed = 0
    try:
        with closing(iter_completed(executor, calls())) as outcomes:
            for outcome in outcomes:
                for line in outcome.warnings:
                    warnings.warn(line, WorkerWarning, stacklevel=2)
                for done in outcome.done:
                    task = submitted.pop(done.partition)
                    if done.error is not None:
                        failures.append(done)
                        submitted[done.partition] = task
                        continue
                    for store, record in zip(task.stores, done.records, strict=True):
                        stores[store].writer.commit(done.partition, record)
                    n_committed += 1
                    n_rows = task.part.n_rows * len(task.stores)
                    timings.n_rows += n_rows
                    timings.n_subwords += done.n_subwords
                    n_done += n_rows
                    report(n_done)
    except ExecutorError as error:
        raise ExecutorError(f"{error}; {_how_to_resume(n_committed, len(partitions))}") from error
    if failures:
        failed = [(submitted[done.partition], done.error) for done in failures if done.error is not None]
        raise _summary(stores, failed, n_committed, len(partitions)) from failed[0][1]


def _job(plan: Plan, stores: Sequence[_Target]) -> Job:
    """Return what the workers need, for stores whose locks this process holds."""
    targets = []
    for store in stores:
        path = store.path.absolute() if isinstance(store.path, Path) else store.path
        fingerprint = store.writer.metadata.fingerprint
        targets.append(Target(path, place_mark(path), fingerprint, store.window, store.center))
    return Job(tuple(targets), plan.layout, plan.options, plan.text, plan.encoder_spec, plan.metadata.software)


def _summary(
    stores: Sequence[_Target], failed: Sequence[tuple[Task, Exception]], n_committed: int, n_partitions: int
) -> EmbstoreError:
    """Return one error for all partitions that failed, of their own type if that is one of embstore's."""
    parts = [f"{task}: {one_line(error)}" for task, error in failed[:MAX_DETAILED_FAILURES]]
    if others := [str(task.partition) for task, _ in failed[MAX_DETAILED_FAILURES:]]:
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


def _how_to_resume(n_committed: int, n_partitions: int) -> str:
    return f"{n_committed:,} of {n_partitions:,} partitions were committed: the same command continues with the rest"
