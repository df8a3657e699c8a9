"""A copy of a CPU model whose linear layers have their weights packed for oneDNN once, at load."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

MAX_NBYTES = 2 << 30  # the packed weights are a second copy
TYPICAL_POSITIONS = 2048


class PackedLinear(nn.Module):
    """A linear layer that multiplies by weights in oneDNN's own layout, which saves packing them at every call.

    It shares the weight and the bias of the layer that it replaces; `nbytes`: the size of the packed weights.
    """

    def __init__(self, linear: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        weight = linear.weight.detach()
        if isinstance(linear, Conv1D):
            weight = weight.T.contiguous()
        self.out_features, self.in_features = weight.shape
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_POSITIONS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self._bias, "none", [], "")
        return result


def packed_copy(model: nn.Module) -> tuple[nn.Module, int]:
    """Return a copy of the model with `PackedLinear` layers and the bytes of their packed weights.

    All parameters and buffers are shared with `model`, which stays unchanged. Returns the model itself and 0 if it is
    not in float32 on a CPU, is too large, or if this torch has no oneDNN. What is packed never depends on timings, so
    the same call returns the same bits.
    """
    onednn: Any = torch.backends.mkldnn
    packable = {name: module for name, module in model.named_modules() if _is_packable(module)}
    nbytes = sum(module.weight.numel() * 4 for module in packable.values())
    if not packable or not onednn.is_available() or nbytes > MAX_NBYTES:
        return model, 0
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    try:
        packed = {name: PackedLinear(module) for name, module in packable.items()}
        made = copy.deepcopy(model, shared)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):  # a torch built without these operations
        return model, 0
    for name, layer in packed.items():
        made.set_submodule(name, layer)
    return made, nbytes


def _is_packable(module: Any) -> bool:
    if type(module) not in (nn.Linear, Conv1D):
        return False
    return module.weight.dtype is torch.float32 and module.weight.device.type == "cpu"
