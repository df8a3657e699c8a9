"""Rows of Zarr arrays that another tool has written again are read; what cannot be read is refused."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr
import zstandard
from zarr import codecs

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
@pytest.mark.quick(2)
def test_compressed_arrays_in_other_chunks(tmp_path: Path, dtype: str, shards: tuple[int, ...] | None) -> None:
    made = example(rows=3000, dtype=dtype, partition_rows=512)  # more partitions than are held at a time
    path = made.make(tmp_path / "s.zarr").path
    write_again(path, "hidden_states", chunks=(1, 128, 16), shards=shards)
    if dtype == "int8":
        write_again(path, "scale", chunks=(2, 100))
    (path / "hidden_states/.index").mkdir()
    (path / "hidden_states/.index/large").write_bytes(bytes(2**22))  # a chunk would be refused
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
    node.write_text(plain.replace('"zstd"', '"numcodecs.zlib"'))
    with pytest.raises(StoreDamagedError, match=r"the codec 'numcodecs\.zlib'"):
        open_store(path).vectors([0])
    node.write_text(plain)
    chunk = path / "hidden_states/c/0/0/0"
    chunk.unlink()
    os.mkfifo(chunk)
    with pytest.raises(StoreDamagedError, match="it is a pipe or device, not a file"):
        open_store(path).vectors([0])
    assert not verify(path).ok


@pytest.mark.parametrize("shards", [(3, 512, 16), None])
@pytest.mark.parametrize("codec", ["gzip", "zstd", "zstd of unknown length", "blosc"])
@pytest.mark.quick(4)
def test_a_chunk_that_would_become_many_more_bytes_is_refused(tmp_path: Path, codec: str, shards: Any) -> None:
    """A quarter of a GiB of zeros in a few kB, where a chunk has 4 kB; whole chunks of the same codec are read."""
    made = example(rows=900, partition_rows=512)
    path = Path(made.make(tmp_path / "s.zarr").path)
    zeros, stream = np.zeros(2**28, np.uint8), zstandard.ZstdCompressor().compressobj()  # take no memory
    compressor, bomb = {
        "gzip": (codecs.GzipCodec(), lambda: gzip.compress(zeros, 1)),
        "zstd": (codecs.ZstdCodec(), lambda: zstandard.compress(zeros, 1)),
        "zstd of unknown length": (codecs.ZstdCodec(), lambda: stream.compress(zeros) + stream.flush()),
        "blosc": (codecs.BloscCodec(), lambda: numcodecs.blosc.compress(zeros, b"zstd", 1, 0)),
    }[codec]
    write_again(path, "hidden_states", chunks=(1, 128, 16), shards=shards, compressors=compressor)
    check_reading(made, open_store(path))
    chunk, data = path / "hidden_states/c/0/0/0", bomb()
    if codec == "zstd of unknown length" and shards is None:  # as other libraries write it
        again, plain = zstandard.ZstdCompressor().compressobj(), zstandard.decompress(chunk.read_bytes())
        chunk.write_bytes(again.compress(plain) + again.flush())
        check_reading(made, open_store(path))
    if shards is not None:  # in the place of the first of 12 chunks, which the index at the end names
        whole = chunk.read_bytes()
        pairs = np.frombuffer(whole[-12 * 16 - 4 : -4], "<u8").copy()
        pairs[:2] = len(whole), len(data)
        data = whole + data + pairs.tobytes() + google_crc32c.value(pairs.tobytes()).to_bytes(4, "little")
    chunk.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreDamagedError, match="hidden_states was changed and cannot be read"):
        open_store(path).vectors([0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
