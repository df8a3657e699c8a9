"""What the extraction pipeline asks of a model, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

Pooling = Literal["mean", "first", "last", "max"]


@dataclass(frozen=True)
class ModelInfo:
    """All that identifies a model, as the store's metadata keeps it.

    `max_subwords` is the longest sentence that the model takes, in subwords, its special ones not counted
    (None: no limit). `final_norm`: whether the last layer has the model's final norm applied.
    """

    name: str
    architecture: str
    revision: str | None
    weights_sha256: str
    tokenizer_sha256: str
    num_hidden_layers: int
    hidden_size: int
    max_subwords: int | None
    final_norm: bool


@dataclass(frozen=True)
class Tokenized:
    """Sentences as subwords: words of sentences, subwords of words, both in CSR form.

    `ids`: int32 [subwords], special subwords not included. `word_indptr`: int64 [words + 1] into `ids`.
    `sentence_indptr`: int64 [sentences + 1] into the words.
    """

    ids: NDArray[np.int32]
    word_indptr: NDArray[np.int64]
    sentence_indptr: NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    """The runs of subwords to pool, one a row: subwords `[start, stop)` of a sentence of a `Tokenized`.

    `sentence`, `start`, `stop`: int64 [spans]; `start` counts from the sentence's first subword, specials
    not counted. Ascending by sentence.
    """

    sentence: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]


@dataclass(frozen=True)
class Pooled:
    """Vectors of some of the spans: `rows` int64 [n], indices of the spans; `vectors` [layer, n, hidden_size].

    `computed`: the dtype that they were computed in, None where it is theirs. `extremes`: float32 [2, layer], the
    least and the largest number of each layer before they were cast, NaN where one is; None where not known.
    """

    rows: NDArray[np.int64]
    vectors: torch.Tensor
    extremes: torch.Tensor | None = None
    computed: torch.dtype | None = None


@dataclass
class StageTimes:
    """Seconds spent in each stage of an encoder, added up as it runs."""

    tokenize: float = 0.0
    forward: float = 0.0
    pool: float = 0.0
    copy: float = 0.0


class Encoder(Protocol):
    """A model that turns sentences into one vector a span and layer.

    `batching`: how sentences are laid into batches ("packed", "padded", "equal" or "varlen"), settled by `self_check`.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def compute_dtype(self) -> str: ...

    @property
    def batching(self) -> str: ...

    @property
    def num_specials(self) -> int: ...

    @property
    def default_batch_subwords(self) -> int: ...

    @property
    def times(self) -> StageTimes: ...

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split every word into its subwords; a word may have none."""
        ...

    def piece(self, index: int) -> str:
        """Return the spelling of a subword as the tokenizer's vocabulary has it."""
        ...

    def encode(
        self, tokenized: Tokenized, spans: Spans, *, layers: Sequence[int], pooling: Pooling, batch_subwords: int
    ) -> Iterator[Pooled]:
        """Run the model over all sentences that have a span and yield their vectors, each span once.

        The batches depend on the arguments alone, so the same call gives the same bits. Vectors arrive on the
        host in the compute dtype; no layer beyond the deepest one asked for is computed.
        """
        ...

    def self_check(self, tokenized: Tokenized, *, layers: Sequence[int], pooling: Pooling) -> float:
        """Hold the batched pass against the plain one on these sentences and settle `batching`.

        Returns the largest relative difference of the batching kept. Raises ModelError where no batching
        reproduces the plain pass.
        """
        ...

    def use_batching(self, batching: str) -> None:
        """Take a batching without a check, as a store that is resumed must."""
        ...

    def projected_nbytes(self, *, layers: Sequence[int], batch_subwords: int) -> int:
        """Estimate the memory of weights and of one batch's activations."""
        ...


@runtime_checkable
class WindowedEncoder(Encoder, Protocol):
    """An encoder that knows windows: it can mask words, and batch sentences of one length without a mask.

    `causal`: whether a subword sees only those before it.
    """

    @property
    def causal(self) -> bool: ...

    def encode(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        batch_subwords: int,
        attention_window: int | None = None,
    ) -> Iterator[Pooled]:
        """As `Encoder.encode`; with `attention_window` words see words at most so many words away."""
        ...

    def self_check(
        self,
        tokenized: Tokenized,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        attention_window: int | None = None,
        equal_lengths: bool = False,
    ) -> float:
        """As `Encoder.self_check`; with `equal_lengths` no batching but "equal" is settled on.

        With `attention_window` the plain pass has its mask written by hand, and a word beyond it must not change a
        vector of layer 1.
        """
        ...
