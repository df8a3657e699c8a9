"""Batched edge probes against one probe in plain torch, and within the memory that was allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.devices import torch_threads
from embstore.errors import NonFiniteError
from embstore.probes.edges.batches import EdgeSplit, iter_batches
from embstore.probes.edges.model import EdgeBank, EdgeShape, Kind, dropout_factors
from embstore.probes.edges.tasks import join_edges, join_task
from embstore.probes.edges.training import EdgeStream, iter_logits, train_edges
from embstore.probes.training import Schedule
from tests.probes.edge_store import Made, make, write_edges, write_store
from tests.probes.oracle import logits_of_one, loss_of_one

CPU = torch.device("cpu")


def train_split(made: Made) -> EdgeSplit:
    return join_task(made.store, made.splits["train"]).train


@pytest.mark.parametrize(
    ("kind", "pairs", "longest", "unit"),
    [
        ("mlp", False, 1, "word"), ("mlp", False, 3, "word"), ("mlp", True, 1, "word"), ("mlp", True, 3, "subword"),
        ("linear", False, 1, "word"), ("linear", True, 3, "subword"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch_size", [3, 12])  # of fewer and of more targets than numbers in a vector
@pytest.mark.quick(3)
def test_batched_probes_have_the_logits_and_gradients_of_one_alone(
    tmp_path: Path, kind: Kind, pairs: bool, longest: int, unit: str, batch_size: int
) -> None:
    made = make(tmp_path / "a.zarr", sentences=12, pairs=pairs, longest=longest, several=True, unit=unit)
    split, layers = train_split(made), list(made.store.layers)
    shape = EdgeShape(len(layers), 12, len(split.spans), split.gold.shape[1], 9, kind)
    allowed = np.concatenate([np.tri(len(layers), dtype=bool), np.eye(len(layers), dtype=bool)[2:3]])
    bank = EdgeBank(shape, allowed, np.array([0, 0, 5, 0, 1, 1])).take(np.arange(6))
    bound = 1 / np.sqrt(shape.n_read)
    assert 0.8 * bound < float(bank.weights["output"].abs().max()) < bound
    generator = torch.Generator().manual_seed(0)
    for tensor in bank.weights.values():  # so that no two weights are equal
        tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.3).requires_grad_()
    order = np.random.default_rng(0).permutation(split.n_sentences)
    vectors, seen = torch.from_numpy(made.vectors), []
    for batch in iter_batches(made.store, split, order, layers, batch_size=batch_size, device=CPU):
        seen += batch.targets.tolist()
        found = bank.logits(batch)
        bank.losses(batch).sum().backward()
        gold = torch.from_numpy(split.gold[batch.targets]).float()
        spans = [[tuple(kind[target].tolist()) for kind in split.spans] for target in batch.targets]
        for number in range(len(bank)):
            alone = {name: tensor[number].detach().clone().requires_grad_() for name, tensor in bank.weights.items()}
            logits = logits_of_one(alone, np.flatnonzero(allowed[number]).tolist(), vectors, spans)
            torch.testing.assert_close(found[number], logits, atol=2e-5, rtol=1e-4)
            loss_of_one(logits, gold).backward()
            for name, tensor in alone.items():
                gradient = bank.weights[name].grad
                expected = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                own = torch.zeros_like(tensor) if gradient is None else gradient[number]
                torch.testing.assert_close(own, expected, atol=2e-6, rtol=2e-4, msg=f"{name} of {number}")
        for tensor in bank.weights.values():
            tensor.grad = None
    assert sorted(seen) == list(range(len(split)))


@pytest.mark.parametrize("kind", ["mlp", "linear"])
@pytest.mark.quick(1)
def test_probes_trained_together_equal_those_trained_alone(tmp_path: Path, kind: Kind) -> None:
    made = make(tmp_path / "a.zarr", sentences=24, planted=1, layers=(0, 1, 2))
    task = join_task(made.store, made.splits["train"], made.splits["dev"])
    stream = EdgeStream(made.store, (0, 1, 2), Schedule(epochs=12, batch_size=4, learning_rate=0.03, patience=1))
    shape = EdgeShape(3, 12, 1, 3, 8, kind)
    bank = EdgeBank(shape, np.tri(3, dtype=bool), np.array([0, 0, 0]))
    together = train_edges(bank, stream, task.train, task.dev)
    assert len(set(together.epochs.tolist())) > 1, "some probes stop before others"
    for number in range(3):
        alone = train_edges(bank.take(np.array([number])), stream, task.train, task.dev)
        assert alone.epochs[0] == together.epochs[number]
        assert alone.dev_loss[0] == pytest.approx(together.dev_loss[number], rel=1e-3)
        for name, tensor in alone.weights.items():
            torch.testing.assert_close(tensor[0], together.weights[name][number], atol=2e-3, rtol=1e-2)


def test_the_order_of_sentences_and_dropout_depend_on_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, planted=1, layers=(0, 1))
    data = train_split(made)
    seen: dict[int, list[list[int]]] = {}
    losses, factors = EdgeBank.losses, []

    def spy(self: EdgeBank, batch: Any, *, mask: Any = None) -> torch.Tensor:
        seen.setdefault(int(self.seeds[0]), []).append(batch.targets.tolist())
        assert set(self.seeds.tolist()) == {int(self.seeds[0])}, "the probes of a seed together"
        factors.append(float(mask.sum()))
        return losses(self, batch, mask=mask)

    monkeypatch.setattr(EdgeBank, "losses", spy)
    shape = EdgeShape(2, 12, 1, 3, 8)
    bank = EdgeBank(shape, np.tile(np.tri(2, dtype=bool), (2, 1)), np.array([0, 0, 5, 5]))
    train_edges(bank, EdgeStream(made.store, (0, 1), Schedule(2, 4)), data, None)
    for seed, order in seen.items():
        epochs = [[target for batch in part for target in batch] for part in (order[:3], order[3:])]
        assert [sorted(each) for each in epochs] == [list(range(len(data)))] * 2
        first = np.random.default_rng((0, seed, 1)).permutation(data.n_sentences)[:4]
        targets = [target for s in sorted(first.tolist()) for target in range(data.first[s], data.first[s + 1])]
        assert order[0] == targets
    assert seen[0] != seen[5]
    assert factors[:6] != factors[6:]


def test_dropout_depends_on_its_key_only() -> None:
    mask = dropout_factors(0.25, (4, 1000), key=(0, 1, 2), device=CPU)
    again, other = (dropout_factors(0.25, (4, 1000), key=key, device=CPU) for key in ((0, 1, 2), (5, 1, 2)))
    assert mask is not None
    assert mask.shape == (1, 4, 1000)
    assert torch.equal(mask, again)
    assert not torch.equal(mask, other)
    assert mask.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float((mask == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert dropout_factors(0.0, (4, 1000), key=(1, 2), device=CPU) is None


def test_batches_have_the_rows_of_their_spans_in_any_order(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=30, pairs=True, longest=3, dtype="float16")
    rng = np.random.default_rng(1)  # sentences in another order than the store's, and some twice
    sentences = [made.splits["train"][place] for place in rng.integers(0, len(made.splits["train"]), 20)]
    split = join_task(made.store, sentences).train
    order, seen = rng.permutation(split.n_sentences), 0
    for batch in iter_batches(made.store, split, order, list(made.store.layers), batch_size=5, device=CPU):
        for kind, columns in zip(split.spans, batch.spans, strict=True):
            of = np.arange(len(batch)) if columns.of is None else columns.of.numpy()
            assert columns.single == (len(columns.places) == columns.n_spans)
            assert len({*zip(columns.begin[:-1].tolist(), columns.begin[1:].tolist(), strict=True)}) == columns.n_spans
            for target, span in zip(batch.targets.tolist(), of.tolist(), strict=True):
                places = columns.places[columns.begin[span] : columns.begin[span + 1]]
                wanted = made.vectors[:, slice(*kind[target])].astype(np.float16)
                np.testing.assert_array_equal(batch.vectors[:, places].numpy(), wanted)
                seen += 1
    assert seen == 2 * len(split)


def test_parts_of_a_split_are_its_targets(tmp_path: Path) -> None:
    split = train_split(make(tmp_path / "a.zarr", sentences=20, layers=(0,), planted=None, pairs=True))
    part = split.part(np.array([7, 2, 2]))
    sentence = np.repeat(np.arange(split.n_sentences), np.diff(split.first))
    wanted = np.concatenate([np.flatnonzero(sentence == number) for number in (2, 2, 7)])
    assert part.first.tolist() == [0, 3, 6, 9]
    assert (part.gold == split.gold[wanted]).all()
    assert all((own == each[wanted]).all() for own, each in zip(part.spans, split.spans, strict=True))
    assert len(part.unknown) == 9


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_reported_with_their_row(tmp_path: Path, dtype: str, wrong: float) -> None:
    largest = np.finfo(dtype).max
    vectors = np.full((2, 4, 70), largest, np.float32)
    vectors[1, :, ::3] = -largest
    vectors[1, 2, 4] = 6e-8  # subnormal
    words = [["a", "b"], ["d", "a"]]
    made = Made(write_store(tmp_path / "a.zarr", words, vectors, (0, 2), dtype=dtype), {}, vectors, np.array([0, 2, 4]))
    split = EdgeSplit(np.array([0, 1, 2]), (np.array([[0, 2], [2, 4]]),), np.ones((2, 1), bool), np.zeros(2))

    def read(store: Any) -> int:
        return len(list(iter_batches(store, split, np.arange(2), (0, 2), batch_size=2, device=CPU)))

    assert read(made.store) == 1, "large values are finite"
    vectors[1, 3, 69] = wrong
    store = write_store(tmp_path / "b.zarr", words, vectors, (0, 2), dtype=dtype)
    with pytest.raises(NonFiniteError, match=r"layer 2, row 3 of .*b.zarr, .*, holds a value that is not finite"):
        read(store)


MEMORY = 48 * 2**20

CHILD = """
import json, sys, threading, time
import numpy as np
import torch
import embstore as es

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

torch.set_num_threads(1)
store, train, dev, memory = es.open(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) or "4GiB"
settings = {"hidden_size": 64, "layerwise": True}
settings["training"] = es.probes.Training(epochs=1, batch_size=8)
few = list(es.corpus.read_edges(train))[:20]
es.probes.EdgeProbe(**settings).fit(store, few, few).score(few)  # imports and allocates what is kept
before, peak, done = anonymous(), [0], threading.Event()
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
es.config(memory=memory)
probe = es.probes.EdgeProbe(**settings).fit(store, train, dev)
result = probe.score(dev)
done.set()
watcher.join()
weights = {name: tensor.double().sum().item() for name, tensor in probe.fitted_.trained.weights.items()}
print(json.dumps({"grown": peak[0] - before, "weights": weights, "values": result.frame["value"].to_list()}))
"""


@pytest.mark.slow
def test_probes_in_groups_equal_those_trained_together(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=30, planted=1, layers=(0, 1, 2), pairs=True)
    task = join_task(made.store, made.splits["train"], made.splits["dev"])
    test = join_edges(made.store, made.splits["test"], task.labels).split
    shape = EdgeShape(3, 12, 2, 3, hidden_size=8)
    schedule = Schedule(epochs=5, batch_size=4, learning_rate=0.03, patience=1)
    bank = EdgeBank(shape, np.tile(np.tri(3, dtype=bool), (2, 1)), np.array([0, 0, 0, 5, 5, 5]))
    whole = EdgeStream(made.store, (0, 1, 2), schedule)
    with torch_threads(1):
        together = train_edges(bank, whole, task.train, task.dev)
        seen = set()
        for memory in (75_000, 90_000, 300_000, 2**30):
            stream = EdgeStream(made.store, (0, 1, 2), replace(schedule, memory=memory))
            n_groups = len(stream.groups(bank, task.train, task.dev))
            seen.add(n_groups)
            reports: list[int] = []
            found = train_edges(
                bank, stream, task.train, task.dev, progress=lambda done, total, reports=reports: reports.append(done)
            )
            assert reports == sorted(reports)
            assert found.epochs.tolist() == together.epochs.tolist()
            np.testing.assert_allclose(found.dev_loss, together.dev_loss, rtol=1e-5)
            for name, tensor in found.weights.items():
                torch.testing.assert_close(tensor, together.weights[name], atol=1e-5, rtol=1e-4, msg=name)
            both = (iter_logits(bank, each, test) for each in (stream, whole))
            for (_, one), (_, other) in zip(*both, strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    assert {2, 6} <= seen, "the probes of a seed together, and one by one"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_a_store_larger_than_the_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [[f"w{number}", *(f"v{each}" for each in range(39))] for number in range(1000)]
    vectors = (rng.random((3, 40_000, 640), np.float32) - 0.5).astype(np.float16)
    store = write_store(tmp_path / "a.zarr", words, vectors, (0, 1, 2), dtype="float16", partition_rows=16_384)
    assert vectors.nbytes > 3 * MEMORY
    targets = [EdgeTarget((start, start + 10), None, ("xyz"[start % 3],)) for start in (0, 10, 20, 30)]
    edges = [EdgeSentence(sentence, targets) for sentence in words]
    parts = {"train": edges[300:], "dev": edges[:300]}
    files = [write_edges(tmp_path / f"{name}.jsonl", part) for name, part in parts.items()]
    # glibc returns freed memory at once, so that the process has what is in use and not what was.
    trimmed = {"MALLOC_MMAP_THRESHOLD_": "524288", "MALLOC_TRIM_THRESHOLD_": "1048576", "OMP_NUM_THREADS": "1"}
    environment = os.environ | trimmed
    found = []
    for memory in (MEMORY, 0):
        command = [sys.executable, "-c", CHILD, *map(str, (store.path, *files, memory))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    bounded, whole = found
    for name, total in whole["weights"].items():
        assert bounded["weights"][name] == pytest.approx(total, rel=1e-4, abs=1e-3), name
    assert len(bounded["values"]) == len(whole["values"])
    assert bounded["grown"] < MEMORY, bounded["grown"]
