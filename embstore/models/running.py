"""Batches on the device: arrays are copied in, and spans pooled layer by layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.models.batching import Batch
from embstore.models.encoder import Indices, Pooled, Pooling, Spans, Tokenized, ragged_indices
from embstore.store.layout import RESIDUAL


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Start copying an array to the device; on CUDA through pinned memory, so that nothing waits for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    # Torch pins it in the context of any GPU that is in use: that of the first is not begun for the second.
    return tensor.pin_memory().to(device, non_blocking=True)


def mark(device: torch.device) -> Any:
    """Return an event after what is queued in the current stream of a device; None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def wait(device: torch.device) -> None:
    """Wait for what is queued in the current stream of a device."""
    if (done := mark(device)) is not None:
        done.synchronize()


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
    starts: Indices
    lengths: Indices
    first_span: Indices
    n_spans: Indices

    def spans_of(self, batch: Batch, *, before: int) -> tuple[Indices, Indices, Indices]:
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
) -> dict[str, Indices]:
    """Return `starts`, `lengths`, `first_span` and `n_spans` of a `SpanWork`, of sentences of at most `limit` subwords.

    `before`, `after`: special subwords around each sentence, of which there may be spans. Raises InvalidValueError for
    a span that is empty or outside its sentence or the limit.
    """
    n_sentences = len(tokenized)
    if len(spans.sentence) and (spans.sentence.min() < 0 or spans.sentence.max() >= n_sentences):
        raise InvalidValueError(f"a span names a sentence that is not among the {n_sentences} given")
    if np.any(np.diff(spans.sentence) < 0):
        raise InvalidValueError("the spans must be ascending by sentence")
    bounds = tokenized.bounds
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
        self, work: SpanWork, starts: Indices, lengths: Indices, device: torch.device, dtype: torch.dtype
    ) -> None:
        # Layer 0 has no block
        self._layers = {site: [layer for layer in work.layers if layer or site == RESIDUAL] for site in work.sites}
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
            if hidden.dtype != out.dtype:  # T5 and Mamba in half precision have a residual stream of float32
                hidden = hidden.to(out.dtype)
            torch.index_select(hidden.reshape(-1, hidden.shape[-1]), 0, self._positions, out=out)

    def vectors(self) -> list[torch.Tensor]:
        """Return the vectors of each site [n_layers, n_spans, features], once all layers have been received."""
        return list(map(self._reduced, self._gathered.values()))

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
    """The vectors of a batch at each of `sites`; of the spans `rows`, int64 [n].

    `vectors`: on the host, or on the device, complete once the mark `done` has passed.
    """

    rows: Indices
    vectors: tuple[torch.Tensor, ...]
    done: Any
    sites: Sequence[str] = (RESIDUAL,)

    def pooled(self) -> Iterator[Pooled]:
        """Yield the vectors of each site."""
        for site, vectors in zip(self.sites, self.vectors, strict=True):
            yield Pooled(self.rows, vectors, site)


def launched(batches: Iterable[RunningBatch | None], waiting: deque[Any], *, ahead: int) -> Iterator[Pooled]:
    """Yield the vectors of batch after batch, on a device as soon as what computes them is launched.

    `waiting`: the marks of batches of this and earlier calls that may still run, at most `ahead`; None: wait for all.
    """
    for batch in batches:
        most = 0 if batch is None else ahead
        if batch is not None:
            yield from batch.pooled()
            waiting.append(batch.done)
        del batch  # its vectors are freed before the next one is run
        while len(waiting) > most:
            if (done := waiting.popleft()) is not None:
                done.synchronize()
