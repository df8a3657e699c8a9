"""What the self-check needs besides the plain pass: long sentences, and masks of windows written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.batched import PROBES, TOLERANCE, largest, lengths_of, scales_of, word_spans
from embstore.models.checkpoint import reason
from embstore.models.encoder import Tokenized, indptr, ragged_indices
from embstore.models.transformer.inputs import InputMaker, Mask
from embstore.models.transformer.network import SAME, Network

LONGEST_WINDOW_SENTENCE = 1024  # words; of wider windows only the effect of a near word is checked
SHORT_SENTENCE = 16
LONGEST_CHECKED = 512  # subwords; longer only if attention slides
LONGEST_SLIDING = 4096
CHECK_SHARE = 0.04  # of the subwords of an extraction that are checked, each in a plain pass and in a batch


def window_mask(maker: InputMaker, words: NDArray[Any], reach: int) -> Mask:
    """Return the mask of one sentence for an attention window, written one subword at a time.

    `words`: int [n_subwords], the number of the word of each subword.
    """
    before = len(maker.specials.prefix)
    special = np.ones(maker.specials.count + len(words), bool)
    special[before : before + len(words)] = False
    rows = []
    for query in range(len(special)):
        row = special.copy()
        if not special[query]:
            row[before : before + len(words)] = np.abs(words - words[query - before]) <= reach
        rows.append(row)
    return maker.additive_mask(torch.from_numpy(np.stack(rows))[None, None].to(maker.device))


@torch.inference_mode()
def require_window_respected(network: Network, tokenized: Tokenized, reach: int) -> None:
    """Raise ModelError if words beyond an attention window change a vector of layer 1, or words within it do not.

    `tokenized`: sentences from which known subwords are taken.
    """
    refused = (
        f"the model {network.info.name!r} does not respect a mask of pairs of subwords, which attention windows need: "
    )
    if "attention_mask" not in network.inputs.parameters:
        raise ModelError(refused + "it takes no attention mask; use context windows")
    limit = min(network.info.max_subwords or LONGEST_WINDOW_SENTENCE, LONGEST_WINDOW_SENTENCE)
    n_words = reach + 2 if reach + 2 <= limit else min(limit, SHORT_SENTENCE)
    ids = _known_ids(network, tokenized)
    try:
        before = _layer_1(network, np.resize(ids, n_words), reach)
        first_changed, last_changed, next_changed = (
            _changed(network, before, ids, place, reach) for place in (0, n_words - 1, n_words - 2)
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(refused + f"it fails with one ({reason(error)}); use context windows") from error
    first = len(network.inputs.specials.prefix)
    last = first + n_words - 1
    special = np.ones(len(before), bool)
    special[first : last + 1] = False
    leaks = [changed[special].any() for changed in (first_changed, last_changed, next_changed)]
    if n_words == reach + 2:  # the two ends are outside each other's window
        leaks += [first_changed[last], last_changed[first]]
    if any(leaks):
        raise ModelError(refused + f"words more than {reach} words away change its layer 1; use context windows")
    if reach > 0 and next_changed.sum() < 2:  # besides its own position
        raise ModelError(refused + f"words up to {reach} words away change nothing in its layer 1; use context windows")


@torch.inference_mode()
def require_own_mask(network: Network, tokenized: Tokenized) -> None:
    """Raise ModelError if the mask of a window wider than the sentence is not the model's own attention.

    One long sentence is run with a mask that allows everything, to which `InputMaker` adds the model's causal and
    sliding parts, and without any mask. A wrong part would be in every mask of a window, that of the plain pass
    included, so no comparison of those could show it. `tokenized`: sentences from which known subwords are taken.
    """
    inputs = network.inputs.plain(np.resize(_known_ids(network, tokenized), max(_long_lengths(network))))
    n_positions = inputs.pop("attention_mask").shape[1]
    allowed = torch.ones(1, 1, n_positions, n_positions, dtype=torch.bool, device=network.device)
    own, masked = (
        network.model(**inputs, **network.inputs.fixed, **mask, output_hidden_states=True).hidden_states
        for mask in ({}, {"attention_mask": network.inputs.additive_mask(allowed)})
    )
    for layer, states in enumerate(zip(own, masked, strict=True)):
        one, other = (state.float().cpu().numpy() for state in states)
        difference = largest(lengths_of(other - one) / scales_of(one), network.outliers)
        if not difference <= TOLERANCE[network.dtype]:
            raise ModelError(
                f"an attention window wider than the sentence changes layer {layer} of {network.info.name!r} by "
                f"{difference:.1e} of a vector's length: its attention is of an unknown kind; use context windows"
            )


def _known_ids(network: Network, tokenized: Tokenized) -> NDArray[np.int32]:
    """Return up to 64 different subwords of the sentences, in the order in which they occur."""
    known = tokenized if len(tokenized.ids) else network.tokenizer.tokenize(PROBES).tokenized
    ids: NDArray[np.int32] = known.ids[np.sort(np.unique(known.ids, return_index=True)[1])][:64]
    return ids


def _layer_1(network: Network, ids: NDArray[np.int32], reach: int) -> torch.Tensor:
    """Return layer 1 of a sentence in which each word has one subword: [positions, features]."""
    inputs = network.inputs.plain(ids)
    inputs["attention_mask"] = window_mask(network.inputs, np.arange(len(ids)), reach)
    states = network.model(**inputs, **network.inputs.fixed, output_hidden_states=True).hidden_states
    layer: torch.Tensor = states[min(1, len(states) - 1)][0].float().cpu()
    return layer


def _changed(network: Network, before: torch.Tensor, ids: NDArray[np.int32], place: int, reach: int) -> Any:
    """Return which positions of layer 1 differ from `before` with another subword at a place: bool [positions]."""
    changed = np.resize(ids, len(before) - network.inputs.specials.count)
    changed[place] = next((other for other in ids if other != changed[place]), changed[place])
    difference = (before - _layer_1(network, changed, reach)).abs().amax(1)
    return (difference > SAME[network.dtype] * before.abs().amax(1)).numpy()


def sentences_to_check(
    network: Network, tokenized: Tokenized, longest: int | None, n_subwords: int | None
) -> list[tuple[Tokenized, int | None]]:
    """Return the given sentences and longer ones, in parts, and the layer at which each is stopped, None for the last.

    Where they are more than a small share of the `n_subwords` of an extraction, only the first of the given ones are
    run through all layers, two at least, and long ones until each kind of block has been run.
    """
    whole = with_long_sentences(network, tokenized, longest)
    lengths = np.diff(whole.bounds)
    deepest = network.layers_of_all_kinds
    if n_subwords is None or not len(tokenized.ids) or len(whole.ids) <= CHECK_SHARE * n_subwords:
        return [(whole, None)]
    n_long = int(lengths[len(tokenized) :].sum()) * deepest // network.info.num_hidden_layers
    n_short = int(np.searchsorted(whole.bounds, CHECK_SHARE * n_subwords - n_long, "right")) - 1
    n_short = max(2, min(n_short, len(tokenized)))
    begins, ends = whole.bounds[:-1], whole.bounds[1:]
    short, long = slice(n_short), slice(max(n_short, len(tokenized)), None)
    return [(whole.runs(begins[short], ends[short]), None), (whole.runs(begins[long], ends[long]), deepest)]


def with_long_sentences(network: Network, tokenized: Tokenized, longest: int | None = None) -> Tokenized:
    """Add sentences made of the given words that fill whole rows and are longer than any sliding window.

    None is longer than `longest` subwords, because no sentence of the extraction is.
    """
    source = tokenized if len(tokenized.ids) else network.tokenizer.tokenize(PROBES).tokenized
    spans = word_spans(source, None)
    lengths, start = spans.stop - spans.start, spans.start + source.bounds[spans.sentence]
    words = np.arange(len(tokenized.ids)) if tokenized.words is None else tokenized.words
    all_ids, all_words = [tokenized.ids], [words]
    for number, wanted in enumerate(_long_lengths(network, longest)):
        word = number * 7 % len(lengths)  # begin at another word, so that no two long sentences are the same
        order = np.resize(np.roll(np.arange(len(lengths)), -word), len(lengths) * -(-wanted // int(lengths.sum())))
        count = max(1, int(np.searchsorted(np.cumsum(lengths[order]), wanted, side="right")))
        chosen = lengths[order[:count]]
        all_ids.append(source.ids[ragged_indices(start[order[:count]], chosen)])
        all_words.append(np.repeat(np.arange(count), chosen) + 1 + int(all_words[-1].max(initial=0)))
    bounds = [np.diff(tokenized.bounds), np.array([len(ids) for ids in all_ids[1:]], np.int64)]
    return Tokenized(np.concatenate(all_ids), indptr(np.concatenate(bounds)), np.concatenate(all_words))


def _long_lengths(network: Network, longest: int | None = None) -> list[int]:
    """Return lengths in subwords: two that fill a row together, a whole row, a longer one, and the longest checked."""
    specials, row = network.inputs.specials.count, network.row_capacity
    checked = LONGEST_CHECKED
    if network.inputs.window is not None:
        checked = max(row, min(2 * network.inputs.window + 16, LONGEST_SLIDING + 16))
    wanted = [row // 2, row - row // 2 - 2 * specials, row - specials, row + row // 2, checked]
    for limit in (network.info.max_subwords, longest):
        if limit is not None:
            wanted = [min(length, limit) for length in wanted]
    return [length for length in dict.fromkeys(wanted) if length > 0]
