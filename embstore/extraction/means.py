"""One mean vector for each word and layer, in one pass of the model that stores no vector of an occurrence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.corpus.keep import blocks_of
from embstore.devices import idle_threads, torch_threads
from embstore.errors import InvalidValueError
from embstore.extraction.cast import CPU
from embstore.extraction.estimate import Estimate
from embstore.extraction.partition import Part
from embstore.extraction.plan import Plan
from embstore.extraction.resume import require_same_plan
from embstore.extraction.spool import BLOCK
from embstore.extraction.sums import MOST_CONTEXTS, UNITS, Sums, sums_file, sums_lock
from embstore.extraction.worker import Destination, Done, Full, Job, Task, Timings, Worker
from embstore.progress import Counter, Progress, reporting
from embstore.store import Layout, Metadata, Store, StoreWriter
from embstore.store.backend import exists, open_reader, require_writable
from embstore.store.convert.words import fill_words, word_metadata
from embstore.store.layout import RESIDUAL
from embstore.store.storage.files import clean_up, storing

SUM_NBYTES, MEAN_NBYTES = 8, 4


@checked
def extract_means(plan: Plan, path: str | Path, *, progress: Progress = None, timings: Timings | None = None) -> Store:
    """Write the mean vector of each word in each layer into a float32 store with a row for each word.

    The vectors of occurrences are rounded to float16, as `extract` stores them, and added up exactly (as integers) on
    the device that computes them, so that the means do not depend on the order, and are those of
    `static_vectors(store, method="mean")` of a full store. Sums are kept in STORE.sums, saved about once a minute: the
    same call resumes from there. A finished store is left as it is.

    Parameters
    ----------
    plan:
        From `embstore.plan`, of the site residual and dtype float16.
    path:
        NAME.zarr or NAME.h5.
    progress:
        None for a progress bar, False for none, or a function called with (rows, total rows).
    timings:
        Filled with where the time was spent.

    Raises
    ------
    InvalidValueError
        For a plan of other sites or of another dtype, and for a word of more than 8,388,607 contexts.
    StoreMismatchError
        If the store, or the sums, were made by another plan.
    DeviceMemoryError
        If the sums do not fit, 8 bytes for each word, layer and feature.
    NonFiniteError
        If a hidden state cannot be stored.
    StoreBusyError
        If another process adds up the same words.
    StoreDamagedError
        If the file of sums is damaged.
    """
    path = Path(path)
    require_writable(path)
    plan.use_recorded_batching(path)
    file, lock, counts, metadata = sums_file(path), sums_lock(path), _counts(plan), _metadata(plan)
    with storing(path):
        is_tidy = not (file.exists() or lock.file.exists())
    if is_tidy and (store := _existing(path, metadata)) is not None and store.finished:  # perhaps on a read-only disk
        return store
    with lock:
        store = _existing(path, metadata)
        if store is None or not store.committed.all():
            store = _made(plan, path, metadata, counts, progress, timings or Timings())
        elif not store.finished:
            with StoreWriter(path) as writer:
                writer.finish()
        clean_up(file)
    return store


def _existing(path: Path, metadata: Metadata) -> Store | None:
    """Return the store if there is one. Raises StoreMismatchError for that of another plan."""
    if not exists(path):
        return None
    store = Store(open_reader(path))
    require_same_plan(metadata, store.metadata, path=path)
    return store


def _made(
    plan: Plan, path: Path, metadata: Metadata, counts: NDArray[np.int64], progress: Progress, timings: Timings
) -> Store:
    """Add up all that is not among the sums yet, and write the store."""
    means_estimate(plan).require_space()
    device = plan.encoder.device if plan.encoder.casts_on_device else CPU
    sums = Sums(sums_file(path), plan.metadata, len(counts), device)
    _add_up(plan, sums, progress=progress, timings=timings)
    units = sums.units.cpu().numpy()
    layers = {layer: number for number, layer in enumerate(metadata.layers)}

    def means(layer: int, rows: slice) -> NDArray[np.float32]:
        return (units[layers[layer], rows] / UNITS / counts[rows, None]).astype(np.float32)

    return fill_words(path, plan.index.words, metadata, means)


def means_estimate(plan: Plan) -> Estimate:
    """Return the estimate of a plan of which only the mean of each word is stored, as `extract_means` does."""
    cost, numbers = plan.estimate, len(plan.index.words) * plan.metadata.n_features
    on_device = cost.device_nbytes is not None
    return replace(
        cost,
        store_nbytes=numbers * (SUM_NBYTES + MEAN_NBYTES),
        memory_nbytes=cost.memory_nbytes + numbers * SUM_NBYTES,
        device_nbytes=cost.device_nbytes + numbers * SUM_NBYTES if cost.device_nbytes is not None else None,
        pinned_nbytes=0 if on_device else None,
        break_even=None,
    )


def _counts(plan: Plan) -> NDArray[np.int64]:
    """Return the number of occurrences of each word. Raises InvalidValueError for a plan whose means are not made."""
    if plan.options.sites != (RESIDUAL,) or plan.metadata.dtype != "float16":
        raise InvalidValueError(
            f"means are made of the site residual in float16, not of {', '.join(plan.options.sites)} in "
            f"{plan.metadata.dtype}: leave out sites and dtype"
        )
    counts = np.zeros(len(plan.index.words), np.int64)
    for some in blocks_of(plan.layout.n_rows, BLOCK):
        counts += np.bincount(plan.index.type[some], minlength=len(counts))
    if counts.max() > MOST_CONTEXTS:
        word = plan.index.words[int(counts.argmax())]
        raise InvalidValueError(
            f"{word!r} occurs {counts.max():,} times: means are made of at most {MOST_CONTEXTS:,} occurrences of a "
            "word; give fewer max contexts"
        )
    return counts


def _metadata(plan: Plan) -> Metadata:
    """Return the metadata of the store of means."""
    given, n_words = plan.metadata, len(plan.index.words)
    layout = Layout.of(n_rows=n_words, layers=given.layers, hidden_size=given.hidden_size, dtype="float32")
    return word_metadata(given, layout, made={"method": "mean", "occurrences": given.n_rows})


def _add_up(plan: Plan, sums: Sums, *, progress: Progress, timings: Timings) -> None:
    """Encode the partitions that are not added yet."""
    encoder, layout = plan.encoder, plan.layout
    encoder.use_batching(plan.metadata.extraction["batching"])
    window = plan.contexts.index(plan.options.context_window)
    job = Job(layout.layers, plan.options, plan.text, (Destination(0, layout, window, None),), plan.groups.size)
    began, total = time.perf_counter(), layout.n_rows
    with torch_threads(idle_threads()), reporting(progress, total=total, unit="words", label="extract") as report:
        advance = Counter(report, min(sums.done * layout.partition_rows, total)).add
        worker = Summing(encoder, job, sums, plan.index.type, timings=timings, on_rows=advance)
        for _ in worker.run(_tasks(plan, sums.done)):
            pass
    assert sums.done == layout.n_partitions
    sums.save()
    timings.wall = time.perf_counter() - began


def _tasks(plan: Plan, done: int) -> Iterator[Task]:
    """Yield the groups with partitions that are not among the first `done`."""
    for group in range(done // plan.groups.size, len(plan.groups)):
        missing = {number: (0,) for number in plan.groups.partitions(group) if number >= done}
        if missing:
            yield Task(Part.of(plan.index, *plan.groups.span(group)), missing)


class Summing(Worker):
    """Adds partitions, in their order, to sums on the device, where a `Worker` copies and writes them."""

    def __init__(self, encoder: Any, job: Job, sums: Sums, types: NDArray[np.int32], **options: Any) -> None:
        super().__init__(encoder, job, [lambda partition, arrays: None], **options)
        self._sums, self._types = sums, types
        self._failure: Exception | None = None

    def _leave(self, disk: Executor, full: Full) -> Future[Done]:
        group, began = full.group, time.perf_counter()
        start, stop = group.span(full.partition)
        try:
            if self._failure is not None:  # of a partition before this one, whose vectors are not among the sums
                raise self._failure
            with self._checked(full):
                (buffer,) = group.buffers
                vectors = buffer[self._job.layout.vectors][full.partition - group.first, :, : stop - start]
                self._sums.add(vectors, np.asarray(self._types[start:stop], np.int64))
                self.fetch(())
            self._sums.done = full.partition + 1
            self._sums.save_in_time()
        except Exception as error:
            self._failure = error
            raise
        finally:
            group.leave(full.partition)
        done: Future[Done] = Future()
        done.set_result(Done(full.partition, (), full.n_subwords, None, time.perf_counter() - began))
        return done
