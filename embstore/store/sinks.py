"""Attention sinks: the first positions of contexts, where a causal model's vectors are many times longer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.store.places import place

# In SmolLM2 the median at the first position is 7 times that of later ones at layer 8 and 160 times at layer 15; the
# medians at other positions are 1.1 times as long at most, single vectors 9 times.
SINK_RATIO, SINGLE_RATIO = 4.0, 20.0
FEW_CONTEXTS = 8  # of fewer than these the median may be that of one unusual word: then it must be SINGLE_RATIO
N_POSITIONS = 4  # of a context that are looked at: models have one or two sinks
N_CONTEXTS = 32
N_OTHERS = 512  # vectors for the median
READ_ROWS = 2**16


class Sinks(NamedTuple):
    """`positions`: in a context, counted in subwords. `ratio`: their length by the `median` of others at `layer`."""

    positions: tuple[int, ...]
    ratio: float
    layer: int
    median: float


def find_sinks(store: Any) -> Sinks | None:
    """Return which positions of a context are sinks, None if none is.

    A position is a sink if, at a stored layer, the median length of its vectors in the first contexts of the store is
    more than SINK_RATIO times that of vectors at later positions (SINGLE_RATIO, where there are few contexts).
    """
    rows = np.arange(min(store.n_rows, N_CONTEXTS * N_OTHERS))
    rows = rows[store.source.is_written(rows)]
    positions = place(store.index, "context_position", rows)
    first = [rows[positions == position][:N_CONTEXTS] for position in range(N_POSITIONS)]
    others = rows[positions >= N_POSITIONS][:N_OTHERS]
    if not len(others):
        return None
    lengths = _lengths(store, others)
    ratios = np.array([_lengths(store, some) / lengths if len(some) else 0 * lengths for some in first])
    least = np.array([SINGLE_RATIO if len(some) < FEW_CONTEXTS else SINK_RATIO for some in first])
    sinks = np.flatnonzero(ratios.max(1) > least)
    if not len(sinks):
        return None
    ratios = ratios[sinks].max(0)
    at = int(ratios.argmax())
    return Sinks(tuple(sinks.tolist()), float(ratios[at]), store.layers[at], float(lengths[at]))


def _lengths(store: Any, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the median length of vectors, [layer], no less than a small positive number."""
    medians = [  # a layer at a time: all layers of a large model may be gigabytes
        np.median(np.linalg.norm(store.vectors(rows, layers=layer).astype(np.float64), axis=1))
        for layer in store.layers
    ]
    return np.maximum(medians, np.finfo(np.float64).tiny)


def rows_without_sinks(store: Any, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of the rows that are no sinks.

    In a few contexts the sink is another one of the first positions: these rows are measured one by one.
    """
    if (sinks := find_sinks(store)) is None:
        return rows
    positions = place(store.index, "context_position", rows)
    left = ~np.isin(positions, sinks.positions)
    near = np.flatnonzero(left & (positions < N_POSITIONS))
    for start in range(0, len(near), READ_ROWS):
        some = near[start : start + READ_ROWS]
        vectors = store.vectors(rows[some], layers=sinks.layer, missing="nan").astype(np.float64)
        # Halfway, as a factor, between other rows and sinks. NaN, not written yet, is no sink.
        left[some] = ~(np.linalg.norm(vectors, axis=1) > sinks.median * sinks.ratio**0.5)
    return rows[left]
