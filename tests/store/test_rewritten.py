"""Rows of Zarr arrays that another tool has written again are read; what cannot be read is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from embstore.errors import StoreDamagedError
from embstore.store import Store, export, open_store, verify
from tests.store.example import DTYPES, Example, example


def check_reading(made: Example, store: Store) -> None:
    rows = np.random.default_rng(0).integers(0, store.n_rows, 300)
    np.testing.assert_array_equal(store.vectors(rows), made.values[:, rows])
    for place, layer in enumerate(store.layers):
        for first, block in store.scan(layer, 5, store.n_rows - 3, block_rows=97):
            np.testing.assert_array_equal(block, made.values[place, first : first + len(block)])


def write_again(path: Path, name: str, **options: Any) -> None:
    """Write one array again with zarr-python, with the same values and attributes."""
    before = zarr.open_array(str(path / name), mode="r")
    values, attributes, fill = before[...], dict(before.attrs), before.fill_value
    shutil.rmtree(path / name)
    array = zarr.create_array(
        str(path / name), shape=values.shape, dtype=values.dtype, fill_value=fill, attributes=attributes, **options
    )
    array[...] = values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shards", [(3, 512, 16), None])
def test_compressed_arrays_in_other_chunks(tmp_path: Path, dtype: str, shards: tuple[int, ...] | None) -> None:
    made = example(rows=3000, dtype=dtype, partition_rows=512)  # more partitions than are held at a time
    path = made.make(tmp_path / "s.zarr").path
    write_again(path, "hidden_states", chunks=(1, 128, 16), shards=shards)
    if dtype == "int8":
        write_again(path, "scale", chunks=(2, 100))
    check_reading(made, open_store(path))
    assert not verify(path).ok
    check_reading(made, export(path, tmp_path / "copy.zarr"))
    assert verify(tmp_path / "copy.zarr").ok


def test_shards_in_another_order(tmp_path: Path) -> None:
    """zarr-python writes the chunks of a shard in Morton order, under the same zarr.json."""
    made = example(rows=900, partition_rows=512)
    path = made.make(tmp_path / "s.zarr").path
    ours = (path / "hidden_states/c/0/0/0").read_bytes()
    array = zarr.open_array(str(path / "hidden_states"), mode="r+")
    array[...] = array[...]
    assert (path / "hidden_states/c/0/0/0").read_bytes() != ours
    check_reading(made, open_store(path))


@pytest.mark.parametrize("options", [{"shape": (3, 100, 16)}, {"dtype": "float32"}])
def test_another_array_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = example().make(tmp_path / "s.zarr").path
    shutil.rmtree(path / "hidden_states")
    zarr.create_array(
        str(path / "hidden_states"), **{"shape": (3, 700, 16), "dtype": "float16", "chunks": (1, 10, 16), **options}
    )
    with pytest.raises(StoreDamagedError, match="hidden_states was changed and cannot be read"):
        open_store(path).vectors([0])


def test_what_the_library_would_wait_for_is_refused(tmp_path: Path) -> None:
    path = example(rows=900, partition_rows=512).make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    write_again(path, "hidden_states", chunks=(1, 128, 16), shards=None)
    node = path / "hidden_states/zarr.json"
    plain = node.read_text()
    node.write_text(plain + " " * 2**16)
    with pytest.raises(StoreDamagedError, match=r"a zarr\.json of 6\d,\d+ bytes"):
        open_store(path).vectors([0])
    node.write_text(plain)
    chunk = path / "hidden_states/c/0/0/0"
    chunk.unlink()
    os.mkfifo(chunk)
    with pytest.raises(StoreDamagedError, match="it is a pipe or device, not a file"):
        open_store(path).vectors([0])
    assert not verify(path).ok
