"""A bank of class probes equals its probes trained one by one, and all probes are trained by one schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore.config import config
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes import ClassProbe, EdgeProbe, StructuralProbe, Training, code_length, split_words
from embstore.probes.classes import bank as bank_module
from embstore.probes.classes.bank import Output, ProbeBank, Shape, initial_weights
from embstore.probes.classes.examples import ArrayExamples, LabelledExamples
from embstore.probes.classes.training import train_bank
from embstore.probes.training import Schedule, Trained, Trainer, train
from tests.probes import class_store, edge_store, tree_store
from tests.probes.oracle import begun, logits_of_bank, standardised, train_alone

LAYERS, SEEDS, WIDTH = (0, 3), (0, 7), 11
OUTPUTS = (Output("class", "a"), Output("class", "b"), Output("control", "a"))
KINDS = [("linear", 0), ("mlp", 9)]


def examples(count: int, *, seed: int = 0) -> LabelledExamples:
    """Vectors from which the targets can be read in part, and noise."""
    rng = np.random.default_rng(seed)
    vectors = {layer: rng.normal(size=(count, WIDTH)).astype(np.float32) for layer in LAYERS}
    group = (4 * (vectors[0][:, 0] > 0) + 2 * (vectors[3][:, 1] > 0.7) + rng.integers(0, 2, count)).astype(np.int64)
    targets = np.array([[number >> bit & 1 for bit in (2, 1, 0)] for number in range(8)], bool)
    return LabelledExamples(ArrayExamples(vectors), group, targets)


def vectors_of(data: LabelledExamples, layer: int) -> np.ndarray:
    out = np.empty((1, len(data), WIDTH), np.float32)
    data.examples.read(np.arange(len(data)), [layer], out)
    return out[0]


def shape(kind: str, units: int) -> Shape:
    return Shape(kind, LAYERS, SEEDS, OUTPUTS, WIDTH, units)


def bank_of(trained: Trained, of: Shape) -> ProbeBank:
    weights = {name: each.view(len(of.layers), of.n_probes, *each.shape[1:]) for name, each in trained.weights.items()}
    return ProbeBank(of, weights)


def logits(trained: Trained, data: LabelledExamples, of: Shape) -> np.ndarray:
    return logits_of_bank(bank_of(trained, of), np.stack([vectors_of(data, layer) for layer in of.layers]))


@pytest.mark.parametrize(("kind", "units"), KINDS)
@pytest.mark.parametrize("patience", [2, 0])
@pytest.mark.quick(1)
def test_the_bank_equals_its_probes_trained_one_by_one(kind: str, units: int, patience: int) -> None:
    data, dev, of = examples(150), examples(60, seed=1), shape(kind, units)
    schedule = Schedule(epochs=14, batch_size=32, learning_rate=0.03, patience=patience)
    trained = train_bank(of, data, dev, schedule=schedule)
    found, epochs = logits(trained, dev, of), trained.epochs.reshape(of.sizes)
    for place, layer in enumerate(LAYERS):
        vectors = standardised(vectors_of(data, layer), vectors_of(dev, layer))
        for at, seed in enumerate(SEEDS):
            for number, output in enumerate(OUTPUTS):
                gold = data.targets[data.group, number]
                odds = np.log((gold.sum() + 0.5) / ((~gold).sum() + 0.5))
                alone = begun(kind, WIDTH, units, layer, seed, output, odds=odds)
                of_dev = vectors[1], dev.targets[dev.group, number]
                epoch = train_alone(alone, (vectors[0], gold), of_dev, schedule, seed)
                with torch.no_grad():
                    expected = alone(torch.from_numpy(vectors[1]))[:, 0].numpy()
                np.testing.assert_allclose(found[place, at, number], expected, atol=1e-4)
                assert epochs[place, at, number] == epoch
    if patience:
        assert epochs.min() < epochs.max(), "some probes stop before others"
    else:
        assert np.isnan(trained.dev_loss).all()


@pytest.mark.parametrize(("kind", "units"), KINDS)
def test_a_probe_does_not_depend_on_the_others(kind: str, units: int) -> None:
    data, dev, of = examples(150), examples(60, seed=1), shape(kind, units)
    schedule = Schedule(epochs=6, batch_size=50, learning_rate=0.01, patience=2)
    many = train_bank(of, data, dev, schedule=schedule)
    assert all(
        torch.equal(each, many.weights[name])
        for name, each in train_bank(of, data, dev, schedule=schedule).weights.items()
    ), "the same training gives the same bits"
    single = Shape(kind, (3,), (7,), (OUTPUTS[1],), WIDTH, units)
    parts = [replace(each, targets=each.targets[:, 1:2]) for each in (data, dev)]
    one = train_bank(single, *parts, schedule=schedule)
    np.testing.assert_allclose(logits(one, dev, single)[0, 0, 0], logits(many, dev, of)[1, 1, 1], atol=1e-5)
    assert one.epochs[0] == many.epochs.reshape(of.sizes)[1, 1, 1]


def test_initial_weights_depend_on_each_probe_only() -> None:
    of = shape("mlp", 5)
    whole, part = (
        initial_weights(of),
        initial_weights(replace(of, layers=LAYERS[1:], seeds=SEEDS[1:], outputs=OUTPUTS[1:])),
    )
    for name, tensor in whole.items():
        assert torch.equal(tensor[1:, 4:], part[name])
    flat = whole["hidden"].flatten(0, 1)
    assert len({tuple(probe.flatten().tolist()) for probe in flat}) == len(flat)
    assert float(flat.abs().max()) <= WIDTH**-0.5
    assert float(whole["output"].abs().max()) <= 5**-0.5


@pytest.mark.parametrize(("kind", "units"), KINDS)
@pytest.mark.parametrize(("n_layers", "n_groups"), [(1, 4), (2, 2)])
def test_little_memory_trains_the_same_probes_in_groups(kind: str, units: int, n_layers: int, n_groups: int) -> None:
    data, dev, of = examples(90), examples(40, seed=1), shape(kind, units)
    schedule = Schedule(epochs=3, batch_size=32, patience=1)
    whole = train_bank(of, data, dev, schedule=schedule)
    reports: list[tuple[int, int | None]] = []
    little = replace(schedule, memory=20 * sum(map(math.prod, of.tensor_shapes().values())) * 3 * n_layers)
    with config(progress=lambda done, total: reports.append((done, total))):
        groups = train_bank(of, data, dev, schedule=little)
    np.testing.assert_allclose(logits(groups, dev, of), logits(whole, dev, of), atol=1e-5)
    assert groups.epochs.tolist() == whole.epochs.tolist()
    np.testing.assert_allclose(groups.dev_loss, whole.dev_loss, rtol=1e-5)
    assert reports[-1] == (n_groups * 3 * 90, n_groups * 3 * 90)
    assert reports == sorted(reports)


def test_few_examples_are_read_several_times_in_an_epoch() -> None:
    data, of = examples(90), shape("linear", 0)  # 90 examples in batches of 20 are 5 steps
    reports: list[int] = []
    with config(progress=lambda done, _: reports.append(done)):
        long = train_bank(of, data, schedule=Schedule(2, 20, min_steps=12))
    short = train_bank(of, data, schedule=Schedule(8, 20, max_steps=3, min_steps=3))
    assert torch.equal(long.weights["weight"], short.weights["weight"]), "both are the same 24 steps"
    assert (long.epochs.max(), short.epochs.max(), reports[-1]) == (2, 8, len(SEEDS) * 24 * 20)


def test_probes_that_the_last_epoch_stops_are_marked() -> None:
    data, dev, of = examples(150), examples(60, seed=1), shape("linear", 0)
    schedule = Schedule(epochs=300, batch_size=32, learning_rate=0.1, patience=2)
    enough = train_bank(of, data, dev, schedule=schedule)
    assert not enough.capped.any()
    few = train_bank(of, data, dev, schedule=replace(schedule, epochs=int(enough.epochs.min()) + 2))
    np.testing.assert_array_equal(few.capped, enough.epochs > enough.epochs.min())
    probes = np.arange(len(few.epochs))
    assert {row["metric"]: row["value"] for row in few.rows(probes)} == {
        "best_epoch": few.epochs.mean(), "converged": pytest.approx(1 - few.capped.mean()),
    }  # fmt: skip
    fixed = train_bank(of, data, schedule=replace(schedule, epochs=2, patience=0))
    assert [row["value"] for row in fixed.rows(probes)] == [2.0, None]


@pytest.mark.parametrize(("kind", "units"), KINDS)
def test_the_size_and_place_of_the_vectors_do_not_matter(kind: str, units: int) -> None:
    """Vectors of very different sizes give the same logits; one feature is constant. Powers of two round nothing."""
    data, dev, of = examples(150), examples(60, seed=1), shape(kind, units)
    schedule = Schedule(epochs=5, batch_size=32, learning_rate=0.03, patience=2)
    moved = []
    for each in (data, dev):
        vectors = {layer: vectors_of(each, layer).copy() for layer in LAYERS}
        for array in vectors.values():
            array[:, 4] = 7
        sizes = np.exp2(np.arange(WIDTH) % 5 - 2).astype(np.float32)
        changed = {layer: array * sizes for layer, array in vectors.items()}
        moved.append([replace(each, examples=ArrayExamples(array)) for array in (vectors, changed)])
    plain, other = (train_bank(of, *pair, schedule=schedule) for pair in zip(*moved, strict=True))
    found = [logits(each, dev_own, of) for each, dev_own in zip((plain, other), moved[1], strict=True)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)
    assert np.abs(found[0]).max() > 0.5


@pytest.mark.parametrize("epoch_steps", [1, 3, 4, 5, 9])
def test_epochs_of_any_length_read_the_same_batches(epoch_steps: int) -> None:
    """90 examples in batches of 20 are 4 full batches a pass."""
    schedule = Schedule(1, 20, min_steps=epoch_steps, max_steps=epoch_steps)
    epochs = [schedule.order(number, 90, 7) for number in range(1, 9)]
    if epoch_steps == 5:  # an epoch is a pass, with its last batch of 10
        assert all(sorted(order.tolist()) == list(range(90)) for order in epochs)
        return
    read = np.concatenate(epochs)
    assert {len(order) for order in epochs} == {schedule.n_read(90)} == {20 * epoch_steps}
    for number, start in enumerate(range(0, len(read), 80), 1):
        whole = np.random.default_rng((0, 7, number)).permutation(90)
        assert read[start : start + 80].tolist() == whole[:80][: len(read) - start].tolist()
    assert (schedule.n_read(7), schedule.size(7)) == (7 * epoch_steps, 7)


@pytest.mark.parametrize("nbytes", [1, 9 * 32 * 4 * 2, 2**30])
def test_blocks_of_every_size_give_the_same_probes(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    data, dev, of = examples(90), examples(40, seed=1), shape("mlp", 9)
    schedule = Schedule(epochs=3, batch_size=32, patience=1)
    expected = logits(train_bank(of, data, dev, schedule=schedule), dev, of)
    monkeypatch.setattr(bank_module, "CPU_BLOCK_NBYTES", nbytes)
    np.testing.assert_allclose(logits(train_bank(of, data, dev, schedule=schedule), dev, of), expected, atol=1e-5)


def test_gradients_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    sizes = shape("mlp", 9).tensor_shapes()
    weights = {name: torch.randn(2, 6, *size) for name, size in sizes.items()}
    columns = torch.cat([torch.randn(2, 17, WIDTH), torch.ones(2, 17, 1)], 2)
    gradients = torch.randn(2, 6, 17)
    learned = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    active = torch.relu(torch.einsum("lphd,lbd->lphb", learned["hidden"], columns))
    out = torch.einsum("lph,lphb->lpb", learned["output"], active) + learned["bias"][:, :, None]
    out.backward(gradients)
    for block in bank_module.blocks_of(weights, batch_size=17, gradients=True):
        torch.testing.assert_close(block.forward(columns)[0], out[block.layers, block.probes][0].detach())
        block.backward(columns, gradients[block.layers, block.probes].contiguous())
        for name, parameter in block.parameters.items():
            expected = learned[name].grad
            assert expected is not None
            torch.testing.assert_close(parameter.grad, expected[block.layers.start, block.probes], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "units"), KINDS)
def test_a_value_that_is_not_finite_is_found(kind: str, units: int) -> None:
    vectors = {layer: np.ones((30, WIDTH), np.float32) for layer in LAYERS}
    vectors[3][7, 2] = np.nan
    data = replace(examples(30), examples=ArrayExamples(vectors))
    with pytest.raises(NonFiniteError, match=r"^training diverged: \w+ of class probes of layer 3 contains NaN"):
        train_bank(shape(kind, units), data, schedule=Schedule(1, 16))
    vectors[3][7, 2] = np.inf
    with pytest.raises(NonFiniteError, match=r"^the dev loss of class probes of layer 3 is not finite"):
        train_bank(shape(kind, units), examples(30), data, schedule=Schedule(1, 16, patience=3))


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
