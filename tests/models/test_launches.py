"""What a batch costs besides its arithmetic: operators that are launched, and waits of the host, within a budget.

A GPU is played on the CPU (see `tests/played_cuda.py`). Python launches an operator in 5-20 microseconds, so a batch of
a few thousand positions takes as long as its operators are many; a wait lets the GPU idle until the next launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from embstore.extraction.cast import Cast
from embstore.models import load_encoder
from embstore.models.batched import word_spans
from embstore.models.transformer import varlen
from embstore.store.layout import Layout
from tests.models import tiny
from tests.models.oracle import tokenize
from tests.played_cuda import GPU, played_cuda

LAYERS = (0, 1, 2, 3)


class Cost(NamedTuple):
    """Of a batch of a model of three blocks, with all layers: operators of the GPU, and waits of the host for it.

    The vectors are cast and written into the buffer of their partition on the GPU.
    """

    operators: int
    waits: tuple[str, ...] = ()


PADDING = ("is_nonzero",)
# What transformers itself waits for: whether a mask has padding, whether a batch of equal lengths is packed.
BUDGET: dict[tuple[str, str], Cost] = {
    ("bert", "varlen"): Cost(83),
    ("bert", "packed"): Cost(90),
    ("bert", "padded"): Cost(102, PADDING),
    ("bert", "equal"): Cost(76),
    ("gpt2", "varlen"): Cost(95),
    ("gpt2", "packed"): Cost(103),
    ("gpt2", "padded"): Cost(117, 2 * PADDING),
    ("gpt2", "equal"): Cost(102, PADDING),
    ("llama", "varlen"): Cost(172),
    ("llama", "packed"): Cost(186),
    ("llama", "padded"): Cost(200, 2 * PADDING),
    ("llama", "equal"): Cost(179, PADDING),
    ("modernbert", "varlen"): Cost(145),
    ("modernbert", "packed"): Cost(157),
    ("modernbert", "padded"): Cost(187, 2 * PADDING),
    ("modernbert", "equal"): Cost(159),
}
EVENTS = 1  # of a batch, however many layers: after its layers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    made: dict[str, Any] = {}

    def model(name: str) -> Any:
        if name not in made:
            encoder: Any = load_encoder(tiny.save(name, tmp_path_factory.mktemp(name)), compute_dtype="float16")
            encoder.device = GPU
            object.__setattr__(encoder.network.inputs, "device", GPU)
            encoder.network.model.config.pad_token_id = 3  # which transformers would look for in every batch
            made[name] = encoder
        return made[name]

    return model


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for sentences end to end as one operator; its values do not matter here."""

    def attend(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
        return torch.empty(query.shape, dtype=query.dtype, device=GPU).copy_(query)

    monkeypatch.setattr(varlen, "_fused_kernel", lambda: attend)


def cost(encoder: Any, batching: str) -> tuple[Cost, int]:
    """Return the cost of one batch, and how many events it makes."""
    tokenized = tokenize(encoder, tiny.SENTENCES[:1] * 3 if batching == "equal" else tiny.SENTENCES[:3])
    spans = word_spans(tokenized, encoder.info.max_subwords)
    with played_cuda() as played, torch.inference_mode():
        model = encoder.network.model
        played.on_gpu |= {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        encoder.batching = batching
        cast = Cast(Layout(len(spans.start), LAYERS, encoder.info.hidden_size, "float16", 256), center=None, device=GPU)
        buffer = cast.buffer(1)
        options: dict[str, Any] = {"layers": LAYERS, "pooling": "mean", "batch_subwords": 512, "on_device": True}
        (pooled,) = encoder.encode(tokenized, spans, **options)
        cast.into(buffer, pooled.vectors, pooled.rows, None)
    return Cost(len(played.kernels), tuple(played.waits)), played.n_made


def is_within(found: tuple[Cost, int], name: str, batching: str) -> bool:
    budget = BUDGET[name, batching]
    return found[0].operators <= budget.operators and found[0].waits == budget.waits and found[1] <= EVENTS


@pytest.mark.parametrize(
    ("name", "batching"), [pytest.param(*key, marks=[pytest.mark.slow] * (key[0] != "bert")) for key in BUDGET]
)
def test_a_batch_stays_within_its_budget(models: Callable[[str], Any], name: str, batching: str) -> None:
    found = cost(models(name), batching)
    assert is_within(found, name, batching), found
    assert found[0].operators > 0.9 * BUDGET[name, batching].operators, "lower the budget"


PLANTED: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda states: states.sum().item(),
    "tolist": lambda states: states[0, 0].tolist(),
    "to the host": lambda states: states.to("cpu"),
    "a mask as an index": lambda states: states[states > 0],
    "an upload": lambda states: torch.tensor([1.0], device=states.device),
    "a copy": lambda states: torch.empty(states.shape).copy_(states),
    "an operator": lambda states: states + 1,
    "an event": lambda states: torch.cuda.Event(),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.quick(3)
def test_the_budget_is_exceeded_by(plant: str, models: Callable[[str], Any]) -> None:
    """One more wait, operator or event in the model is found."""
    encoder = models("bert")
    handle = encoder.network.model.embeddings.register_forward_hook(
        lambda module, args, output: (PLANTED[plant](output), None)[1]
    )
    try:
        found = cost(encoder, "varlen")
    finally:
        handle.remove()
    assert not is_within(found, "bert", "varlen"), found
    free = plant in ("an operator", "an event")
    assert (len(found[0].waits) == 0) == free, found
