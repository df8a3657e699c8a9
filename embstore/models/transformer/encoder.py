"""The encoder of a Hugging Face transformer: batches in, pooled vectors of every layer out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.models.batching import BATCHINGS, Batch, Batching, make_batches, split_batch
from embstore.models.checkpoint import Loaded
from embstore.models.encoder import (
    Encoder,
    Pooled,
    Pooling,
    Spans,
    StageTimes,
    Tokenized,
    check_arguments,
)
from embstore.models.memory import SplittingRunner, fitting_batch, free_nbytes, memory_needed
from embstore.models.running import HostCopies, LayerPooling, RunningBatch, SpanWork, Stopwatch, collect
from embstore.models.transformer.inputs import WordWindow
from embstore.models.transformer.network import BATCHES_AHEAD, Network
from embstore.models.transformer.reference import require_window_respected
from embstore.models.transformer.selfcheck import choose_batching
from embstore.models.transformer.varlen import varlen_attention

CHECK_BATCH_SUBWORDS = 2048


class TransformerEncoder(Encoder):
    """An encoder of any transformer that returns its hidden states; made by `load_encoder`.

    `network`: the model and what its batches must look like. `runner`: runs batches, smaller ones if memory is short.
    """

    masks_attention = True
    batchings = BATCHINGS

    def __init__(self, loaded: Loaded, *, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.network = Network(loaded, device=device, dtype=dtype)
        self.info = self.network.info
        self.compute_dtype = self.network.compute_dtype
        self.causal = self.network.inputs.causal
        self.n_specials = self.network.inputs.specials.count
        self.batching = "padded"
        self.times = StageTimes()
        self.runner: SplittingRunner[RunningBatch] = SplittingRunner(device)
        self._copies = HostCopies(device)

    @property
    def casts_on_device(self) -> bool:
        """Return whether vectors are cast before they leave the device: on a GPU, where copies cost time."""
        return self.device.type == "cuda"

    @property
    def batch_depends_on_memory(self) -> bool:
        """Return whether `default_batch_subwords` depends on the memory that is free at the moment."""
        return self.device.type == "cuda"

    @property
    def default_batch_subwords(self) -> int:
        """Return a good batch size for the device, on a CUDA GPU by its free memory."""
        if self.device.type != "cuda":
            return 2048 if self.device.type == "cpu" else 16384
        return fitting_batch(free_nbytes(self.device), position_nbytes=self.network.position_nbytes())

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split every word into its subwords; a word may have none."""
        started = perf_counter()
        tokenized = self.network.tokenizer.tokenize(sentences)
        self.times.tokenize += perf_counter() - started
        return tokenized

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword in the tokenizer's vocabulary."""
        return self.network.tokenizer.subword_text(index)

    def encode(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        batch_subwords: int,
        attention_window: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Iterator[Pooled]:
        """Run the model and yield the vector of each span once; see `Encoder.encode`.

        A batch that does not fit into the memory is run in parts, and so are all batches of its size after it (one
        SmallerBatchesWarning reports it); DeviceMemoryError if a single sentence does not fit. With `attention_window`
        a word also attends to the special subwords, which attend only to each other. Sentences longer than
        `info.max_subwords` are cut. `extremes` are returned if `dtype` is given. Raises InvalidValueError for a layer
        that does not exist and for a span that is empty or outside its sentence.
        """
        chosen = check_arguments(self.info, layers, pooling, batch_subwords)
        work = SpanWork.of(tokenized, spans, self.info.max_subwords)
        window = None if attention_window is None else WordWindow.of(tokenized, attention_window)
        how = cast(Batching, self.batching)
        if window is not None and how == "varlen":
            raise InvalidValueError("sentences end to end have no mask for an attention window; use another batching")
        lengths = work.lengths + self.n_specials
        row_capacity = self.network.row_capacity
        clock = Stopwatch(self.device)

        def run(batch: Batch) -> RunningBatch:
            return self._run(work, batch, chosen, pooling, how, window, dtype, clock)

        def split(batch: Batch) -> list[Batch]:
            half = max(1, batch.positions // 2)
            return split_batch(batch, lengths, how=how, batch_subwords=half, row_capacity=row_capacity)

        batches = make_batches(lengths, how=how, batch_subwords=batch_subwords, row_capacity=row_capacity)
        ahead = BATCHES_AHEAD if self.device.type == "cuda" else 0
        return collect(self.runner.run(batches, run, split), clock, self.times, ahead=ahead)

    def self_check(
        self,
        tokenized: Tokenized,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        attention_window: int | None = None,
        equal_lengths: bool = False,
    ) -> float:
        """Choose the batching, by comparison with the plain pass; see `Encoder.self_check`.

        The largest difference, relative to the largest value of the layer, may be 2e-5 (5e-3 in float16, 4e-2 in
        bfloat16). Also raises ModelError if plain vectors are not finite or an attention window is not respected.
        """
        chosen = check_arguments(self.info, layers, pooling)
        before = self.batching

        def encode(batching: Batching, sample: Tokenized, spans: Spans) -> Iterator[Pooled]:
            self.batching = batching
            with self.runner.trial():
                yield from self.encode(
                    sample,
                    spans,
                    layers=chosen,
                    pooling=pooling,
                    batch_subwords=CHECK_BATCH_SUBWORDS,
                    attention_window=attention_window,
                )

        try:
            with memory_needed(f"the self-check of {self.info.name!r}", self.device):
                if attention_window is not None:
                    require_window_respected(self.network, tokenized, attention_window)
                before, difference = choose_batching(
                    self.network,
                    tokenized,
                    layers=chosen,
                    pooling=pooling,
                    attention_window=attention_window,
                    batchings=self.network.candidate_batchings(
                        attention_window=attention_window, equal_lengths=equal_lengths
                    ),
                    encode=encode,
                )
        finally:
            self.batching = before
        return difference

    def projected_nbytes(self, *, layers: Sequence[int], batch_subwords: int) -> int:
        """Estimate the memory of the weights and of the activations of one batch, from above."""
        return self.network.weights_nbytes + self.network.batch_nbytes(layers=layers, batch_subwords=batch_subwords)

    def forward_flops(self, lengths: NDArray[np.int64], *, layers: Sequence[int]) -> float:
        """Return the operations of a forward pass over sentences of these lengths; see `Network.forward_flops`."""
        return self.network.forward_flops(lengths, deepest=max(check_arguments(self.info, layers, "mean")))

    @torch.inference_mode()
    def _run(
        self,
        work: SpanWork,
        batch: Batch,
        layers: tuple[int, ...],
        pooling: Pooling,
        how: Batching,
        window: WordWindow | None,
        dtype: torch.dtype | None,
        clock: Stopwatch,
    ) -> RunningBatch:
        began = clock.mark()
        network, chosen = self.network, batch.sentences
        inputs = network.inputs.batch(batch, work.tokenized.ids, work.starts[chosen], work.lengths[chosen], how, window)
        rows, starts, lengths = work.spans_of(batch, before=len(network.inputs.specials.prefix))
        pool = LayerPooling(
            starts,
            lengths,
            layers=layers,
            pooling=pooling,
            hidden_size=self.info.hidden_size,
            dtype=network.dtype,
            device=self.device,
            clock=clock,
        )
        prepared = clock.mark()
        with varlen_attention(network.fast_tap.model) if how == "varlen" else nullcontext():
            network.fast_tap.run(inputs, layers, pool.receive)
        ran = clock.mark()
        copy = self._copies.begin(_leaving(pool.vectors, dtype), clock)
        return RunningBatch(rows[pool.order], copy, began, prepared, ran, pool.marks, network.dtype)


def _leaving(vectors: torch.Tensor, dtype: torch.dtype | None) -> tuple[torch.Tensor, ...]:
    """Return what is copied to the host: vectors [n_layers, n_spans, features], or those cast and their extremes."""
    if dtype is None:
        return (vectors,)
    extremes = torch.stack([vectors.amin((1, 2)), vectors.amax((1, 2))]).float()
    return (vectors.to(dtype) if dtype.itemsize <= vectors.dtype.itemsize else vectors, extremes)
