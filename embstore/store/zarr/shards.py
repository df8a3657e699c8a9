"""The shard of format 1: inner chunks one after the other, then where each stands, then a checksum of that."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.storage.files import MEND, Bytes, crc32c

ABSENT = 2**64 - 1
_PAIR_NBYTES = 16
_CRC_NBYTES = 4


def shard_index(chunks: tuple[int, int], written: int, chunk_nbytes: int) -> bytes:
    """Return the end of a shard of `chunks` (outer, inner) of which the first `written` inner ones are there.

    Chunks stand in C order without gaps; the end is (offset, nbytes) a chunk and the CRC32C of these pairs.
    """
    outer, inner = chunks
    pairs = np.full((outer, inner, 2), ABSENT, "<u8")
    places = np.arange(outer * written, dtype=np.uint64).reshape(outer, written)
    pairs[:, :written, 0] = places * np.uint64(chunk_nbytes)
    pairs[:, :written, 1] = chunk_nbytes
    index = pairs.tobytes()
    return index + crc32c(index).to_bytes(_CRC_NBYTES, "little")


def index_nbytes(chunks: tuple[int, int]) -> int:
    """The bytes at the end of a shard that say where its chunks are."""
    return chunks[0] * chunks[1] * _PAIR_NBYTES + _CRC_NBYTES


def parse_index(
    shard: Bytes, chunks: tuple[int, int], chunk_nbytes: int, *, name: str, size: int | None = None
) -> NDArray[np.int64]:
    """Return where each inner chunk [outer, inner] stands in a shard, -1 where it is left out.

    `shard`: its bytes, or only the last of its `size`. Raises StoreDamagedError where the checksum differs or
    a chunk does not fit.
    """
    nbytes = index_nbytes(chunks) - _CRC_NBYTES
    size = len(shard) if size is None else size
    if len(shard) < nbytes + _CRC_NBYTES:
        raise StoreDamagedError(f"{name} is cut short: {len(shard)} bytes hold no index of {nbytes}: {MEND}")
    index = shard[len(shard) - nbytes - _CRC_NBYTES : len(shard) - _CRC_NBYTES]
    stored = int.from_bytes(shard[-_CRC_NBYTES:].tobytes(), "little")
    if crc32c(index) != stored:
        raise StoreDamagedError(f"the index of {name} is damaged, its checksum differs: {MEND}")
    pairs: NDArray[Any] = np.frombuffer(index.tobytes(), "<u8").reshape(*chunks, 2)
    offsets, sizes = pairs[..., 0], pairs[..., 1]
    absent = (offsets == ABSENT) & (sizes == ABSENT)
    limit = size - nbytes - _CRC_NBYTES
    fits = (sizes == chunk_nbytes) & (offsets <= max(limit - chunk_nbytes, 0)) & (limit >= chunk_nbytes)
    if not (absent | fits).all():
        raise StoreDamagedError(f"the index of {name} names bytes that it does not have: {MEND}")
    places: NDArray[np.int64] = np.where(absent, np.uint64(0), offsets).astype(np.int64) - absent
    return places
