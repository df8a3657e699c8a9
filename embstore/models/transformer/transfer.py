"""Arrays to the device and vectors back, without making either side wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.transformer.stopwatch import Stopwatch


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Begin to copy an array to the device; on CUDA through pinned memory, so that nothing waits for it."""
    held = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return held.to(device)
    return held.pin_memory().to(device, non_blocking=True)


class Copying:
    """Tensors on their way to the host: `host`, once `ended` has passed; `device` must live until then."""

    def __init__(self, device: tuple[torch.Tensor, ...], host: tuple[torch.Tensor, ...], began: Any, ended: Any):
        self.device = device
        self.host = host
        self.began = began
        self.ended = ended


class HostCopies:
    """Copies tensors to the host, on CUDA in a stream of its own into pinned memory, beside the next forward pass.

    Torch's own allocator of pinned memory hands a block on once its copy is done and its reader has let it go.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, tensors: tuple[torch.Tensor, ...], clock: Stopwatch) -> Copying:
        """Begin to copy, once all that was asked of the device before is done."""
        if self._stream is None:
            began = clock.mark()
            return Copying(tensors, tuple(tensor.cpu() for tensor in tensors), began, clock.mark())
        host = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            began = clock.mark()
            for here, there in zip(host, tensors, strict=True):
                here.copy_(there, non_blocking=True)
            return Copying(tensors, host, began, clock.mark())
