"""From a plan to a finished store: partitions are encoded here or by an executor's workers, and committed here."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing, suppress
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
    RecomputedWarning,
    StoreDamagedError,
    StoreFormatError,
)
from embstore.executors import iter_results, n_workers_of, one_line
from embstore.extraction.append import append as append_part
from embstore.extraction.partition import Part, Reader
from embstore.extraction.plan import Plan
from embstore.extraction.resume import require_same_plan
from embstore.extraction.worker import Done, Job, RemoteJob, Task, Worker, run_tasks
from embstore.models.origin import remember
from embstore.progress import Counter, reporting
from embstore.store import Store, StoreWriter, create_store, open_store
from embstore.store.backend import exists, open_reader
from embstore.store.check.repair import repair_layout
from embstore.store.check.verify import verify_one
from embstore.store.opening import restore_list
from embstore.store.source import FileSource
from embstore.store.storage.files import storing
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.writer import place_mark, remove_store

CENTER_ROWS = 4096  # whose mean is taken from vectors that are stored as int8
MAX_FAILURES = 8  # failed partitions after which no more are submitted
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
    run = partial(_extract, plan, virtual=virtual, executor=executor)
    return append_part(plan, path, run, repair=repair) if append else run(parse_location(path), repair)


def _extract(plan: Plan, path: Path | ObjectPath, repair: bool, *, virtual: bool, executor: Executor | None) -> Store:
    """Extract into one store; see `extract`.

    A group with a partition that is missing of any site is encoded for all of them, so that the batches, and with them
    the bits, are those of a run that was never interrupted.
    """
    plan.use_recorded_batching(path)
    if virtual and (not isinstance(path, Path) or path.suffix != ".zarr"):
        raise InvalidValueError(f"{path} cannot be virtual: only a .zarr on a disk can")
    remember(plan.encoder)
    created = not exists(path) and _create(plan, path, virtual=virtual)
    damaged: list[int] = []
    if repair and not created:
        damaged = _repair_layout(plan, path)
        restore_list(path)
    store = Store(FileSource(open_reader(path)))
    require_same_plan(plan.metadata, store.metadata, path=path)
    if virtual and not store.metadata.virtual:
        raise InvalidValueError(f"{path} exists with all its vectors: drop them by `embstore thin`")
    # A leftover lock is tidied by a writer; without one a finished store may be on a read-only disk.
    with storing(path):
        locked = isinstance(path, Path) and StoreLock(path).file.exists()
    if store.finished and not damaged and not locked:
        return open_store(path)
    with torch_threads(settings().threads), StoreWriter(path) as writer:
        if damaged:
            writer.discard(damaged)
        missing, layout, metadata = writer.missing(), plan.layout, plan.metadata
        job = Job(metadata, plan.options, plan.limit, store.source.center)
        n_missing = sum(stop - start for start, stop in map(layout.span, {at % layout.n_partitions for at in missing}))
        n_done, total = layout.n_rows - n_missing, layout.n_rows
        with reporting(settings().progress, total=total, unit="words", label="extract") as report:
            advance = Counter(report, n_done).add
            try:
                if missing and executor is None:
                    # another plan may have chosen another batching meanwhile
                    plan.encoder.use_batching(metadata.extraction["batching"])
                    for _ in Worker(plan.encoder, job, writer.write, on_rows=advance).run(_tasks(plan, missing)):
                        pass  # the writer commits
                elif missing and executor is not None:
                    _run_on(executor, plan, job, writer, missing, advance)
            except NonFiniteError:
                if created and len(writer.missing()) == metadata.n_partitions:
                    remove_store(path)  # nothing could be written into it
                raise
        writer.finish()
    return open_store(path)


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
    """Return the mean of the first rows, float32 [n_layers, hidden_size], for int8; otherwise None."""
    if plan.metadata.dtype != "int8":
        return None
    encoder, layout = plan.encoder, plan.layout
    part = Part.of(plan.index, 0, min(layout.n_rows, CENTER_ROWS))
    total = np.zeros((len(layout.layers), layout.hidden_size))
    for passage in Reader(encoder, plan.options, plan.limit).passages(part):
        spans, encoding = passage.spans, plan.options.encoding
        for pooled in encoder.encode(passage.tokenized, spans, layers=layout.layers, **encoding):
            sources, _ = passage.rows_of(pooled.rows)
            vectors = pooled.vectors.double()
            total += (vectors if sources is None else vectors[:, sources]).sum(1).numpy()
    return (total / part.n_rows).astype(np.float32)


def _repair_layout(plan: Plan, path: Path | ObjectPath) -> list[int]:
    """Verify a store, and write all but its vectors again if that is damaged; returns the partitions to discard."""
    with suppress(StoreDamagedError, StoreFormatError):
        require_same_plan(plan.metadata, open_reader(path).metadata, path=path)
    report = verify_one(path)
    for fault in report.faults:
        if fault.is_of_cache:
            warnings.warn(f"{fault.part}: {fault.what}; the store is whole", RecomputedWarning, stacklevel=3)
    if all(fault.partition is not None for fault in report.faults):
        return report.damaged_partitions
    repair_layout(path, metadata=plan.metadata, index=plan.index, center=_center(plan))
    return []


def _tasks(plan: Plan, missing: list[int]) -> Iterator[Task]:
    """Yield the groups with partitions that the store does not have of any site."""
    layout, groups, absent = plan.layout, plan.groups, set(missing)
    partitions = sorted({partition % layout.n_partitions for partition in missing})
    for group, members in groupby(partitions, lambda partition: partition // groups.size):
        sites = {
            partition: tuple(site for site, own in enumerate(plan.metadata.layouts) if own.first + partition in absent)
            for partition in members
        }
        yield Task(Part.of(plan.index, *groups.span(group)), sites)


def _run_on(
    executor: Executor, plan: Plan, job: Job, writer: StoreWriter, missing: list[int], advance: Callable[[int], None]
) -> None:
    """Let workers write all missing partitions, and commit them; one error names those that could not be written."""
    layout, submitted = plan.layout, dict[int, tuple[int, ...]]()
    n_partitions = len({partition % layout.n_partitions for partition in missing})
    most = MAX_TASKS_PER_GPU_CALL if plan.encoder.casts_on_device else MAX_TASKS_PER_CALL
    size = max(1, min(most, n_partitions // (plan.groups.size * CALLS_PER_WORKER * n_workers_of(executor))))
    failed: dict[int, Exception] = {}
    plan.encoder.free()  # a worker may need all of its GPU

    def calls() -> Iterator[Callable[[], list[Done]]]:
        path = writer.path.absolute() if isinstance(writer.path, Path) else writer.path
        fingerprint = writer.metadata.fingerprint
        remote = pickle.dumps(RemoteJob(job, path, place_mark(path), fingerprint, plan.encoder_spec))
        tasks = _tasks(plan, missing)
        while len(failed) < MAX_FAILURES and (some := list(islice(tasks, size))):
            for task in some:
                submitted.update(task.missing)
            yield partial(run_tasks, remote, some)

    n_committed = 0
    try:
        with closing(iter_results(executor, calls(), in_order=False)) as outcomes:
            for done in (done for outcome in outcomes for done in outcome):
                sites = submitted.pop(done.partition)
                if done.error is not None:
                    failed[done.partition] = done.error
                    continue
                for site, record in zip(sites, done.records, strict=True):
                    writer.commit(job.metadata.layouts[site].first + done.partition, record)
                n_committed += 1
                start, stop = layout.span(done.partition)
                advance(stop - start)
    except ExecutorError as error:
        raise ExecutorError(f"{error}; {_how_to_resume(n_committed, n_partitions)}") from error
    if failed:
        partition, first = min(failed.items(), key=lambda item: item[0])
        start, stop = layout.span(partition)
        message = (
            f"{len(failed):,} of {n_partitions:,} partitions of {writer.path} could not be written, first partition "
            f"{partition} (rows {start:,}-{stop - 1:,}): {one_line(first)}; {_how_to_resume(n_committed, n_partitions)}"
        )
        raise (type(first) if isinstance(first, EmbstoreError) else ExecutorError)(message) from first


def _how_to_resume(n_committed: int, n_partitions: int) -> str:
    return f"{n_committed:,} of {n_partitions:,} partitions were committed: the same command continues with the rest"
