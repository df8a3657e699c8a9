"""What all trainings share: settings, sizes, progress, early stopping, and the rules of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore.config import config
from embstore.errors import InvalidValueError
from embstore.probes import ClassProbe, EdgeProbe, StructuralProbe, Training, code_length, split_words
from embstore.probes.training import Schedule, Trainer, train
from tests.probes import class_store, edge_store, tree_store


@pytest.mark.parametrize("kind", ["class", "edge", "structural"])
@pytest.mark.slow
def test_probes_stop_one_by_one_and_progress_ends_at_the_total(tmp_path: Path, kind: str) -> None:
    reports: list[tuple[int, int | None]] = []
    probe: Any
    with config(progress=lambda done, total: reports.append((done, total))):
        if kind == "class":
            words = class_store.make(tmp_path / "class.zarr", words=40)
            training = Training(epochs=8, batch_size=16, learning_rate=0.05, patience=2)
            probe = ClassProbe(kind="mlp", hidden_size=4, training=training)
            probe.fit(words.store, split_words(*words.lists))
        elif kind == "edge":
            edges = edge_store.make(tmp_path / "edge.zarr", sentences=30, layers=(0, 1, 2), planted=1)
            training = Training(epochs=10, batch_size=4, learning_rate=0.03, patience=1)
            probe = EdgeProbe(hidden_size=5, control=True, training=training)
            probe.fit(edges.store, edges.splits["train"], edges.splits["dev"])
        else:
            made = tree_store.make(tmp_path / "trees.zarr", sentences=60)
            training = Training(epochs=10, batch_size=8, learning_rate=0.3, patience=2)
            probe = StructuralProbe(layers=(0, 3), rank=5, training=training)
            probe.fit(made.store, made.trees[:40], made.trees[40:])
    assert len(set(probe.fitted_.trained.epochs.tolist())) > 1, "some probes stop before others"
    assert reports == sorted(reports)
    assert reports[-1][0] == reports[-1][1]


def test_settings_have_the_defaults_of_each_probe() -> None:
    with config(memory="1GiB", device="cpu"):
        given = ClassProbe(training=Training(batch_size=7), seeds=2)._schedule()
    expected = Schedule(150, 7, 3e-3, patience=10, min_steps=100, max_steps=100, memory=2**30)
    assert given == expected
    assert EdgeProbe(training=Training(patience=0))._schedule(has_dev=False).patience == 0
    assert sorted(EdgeProbe()._schedule().order(1, 2000, 0).tolist()) == list(range(2000))
    assert given.order(1, 50, 0).tolist() != given.order(2, 50, 0).tolist()
    for settings, message in (
        ({"epochs": 0}, "epochs 0 is not allowed: give 1 or more"),
        ({"batch_size": 0}, "batch_size 0 is not allowed"),
        ({"patience": -1}, "patience -1 is not allowed: give 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate nan is not allowed"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            Training(**settings)


@pytest.mark.parametrize("kind", [ClassProbe, EdgeProbe, StructuralProbe])
def test_probes_are_estimators_of_scikit_learn(kind: Any) -> None:
    from sklearn.base import clone

    seeds, layers = [3, 1], [0, -1]
    probe = kind(seeds=seeds, layers=layers)
    assert probe.get_params()["seeds"] is seeds
    assert probe.layers is layers, "arguments are kept as they are"
    again = clone(probe)
    assert again.get_params() == probe.get_params()
    assert probe.set_params(seeds=7) is probe
    assert (probe.seeds, again.seeds) == (7, seeds)
    assert not hasattr(probe, "fitted_")
    for wrong, message in (({"seed": 1}, "unknown setting 'seed'; allowed are layers"), ({"seeds": -1}, "seeds -1")):
        with pytest.raises(InvalidValueError, match=message):
            probe.set_params(**wrong)
    assert probe.seeds == 7


class _Losses(Trainer):
    """One probe with given dev losses."""

    what, min_gain, n_probes, n_examples = "made probes", 0.1, 1, 1

    def __init__(self, losses: list[float]) -> None:
        self._losses, self._epoch = losses, 0

    def weights(self) -> dict[str, torch.Tensor]:
        return {"epoch": torch.tensor([[float(self._epoch)]])}

    def run_epoch(self, epoch: int, running: np.ndarray) -> Iterator[int]:
        self._epoch = epoch
        yield 1

    def describe(self, number: int) -> str:
        return str(number)

    def dev_losses(self, running: np.ndarray) -> np.ndarray:
        return np.array([self._losses[self._epoch - 1]])


@pytest.mark.parametrize(("losses", "best"), [([2.0, 1.95, 1.8, 1.75], 3), ([2.0, 1.95, 1.91, 1.0], 1)])
def test_a_loss_is_better_only_by_more_than_the_least_gain(losses: list[float], best: int) -> None:
    trained = train([np.array([0])], lambda _: _Losses(losses), Schedule(4, 1, patience=2), progress=False)
    assert trained.epochs.tolist() == [best]
    assert trained.dev_loss.tolist() == [losses[best - 1]]
    assert trained.weights["epoch"].item() == best


def test_sizes_beyond_the_memory_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    size = 2**31
    classes = class_store.make(tmp_path / "class.zarr")
    edges = edge_store.make(tmp_path / "edges.zarr", sentences=10, layers=(0, 1), planted=1)
    trees = tree_store.make(tmp_path / "trees.zarr", sentences=10)
    fast = es.probes.Training(epochs=1, patience=0)
    words, train = split_words(*classes.lists), edges.splits["train"]
    for fit in (
        lambda: es.ClassProbe(kind="mlp", hidden_size=size, training=fast).fit(classes.store, words),
        lambda: es.probes.EdgeProbe(hidden_size=size, training=fast).fit(edges.store, train),
        lambda: code_length(edges.store, train, probe=es.probes.EdgeProbe(hidden_size=size, training=fast)),
    ):
        with pytest.raises(InvalidValueError, match=r"memory 4.* MB is not enough: .* takes? [\d.,]+ MB; give more"):
            fit()
    large = es.probes.Training(epochs=1, batch_size=size, patience=0)  # no more than all examples
    es.ClassProbe(training=large).fit(classes.store, words)
    es.probes.EdgeProbe(training=large, hidden_size=4).fit(edges.store, train)
    es.probes.StructuralProbe(training=large, rank=2).fit(trees.store, trees.trees)
