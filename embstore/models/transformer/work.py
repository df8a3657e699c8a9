"""The sentences and spans of one call of `encode`, and batches on their way back from the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.models.encoder import Pooled, Spans, StageTimes, Tokenized
from embstore.models.transformer.batches import Batch
from embstore.models.transformer.stopwatch import Stopwatch
from embstore.models.transformer.tokens import ragged_indices
from embstore.models.transformer.transfer import Copying


class Passed:
    """A batch whose vectors are on their way to the host.

    `rows`: int64 [n], its spans; `copying`: the vectors, and the least and largest of each layer where these were
    asked for. `begun`, `made`, `ran`: when the work, the forward pass and the copy began; `pools`: from when to when
    each layer was pooled; `computed`: the dtype before they were cast.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        copying: Copying,
        begun: Any,
        made: Any,
        ran: Any,
        pools: list[Any],
        computed: torch.dtype | None = None,
    ) -> None:
        self._computed = computed
        self._rows = rows
        self._copying = copying
        self._moments = begun, made, ran
        self._pools = pools

    def collect(self, clock: Stopwatch, times: StageTimes) -> Pooled:
        """Wait for the vectors, and book the stages: making the inputs counts as copying."""
        begun, made, ran = self._moments
        copying = self._copying
        pooling = sum(clock.seconds(start, stop) for start, stop in self._pools)
        times.copy += clock.seconds(copying.began, copying.ended) + clock.seconds(begun, made)
        times.pool += pooling
        times.forward += clock.seconds(made, ran) - pooling
        vectors, *extremes = copying.host
        return Pooled(self._rows, vectors, extremes[0] if extremes else None, self._computed)


def collected(passes: Iterable[Passed | None], clock: Stopwatch, times: StageTimes, *, ahead: int) -> Iterator[Pooled]:
    """Yield the vectors of batch after batch, while up to `ahead` later ones run; None: collect all that waits."""
    waiting: deque[Passed] = deque()
    for passed in passes:
        if passed is not None:
            waiting.append(passed)
        while len(waiting) > (ahead if passed is not None else 0):
            yield waiting.popleft().collect(clock, times)
    while waiting:
        yield waiting.popleft().collect(clock, times)


class Work:
    """The sentences that have spans, each with its run of ids and its run of spans.

    `word_indptr`: int64 [words + 1], the runs of ids that are words.
    """

    def __init__(
        self,
        ids: NDArray[np.int32],
        word_indptr: NDArray[np.int64],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        spans: Spans,
    ):
        self.ids = ids
        self.word_indptr = word_indptr
        self.starts = starts
        self.lengths = lengths
        self._spans = spans
        self._first_span = np.searchsorted(spans.sentence, np.unique(spans.sentence))
        self._span_count = np.diff(np.append(self._first_span, len(spans.sentence)))

    @classmethod
    def of(cls, tokenized: Tokenized, spans: Spans, limit: int | None) -> Work:
        sentences = len(tokenized.sentence_indptr) - 1
        if len(spans.sentence) and (spans.sentence.min() < 0 or spans.sentence.max() >= sentences):
            raise InvalidValueError(f"a span names a sentence that is not among the {sentences} given")
        if np.any(np.diff(spans.sentence) < 0):
            raise InvalidValueError("the spans must be ascending by sentence")
        bounds = tokenized.word_indptr[tokenized.sentence_indptr]
        lengths = np.diff(bounds)
        if limit is not None:
            lengths = np.minimum(lengths, limit)
        wrong = (spans.start < 0) | (spans.start >= spans.stop) | (spans.stop > lengths[spans.sentence])
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            sentence = int(spans.sentence[row])
            raise InvalidValueError(
                f"span {row} is [{int(spans.start[row])}, {int(spans.stop[row])}) of sentence {sentence}, which has "
                f"{int(lengths[sentence])} subwords within the model's limit"
            )
        chosen = np.unique(spans.sentence)
        return cls(tokenized.ids, tokenized.word_indptr, bounds[:-1][chosen], lengths[chosen], spans)

    def word_numbers(self) -> NDArray[np.int32]:
        """Return the number of the word that each id belongs to."""
        words = np.diff(self.word_indptr)
        return np.repeat(np.arange(len(words), dtype=np.int32), words)

    def spans_of(self, batch: Batch, *, before: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return a batch's spans: their rows, their first positions in the batch, their lengths."""
        counts = self._span_count[batch.sentences]
        rows = ragged_indices(self._first_span[batch.sentences], counts)
        first = batch.rows * batch.shape[1] + batch.columns + before
        starts = np.repeat(first, counts) + self._spans.start[rows]
        return rows, starts, self._spans.stop[rows] - self._spans.start[rows]
