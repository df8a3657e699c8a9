"""Linear edge probes: the batched bank against one in plain torch, and layers found where labels were planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from embstore.errors import InvalidValueError
from embstore.probes.edges.batches import iter_batches
from embstore.probes.edges.edges import probe_edges
from embstore.probes.edges.linear import LinearBank, LinearShape
from embstore.probes.edges.tasks import join_task
from embstore.probes.edges.training import EdgeTraining, Stream, train_edges
from embstore.probes.mixing import cumulative
from tests.probes.edge_oracle import Weights, loss_of_one
from tests.probes.edge_store import make

CPU = torch.device("cpu")


def linear_of_one(weights: Weights, layers: list[int], vectors: torch.Tensor, spans: Any) -> torch.Tensor:
    """Logits of one linear probe, target by target, [targets, labels]."""
    share = torch.softmax(weights["mix"][layers], 0)
    words = weights["scale"] * sum(s * vectors[layer] for s, layer in zip(share, layers, strict=True))
    read = [torch.cat([words[start:stop].mean(0) for start, stop in target]) for target in spans]
    return torch.stack([weights["output"] @ each + weights["output_bias"] for each in read])


@pytest.mark.parametrize(("pairs", "longest", "unit"), [(False, 1, "word"), (True, 3, "subword")])
def test_batched_linear_probes_have_the_gradients_of_one_alone(
    tmp_path: Path, pairs: bool, longest: int, unit: str
) -> None:
    made = make(tmp_path / "a.zarr", sentences=12, pairs=pairs, longest=longest, several=True, unit=unit)
    task = join_task(made.store, **made.splits)  # type: ignore[arg-type]
    split, layers = task.splits["train"], list(made.store.layers)
    shape = LinearShape.of(len(layers), 12, len(split.spans), len(task.labels))
    allowed = np.concatenate([cumulative(len(layers)), np.eye(len(layers), dtype=bool)[2:3]])
    bank = LinearBank.initial(shape, allowed, np.array([0, 0, 5, 0, 1, 1]), device=CPU)
    bound = 1 / np.sqrt(12 * len(split.spans))
    assert 0.8 * bound < float(bank.weights["output"].abs().max()) < bound
    generator = torch.Generator().manual_seed(0)
    for tensor in bank.weights.values():
        tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.3).requires_grad_()
    order = np.random.default_rng(0).permutation(split.sentences)
    vectors = torch.from_numpy(made.vectors)
    for batch in iter_batches(made.store, split, order, layers, batch_size=4, device=CPU):
        found = bank.logits(batch)
        bank.losses(batch).sum().backward()
        gold = torch.from_numpy(split.gold[batch.targets]).float()
        spans = [[tuple(kind[target].tolist()) for kind in split.spans] for target in batch.targets]
        for place in range(len(bank)):
            alone = {name: tensor[place].detach().clone().requires_grad_() for name, tensor in bank.weights.items()}
            logits = linear_of_one(alone, np.flatnonzero(allowed[place]).tolist(), vectors, spans)
            torch.testing.assert_close(found[place], logits, atol=2e-5, rtol=1e-4)
            loss_of_one(logits, gold).backward()
            for name, tensor in alone.items():
                slope = bank.weights[name].grad
                assert slope is not None
                assert tensor.grad is not None
                torch.testing.assert_close(slope[place], tensor.grad, atol=2e-6, rtol=2e-4, msg=name)
        for tensor in bank.weights.values():
            tensor.grad = None


def test_linear_probes_trained_together_are_those_trained_alone(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, planted=1, layers=(0, 1))
    task = join_task(made.store, **made.splits)  # type: ignore[arg-type]
    stream = Stream(made.store, (0, 1), 4, CPU)
    training = EdgeTraining(epochs=6, batch_size=4, learning_rate=0.03, patience=1, dropout=0.2)
    both = [task.splits["train"], task.splits["dev"]]
    shape = LinearShape.of(2, 12, 1, len(task.labels))
    bank = LinearBank.initial(shape, np.eye(2, dtype=bool), np.array([3, 3]), device=CPU)
    together = train_edges(bank, stream, *both, training=training)
    assert isinstance(together.bank, LinearBank)
    for place in range(2):
        alone = train_edges(bank.of(np.array([place])), stream, *both, training=training)
        assert alone.epochs[0] == together.epochs[place]
        for name, tensor in alone.bank.weights.items():
            torch.testing.assert_close(tensor[0], together.bank.weights[name][place], atol=1e-4, rtol=1e-3)


def test_a_planted_signal_is_read_linearly_from_its_layer(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", pairs=True, layers=(0, 2, 3), planted=2)
    options: dict[str, Any] = {"epochs": 12, "patience": None, "learning_rate": 0.02, "batch_size": 8, "device": "cpu"}
    found = probe_edges(made.store, **made.splits, kind="linear", seeds=(0, 1), **options)  # type: ignore[arg-type]
    told = found.summary().filter(pl.col("metric") == "layer_f1", pl.col("split") == "test")
    scores = dict(zip(told["layer"], told["value"], strict=True))
    assert list(scores) == [0, 2, 3]
    assert scores[2] > 0.9
    assert max(scores[0], scores[3]) < 0.6
    assert told["low"].null_count() == 0


def test_another_kind_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=10, layers=(0, 1), planted=1)
    with pytest.raises(InvalidValueError, match=r"^kind 'tree' is not allowed: choose mlp or linear$"):
        probe_edges(made.store, **made.splits, kind="tree")  # type: ignore[arg-type]
