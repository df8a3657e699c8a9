"""Where the weights of a network are: on one device, or split over GPUs, main memory and disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, ModelError, quoted
from embstore.sizes import parse_nbytes
from embstore.store.layout import resolve_layers

SPLIT, TENSOR = "split", "tensor"
SHARE = 0.8  # of a GPU's free memory that weights take; batches need the rest
CHECKED_NBYTES = 2**30  # of weights in main memory, all of whose values are checked; of more, a sample is
SAMPLE = 2**12  # values of a parameter
MAX_RANKS = 64  # processes of a model on a CPU
ELSEWHERE = ("cpu", "disk")  # of a map: not where batches run, if there is anything else

Device = str | Mapping[str, int | str]


@dataclass(frozen=True)
class Place:
    """Where a network is put: `main` is the device that ids go to and vectors are collected on.

    `device_map`: how `accelerate` divides the modules; None: all are on `main`. `most_nbytes`: of weights on each
    device, None: what fits. `n_ranks`: the processes that each have a part of every matrix, see `tensor`.
    """

    main: torch.device
    device_map: str | Mapping[str, int | str] | None = None
    most_nbytes: int | None = None
    n_ranks: int = 1

    @classmethod
    def of(cls, device: Device | torch.device) -> Place:
        """Read a `device` argument: one device, "split", "split:20GiB", "tensor", "tensor:4", or a map of modules.

        Raises InvalidValueError for a device that is not here, and where `accelerate` is missing.
        """
        if isinstance(device, torch.device):
            return cls(device)
        kind, colon, size = device.partition(":") if isinstance(device, str) else ("", "", "")
        if isinstance(device, str) and kind not in (SPLIT, TENSOR):
            return cls(choose_device(device))
        if find_spec("accelerate") is None:
            raise InvalidValueError(f"device {quoted(device)} needs accelerate: pip install embstore[large]")
        if kind == TENSOR:
            return cls(choose_device("auto"), n_ranks=_n_ranks(size if colon else None))
        if isinstance(device, str):
            return cls(choose_device("auto"), "auto", parse_nbytes(size, name="the size in device") if colon else None)
        if not isinstance(device, Mapping) or not device:
            raise InvalidValueError(f"device {quoted(device)} is not a name or a map of modules to devices")
        first = next((value for value in device.values() if value not in ELSEWHERE), "cpu")
        return cls(torch.device("cuda", first) if isinstance(first, int) else torch.device(first), dict(device))

    @property
    def is_split(self) -> bool:
        return self.device_map is not None or self.n_ranks > 1

    @property
    def split_over(self) -> Device | None:
        """The `device` argument of a split network, else None."""
        if self.n_ranks > 1:
            return f"{TENSOR}:{self.n_ranks}"
        if self.device_map != "auto":
            return self.device_map
        return SPLIT if self.most_nbytes is None else f"{SPLIT}:{self.most_nbytes}"

    @property
    def loads_straight(self) -> bool:
        """Whether the weights are read straight to where they belong, and blocks that are not needed not at all."""
        return self.is_split or (self.main.type != "cpu" and find_spec("accelerate") is not None)

    def deepest(self, config: Any, layers: Any) -> int | None:
        """Return the deepest of the layers that are asked for, if blocks above it need not be loaded; else None."""
        n_layers = getattr(config, "num_hidden_layers", None)
        if not self.loads_straight or not isinstance(n_layers, int) or getattr(config, "is_encoder_decoder", False):
            return None
        deepest = max(resolve_layers(layers, range(n_layers + 1), ascending=True, absent="does not exist"))
        return deepest if deepest < n_layers else None

    def options(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained`; empty: the network is moved to `main` afterwards."""
        if not self.loads_straight:
            return {}
        if self.n_ranks > 1:
            return {"distributed_config": _distributed(self.n_ranks)}
        if not isinstance(self.device_map, str):
            return {"device_map": self.device_map or {"": self.main}}
        free = import_module("accelerate.utils").get_max_memory()
        return {"device_map": "auto", "max_memory": self.most(free)}

    def most(self, free: Mapping[int | str, int]) -> dict[int | str, int] | None:
        """Return the most bytes of weights on each GPU and in main memory, "cpu", by the free ones; None: what fits."""
        if not any(isinstance(device, int) for device in free):
            return None if self.most_nbytes is None else {"cpu": self.most_nbytes}
        shares = {device: int(SHARE * nbytes) for device, nbytes in free.items()}
        limit = self.most_nbytes or max(shares.values())
        return {device: min(share, limit) if device != "cpu" else share for device, share in shares.items()}


def _n_ranks(number: str | None) -> int:
    """Return how many devices "tensor:N" names, for None all; raises InvalidValueError if they are not here."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    most = torch.accelerator.device_count() if kind is not None else MAX_RANKS
    number = str(most) if number is None and kind is not None else number
    if kind is not None and kind.type != "cuda":
        raise InvalidValueError(f"device 'tensor' needs CUDA GPUs, not {kind.type}: use device split")
    if number is None or not number.isdecimal() or not 2 <= int(number) <= most:
        here = f"{most} {'processes on this CPU' if kind is None else 'CUDA GPUs here'}"
        raise InvalidValueError(f"device 'tensor:{number or 'N'}' is not allowed: give N from 2 to {here}")
    return int(number)


def _distributed(n_ranks: int) -> Any:
    """Return what divides a network over processes, for transformers; raises InvalidValueError if it is too old."""
    try:
        distributed: Any = import_module("transformers.distributed")
        return distributed.DistributedConfig(tp_size=n_ranks)
    except (ImportError, AttributeError, TypeError):
        raise InvalidValueError("device 'tensor' needs a newer transformers: pip install -U transformers") from None


def weights_by_device(network: nn.Module, place: Place) -> dict[str, int]:
    """Return the bytes of weights on each device of a network that is on several; "disk": read from there every pass.

    Of processes with a part each, all are given the bytes of this one.
    """
    if place.n_ranks > 1:
        own = sum(getattr(value, "_local_tensor", value).nbytes for value in network.parameters())
        return {f"{place.main.type}:{rank}": own for rank in range(place.n_ranks)}
    devices: Mapping[str, int | str] = getattr(network, "hf_device_map", {})
    found: Counter[str] = Counter()
    for name, value in network.named_parameters():
        modules = name.split(".")
        above = (".".join(modules[:end]) for end in range(len(modules), -1, -1))
        device = next((devices[module] for module in above if module in devices), value.device)
        found[f"cuda:{device}" if isinstance(device, int) else str(device)] += value.nbytes
    return dict(found)


def own_dtype(config: Any, place: Place) -> torch.dtype:
    """Return the dtype to compute in: a checkpoint's own half precision; else float16 on a GPU and float32 elsewhere.

    Without a GPU it is float32, which is faster there, unless the network is split, for which memory is too small.
    """
    half = next((one for one in (torch.float16, torch.bfloat16) if one == getattr(config, "dtype", None)), None)
    if place.main.type != "cuda":
        return (half if place.is_split else None) or torch.float32
    return half or torch.float16


def without_blocks(kind: type, *, n_layers: int, deepest: int) -> type:
    """Return a class of networks like `kind` that has no blocks above the one that follows layer `deepest`.

    A pass ends at that one; two are left at least, which show the order of the layers. The network is made whole first,
    because blocks may depend on how many there are. One with several lists of `n_layers` blocks, or none, stays whole.
    """

    def shortened(network: Any, config: Any, *args: Any, **options: Any) -> None:
        kind.__init__(network, config, *args, **options)  # type: ignore[misc]
        lists = {name: part for name, part in network.named_modules() if isinstance(part, nn.ModuleList)}
        outer = [
            part
            for name, part in lists.items()
            if len(part) == n_layers and not any(name.startswith(f"{other}.") for other in lists)
        ]
        if len(outer) == 1:
            del outer[0][max(deepest, 1) + 1 :]

    return type(kind.__name__, (kind,), {"__init__": shortened, "__module__": kind.__module__})


def require_finite_weights(network: nn.Module, name: str, *, but: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError if a weight is NaN or infinite.

    On a GPU all are checked there. In main memory that takes seconds a gigabyte, so beyond one gigabyte only 4,096
    values of each parameter are; weights that stay on the disk are not. `but`: parameters that are not in the files.
    """
    weights = {key: value for key, value in network.named_parameters() if key not in but and not value.is_meta}
    weights = {key: getattr(value, "_local_tensor", value) for key, value in weights.items()}  # of several processes
    weights = {key: value for key, value in weights.items() if type(value.data) is torch.Tensor}  # not quantized
    nbytes = sum(value.nbytes for value in weights.values() if value.device.type == "cpu")
    for key, value in weights.items():
        if not value.is_floating_point() or not value.numel():
            continue
        some = value.detach().flatten()
        if value.device.type == "cpu" and nbytes > CHECKED_NBYTES:
            some = some[:: max(1, len(some) // SAMPLE)]
        if not all(bool(end.isfinite()) for end in some.aminmax()):
            stored = str(value.dtype).removeprefix("torch.")
            raise ModelError(
                f"the weights of {name!r} contain NaN or infinity in {key!r} (as {stored}); "
                "download them again or choose a wider compute dtype"
            )
