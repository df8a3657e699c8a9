"""ELMo as an encoder: the biLM of Peters et al. 2018 from its published files, batched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, ModelError
from embstore.models.elmo.network import ElmoNetwork, State, TimeMajor
from embstore.models.elmo.plain import plain_vectors
from embstore.models.elmo.weights import ElmoFiles, ElmoOptions, read_options, read_weights
from embstore.models.elmo.words import BEGIN, END, WordNumbers, spell, spelt_lengths
from embstore.models.encoder import Encoder, ModelInfo, Pooled, Pooling, Spans, StageTimes, Tokenized
from embstore.models.loading import choose_dtype, sha256_of, use_threads
from embstore.models.pooling import Pool, check_pooling
from embstore.models.transformer.batches import Batch, halves, lay_out
from embstore.models.transformer.memory import Halving
from embstore.models.transformer.selfcheck import require_finite, vectors_apart, word_spans
from embstore.models.transformer.stopwatch import Stopwatch, stopwatch
from embstore.models.transformer.tokens import PROBES, ragged_indices
from embstore.models.transformer.transfer import HostCopies
from embstore.models.transformer.work import Passed, Work, collected

BATCHING = "packed"
# Rounding goes on from step to step, and bfloat16 keeps three bits less than float16.
TOLERANCE = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}
WORDS_AT_ONCE = {"cpu": 256, "cuda": 8192}  # distinct words through the character CNN
GATE_ROWS = {"cpu": 1024, "cuda": 8192}  # positions whose gates are made at a time
TYPICAL_WORDS = 1 << 15  # distinct words of a window, for the estimate of memory


class ElmoEncoder(Encoder):
    """An `Encoder` over a biLM: a word is one subword, <S> and </S> stand around every sentence.

    Layer 0 is the word from its characters, twice side by side; layer l is the forward and the backward LSTM of
    that layer side by side. `encode` begins every sentence with a zero state, so that its vectors depend on
    nothing else; `iter_batches` can carry the state from batch to batch as the published code does.
    """

    def __init__(
        self, files: ElmoFiles, options: ElmoOptions, *, name: str, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.options = options
        weights = read_weights(files.weights, options, largest=torch.finfo(dtype).max)
        self.network = ElmoNetwork(options, weights, device=device, dtype=dtype)
        self._words = WordNumbers()
        self.times = StageTimes()
        self._halving: Halving[Passed] = Halving(device)
        self._copies = HostCopies(device)
        self._info = ModelInfo(
            name=name,
            architecture="ELMo",
            revision=None,
            weights_sha256=sha256_of([files.options, files.weights]),
            tokenizer_sha256=self._words.sha256(width=options.max_characters),
            num_hidden_layers=options.num_layers,
            hidden_size=2 * options.projection_dim,
            max_subwords=None,
            final_norm=False,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def compute_dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def batching(self) -> str:
        return BATCHING

    @property
    def n_specials(self) -> int:
        return 2

    @property
    def default_batch_subwords(self) -> int:
        """Return how many words make a good batch on the encoder's device."""
        return 4096 if self.device.type == "cpu" else 32768

    def use_batching(self, batching: str) -> None:
        """Take a batching without a check; ELMo knows only "packed", steps without padding."""
        if batching != BATCHING:
            raise InvalidValueError(f"unknown batching {batching!r} of ELMo; allowed is {BATCHING}")

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Make every word one subword; the ids number the words that this encoder has seen."""
        started = perf_counter()
        tokenized = self._words.tokenize(sentences)
        self.times.tokenize += perf_counter() - started
        return tokenized

    def subword_text(self, index: int) -> str:
        """Return the word of an id."""
        return self._words.word(index)

    def encode(
        self, tokenized: Tokenized, spans: Spans, *, layers: Sequence[int], pooling: Pooling, batch_subwords: int
    ) -> Iterator[Pooled]:
        """Run the model over all sentences that have a span and yield their vectors, each span once.

        Raises InvalidValueError for a layer that the model has not, and for a span that is empty or reaches
        beyond its sentence.
        """
        wanted = self._check_layers(layers)
        pooling = check_pooling(pooling)
        if batch_subwords < 1:
            raise InvalidValueError(f"batch_subwords is {batch_subwords}; it must be 1 or more")
        return self._encode(Work.of(tokenized, spans, None), wanted, pooling, batch_subwords)

    def iter_batches(
        self,
        batches: Iterable[Sequence[Sequence[str]]],
        *,
        layers: Sequence[int] | None = None,
        carry_state: bool = False,
    ) -> Iterator[list[NDArray[np.float32]]]:
        """Yield the vectors of batch after batch of sentences: of each a float32 [layers, words, hidden_size].

        With `carry_state` sentence i of a batch begins where sentence i of the last batch that had so many ended,
        in both directions, as in the published code; then the vectors depend on the order of the batches.
        """
        wanted = self._check_layers(range(self.info.num_hidden_layers + 1) if layers is None else layers)
        states = [layer.zero_state(0) for layer in self.network.layers]
        for batch in batches:
            if not carry_state:
                states = [layer.zero_state(0) for layer in self.network.layers]
            yield self._batch(batch, wanted, states) if len(batch) else []

    def self_check(self, tokenized: Tokenized, *, layers: Sequence[int], pooling: Pooling, **_: Any) -> float:
        """Hold the batched pass against a plain one, sentence by sentence and word by word.

        Returns the largest difference, relative to the largest value of the layer. Raises ModelError where it is
        above 2e-5 (5e-3 in float16, 4e-2 in bfloat16), or where the plain pass gives values that are not finite.
        """
        wanted, pooling = self._check_layers(layers), check_pooling(pooling)
        if not len(tokenized.ids):
            tokenized = self.tokenize(PROBES)
        spans = word_spans(tokenized, None)
        expected = plain_vectors(self, tokenized, spans, layers=wanted, pooling=pooling)
        require_finite(self, expected, wanted)
        apart = vectors_apart(self, tokenized, spans, wanted, pooling, expected)
        allowed = TOLERANCE[self.compute_dtype]
        if apart > allowed:
            raise ModelError(
                f"batches of {self.info.name!r} do not reproduce its plain forward pass: the relative difference is "
                f"{apart:.1e}, {allowed:.0e} is allowed"
            )
        return apart

    def projected_nbytes(self, *, layers: Sequence[int], batch_subwords: int) -> int:
        """Estimate the memory of weights, of a window's distinct words and of one batch's activations."""
        options, size = self.options, self.dtype.itemsize
        words = TYPICAL_WORDS * options.projection_dim
        through = self._words_at_once * options.max_characters * (options.character_dim + options.num_filters)
        gates = 2 * min(4 * self._gate_rows, 2 * batch_subwords) * 4 * options.cell_dim
        positions = batch_subwords * self.info.hidden_size * (4 + len(set(layers)))
        return self.network.nbytes + size * (words + through + gates + positions)

    @property
    def _words_at_once(self) -> int:
        return WORDS_AT_ONCE.get(self.device.type, 1024)

    @property
    def _gate_rows(self) -> int:
        return GATE_ROWS.get(self.device.type, 1024)

    def _check_layers(self, layers: Sequence[int]) -> tuple[int, ...]:
        chosen = tuple(int(layer) for layer in layers)
        last = self.info.num_hidden_layers
        for layer in chosen:
            if not 0 <= layer <= last:
                raise InvalidValueError(f"there is no layer {layer}; {self.info.name!r} has layers 0 to {last}")
        if not chosen or len(set(chosen)) < len(chosen):
            raise InvalidValueError(f"the layers {list(chosen)} must be one or more, each named once")
        return chosen

    def _encode(self, work: Work, layers: tuple[int, ...], pooling: Pooling, size: int) -> Iterator[Pooled]:
        clock = stopwatch(self.device)
        begun = clock.mark()
        text = self._text(work.ids[ragged_indices(work.starts, work.lengths)], work.lengths)
        self.times.forward += clock.seconds(begun, clock.mark())
        lengths = work.lengths + 2

        def run(batch: Batch) -> Passed:
            return self._run(work, text, batch.sentences, layers, pooling, clock)

        def split(batch: Batch) -> list[Batch]:
            return halves(batch, lengths, how="padded", batch_subwords=max(1, batch.positions // 2))

        passes = self._halving.run(lay_out(lengths, how="padded", batch_subwords=size), run, split)
        return collected(passes, clock, self.times, ahead=int(self.device.type == "cuda"))

    @torch.inference_mode()
    def _run(
        self,
        work: Work,
        text: _Text,
        sentences: NDArray[np.int64],
        layers: tuple[int, ...],
        pooling: Pooling,
        clock: Stopwatch,
    ) -> Passed:
        begun = clock.mark()
        lengths = work.lengths[sentences] + 2
        total = int(lengths.sum())
        one_row = Batch(sentences, np.zeros(len(lengths), np.int64), np.cumsum(lengths) - lengths, (1, total))
        rows, starts, subwords = work.spans_of(one_row, before=1)
        pool = Pool(starts, subwords, pooling=pooling, device=self.device)
        out = torch.empty(len(layers), len(rows), self.info.hidden_size, dtype=self.dtype, device=self.device)
        pools = []

        def receive(layer: int, hidden: torch.Tensor) -> None:
            arrived = clock.mark()
            pool(hidden, out[layers.index(layer)])
            pools.append((arrived, clock.mark()))

        index, laid = text.index(sentences), TimeMajor.of(lengths)
        made = clock.mark()
        self.network.run(text.vectors, index, laid, layers, receive, rows=self._gate_rows)
        ran = clock.mark()
        return Passed(rows[pool.order], self._copies.begin((out,), clock), begun, made, ran, pools)

    @torch.inference_mode()
    def _batch(
        self, batch: Sequence[Sequence[str]], layers: tuple[int, ...], states: list[State]
    ) -> list[NDArray[np.float32]]:
        """Run one batch from `states` and put back into them where each sentence ended."""
        if not len(batch):
            return []
        tokenized = self.tokenize(batch)
        words = np.diff(tokenized.sentence_indptr)
        longest_first = np.argsort(-words, kind="stable")
        text = self._text(tokenized.ids, words)
        states[:] = [_with_rows(state, len(batch)) for state in states]
        begun = [(output[:, longest_first], cell[:, longest_first]) for output, cell in states]
        found: dict[int, torch.Tensor] = {}
        laid = TimeMajor.of(words[longest_first] + 2)
        self.network.run(
            text.vectors, text.index(longest_first), laid, layers, found.__setitem__, states=begun, rows=self._gate_rows
        )
        for state, ended in zip(states, begun, strict=True):
            for whole, part in zip(state, ended, strict=True):
                whole[:, longest_first] = part
        vectors = torch.stack([found[layer] for layer in layers]).float().cpu().numpy()
        ends = np.empty(len(words), np.int64)
        ends[longest_first] = np.cumsum(words[longest_first] + 2) - 1
        return [vectors[:, end - many : end] for end, many in zip(ends.tolist(), words.tolist(), strict=True)]

    @torch.inference_mode()
    def _text(self, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> _Text:
        """Compute each distinct word's vector once; which words go through together depends on the text alone."""
        ids = np.concatenate([np.array([BEGIN, END], np.int32), ids])
        distinct, first, numbers = np.unique(ids, return_index=True, return_inverse=True)
        as_seen = np.argsort(first)
        rank = np.empty(len(distinct), np.int64)
        rank[as_seen] = np.arange(len(distinct))
        vectors = self._vectors([self._words.word(number) for number in distinct[as_seen].tolist()])
        return _Text(vectors, rank[numbers[2:]], np.cumsum(lengths) - lengths, lengths)

    def _vectors(self, words: list[str]) -> torch.Tensor:
        """Return the vectors of words [words, projection_dim], words of like length computed together."""
        cnn, width = self.network.words, self.options.max_characters
        vectors = torch.empty(len(words), self.options.projection_dim, dtype=self.dtype, device=self.device)
        lengths = spelt_lengths(words, width=width)
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(words), self._words_at_once):
            chosen = order[start : start + self._words_at_once]
            needed = cnn.characters_needed(int(lengths[chosen[0]]))
            ids = spell([words[number] for number in chosen.tolist()], width=width)[:, :needed]
            vectors[torch.from_numpy(chosen).to(self.device)] = cnn(torch.from_numpy(ids).to(self.device))
        return vectors


@dataclass(frozen=True)
class _Text:
    """Sentences as indices of the vectors of their distinct words, the first two of which are <S> and </S>."""

    vectors: torch.Tensor
    numbers: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def index(self, sentences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the words of sentences one after the other, each with <S> and </S> around."""
        lengths = self.lengths[sentences]
        ends = np.cumsum(lengths + 2)
        index = np.full(int(ends[-1]), BEGIN, np.int64)
        index[ends - 1] = END
        index[ragged_indices(ends - 1 - lengths, lengths)] = self.numbers[
            ragged_indices(self.starts[sentences], lengths)
        ]
        return index


def _with_rows(state: State, rows: int) -> State:
    """Add rows of zeros where a state has fewer than `rows`."""
    output, cell = (torch.nn.functional.pad(part, (0, 0, 0, max(0, rows - part.shape[1]))) for part in state)
    return output, cell


def load_elmo(files: ElmoFiles, *, name: str, device: str, compute_dtype: str, threads: int | None) -> ElmoEncoder:
    """Load a biLM; see `embstore.models.load_encoder`."""
    chosen = choose_device(device)
    dtype = choose_dtype(compute_dtype, chosen)
    use_threads(threads)
    return ElmoEncoder(files, read_options(files.options), name=name, device=chosen, dtype=dtype)
