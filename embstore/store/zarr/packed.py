"""The compressed columns of a virtual store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.arrays import ArraySpec
from embstore.store.storage.base import KeyNotFoundError, Storage
from embstore.store.storage.files import REPAIR_HINT
from embstore.store.zarr.format import PACKED_LEVEL, packed_keys, packed_rows


def packed(spec: ArraySpec, array: NDArray[Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the chunks of a column by their keys; the last of several is filled up."""
    import zstandard

    n_rows, compress = packed_rows(spec), zstandard.ZstdCompressor(PACKED_LEVEL).compress
    for number, key in enumerate(packed_keys(spec)):
        chunk = np.ascontiguousarray(array[number * n_rows : (number + 1) * n_rows])
        if len(chunk) < n_rows:
            chunk = np.append(chunk, np.full(n_rows - len(chunk), spec.fill, spec.dtype))
        yield key, compress(chunk.astype(spec.packed, copy=False).tobytes())


def unpacked(storage: Storage, spec: ArraySpec) -> Iterator[NDArray[Any]]:
    """Yield the values of a column in order, chunk by chunk. Raises StoreDamagedError where one is not whole."""
    import zstandard

    left, nbytes = spec.shape[0], packed_rows(spec) * spec.packed.itemsize
    for key in packed_keys(spec):
        try:
            data = storage.get(key)
            if zstandard.frame_content_size(data) != nbytes:
                raise StoreDamagedError(f"{storage.url(key)} was changed, it has another size: {REPAIR_HINT}")
            chunk = np.frombuffer(zstandard.ZstdDecompressor().decompress(data), spec.packed)
        except KeyNotFoundError as error:
            raise StoreDamagedError(f"{error}, a column of the store: {REPAIR_HINT}") from None
        except zstandard.ZstdError as error:
            raise StoreDamagedError(f"{storage.url(key)} was changed ({error}): {REPAIR_HINT}") from None
        yield chunk[:left].astype(spec.dtype, copy=False)
        left -= len(chunk)
