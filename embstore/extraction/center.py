"""The mean vector of each layer, taken from a sample before an int8 store is begun."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embstore.extraction.partition import PartitionReader
from embstore.extraction.plan import Plan

SAMPLE_ROWS = 4096


def center_of(plan: Plan) -> NDArray[np.float32]:
    """Return float32 [layer, feature]: the mean of the first rows of the plan, the same for the same plan."""
    layout, options = plan.layout, plan.options
    reader = PartitionReader(plan.index, unit=options.unit, limit=plan.limit)
    total = np.zeros((len(layout.layers), layout.hidden_size))
    rows = min(layout.rows, SAMPLE_ROWS)
    for window in reader.windows(0, rows, plan.encoder):
        for pooled in plan.encoder.encode(
            window.tokenized,
            window.spans,
            layers=layout.layers,
            pooling=options.pooling,
            batch_subwords=options.batch_subwords,
        ):
            total += pooled.vectors.double().sum(1).numpy()
    return (total / rows).astype(np.float32)
