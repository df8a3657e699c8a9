"""Arrays that another tool has written again, in shards, chunks or compression of its own, read by the Zarr library."""

from __future__ import annotations

import json
import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import ArraySpec
from embstore.store.storage.files import REPAIR_HINT, MappedFile, regular_file
from embstore.store.zarr.format import NODE, ShardShape

MAX_DECODED = 4  # partitions that are held in memory, of some 64 MiB each
_MAX_NODE_NBYTES = 2**16  # a chain of thousands of codecs would take hours
_MAX_NBYTES = 2**30  # of a shard, and of a chunk, which is decoded whole: more than any has is taken for a hostile file


class DecodedFile(MappedFile):
    """The bytes of a shard as embstore writes it, without its index, in memory."""

    def __init__(self, path: Path, data: NDArray[Any]) -> None:
        self.path, self.is_own = str(path), True
        self.map = mmap.mmap(-1, data.nbytes)
        self.map[:] = data.tobytes()
        self._hold()
        self.size = lambda: self.nbytes  # of a map without a file the system knows none


def decode(folder: Path, spec: ArraySpec, span: tuple[int, int], shape: ShardShape) -> DecodedFile:
    """Read rows `[start, stop)` of all layers of an array by the library.

    Raises StoreDamagedError where it cannot, or where the array is another one than the store has.
    """
    import zarr

    path, (start, stop) = folder / spec.path, span
    try:
        if shape.nbytes > _MAX_NBYTES:
            raise ValueError(f"a shard of {shape.nbytes:,} bytes")
        for parent, _, names in os.walk(path):
            for name in names:
                regular_file(Path(parent, name))  # the library would wait for a pipe without end
        n_rows = shape.layer_nbytes // spec.row_nbytes
        node = (path / NODE).read_bytes()
        largest = json.loads(node)["chunk_grid"]["configuration"]["chunk_shape"]
        if len(node) > _MAX_NODE_NBYTES:
            raise ValueError(f"a {NODE} of {len(node):,} bytes")
        array = zarr.open_array(str(path), mode="r", zarr_format=3)
        same = (array.shape, array.dtype) == (spec.shape, spec.dtype)
        if not same or math.prod(largest) * spec.dtype.itemsize > _MAX_NBYTES:
            raise ValueError(f"{list(array.shape)} of {array.dtype} in chunks of {largest}")
        data = np.full((spec.shape[0], n_rows, *spec.shape[2:]), spec.fill, spec.dtype)
        data[:, : stop - start] = array[:, start:stop]
    except Exception as error:  # the library raises errors of many kinds
        reason = " ".join(str(error).split())[:200]
        raise StoreDamagedError(f"{path} was changed and cannot be read ({reason}): {REPAIR_HINT}") from None
    return DecodedFile(path, data)
