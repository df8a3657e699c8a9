"""The coordinator of a distributed extraction: hands partitions to workers and commits what they report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from embstore.errors import EmbstoreError, ExecutorError, WorkerWarning
from embstore.executor import Executor, Outcome, in_one_line
from embstore.extraction.encoder_recipe import EncoderRecipe
from embstore.extraction.job import ExtractionJob, Written
from embstore.extraction.piece import Piece, cut_pieces
from embstore.extraction.plan import Plan
from embstore.store import Store, StoreWriter
from embstore.store.backend import open_reader
from embstore.store.writer import place_mark

NAMED = 4  # failed partitions that are told in full
GIVEN_UP_AFTER = 8  # failed partitions in a row, more where there are many workers

Committed = Callable[[Piece, Written], object]


@dataclass(frozen=True)
class Failure:
    """A partition that no worker could write: its rows and sentences, and what the last one said."""

    partition: int
    rows: tuple[int, int]
    sentences: tuple[int, int]
    error: Exception
    attempts: int
    worker: str

    def __str__(self) -> str:
        by = f" by {self.worker}" if self.worker else ""
        tried = f"the last of {self.attempts} attempts{by}" if self.attempts > 1 else f"tried once{by}"
        return (
            f"partition {self.partition} (rows {_span(self.rows)}, sentences {_span(self.sentences)}): "
            f"{in_one_line(self.error)} ({tried})"
        )


def distribute(
    plan: Plan, writer: StoreWriter, missing: Sequence[int], executor: Executor, *, committed: Committed
) -> None:
    """Have the missing partitions of a store written by an executor's workers and commit each as it is reported.

    Raises, when all others are done, one error that names the partitions which could not be written: of the kind of
    their errors where these are of one kind, else ExecutorError; also that where the workers are gone.
    """
    failed: list[Failure] = []
    done = in_a_row = 0
    outcomes = executor.run(job_of(plan, writer), cut_pieces(plan.index, plan.layout, missing))
    with ExitStack() as stack:
        stack.callback(getattr(outcomes, "close", lambda: None))
        try:
            for outcome in outcomes:
                if outcome.result is not None:
                    _commit(writer, outcome.piece, outcome.result, committed)
                    _tell_of_attempts(outcome)
                    done, in_a_row = done + 1, 0
                    continue
                failed.append(_failure(outcome))
                in_a_row += 1
                if in_a_row >= max(GIVEN_UP_AFTER, 2 * executor.workers):
                    break
        except ExecutorError as error:
            if not done:
                raise
            raise ExecutorError(f"{error}; {_how_to_go_on(done, len(missing))}") from error
    if failed:
        raise _summary(writer, failed, done, len(missing)) from failed[0].error


def job_of(plan: Plan, writer: StoreWriter) -> ExtractionJob:
    """What the workers of a plan need, for the store that `writer` has locked."""
    path = writer.path.absolute() if isinstance(writer.path, Path) else writer.path
    return ExtractionJob(
        path=path,
        mark=place_mark(path),
        recipe_sha256=writer.metadata.recipe_sha256,
        layout=plan.layout,
        options=plan.options,
        limit=plan.limit,
        center=Store(open_reader(writer.path)).center,
        recipe=EncoderRecipe.of(
            plan.encoder, plan.reading.check_sentences(), batching=plan.metadata.extraction["batching"]
        ),
        software=plan.metadata.software,
        encoder=plan.encoder,
    )


def _commit(writer: StoreWriter, piece: Piece, written: Written, committed: Committed) -> None:
    writer.commit(piece.partition, written.record)
    committed(piece, written)


def _tell_of_attempts(outcome: Outcome[Piece, Written]) -> None:
    for failure in outcome.failures:
        warnings.warn(f"partition {outcome.piece.partition} was done again: {failure}", WorkerWarning, stacklevel=2)


def _failure(outcome: Outcome[Piece, Written]) -> Failure:
    piece = outcome.piece
    assert outcome.error is not None
    return Failure(piece.partition, piece.rows, piece.sentences, outcome.error, outcome.attempts, outcome.worker)


def _summary(writer: StoreWriter, failed: Sequence[Failure], done: int, wanted: int) -> EmbstoreError:
    told = [str(failure) for failure in failed[:NAMED]]
    if others := [failure.partition for failure in failed[NAMED:]]:
        told.append(f"also {'partition' if len(others) == 1 else 'partitions'} {', '.join(map(str, others))}")
    left = wanted - done - len(failed)
    if left:
        told.append(f"{left:,} more were then not tried")
    message = (
        f"{len(failed):,} of {wanted:,} partitions of {writer.path} could not be written: {'; '.join(told)}; "
        f"{_how_to_go_on(done, wanted)}"
    )
    kinds = {type(failure.error) for failure in failed}
    kind = kinds.pop()
    if kinds or not issubclass(kind, EmbstoreError):
        return ExecutorError(message)
    return kind(message)


def _how_to_go_on(done: int, wanted: int) -> str:
    return f"{done:,} of {wanted:,} are committed in this run: the same command again goes on with the rest"


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]:,}-{span[1] - 1:,}"
