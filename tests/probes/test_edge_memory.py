"""Edge probes in groups that fit a memory budget: the same probes, and no more memory than was allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.devices import torch_threads
from embstore.errors import InvalidValueError
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.edges.tasks import join_edges, join_task
from embstore.probes.edges.training import EdgeStream, iter_logits, train_edges
from embstore.probes.training import Schedule
from tests.probes.edge_store import make, write_edges, write_store

CPU = torch.device("cpu")
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
es.EdgeProbe(**settings).fit(store, few, few).score(few)  # imports and allocates what is kept
before, peak, done = anonymous(), [0], threading.Event()
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
es.config(memory=memory)
probe = es.EdgeProbe(**settings).fit(store, train, dev)
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


def test_memory_that_one_probe_does_not_fit_is_one_line(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20)
    task = join_task(made.store, made.splits["train"], made.splits["dev"])
    shape = EdgeShape(5, 12, 1, 3, hidden_size=8)
    bank = EdgeBank(shape, np.tri(5, dtype=bool), np.zeros(5, np.int64))
    stream = EdgeStream(made.store, range(5), Schedule(1, 4, memory=20_000))
    with pytest.raises(
        InvalidValueError,
        match=r"memory 0\.0 MB is not enough: one probe, with the vectors of a batch, takes [\d.]+ MB",
    ):
        train_edges(bank, stream, task.train, task.dev)


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
