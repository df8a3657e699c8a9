"""Stores with arrays that another tool has rewritten are read correctly, mapped or through the library."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from embstore.errors import StoreDamagedError, StoreFormatError
from embstore.store import Store, StoreWriter, export, open_store, verify
from embstore.store.backend import open_reader
from embstore.store.reading.mapped import LibraryRows, MappedRows
from tests.store.example import DTYPES, Example, example


def check_reading(made: Example, store: Store) -> None:
    rows = np.random.default_rng(0).integers(0, store.n_rows, 300)
    np.testing.assert_array_equal(store.vectors(rows), made.values[:, rows])
    np.testing.assert_array_equal(store.vectors(np.sort(rows)), made.values[:, np.sort(rows)])
    for place, layer in enumerate(store.layers):
        for first, block in store.scan(layer, 5, store.n_rows - 3, block_rows=97):
            np.testing.assert_array_equal(block, made.values[place, first : first + len(block)])
    for name, array in made.index.arrays().items():
        np.testing.assert_array_equal(store.index.arrays()[name], array)


def write_again(path: Path, name: str, **options: Any) -> None:
    """Rewrite one array with zarr-python, with the same values and attributes."""
    before = zarr.open_array(str(path / name), mode="r")
    values, attributes, fill = before[...], dict(before.attrs), before.fill_value
    names = before.metadata.dimension_names
    shutil.rmtree(path / name)
    array = zarr.create_array(
        str(path / name),
        shape=values.shape,
        dtype=values.dtype,
        fill_value=fill,
        attributes=attributes,
        dimension_names=names,
        **options,
    )
    array[...] = values


def kind_of_rows(path: Path) -> type:
    return type(open_reader(path).rows("hidden_states", 0, 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.quick(1)
def test_morton_order_without_compressor_is_mapped(tmp_path: Path, dtype: str) -> None:
    """zarr-python puts the chunks of a shard in Morton order; inner chunks of other sizes are no matter."""
    made = example(rows=900, dtype=dtype, partition_rows=512)
    for rows in (64, 256, 512):
        path = made.make(tmp_path / f"s{rows}.zarr").path
        ours = (path / "hidden_states/c/0/0/0").read_bytes()
        write_again(path, "hidden_states", shards=(3, 512, 16), chunks=(1, rows, 16), compressors=None)
        assert (path / "hidden_states/c/0/0/0").read_bytes() != ours
        assert kind_of_rows(path) is MappedRows
        check_reading(made, open_store(path))
        assert not verify(path).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.quick(1)
def test_default_compressor_falls_back_to_zarr(tmp_path: Path, dtype: str, sharded: bool) -> None:
    made = example(rows=900, dtype=dtype, partition_rows=512)
    path = made.make(tmp_path / "s.zarr").path
    options: dict[str, Any] = {"chunks": (1, 128, 16)}
    if sharded:
        options["shards"] = (3, 512, 16)
    write_again(path, "hidden_states", **options)
    if dtype == "int8":
        write_again(path, "scale", chunks=(2, 100))
    assert kind_of_rows(path) is LibraryRows
    check_reading(made, open_store(path))
    check_reading(made, export(path, tmp_path / "copy.zarr"))


def test_chunks_of_all_fill_that_are_left_out(tmp_path: Path) -> None:
    made = example(rows=900, dtype="float32", partition_rows=512)
    made.arrays["hidden_states"][1, 256:512] = np.nan
    made.arrays["hidden_states"][2, 512:] = np.nan
    path = made.make(tmp_path / "s.zarr").path
    write_again(path, "hidden_states", shards=(3, 512, 16), chunks=(1, 128, 16), compressors=None)
    store = open_store(path)
    assert kind_of_rows(path) is MappedRows
    rows = np.arange(900)[::-1]
    np.testing.assert_array_equal(store.vectors(rows, layers=3)[0], made.values[1, rows])
    scanned = np.concatenate([block.copy() for _, block in store.scan(5, block_rows=300)])
    np.testing.assert_array_equal(scanned, made.values[2])


def test_every_column_written_again(tmp_path: Path) -> None:
    made = example(rows=900)
    path = made.make(tmp_path / "s.zarr").path
    for node in sorted(path.rglob("zarr.json")):
        name = node.parent.relative_to(path).as_posix()
        if '"array"' in node.read_text() and name != "commits":
            shape = zarr.open_array(str(node.parent)).shape
            write_again(path, name, chunks=tuple(max(size // 2, 1) for size in shape))
    check_reading(made, open_store(path))


def test_a_foreign_array_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = example().make(tmp_path / "s.zarr").path
    shutil.rmtree(path / "hidden_states")
    zarr.create_array(str(path / "hidden_states"), shape=(3, 100, 16), dtype="float16", chunks=(1, 10, 16))
    with pytest.raises(StoreDamagedError, match=r"hidden_states/zarr\.json cannot be read"):
        open_store(path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.slow
def test_hdf5_chunks_elsewhere(tmp_path: Path, dtype: str) -> None:
    """A copy by the HDF5 library, compressed or in chunks of another size."""
    made = example(rows=900, dtype=dtype, partition_rows=512)
    for number, options in enumerate(
        [{"chunks": (1, 100, 16)}, {"chunks": (1, 300, 16), "compression": "gzip"}, {}, {"chunks": (2, 64, 8)}]
    ):
        path = made.make(tmp_path / f"s{number}.h5").path
        with h5py.File(path, "r+") as file:
            for name in ("hidden_states", "scale", "occurrences/type"):
                if name in file:
                    values = file[name][...]
                    del file[name]
                    rank = {"chunks": options["chunks"][: values.ndim]} if "chunks" in options else {}
                    if values.ndim == 1:
                        rank = {"chunks": (100,)}
                    file.create_dataset(name, data=values, **{**options, **rank})
        check_reading(made, open_store(path))
        assert not verify(path).ok


def test_an_hdf5_file_whose_every_array_was_compressed_is_read_and_not_written(tmp_path: Path) -> None:
    """As by h5repack."""
    made = example()
    path = made.make(tmp_path / "s.h5").path
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            values = file[name][...]
            if values.ndim and file[name].id.get_storage_size():
                del file[name]
                file.create_dataset(name, data=values, chunks=values.shape, compression="gzip")
    store = open_store(path)
    np.testing.assert_array_equal(store.vectors(np.arange(700)), made.values)
    assert store.table().equals(made.make(tmp_path / "t.h5").table())
    with pytest.raises(StoreFormatError, match="was rewritten by another tool: it can be read, but not written"):
        StoreWriter(path)
