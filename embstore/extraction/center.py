"""The mean vector of each layer, taken from a sample before an int8 store is begun."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embstore.extraction.plan import Plan

SAMPLE_ROWS = 4096


def center_of(plan: Plan) -> NDArray[np.float32]:
    """Return float32 [layer, feature]: the mean of the first rows of the plan, the same for the same plan."""
    layout, options = plan.layout, plan.options
    reader = plan.reader((options.context_window,))
    total = np.zeros((len(layout.layers), layout.hidden_size))
    rows = min(layout.n_rows, SAMPLE_ROWS)
    for passage in reader.passages(0, rows, plan.encoder):
        for pooled in plan.encoder.encode(
            passage.tokenized,
            passage.spans,
            layers=layout.layers,
            pooling=options.pooling,
            batch_subwords=options.batch_subwords,
            **options.encoding,
        ):
            sources, _ = passage.rows_of(0, pooled.rows)
            vectors = pooled.vectors.double()
            total += (vectors if sources is None else vectors[:, sources]).sum(1).numpy()
    return (total / rows).astype(np.float32)
