"""A passage through the encoder, each vector handed on once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from embstore.errors import StoreDamagedError
from embstore.extraction.cast import leaving_as
from embstore.extraction.options import Options
from embstore.extraction.partition import Passage
from embstore.models.encoder import Encoder, Pooled


def iter_encoded(encoder: Encoder, passage: Passage, *, layers: Sequence[int], options: Options) -> Iterator[Pooled]:
    """Run the encoder over a passage and yield all its vectors; raises StoreDamagedError where one is not there."""
    seen = np.zeros(len(passage.spans.sentence), bool)  # a buffer is used again: what is not filled is another's
    for pooled in encoder.encode(
        passage.tokenized,
        passage.spans,
        layers=layers,
        pooling=options.pooling,
        batch_subwords=options.batch_subwords,
        **options.encoding,
        **leaving_as(encoder, options.dtype),
    ):
        seen[pooled.rows] = True
        yield pooled
    if not seen.all():
        raise StoreDamagedError(
            f"the model returned {seen.sum()} of {len(seen)} vectors from row {passage.first_row} on: "
            "the encoder is at fault; nothing of this partition was written"
        )
