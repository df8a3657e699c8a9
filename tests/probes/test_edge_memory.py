"""Edge probes in groups that fit the memory: the same probes, and no more memory than was allowed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.errors import InvalidValueError
from embstore.probes.edges.columns import LargestBatch, SplitPlan
from embstore.probes.edges.memory import EdgeMemory
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.edges.tasks import EdgeTask, join_task
from embstore.probes.edges.training import EdgeTraining, Stream, iter_logits, train_edges
from embstore.probes.mixing import cumulative
from embstore.store import Store
from tests.probes.edge_store import make, write_edges, write_store

CPU = torch.device("cpu")
MEMORY = 36 * 2**20

CHILD = """
import json, sys, threading, time
import numpy as np
import torch
import embstore as es
from embstore.probes.edges.edges import probe_edges

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

torch.set_num_threads(1)
store, files, memory = es.open(sys.argv[1]), {"train": sys.argv[2], "dev": sys.argv[3]}, int(sys.argv[4]) or None
options = {"projection": 64, "hidden_size": 64, "epochs": 1, "batch_size": 8, "layerwise": True, "device": "cpu"}
probe_edges(store, **files, **options, sentences=20, memory=2**30)  # loads what is to be loaded
before, peak, done = anonymous(), [0], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
found = probe_edges(store, **files, **options, memory=memory)
done.set()
watcher.join()
weights = {name: tensor.double().sum().item() for name, tensor in found.trained.bank.weights.items()}
print(json.dumps({"grown": peak[0] - before, "weights": weights, "values": found.frame["value"].to_list()}))
"""


def largest_of(task: EdgeTask, batch_size: int) -> LargestBatch:
    return SplitPlan.of(task.splits["train"]).largest(batch_size) | SplitPlan.of(task.splits["dev"]).largest(batch_size)


def needs(store: Store, shape: EdgeShape, task: EdgeTask, batch_size: int, probes: int) -> EdgeMemory:
    return EdgeMemory.of(shape, probes, largest_of(task, batch_size), store)


def test_probes_in_groups_are_those_trained_together(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=30, planted=1, layers=(0, 1, 2), pairs=True)
    task = join_task(made.store, **made.splits)
    both = (task.splits["train"], task.splits["dev"])
    shape = EdgeShape(3, 12, 2, len(task.labels), projection=8, hidden_size=8)
    training = EdgeTraining(epochs=5, batch_size=4, learning_rate=0.03, patience=1)
    bank = EdgeBank.initial(shape, np.tile(cumulative(3), (2, 1)), np.array([0, 0, 0, 5, 5, 5]), device=CPU)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        together = train_edges(bank, Stream(made.store, (0, 1, 2), 4, CPU), *both, training=training)
        need = needs(made.store, shape, task, 4, 6)
        for each, files in ((1, 6), (2, 3), (5, 2)):
            memory = need.rooms + need.held + each * need.training
            stream = Stream(made.store, (0, 1, 2), 4, CPU, memory)
            assert len(stream.training_groups(shape, 6, *both)) == files
            told: list[int] = []
            path = tmp_path / str(each) / "kept.pt"
            path.parent.mkdir()
            found = train_edges(
                bank,
                stream,
                *both,
                training=training,
                checkpoint=path,
                progress=lambda at, total, told=told: told.append(at),
            )
            assert told == sorted(told)
            assert len(list(path.parent.iterdir())) == files
            assert found.epochs.tolist() == together.epochs.tolist()
            np.testing.assert_allclose(found.dev_loss, together.dev_loss, rtol=1e-5)
            for name, tensor in found.bank.weights.items():
                torch.testing.assert_close(tensor, together.bank.weights[name], atol=1e-5, rtol=1e-4, msg=name)
            asked = [logits for _, logits in iter_logits(found.bank, stream, task.splits["test"])]
            plain = Stream(made.store, (0, 1, 2), 4, CPU)
            for one, other in zip(asked, iter_logits(found.bank, plain, task.splits["test"]), strict=True):
                torch.testing.assert_close(one, other[1], atol=1e-6, rtol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_memory_that_one_probe_does_not_fit_is_one_line(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20)
    task = join_task(made.store, **made.splits)
    shape = EdgeShape(5, 12, 1, len(task.labels), projection=8, hidden_size=8)
    bank = EdgeBank.initial(shape, cumulative(5), np.zeros(5, np.int64), device=CPU)
    need = needs(made.store, shape, task, 4, 5)
    stream = Stream(made.store, range(5), 4, CPU, need.rooms + need.held + need.training - 1)
    with pytest.raises(InvalidValueError, match=r"memory [\d.]+ kB is not enough: one probe takes [\d.]+ kB") as told:
        train_edges(bank, stream, task.splits["train"], task.splits["dev"], training=EdgeTraining())
    assert "\n" not in str(told.value)
    with pytest.raises(InvalidValueError, match=re.escape("memory 0 is not allowed")):
        Stream(made.store, range(5), 4, CPU, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_a_store_larger_than_the_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [[f"w{number}", *(f"v{each}" for each in range(39))] for number in range(1000)]
    vectors = (rng.random((3, 40_000, 640), np.float32) - 0.5).astype(np.float16)
    store = write_store(tmp_path / "a.zarr", words, vectors, (0, 1, 2), dtype="float16", partition_rows=16_384)
    assert store.n_rows * store.layout.row_nbytes > 4 * MEMORY
    targets = [EdgeTarget((start, start + 10), None, ("xyz"[start % 3],)) for start in (0, 10, 20, 30)]
    edges = [EdgeSentence(sentence, targets) for sentence in words]
    files = [
        write_edges(tmp_path / f"{name}.jsonl", part) for name, part in (("train", edges[300:]), ("dev", edges[:300]))
    ]
    found = []
    for memory in (MEMORY, 0):
        command = [sys.executable, "-c", CHILD, *map(str, (store.path, *files, memory))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    bounded, whole = found
    for name, total in whole["weights"].items():
        assert bounded["weights"][name] == pytest.approx(total, rel=1e-4, abs=1e-3), name
    assert len(bounded["values"]) == len(whole["values"])
    assert bounded["grown"] < MEMORY, bounded["grown"]
