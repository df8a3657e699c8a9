"""The memory that an operation takes does not grow with the rows of a store whose vocabulary is the same."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import embstore as es

ROWS = (400_000, 1_200_000)
SIZE = 4


def peak(work: Callable[[], object]) -> int:
    """The most that Python and NumPy held at a time; pages of mapped files are not counted."""
    work()  # loads what is to be loaded
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_reading_takes_as_much_for_any_number_of_rows(tmp_path: Path, suffix: str) -> None:
    """In bytes a row more: a list of all rows would be 8. The digests of texts are 56 for each sentence of 20 words."""
    queries = np.ones((3, SIZE), np.float32)
    peaks: dict[str, list[int]] = {}
    for n_rows in ROWS:
        path = tmp_path / f"{n_rows}{suffix}"
        rng, n_words = np.random.default_rng(0), 20
        sentences = [[f"w{word}" for word in words] for words in rng.integers(0, 100, (n_rows // n_words, n_words))]
        vectors = (rng.standard_normal((1, n_words, SIZE), np.float32) for _ in sentences)
        es.store.write_arrays(path, sentences, vectors, model="random")
        works = {
            "verify": lambda path=path: es.verify(path),
            "scan": lambda path=path: sum(len(block) for _, block in es.open(path).scan(0)),
            "search": lambda path=path: es.neighbors(es.open(path), queries),
            "geometry": lambda path=path: es.geometry(es.open(path), metrics=("selfsim", "anisotropy")),
        }
        with es.config(threads=1):
            for name, work in works.items():
                peaks.setdefault(name, []).append(peak(work))
    grown = {name: (large - small) / (ROWS[1] - ROWS[0]) for name, (small, large) in peaks.items()}
    assert all(abs(grown[name]) < 2 for name in ("verify", "scan", "search")), grown
    assert grown["geometry"] < 3.5, grown


READING = """
import sys
from pathlib import Path
from embstore.corpus import open_corpus
n_rows = sum(1 for _ in open_corpus(sys.argv[1], split="lines", words="spaces"))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(n_rows, status["VmHWM"].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc with the peak of a process")
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_table_of_any_number_of_rows_is_read_in_as_much_memory(tmp_path: Path, suffix: str) -> None:
    """400,000 rows of 200 random characters: 80 MB more, of which a third is allowed."""
    peaks = []
    for n_rows in (50_000, 450_000):
        digits = random.Random(1).randbytes(100 * n_rows).hex()
        frame = pl.DataFrame({"text": [digits[at : at + 200] for at in range(0, len(digits), 200)]})
        del digits
        path = tmp_path / f"a.{suffix}"
        if suffix == "parquet":
            frame.write_parquet(path, row_group_size=10_000)
        else:
            (frame.write_csv if suffix == "csv" else frame.write_ndjson)(path)
        del frame
        found = subprocess.run([sys.executable, "-c", READING, path], capture_output=True, text=True, check=True)
        counted, peak_kib = map(int, found.stdout.split())
        assert counted == n_rows
        peaks.append(peak_kib)
    assert peaks[1] - peaks[0] < 27 * 1024, peaks
