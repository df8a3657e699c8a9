"""The memory that an operation takes does not grow with the rows of a store whose vocabulary is the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.bench.made import write_stores

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
        write_stores([path], n_rows=n_rows, n_layers=1, hidden_size=SIZE, n_types=100)
        works = {
            "verify": lambda path=path: es.verify(path, progress=False),
            "scan": lambda path=path: sum(len(block) for _, block in es.open(path).scan(0)),
            "search": lambda path=path: es.neighbors(es.open(path), vectors=queries, threads=1, progress=False),
            "geometry": lambda path=path: es.geometry(
                es.open(path), metrics=("selfsim", "anisotropy"), threads=1, progress=False
            ),
        }
        for name, work in works.items():
            peaks.setdefault(name, []).append(peak(work))
    grown = {name: (large - small) / (ROWS[1] - ROWS[0]) for name, (small, large) in peaks.items()}
    assert all(abs(grown[name]) < 2 for name in ("verify", "scan", "search")), grown
    assert grown["geometry"] < 3.5, grown
