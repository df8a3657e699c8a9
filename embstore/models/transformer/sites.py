"""What the parts of a transformer's blocks compute: found by structure, checked by recomputing, read during a pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from embstore.errors import ModelError
from embstore.models.transformer.layers import LayerTap, hooked, same
from embstore.models.transformer.varlen import attention_by

MASKED, UNMASKED = "embstore_sites", "embstore_sites_unmasked"  # transformers makes masks for the first only
COMPUTED, GIVEN = ("attention_output", "mlp_output"), ("residual_mid", "neurons")  # by, or to, a module of a block
EXACT = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}  # relative to the largest value

Receive = Callable[[int, torch.Tensor, str], None]


@dataclass(frozen=True)
class Attended:
    """One call of attention: its states [batch, heads, positions, features] and results, as transformers passes them.

    `weights`: the probabilities [batch, heads, queries, keys], None from fused attention.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    weights: Any
    mask: torch.Tensor | None
    options: Mapping[str, Any]

    @property
    def scaling(self) -> float:
        """By what products of query and key are multiplied."""
        scaling = self.options.get("scaling")
        return float(self.query.shape[-1] ** -0.5 if scaling is None else scaling)

    def sites(self) -> dict[str, torch.Tensor]:
        """Return the states and the output of all heads, each [batch, positions, heads x features]."""
        states = {"query": self.query, "key": self.key, "value": self.value}
        found = {site: state.transpose(1, 2).flatten(2) for site, state in states.items()}
        return found | {"head_output": self.output.flatten(2)}


# The attention that is called in a pass, and what is given every call
_CAPTURE: ContextVar[tuple[str, Callable[[Attended], None]]] = ContextVar("embstore_capture")


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    usual, take = _CAPTURE.get()
    own: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(usual, own)
    output, weights = attend(module, query, key, value, attention_mask, **options)
    take(Attended(query, key, value, output, weights, attention_mask, options))
    return output, weights


def _mask(*args: Any, **options: Any) -> Any:
    return ALL_MASK_ATTENTION_FUNCTIONS[_CAPTURE.get()[0]](*args, **options)


AttentionInterface.register(MASKED, _attend)
AttentionInterface.register(UNMASKED, _attend)
AttentionMaskInterface.register(MASKED, _mask)


@contextmanager
def captured(model: Any, take: Callable[[Attended], None], *, by: str | None = None) -> Iterator[None]:
    """Pass every call of the model's attention on to `take` inside the block; `by`: attention other than its own."""
    usual = by or model.config._attn_implementation
    token = _CAPTURE.set((usual, take))
    try:
        with attention_by(MASKED if usual in ALL_MASK_ATTENTION_FUNCTIONS else UNMASKED, model):
            yield
    finally:
        _CAPTURE.reset(token)


@dataclass(frozen=True)
class SiteTap:
    """Where the parts of the blocks of a model can be read during a forward pass; made by `find_sites`.

    `sizes`: the features of each site. `modules`: for attention_output and mlp_output the modules that compute it; for
    residual_mid and neurons, where the model has them, those that are given it. `attention`: the features of a head,
    and by what products of query and key are multiplied.
    """

    tap: LayerTap
    sizes: Mapping[str, int]
    modules: Mapping[str, tuple[nn.Module, ...]]
    attention: Mapping[str, float]

    @contextmanager
    def reading(self, sites: Sequence[str], layers: Sequence[int], receive: Receive) -> Iterator[None]:
        """Call `receive(layer, [batch, positions, features], site)` for each of these in passes inside the block."""
        wanted, running = frozenset(layers), 0  # the block that computes layer `running` is running

        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            nonlocal running
            running += 1

        def put(site: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if running in wanted:
                receive(running, _tensor(output), site)

        def put_given(site: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if running in wanted:
                receive(running, _given(args, kwargs), site)

        def take(call: Attended) -> None:
            for site, states in call.sites().items() if running in wanted else ():
                if site in sites:
                    receive(running, states, site)

        def hook(site: str, module: nn.Module) -> Any:
            if site in GIVEN:
                return module.register_forward_pre_hook(partial(put_given, site), with_kwargs=True)
            return module.register_forward_hook(partial(put, site))

        with (
            hooked(block.register_forward_pre_hook(enter) for block in self.tap.blocks),
            hooked(hook(site, module) for site in sites for module in self.modules.get(site, ())),
            captured(self.tap.model, take),
        ):
            yield


@dataclass
class _Block:
    """One call of a block, recorded: its input and output, its attention, and the calls of the modules inside."""

    module: nn.Module
    states: torch.Tensor
    output: torch.Tensor | None = None
    attended: list[Attended] = field(default_factory=list)
    calls: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = field(default_factory=list)  # module, input, output


@torch.inference_mode()
def find_sites(tap: LayerTap, inputs: Mapping[str, Any], *, name: str) -> SiteTap:
    """Find the sites of a model by running it once, and check them: each block's output is computed from its sites.

    In every block, attention is called once; what it returns follows from query, key and value; one module receives
    it, and what this module returns (or a norm of that) is the attention output; it and the MLP output give the
    block's output, by addition to the input or with a norm after each addition. Raises ModelError for any other
    structure. The stream between attention and MLP (not in blocks that compute both at once) and the neurons of the MLP
    (not of experts) are what some module is given.
    """
    blocks = _record(tap, inputs)
    modules: dict[str, list[nn.Module]] = {site: [] for site in (*COMPUTED, *GIVEN)}
    known: list[tuple[dict[str, int], dict[str, float]]] = []
    for layer, block in enumerate(blocks, start=1):
        fault, parts, read = _parts(block)
        if fault:
            kind = type(block.module).__name__
            raise ModelError(
                f"the sites of {name!r} are not known: {fault} in block {layer} ({kind}); only the site residual can "
                "be stored of it"
            )
        for site, module in [*parts.items(), *((site, module) for site, (module, _) in read.items())]:
            modules[site] += [] if module in modules[site] else [module]
        call = block.attended[0]
        own = {site: states.shape[-1] for site, states in call.sites().items()}
        own |= dict.fromkeys(COMPUTED, block.states.shape[-1]) | {site: size for site, (_, size) in read.items()}
        known.append((own, {"head_size": call.query.shape[-1], "scaling": call.scaling}))
    if not known or len(blocks) != tap.num_hidden_layers:
        raise ModelError(
            f"the sites of {name!r} are not known: its blocks were not found; only the site residual can be stored"
        )
    if any(one != known[0] for one in known):
        raise ModelError(f"the sites of {name!r} differ in size between its blocks: store the site residual alone")
    return SiteTap(tap, known[0][0], {site: tuple(own) for site, own in modules.items()}, known[0][1])


def _record(tap: LayerTap, inputs: Mapping[str, Any]) -> list[_Block]:
    blocks: list[_Block] = []

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        blocks.append(_Block(module, (args[0] if args else kwargs["hidden_states"]).clone()))

    def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = _given(args, kwargs)
        if not blocks or not isinstance(given, torch.Tensor) or not isinstance(_tensor(output), torch.Tensor):
            return
        if module is blocks[-1].module:
            blocks[-1].output = _tensor(output).clone()
        elif module in inside:
            blocks[-1].calls.append((module, given.clone(), _tensor(output).clone()))

    def take(call: Attended) -> None:
        if blocks:
            blocks[-1].attended.append(call)

    inside = {module for block in tap.blocks for module in block.modules()}
    with (
        hooked(block.register_forward_pre_hook(enter, with_kwargs=True) for block in tap.blocks),
        hooked(module.register_forward_hook(called, with_kwargs=True) for module in inside),
        captured(tap.model, take),
    ):
        tap.model(**inputs)
    return blocks


def _parts(block: _Block) -> tuple[str, dict[str, nn.Module], dict[str, tuple[nn.Module, int]]]:
    """Return what is wrong with the block; the modules that compute attention_output and mlp_output; the readers."""
    if len(block.attended) != 1:
        return f"transformers' attention interface is used {len(block.attended)} times, not once,", {}, {}
    attended = block.attended[0]
    if not _is_attention(attended):
        return "the output of attention does not follow from its query, key and value", {}, {}
    heads, states, output = attended.sites()["head_output"], block.states, block.output
    projections = [(module, result) for module, given, result in block.calls if same(given, heads)]
    projections = [(module, result) for module, result in projections if _is_alike(result, states)]
    if output is None or not projections:
        return "no module receives the output of the heads", {}, {}
    normed = [(module, result) for module, given, result in block.calls if same(given, projections[0][1])]
    for module, attention in (*projections[:1], *normed):
        if _is_alike(attention, states) and (found := _mlp(block, attention)) is not None:
            mlp, middle = found
            return "", {"attention_output": module, "mlp_output": mlp}, _readers(block, mlp, middle)
    return "the output does not follow from the outputs of attention and MLP", {}, {}


def _mlp(block: _Block, attention: torch.Tensor) -> tuple[nn.Module, torch.Tensor] | None:
    """Return the module whose result, with that of attention, gives the block's output, and the stream before it."""
    assert block.output is not None
    between = block.states + attention
    targets = [(block.output - between, between)]
    first = [result for _, given, result in block.calls if close(given, between)]
    if first:  # a norm after each addition
        last = [given for _, given, result in block.calls if close(result, block.output) and not close(given, result)]
        targets += [
            (given.view(result.shape) - result, result)
            for given in last
            for result in first
            if _is_alike(given, result)
        ]
    for target, middle in targets:
        for module, _, result in block.calls:
            if close(result, target):
                return module, middle
    return None


def _readers(block: _Block, mlp: nn.Module, middle: torch.Tensor) -> dict[str, tuple[nn.Module, int]]:
    """Return the modules that are given the stream between attention and MLP, and the neurons, with their features."""
    first = [(module, given) for module, given, _ in block.calls if _is_equal(given, middle)][:1]
    found = dict(zip(["residual_mid"], first, strict=False))
    own = [(given, result) for module, given, result in block.calls if module is mlp]
    outputs = [result if _is_matrix(mlp) else state for given, result in own for state in (given, result)]
    for module, given, result in block.calls:
        if _is_matrix(module) and any(_is_equal(result, output) for output in outputs):
            found["neurons"] = (module, given)
    return {site: (module, given.shape[-1]) for site, (module, given) in found.items()}


def _is_attention(call: Attended) -> bool:
    """Return whether the output is the softmax of scaled products of query and key, times value."""
    groups = call.query.shape[1] // call.key.shape[1]
    key, value = (states.repeat_interleave(groups, 1) for states in (call.key, call.value))
    scores = call.query @ key.transpose(2, 3) * call.scaling
    if (cap := call.options.get("softcap")) is not None:
        scores = torch.tanh(scores / cap) * cap
    if (bias := call.options.get("position_bias")) is not None:
        scores = scores + bias
    allowed = [torch.zeros_like(scores)]
    if call.mask is not None:
        mask = call.mask[..., : scores.shape[-1]]
        allowed = [torch.zeros_like(scores).masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else mask]
    else:
        allowed.append(torch.full_like(scores, -torch.inf).triu(1))
    return any(close((scores + mask).softmax(-1) @ value, call.output.transpose(1, 2)) for mask in allowed)


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)


def _tensor(output: Any) -> Any:
    return output[0] if isinstance(output, tuple | list) and output else output


def _is_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() == 2


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return _is_alike(one, other) and torch.equal(one.reshape(-1), other.reshape(-1))


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether both have the same positions and features; some modules join batch and positions."""
    return one.numel() == other.numel() and one.shape[-1] == other.shape[-1]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether both have the same values, as exactly as their dtype allows."""
    if not _is_alike(one, other):
        return False
    largest = float(other.abs().max())
    return float((one - other.view(one.shape)).abs().max()) <= EXACT[one.dtype] * max(largest, 1e-6)
