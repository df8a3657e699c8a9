"""What all trainings share: settings, memory budgets, checkpoints from which interrupted trainings resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embstore.config import config
from embstore.errors import InvalidValueError
from embstore.probes import ClassProbe, EdgeProbe, StructuralProbe, Training, split_words
from embstore.probes.saved import read_tensors, write_tensors
from embstore.probes.training import Schedule, Trainer, digest_of, train
from tests.probes import class_store, edge_store, tree_store

Fit = Callable[..., Any]


class _InterruptedError(Exception):
    pass


def shown(progress: Any, fit: Callable[[], Any]) -> Any:
    """Fit with a progress bar, which is a function here."""
    with config(progress=progress):
        return fit()


def class_fit(folder: Path) -> Fit:
    made = class_store.make(folder / "class.zarr", words=40)
    training = Training(epochs=8, batch_size=16, learning_rate=0.05, patience=2)

    def fit(seed: int = 0, progress: Any = None, **options: Any) -> ClassProbe:
        probe = ClassProbe(kind="mlp", hidden_size=4, seeds=seed, training=training)
        return shown(progress, lambda: probe.fit(made.store, split_words(*made.lists), **options))  # type: ignore[no-any-return]

    return fit


def edge_fit(folder: Path) -> Fit:
    made = edge_store.make(folder / "edge.zarr", sentences=30, layers=(0, 1, 2), planted=1)
    training = Training(epochs=10, batch_size=4, learning_rate=0.03, patience=1)

    def fit(seed: int = 0, progress: Any = None, **options: Any) -> EdgeProbe:
        probe = EdgeProbe(projection=6, hidden_size=5, seeds=seed, training=training)
        splits = made.splits
        return shown(progress, lambda: probe.fit(made.store, splits["train"], splits["dev"], **options))  # type: ignore[no-any-return]

    return fit


def structure_fit(folder: Path) -> Fit:
    made = tree_store.make(folder / "trees.zarr", sentences=60)
    training = Training(epochs=10, batch_size=8, learning_rate=0.3, patience=2)

    def fit(seed: int = 0, progress: Any = None, **options: Any) -> StructuralProbe:
        probe = StructuralProbe(layers=(0, 3), rank=5, seeds=seed, training=training)
        return shown(progress, lambda: probe.fit(made.store, made.trees[:40], made.trees[40:], **options))  # type: ignore[no-any-return]

    return fit


@pytest.mark.parametrize("family", [class_fit, edge_fit, structure_fit])
@pytest.mark.slow
def test_an_interrupted_training_resumes_to_the_same_weights(tmp_path: Path, family: Callable[[Path], Fit]) -> None:
    fit = family(tmp_path)
    reports: list[tuple[int, int | None]] = []
    whole = fit(progress=lambda done, total: reports.append((done, total)))
    trained = whole.fitted_.trained
    assert len(set(trained.epochs.tolist())) > 1, "some probes stop before others"
    assert reports == sorted(reports)
    total = reports[-1][1] or 0
    assert reports[-1][0] == total
    path = tmp_path / "state"
    for share in (0.15, 0.25, 0.35):

        def interrupt(done: int, _: int | None, stop: float = share * total) -> None:
            if stop <= done < total:
                raise _InterruptedError

        with pytest.raises(_InterruptedError):
            fit(checkpoint=path, progress=interrupt)
    begun: list[int] = []
    again = fit(checkpoint=path, progress=lambda done, _: begun.append(done))
    assert begun[0] > 0.2 * total, "the training resumes and does not start again"
    own = again.fitted_.trained
    assert all(torch.equal(tensor, own.weights[name]) for name, tensor in trained.weights.items())
    np.testing.assert_array_equal(own.epochs, trained.epochs)
    np.testing.assert_array_equal(own.dev_loss, trained.dev_loss)
    finished: list[int] = []
    fit(checkpoint=path, progress=lambda done, _: finished.append(done))
    assert finished == [total], "nothing is left to train"
    with pytest.raises(InvalidValueError, match="is of another training"):
        fit(seed=1, checkpoint=path)
    data = path.read_bytes()
    document, state = read_tensors(path)
    wrong = [b"something", b"", data[:-8], data[: len(data) // 2], bytes([*data[:-1], data[-1] ^ 1])]
    for name in ("rates/0", "running", next(iter(each for each in state if each.startswith("weights/")))):
        write_tensors(path, document, state | {name: torch.zeros(3, 7)})
        wrong.append(path.read_bytes())
    for each in wrong:
        path.write_bytes(each)
        with pytest.raises(InvalidValueError, match=r"is not a checkpoint of (class|edge|structural) probes"):
            fit(checkpoint=path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidValueError, match="pipe is not a checkpoint"):
            fit(checkpoint=tmp_path / "pipe")


def test_a_checkpoint_that_could_not_be_written_is_refused_at_once(tmp_path: Path) -> None:
    fit = class_fit(tmp_path)
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "none" / "state", "does not exist")):
        with pytest.raises(InvalidValueError, match=message):
            fit(checkpoint=path)


def test_a_digest_depends_on_values_shapes_and_dtypes() -> None:
    one = np.arange(6)
    same = digest_of("a", one, 3)
    assert digest_of("a", np.arange(12)[:6].copy(), 3) == same
    others = [
        ("b", one, 3),
        ("a", one.reshape(2, 3), 3),
        ("a", one.astype(np.int32), 3),
        ("a", one, 4),
        ("a", one + 1, 3),
    ]
    assert same not in {digest_of(*other) for other in others}


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

    what, min_gain, n_probes, n_examples, optimizers = "made probes", 0.1, 1, 1, ()

    def __init__(self, losses: list[float]) -> None:
        self._losses, self._epoch = losses, 0

    def weights(self) -> dict[str, torch.Tensor]:
        return {"epoch": torch.tensor([[float(self._epoch)]])}

    def run_epoch(self, epoch: int, running: np.ndarray) -> Iterator[int]:
        self._epoch = epoch
        yield 1

    def dev_losses(self, running: np.ndarray) -> np.ndarray:
        return np.array([self._losses[self._epoch - 1]])

    def digest(self) -> str:
        return "made"


@pytest.mark.parametrize(("losses", "best"), [([2.0, 1.95, 1.8, 1.75], 3), ([2.0, 1.95, 1.91, 1.0], 1)])
def test_a_loss_is_better_only_by_more_than_the_least_gain(losses: list[float], best: int) -> None:
    trained = train([np.array([0])], lambda _: _Losses(losses), Schedule(4, 1, patience=2), progress=False)
    assert trained.epochs.tolist() == [best]
    assert trained.dev_loss.tolist() == [losses[best - 1]]
    assert trained.weights["epoch"].item() == best
