"""Structural probes: batched against one probe alone, planted trees, determinism, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embstore.corpus.trees import Tree
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes import ProbeResult, StructuralProbe, Training
from embstore.probes.structure.examples import SentenceFinder, Treebank, iter_tree_batches
from embstore.probes.structure.network import TASKS, Projected, StructureShape
from embstore.probes.structure.training import train_structure
from embstore.probes.training import Schedule
from tests.probes.tree_store import NOISE, PLANTED, SHUFFLED, TreeStore, make, write_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TreeStore:
    return make(tmp_path_factory.mktemp("trees") / "planted.zarr", sentences=260)


def parts(made: TreeStore) -> dict[str, list[Tree]]:
    return {"train": made.trees[:180], "dev": made.trees[180:220], "test": made.trees[220:]}


def loss_of_one(weight: torch.Tensor, bank: Treebank, numbers: np.ndarray, layer: int, task: str) -> torch.Tensor:
    """The mean loss of one probe as the paper writes it, sentence by sentence."""
    losses = []
    for number in numbers.tolist():
        rows = bank.rows(np.array([number]))
        vectors = torch.from_numpy(bank.store.vectors(rows, layers=layer)[0]).double()
        if task == "distance":
            differences = (vectors[:, None] - vectors[None, :]) @ weight.T
            gold = torch.from_numpy(bank.distances[number].astype(np.float64))
            losses.append((differences.square().sum(-1) - gold).abs().sum() / len(rows) ** 2)
        else:
            gold = torch.from_numpy(bank.depths[number].astype(np.float64))
            losses.append(((vectors @ weight.T).square().sum(-1) - gold).abs().sum() / len(rows))
    return torch.stack(losses).mean()


def fit(made: TreeStore, training: Training, **settings: Any) -> StructuralProbe:
    split = parts(made)
    return StructuralProbe(training=training, **settings).fit(made.store, split["train"], split["dev"])


def shape_of(**change: Any) -> StructureShape:
    given: dict[str, Any] = {
        "layers": (NOISE, PLANTED), "seeds": (0, 7), "width": 20, "rank": 5,
    }  # fmt: skip
    return StructureShape(**(given | change))


def test_losses_and_gradients_equal_those_of_one_probe(made: TreeStore) -> None:
    shape = shape_of()
    bank = SentenceFinder(made.store).treebank(made.trees)
    numbers = np.arange(3, 14)
    batch = next(iter_tree_batches(bank, [numbers], shape.layers, torch.device("cpu")))
    weights = shape.initial_weights() * 8
    projected = Projected(weights, batch)
    losses, gradients = projected.losses() / len(numbers), projected.gradients()
    for row, layer in enumerate(shape.layers):
        for column, task in enumerate(TASKS):
            for seed in range(2):
                weight = weights[row, column, seed].double().requires_grad_()
                loss = loss_of_one(weight, bank, numbers, layer, task)
                loss.backward()
                assert losses[row, column, seed].item() == pytest.approx(loss.item(), rel=1e-5)
                torch.testing.assert_close(gradients[row, column, seed].double(), weight.grad, atol=2e-5, rtol=1e-4)


def test_training_equals_plain_torch(made: TreeStore) -> None:
    """One probe of many against a loop of autograd and torch.optim.Adam, with the same decay and early stopping."""
    split = parts(made)
    finder = SentenceFinder(made.store)
    train, dev = finder.treebank(split["train"][:30]), finder.treebank(split["dev"])
    schedule = Schedule(epochs=12, batch_size=8, learning_rate=0.3, patience=3)
    shape = shape_of()
    together = train_structure(shape, train, dev, schedule=schedule)
    epochs, dev_loss = (each.reshape(shape.sizes) for each in (together.epochs, together.dev_loss))
    weights = together.weights["weight"].view(*shape.sizes, 5, 20)
    for row, column, seed in ((0, 0, 1), (1, 1, 0)):
        layer, task = shape.layers[row], TASKS[column]
        weight = shape.initial_weights()[row, column, seed].double().requires_grad_()
        best, best_epoch, waited, rate = np.inf, 0, 0, schedule.learning_rate
        adam = torch.optim.Adam([weight], lr=rate)
        best_weight = weight.detach().clone()
        for epoch in range(1, schedule.epochs + 1):
            order = np.random.default_rng((0, shape.seeds[seed], epoch)).permutation(len(train))
            for start in range(0, len(order), 8):
                adam.zero_grad()
                loss_of_one(weight, train, order[start : start + 8], layer, task).backward()
                adam.step()
            loss = loss_of_one(weight.detach(), dev, np.arange(len(dev)), layer, task).item()
            if loss < best - 1e-4:
                best, best_epoch, waited, best_weight = loss, epoch, 0, weight.detach().clone()
            else:
                waited, rate = waited + 1, rate * 0.1
                adam = torch.optim.Adam([weight], lr=rate)
            if waited == schedule.patience:
                break
        assert epochs[row, column, seed] == best_epoch
        assert dev_loss[row, column, seed] == pytest.approx(best, rel=2e-3)
        torch.testing.assert_close(weights[row, column, seed].double(), best_weight, atol=5e-3, rtol=0.02)


def test_a_probe_does_not_depend_on_the_others_or_on_memory(made: TreeStore) -> None:
    finder = SentenceFinder(made.store)
    split = parts(made)
    train, dev = finder.treebank(split["train"][:40]), finder.treebank(split["dev"])
    schedule = Schedule(epochs=8, batch_size=8, learning_rate=0.02, patience=1)
    together = train_structure(shape_of(), train, dev, schedule=schedule)
    again = train_structure(shape_of(), train, dev, schedule=schedule)
    assert torch.equal(together.weights["weight"], again.weights["weight"])
    single = shape_of(layers=(PLANTED,), seeds=(7,))
    alone = train_structure(single, train, dev, schedule=schedule)
    assert alone.epochs.tolist() == together.epochs[[5, 7]].tolist()
    torch.testing.assert_close(alone.weights["weight"], together.weights["weight"][[5, 7]], atol=1e-4, rtol=1e-3)
    groups = train_structure(shape_of(), train, dev, schedule=replace(schedule, memory=150_000))
    assert groups.epochs.tolist() == together.epochs.tolist()
    torch.testing.assert_close(groups.weights["weight"], together.weights["weight"], atol=1e-5, rtol=1e-4)
    with pytest.raises(InvalidValueError, match=r"memory 0\.0 MB is not enough: the probes of one layer take"):
        train_structure(shape_of(), train, dev, schedule=replace(schedule, memory=1000))


def value(found: ProbeResult, metric: str, layer: int, split: str = "test") -> float:
    return float(found.frame.filter(metric=metric, layer=layer, split=split)["value"][0])


@pytest.fixture(scope="module")
def probe(made: TreeStore) -> StructuralProbe:
    return fit(made, Training(epochs=60, batch_size=10, learning_rate=0.02), rank=12)


@pytest.fixture(scope="module")
def found(made: TreeStore, probe: StructuralProbe) -> ProbeResult:
    split = parts(made)
    return probe.score({"dev": split["dev"], "test": split["test"]})


def test_planted_trees_are_found_in_their_layer(probe: StructuralProbe, found: ProbeResult) -> None:
    assert value(found, "uuas", PLANTED) > 0.9
    assert value(found, "dspr", PLANTED) > 0.85
    assert value(found, "root_accuracy", PLANTED) > 0.85
    assert value(found, "nspr", PLANTED) > 0.85  # equal depths are predicted only nearly equal
    for layer in (NOISE, SHUFFLED):  # a tree drawn at random shares 2 / words of the edges of another
        assert value(found, "uuas", layer) < 0.6
        assert abs(value(found, "dspr", layer)) < 0.65
        assert value(found, "root_accuracy", layer) < 0.6
        assert abs(value(found, "nspr", layer)) < 0.4
    assert probe.best_layer() == PLANTED


def test_a_result_has_scores_baselines_and_trees(made: TreeStore, probe: StructuralProbe, found: ProbeResult) -> None:
    frame = found.frame
    assert set(frame["split"]) == {"train", "dev", "test"}
    baseline = frame.filter(frame["layer"].is_null())
    assert set(baseline["store"]) == {"planted: linear order"}
    assert sorted(baseline.filter(split="test")["metric"]) == ["dspr", "nspr", "root_accuracy", "uuas"]
    assert found.summary()["deviation"].to_list() == [None] * len(frame)
    gold = parts(made)["test"][5]
    tree = probe.predict(gold)
    assert (tree.words, tree.layer, tree.gold_root) == (gold.words, PLANTED, gold.root)
    assert tree.right == tree.gold == tree.found
    assert tree.found_root == gold.root
    assert len(probe.predict(gold, layers=NOISE).found) == len(tree.gold)
    assert probe.predict(gold, layers="last").layer == 4
    with pytest.raises(InvalidValueError, match="layer 1 has no probe: choose among 0, 3, 4"):
        probe.predict(gold, layers=1)


def test_without_early_stopping_no_layer_is_the_best(made: TreeStore) -> None:
    probe = fit(made, Training(epochs=1, patience=0), rank=2)
    with pytest.raises(InvalidValueError, match="early stopping"):
        probe.predict(made.trees[0])
    assert probe.predict(made.trees[0], layers=PLANTED).layer == PLANTED
    assert fit(made, Training(epochs=1, patience=0), rank=2, layers=[PLANTED]).best_layer() == PLANTED


def test_sentences_are_found_by_their_words(tmp_path: Path) -> None:
    heads = np.array([-1, 0, 1])
    trees = [
        Tree(("a", "new york", "c"), heads, np.zeros(3, bool)),
        Tree(("d", "e", "f"), heads, np.zeros(3, bool)),
        Tree(("d", "e", "f"), heads, np.zeros(3, bool)),
    ]
    vectors = np.arange(9, dtype=np.float64).reshape(1, 9, 1)
    store = write_store(tmp_path / "s.zarr", trees, vectors, layers=(0,), drop=(4,))  # the first "e"
    other = Tree(("a", "new", "york c"), heads, np.zeros(3, bool))
    unknown = Tree(("g",), np.array([-1]), np.zeros(1, bool))
    bank = SentenceFinder(store).treebank([trees[0], trees[1], other, unknown])
    assert [tree.words for tree in bank.trees] == [trees[0].words, trees[1].words]
    assert store.vectors(bank.rows(np.array([1, 0])), layers=0)[0].ravel().tolist() == [6, 7, 8, 0, 1, 2]
    assert bank.note == ("s: trees: 2 sentences are not in the store with a row for each word, such as 'a new york c'")


def test_stores_of_subwords_and_of_another_width_are_refused_of_another_model_noted(
    made: TreeStore, probe: StructuralProbe, tmp_path: Path
) -> None:
    other = make(tmp_path / "sub.zarr", sentences=3, unit="subword")
    with pytest.raises(InvalidValueError, match="is a store of subwords: the structural probe needs one vector per"):
        StructuralProbe().fit(other.store, other.trees, other.trees)
    narrow = make(tmp_path / "narrow.zarr", sentences=3, width=12)
    with pytest.raises(InvalidValueError, match=r"narrow\.zarr has vectors of 12 numbers, the probes were trained on"):
        probe.score(narrow.trees, data=narrow.store)
    same = make(tmp_path / "same.zarr", sentences=3)
    assert not any("otherwise" in note for note in probe.score(same.trees, data=same.store).notes)
    same.store.metadata.model["name"] = "another"
    assert "otherwise than those of" in probe.score(same.trees, data=same.store).notes[0]


def test_values_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    trees = make(tmp_path / "a.zarr", sentences=20).trees
    vectors = np.zeros((1, sum(map(len, trees)), 4))
    vectors[0, -1, 2] = np.inf
    store = write_store(tmp_path / "b.zarr", trees, vectors, layers=(2,))
    probe = StructuralProbe(training=Training(epochs=1))
    with pytest.raises(NonFiniteError, match=r"dev loss of structural probes of layer 2 \(distance\) is not finite"):
        probe.fit(store, trees[:5], trees[15:])
    with pytest.raises(NonFiniteError, match="contain NaN or infinity"):
        probe.fit(store, trees[:5], trees[5:10]).score(trees[15:])
