"""Matrix multiplications of a CPU model through oneDNN, with each weight laid out for it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

MAX_NBYTES = 2 << 30  # the laid-out weights are a second copy


class PackedLinears:
    """The linear layers of a model, each with a faster forward that is used inside `active()` alone.

    Outside of it the model is the stock model, so that a plain pass has nothing of this. Which layers are
    packed depends on the model and the build of torch, never on timings: the same call gives the same bits.
    """

    def __init__(self, model: nn.Module, *, rows: int) -> None:
        self._forwards: list[tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]] = []
        self.nbytes = 0
        onednn: Any = torch.backends.mkldnn
        if not onednn.is_available():
            return
        linears: list[Any] = [module for module in model.modules() if _is_packable(module)]
        nbytes = sum(linear.weight.numel() * 4 for linear in linears)
        if nbytes > MAX_NBYTES:
            return
        try:
            self._forwards = [(linear, _packed_forward(linear, rows)) for linear in linears]
        except (RuntimeError, AttributeError, NotImplementedError):  # a torch built without these operations
            return
        self.nbytes = nbytes

    @contextmanager
    def active(self) -> Iterator[None]:
        for linear, forward in self._forwards:
            linear.forward = forward
        try:
            yield
        finally:
            for linear, _ in self._forwards:
                del linear.forward

    def drop(self) -> None:
        """Leave the model as it is from now on."""
        self._forwards = []
        self.nbytes = 0


def _is_packable(module: Any) -> bool:
    if type(module) not in (nn.Linear, Conv1D):
        return False
    weight = module.weight
    return weight.dtype is torch.float32 and weight.device.type == "cpu" and "forward" not in vars(module)


def _packed_forward(linear: Any, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    operations: Any = torch.ops.mkldnn
    weight = linear.weight.detach()
    if type(linear) is Conv1D:
        weight = weight.T.contiguous()
    packed = operations._reorder_linear_weight(weight, rows)
    bias = None if linear.bias is None else linear.bias.detach()

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = operations._linear_pointwise(inputs, packed, bias, "none", [], "")
        return result

    return forward
