"""Vectors of edge probes that are not finite are found whatever their dtype, and no others are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from embstore.errors import NonFiniteError
from embstore.probes.edges.batches import _require_finite


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_vectors_that_are_not_finite(dtype: torch.dtype) -> None:
    store, rows = SimpleNamespace(path="s.zarr"), np.array([7, 3, 9])
    largest = torch.finfo(torch.float16).max
    vectors = torch.full((2, 3, 70), largest, dtype=dtype)
    vectors[0, :, ::3] = -largest
    vectors[1, 2, 4] = 6e-8  # subnormal
    _require_finite(vectors, rows, (0, 5), store)  # type: ignore[arg-type]
    for value in (torch.inf, -torch.inf, torch.nan):
        wrong = vectors.clone()
        wrong[1, 2, 69] = value
        with pytest.raises(NonFiniteError, match=r"layer 5, row 9 of s\.zarr contains NaN or infinity"):
            _require_finite(wrong, rows, (0, 5), store)  # type: ignore[arg-type]
