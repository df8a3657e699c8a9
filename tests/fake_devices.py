"""Two devices played on the CPU, "fake:0" and "fake:1": an operator on tensors of more than one of them fails.

A tensor of a fake device holds one of the CPU. Inside `fake_devices` every operator is taken apart, run on the CPU and
put together again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fake"


class FakeTensor(torch.Tensor):
    """A tensor of a fake device; `held` is on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> FakeTensor:
        options = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, device=device, **options)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU; its result is on the device of its tensors, or on the one that it names."""
    flat = tree_flatten((args, kwargs))[0]
    given = [one for one in flat if isinstance(one, torch.Tensor)]
    named = next((one for one in flat if isinstance(one, torch.device)), None)
    moves = func._schema.name in ("aten::to", "aten::_to_copy", "aten::copy_", "aten::set_data")
    devices = {one.device for one in given if isinstance(one, FakeTensor) or one.dim()}
    if len(devices) > 1 and not moves:
        raise RuntimeError(f"{func} was given tensors of {', '.join(sorted(map(str, devices)))}")
    target = named or (given[0].device if moves else next(iter(devices), None))
    is_fake = target is not None and target.type == NAME
    on_cpu = tree_map_only(torch.device, lambda one: torch.device("cpu") if is_fake else one, (args, kwargs))
    held_args, held_kwargs = tree_map_only(FakeTensor, lambda one: one.held, on_cpu)
    result = func(*held_args, **held_kwargs)
    if not is_fake:
        return result
    wrapped = tree_map_only(torch.Tensor, lambda one: FakeTensor(one, target), result)
    same = not given or given[0].device == target
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if same else wrapped


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class _NewTensors(TorchFunctionMode):
    """`torch.tensor` makes its storage below the dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        device = given.pop("device", None) if func is torch.tensor else None
        made = func(*args, **given) if device is not None else func(*args, **(kwargs or {}))
        return made if device is None else made.to(device)


@contextmanager
def fake_devices() -> Iterator[None]:
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME)
    with _Mode(), _NewTensors():
        yield
