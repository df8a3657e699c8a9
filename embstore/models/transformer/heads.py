"""Disabling attention heads in a forward pass, without computing the blocks below the first changed one again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch

from embstore.errors import ModelError
from embstore.models.transformer.layers import find_layers
from embstore.models.transformer.sites import Attended, SiteTap, close, find_sites

Head = tuple[int, int]  # layer from 1, head from 0
How = Literal["uniform", "zero"]
HOW = get_args(How)


class Disabled:
    """Disables heads: "zero" sets their output to 0, "uniform" their scores, so that all weights are the same."""

    def __init__(self, heads: Collection[Head], n_heads: int, how: How) -> None:
        self._how = how
        self._kept: dict[int, torch.Tensor] = {}
        for layer, head in heads:
            self._kept.setdefault(layer, torch.ones(n_heads, 1, 1))[head] = 0

    def before(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        return self._only_kept(layer, states) if self._how == "uniform" else states

    def after(self, layer: int, output: torch.Tensor) -> torch.Tensor:
        return self._only_kept(layer, output) if self._how == "zero" else output

    def _only_kept(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        return states * self._kept[layer].to(states) if layer in self._kept else states


class Weighted:
    """Multiplies the output of every head by a weight: of each layer [batch, heads], 1, with a gradient."""

    def __init__(self) -> None:
        self.weights: dict[int, torch.Tensor] = {}

    def before(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        return states

    def after(self, layer: int, output: torch.Tensor) -> torch.Tensor:
        weights = torch.ones(output.shape[:2], dtype=output.dtype, device=output.device, requires_grad=True)
        self.weights[layer] = weights
        return output * weights[..., None, None]


class Replay:
    """Runs a network on one batch again and again, from the first block that is changed.

    The first pass keeps what each block returns: memory for the layers of one batch.
    """

    def __init__(self, sites: SiteTap, network: Any, inputs: Mapping[str, Any]) -> None:
        self._sites, self._network, self._inputs = sites, network, inputs
        self._returned: list[Any] = []
        handles = [block.register_forward_hook(self._keep) for block in sites.tap.blocks]
        try:
            self.plain: torch.Tensor = network(**inputs)[0]
        finally:
            for handle in handles:
                handle.remove()

    def without(self, heads: Collection[Head], how: How) -> torch.Tensor:
        """Return what the network returns with these heads disabled."""
        if not heads:
            return self.plain
        change = Disabled(heads, self._sites.n_heads, how)
        with self.above(min(layer for layer, _ in heads)), self._sites.changing(change):
            changed: torch.Tensor = self._network(**self._inputs)[0]
        return changed

    def _keep(self, module: torch.nn.Module, args: Any, returned: Any) -> None:
        self._returned.append(returned)

    @contextmanager
    def above(self, first: int) -> Iterator[None]:
        """Let the blocks below block `first` return what they returned before."""
        calls = 0

        def forward(own: Any, *args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return self._returned[calls - 1] if calls < first else own(*args, **options)

        blocks = self._sites.tap.blocks
        for block in blocks:
            block.forward = partial(forward, block.forward)
        try:
            yield
        finally:
            for block in blocks:
                del block.forward


def find_heads(network: Any, base: Any, inputs: Mapping[str, Any], *, name: str) -> SiteTap:
    """Return where the heads of a network are, whose transformer is `base`, checked on `inputs`.

    Each block is computed again from its parts (see `find_sites`), a pass from each block is compared with a whole one,
    and the weights of disabled heads with uniform ones. Raises ModelError for a network of another structure.
    """
    try:
        tap = find_layers(base, inputs)
        sites = find_sites(tap, inputs, name=name)
    except (ModelError, ValueError) as error:
        raise ModelError(f"the heads of {name!r} cannot be disabled: {str(error).partition(';')[0]}") from None
    require_replay(sites, network, inputs, name=name)
    return sites


@torch.inference_mode()
def require_replay(sites: SiteTap, network: Any, inputs: Mapping[str, Any], *, name: str) -> None:
    """Raise ModelError unless a pass from each block is the whole one, and disabled heads attend uniformly."""
    replay = Replay(sites, network, inputs)
    layers = range(1, sites.tap.num_hidden_layers + 1)
    for layer in layers:
        with replay.above(layer):
            again = network(**inputs)[0]
        if not close(again, replay.plain):
            raise ModelError(
                f"the heads of {name!r} cannot be disabled: a pass from block {layer} differs from a whole"
            )
    every = [(layer, head) for layer in layers for head in range(sites.n_heads)]
    calls: list[Attended] = []
    with sites.changing(Disabled(every, sites.n_heads, "uniform"), calls.append):
        network(**inputs)
    for layer, call in enumerate(calls, 1):
        value = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], 1)
        sums = value.cumsum(2) / torch.arange(1, value.shape[2] + 1, device=value.device)[:, None]
        means = sums[:, :, -1:].expand_as(sums)
        if not any(close(expected, call.output.transpose(1, 2)) for expected in (means, sums)):
            raise ModelError(
                f"the heads of {name!r} cannot be disabled: without scores they are not uniform in block {layer}"
            )
