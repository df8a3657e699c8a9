"""zarr-python, TensorStore, xarray (HDF5 by h5netcdf) and h5py read the same values, without importing embstore."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.store.example import DTYPES, Example, example
from tests.store.foreign_readers import described

SCRIPT = Path(__file__).with_name("foreign_readers.py")
TOOLS = [("zarr", ".zarr"), ("tensorstore", ".zarr"), ("xarray", ".zarr"), ("h5py", ".h5"), ("xarray", ".h5")]
Seen = dict[str, list[str]]


def read_by(tool: str, *paths: Path) -> list[Seen]:
    """What a tool sees in each store."""
    command = [sys.executable, "-W", "error::UserWarning", str(SCRIPT), tool, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=paths[0].parent)
    assert done.returncode == 0, done.stderr
    seen: list[Seen] = json.loads(done.stdout)
    return seen


@pytest.fixture(scope="module")
def seen_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Seen]]:
    """What a tool sees in the stores of every dtype, read in one process."""

    @cache
    def seen(tool: str, suffix: str) -> dict[str, Seen]:
        folder = tmp_path_factory.mktemp(tool)
        paths = [example(dtype=dtype, rows=700).make(folder / f"{dtype}{suffix}").path for dtype in DTYPES]
        return dict(zip(DTYPES, read_by(tool, *paths), strict=True))

    return seen


def expected(made: Example) -> Seen:
    arrays: dict[str, NDArray[Any]] = {**made.arrays, "layer": np.array(made.metadata.layers, np.int32)}
    if made.center is not None:
        arrays["center"] = made.center
    arrays |= made.index.arrays()
    arrays["types/occurrences"] = np.argsort(made.index.type, kind="stable")
    counts = np.bincount(made.index.type, minlength=len(made.index.words))
    arrays["types/indptr"] = np.concatenate([[0], np.cumsum(counts)])
    return {name: described(array) for name, array in arrays.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tool", "suffix"), TOOLS)
@pytest.mark.quick(1)
def test_other_tools_read_the_same(
    seen_by: Callable[[str, str], dict[str, Seen]], tool: str, suffix: str, dtype: str
) -> None:
    made = example(dtype=dtype, rows=700)
    seen = seen_by(tool, suffix)[dtype]
    for name, description in expected(made).items():
        assert seen[name] == description, name
    assert seen["commits"][:3] == ["uint64", "3", "2"]


@pytest.mark.parametrize("tool", ["zarr", "tensorstore", "xarray"])
@pytest.mark.slow
def test_rows_that_are_not_written_are_nan(tmp_path: Path, tool: str) -> None:
    made = example()
    path = made.create(tmp_path / "s.zarr")
    made.fill(path, [1])
    holes = made.values.copy()
    holes[:, :256] = holes[:, 512:] = np.nan
    (seen,) = read_by(tool, path)
    assert seen["hidden_states"] == described(holes)
    records = np.full((3, 2), 2**64 - 1, np.uint64)
    assert seen["commits"][-1] != described(records)[-1]
