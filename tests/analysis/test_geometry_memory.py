"""A store four times larger than the memory that geometry may take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embstore.analysis.geometry.measure import geometry
from embstore.config import config
from tests.analysis.word_store import write_words

MEMORY = 48 * 2**20

CHILD = """
import json, sys, threading, time
import embstore as es

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

store = es.open(sys.argv[1])
es.config(memory=2**20)
es.geometry(store.select(rows=range(3000)), min_contexts=2)  # loads what is to be loaded
before, peak, done = anonymous(), [0], threading.Event()
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
es.config(memory=int(sys.argv[2]) or "1GiB")
table = es.geometry(store, min_contexts=2)
done.set()
watcher.join()
print(json.dumps({"grown": peak[0] - before, "value": table["value"].to_list(), "item": table["item"].to_list()}))
"""


def run(path: Path, memory: int) -> dict[str, object]:
    # glibc returns freed memory at once, so that the process has what is in use and not what was.
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "524288",
        "MALLOC_TRIM_THRESHOLD_": "1048576",
        "OMP_NUM_THREADS": "2",
    }
    command = [sys.executable, "-c", CHILD, str(path), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_a_store_four_times_the_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(2, 5, 23_000)
    vectors = np.split(rng.normal(size=(counts.sum(), 768)).astype(np.float32) + 1, np.cumsum(counts)[:-1])
    words = [(f"word{number}", array) for number, array in enumerate(vectors)]
    made = write_words(tmp_path / "store.zarr", words)
    assert made.store.n_rows * made.store.source.layout.row_nbytes > 4 * MEMORY
    bounded, whole = run(made.store.path, MEMORY), run(made.store.path, 0)
    assert bounded["item"] == whole["item"]
    np.testing.assert_allclose(
        np.array(bounded["value"], np.float64), np.array(whole["value"], np.float64), rtol=1e-6, atol=1e-6
    )
    assert bounded["grown"] < MEMORY, bounded["grown"]
    assert bounded["grown"] < whole["grown"] / 2  # type: ignore[operator]


def test_the_words_are_done_in_parts_where_the_memory_is_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = write_words(tmp_path / "store.h5", [(f"word{number}", rng.normal(size=(4, 8))) for number in range(300)])
    whole = geometry(made.store, min_contexts=2, metrics="selfsim")
    with config(memory=3000):
        part = geometry(made.store, min_contexts=2, metrics="selfsim")
    assert part.drop("value", "baseline", "adjusted").equals(whole.drop("value", "baseline", "adjusted"))
    np.testing.assert_allclose(part["value"], whole["value"], atol=1e-7)
