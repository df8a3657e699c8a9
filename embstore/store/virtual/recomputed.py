"""The partitions that a virtual store does not keep: computed again when they are read, checked and cached."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import recomputing
from embstore.errors import InvalidValueError, RecomputedWarning, StoreDamagedError
from embstore.store.arrays import FINGERPRINT_SIZE, payload_specs, virtual_specs
from embstore.store.metadata import Metadata
from embstore.store.storage.base import Parts, Storage
from embstore.store.storage.cache import SIZE_GIB, CacheFolder, Expected, cached_names
from embstore.store.storage.files import crc32c, crc32c_of_spans, opened, write_at
from embstore.store.storage.objects import setting
from embstore.store.virtual.fingerprints import STEP, difference, fingerprints
from embstore.store.zarr.format import column_key, shard_parts, shard_shape

NEAR = " near"  # ends the name of a file whose last bits are others than those committed

_AT_ONCE = threading.RLock()  # the threads of a process share the model


class Recomputed:
    """The shards of partitions that are computed again, as files in the folder of the cache.

    `reader`: of the store. A file appears once it is whole and checked, by one rename, so that processes may share the
    folder and be killed. EMBSTORE_CACHE_GIB (64) bounds it; the least recently used are removed.
    """

    def __init__(self, reader: Any) -> None:
        self.folder = default_folder()
        self._reader = reader
        self._storage: Storage = reader.storage
        self._metadata: Metadata = reader.metadata
        self._expected: Callable[[int], Expected | None] = reader.expected_again
        self._nbytes = int(setting("EMBSTORE_CACHE_GIB", SIZE_GIB) * 2**30)
        self._cache = CacheFolder(self.folder, self._nbytes)
        self._computed: set[int] = set()

    @property
    def max_partitions(self) -> int:
        """The partitions that the cache holds."""
        largest = max(layout.partition_nbytes for layout in self._metadata.layouts)
        return max(1, self._nbytes // largest)

    def files(self, number: int) -> list[Path]:
        """Return the files of a partition's shards; it is computed again unless they are in the cache."""
        return self._found(number)[0]

    def crc32c(self, number: int) -> int | None:
        """Return the CRC32C of a partition as it is in the cache; None where its last bits differ from the commit's."""
        paths, is_exact = self._found(number)
        expected = self._expected(number)
        assert expected is not None
        crc = 0
        for path, size in zip(paths, expected.sizes, strict=True):
            with opened(path) as descriptor:
                crc, _ = crc32c_of_spans(descriptor, [(0, size)], crc)
        return crc if is_exact else None

    def damaged_files(self, number: int) -> list[Path]:
        """Compare the files of a partition that are in the cache; returns those that are damaged, and are removed."""
        if (expected := self._expected(number)) is not None:
            self._cached(expected, again=True)
        return self._cache.take_damaged()

    def _found(self, number: int) -> tuple[list[Path], bool]:
        expected = self._expected(number)
        assert expected is not None
        if (size := sum(expected.sizes)) > self._nbytes:
            raise InvalidValueError(
                f"a partition of {self._storage.path} has {size:,} bytes, more than the cache of {self._nbytes:,}: set "
                "EMBSTORE_CACHE_GIB to more"
            )
        for is_last in (False, False, True):
            files = self._cached(expected)
            warn_of_cache(self._cache.take_damaged())
            if files:
                if not files[1]:
                    warn_of_last_bits(self._storage.path)
                return files
            if is_last:
                break
            with _AT_ONCE:
                if not self._cached(expected):
                    self._recompute(number)
        raise StoreDamagedError(
            f"{self.folder} has lost a file that was just written there: set EMBSTORE_CACHE_GIB to more, or choose "
            "another folder by EMBSTORE_CACHE"
        )

    def _cached(self, expected: Expected, *, again: bool = False) -> tuple[list[Path], bool] | None:
        for is_exact in (True, False):
            paths = self._cache.find_all(cached_names(expected, "" if is_exact else NEAR), again=again)
            if paths is not None:
                return paths, is_exact
        return None

    def _recompute(self, requested: int) -> None:
        """Compute a partition and those that are encoded together with it; the one that is wanted stays the newest."""
        request = self._expected(requested)
        assert request is not None
        size = self._metadata.n_rows * self._metadata.row_nbytes
        if requested in self._computed and size > self._nbytes:
            warnings.warn(
                f"rows of {self._storage.path} are computed more than once: its {size:,} bytes exceed the cache of "
                f"{self._nbytes:,}; set EMBSTORE_CACHE_GIB to more",
                RecomputedWarning,
                stacklevel=2,
            )
        self._computed.add(requested)

        def take(number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
            expected = self._expected(number)
            if number == requested:
                self._add(number, request, arrays)
            elif expected is not None and sum(request.sizes) + sum(expected.sizes) <= self._nbytes:
                self._cached(request)  # marks it as used
                if not self._cached(expected):
                    self._add(number, expected, arrays)

        recomputing.recompute(self._reader, requested, take)

    def _add(self, number: int, expected: Expected, arrays: Mapping[str, NDArray[Any]]) -> None:
        specs = payload_specs(self._metadata, number)
        shards = [shard_parts(spec, arrays[spec.path]) for spec in specs]
        is_exact = crc_of(shards) == expected.crc32c
        if not is_exact:
            require_near(self._storage.path, number, self._stored(number), fingerprints(specs[0], arrays))

        def write(descriptors: list[int]) -> None:
            for descriptor, parts in zip(descriptors, shards, strict=True):
                offset = 0
                for part in parts:
                    offset = write_at(descriptor, part, offset)

        self._cache.add(cached_names(expected, "" if is_exact else NEAR), write)

    def has_fingerprints(self, number: int) -> bool:
        """Return whether the fingerprints that are stored of a partition are those of its rows in the cache."""
        specs, (start, stop) = payload_specs(self._metadata, number), self._metadata.layout.span(number)
        arrays = {}
        for spec, path in zip(specs, self.files(number), strict=True):
            nbytes = shard_shape(spec, stop - start).layer_nbytes * spec.shape[0]
            rows = np.fromfile(path, np.uint8, nbytes).view(spec.dtype).reshape(spec.shape[0], -1, *spec.shape[2:])
            arrays[spec.path] = rows[:, : stop - start]
        return difference(self._stored(number), fingerprints(specs[0], arrays)) <= STEP

    def _stored(self, number: int) -> NDArray[np.int8]:
        start, stop, key = fingerprint_bytes(self._metadata, number)
        return self._storage.get_range(key, start, stop).view(np.int8).reshape(-1, FINGERPRINT_SIZE)


def crc_of(shards: list[list[NDArray[Any] | bytes]]) -> int:
    """Return the CRC32C of shards given as parts."""
    crc = 0
    for parts in shards:
        for part in parts:
            crc = crc32c(part, crc)
    return crc


def require_near(path: object, number: int, stored: NDArray[np.int8], computed: NDArray[np.int8]) -> float:
    """Raise StoreDamagedError unless the fingerprints of a partition are the same but for what last bits change.

    Returns their largest difference.
    """
    apart = difference(stored, computed)
    if apart > STEP:
        raise StoreDamagedError(
            f"partition {number} of {path} was computed again, and is not what was committed: its fingerprints differ "
            f"by {apart:.3g}, at most {STEP} is allowed; the model or the software has changed"
        )
    return apart


def warn_of_cache(files: Sequence[Path]) -> None:
    """Give a RecomputedWarning of files that were damaged in the cache and are removed."""
    for file in files:
        warnings.warn(
            f"{file} of the cache was damaged, which says nothing about the store: it is removed, and its rows are "
            "computed again when they are read",
            RecomputedWarning,
            stacklevel=2,
        )


def warn_of_last_bits(path: object) -> None:
    """Give a RecomputedWarning of rows that have other last bits than those committed."""
    warnings.warn(
        f"rows of {path} that were computed again differ from those committed in the last bits: they were made on "
        "another device or with other software",
        RecomputedWarning,
        stacklevel=2,
    )


def fingerprint_bytes(metadata: Metadata, number: int) -> tuple[int, int, str]:
    """Return where the fingerprints of a partition are stored: bytes `[start, stop)` of a key."""
    spec = virtual_specs(metadata)[0]
    site = number // metadata.layout.n_partitions
    start, stop = (site * metadata.n_rows + row for row in metadata.layout.span(number))
    row_nbytes = FINGERPRINT_SIZE * spec.dtype.itemsize
    return start * row_nbytes, stop * row_nbytes, column_key(spec)


def virtual_chunks(metadata: Metadata) -> dict[str, Parts]:
    """Return the chunks that only a virtual store has, by key, without any row."""
    chunks: dict[str, Parts] = {}
    for spec in virtual_specs(metadata):
        rows = np.full((min(spec.shape[-2], 2**16), spec.shape[-1]), spec.fill, spec.dtype)
        whole, rest = divmod(int(np.prod(spec.shape[:-1])), len(rows))
        chunks[column_key(spec)] = [rows] * whole + [rows[:rest]] * bool(rest)
    return chunks


def default_folder() -> Path:
    """Return the folder of what is computed again: EMBSTORE_CACHE, else `embstore` in the user's folder of caches."""
    if folder := os.environ.get("EMBSTORE_CACHE"):
        return Path(folder)
    caches = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or caches) / "embstore"
