"""Hidden states as they come: hooks before the blocks of a model, counted as its `hidden_states` are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Receive = Callable[[int, torch.Tensor], None]


class _DeepEnough(Exception):
    """Ends a forward pass once the deepest layer asked for has come."""


@dataclass(frozen=True)
class LayerTap:
    """Where a model's layers can be picked up.

    `blocks`: modules whose calls take hidden state 0, 1, ... as their first argument; empty where none do,
    and then every layer is computed and kept until the end. `transposed`: they take [positions, batch, ...].
    `num_hidden_layers`: the last layer. `final_norm`: whether a norm outside the blocks makes the last layer.
    """

    model: nn.Module
    blocks: tuple[nn.Module, ...]
    transposed: bool
    num_hidden_layers: int
    hidden_size: int
    final_norm: bool

    def run(self, inputs: Mapping[str, Any], layers: Iterable[int], receive: Receive) -> None:
        """Run the model and hand each layer asked for to `receive(layer, [batch, positions, features])`."""
        wanted = frozenset(layers)
        if not wanted:
            return
        if not self.blocks:
            states = self.model(**inputs, output_hidden_states=True).hidden_states
            for layer in sorted(wanted):
                receive(layer, states[layer])
            return
        self._run_tapped(inputs, wanted, receive)

    def _run_tapped(self, inputs: Mapping[str, Any], wanted: frozenset[int], receive: Receive) -> None:
        deepest = max(wanted)
        calls = 0

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal calls
            layer, calls = calls, calls + 1
            if layer in wanted:
                state = _first_argument(args, kwargs)
                receive(layer, state.transpose(0, 1).contiguous() if self.transposed else state)
            if layer == deepest:
                raise _DeepEnough

        handles = [block.register_forward_pre_hook(hook, with_kwargs=True) for block in self.blocks]
        try:
            last = self.model(**inputs).last_hidden_state
        except _DeepEnough:
            return
        finally:
            for handle in handles:
                handle.remove()
        receive(self.num_hidden_layers, last)


def find_layers(model: nn.Module, inputs: Mapping[str, Any]) -> LayerTap:
    """Find the modules whose inputs are the model's `hidden_states`, by running it once on `inputs`.

    The batch and the positions of `inputs` must differ in number. Raises ValueError where the model returns no
    hidden states, or layers of different sizes.
    """
    calls: list[tuple[nn.Module, torch.Tensor]] = []
    norms: list[torch.Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = _first_argument(args, kwargs)
        if isinstance(state, torch.Tensor) and state.dim() == 3:
            calls.append((module, state.clone()))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, torch.Tensor):
            norms.append(output.clone())

    owners = {child: id(owner) for owner in model.modules() if isinstance(owner, nn.ModuleList) for child in owner}
    listed = list(owners)
    inside = {module for child in listed for module in child.modules()}
    handles = [child.register_forward_pre_hook(before, with_kwargs=True) for child in listed]
    handles += [m.register_forward_hook(after) for m in model.modules() if m not in inside and _is_norm(m)]
    try:
        output = model(**inputs, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    states = getattr(output, "hidden_states", None)
    if not states or any(state.shape != states[0].shape for state in states):
        raise ValueError("it does not return hidden states of one size for every layer")
    final_norm = any(_same(norm, states[-1]) for norm in norms)
    blocks: tuple[nn.Module, ...] = ()
    transposed = False
    if _same(output.last_hidden_state, states[-1]):
        blocks, transposed = _matching(calls, owners, states)
    return LayerTap(model, blocks, transposed, len(states) - 1, states[0].shape[-1], final_norm)


def _matching(
    calls: Sequence[tuple[nn.Module, torch.Tensor]],
    owners: Mapping[nn.Module, int],
    states: Sequence[torch.Tensor],
) -> tuple[tuple[nn.Module, ...], bool]:
    """Return the modules, of one list or one class, whose successive inputs are all hidden states but the last."""
    groups: dict[int | type, list[tuple[nn.Module, torch.Tensor]]] = defaultdict(list)
    for module, state in calls:
        groups[owners[module]].append((module, state))
        groups[type(module)].append((module, state))
    for found in groups.values():
        if len(found) != len(states) - 1:
            continue
        for transposed in (False, True):
            taken = [state.transpose(0, 1) if transposed else state for _, state in found]
            if all(_same(one, other) for one, other in zip(taken, states, strict=False)):
                return tuple(dict.fromkeys(module for module, _ in found)), transposed
    return (), False


def _first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("hidden_states")


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
