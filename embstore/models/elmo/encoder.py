"""ELMo as an encoder: the bidirectional language model of Peters et al. 2018 from its published files, batched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus.sentence import Sentence
from embstore.models.batched import BatchedEncoder, Prepared, States
from embstore.models.batching import Batch
from embstore.models.checkpoint import sha256_of
from embstore.models.elmo.network import ElmoNetwork, TimeMajor, plain_layers
from embstore.models.elmo.weights import opened_weights, read_options
from embstore.models.elmo.words import BEGIN, END, SENTENCE_WORDS, WordNumbers, spell, spelled_lengths
from embstore.models.encoder import By, Indices, ModelInfo, Scope, Split, Tokenized, indptr, ragged_indices
from embstore.models.names import public_name
from embstore.models.running import RunningBatch, SpanWork

CNN_WORDS = {"cpu": 256, "cuda": 8192}  # distinct words that go through the character CNN together
GATE_ROWS = {"cpu": 1024, "cuda": 8192}  # positions whose gates are computed together
TYPICAL_WORDS = 1 << 15  # distinct words of a call of `encode`, for the estimate of memory


class ElmoEncoder(BatchedEncoder):
    """An encoder of a biLM; made by `load_encoder`. A word is one subword, <S> and </S> surround every sentence.

    Layer 0 is the word from its characters, twice next to each other; layer l is the forward and the backward LSTM of
    that layer next to each other. Every sentence starts from a zero state, so that its vectors depend on nothing else;
    the published code carries the state from batch to batch.
    """

    n_specials = 2
    has_vocabulary = False
    n_before = 1

    def __init__(self, options: Path, weights: Path, *, name: str, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(name, device, dtype)
        self.options = read_options(options)
        with opened_weights(weights) as arrays:
            self.network = ElmoNetwork(self.options, arrays, device=device, dtype=dtype)
        self._words = WordNumbers()
        self._cnn_words = CNN_WORDS.get(device.type, 1024)
        self._gate_rows = GATE_ROWS.get(device.type, 1024)
        self.info = ModelInfo(
            name=public_name(name),
            architecture="ELMo",
            weights_sha256=sha256_of([options, weights]),
            tokenizer_sha256=self._words.sha256(width=self.options.max_characters),
            num_hidden_layers=self.options.num_layers,
            hidden_size=2 * self.options.projection_dim,
        )

    @property
    def default_batch_subwords(self) -> int:
        """Return a good batch size for the device, in words."""
        return 4096 if self.device.type == "cpu" else 32768

    def subword_text(self, index: int) -> str:
        """Return the word of an id."""
        return self._words.word(index)

    def plain_states(self, sentence: Tokenized, reach: int | None, site: str, deepest: int | None = None) -> States:
        """Return all layers of one sentence, without reuse of words, each [n_words, hidden_size]."""
        words = [SENTENCE_WORDS[0], *map(self._words.word, sentence.ids.tolist()), SENTENCE_WORDS[1]]
        layers = plain_layers(self.network, torch.from_numpy(spell(words, width=self.options.max_characters)))
        return {number: layer[1:-1] for number, layer in enumerate(layers)}

    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        """Estimate the memory of the weights, of distinct words and of the activations of one batch."""
        options, size = self.options, self.network.dtype.itemsize
        words = TYPICAL_WORDS * options.projection_dim
        characters = self._cnn_words * options.max_characters
        cnn = characters * (options.character_dim + sum(count for _, count in options.filters))
        gates = 2 * min(4 * self._gate_rows, 2 * batch_subwords) * 4 * options.cell_dim
        positions = batch_subwords * (4 * self.info.hidden_size + n_features)
        return self.network.nbytes + size * (words + cnn + gates + positions)

    def tokenize(self, sentences: Sequence[Sentence], *, scope: Scope = "sentence", by: By = "text") -> Split:
        """Make every word one subword; its id is the number of the word in this encoder."""
        return self._words.tokenize(sentences)

    def _running(self, work: SpanWork) -> Iterator[RunningBatch | None]:
        vectors, words, bounds = self._text(work.tokenized.ids[ragged_indices(work.starts, work.lengths)], work.lengths)

        def prepare(batch: Batch) -> Prepared:
            sentences, lengths = batch.sentences, work.lengths[batch.sentences] + 2
            columns = np.cumsum(lengths) - lengths
            one_row = Batch(sentences, np.zeros_like(columns), columns, (1, int(lengths.sum())))
            index, order = words[ragged_indices(bounds[sentences], lengths)], TimeMajor.of(lengths)
            return work.spans_of(one_row, before=self.n_before), lambda receive: self.network.run(
                vectors, index, order, work.layers, receive, rows=self._gate_rows
            )

        return self._run_batches(work, "padded", prepare)

    @torch.inference_mode()
    def _text(self, ids: NDArray[np.int32], lengths: Indices) -> tuple[torch.Tensor, Indices, Indices]:
        """Return the vectors of distinct words, the word at each position of the sentences, and the bounds of these.

        Each sentence is between <S> and </S>. The groups of the CNN depend on the text alone.
        """
        bounds = indptr(lengths + 2)
        text = np.full(2 + bounds[-1], BEGIN, np.int32)  # <S> and </S> first
        text[[1, *(1 + bounds[1:])]] = END
        text[ragged_indices(3 + bounds[:-1], lengths)] = ids
        distinct, first, numbers = np.unique(text, return_index=True, return_inverse=True)
        as_seen = np.argsort(first)
        rank = np.empty(len(distinct), np.int64)
        rank[as_seen] = np.arange(len(distinct))
        words = [self._words.word(number) for number in distinct[as_seen].tolist()]
        cnn, width = self.network.words, self.options.max_characters
        vectors = torch.empty(len(words), self.options.projection_dim, dtype=self.network.dtype, device=self.device)
        longest_first = spelled_lengths(words, width=width)
        order = np.argsort(-longest_first, kind="stable")  # words of similar length are computed together
        for start in range(0, len(words), self._cnn_words):
            chosen = order[start : start + self._cnn_words]
            # The maximum is taken over one window of padding too; more of it changes nothing.
            needed = int(longest_first[chosen[0]]) + 2 + cnn.reach
            spelled = spell([words[number] for number in chosen.tolist()], width=width)[:, :needed]
            vectors[torch.from_numpy(chosen).to(self.device)] = cnn(torch.from_numpy(spelled).to(self.device))
        return vectors, rank[numbers[2:]], bounds
