"""The layers of a model: hooks that read them as they are computed, and weights that are faster on some CPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

MAX_NBYTES = 2 << 30  # they are a second copy
TYPICAL_POSITIONS = 2048

Receive = Callable[[int, torch.Tensor], None]
_Call = tuple[nn.Module, torch.Tensor]  # a module and its first argument


class DeepEnough(Exception):
    """Ends a forward pass after the last requested layer."""


@contextmanager
def hooked(handles: Iterable[Any]) -> Iterator[None]:
    """Remove the hooks of these handles at the end of the block."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


@dataclass(frozen=True)
class LayerTap:
    """Where the layers of a model can be read during a forward pass.

    `blocks`: modules whose calls receive hidden state 0, 1, ... as their first argument; empty if there are none, and
    then every layer is computed and held until the end. `num_hidden_layers`: the last layer. `final_norm`: whether a
    norm outside the blocks computes the last layer. `after`: the model's own `hidden_states` are those after each block
    and then after the norm, as those of Mamba and RWKV are: layer 0 is not among them, and layer l is number l - 1.
    """

    model: nn.Module
    blocks: tuple[nn.Module, ...]
    num_hidden_layers: int
    hidden_size: int
    final_norm: bool
    after: bool = False

    def plain(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Return all layers from one call of the model with `output_hidden_states=True`, as transformers has them."""
        first: list[torch.Tensor] = []
        with hooked(
            block.register_forward_pre_hook(lambda _, *given: first.append(_first_argument(*given)), with_kwargs=True)
            for block in self.blocks[: self.after]
        ):
            states = tuple(self.model(**inputs, output_hidden_states=True).hidden_states)
        return (first[0], *states[:-2], states[-1]) if self.after else states

    def run(self, inputs: Mapping[str, Any], layers: Iterable[int], receive: Receive) -> None:
        """Run the model as deep as necessary and call `receive(layer, [batch, positions, features])` for each layer."""
        wanted = frozenset(layers)
        if not wanted:
            return
        if not self.blocks:
            states = self.plain(inputs)
            for layer in sorted(wanted):
                receive(layer, states[layer])
            return
        calls = 0

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal calls
            layer, calls = calls, calls + 1
            if layer in wanted:
                receive(layer, _first_argument(args, kwargs))
            if layer == max(wanted):
                raise DeepEnough

        with (
            suppress(DeepEnough),
            hooked(block.register_forward_pre_hook(hook, with_kwargs=True) for block in self.blocks),
        ):
            receive(self.num_hidden_layers, self.model(**inputs).last_hidden_state)


def find_layers(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[LayerTap, tuple[torch.Tensor, ...]]:
    """Find the modules whose inputs are the model's `hidden_states`, and these states, by running it once on `inputs`.

    The batch and the positions of `inputs` must differ in number. Raises ValueError if the model returns no hidden
    states, or layers of different sizes.
    """
    calls: list[_Call] = []
    norms: list[torch.Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = _first_argument(args, kwargs)
        if isinstance(state, torch.Tensor) and state.dim() == 3:
            calls.append((module, state.cpu().clone()))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, torch.Tensor):
            norms.append(output.cpu().clone())

    owners = {child: id(owner) for owner in model.modules() if isinstance(owner, nn.ModuleList) for child in owner}
    inside = {module for child in owners for module in child.modules()}
    outer = [one for one in model.modules() if one not in inside and "norm" in type(one).__name__.lower()]
    with (
        hooked(child.register_forward_pre_hook(before, with_kwargs=True) for child in owners),
        hooked(norm.register_forward_hook(after) for norm in outer),
    ):
        output = model(**inputs, output_hidden_states=True)
    states = getattr(output, "hidden_states", None)
    if not states or any(state.shape != states[0].shape for state in states):
        raise ValueError("it does not return hidden states of one size for every layer")
    states = [state.cpu() for state in states]  # those of a split model are on several devices
    final_norm = any(same(norm, states[-1]) for norm in norms)
    blocks: tuple[nn.Module, ...] = ()
    shifted = False
    if same(output.last_hidden_state.cpu(), states[-1]):
        blocks, shifted = _matching(calls, owners, states)
    width = states[0].shape[1]  # Longformer and LED pad sentences, others have the positions first
    given = (one for _, state in calls for one in (state, state.transpose(0, 1), state[:, :width]))
    if not blocks and not any(same(one, states[0]) for one in given):
        raise ValueError(
            "its first hidden state is not the input of its first block, so that it is not known what its layers are; "
            "use another model"
        )
    tap = LayerTap(model, blocks, len(states) - 1, states[0].shape[-1], final_norm, shifted)
    return tap, tuple(output.hidden_states)


def _matching(
    calls: Sequence[_Call], owners: Mapping[nn.Module, int], states: Sequence[torch.Tensor]
) -> tuple[tuple[nn.Module, ...], bool]:
    """Return modules whose inputs are all hidden states but the last, and whether these are of the kind `after`."""
    groups: dict[int | type, list[_Call]] = defaultdict(list)
    for module, state in calls:
        groups[owners[module]].append((module, state))
        groups[type(module)].append((module, state))
    for after, expected in ((False, states), (True, states[:-2])):
        for group in groups.values():
            inputs = [state for _, state in group][after:]
            complete = len(group) == len(states) - 1 and inputs
            if complete and all(same(one, other) for one, other in zip(inputs, expected, strict=False)):
                return tuple(dict.fromkeys(module for module, _ in group)), after
    return (), False


def _first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("hidden_states")


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


class PackedWeights:
    """Weights of linear layers in oneDNN's own layout, which saves packing them at every call; used inside `used()`.

    `nbytes`: of these; 0 if nothing is packed, because the model is not in float32 on a CPU that gains by it, is too
    large, or because this torch has no oneDNN. What is packed never depends on timings, so the same call returns the
    same bits.
    """

    def __init__(self, modules: Iterable[Any]) -> None:
        self.forwards: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {}
        linear = [module for module in modules if type(module) in (nn.Linear, Conv1D)]
        packable = [m for m in linear if m.weight.dtype is torch.float32 and m.weight.device.type == "cpu"]
        self.nbytes: int = sum(4 * module.weight.numel() for module in packable)
        try:
            if gains_by_packing() and self.nbytes <= MAX_NBYTES:
                self.forwards = {module: _packed(module) for module in packable}
        except (RuntimeError, AttributeError, NotImplementedError, TypeError):  # a torch built without these operations
            self.forwards = {}
        self.nbytes *= bool(self.forwards)

    def drop(self) -> bool:
        """Use the weights as they are from now on; returns whether that is a change."""
        changed = bool(self.forwards)
        self.forwards, self.nbytes = {}, 0
        return changed

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the linear layers multiply by the packed weights inside the block."""
        for module, forward in self.forwards.items():
            vars(module)["forward"] = forward
        try:
            yield
        finally:
            for module in self.forwards:
                vars(module).pop("forward", None)


def _packed(linear: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes what a linear layer does."""
    weight = linear.weight.detach()
    weight = weight.T.contiguous() if isinstance(linear, Conv1D) else weight
    bias = None if linear.bias is None else linear.bias.detach()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_POSITIONS)
    return lambda inputs: torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")


def gains_by_packing() -> bool:
    """Return whether this CPU multiplies faster by packed weights: with AVX-512 by 11-13 %; with AVX2 it is slower."""
    onednn: Any = torch.backends.mkldnn
    return bool(onednn.is_available()) and torch.backends.cpu.get_cpu_capability() == "AVX512"
