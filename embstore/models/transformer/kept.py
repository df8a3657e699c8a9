"""The linear layers of the last block that is run, computed for the positions that are pooled and for no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from embstore.models.transformer.layers import LayerTap, PackedLinear

MOST_KEPT = 0.3  # of the positions of a batch: with more, picking and placing rows costs what it saves
SAME = 1e-5  # of the largest value, where a block is computed for some positions


@contextmanager
def only_at(linears: Sequence[nn.Module], kept: torch.Tensor) -> Iterator[None]:
    """Let linear layers compute the positions `kept`, int64 [n] counted over the batch; the others are zero."""

    def pick(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        shapes.append(args[0].shape[:-1])
        return (args[0].reshape(-1, args[0].shape[-1])[kept],)

    def place(module: nn.Module, args: tuple[torch.Tensor, ...], result: torch.Tensor) -> torch.Tensor:
        leading = shapes.pop()
        placed = result.new_zeros(leading.numel(), result.shape[-1])
        return placed.index_copy_(0, kept, result).view(*leading, -1)

    shapes: list[torch.Size] = []
    handles = [linear.register_forward_pre_hook(pick) for linear in linears]
    handles += [linear.register_forward_hook(place) for linear in linears]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def skipping_linears(tap: LayerTap, layer: int, inputs: Mapping[str, Any]) -> tuple[nn.Module, ...]:
    """Return the linear layers that compute `layer` from the one below and may skip positions that are not pooled.

    These are the ones whose result at a position has no effect on the hidden states of others: in a transformer all but
    those of keys and values. Found by running the block on `inputs`, several different subwords, with some positions
    skipped. None where a block occurs more than once, or where its linear layers see something else than positions in
    the order of the batch.
    """
    if not layer or tap.transposed or len(tap.blocks) != tap.num_hidden_layers:
        return ()
    block = tap.blocks[layer - 1]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    rows: dict[nn.Module, list[int]] = {}

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    def called(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        rows.setdefault(module, []).append(args[0].shape[:-1].numel())

    linears = [module for module in block.modules() if isinstance(module, nn.Linear | Conv1D | PackedLinear)]
    handles = [block.register_forward_pre_hook(enter, with_kwargs=True)]
    handles += [linear.register_forward_pre_hook(called) for linear in linears]
    try:
        tap.run(inputs, (layer,), lambda *_: None)
    finally:
        for handle in handles:
            handle.remove()
    n_positions = inputs["input_ids"].numel()
    if any(seen != [n_positions] for seen in rows.values()) or len(calls) != 1:
        return ()
    kept = torch.arange(1, n_positions, 3)
    ((args, kwargs),) = calls

    def state() -> torch.Tensor:
        result = block(*args, **kwargs)
        hidden = result[0] if isinstance(result, tuple) else result
        some: torch.Tensor = hidden.reshape(n_positions, -1)[kept]
        return some

    expected = state()
    found: list[nn.Module] = []
    for linear in rows:
        with only_at([*found, linear], kept):
            difference = (state() - expected).abs().max()
        if difference <= SAME * expected.abs().max():
            found.append(linear)
    return tuple(found)
