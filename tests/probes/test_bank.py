"""A bank is the probes that it holds, each as if trained by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.classes import bank as bank_module
from embstore.probes.classes.bank import Output, Shape, initial_weights
from embstore.probes.classes.examples import HeldExamples
from embstore.probes.training import LabelledExamples, Trained, Training, train_bank
from tests.probes.oracle import begun, train_alone

LAYERS, SEEDS, WIDTH = (0, 3), (0, 7), 11
OUTPUTS = (Output("class", "a"), Output("class", "b"), Output("control", "a"))
KINDS = [("linear", 0), ("mlp", 9)]


def examples(count: int, *, seed: int = 0) -> LabelledExamples:
    """Vectors of which the targets can be read in part, and noise."""
    rng = np.random.default_rng(seed)
    vectors = {layer: rng.normal(size=(count, WIDTH)).astype(np.float32) for layer in LAYERS}
    kind = (4 * (vectors[0][:, 0] > 0) + 2 * (vectors[3][:, 1] > 0.7) + rng.integers(0, 2, count)).astype(np.int64)
    targets = np.array([[number >> bit & 1 for bit in (2, 1, 0)] for number in range(8)], bool)
    return LabelledExamples(HeldExamples(vectors), kind, targets)


def held(data: LabelledExamples, layer: int) -> np.ndarray:
    out = np.empty((1, len(data), WIDTH), np.float32)
    data.examples.read(np.arange(len(data)), [layer], out)
    return out[0]


def shape(kind: str, units: int) -> Shape:
    return Shape(kind, LAYERS, SEEDS, OUTPUTS, WIDTH, units)


def logits(trained: Trained, data: LabelledExamples) -> np.ndarray:
    return trained.bank.logits(np.stack([held(data, layer) for layer in trained.bank.shape.layers]))


@pytest.mark.parametrize(("kind", "units"), KINDS)
@pytest.mark.parametrize(
    ("weighted", "stopping"),
    [
        (True, True),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
        (False, False),
    ],
)
def test_the_bank_is_its_probes_trained_one_by_one(kind: str, units: int, weighted: bool, stopping: bool) -> None:
    train, dev = examples(150), examples(60, seed=1)
    training = Training(epochs=14, batch_size=32, learning_rate=0.03, patience=2 if stopping else None)
    weight = np.array([0.5, 4.0, 1.5]) if weighted else None
    trained = train_bank(shape(kind, units), train, dev, training=training, positive_weight=weight)
    found = logits(trained, dev)
    epochs = trained.epochs.reshape(len(LAYERS), len(SEEDS), len(OUTPUTS))
    for place, layer in enumerate(LAYERS):
        for at, seed in enumerate(SEEDS):
            for number, output in enumerate(OUTPUTS):
                alone = train_alone(
                    begun(kind, WIDTH, units, layer, seed, output),
                    (held(train, layer), train.targets[train.kind, number]),
                    (held(dev, layer), dev.targets[dev.kind, number]),
                    training,
                    None if weight is None else weight[number],
                )
                with torch.no_grad():
                    expected = alone.module(torch.from_numpy(held(dev, layer)))[:, 0].numpy()
                np.testing.assert_allclose(found[place, at, number], expected, atol=1e-4)
                assert epochs[place, at, number] == alone.epoch
    if stopping:
        assert epochs.min() < epochs.max()  # some stopped long before others


@pytest.mark.parametrize(("kind", "units"), KINDS)
def test_a_probe_does_not_depend_on_those_beside_it(kind: str, units: int) -> None:
    train, dev = examples(150), examples(60, seed=1)
    training = Training(epochs=6, batch_size=50, learning_rate=0.01, patience=2)
    many = train_bank(shape(kind, units), train, dev, training=training)
    one = train_bank(
        Shape(kind, (3,), (7,), (OUTPUTS[1],), WIDTH, units),
        replace(train, targets=train.targets[:, 1:2]),
        replace(dev, targets=dev.targets[:, 1:2]),
        training=training,
    )
    np.testing.assert_allclose(logits(one, dev)[0, 0, 0], logits(many, dev)[1, 1, 1], atol=1e-5)
    assert one.epochs[0, 0] == many.epochs[1, len(OUTPUTS) + 1]


@pytest.mark.parametrize(("kind", "units"), KINDS)
def test_the_same_again_is_the_same_to_the_bit(kind: str, units: int) -> None:
    train, dev = examples(100), examples(40, seed=1)
    runs = [train_bank(shape(kind, units), train, dev, training=Training(epochs=4)) for _ in range(2)]
    for name, tensor in runs[0].bank.weights.items():
        assert torch.equal(tensor, runs[1].bank.weights[name])
    other = train_bank(shape(kind, units), train, dev, training=Training(epochs=4, batch_size=20, order_seed=1))
    assert not torch.equal(next(iter(other.bank.weights.values())), next(iter(runs[0].bank.weights.values())))


def test_initial_weights_are_those_of_each_probe_alone() -> None:
    whole = initial_weights(shape("mlp", 5), LAYERS, range(6))
    part = initial_weights(shape("mlp", 5), LAYERS[1:], range(4, 6))
    for name, tensor in whole.items():
        assert torch.equal(tensor[1:, 4:], part[name])
    flat = whole["hidden"].flatten(0, 1)
    assert len({tuple(probe.flatten().tolist()) for probe in flat}) == len(flat)
    assert float(flat.abs().max()) <= WIDTH**-0.5
    assert float(whole["output"].abs().max()) <= 5**-0.5


@pytest.mark.parametrize(("kind", "units"), KINDS)
@pytest.mark.parametrize("probes", [pytest.param(1, marks=pytest.mark.slow), 4, 7])
def test_little_memory_trains_the_same_probes_in_turns(kind: str, units: int, probes: int) -> None:
    train, dev = examples(90), examples(40, seed=1)
    training = Training(epochs=3, batch_size=32, patience=1)
    told: list[tuple[int, int]] = []
    whole = train_bank(shape(kind, units), train, dev, training=training)
    turns = train_bank(
        shape(kind, units),
        train,
        dev,
        training=training,
        memory=16 * shape(kind, units).parameters * probes,
        progress=lambda done, total: told.append((done, total)),
    )
    np.testing.assert_allclose(logits(turns, dev), logits(whole, dev), atol=1e-5)
    groups = {1: 12, 4: 4, 7: 2}[probes]
    assert told[-1] == (groups * 3 * 90, groups * 3 * 90)
    assert told == sorted(told)


@pytest.mark.parametrize("room", [1, 9 * 32 * 4 * 2, 2**30])
def test_blocks_of_every_size_are_the_same(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    train, dev = examples(90), examples(40, seed=1)
    training = Training(epochs=3, batch_size=32, patience=1)
    expected = logits(train_bank(shape("mlp", 9), train, dev, training=training), dev)
    monkeypatch.setattr(bank_module, "CPU_ROOM_NBYTES", room)
    np.testing.assert_allclose(
        logits(train_bank(shape("mlp", 9), train, dev, training=training), dev), expected, atol=1e-5
    )


def test_gradients_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    weights = {name: torch.randn(size) for name, size in shape("mlp", 9).tensor_shapes(2, 6).items()}
    columns = torch.cat([torch.randn(2, 17, WIDTH), torch.ones(2, 17, 1)], 2)
    slopes = torch.randn(2, 6, 17)
    learnt = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    active = torch.relu(torch.einsum("lphd,lbd->lphb", learnt["hidden"], columns))
    out = torch.einsum("lph,lphb->lpb", learnt["output"], active) + learnt["bias"][:, :, None]
    out.backward(slopes)
    for block in bank_module.blocks_of(shape("mlp", 9), weights, batch_size=17, gradients=True):
        torch.testing.assert_close(block.forward(columns)[0], out[block.layers, block.probes][0].detach())
        block.backward(columns, slopes[block.layers, block.probes].contiguous())
        for name, parameter in block.parameters.items():
            expected = learnt[name].grad
            assert expected is not None
            torch.testing.assert_close(parameter.grad, expected[block.layers.start, block.probes], rtol=1e-4, atol=1e-4)


def test_what_cannot_be_trained_is_said() -> None:
    train = examples(20)
    with pytest.raises(InvalidValueError, match=r"^unknown kind 'deep' of probe; allowed are linear, mlp$"):
        Shape("deep", (0,), (0,), OUTPUTS, WIDTH)
    with pytest.raises(InvalidValueError, match="hidden_size 0 is not allowed for mlp probes: give 1 or more"):
        Shape("mlp", (0,), (0,), OUTPUTS, WIDTH)
    with pytest.raises(InvalidValueError, match="seeds must be one or more, each once"):
        Shape("linear", (0,), (1, 1), OUTPUTS, WIDTH)
    with pytest.raises(InvalidValueError, match="batch_size 0 is not allowed"):
        Training(batch_size=0)
    with pytest.raises(InvalidValueError, match="learning_rate nan is not allowed"):
        Training(learning_rate=float("nan"))
    with pytest.raises(InvalidValueError, match="patience 3 needs dev examples"):
        train_bank(shape("linear", 0), train)
    with pytest.raises(InvalidValueError, match=r"vectors of shape \(2, 5, 3\) do not fit probes of 2 layers of 11"):
        train_bank(shape("linear", 0), train, training=Training(epochs=1, patience=None)).bank.logits(
            np.ones((2, 5, 3))
        )


@pytest.mark.parametrize(("kind", "units"), KINDS)
def test_a_value_that_is_not_finite_is_found(kind: str, units: int) -> None:
    vectors = {layer: np.ones((30, WIDTH), np.float32) for layer in LAYERS}
    vectors[3][7, 2] = np.nan
    data = replace(examples(30), examples=HeldExamples(vectors))
    with pytest.raises(NonFiniteError, match=r"^probes of layer 3 have come to \w+s that are not finite"):
        train_bank(shape(kind, units), data, training=Training(epochs=1, patience=None))
    vectors[3][7, 2] = np.inf
    dev = replace(data, kind=data.kind)
    with pytest.raises(NonFiniteError, match=r"^dev examples of layer 3 hold values that are not finite"):
        train_bank(shape(kind, units), examples(30), dev, training=Training(epochs=1))
