"""What all encoders share: batches run one after the other, and compared with the plain pass."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus.sentence import Sentence
from embstore.errors import DeviceMemoryError, EmbstoreError, InvalidValueError, ModelError
from embstore.models.batching import ROW_CAPACITY, Batch, Batching, make_batches, split_batch
from embstore.models.checkpoint import reason
from embstore.models.encoder import Encoder, Pooled, Pooling, Spans, Tokenized, check_arguments
from embstore.models.memory import SplittingRunner, is_fault, memory_needed
from embstore.models.running import LayerPooling, RunningBatch, SpanWork, launched, mark, sentences_with_spans, wait
from embstore.store.layout import RESIDUAL

# Largest difference of a vector allowed, relative to its length: what is right differs by at most half of it in 28
# architectures, what attends to another sentence by about 1. bfloat16 has 3 bits less than float16.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
SHORT = 0.1  # of a layer's lower quartile: a shorter vector is what is left of longer ones, and so is its rounding
LAUNCHED = 4  # batches whose vectors stay on the device, before the host waits for the first of them
# Batchings are timed over so many batches, in rounds, of which no other begins after these seconds.
TIMED_BATCHES, TIMED_ROUNDS, TIMED_SECONDS = 2, 3, 10.0
TIMED_SHARE = 0.1  # of the subwords of an extraction: of a small one the first exact batching is taken
AS_GOOD = 1.05  # times as long as the fastest is no reason for another batching
# Sentences on which the first word, capitals, digits, punctuation and other scripts would show an effect of context.
PROBES = (
    Sentence(("The", "cat", "'s", "1,234", "mice", ",", "don't", "they", "?")),
    Sentence(("the", "the", "Straße", "naïve", "日本", "…", "x_1", "ok")),
)

States = Mapping[int, torch.Tensor]  # of one sentence by layer, each [n_subwords, features]
Forward = Callable[[Callable[..., None]], None]  # runs a batch and passes on each layer, and site
# The spans of a batch (their rows, first positions among those that are run, and lengths), and what runs them.
Prepared = tuple[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], Forward]
Prepare = Callable[[Batch], Prepared]


@dataclass(frozen=True)
class Sample:
    """Sentences of a self-check, and the plain vectors of their words in some layers, by site."""

    tokenized: Tokenized
    spans: Spans
    layers: Sequence[int]
    expected: Mapping[str, NDArray[np.float32]]

    @property
    def first_ratio(self) -> float:
        """The largest ratio over layers of the median length of first subwords to that of the others."""
        is_first = self.spans.start == 0
        if RESIDUAL not in self.expected or is_first.all() or not is_first.any():
            return 0.0
        lengths = lengths_of(self.expected[RESIDUAL])
        first, others = (np.median(lengths[:, some], axis=1) for some in (is_first, ~is_first))
        return float((first / np.maximum(others, np.finfo(np.float64).tiny)).max(initial=0))


class BatchedEncoder(Encoder):
    """An encoder whose batches are run one after the other on a device.

    `source`: the name or path that it is loaded from. `dtype`: the compute dtype. `runner`: runs batches, smaller ones
    if memory is short. `row_capacity`: the width of packed rows. `n_before`: the special subwords in front of a
    sentence. `check_batch_subwords`: the batch size of the self-check. `outliers`: the share of a layer's vectors that
    may differ from the plain pass.
    """

    batching = "packed"
    n_before = 0
    outliers = 0.0
    check_batch_subwords = 2048

    def __init__(self, source: str, device: torch.device, dtype: torch.dtype) -> None:
        self.source = source
        self.device, self.dtype = device, dtype
        self.compute_dtype = str(dtype).removeprefix("torch.")
        self.row_capacity = ROW_CAPACITY.get(device.type, 128)
        self.runner = SplittingRunner(device)
        self._launched: deque[Any] = deque()
        self._fastest_of: dict[tuple[Any, ...], str] = {}

    def encode(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        batch_subwords: int,
        attention_window: int | None = None,
        sites: Sequence[str] = (RESIDUAL,),
        on_device: bool = False,
    ) -> Iterator[Pooled]:
        """Run the model and yield the vector of each span once; see `Encoder.encode`.

        A batch that does not fit into the memory is run in parts, and so are all batches of its size after it (one
        SmallerBatchesWarning reports it); DeviceMemoryError if a single sentence does not fit. Sentences longer than
        `info.max_subwords` are cut. Raises InvalidValueError for a layer that does not exist, for a span that is empty
        or outside its sentence, and for an attention window of a model without attention.
        """
        chosen = check_arguments(self.info, layers, pooling, batch_subwords, attention_window)
        if attention_window is not None and not self.masks_attention:
            raise InvalidValueError(f"{self.info.architecture} has no attention windows; use context windows")
        sizes = self.site_sizes(sites)
        before, after = map(len, self.special_ids)
        work = SpanWork(
            tokenized=tokenized,
            spans=spans,
            layers=chosen,
            pooling=pooling,
            batch_subwords=batch_subwords,
            attention_window=attention_window,
            sites=sizes,
            on_device=on_device,
            **sentences_with_spans(tokenized, spans, self.info.max_subwords, before=before, after=after),
        )
        return launched(self._running(work), self._launched, ahead=LAUNCHED)

    def self_check(
        self,
        tokenized: Tokenized,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        attention_window: int | None = None,
        sites: Sequence[str] = (RESIDUAL,),
        equal_lengths: bool = False,
        longest: int | None = None,
        batching: str | None = None,
        batch_subwords: int | None = None,
        n_subwords: int | None = None,
    ) -> float:
        """Choose the first batching that reproduces the plain pass, on CUDA the fastest; see `Encoder.self_check`.

        The largest difference of a vector, relative to its length, may be 2e-5 (1e-2 in float16, 8e-2 in bfloat16).
        Also raises ModelError if plain vectors are not finite or an attention window is not respected.
        """
        chosen = check_arguments(self.info, layers, pooling, 1, attention_window)
        batchings = self.candidate_batchings(attention_window=attention_window, equal_lengths=equal_lengths)
        if batching is not None and batching in batchings:
            batchings = (batching,)
        before = self.batching
        try:
            with memory_needed(f"the self-check of {self.info.name!r}", self.device):
                options: dict[str, Any] = {"pooling": pooling, "attention_window": attention_window}
                parts = self.check_sentences(tokenized, attention_window, longest, n_subwords)
                samples = [self._sample(part, deepest, chosen, sites, **options) for part, deepest in parts]
                self.sink_ratio = max(each.first_ratio for each in samples)
                options["sites"] = sites

                def difference(batching: str) -> float:
                    self.batching = batching
                    size = self.check_batch_subwords
                    passes = (
                        self.encode(each.tokenized, each.spans, layers=each.layers, batch_subwords=size, **options)
                        for each in samples
                    )
                    expected = (each.expected for each in samples)
                    with self.runner.trial():
                        return max(map(largest_difference, passes, expected, repeat(self.outliers)))

                found, refused = self._differences(difference, batchings)
                if not found and self.drop_fast_layers():
                    found, refused = self._differences(difference, batchings)
                size = batch_subwords or self.default_batch_subwords
                n_timed = len(found) * (1 + TIMED_ROUNDS) * TIMED_BATCHES * size
                best = next(iter(found), "")
                if len(found) > 1 and n_timed <= TIMED_SHARE * (n_subwords or math.inf):
                    best = self._fastest(list(found), tokenized, {"layers": chosen, **options}, size)
        finally:
            self.batching = before
        if not found:
            raise ModelError(
                f"no batching of {self.info.name!r} reproduces its plain forward pass (allowed is "
                f"{TOLERANCE[self.dtype]:.0e}): " + "; ".join(f"{name} {why}" for name, why in refused.items())
            )
        self.batching, self.refused = best, refused
        return found[best]

    def _sample(
        self, tokenized: Tokenized, deepest: int | None, layers: Sequence[int], sites: Sequence[str], **options: Any
    ) -> Sample:
        """Return sentences with their plain vectors: in these layers, or in the first ones, `deepest` the last."""
        spans = word_spans(tokenized, self.info.max_subwords)
        if deepest is not None:
            deepest = min(deepest, max(layers))
            layers = range(deepest + 1)
        plain = partial(self._require_plain, tokenized, spans, layers=layers, deepest=deepest, **options)
        return Sample(tokenized, spans, layers, {site: plain(site=site) for site in sites})

    def _differences(
        self, difference_of: Callable[[str], float], batchings: Sequence[str]
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the difference of each exact batching, or only of the first, and why others are not exact."""
        found: dict[str, float] = {}
        refused: dict[str, str] = {}
        memory: DeviceMemoryError | None = None
        for batching in batchings:
            try:
                difference = difference_of(batching)
            except Exception as error:  # the model does not support such a batch
                memory = error if isinstance(error, DeviceMemoryError) else memory
                if is_fault(error) or (memory is not error and isinstance(error, EmbstoreError)):
                    raise
                refused[batching] = f"fails ({reason(error)})"
                continue
            if difference > TOLERANCE[self.dtype]:
                refused[batching] = f"differs by {difference:.1e}"
                continue
            found[batching] = difference
            if not self.choices_vary:
                break
        if memory is not None and not found:
            raise memory
        return found, refused

    def _fastest(self, batchings: Sequence[str], tokenized: Tokenized, options: Mapping[str, Any], size: int) -> str:
        """Return the fastest batching of an extraction of sentences of these lengths, measured once for each."""
        lengths = np.diff(tokenized.bounds)
        quartiles = [int(length).bit_length() for length in np.quantile(lengths, (0.25, 0.5, 0.75))]
        key = (*batchings, *quartiles, size, *map(str, options.values()))
        if key not in self._fastest_of:
            times = max(1, TIMED_BATCHES * size // max(1, int(lengths.sum())))
            begins, ends = (np.tile(side, times) for side in (tokenized.bounds[:-1], tokenized.bounds[1:]))
            many = tokenized.runs(begins, ends)
            spans = word_spans(many, self.info.max_subwords)

            def run(batching: str) -> None:
                self.batching = batching
                with self.runner.trial():
                    deque(self.encode(many, spans, **options, batch_subwords=size, on_device=True), maxlen=0)
                    wait(self.device)

            self._fastest_of[key] = fastest(batchings, run)
        return self._fastest_of[key]

    def _require_plain(self, sample: Tokenized, spans: Spans, **options: Any) -> NDArray[np.float32]:
        """Return `plain_vectors`; raises ModelError if they are not finite, or no sentence may be so long."""
        try:
            plain = self.plain_vectors(sample, spans, **options)
        except (LookupError, ValueError, TypeError, AssertionError) as error:
            if isinstance(error, EmbstoreError):
                raise
            longest = int(np.diff(sample.bounds).max(initial=0))
            raise ModelError(
                f"the model {self.info.name!r} fails on a sentence of up to {longest:,} subwords ({reason(error)}): "
                "give a smaller --max-length, or another model"
            ) from error
        for layer, vectors in zip(options["layers"][-len(plain) :], plain, strict=False):
            if not np.isfinite(vectors).all():
                raise ModelError(
                    f"layer {layer} of {self.info.name!r} is not finite in {self.compute_dtype}; "
                    "choose the compute dtype float32 or bfloat16"
                )
        return plain

    @torch.inference_mode()
    def plain_vectors(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        attention_window: int | None = None,
        site: str = RESIDUAL,
        deepest: int | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of spans as a plain script computes them: float32 [n_layers, n_spans, features].

        One sentence at a time, cut as `encode` cuts it; no batches, no hooks, one span after the other. `deepest`: the
        layer at which the model may be stopped; None: it runs to its end.
        """
        layers = [layer for layer in layers if layer or site == RESIDUAL]
        vectors = np.empty((len(layers), len(spans.sentence), self.site_sizes([site])[site]), np.float32)
        for sentence in np.unique(spans.sentence).tolist():
            alone = tokenized.runs(tokenized.bounds[[sentence]], tokenized.bounds[[sentence + 1]])
            states = self.plain_states(alone, attention_window, site, deepest)
            rows = np.flatnonzero(spans.sentence == sentence).tolist()
            for index, layer in enumerate(layers):
                state = states[layer].float().cpu().numpy()
                for row in rows:
                    vectors[index, row] = pool_plainly(state[spans.start[row] : spans.stop[row]], pooling)
        return vectors

    def candidate_batchings(self, *, attention_window: int | None = None, equal_lengths: bool = False) -> Sequence[str]:
        """Return the batchings to try, fastest first; `equal_lengths`: only sentences of one length together."""
        return self.batchings

    def check_sentences(
        self, tokenized: Tokenized, attention_window: int | None, longest: int | None, n_subwords: int | None
    ) -> list[tuple[Tokenized, int | None]]:
        """Return the sentences of the self-check, never without a subword, and the layer at which each part stops.

        None: the last one that is asked for. `n_subwords`: of the extraction, if it is known.
        """
        return [(tokenized if len(tokenized.ids) else self.tokenize(PROBES).tokenized, None)]

    def drop_fast_layers(self) -> bool:
        """Run batches with the weights as they are loaded from now on; returns False if they already do."""
        return False

    @abstractmethod
    def plain_states(self, sentence: Tokenized, reach: int | None, site: str, deepest: int | None = None) -> States:
        """Return all layers of one sentence at a site from a slow, plain pass, each [n_subwords, features].

        `reach`: of an attention window. Layers above `deepest` may be left out.
        """

    @abstractmethod
    def _running(self, work: SpanWork) -> Iterator[RunningBatch | None]:
        """Yield the batches of a call of `encode` as they are started; None: all that are waiting must be fetched."""

    def _run_batches(self, work: SpanWork, how: Batching, prepare: Prepare) -> Iterator[RunningBatch | None]:
        """Arrange sentences in batches and run them."""
        lengths, row_capacity = work.lengths + self.n_specials, self.row_capacity

        def split(batch: Batch) -> list[Batch]:
            half = max(1, batch.positions // 2)
            return split_batch(batch, lengths, how=how, batch_subwords=half, row_capacity=row_capacity)

        batches = make_batches(lengths, how=how, batch_subwords=work.batch_subwords, row_capacity=row_capacity)
        return self.runner.run(batches, lambda batch: self._run(work, batch, prepare), split)

    @torch.inference_mode()
    def _run(self, work: SpanWork, batch: Batch, prepare: Prepare) -> RunningBatch:
        (rows, starts, lengths), forward = prepare(batch)
        pool = LayerPooling(work, starts, lengths, self.device, self.dtype)
        forward(pool.receive)
        vectors = tuple(each if work.on_device else each.cpu() for each in pool.vectors())
        done = mark(self.device) if work.on_device else None
        return RunningBatch(rows[pool.order], vectors, done, tuple(work.sites))


def fastest(batchings: Sequence[str], run: Callable[[str], object]) -> str:
    """Return the batching with the shortest `run` of a few rounds, after a warm-up; an earlier one if it is as good."""
    shortest = dict.fromkeys(batchings, float("inf"))
    began = perf_counter()
    for number in range(1 + TIMED_ROUNDS):
        for batching in batchings:
            started = perf_counter()
            run(batching)
            if number:
                shortest[batching] = min(shortest[batching], perf_counter() - started)
        if number and perf_counter() - began > TIMED_SECONDS:
            break
    return next(name for name in batchings if shortest[name] <= AS_GOOD * min(shortest.values()))


def word_spans(tokenized: Tokenized, limit: int | None) -> Spans:
    """Return a span for the subwords of every word that lie within the limit; for each one without `words`."""
    n_subwords = np.diff(tokenized.bounds)
    sentence = np.repeat(np.arange(len(n_subwords)), n_subwords)
    begins = np.ones(len(sentence), np.bool_)
    if tokenized.words is not None:
        begins[1:] = (np.diff(tokenized.words) != 0) | (np.diff(sentence) != 0)
    start = np.flatnonzero(begins)
    stop, sentence = np.append(start[1:], len(begins))[: len(start)], sentence[start]
    start, stop = start - tokenized.bounds[sentence], stop - tokenized.bounds[sentence]
    some = slice(None) if limit is None else stop <= limit
    return Spans(sentence[some], start[some], stop[some])


def pool_plainly(subwords: NDArray[np.float32], pooling: Pooling) -> NDArray[np.float32]:
    """Pool the hidden states of one span, float32 [n, hidden_size], into one vector."""
    if pooling in ("first", "last"):
        return np.asarray(subwords[0 if pooling == "first" else -1], np.float32)
    return np.asarray(subwords.max(axis=0) if pooling == "max" else subwords.mean(axis=0), np.float32)


def largest_difference(passes: Iterable[Pooled], expected: Mapping[str, NDArray[np.float32]], but: float) -> float:
    """Return the largest difference of a vector from what is expected at its site and layer, relative to its length.

    `but`: the share of the vectors of each layer that may differ more. Infinite if one is missing, NaN or infinite.
    """
    apart = {site: np.full(plain.shape[:2], np.inf) for site, plain in expected.items()}
    scales = {site: scales_of(plain) for site, plain in expected.items()}
    for pooled in passes:
        site, rows = pooled.site, pooled.rows
        difference = lengths_of(pooled.vectors.float().numpy() - expected[site][:, rows])
        apart[site][:, rows] = difference / scales[site][:, rows]
    return max((largest(each, but) for each in apart.values()), default=0.0)


def largest(apart: NDArray[np.float64], but: float) -> float:
    """Return the largest of each layer [n_layers, n] but for a share, or infinity if one is not finite."""
    kept = np.sort(apart, axis=1)[:, : apart.shape[1] - int(but * apart.shape[1])]
    return float(kept.max(initial=0)) if np.isfinite(apart).all() else float("inf")


def lengths_of(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the lengths of vectors, [..., features] -> [...]."""
    squares: NDArray[np.float64] = np.einsum("...f,...f->...", vectors, vectors, dtype=np.float64)
    return np.sqrt(squares)


def scales_of(expected: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what a difference from each vector is relative to: its length, [n_layers, n, features] -> [n_layers, n].

    Not the layer's largest value: a decoder's first position may have one of 3,000 where others are 1 to 5.
    """
    lengths = lengths_of(expected)
    if not lengths.size:
        return lengths
    scales = np.maximum(lengths, SHORT * np.quantile(lengths, 0.25, axis=1, keepdims=True))
    return np.where(scales > 0, scales, 1)
