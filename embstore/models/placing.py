"""Where the weights of a network are: on one device, or split over GPUs, main memory and disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from torch import nn

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, ModelError, quoted

SPLIT = "split"  # the device that spreads a model over all GPUs, then main memory, then the disk
ELSEWHERE = ("cpu", "disk")  # of a map: not where batches run, if there is anything else

DeviceMap = str | Mapping[str, int | str]


@dataclass(frozen=True)
class Place:
    """Where a network is put: `main` is the device that ids go to and vectors are collected on.

    `device_map`: how `accelerate` divides the modules; None: all are on `main`.
    """

    main: torch.device
    device_map: DeviceMap | None = None

    @classmethod
    def of(cls, device: str, device_map: DeviceMap | None = None) -> Place:
        """Choose a device, or the devices of a map; "auto", or the device "split", leaves the map to `accelerate`.

        Raises InvalidValueError for a device that is not here, and where `accelerate` is missing.
        """
        device_map = "auto" if device == SPLIT else device_map
        if device_map is None:
            return cls(choose_device(device))
        if find_spec("accelerate") is None:
            raise InvalidValueError("a model on several devices needs accelerate: pip install embstore[large]")
        if device_map == "auto":
            return cls(choose_device("auto"), "auto")
        if isinstance(device_map, str) or not device_map:
            raise InvalidValueError(f"device_map {quoted(device_map)} is not allowed: give auto, or a map")
        first = next((value for value in device_map.values() if value not in ELSEWHERE), "cpu")
        return cls(torch.device("cuda", first) if isinstance(first, int) else torch.device(first), dict(device_map))

    def options(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained`; empty: the network is moved to `main` afterwards."""
        if self.device_map is None and (self.main.type == "cpu" or find_spec("accelerate") is None):
            return {}
        return {"device_map": self.device_map or {"": self.main}}


def own_dtype(config: Any, place: Place) -> torch.dtype:
    """Return the dtype to compute in: a checkpoint's own half precision; else float16 on a GPU and float32 elsewhere.

    Without a GPU it is float32, which is faster there, unless the network is split, for which memory is too small. A
    model whose numbers float16 cannot hold, so that transformers keeps parts of it in float32, gets bfloat16.
    """
    half = next((one for one in (torch.float16, torch.bfloat16) if one == getattr(config, "dtype", None)), None)
    if place.main.type != "cuda":
        return (half if place.device_map is not None else None) or torch.float32
    networks: Any = transformers.AutoModel
    keeps = getattr(networks._model_mapping.get(type(config), None), "_keep_in_fp32_modules", None)
    return half or (torch.bfloat16 if keeps else torch.float16)


def require_finite_weights(network: nn.Module, name: str, *, but: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError if a weight is NaN or infinite; those that stay on the disk or are quantized are not checked.

    `but`: parameters that are not in the files.
    """
    for key, value in network.named_parameters():
        is_plain = not value.is_meta and type(value.data) is torch.Tensor and value.is_floating_point()
        if key in but or not is_plain or not value.numel():
            continue
        if not all(bool(end.isfinite()) for end in value.detach().aminmax()):
            stored = str(value.dtype).removeprefix("torch.")
            raise ModelError(
                f"the weights of {name!r} contain NaN or infinity in {key!r} (as {stored}); "
                "download them again or choose a wider compute dtype"
            )
