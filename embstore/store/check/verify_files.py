"""The files of a Zarr store as `verify` reads them: of a folder, or objects below an address."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from embstore.errors import EmbstoreError, StorageError
from embstore.store.arrays import frozen_spec, payload_specs
from embstore.store.metadata import parse
from embstore.store.storage.files import Bytes, crc32c_of_file
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import NoSuchObjectError, Objects
from embstore.store.zarr.format import FOLDED_FILE, INDEXES, NODE, chunk_file, commit_file, frozen_nodes, shard_file


class StoreFiles(Protocol):
    """Files by their names below the store; what cannot be read raises OSError."""

    def sizes(self) -> dict[str, int]:
        """The size of every file; search indexes keep checksums of their own."""
        ...

    def read(self, name: str) -> bytes: ...

    def flat(self, name: str, size: int) -> Bytes:
        """A whole file of `size` bytes as an array."""
        ...

    def crc32c(self, name: str, size: int, crc: int) -> tuple[int, int]:
        """Extend a CRC32C by a file, in bounded memory; returns it with the bytes read."""
        ...

    def tail(self, name: str, nbytes: int) -> bytes: ...


def files_of(path: Path | ObjectPath) -> StoreFiles:
    return ObjectFiles(path) if isinstance(path, ObjectPath) else FolderFiles(path)


class FolderFiles:
    """The files of a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sizes(self) -> dict[str, int]:
        files = {}
        for folder, _, names in os.walk(self._path):
            for name in names:
                file = Path(folder, name)
                files[file.relative_to(self._path).as_posix()] = file.lstat().st_size
        return {name: size for name, size in files.items() if not name.startswith(f"{INDEXES}/")}

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def flat(self, name: str, size: int) -> Bytes:
        return np.memmap(self._path / name, np.uint8, "r")

    def crc32c(self, name: str, size: int, crc: int) -> tuple[int, int]:
        return crc32c_of_file(self._path / name, crc)

    def tail(self, name: str, nbytes: int) -> bytes:
        return np.memmap(self._path / name, np.uint8, "r")[-nbytes:].tobytes()


def _sizing(objects: Objects, name: str) -> Callable[[], int | None]:
    return lambda: objects.size(name)


class ObjectFiles:
    """The objects below an address; a server that cannot be reached raises StorageError and says nothing of them."""

    def __init__(self, path: ObjectPath) -> None:
        self._objects = Objects.at(path)

    def sizes(self) -> dict[str, int]:
        if self._objects.listed:
            return {name: size for name, size in self._objects.sizes().items() if not name.startswith(f"{INDEXES}/")}
        names = self._expected()
        sizes = [each.result() for each in [self._objects.submit(_sizing(self._objects, name)) for name in names]]
        return {name: size for name, size in zip(names, sizes, strict=True) if size is not None}

    def _expected(self) -> list[str]:
        """The names that a store of these metadata may have, where the server tells none."""
        try:
            attribute = json.loads(self._objects.get(NODE))["attributes"]["embstore"]
            metadata, arrays = parse(attribute, path=str(self._objects.path))
        except StorageError:
            raise
        except (EmbstoreError, ValueError, KeyError, TypeError):
            return [NODE]
        partitions = range(metadata.layout.n_partitions)
        return [
            *frozen_nodes(metadata, arrays),
            *(chunk_file(frozen_spec(name, array.shape)) for name, array in arrays.items()),
            f"commits/{NODE}",
            FOLDED_FILE,
            *map(commit_file, partitions),
            *(shard_file(spec, partition) for spec in payload_specs(metadata) for partition in partitions),
        ]

    def read(self, name: str) -> bytes:
        return self._objects.get(name)

    def flat(self, name: str, size: int) -> Bytes:
        room = np.empty(size, np.uint8)
        for begun in self._objects.begin_into(name, room):
            begun.result()
        return room

    def crc32c(self, name: str, size: int, crc: int) -> tuple[int, int]:
        return self._objects.crc32c(name, crc, size)

    def tail(self, name: str, nbytes: int) -> bytes:
        return self._objects.tail(name, nbytes)[0].tobytes()


def unreadable(error: OSError) -> str:
    """Say why a file could not be read. Raises the error where that says nothing of the file."""
    if isinstance(error, NoSuchObjectError):
        return "is missing"
    if isinstance(error, EmbstoreError):
        raise error
    return f"cannot be read: {error.strerror}"
