"""The mean vector of each layer, taken from a sample before an int8 store is begun."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embstore.extraction.plan import Plan

SAMPLE_ROWS = 4096


def center_of(plan: Plan) -> NDArray[np.float32]:
    """Return float32 [layer, feature]: the mean of the first rows of the plan, the same for the same plan."""
    layout, options = plan.layout, plan.options
    total = np.zeros((len(layout.layers), layout.hidden_size))
    rows = min(layout.rows, SAMPLE_ROWS)
    store = options.contexts.index(options.context_window)
    for passage in plan.reader().passages(0, rows, plan.encoder):
        for pooled in plan.encoder.encode(
            passage.tokenized,
            passage.spans,
            layers=layout.layers,
            pooling=options.pooling,
            batch_subwords=options.batch_subwords,
            **options.encoding,
        ):
            sources, rows_of_spans = passage.rows_of(store, pooled.rows)
            counts = np.bincount(sources, minlength=len(pooled.rows)) if sources is not None else None
            vectors = pooled.vectors.double().numpy()
            total += vectors.sum(1) if counts is None else np.einsum("lnd,n->ld", vectors, counts)
            del rows_of_spans
    return (total / rows).astype(np.float32)
