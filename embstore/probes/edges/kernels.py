"""Loops of edge probes on a processor (see edge_compiled): mixing, pooling, the hidden layer's norm, and their slopes.

They run over probes `[first, last)`, which share nothing, so that threads may share them out. Vectors are read as they
are stored, float16 or float32, and become float32 as they are used. Slopes are those of the loss.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from embstore.analysis.neighbors.halves import float_of_half

FAST = {"reassoc", "contract", "nsz"}
EPSILON = np.float32(1e-5)  # of the layer norm, as torch has it


@njit(cache=True, nogil=True, fastmath=FAST)
def holds_ones(bits, mask, one, top):  # type: ignore[no-untyped-def]
    """Whether some lane of the words `bits` uint64 [n] has all bits of `mask`: adding `one` then carries into `top`."""
    found = np.uint64(0)
    for at in range(bits.shape[0]):
        found |= (bits[at] & mask) + one
    return (found & top) != 0


@njit(cache=True, nogil=True, fastmath=FAST)
def mix_words(  # type: ignore[no-untyped-def]
    half,  # int16 [layer, n, d], the bits of float16; or [0, 0, d]
    full,  # float32 [layer, n, d]; or [0, 0, d]
    allowed,  # bool [probe, layer]
    weights,  # float32 [probe, layer], gamma times s
    directions,  # float32 [kind, probe, d], what words are scored by; or [0, ...]
    mixed,  # float32 [probe, n, d]: set
    scores,  # float32 [kind, probe, n]: set
    first,
    last,
):
    """Equation 1 for every word, and the scores of the words."""
    layers = max(half.shape[0], full.shape[0])
    row = np.empty(mixed.shape[2], np.float32)
    for word in range(mixed.shape[1]):
        for probe in range(first, last):
            mixed[probe, word, :] = 0
        for layer in range(layers):
            _read(half, full, layer, word, row)
            for probe in range(first, last):
                if allowed[probe, layer]:
                    _add(weights[probe, layer], row, mixed[probe, word])
        for kind in range(directions.shape[0]):
            for probe in range(first, last):
                scores[kind, probe, word] = _dot(directions[kind, probe], mixed[probe, word])


@njit(cache=True, nogil=True, fastmath=FAST)
def pool_spans(mixed, scores, places, begin, shares, pooled, first, last):  # type: ignore[no-untyped-def]
    """Set `pooled` [probe, span, d]: the mean of each span's words by the softmax of their scores, `shares`.

    `places` int64 [entries]: the words of one span after the other; `begin` int64 [spans + 1]. `shares` float32
    [probe, entries]. A span of one word is that word.
    """
    for probe in range(first, last):
        for span in range(begin.shape[0] - 1):
            start, stop = begin[span], begin[span + 1]
            if stop - start == 1:
                shares[probe, start] = 1
                pooled[probe, span, :] = mixed[probe, places[start]]
                continue
            highest = scores[probe, places[start]]
            for entry in range(start + 1, stop):
                highest = max(highest, scores[probe, places[entry]])
            whole = np.float32(0)
            for entry in range(start, stop):
                shares[probe, entry] = np.exp(scores[probe, places[entry]] - highest)
                whole += shares[probe, entry]
            pooled[probe, span, :] = 0
            for entry in range(start, stop):
                shares[probe, entry] /= whole
                _add(shares[probe, entry], mixed[probe, places[entry]], pooled[probe, span])


@njit(cache=True, nogil=True, fastmath=FAST)
def unpool_spans(  # type: ignore[no-untyped-def]
    slopes, mixed, shares, places, begin, mixed_slopes, score_slopes, first, last
):
    """Add the slopes in `mixed` [probe, n, d] and in its scores [probe, n] to those given, from those in `pooled`."""
    for probe in range(first, last):
        for span in range(begin.shape[0] - 1):
            start, stop = begin[span], begin[span + 1]
            own = slopes[probe, span]
            if stop - start == 1:
                _add(np.float32(1), own, mixed_slopes[probe, places[start]])
                continue
            middle = np.float32(0)  # the mean of the slopes in the shares
            for entry in range(start, stop):
                middle += shares[probe, entry] * _dot(own, mixed[probe, places[entry]])
            for entry in range(start, stop):
                place, share = places[entry], shares[probe, entry]
                score_slopes[probe, place] += share * (_dot(own, mixed[probe, place]) - middle)
                _add(share, own, mixed_slopes[probe, place])


@njit(cache=True, nogil=True, fastmath=FAST)
def unmix_words(  # type: ignore[no-untyped-def]
    half,
    full,
    allowed,
    directions,
    mixed,
    mixed_slopes,  # float32 [probe, n, d]; what comes through the scores is added to it
    score_slopes,  # float32 [kind, probe, n]
    weight_slopes,  # float64 [probe, layer]: set
    direction_slopes,  # float32 [kind, probe, d]: set
    first,
    last,
):
    """The slopes in what `mix_words` was given."""
    layers = max(half.shape[0], full.shape[0])
    row = np.empty(mixed.shape[2], np.float32)
    weight_slopes[first:last] = 0
    direction_slopes[:, first:last] = 0
    for word in range(mixed.shape[1]):
        for kind in range(directions.shape[0]):
            for probe in range(first, last):
                slope = score_slopes[kind, probe, word]
                _add(slope, mixed[probe, word], direction_slopes[kind, probe])
                _add(slope, directions[kind, probe], mixed_slopes[probe, word])
        for layer in range(layers):
            _read(half, full, layer, word, row)
            for probe in range(first, last):
                if allowed[probe, layer]:
                    weight_slopes[probe, layer] += _dot(row, mixed_slopes[probe, word])


@njit(cache=True, nogil=True, fastmath=FAST)
def norm_units(hidden, norm, norm_bias, kept, which, normed, scale, active, first, last):  # type: ignore[no-untyped-def]
    """Set `normed` and `active` [probe, target, unit]: the layer norm of `hidden`, weighed, times dropout's factors.

    `scale` [probe, target]: what the layer norm divided by, inverted. `kept` float32 [masks, target, unit] or
    [0, ...]; `which` int64 [probe]: the mask of each probe.
    """
    units = hidden.shape[2]
    for probe in range(first, last):
        for target in range(hidden.shape[1]):
            row, even, out = hidden[probe, target], normed[probe, target], active[probe, target]
            whole = np.float32(0)
            for at in range(units):
                whole += row[at]
            mean = whole / np.float32(units)
            square = np.float32(0)
            for at in range(units):
                square += (row[at] - mean) * (row[at] - mean)
            inverse = np.float32(1) / np.sqrt(square / np.float32(units) + EPSILON)
            scale[probe, target] = inverse
            weight, bias = norm[probe], norm_bias[probe]
            for at in range(units):
                even[at] = (row[at] - mean) * inverse
                out[at] = even[at] * weight[at] + bias[at]
            if kept.shape[0]:
                mask = kept[which[probe], target]
                for at in range(units):
                    out[at] *= mask[at]


@njit(cache=True, nogil=True, fastmath=FAST)
def unnorm_units(  # type: ignore[no-untyped-def]
    slopes,  # float32 [probe, target, unit]: in `active`; becomes those before the tanh
    hidden,
    norm,
    kept,
    which,
    normed,
    scale,
    norm_slopes,  # float32 [probe, unit]: set, as the next two
    norm_bias_slopes,
    hidden_bias_slopes,
    first,
    last,
):
    """The slopes in the weights and the bias of the norm, and before the tanh and its bias."""
    units = hidden.shape[2]
    count = np.float32(units)
    norm_slopes[first:last] = 0
    norm_bias_slopes[first:last] = 0
    hidden_bias_slopes[first:last] = 0
    for probe in range(first, last):
        weight, of_norm, of_bias, of_hidden = (
            norm[probe],
            norm_slopes[probe],
            norm_bias_slopes[probe],
            hidden_bias_slopes[probe],
        )
        for target in range(hidden.shape[1]):
            slope, even, row = slopes[probe, target], normed[probe, target], hidden[probe, target]
            if kept.shape[0]:
                mask = kept[which[probe], target]
                for at in range(units):
                    slope[at] *= mask[at]
            whole, along = np.float32(0), np.float32(0)
            for at in range(units):
                of_bias[at] += slope[at]
                of_norm[at] += slope[at] * even[at]
                slope[at] *= weight[at]
                whole += slope[at]
                along += slope[at] * even[at]
            inverse, whole, along = scale[probe, target], whole / count, along / count
            for at in range(units):
                before = (slope[at] - whole - even[at] * along) * inverse * (np.float32(1) - row[at] * row[at])
                slope[at] = before
                of_hidden[at] += before


@njit(cache=True, nogil=True, fastmath=FAST, inline="never")
def _read(half, full, layer, word, row):  # type: ignore[no-untyped-def]
    if half.shape[0]:
        stored = half[layer, word]
        for at in range(row.shape[0]):
            row[at] = float_of_half(stored[at])
    else:
        row[:] = full[layer, word]


@njit(cache=True, nogil=True, fastmath=FAST)
def _add(weight, row, out):  # type: ignore[no-untyped-def]
    for at in range(row.shape[0]):
        out[at] += weight * row[at]


@njit(cache=True, nogil=True, fastmath=FAST)
def _dot(one, other):  # type: ignore[no-untyped-def]
    found = np.float32(0)
    for at in range(one.shape[0]):
        found += one[at] * other[at]
    return found
