"""Which batching a model bears: each is held against the plain pass before anything is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embstore.errors import DeviceMemoryError, ModelError
from embstore.models.encoder import Encoder, Pooled, Pooling, Spans, Tokenized
from embstore.models.transformer.batches import Batching
from embstore.models.transformer.plain import plain_vectors
from embstore.models.transformer.tokens import PROBES, indptr

if TYPE_CHECKING:
    from embstore.models.transformer.encoder import TransformerEncoder

TOLERANCE = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}  # bfloat16 keeps 3 bits less than float16
BATCH_SUBWORDS = 2048
LONGEST_CHECKED = 512  # longer only where attention slides
LONGEST_WINDOW = 4096


def settle_batching(
    encoder: TransformerEncoder,
    tokenized: Tokenized,
    *,
    layers: Sequence[int],
    pooling: Pooling,
    attention_window: int | None,
    batchings: Sequence[Batching],
) -> float:
    """Set the encoder's batching to the first of `batchings` that reproduces the plain pass."""
    sample = _with_long_sentences(encoder, tokenized)
    spans = word_spans(sample, encoder.info.max_subwords)
    expected = plain_vectors(encoder, sample, spans, layers=layers, pooling=pooling, attention_window=attention_window)
    require_finite(encoder, expected, layers)
    allowed = TOLERANCE[encoder.compute_dtype]
    before = encoder.batching
    trial = _Trial(encoder, sample, spans, layers, pooling, attention_window, expected)
    found = trial.run(batchings)
    if min(found.values()) > allowed and encoder.linears.nbytes:
        encoder.linears.drop()
        found = trial.run(batchings)
    batching, difference = list(found.items())[-1]
    if difference <= allowed:
        encoder.use_batching(batching)
        return difference
    encoder.use_batching(before)
    raise ModelError(
        f"no batching of {encoder.info.name!r} reproduces its plain forward pass: relative differences are "
        + ", ".join(f"{name} {value:.1e}" for name, value in found.items())
        + f", {allowed:.0e} is allowed"
    )


@dataclass(frozen=True)
class _Trial:
    """Sentences and the vectors that the plain pass gives them."""

    encoder: TransformerEncoder
    sample: Tokenized
    spans: Spans
    layers: Sequence[int]
    pooling: Pooling
    attention_window: int | None
    expected: NDArray[np.float32]

    def run(self, batchings: Sequence[Batching]) -> dict[str, float]:
        """Return the relative difference of each batching tried, the last one tried being within bounds or none."""
        found: dict[str, float] = {}
        short: DeviceMemoryError | None = None
        for batching in batchings:
            self.encoder.use_batching(batching)
            try:
                with self.encoder.halving.on_trial():
                    found[batching] = self._apart()
            except Exception as error:  # the model cannot take such a batch at all, or makes too much of it
                found[batching] = float("inf")
                short = error if isinstance(error, DeviceMemoryError) else short
            if found[batching] <= TOLERANCE[self.encoder.compute_dtype]:
                break
        if short is not None and min(found.values()) == float("inf"):
            raise short
        return found

    def _apart(self) -> float:
        passes = self.encoder.encode(
            self.sample,
            self.spans,
            layers=self.layers,
            pooling=self.pooling,
            batch_subwords=BATCH_SUBWORDS,
            attention_window=self.attention_window,
        )
        return largest_difference(passes, self.expected)


def require_finite(encoder: Encoder, expected: NDArray[np.float32], layers: Sequence[int]) -> None:
    """Raise ModelError where the plain pass [layers, spans, hidden_size] gave values that are not finite."""
    for place, layer in enumerate(layers):
        if not np.isfinite(expected[place]).all():
            raise ModelError(
                f"layer {layer} of {encoder.info.name!r} is not finite in {encoder.compute_dtype}; "
                "choose the compute dtype float32 or bfloat16"
            )


def vectors_apart(
    encoder: Encoder,
    sample: Tokenized,
    spans: Spans,
    layers: Sequence[int],
    pooling: Pooling,
    expected: NDArray[np.float32],
) -> float:
    """Return the largest difference between `encode` and `expected`, relative to the largest value of the layer."""
    passes = encoder.encode(sample, spans, layers=layers, pooling=pooling, batch_subwords=BATCH_SUBWORDS)
    return largest_difference(passes, expected)


def largest_difference(passes: Iterable[Pooled], expected: NDArray[np.float32]) -> float:
    """Return the largest difference of any vector from `expected`, relative to the largest value of the layer."""
    scale = np.abs(expected).max(axis=(1, 2), initial=0)
    worst = 0.0
    for pooled in passes:
        vectors = pooled.vectors.float().numpy()
        apart = np.abs(vectors - expected[:, pooled.rows]).max(axis=(1, 2), initial=0)
        if not np.isfinite(apart).all():
            return float("inf")
        worst = max(worst, float((apart / np.where(scale > 0, scale, 1)).max(initial=0)))
    return worst


def word_spans(tokenized: Tokenized, limit: int | None) -> Spans:
    """Return a span for every word that has subwords and lies within the limit."""
    words = np.diff(tokenized.sentence_indptr)
    sentence = np.repeat(np.arange(len(words)), words)
    first = tokenized.word_indptr[tokenized.sentence_indptr[:-1]][sentence]
    start, stop = tokenized.word_indptr[:-1] - first, tokenized.word_indptr[1:] - first
    kept = stop > start
    if limit is not None:
        kept &= stop <= limit
    return Spans(sentence[kept], start[kept], stop[kept])


def _with_long_sentences(encoder: TransformerEncoder, tokenized: Tokenized) -> Tokenized:
    """Add sentences made of the given words, that fill whole rows and reach beyond any sliding window."""
    words = np.diff(tokenized.word_indptr)
    ids, lengths = tokenized.ids, words[words > 0]
    if not len(lengths):
        probes = encoder.tokenize(PROBES)
        ids, lengths = probes.ids, np.diff(probes.word_indptr)
    added_ids, added_words, added_sentences = [tokenized.ids], [words], [np.diff(tokenized.sentence_indptr)]
    for shift, wanted in enumerate(_long_lengths(encoder)):
        turned_ids, turned = _turned(ids, lengths, shift)
        copies = -(-wanted // int(turned.sum()))
        ends = np.cumsum(np.tile(turned, copies))
        count = max(1, int(np.searchsorted(ends, wanted, side="right")))
        added_ids.append(np.tile(turned_ids, copies)[: int(ends[count - 1])])
        added_words.append(np.tile(turned, copies)[:count])
        added_sentences.append(np.array([count]))
    return Tokenized(
        np.concatenate(added_ids),
        indptr(np.concatenate(added_words)),
        indptr(np.concatenate(added_sentences)),
    )


def _turned(
    ids: NDArray[np.int32], lengths: NDArray[np.int64], shift: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Begin at another word, so that two long sentences differ."""
    word = shift * 7 % len(lengths)
    subword = int(lengths[:word].sum())
    return np.roll(ids, -subword), np.roll(lengths, -word)


def _long_lengths(encoder: TransformerEncoder) -> list[int]:
    """Return lengths in subwords: two that fill a row, one of the next capacity, one as long as must be known."""
    specials, row = encoder.inputs.specials.count, encoder.row_capacity
    far = LONGEST_CHECKED
    if encoder.inputs.window is not None:
        far = max(row, min(2 * encoder.inputs.window + 16, LONGEST_WINDOW + 16))
    wanted = [row // 2, row - row // 2 - 2 * specials, row - specials, row + row // 2, far]
    if encoder.info.max_subwords is not None:
        wanted = [min(length, encoder.info.max_subwords) for length in wanted]
    return [length for length in dict.fromkeys(wanted) if length > 0]
