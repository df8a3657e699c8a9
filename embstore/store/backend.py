"""The two backends behind one face, chosen by the suffix of a path or by what stands there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, StorageError, StoreFormatError, StoreNotFoundError
from embstore.store.metadata import Metadata, StoredArray
from embstore.store.reading.mapped import RowSource, TakeSource
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.lock import old_path
from embstore.store.storage.objects import Objects

SUFFIXES = (".zarr", ".h5")


class Reader(Protocol):
    """What a store's reader asks of a backend; see ZarrReader, HDF5Reader, ObjectReader and CachedReader."""

    metadata: Metadata
    arrays: dict[str, StoredArray]

    @property
    def path(self) -> Path | ObjectPath: ...
    def commits(self) -> NDArray[np.uint64]: ...
    def settled(self) -> bool: ...
    def forget(self) -> None: ...
    def column(self, name: str) -> NDArray[Any]: ...
    def layer(self, array: str, layer: int) -> TakeSource | None: ...
    def rows(self, array: str, layer: int, partition: int) -> RowSource: ...


class Writer(Protocol):
    """What a store's writer asks of a backend; see ZarrWriter, HDF5Writer and ObjectWriter."""

    path: Any
    metadata: Metadata

    def commits(self) -> NDArray[np.uint64]: ...
    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int: ...
    def commit(self, partition: int, record: NDArray[np.uint64]) -> None: ...
    def discard(self, partitions: Iterable[int]) -> None: ...
    def fold(self) -> None: ...
    def close(self) -> None: ...


def is_hdf5(path: Path | ObjectPath) -> bool:
    """Tell the backend by the suffix. Raises InvalidValueError for another one."""
    if path.suffix not in SUFFIXES:
        raise InvalidValueError(f"the name of a store must end in .zarr or .h5, not {path.name!r}")
    if path.suffix == ".h5" and isinstance(path, ObjectPath):
        raise InvalidValueError(f"{path} cannot be: a store in a bucket is a .zarr, HDF5 stands on a disk")
    return path.suffix == ".h5"


def require_place(path: Path | ObjectPath) -> None:
    """Raise InvalidValueError where no store can be made at `path`, whatever stands there."""
    is_hdf5(path)
    if isinstance(path, ObjectPath):
        if not Objects.at(path).listed:
            raise InvalidValueError(f"cannot write {path}: stores at {path.scheme}:// can only be read")
    elif not path.absolute().parent.is_dir():
        raise InvalidValueError(f"cannot make {path}: there is no folder {path.parent}")


def stands(path: Path | ObjectPath) -> bool:
    """Tell whether something is at `path`: any file or folder, or a whole store in a bucket."""
    if isinstance(path, ObjectPath):
        return Objects.at(path).size("zarr.json") is not None
    return os.path.lexists(path)


def lay_out(path: Path | ObjectPath, metadata: Metadata, frozen: Mapping[str, NDArray[Any]], *, hdf5: bool) -> None:
    """Write a whole store without rows at the new path `path`."""
    if isinstance(path, ObjectPath):
        from embstore.store.zarr import object_layout

        object_layout.lay_out(path, metadata, frozen)
    elif hdf5:
        from embstore.store.hdf5 import format as hdf5_format

        hdf5_format.lay_out(path, metadata, frozen)
    else:
        from embstore.store.zarr import writer as zarr_writer

        zarr_writer.lay_out(path, metadata, frozen)


def open_reader(path: Path | ObjectPath, *, cache: Path | None = None) -> Reader:
    """Open what stands at a path, a folder as Zarr and a file as HDF5; a bucket's shards through the folder `cache`."""
    if isinstance(path, ObjectPath):
        return _open_objects(path, cache)
    if standing_kind(path) == "folder":
        from embstore.store.zarr.reader import ZarrReader

        return ZarrReader(path)
    from embstore.store.hdf5.reader import HDF5Reader

    return HDF5Reader(path)


def _open_objects(path: ObjectPath, cache: Path | None) -> Reader:
    require_zarr(path)
    if cache is not None:
        from embstore.store.storage.cache import CachedReader

        return CachedReader(path, cache)
    from embstore.store.zarr.object_reader import ObjectReader

    return ObjectReader(path)


def open_writer(path: Path | ObjectPath) -> Writer:
    """Open what stands at a path for writing; its lock must be held, but in a bucket, where there is none."""
    if isinstance(path, ObjectPath):
        from embstore.store.zarr.object_writer import ObjectWriter

        return ObjectWriter(path)
    if standing_kind(path) == "folder":
        from embstore.store.zarr.writer import ZarrWriter

        return ZarrWriter(path)
    from embstore.store.hdf5.writer import HDF5Writer

    return HDF5Writer(path)


def require_zarr(path: ObjectPath) -> None:
    """Raise InvalidValueError for the address of an HDF5 file, which is only read from a disk."""
    if path.suffix == ".h5":
        raise InvalidValueError(f"{path} cannot be read: a store in a bucket is a .zarr; copy the file to a disk")


def no_store(path: Path | ObjectPath) -> StoreNotFoundError:
    return StoreNotFoundError(f"there is no store at {path}: embstore extract makes one")


def standing_kind(path: Path) -> str:
    """Say whether a "folder" or a "file" stands at a path; refuse what cannot be a store, in one line."""
    try:
        mode = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(old_path(path)):
            raise StoreNotFoundError(
                f"a repair of {path} was interrupted: run the same `embstore extract --repair` command again"
            ) from None
        raise no_store(path) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    folder = stat.S_ISDIR(mode.st_mode)
    if path.suffix == ".zarr" and not folder:
        raise StoreFormatError(f"{path} is a file; a Zarr store is a folder")
    if path.suffix == ".h5" and folder:
        raise StoreFormatError(f"{path} is a folder; an HDF5 store is a file")
    return "folder" if folder else "file"
