"""Edge probing: the batched probes against one in plain torch, planted signals, joins and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.edges.batches import iter_batches
from embstore.probes.edges.edges import EdgeResult, probe_edges
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.edges.scores import EdgeTally, constant_counts, majority
from embstore.probes.edges.tasks import EdgeSplit, join_task, sample_sentences
from embstore.probes.edges.training import EdgeTraining, Stream, train_edges
from embstore.probes.mixing import cumulative
from tests.probes.edge_oracle import f1_of, logits_of_one, loss_of_one
from tests.probes.edge_store import LABELS, Made, make, write_store

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"projection": 8, "hidden_size": 10}


def probe(made: Made, **options: Any) -> EdgeResult:
    return probe_edges(made.store, **made.splits, **{"device": "cpu", **SMALL, **options})


def value(result: EdgeResult, metric: str, split: str = "test", layer: int | None = None) -> float:
    frame = result.frame.filter(pl.col("metric") == metric, pl.col("split") == split)
    frame = frame.filter(pl.col("layer").is_null() if layer is None else pl.col("layer") == layer)
    return float(frame["value"].item())


@pytest.mark.parametrize(("pairs", "longest", "unit"), [(False, 1, "word"), (False, 3, "word"), (True, 3, "subword")])
def test_batched_probes_have_the_gradients_of_one_alone(tmp_path: Path, pairs: bool, longest: int, unit: str) -> None:
    made = make(tmp_path / "a.zarr", sentences=12, pairs=pairs, longest=longest, several=True, unit=unit)
    task = join_task(made.store, **made.splits)
    split = task.splits["train"]
    layers = list(made.store.layers)
    shape = EdgeShape(len(layers), 12, len(split.spans), len(task.labels), projection=7, hidden_size=9)
    allowed = np.concatenate([cumulative(len(layers)), np.eye(len(layers), dtype=bool)[2:3]])
    seeds = np.array([0, 0, 5, 0, 1, 1])
    bank = EdgeBank.initial(shape, allowed, seeds, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for tensor in bank.weights.values():  # so that no weight is one that could stand for another
        tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.3).requires_grad_()
    order = np.random.default_rng(0).permutation(split.sentences)
    batches = list(iter_batches(made.store, split, order, layers, batch_size=3, device=CPU))
    assert sorted(np.concatenate([batch.targets for batch in batches]).tolist()) == list(range(len(split)))
    # a batch is good until the next: compute while they come
    vectors = torch.from_numpy(made.vectors)
    for number, batch in enumerate(iter_batches(made.store, split, order, layers, batch_size=3, device=CPU)):
        found = bank.logits(batch)
        bank.losses(batch).sum().backward()
        gold = torch.from_numpy(split.gold[batch.targets]).float()
        spans = [[tuple(kind[target].tolist()) for kind in split.spans] for target in batch.targets]
        for place in range(len(bank)):
            alone = {name: tensor[place].detach().clone().requires_grad_() for name, tensor in bank.weights.items()}
            own = np.flatnonzero(allowed[place]).tolist()
            logits = logits_of_one(alone, own, vectors, spans)
            torch.testing.assert_close(found[place], logits, atol=2e-5, rtol=1e-4)
            loss_of_one(logits, gold).backward()
            for name, tensor in alone.items():
                slope = bank.weights[name].grad
                expected = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                got = torch.zeros_like(tensor) if slope is None else slope[place]
                torch.testing.assert_close(got, expected, atol=2e-6, rtol=2e-4, msg=f"{name} of {place}, {number}")
        for tensor in bank.weights.values():
            tensor.grad = None


def test_a_batch_has_the_rows_of_its_spans_in_any_order_of_the_task(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=30, pairs=True, longest=3)
    rng = np.random.default_rng(1)  # sentences in another order than the store's, and some twice
    asked = {name: [held[place] for place in rng.integers(0, len(held), 20)] for name, held in made.splits.items()}
    split = join_task(made.store, **asked).splits["train"]
    order, seen = rng.permutation(split.sentences), 0
    for batch in iter_batches(made.store, split, order, list(made.store.layers), batch_size=5, device=CPU):
        for kind, columns in zip(split.spans, batch.spans, strict=True):
            of = np.arange(len(batch)) if columns.of is None else columns.of.numpy()
            for target, span in zip(batch.targets.tolist(), of.tolist(), strict=True):
                places = columns.places[columns.begin[span] : columns.begin[span + 1]]
                wanted = made.vectors[:, slice(*kind[target])].astype(made.store.vector_dtype)
                np.testing.assert_array_equal(batch.stored[:, places].numpy(), wanted)
                seen += 1
    assert seen == 2 * len(split)


def test_probes_trained_together_are_those_trained_alone(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=24, planted=1, layers=(0, 1, 2))
    task = join_task(made.store, **made.splits)
    shape = EdgeShape(3, 12, 1, len(task.labels), projection=8, hidden_size=8)
    stream = Stream(made.store, (0, 1, 2), 4, CPU)
    training = EdgeTraining(epochs=12, batch_size=4, learning_rate=0.03, patience=1)
    both = [task.splits["train"], task.splits["dev"]]
    bank = EdgeBank.initial(shape, cumulative(3), np.array([0, 0, 0]), device=CPU)
    together = train_edges(bank, stream, *both, training=training)
    assert len(set(together.epochs.tolist())) > 1, "some stop before others, who go on with what Adam knew of them"
    for place in range(3):
        alone = EdgeBank.initial(shape, cumulative(3)[place : place + 1], np.array([0]), device=CPU)
        found = train_edges(alone, stream, *both, training=training)
        assert found.epochs[0] == together.epochs[place]
        assert found.dev_loss[0] == pytest.approx(together.dev_loss[place], rel=1e-3)
        for name, tensor in found.bank.weights.items():
            torch.testing.assert_close(tensor[0], together.bank.weights[name][place], atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_planted_signal_is_found_where_it_was_planted(tmp_path: Path, pairs: bool) -> None:
    made = make(tmp_path / "a.zarr", pairs=pairs)
    found = probe(made, epochs=16, patience=None, learning_rate=0.01, mixing_rate=0.1, batch_size=8, layerwise=True)
    baseline = value(found, "majority_f1")
    for layer in (0, 1, 2):
        assert value(found, "f1", layer=layer) < baseline + 0.2
        assert value(found, "layer_f1", layer=layer) < baseline + 0.2
    assert value(found, "f1", layer=3) > 0.9
    assert value(found, "layer_f1", layer=3) > 0.9
    assert value(found, "layer_f1", layer=4) < baseline + 0.2
    assert value(found, "layer_f1", layer=0) == value(found, "f1", layer=0)
    weights = found.mixing_weights()
    assert weights.argmax() == 3
    assert value(found, "center_of_gravity", "train") == pytest.approx(weights @ np.arange(5))
    assert value(found, "center_of_gravity", "train") == pytest.approx(3, abs=0.6)
    gained = [value(found, "differential", layer=layer) for layer in (1, 2, 3, 4)]
    assert int(np.argmax(gained)) == 2
    assert value(found, "expected_layer") == pytest.approx(3, abs=0.6)
    assert value(found, "mixing_kl", "train") > 0.2


def test_shuffled_labels_give_nothing_above_the_majority(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", shuffled=True, sentences=120)
    found = probe(made, epochs=6, learning_rate=0.01, mixing_rate=0.1, batch_size=16)
    # 72 targets of three labels: two standard errors of an accuracy of a third are 0.11
    assert all(value(found, "f1", layer=layer) < value(found, "majority_f1") + 0.13 for layer in range(5))


def test_scores_are_those_of_the_probabilities(tmp_path: Path) -> None:
    for several in (False, True):
        made = make(tmp_path / f"{several}.zarr", sentences=40, several=several)
        found = probe(made, epochs=3, learning_rate=0.01, batch_size=8)
        assert found.task.single != several
        targets = [target for sentence in made.splits["test"] for target in sentence.targets]
        gold = [set(target.labels) for target in targets]
        chances = found.probabilities("test")
        for layer in range(5):
            names = found.task.labels
            half = [{names[n] for n in np.flatnonzero(row >= 0.5)} for row in chances[layer]]
            likeliest = [{names[int(row.argmax())]} for row in chances[layer]]
            assert value(found, "half_f1", layer=layer) == pytest.approx(f1_of(half, gold))
            assert value(found, "f1", layer=layer) == pytest.approx(f1_of(half if several else likeliest, gold))
        assert set(found.frame.filter(pl.col("split") == "test")["count"]) == {sum(map(len, gold))}


def test_f1_and_majority_by_hand() -> None:
    tally = EdgeTally(np.array([3, 0, 0]), np.array([4, 2, 0]), 6)
    assert tally.f1().tolist() == [0.6, 0.0, 0.0]
    assert np.isnan(EdgeTally(np.array([0]), np.array([0]), 0).f1()).all()
    gold = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 1, 1]], bool)
    split = EdgeSplit("train", np.array([0, 4]), (), gold, np.array([0, 0, 0, 1]))
    assert majority(split, single=True).tolist() == [True, False, False]
    # of 4 targets with 8 labels: one label 2*3/(4+8), two 2*6/(8+8), three 2*7/(12+8)
    assert majority(split, single=False).tolist() == [True, True, False]
    assert constant_counts(majority(split, single=False), split).tally.f1().tolist() == [0.75]


def test_the_same_seed_gives_the_same_and_several_seeds_are_one_batch(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1, 2), planted=1)
    once = probe(made, epochs=2, seeds=(0, 3), batch_size=4)
    assert once.frame.equals(probe(made, epochs=2, seeds=(0, 3), batch_size=4).frame)
    for seed in (0, 3):
        one = probe(made, epochs=2, seeds=(seed,), batch_size=4).frame.filter(pl.col("metric") == "mixing")
        many = once.frame.filter(pl.col("metric") == "mixing", pl.col("seed") == seed)
        np.testing.assert_allclose(many["value"], one["value"], atol=1e-5)
    means = once.summary().filter(pl.col("metric") == "mixing")
    assert means["seeds"].to_list() == [2, 2, 2]
    assert means["deviation"].null_count() == 0


def test_samples_hold_smaller_ones_and_are_drawn_by_text() -> None:
    every = [EdgeSentence([f"w{number}"], []) for number in range(50)]
    small, large = sample_sentences(every, 5, seed=1), sample_sentences(every, 20, seed=1)
    assert len(small) == 5
    assert [each for each in large if each in small] == small
    assert sample_sentences(every[::-1], 5, seed=1) == small[::-1]
    assert sample_sentences(every, 5, seed=2) != small
    assert sample_sentences(every, None) == every


def test_spans_are_joined_by_the_positions_of_words(tmp_path: Path) -> None:
    words = [["a", "b", "c"], ["d", "a"], ["a", "b", "c"]]
    vectors = np.zeros((1, 7, 2), np.float32)
    store = write_store(tmp_path / "a.zarr", words, vectors, (0,), without=[(0, 1)])
    targets = [
        EdgeTarget((0, 1), None, ("x",)),
        EdgeTarget((1, 2), None, ("x",)),  # no row
        EdgeTarget((0, 3), None, ("y",)),  # one of three words without a row
        EdgeTarget((2, 3), None, ("y",)),
    ]
    train = [EdgeSentence(["d", "a"], [EdgeTarget((1, 2), None, ("x",))]), EdgeSentence(["a", "b", "c"], targets)]
    test = [EdgeSentence(["d", "a"], [EdgeTarget((0, 2), None, ("z",)), EdgeTarget((0, 1), None, ("x", "z"))])]
    task = join_task(store, train=train, test=test, name="task")
    assert task.splits["train"].spans[0].tolist() == [[3, 4], [0, 1], [0, 2], [1, 2]]
    assert task.splits["train"].first.tolist() == [0, 1, 4]
    assert task.labels == ("x", "y")
    assert task.splits["test"].gold.tolist() == [[False, False], [True, False]]
    assert task.splits["test"].unknown.tolist() == [1, 1]
    assert task.notes == (
        "task: train: 1 targets are left out: the store has no row of one of their spans",
        "task: train: 1 targets have words without a row, and are read without these",
        "task: test: 2 labels that train does not have count as missed: z",
    )


def one(words: str, *targets: EdgeTarget) -> list[EdgeSentence]:
    return [EdgeSentence(words.split(" "), targets)]


def test_what_cannot_be_probed_is_one_line(tmp_path: Path) -> None:
    store = write_store(tmp_path / "a.zarr", [["a", "b c"], ["d", "a"]], np.zeros((2, 4, 2), np.float32), (0, 2))
    x, y = EdgeTarget((0, 1), None, ("x",)), EdgeTarget((1, 2), None, ("y",))
    mixed = EdgeTarget((0, 1), (1, 2), ("y",))
    good = one("d a", x, y)
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: probe_edges(store, train=one("d b", x), dev=good),
            r"edges: train: 'd b' is not a sentence of .*a.zarr, where the nearest is 'd a'",
        ),
        (lambda: probe_edges(store, train=one("a b c", x), dev=good), "word 1 of 'a b c' is 'b', in the store 'b c'"),
        (lambda: probe_edges(store, train=[], dev=good), "edges: train has no target"),
        (lambda: probe_edges(store, train=good, dev=one("d a")), "edges: dev has no target"),
        (lambda: probe_edges(store, train=good, dev=one("d a", EdgeTarget((1, 3), None, ("x",)))),
         r"edges: dev: the span \[1, 3\] is not within the 2 words of 'd a'"),
        (lambda: probe_edges(store, train=one("d a", x), dev=good), "train has 1 labels"),
        (lambda: probe_edges(store, train=one("d a", x, mixed), dev=good), "some targets have two spans and some one"),
        (lambda: probe_edges(store, train=good, dev=good, layers=[0, 1]), "layer 1 is not stored"),
        (lambda: probe_edges(store, train=good), "patience 3 needs dev targets"),
        (lambda: probe_edges(store, train=good, dev=good, seeds=(0, 0)), "seeds must be one or more, each once"),
        (lambda: probe_edges(store, train=good, dev=good, seeds=(-1,)), "seed -1 is not allowed"),
        (lambda: probe_edges(store, train=good, dev=good, sentences=0), "sentences 0 is not allowed"),
        (lambda: probe_edges(store, train=good, dev=good, dropout=1.0), "dropout 1.0 is not allowed"),
        (lambda: probe_edges(store, train=good, dev=good, projection=0), "projection 0 is not allowed"),
        (lambda: probe_edges(store, train=good, dev=good, mixing_rate=0.0), "mixing_rate 0.0 is not allowed"),
    ]  # fmt: skip
    for call, message in cases:
        with pytest.raises(InvalidValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_values_that_are_not_finite_are_told_with_their_row(tmp_path: Path) -> None:
    vectors = np.zeros((2, 4, 2), np.float32)
    vectors[1, 3] = np.nan
    store = write_store(tmp_path / "a.zarr", [["a", "b"], ["d", "a"]], vectors, (0, 2))
    both = one("d a", EdgeTarget((0, 1), None, ("x",)), EdgeTarget((1, 2), None, ("y",)))
    with pytest.raises(NonFiniteError, match=r"layer 2, row 3 of .*a.zarr holds a value that is not finite"):
        probe_edges(store, train=both, epochs=1, patience=None)


def test_labels_are_those_made(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=30)
    files = made.write(tmp_path / "colours")
    found = probe_edges(made.store, **files, epochs=1, device="cpu", **SMALL)
    assert found.task.labels == tuple(sorted(LABELS))
    assert set(found.frame["task"]) == {"colours"}
    sampled = probe_edges(made.store, **files, epochs=1, device="cpu", sentences=4, **SMALL)
    assert "colours: train: 4 of 18 sentences, drawn with seed 0" in sampled.notes


class _Interrupted(Exception):
    pass


def test_an_interrupted_training_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=24, planted=1, layers=(0, 1, 2))
    options: dict[str, Any] = {"epochs": 9, "patience": 1, "learning_rate": 0.03, "batch_size": 4}
    whole = probe(made, **options)
    assert len(set(whole.trained.epochs.tolist())) > 1, "some probes have stopped before others"
    path = tmp_path / "training"
    for stop in (15, 40, 70):  # of 9 x 14 sentences: in the second epoch, the third and the fifth

        def interrupt(done: int, total: int, stop: int = stop) -> None:
            if stop <= done < total:
                raise _Interrupted

        with pytest.raises(_Interrupted):
            probe(made, **options, checkpoint=path, progress=interrupt)
    begun: list[int] = []
    again = probe(made, **options, checkpoint=path, progress=lambda done, total: begun.append(done))
    assert begun[0] > 14 * 4, "it has gone on, not begun again"
    assert again.frame.equals(whole.frame)
    assert all(torch.equal(again.trained.bank.weights[name], each) for name, each in whole.trained.bank.weights.items())
    done: list[int] = []
    assert probe(made, **options, checkpoint=path, progress=lambda at, total: done.append(at)).frame.equals(whole.frame)
    assert len(done) == 1, "nothing is left to train"


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1), planted=1)
    path = tmp_path / "training"
    probe(made, epochs=1, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(InvalidValueError, match="is of another training"):
        probe(made, epochs=1, seeds=(1,), checkpoint=path)
    assert path.read_bytes() == before
    path.write_bytes(b"something")
    with pytest.raises(InvalidValueError, match="is no checkpoint of edge probes"):
        probe(made, epochs=1, checkpoint=path)
    with pytest.raises(InvalidValueError, match="is a folder"):
        probe(made, epochs=1, checkpoint=tmp_path)
    with pytest.raises(InvalidValueError, match="does not exist"):
        probe(made, epochs=1, checkpoint=tmp_path / "none" / "training")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zarr", "training"]
