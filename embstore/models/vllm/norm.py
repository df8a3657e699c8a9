"""The final norm of a decoder, which vLLM does not apply to the states that it writes, from the files of the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import nn

from embstore.errors import ModelError


def final_norm(config: Any, files: Sequence[Path], *, name: str, dtype: torch.dtype) -> nn.Module:
    """Return the norm after the last block of a model, the only part of it whose weights are read.

    It is the only norm next to the blocks that is not one of embeddings. Raises ModelError where it is not found.
    """
    auto: Any = transformers.AutoModel
    with torch.device("meta"):
        network = auto.from_config(config)
    n_layers = config.get_text_config().num_hidden_layers
    found = [
        (f"{path}.{child}".lstrip("."), module)
        for path, owner in network.named_modules()
        if any(isinstance(part, nn.ModuleList) and len(part) == n_layers for part in owner.children())
        for child, module in owner.named_children()
        if "norm" in type(module).__name__.lower() and "embed" not in child
    ]
    if len(found) == 1:
        path, norm = found[0]
        values = {key: _tensors(files, f"{path}.{key}") for key in norm.state_dict()}
        if all(len(each) == 1 for each in values.values()):
            norm = norm.to_empty(device="cpu")
            norm.load_state_dict({key: each[0] for key, each in values.items()})
            read: nn.Module = norm.to(dtype).eval()
            return read
    raise ModelError(
        f"the final norm of {name!r} is not found, which the last layer needs: ask for layers below {n_layers}"
    )


def _tensors(files: Sequence[Path], path: str) -> list[torch.Tensor]:
    """Return the tensors of that name, which may begin with the name of the network, but not with a block's number."""
    found = []
    for file in files:
        with safe_open(file, "pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                before = key.removesuffix(path)
                if (
                    before != key
                    and (not before or before.endswith("."))
                    and not any(map(str.isdecimal, before.split(".")))
                ):
                    found.append(opened.get_tensor(key))
    return found
