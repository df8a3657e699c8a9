"""Structural probes against one probe alone and planted trees; their scores against scipy and brute force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embstore.corpus.trees import Tree, tree_depths, tree_distances
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes import ProbeResult, StructuralProbe, Training
from embstore.probes.structure.examples import SentenceFinder, Treebank, iter_tree_batches
from embstore.probes.structure.network import TASKS, Projected, StructureShape
from embstore.probes.structure.scores import (
    Predicted,
    Score,
    attachment,
    equal_lengths,
    linear_order,
    root_hits,
    score_structure,
    spanning_trees,
    spearman,
)
from embstore.probes.structure.training import train_structure
from embstore.probes.training import Schedule
from tests.probes.tree_store import NOISE, PLANTED, SHUFFLED, TreeStore, make, random_tree, write_store


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
        vectors = torch.from_numpy(bank.store.vectors(rows, layers=layer)).double()
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


def test_long_vectors_as_of_decoders_are_trained_on_as_shorter_ones(made: TreeStore, tmp_path: Path) -> None:
    vectors = made.store.vectors(layers=[PLANTED])
    weights = []
    for times in (1.0, 50.0):
        scaled = vectors * times * 20 / np.median(np.linalg.norm(vectors[0], axis=1))
        store = write_store(tmp_path / f"{times}.zarr", made.trees, scaled.astype(np.float32), layers=(PLANTED,))
        weights.append(times * fit(TreeStore(store, made.trees), Training(epochs=2)).fitted_.weights.numpy())
    np.testing.assert_allclose(weights[1], weights[0], rtol=0.05, atol=1e-4)


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
    assert (tree.gold, tree.found_root) == (tree.found, gold.root)
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
    assert store.vectors(bank.rows(np.array([1, 0])), layers=0).ravel().tolist() == [6, 7, 8, 0, 1, 2]
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


def bank_of(path: Path, trees: list[Tree]) -> Treebank:
    words = sum(map(len, trees))
    return SentenceFinder(write_store(path, trees, np.zeros((1, words, 2)), layers=(0,))).treebank(trees)


def tree(words: str, heads: list[int], marks: str = "") -> Tree:
    forms = tuple(words.split())
    return Tree(forms, np.array(heads) - 1, np.array([form in marks.split() for form in forms]))


def test_spearman_equals_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 4, (3, 5, 8)), rng.normal(size=(3, 5, 8)).round(1)
    found = spearman(one, other)
    for place in np.ndindex(3, 5):
        assert found[place] == pytest.approx(stats.spearmanr(one[place], other[place]).statistic)
    assert spearman(np.zeros(4), np.arange(4.0)) == 0
    assert spearman(np.array([1, 2, 2, 5]), np.array([1, 2, 3, 4])) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


def lightest(distances: np.ndarray, allowed: np.ndarray) -> float:
    """The least weight of a spanning tree, by trying all sets of edges."""
    nodes = np.flatnonzero(allowed).tolist()
    best = np.inf
    for edges in combinations(list(combinations(nodes, 2)), len(nodes) - 1):
        joined = {node: node for node in nodes}
        for one, other in edges:
            old, new = joined[one], joined[other]
            joined = {node: new if group == old else group for node, group in joined.items()}
        if len(set(joined.values())) == 1:
            best = min(best, sum(distances[edge] for edge in edges))
    return float(best)


def test_spanning_trees_are_the_lightest() -> None:
    rng = np.random.default_rng(1)
    distances = rng.normal(size=(12, 6, 6)).astype(np.float32)  # those of a probe may lie a little below 0
    distances += distances.transpose(0, 2, 1)
    allowed = rng.random((12, 6)) < 0.8
    allowed[0], allowed[1] = False, np.arange(6) == 3
    parents = spanning_trees(distances, allowed)
    for place in range(12):
        words = np.flatnonzero(parents[place] >= 0)
        assert len(words) == max(0, allowed[place].sum() - 1)
        assert allowed[place][words].all()
        assert allowed[place][parents[place][words]].all()
        if allowed[place].sum() > 1:
            weight = distances[place, words, parents[place][words]].sum()
            assert weight == pytest.approx(lightest(distances[place], allowed[place]), abs=1e-5)


def test_attachment_by_hand() -> None:
    gold = tree_distances(np.array([1, 2, -1, 2, 2]))[None]
    chain = np.abs(np.subtract.outer(np.arange(5), np.arange(5))).astype(np.float32)[None, None]
    perfect = gold[None].astype(np.float32)
    both = np.concatenate([chain, perfect])
    right, there = attachment(both, gold.astype(np.int16), np.ones((1, 5), bool))
    assert (right.tolist(), there) == ([3, 4], 4)  # the chain has 0-1, 1-2 and 2-3, not 2-4
    allowed = np.array([[True, True, False, True, True]])
    right, there = attachment(both, gold.astype(np.int16), allowed)
    assert (right.tolist(), there) == ([1, 1], 1)  # of the gold edges 0-1 alone is left


def test_roots_by_hand() -> None:
    gold = np.array([[1, 0, 2], [1, 0, 1]], np.int16)
    depths = np.array([[[0.5, 0.4, 9], [0.1, 0.2, 0.3]], [[0, 1, 2], [2, 0, 2]]], np.float32)
    assert root_hits(depths, gold, np.ones((2, 3), bool))[0].tolist() == [1, 1]
    right, count = root_hits(depths, gold, np.array([[False, True, True], [False, False, False]]))
    assert (right.tolist(), count) == ([1, 1], 1)


def test_averages_by_hand(tmp_path: Path) -> None:
    """Two sentences of five words and one of six count as two lengths; the one of three does not count."""
    trees = [
        tree("a b c d .", [2, 0, 2, 3, 2], "."),
        tree("e f g h i", [0, 1, 2, 3, 4]),
        tree("j k l m n o", [2, 3, 0, 3, 4, 5]),
        tree("p q r", [0, 1, 1]),
    ]
    bank = bank_of(tmp_path / "s.zarr", trees)
    scores = {score.metric: score for score in score_structure(bank, linear_order(bank), probes=1)}
    places = [np.arange(len(each)) for each in trees]
    rows = [
        np.mean([spearman(abs(order - order[word]), tree_distances(each.heads)[word]) for word in order])
        for order, each in zip(places, trees, strict=True)
    ]
    assert scores["dspr"].values == [pytest.approx((np.mean(rows[:2]) + rows[2]) / 2)]
    depths = [spearman(order, tree_depths(each.heads)) for order, each in zip(places, trees, strict=True)]
    assert scores["nspr"].values == [pytest.approx((np.mean(depths[:2]) + depths[2]) / 2)]
    assert (scores["dspr"].count, scores["nspr"].count) == (3, 3)
    assert scores["uuas"] == Score("distance", "uuas", [pytest.approx(13 / 14)], 14)  # of 3 + 4 + 5 + 2, all but p-r
    assert scores["root_accuracy"] == Score("depth", "root_accuracy", [0.5], 4)  # e and p are first and roots


@pytest.mark.parametrize(("n_words", "counts"), [(4, False), (5, True), (50, True), (51, False)])
def test_correlations_are_of_sentences_of_5_to_50_words(tmp_path: Path, n_words: int, counts: bool) -> None:
    made = random_tree(np.random.default_rng(n_words), [f"w{place}" for place in range(n_words)])
    bank = bank_of(tmp_path / "s.zarr", [made])
    scores = {score.metric: score for score in score_structure(bank, linear_order(bank), probes=1)}
    for metric in ("dspr", "nspr"):
        assert (scores[metric].count, scores[metric].values != [None]) == (counts, counts)
    assert scores["uuas"].count == n_words - 1 - made.punctuation.sum(), "edges of all sentences count"
    assert scores["root_accuracy"].count == 1


def test_nothing_to_correlate_is_none(tmp_path: Path) -> None:
    bank = bank_of(tmp_path / "s.zarr", [tree("a b", [0, 1]), tree(". !", [0, 1], ". !")])
    scores = {score.metric: score for score in score_structure(bank, linear_order(bank), probes=1)}
    assert scores["dspr"] == Score("distance", "dspr", [None], 0)
    assert (scores["uuas"].values, scores["uuas"].count) == ([1.0], 1)
    assert (scores["root_accuracy"].values, scores["root_accuracy"].count) == ([1.0], 1)


def test_gold_scores_one_and_several_probes_differ(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    trees = [random_tree(rng, [f"{number}-{place}" for place in range(4 + number % 9)]) for number in range(40)]
    bank = bank_of(tmp_path / "s.zarr", trees)

    def predictions(*signs: int) -> Iterator[Predicted]:
        for sentences in equal_lengths(bank, n_pairs=150):
            distances, depths = (np.stack([of[n] for n in sentences]) for of in (bank.distances, bank.depths))
            yield Predicted(sentences, *(np.stack([sign * gold for sign in signs]) for gold in (distances, depths)))

    alone = score_structure(bank, predictions(1), probes=1)
    for score, own in zip(score_structure(bank, predictions(1, -1), probes=2), alone, strict=True):
        assert score.values[0] == pytest.approx(1) == own.values[0]
        assert (score.values[1] or 0) < 0.5
