"""Arrays that another tool has written again, in shards, chunks or compression of its own, read by the Zarr library."""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError, quoted
from embstore.store.arrays import ArraySpec
from embstore.store.storage.files import REPAIR_HINT, MappedFile, regular_file
from embstore.store.zarr.format import NODE, ShardShape

MAX_DECODED = 4  # partitions that are held in memory, of some 64 MiB each
_MAX_NODE_NBYTES = 2**16  # a chain of thousands of codecs would take hours
_MAX_NBYTES = 2**30  # of a shard, and of a chunk, which is decoded whole: more than any has is taken for a hostile file
_NAMES = {"regular", "default", "v2", "bytes", "transpose", "sharding_indexed", "crc32c", "gzip", "zstd", "blosc"}


class DecodedFile(MappedFile):
    """The bytes of a shard as embstore writes it, without its index, in memory."""

    is_file = False

    def __init__(self, path: Path, data: NDArray[Any]) -> None:
        self.path, self.is_own = str(path), True
        self.map = mmap.mmap(-1, data.nbytes)
        self.map[:] = data.tobytes()
        self._hold()
        self.size = lambda: self.nbytes  # of a map without a file the system knows none


def decode(folder: Path, spec: ArraySpec, span: tuple[int, int], shape: ShardShape) -> DecodedFile:
    """Read rows `[start, stop)` of all layers of an array by the library, or raise StoreDamagedError."""
    import zarr

    path, (start, stop) = folder / spec.path, span
    try:
        if shape.nbytes > _MAX_NBYTES:
            raise ValueError(f"a shard of {shape.nbytes:,} bytes")
        if (nbytes := regular_file(path / NODE).stat().st_size) > _MAX_NODE_NBYTES:
            raise ValueError(f"a {NODE} of {nbytes:,} bytes")
        node = json.loads((path / NODE).read_bytes())
        kinds = set(re.findall('"name": "([^"]*)', json.dumps(node)))  # of codecs, at any depth
        largest = node["chunk_grid"]["configuration"]["chunk_shape"]
        for parent, folders, names in os.walk(path):
            folders[:] = [folder for folder in folders if folder[0] != "."]  # search indexes and labels
            for name in names:  # the library would wait for a pipe without end, and read a file of any size
                if (nbytes := regular_file(Path(parent, name)).stat().st_size) > _limit(largest):
                    raise ValueError(f"a file {name} of {nbytes:,} bytes")
        if unknown := kinds - _NAMES:  # others may be codecs whose output has no bound
            raise ValueError(f"the codec {quoted(min(unknown))}")
        n_rows = shape.layer_nbytes // spec.row_nbytes
        with zarr.config.set(_bounded_codecs()):
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


def _limit(shape: Sequence[int]) -> int:
    return 8 * math.prod(shape) + 2**20  # twice the bytes of float32, and the index of a shard


@cache
def _bounded_codecs() -> dict[str, str]:
    """Register codecs that refuse what would become many more bytes than a chunk has; return the settings for them."""
    from numcodecs import zstd
    from zarr import codecs, registry

    settings = {}
    for name, base in (("gzip", codecs.GzipCodec), ("zstd", codecs.ZstdCodec), ("blosc", codecs.BloscCodec)):

        async def decode(self: Any, chunk: Any, spec: Any, *, name: str = name, base: Any = base) -> Any:
            data, limit = chunk.to_bytes(), _limit(spec.shape)
            nbytes = int.from_bytes(data[4:8], "little") if name == "blosc" else 0
            rest = data if name == "gzip" else b""
            while rest and nbytes <= limit:
                member = zlib.decompressobj(31)
                nbytes += len(member.decompress(rest, limit + 1 - nbytes))
                rest = member.unused_data
            if nbytes > limit:
                raise ValueError(f"a chunk of {nbytes:,} bytes or more, of {list(spec.shape)}")
            if name == "zstd":
                try:
                    zstd.decompress(data, np.empty(limit, np.uint8))
                except Exception:  # also where its header does not say how long it is: then it must be exact
                    exact = math.prod(spec.shape) * np.asarray(spec.fill_value).itemsize
                    zstd.decompress(data, np.empty(exact, np.uint8))
            return await base._decode_single(self, chunk, spec)

        bounded = type(f"Bounded{base.__name__}", (base,), {"_decode_single": decode, "__module__": __name__})
        registry.register_codec(name, bounded)
        settings[f"codecs.{name}"] = f"{__name__}.{bounded.__qualname__}"
    return settings
