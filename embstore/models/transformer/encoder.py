"""The encoder over a Hugging Face transformer: batches in, pooled vectors of every layer out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, ModelError
from embstore.models.encoder import Encoder, ModelInfo, Pooled, Pooling, Spans, StageTimes, Tokenized
from embstore.models.loading import Loaded, choose_dtype, load, use_threads
from embstore.models.pooling import Pool, check_pooling
from embstore.models.transformer.batches import (
    BATCHINGS,
    ROW_CAPACITY,
    Batch,
    Batching,
    fitting_capacity,
    halves,
    lay_out,
)
from embstore.models.transformer.flops import forward_flops
from embstore.models.transformer.inputs import (
    InputMaker,
    WordWindow,
    attention_window,
    forward_parameters,
    is_causal,
    longest_sentence,
    needed_parameters,
    position_offset,
)
from embstore.models.transformer.layers import LayerTap, Receive, find_layers
from embstore.models.transformer.linears import PackedLinears
from embstore.models.transformer.memory import Halving, fitting_batch, free_nbytes, memory_needed
from embstore.models.transformer.selfcheck import settle_batching
from embstore.models.transformer.stopwatch import Stopwatch, stopwatch
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.models.transformer.transfer import HostCopies
from embstore.models.transformer.varlen import attending, takes_sentences
from embstore.models.transformer.windowcheck import require_window_kept
from embstore.models.transformer.work import Passed, Work, collected

_PROBE_POSITIONS = 7
_TYPICAL_POSITIONS = 2048
_CPU_BATCH = 2048
_AHEAD = 2  # batches that a card is given before the one before them is fetched


class TransformerEncoder(Encoder):
    """An `Encoder` over any transformer that returns its hidden states.

    `model`: the network. `inputs`: how its arguments are made. `row_capacity`: the width of packed rows.
    `linears`: its faster matrix multiplications, used by `encode` alone.
    """

    def __init__(self, loaded: Loaded, *, device: torch.device, dtype: torch.dtype) -> None:
        self.model: Any = loaded.model
        self.device = device
        self.dtype = dtype
        self.row_capacity = ROW_CAPACITY.get(device.type, 128)
        self._batching: Batching = "padded"
        self.times = StageTimes()
        self.halving: Halving[Passed] = Halving(device)
        self._copies = HostCopies(device)
        embeddings: int = self.model.get_input_embeddings().num_embeddings
        self._tokenizer = SubwordTokenizer(loaded.tokenizer, vocabulary=embeddings)
        self.inputs, self._tap = self._probe(loaded, embeddings)
        self.linears = PackedLinears(self.model, rows=_TYPICAL_POSITIONS)
        config = self.model.config
        self._info = ModelInfo(
            name=loaded.name,
            architecture=type(self.model).__name__,
            revision=loaded.revision,
            weights_sha256=loaded.weights_sha256,
            tokenizer_sha256=self._tokenizer.sha256(),
            num_hidden_layers=self._tap.num_hidden_layers,
            hidden_size=self._tap.hidden_size,
            max_subwords=longest_sentence(
                config, loaded.tokenizer, self._tokenizer.specials, self.inputs.position_offset
            ),
            final_norm=self._tap.final_norm,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def compute_dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def batching(self) -> Batching:
        return self._batching

    @property
    def batchings(self) -> tuple[Batching, ...]:
        """Return the batchings that may be tried with this model, fastest first.

        Sentences end to end come first on a card, where a mask costs more than their attention, and not at all on a
        CPU, where they gain nothing (see docs/gpu.md).
        """
        known: tuple[Batching, ...] = (
            ("packed", "padded", "equal") if "attention_mask" in self.inputs.parameters else ("equal",)
        )
        return ("varlen", *known) if self.device.type == "cuda" and self.takes_varlen else known

    @property
    def takes_varlen(self) -> bool:
        """Tell whether sentences end to end may be tried: the model is given positions and hands keywords on."""
        return self.inputs.position_offset is not None and takes_sentences(self.model, self.inputs.parameters)

    @property
    def default_batch_subwords(self) -> int:
        """Return how many subwords make a good batch on the encoder's device, on a card by what is free on it."""
        if self.device.type != "cuda":
            return _CPU_BATCH if self.device.type == "cpu" else 16384
        return fitting_batch(free_nbytes(self.device), position_nbytes=self.position_nbytes())

    @property
    def batch_depends_on_memory(self) -> bool:
        """Tell whether `default_batch_subwords` depends on the memory that is free at the time."""
        return self.device.type == "cuda"

    @property
    def casts_on_device(self) -> bool:
        """Tell whether `encode` should be told what the vectors are kept as: fewer bytes leave the card."""
        return self.device.type == "cuda"

    @property
    def n_specials(self) -> int:
        """Return how many special subwords are added to a sentence."""
        return self.inputs.specials.count

    @property
    def causal(self) -> bool:
        """Tell whether a subword sees only those before it."""
        return self.inputs.causal

    def use_batching(self, batching: str) -> None:
        """Take a batching without a check, as a resumed store must."""
        for allowed in BATCHINGS:
            if batching == allowed:
                self._batching = allowed
                return
        raise InvalidValueError(f"unknown batching {batching!r}; allowed are {', '.join(BATCHINGS)}")

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split every word into its subwords; a word may have none."""
        started = perf_counter()
        tokenized = self._tokenizer.tokenize(sentences)
        self.times.tokenize += perf_counter() - started
        return tokenized

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword as the tokenizer's vocabulary has it."""
        return self._tokenizer.piece(index)

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
        """Run the model over all sentences that have a span and yield their vectors, each span once.

        With `dtype` the vectors are cast to it on the device, unless it is wider, and `extremes` come with them. A
        batch that the memory does not hold is run in parts, and so are all batches of its size after it (a
        SmallerBatchesWarning says so once); DeviceMemoryError where one sentence alone does not fit.

        With `attention_window` a word attends, at every layer, to the words at most so many words away and to the
        special subwords, which attend only to each other. Sentences longer than `info.max_subwords` are cut there.
        Raises InvalidValueError for a layer that the model has not, and for a span that is empty or reaches beyond
        its sentence or the cut.
        """
        wanted = self._check_layers(layers)
        pooling = check_pooling(pooling)
        if batch_subwords < 1:
            raise InvalidValueError(f"batch_subwords is {batch_subwords}; it must be 1 or more")
        work = Work.of(tokenized, spans, self.info.max_subwords)
        window = None if attention_window is None else WordWindow(work.word_numbers(), attention_window)
        if window is not None and self._batching == "varlen":
            raise InvalidValueError("sentences end to end have no mask for an attention window; use another batching")
        return self._encode(work, wanted, pooling, batch_subwords, window, dtype)

    def self_check(
        self,
        tokenized: Tokenized,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        attention_window: int | None = None,
        equal_lengths: bool = False,
    ) -> float:
        """Hold the batchings against the plain pass, on these sentences and on long ones made of their words.

        Keeps the first of `batchings` whose largest difference, relative to the largest value of
        the layer, is at most 2e-5 (5e-3 in float16, 4e-2 in bfloat16), and returns that difference. Raises ModelError
        where none is, or where the plain pass gives values that are not finite. `equal_lengths`: only equal is
        tried. `attention_window`: the mask of the plain pass is written by hand; ModelError where the model does not
        keep to it.
        """
        wanted, pooling = self._check_layers(layers), check_pooling(pooling)
        with memory_needed(f"the self-check of {self.info.name!r}", self.device):
            if attention_window is not None:
                require_window_kept(self, tokenized, attention_window)
            return settle_batching(
                self,
                tokenized,
                layers=wanted,
                pooling=pooling,
                attention_window=attention_window,
                batchings=self._tried(attention_window, equal_lengths=equal_lengths),
            )

    def _tried(self, attention_window: int | None, *, equal_lengths: bool) -> Sequence[Batching]:
        if equal_lengths:
            return ("equal",)
        return [how for how in self.batchings if attention_window is None or how != "varlen"]

    def projected_nbytes(self, *, layers: Sequence[int], batch_subwords: int) -> int:
        """Estimate the memory of weights and of one batch's activations, from above."""
        config = self.model.config
        size = self.dtype.itemsize
        hidden = self.info.hidden_size
        inner = _first_int(config, ("intermediate_size", "d_ff", "n_inner", "hidden_dim", "d_inner"), 4 * hidden)
        heads = _first_int(config, ("num_attention_heads", "n_head", "num_heads", "n_heads"), 1)
        specials = self.inputs.specials.count
        longest = fitting_capacity((self.info.max_subwords or batch_subwords) + specials, self.row_capacity)
        width = min(longest, max(self.row_capacity, batch_subwords))
        positions = max(batch_subwords, width)
        kept = self.info.num_hidden_layers + 1 if not self._tap.blocks else len(set(layers))
        held = kept if self.device.type == "cpu" else kept + _AHEAD * len(set(layers))
        activations = positions * size * (8 * hidden + 3 * inner + held * hidden)
        masks = positions * width * (size + 12) * max(1, len(self.inputs.layer_types))
        scores = 0 if config._attn_implementation == "sdpa" else 3 * positions * width * heads * size
        return self._weights_nbytes() + activations + masks + scores

    def run_layers(self, inputs: Mapping[str, Any], layers: Sequence[int], receive: Receive) -> None:
        """Run the stock model no deeper than it must be and hand each layer to `receive(layer, hidden states)`."""
        self._tap.run(inputs, layers, receive)

    masks_attention = True

    def forward_flops(self, lengths: NDArray[np.int64], *, layers: Sequence[int]) -> float:
        """Count the operations of a pass over sentences of these lengths; see `models.transformer.flops`."""
        return forward_flops(self, lengths, deepest=max(self._check_layers(layers)))

    def position_nbytes(self) -> int:
        """Estimate the memory that each subword of a batch takes on the device, all layers asked for, from above."""
        layers = range(self.info.num_hidden_layers + 1)
        batch = self.projected_nbytes(layers=layers, batch_subwords=_TYPICAL_POSITIONS) - self._weights_nbytes()
        return max(1, batch // _TYPICAL_POSITIONS)

    def _weights_nbytes(self) -> int:
        weights: int = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return weights + self.linears.nbytes

    def _probe(self, loaded: Loaded, vocabulary: int) -> tuple[InputMaker, LayerTap]:
        """Learn from passes over a few subwords what the model takes and where its layers are."""
        model, config, specials = self.model, self.model.config, self._tokenizer.specials
        parameters = forward_parameters(model)
        given = self._probe_inputs(loaded.tokenizer, vocabulary)
        try:
            with torch.no_grad():
                states = model(**given, output_hidden_states=True).hidden_states
                if made_up := needed_parameters(model, given, loaded.missing):
                    raise ModelError(
                        f"the weights of {loaded.name!r} lack {len(made_up)} parameters that the hidden states "
                        f"need, {made_up[0]!r} the first; use a complete model"
                    )
                tap = find_layers(model, given)
                offset = position_offset(model, given, states, getattr(config, "pad_token_id", None))
                causal = is_causal(model, given, states)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the model {loaded.name!r} cannot be used: {' '.join(str(error).split())}") from error
        sliding, kinds = attention_window(config)
        padding = getattr(config, "pad_token_id", None)
        maker = InputMaker(
            parameters=parameters,
            specials=specials,
            takes_types=self._tokenizer.takes_types and "token_type_ids" in parameters,
            padding_id=padding if isinstance(padding, int) and 0 <= padding < vocabulary else 0,
            position_offset=offset,
            causal=causal,
            window=sliding,
            layer_types=kinds,
            device=self.device,
            dtype=self.dtype,
        )
        return maker, tap

    def _probe_inputs(self, tokenizer: Any, vocabulary: int) -> dict[str, Any]:
        special = set(getattr(tokenizer, "all_special_ids", ()))
        usable = [index for index in range(vocabulary) if index not in special] or list(range(vocabulary))
        limit = longest_sentence(self.model.config, tokenizer, self._tokenizer.specials, None)
        count = min(_PROBE_POSITIONS, limit or _PROBE_POSITIONS)
        ids = np.array(usable)[np.arange(2 * count) * (len(usable) - 1) // (2 * count - 1)].reshape(2, count)
        inputs = torch.from_numpy(ids).to(self.device)
        return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}

    def _check_layers(self, layers: Sequence[int]) -> tuple[int, ...]:
        chosen = tuple(int(layer) for layer in layers)
        last = self.info.num_hidden_layers
        for layer in chosen:
            if not 0 <= layer <= last:
                raise InvalidValueError(f"there is no layer {layer}; {self.info.name!r} has layers 0 to {last}")
        if not chosen or len(set(chosen)) < len(chosen):
            raise InvalidValueError(f"the layers {list(chosen)} must be one or more, each named once")
        return chosen

    def _encode(
        self,
        work: Work,
        layers: tuple[int, ...],
        pooling: Pooling,
        size: int,
        window: WordWindow | None,
        dtype: torch.dtype | None,
    ) -> Iterator[Pooled]:
        how = self._batching
        lengths = work.lengths + self.inputs.specials.count
        batches = lay_out(lengths, how=how, batch_subwords=size, row_capacity=self.row_capacity)
        clock = stopwatch(self.device)

        def run(batch: Batch) -> Passed:
            return self._run(work, batch, layers, pooling, how, window, dtype, clock)

        def split(batch: Batch) -> list[Batch]:
            room = max(1, batch.positions // 2)
            return halves(batch, lengths, how=how, batch_subwords=room, row_capacity=self.row_capacity)

        passes = self.halving.run(batches, run, split)
        return collected(passes, clock, self.times, ahead=_AHEAD if self.device.type == "cuda" else 0)

    @torch.inference_mode()
    def _run(
        self,
        work: Work,
        batch: Batch,
        layers: tuple[int, ...],
        pooling: Pooling,
        how: Batching,
        window: WordWindow | None,
        dtype: torch.dtype | None,
        clock: Stopwatch,
    ) -> Passed:
        begun = clock.mark()
        chosen = batch.sentences
        inputs = self.inputs.batch(batch, work.ids, work.starts[chosen], work.lengths[chosen], how, window)
        rows, starts, lengths = work.spans_of(batch, before=len(self.inputs.specials.prefix))
        pool = Pool(starts, lengths, pooling=pooling, device=self.device)
        out = torch.empty(len(layers), len(rows), self.info.hidden_size, dtype=self.dtype, device=self.device)
        pools = []

        def receive(layer: int, state: torch.Tensor) -> None:
            arrived = clock.mark()
            pool(state.reshape(-1, state.shape[-1]), out[layers.index(layer)])
            pools.append((arrived, clock.mark()))

        made = clock.mark()
        with ExitStack() as ways:
            ways.enter_context(self.linears.active())
            if how == "varlen":
                ways.enter_context(attending(self.model))
            self._tap.run(inputs, layers, receive)
        ran = clock.mark()
        copying = self._copies.begin(_leaving(out, dtype), clock)
        return Passed(rows[pool.order], copying, begun, made, ran, pools, self.dtype)


def _leaving(vectors: torch.Tensor, dtype: torch.dtype | None) -> tuple[torch.Tensor, ...]:
    """What leaves the device of vectors [layer, spans, features]: as they are, or cast and with their extremes."""
    if dtype is None:
        return (vectors,)
    extremes = torch.stack([vectors.amin((1, 2)), vectors.amax((1, 2))]).float()
    return (vectors.to(dtype) if dtype.itemsize <= vectors.dtype.itemsize else vectors, extremes)


def _first_int(config: Any, names: Sequence[str], default: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return default


def load_transformer(
    model: str | Path, *, device: str, compute_dtype: str, revision: str | None, threads: int | None
) -> TransformerEncoder:
    """Load a transformer; see `embstore.models.load_encoder`."""
    chosen = choose_device(device)
    dtype = choose_dtype(compute_dtype, chosen)
    use_threads(threads)
    loaded = load(model, device=chosen, dtype=dtype, revision=revision)
    return TransformerEncoder(loaded, device=chosen, dtype=dtype)
