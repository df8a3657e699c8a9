"""What a batch costs besides its arithmetic: operators that are launched, and values that the host reads, in a budget.

Python launches an operator of a GPU in 5-20 microseconds, so a batch of a few thousand positions takes as long as its
operators are many; a GPU idles while the host reads a value. Here they are counted on a CPU, of a model of three blocks
with all layers. What else lets the host wait is seen on a GPU alone (`tests/gpu`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from embstore.models import load_encoder
from embstore.models.batched import word_spans
from embstore.models.transformer import varlen
from tests.models import tiny
from tests.models.oracle import tokenize

READS = ("item", "is_nonzero", "nonzero", "_local_scalar_dense")
# Operators but views, and reads: transformers itself looks whether a mask has padding, or equal lengths are packed.
BUDGET = {
    ("bert", "varlen"): (54, 0),
    ("bert", "packed"): (60, 0),
    ("bert", "padded"): (68, 1),
    ("bert", "equal"): (49, 0),
    ("gpt2", "varlen"): (65, 0),
    ("llama", "varlen"): (125, 0),
    ("llama", "packed"): (133, 0),
    ("llama", "padded"): (143, 2),
    ("modernbert", "packed"): (99, 0),
}


class Counted(TorchDispatchMode):
    """Counts operators by name but those that make views."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "batching"), [pytest.param(*key, marks=[pytest.mark.slow] * (key[0] != "bert")) for key in BUDGET]
)
def test_a_batch_stays_within_its_budget(
    name: str, batching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more operator or read in the model is found."""
    monkeypatch.setattr(varlen, "_fused_kernel", lambda: lambda query, *_, **__: query.clone())  # one operator
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    encoder: Any = load_encoder(tiny.save(name, tmp_path), compute_dtype="float16")
    tokenized = tokenize(encoder, tiny.SENTENCES[:1] * 3 if batching == "equal" else tiny.SENTENCES[:3])
    spans = word_spans(tokenized, encoder.info.max_subwords)
    options: dict[str, Any] = {"layers": range(4), "pooling": "mean", "batch_subwords": 512, "on_device": True}
    encoder.batching = batching

    def cost() -> tuple[int, int]:
        with Counted() as counted:
            assert len(list(encoder.encode(tokenized, spans, **options))) == 1
        return counted.calls.total(), sum(counted.calls[read] for read in READS)

    found = cost()
    operators, reads = BUDGET[name, batching]
    assert found[1] == reads
    assert 0.9 * operators < found[0] <= operators, (found, "lower the budget" * (found[0] < operators))
    for planted, read in ((torch.neg, 0), (torch.Tensor.item, 1)):
        blocks = encoder.network.tap.blocks[:1]
        hook = blocks[0].register_forward_pre_hook(lambda module, args, of=planted: (of(args[0].flatten()[0]), None)[1])
        more = cost()
        assert (more[0] > operators, more[1] - reads) == (True, read)
        hook.remove()
