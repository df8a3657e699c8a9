"""Batches on the device: arrays are copied in, spans pooled layer by layer, and vectors copied out meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.models.batching import Batch
from embstore.models.encoder import Pooled, Pooling, Spans, StageTimes, Tokenized, ragged_indices
from embstore.store.layout import RESIDUAL

_Indices = NDArray[np.int64]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Start copying an array to the device; on CUDA through pinned memory, so that nothing waits for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Stopwatch:
    """Takes times without waiting for the device: the clock on a CPU, events of the current stream on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        """Return a mark for the present moment."""
        if self._device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, earlier: Any, later: Any) -> float:
        """Return the seconds between two marks; waits for the later one."""
        if self._device.type != "cuda":
            return float(later - earlier)
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1000


@dataclass(frozen=True)
class HostCopy:
    """Tensors that are being copied to the host: `host` is complete once the mark `ended` has passed.

    `device`: the source tensors, which must not be freed before that.
    """

    device: tuple[torch.Tensor, ...]
    host: tuple[torch.Tensor, ...]
    began: Any
    ended: Any


class HostCopies:
    """Copies tensors to the host; on CUDA in a stream of its own into pinned memory, during the next forward pass.

    Torch's allocator of pinned memory reuses a block once its copy is done and its reader has released it.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, tensors: tuple[torch.Tensor, ...], clock: Stopwatch) -> HostCopy:
        """Start a copy that waits for the work queued on the device so far."""
        if self._stream is None:
            began = clock.mark()
            return HostCopy(tensors, tuple(tensor.cpu() for tensor in tensors), began, clock.mark())
        host = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            began = clock.mark()
            for target, source in zip(host, tensors, strict=True):
                target.copy_(source, non_blocking=True)
            return HostCopy(tensors, host, began, clock.mark())


@dataclass(frozen=True)
class SpanWork:
    """A call of `encode`: its arguments, and the sentences that have spans.

    `sites`: the features of each site. `starts`, `lengths`: int64 [n], the subwords of each such sentence, cut to the
    model's limit.
    """

    tokenized: Tokenized
    spans: Spans
    layers: tuple[int, ...]
    pooling: Pooling
    batch_subwords: int
    attention_window: int | None
    sites: Mapping[str, int]
    on_device: bool
    clock: Stopwatch
    starts: _Indices
    lengths: _Indices
    first_span: _Indices
    n_spans: _Indices

    def layers_of(self, site: str) -> tuple[int, ...]:
        """Return the layers of a site: layer 0 has no block."""
        return self.layers if site == RESIDUAL else tuple(layer for layer in self.layers if layer)

    def spans_of(self, batch: Batch, *, before: int) -> tuple[_Indices, _Indices, _Indices]:
        """Return the spans of a batch: their rows, their first positions in the batch, their lengths.

        `before`: special subwords in front of each sentence.
        """
        counts = self.n_spans[batch.sentences]
        rows = ragged_indices(self.first_span[batch.sentences], counts)
        first = batch.rows * batch.shape[1] + batch.columns + before
        starts = np.repeat(first, counts) + self.spans.start[rows]
        return rows, starts, self.spans.stop[rows] - self.spans.start[rows]


def sentences_with_spans(
    tokenized: Tokenized, spans: Spans, limit: int | None, *, before: int = 0, after: int = 0
) -> dict[str, _Indices]:
    """Return `starts`, `lengths`, `first_span` and `n_spans` of a `SpanWork`, of sentences of at most `limit` subwords.

    `before`, `after`: special subwords around each sentence, of which there may be spans. Raises InvalidValueError for
    a span that is empty or outside its sentence or the limit.
    """
    n_sentences = len(tokenized.sentence_indptr) - 1
    if len(spans.sentence) and (spans.sentence.min() < 0 or spans.sentence.max() >= n_sentences):
        raise InvalidValueError(f"a span names a sentence that is not among the {n_sentences} given")
    if np.any(np.diff(spans.sentence) < 0):
        raise InvalidValueError("the spans must be ascending by sentence")
    bounds = tokenized.sentence_bounds
    lengths = np.diff(bounds)
    if limit is not None:
        lengths = np.minimum(lengths, limit)
    last = lengths[spans.sentence] + after
    wrong = (spans.start < -before) | (spans.start >= spans.stop) | (spans.stop > last)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        sentence = int(spans.sentence[row])
        raise InvalidValueError(
            f"span {row} is [{int(spans.start[row])}, {int(spans.stop[row])}) of sentence {sentence}, which has "
            f"{int(lengths[sentence])} subwords within the model's limit"
        )
    chosen, first = np.unique(spans.sentence, return_index=True)
    n_spans = np.diff(np.append(first, len(spans.sentence)))
    return {"starts": bounds[:-1][chosen], "lengths": lengths[chosen], "first_span": first, "n_spans": n_spans}


class LayerPooling:
    """Pools the spans of one batch: gathers their positions in each layer as it arrives, then reduces all layers.

    `starts`, `lengths`: int64 [n_spans], runs of positions of the batch, counted row after row. `order`: int64
    [n_spans], the span of each result; those of one subword are first. One operator a layer and a few at the end, since
    a GPU waits for the Python that launches them.
    """

    def __init__(
        self, work: SpanWork, starts: _Indices, lengths: _Indices, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._layers = {site: work.layers_of(site) for site in work.sites}
        self._mode = work.pooling
        one = lengths == 1
        if self._mode in ("first", "last"):
            one = np.ones(len(lengths), np.bool_)
        if self._mode == "last":
            starts = starts + lengths - 1
        single, several = np.flatnonzero(one), np.flatnonzero(~one)
        self.order = np.concatenate([single, several])
        self._n_single, n_members = len(single), lengths[several]
        members = ragged_indices(starts[several], n_members)
        self._positions = to_device(np.concatenate([starts[single], members]), device)
        self._offsets = to_device(np.cumsum(n_members) - n_members, device)
        self._gathered = {
            site: torch.empty(len(self._layers[site]), len(self._positions), size, dtype=dtype, device=device)
            for site, size in work.sites.items()
        }

    def receive(self, layer: int, hidden: torch.Tensor, site: str = RESIDUAL) -> None:
        """Gather from the states [..., features] of a layer, whose leading axes are the positions of the batch."""
        if site in self._gathered:
            out = self._gathered[site][self._layers[site].index(layer)]
            torch.index_select(hidden.reshape(-1, hidden.shape[-1]), 0, self._positions, out=out)

    def vectors(self) -> list[torch.Tensor]:
        """Return the vectors of each site [n_layers, n_spans, features], once all layers have been received."""
        return [self._reduced(gathered) for gathered in self._gathered.values()]

    def _reduced(self, gathered: torch.Tensor) -> torch.Tensor:
        """Put the vector of each span of several subwords where the first of these were gathered."""
        (n_layers, n_positions, size), n_spans, n_single = gathered.shape, len(self.order), self._n_single
        if n_single < n_spans:
            rows = torch.arange(n_layers * n_positions, device=gathered.device).view(n_layers, n_positions)
            members = rows[:, n_single:]
            first = torch.arange(0, members.numel(), n_positions - n_single, device=gathered.device)
            pooled = torch.nn.functional.embedding_bag(
                members.reshape(-1), gathered.view(-1, size), (first[:, None] + self._offsets).view(-1), mode=self._mode
            )
            gathered[:, n_single:n_spans] = pooled.view(n_layers, -1, size)
        return gathered[:, :n_spans]


@dataclass(frozen=True)
class RunningBatch:
    """A batch whose vectors are being copied to the host.

    `rows`: int64 [n], its spans. `copy`: for each of `sites` the vectors. `began`, `prepared`, `ran`: marks at the
    start of the work, of the forward pass and of the copy.
    """

    rows: _Indices
    copy: HostCopy
    began: Any
    prepared: Any
    ran: Any
    sites: Sequence[str] = (RESIDUAL,)

    def add_times(self, clock: Stopwatch, times: StageTimes) -> None:
        """Wait for the vectors and add up the times of the stages; preparing the inputs counts as copying."""
        times.copy += clock.seconds(self.copy.began, self.copy.ended) + clock.seconds(self.began, self.prepared)
        times.forward += clock.seconds(self.prepared, self.ran)

    def pooled(self) -> Iterator[Pooled]:
        """Yield the vectors of each site."""
        for site, vectors in zip(self.sites, self.copy.host, strict=True):
            yield Pooled(self.rows, vectors, site)


def collect(
    batches: Iterable[RunningBatch | None], clock: Stopwatch, times: StageTimes, *, ahead: int
) -> Iterator[Pooled]:
    """Yield the vectors of batch after batch while up to `ahead` later ones run; None: collect all that are waiting."""
    waiting: deque[RunningBatch] = deque()
    for batch in chain(batches, [None]):
        if batch is not None:
            waiting.append(batch)
        while len(waiting) > (ahead if batch is not None else 0):
            first = waiting.popleft()
            first.add_times(clock, times)
            yield from first.pooled()


def launched(
    batches: Iterable[RunningBatch | None],
    waiting: deque[RunningBatch],
    clock: Stopwatch,
    times: StageTimes,
    *,
    ahead: int,
) -> Iterator[Pooled]:
    """Yield vectors on the device as soon as what computes them is launched.

    `waiting`: batches of this and earlier calls whose times are not added up, at most `ahead`; they hold no vectors.
    """
    for batch in batches:
        most = 0 if batch is None else ahead
        if batch is not None:
            yield from batch.pooled()
            waiting.append(replace(batch, copy=replace(batch.copy, host=())))
        del batch  # its vectors are freed before the next one is run
        while len(waiting) > most:
            waiting.popleft().add_times(clock, times)
