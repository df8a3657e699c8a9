"""zarr-python, TensorStore, xarray and h5py read the same values, in a process that never imports embstore."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.store.example import DTYPES, Example, example

SCRIPT = Path(__file__).with_name("foreign_readers.py")
TOOLS = [("zarr", ".zarr"), ("tensorstore", ".zarr"), ("xarray", ".zarr"), ("h5py", ".h5"), ("h5netcdf", ".h5")]


def read_by(tool: str, path: Path) -> dict[str, list[str]]:
    command = [sys.executable, "-W", "error::UserWarning", str(SCRIPT), tool, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    seen: dict[str, list[str]] = json.loads(done.stdout)
    return seen


def described(array: NDArray[Any]) -> list[str]:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return [*map(str, (array.dtype, *array.shape)), digest]


def expected(made: Example, *, nested: bool) -> dict[str, list[str]]:
    arrays: dict[str, NDArray[Any]] = {**made.arrays, "layer": np.array(made.metadata.layers, np.int32)}
    if made.center is not None:
        arrays["center"] = made.center
    if nested:
        arrays |= made.index.arrays()
        arrays["type/occurrences"] = np.argsort(made.index.type, kind="stable")
        counts = np.bincount(made.index.type, minlength=len(made.index.words))
        arrays["type/indptr"] = np.concatenate([[0], np.cumsum(counts)])
    return {name: described(array) for name, array in arrays.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tool", "suffix"), TOOLS)
def test_other_tools_read_the_same(tmp_path: Path, tool: str, suffix: str, dtype: str) -> None:
    module = "xarray" if tool == "h5netcdf" else tool
    if find_spec(module) is None or (tool == "h5netcdf" and find_spec("h5netcdf") is None):
        pytest.skip(f"{tool} is not installed")
    made = example(dtype=dtype, rows=700)
    seen = read_by(tool, made.make(tmp_path / f"s{suffix}").path)
    for name, description in expected(made, nested=tool != "h5netcdf").items():
        assert seen[name] == description, name
    assert seen["commits"][:3] == ["uint64", "3", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "suffix"), TOOLS[:4])
def test_large_columns(tmp_path: Path, tool: str, suffix: str) -> None:
    made = example(rows=140_000, layers=(0, 1), hidden_size=1, partition_rows=65_536)
    seen = read_by(tool, made.make(tmp_path / f"s{suffix}").path)
    for name, description in expected(made, nested=True).items():
        assert seen[name] == description, name


@pytest.mark.parametrize("tool", ["zarr", "tensorstore", "xarray"])
def test_rows_that_are_not_written_are_nan(tmp_path: Path, tool: str) -> None:
    made = example()
    path = made.create(tmp_path / "s.zarr")
    made.fill(path, [1])
    holes = made.values.copy()
    holes[:, :256] = holes[:, 512:] = np.nan
    seen = read_by(tool, path)
    assert seen["hidden_states"] == described(holes)
    records = np.full((3, 2), 2**64 - 1, np.uint64)
    assert seen["commits"][-1] != described(records)[-1]
