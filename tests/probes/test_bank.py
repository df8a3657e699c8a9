"""A bank of class probes equals its probes trained one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.classes import bank as bank_module
from embstore.probes.classes.bank import Output, ProbeBank, Shape, initial_weights
from embstore.probes.classes.examples import ArrayExamples, LabelledExamples
from embstore.probes.classes.training import train_bank
from embstore.probes.training import Schedule, Trained
from tests.probes.oracle import begun, train_alone

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
    return bank_of(trained, of).logits(np.stack([vectors_of(data, layer) for layer in of.layers]))


@pytest.mark.parametrize(("kind", "units"), KINDS)
@pytest.mark.parametrize(("weighted", "patience"), [(True, 2), (False, 0)])
def test_the_bank_equals_its_probes_trained_one_by_one(kind: str, units: int, weighted: bool, patience: int) -> None:
    data, dev, of = examples(150), examples(60, seed=1), shape(kind, units)
    schedule = Schedule(epochs=14, batch_size=32, learning_rate=0.03, patience=patience)
    weight = np.array([0.5, 4.0, 1.5]) if weighted else None
    trained = train_bank(of, data, dev, schedule=schedule, positive_weight=weight)
    found, epochs = logits(trained, dev, of), trained.epochs.reshape(of.sizes)
    for place, layer in enumerate(LAYERS):
        for at, seed in enumerate(SEEDS):
            for number, output in enumerate(OUTPUTS):
                alone = train_alone(
                    begun(kind, WIDTH, units, layer, seed, output),
                    (vectors_of(data, layer), data.targets[data.group, number]),
                    (vectors_of(dev, layer), dev.targets[dev.group, number]),
                    schedule,
                    None if weight is None else weight[number],
                )
                with torch.no_grad():
                    expected = alone.module(torch.from_numpy(vectors_of(dev, layer)))[:, 0].numpy()
                np.testing.assert_allclose(found[place, at, number], expected, atol=1e-4)
                assert epochs[place, at, number] == alone.epoch
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
    other = train_bank(of, data, dev, schedule=replace(schedule, seed=1))
    assert not torch.equal(next(iter(other.weights.values())), next(iter(many.weights.values())))


def test_initial_weights_depend_on_each_probe_only() -> None:
    whole = initial_weights(shape("mlp", 5), LAYERS, range(6))
    part = initial_weights(shape("mlp", 5), LAYERS[1:], range(4, 6))
    for name, tensor in whole.items():
        assert torch.equal(tensor[1:, 4:], part[name])
    flat = whole["hidden"].flatten(0, 1)
    assert len({tuple(probe.flatten().tolist()) for probe in flat}) == len(flat)
    assert float(flat.abs().max()) <= WIDTH**-0.5
    assert float(whole["output"].abs().max()) <= 5**-0.5


@pytest.mark.parametrize(("kind", "units"), KINDS)
@pytest.mark.parametrize(("n_probes", "n_groups"), [(4, 4), (7, 2)])
def test_little_memory_trains_the_same_probes_in_groups(
    tmp_path: Path, kind: str, units: int, n_probes: int, n_groups: int
) -> None:
    data, dev, of = examples(90), examples(40, seed=1), shape(kind, units)
    schedule = Schedule(epochs=3, batch_size=32, patience=1)
    whole = train_bank(of, data, dev, schedule=schedule)
    reports: list[tuple[int, int | None]] = []
    little = replace(schedule, memory=16 * of.n_parameters * n_probes)
    groups = train_bank(
        of,
        data,
        dev,
        schedule=little,
        checkpoint=tmp_path / "state",
        progress=lambda done, total: reports.append((done, total)),
    )
    np.testing.assert_allclose(logits(groups, dev, of), logits(whole, dev, of), atol=1e-5)
    assert groups.epochs.tolist() == whole.epochs.tolist()
    np.testing.assert_allclose(groups.dev_loss, whole.dev_loss, rtol=1e-5)
    assert reports[-1] == (n_groups * 3 * 90, n_groups * 3 * 90)
    assert reports == sorted(reports)
    assert len(list(tmp_path.iterdir())) == n_groups, "a checkpoint per group"


def test_few_examples_are_read_several_times_in_an_epoch() -> None:
    data, of = examples(90), shape("linear", 0)  # 90 examples in batches of 20 are 5 steps
    for min_steps, n_passes in ((1, 1), (5, 1), (6, 2), (10, 2), (11, 3)):
        assert Schedule(2, 20, min_steps=min_steps).n_passes(90) == n_passes
    reports: list[int] = []
    twice = train_bank(of, data, schedule=Schedule(3, 20, min_steps=10), progress=lambda done, _: reports.append(done))
    once = train_bank(of, data, schedule=Schedule(6, 20))
    assert torch.equal(twice.weights["weight"], once.weights["weight"])
    assert (twice.epochs.max(), once.epochs.max(), reports[-1]) == (3, 6, 6 * 90)


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


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="seeds must be one or more, each once"):
        Shape("linear", (0,), (1, 1), OUTPUTS, WIDTH)
    data, of = examples(20), shape("linear", 0)
    with pytest.raises(InvalidValueError, match=r"memory 0\.0 MB is not enough: one probe takes [\d.,]+ MB; give more"):
        train_bank(shape("mlp", 10**15), data, schedule=Schedule(1, 8, memory=1000))
    trained = train_bank(of, data, schedule=Schedule(1, 8))
    with pytest.raises(InvalidValueError, match=r"vectors of shape \(2, 5, 3\) do not fit probes of 2 layers of 11"):
        bank_of(trained, of).logits(np.ones((2, 5, 3)))


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
