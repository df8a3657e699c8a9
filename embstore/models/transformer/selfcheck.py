"""Choose the fastest batching whose vectors equal those of the plain forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.errors import DeviceMemoryError, ModelError
from embstore.models.batching import Batching
from embstore.models.encoder import Pooled, Pooling, Spans, Tokenized, indptr
from embstore.models.selfcheck import PROBES, TOLERANCE, largest_difference, require_finite, word_spans
from embstore.models.transformer.network import Network
from embstore.models.transformer.reference import plain_vectors

LONGEST_CHECKED = 512  # subwords; longer only if attention slides
LONGEST_SLIDING = 4096

Encode = Callable[[Batching, Tokenized, Spans], Iterable[Pooled]]


def choose_batching(
    network: Network,
    tokenized: Tokenized,
    *,
    layers: Sequence[int],
    pooling: Pooling,
    attention_window: int | None,
    batchings: Sequence[Batching],
    encode: Encode,
) -> tuple[Batching, float]:
    """Return the first of `batchings` that reproduces the plain pass, and its largest relative difference.

    Compares on these sentences and on long ones made of their words. Packed weights are dropped if no batching
    reproduces the plain pass with them. Raises ModelError if none does without them either.
    """
    sample = _with_long_sentences(network, tokenized)
    spans = word_spans(sample, network.info.max_subwords)
    expected = plain_vectors(network, sample, spans, layers=layers, pooling=pooling, attention_window=attention_window)
    require_finite(network.info, network.compute_dtype, expected, layers)
    allowed = TOLERANCE[network.compute_dtype]

    def differences() -> dict[Batching, float]:
        return _differences(lambda how: encode(how, sample, spans), batchings, expected, allowed)

    found = differences()
    if min(found.values()) > allowed and network.packed_nbytes:
        network.drop_packed()
        found = differences()
    batching, difference = list(found.items())[-1]
    if difference <= allowed:
        return batching, difference
    raise ModelError(
        f"no batching of {network.info.name!r} reproduces its plain forward pass: relative differences are "
        + ", ".join(f"{name} {value:.1e}" for name, value in found.items())
        + f", {allowed:.0e} is allowed"
    )


def _differences(
    encode: Callable[[Batching], Iterable[Pooled]],
    batchings: Sequence[Batching],
    expected: NDArray[np.float32],
    allowed: float,
) -> dict[Batching, float]:
    """Return the relative differences of the batchings tried, up to the first one within the bound."""
    found: dict[Batching, float] = {}
    memory: DeviceMemoryError | None = None
    for batching in batchings:
        try:
            found[batching] = largest_difference(encode(batching), expected)
        except Exception as error:  # the model does not support such a batch, or needs too much memory for it
            found[batching] = float("inf")
            memory = error if isinstance(error, DeviceMemoryError) else memory
        if found[batching] <= allowed:
            break
    if memory is not None and min(found.values()) == float("inf"):
        raise memory
    return found


def _with_long_sentences(network: Network, tokenized: Tokenized) -> Tokenized:
    """Add sentences made of the given words that fill whole rows and are longer than any sliding window."""
    n_subwords = np.diff(tokenized.word_indptr)
    ids, lengths = tokenized.ids, n_subwords[n_subwords > 0]
    if not len(lengths):
        probes = network.tokenizer.tokenize(PROBES)
        ids, lengths = probes.ids, np.diff(probes.word_indptr)
    all_ids, all_words, all_sentences = [tokenized.ids], [n_subwords], [np.diff(tokenized.sentence_indptr)]
    for number, wanted in enumerate(_long_lengths(network)):
        word = number * 7 % len(lengths)  # begin at another word, so that no two long sentences are the same
        rolled_ids, rolled = np.roll(ids, -int(lengths[:word].sum())), np.roll(lengths, -word)
        copies = -(-wanted // int(rolled.sum()))
        ends = np.cumsum(np.tile(rolled, copies))
        count = max(1, int(np.searchsorted(ends, wanted, side="right")))
        all_ids.append(np.tile(rolled_ids, copies)[: int(ends[count - 1])])
        all_words.append(np.tile(rolled, copies)[:count])
        all_sentences.append(np.array([count]))
    words, sentences = np.concatenate(all_words), np.concatenate(all_sentences)
    return Tokenized(np.concatenate(all_ids), indptr(words), indptr(sentences))


def _long_lengths(network: Network) -> list[int]:
    """Return lengths in subwords: two that fill a row together, a whole row, a longer one, and the longest checked."""
    specials, row = network.inputs.specials.count, network.row_capacity
    longest = LONGEST_CHECKED
    if network.inputs.window is not None:
        longest = max(row, min(2 * network.inputs.window + 16, LONGEST_SLIDING + 16))
    wanted = [row // 2, row - row // 2 - 2 * specials, row - specials, row + row // 2, longest]
    if network.info.max_subwords is not None:
        wanted = [min(length, network.info.max_subwords) for length in wanted]
    return [length for length in dict.fromkeys(wanted) if length > 0]
