"""Arrays to the device and vectors back, without making either side wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Begin to copy an array to the device; on CUDA through pinned memory, so that nothing waits for it."""
    held = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return held.to(device)
    return held.pin_memory().to(device, non_blocking=True)
