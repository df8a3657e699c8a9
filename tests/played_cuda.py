"""A GPU played on the CPU, which counts the operators that it is given, and names what makes the host wait for it.

Tensors stay on the CPU, and the code under test is given the device cuda:1 while cuda:0 is the current one. All memory
that operators have seen is kept, so that no address is used twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

GPU = torch.device("cuda", 1)
VIEWS = {"view", "slice", "select", "transpose", "t", "unsqueeze", "squeeze", "expand", "detach", "_unsafe_view",
         "as_strided", "permute", "alias", "split", "_reshape_alias", "unbind", "diagonal", "is_pinned"}  # fmt: skip


WAITS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select",
         "_unique2", "unique_dim", "unique_consecutive", "bincount"}  # fmt: skip
UPLOADS = (torch.tensor, torch.as_tensor, torch.Tensor.to)
PRETENDED: dict[Any, Any] = {torch.Tensor.device: GPU, torch.Tensor.is_cuda: True}
FETCHES = (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist)


class PlayedCuda:
    """`kernels`: operators of the GPU; `waits`: of the host; `n_made`: events; `on_gpu`: addresses of its memory."""

    def __init__(self) -> None:
        self.kernels: list[str] = []
        self.waits: list[str] = []
        self.n_made = 0
        self.on_gpu: set[int] = set()
        self.kept: dict[int, Any] = {}
        self.forced = False

    def has(self, tensor: object) -> bool:
        """Return whether a tensor is on the GPU."""
        return isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() in self.on_gpu

    def keep(self, tensor: torch.Tensor) -> int:
        """Keep the memory of a tensor until the end; returns its address."""
        storage = tensor.untyped_storage()
        self.kept[storage.data_ptr()] = storage
        return storage.data_ptr()


class _Stream:
    """A stream of the GPU, in which nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait_stream(self, other: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...


class _Event:
    def record(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...


class _Devices(TorchFunctionMode):
    """Makes on the CPU what is requested on the GPU or in pinned memory, and notes which it was."""

    def __init__(self, played: PlayedCuda) -> None:
        super().__init__()
        self.played = played

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        own = bool(args) and self.played.has(args[0])
        if func is torch.Tensor.pin_memory:
            return args[0].clone()
        if own and (getter := getattr(func, "__self__", None)) in PRETENDED:
            return PRETENDED[getter]
        listed = [*args, *kwargs.values()]
        to_host = func is torch.Tensor.to and any(
            str(value) == "cpu" for value in listed if isinstance(value, str | torch.device)
        )
        if own and (to_host or func in FETCHES):
            return self._fetched(func, args[0], blocking=not kwargs.get("non_blocking", False))
        if not any(isinstance(value, torch.device) and value.type == "cuda" for value in listed):
            return func(*args, **kwargs)
        args, kwargs = tree_map(lambda x: torch.device("cpu") if isinstance(x, torch.device) else x, (args, kwargs))
        if own and func is torch.Tensor.to:
            return func(*args, **kwargs)
        if func is torch.Tensor.to:
            kwargs["copy"] = True
        self.played.forced = True
        try:
            made = func(*args, **kwargs)
        finally:
            self.played.forced = False
        self.played.on_gpu.add(made.untyped_storage().data_ptr())
        if func in UPLOADS and not kwargs.get("non_blocking", False):
            self.played.waits.append("upload")
        return made

    def _fetched(self, func: Any, tensor: torch.Tensor, *, blocking: bool) -> Any:
        """Copy a tensor of the GPU to the host."""
        with torch._C.DisableTorchFunction():
            made = tensor.clone()
        self.played.on_gpu.discard(made.untyped_storage().data_ptr())
        if blocking:
            self.played.waits.append(func.__name__)
        return func(made) if func is not torch.Tensor.to else made


class _Operators(TorchDispatchMode):
    """Counts the operators that read, write or make a tensor of the GPU."""

    def __init__(self, played: PlayedCuda) -> None:
        super().__init__()
        self.played = played

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, played = kwargs or {}, self.played
        out = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name in VIEWS:
            return out
        seen: set[int] = set()
        made: set[int] = set()
        tree_map_only(torch.Tensor, lambda x: seen.add(played.keep(x)), (args, kwargs))
        tree_map_only(torch.Tensor, lambda x: made.add(played.keep(x)), out)
        made -= seen
        on_gpu = played.forced or bool(seen & played.on_gpu)
        played.on_gpu = played.on_gpu | made if on_gpu else played.on_gpu - made
        if on_gpu:
            played.kernels.append(name)
            if name in WAITS or _waits(name, args, kwargs, played):
                played.waits.append(name)
        return out


def _waits(name: str, args: Any, kwargs: Any, played: PlayedCuda) -> bool:
    """Return whether the host waits: for a copy in between, for how many a mask chooses, or how long the result is."""
    if name == "copy_":
        blocking = not (kwargs.get("non_blocking", False) or (len(args) > 2 and args[2]))
        return blocking and played.has(args[0]) != played.has(args[1])
    if name in ("index", "index_put_", "index_put"):
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return name == "repeat_interleave" and kwargs.get("output_size") is None


@contextlib.contextmanager
def played_cuda() -> Iterator[PlayedCuda]:
    """Play a GPU inside the block."""
    played = PlayedCuda()

    def event(**_: Any) -> _Event:
        played.n_made += 1
        return _Event()

    replaced = {
        "Stream": _Stream,
        "Event": event,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": _Stream,
    }
    before = {name: getattr(torch.cuda, name) for name in replaced}
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    try:
        with _Operators(played), _Devices(played):
            yield played
    finally:
        for name, value in before.items():
            setattr(torch.cuda, name, value)
