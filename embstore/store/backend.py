"""Which backend stores what: Zarr in folders and buckets, HDF5 in files; by suffix, or by what exists at a path."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from embstore.errors import InvalidValueError, StorageError, StoreFormatError, StoreNotFoundError
from embstore.store.metadata import Metadata
from embstore.store.storage.base import Storage
from embstore.store.storage.files import reading, require_outside
from embstore.store.storage.local import LocalStorage
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import ObjectStorage
from embstore.store.zarr.format import APPENDED, NODE, TEMPORARY

if TYPE_CHECKING:  # h5py is imported only for HDF5 stores
    from embstore.store.hdf5.reader import HDF5Reader
    from embstore.store.hdf5.writer import HDF5Writer
    from embstore.store.zarr.reader import ZarrReader
    from embstore.store.zarr.writer import ZarrWriter

Reader: TypeAlias = "ZarrReader | HDF5Reader"
Writer: TypeAlias = "ZarrWriter | HDF5Writer"
SUFFIXES = (".zarr", ".h5")
HDF5 = b"\x89HDF\r\n\x1a\n"  # how a file of HDF5 begins


def is_hdf5(path: Path | ObjectPath) -> bool:
    """Return True for the suffix .h5 and False for .zarr. Raises InvalidValueError for any other."""
    if path.suffix not in SUFFIXES:
        raise InvalidValueError(f"the name of a store must end in .zarr or .h5, not {path.name!r}")
    if path.suffix == ".h5" and isinstance(path, ObjectPath):
        raise InvalidValueError(f"{path} is not possible: a store in a bucket is a .zarr; HDF5 needs a disk")
    return path.suffix == ".h5"


def require_writable(path: Path | ObjectPath) -> None:
    """Raise InvalidValueError where no store can be created at `path`, whatever exists there."""
    is_hdf5(path)
    if isinstance(path, ObjectPath):
        if not zarr_storage(path).can_list:
            raise InvalidValueError(f"cannot write {path}: stores at {path.scheme}:// are read-only")
    elif not os.path.isdir(path.absolute().parent):
        raise InvalidValueError(f"cannot create {path}: there is no folder {path.parent}")
    else:
        require_outside(path, but=APPENDED)


def exists(path: Path | ObjectPath) -> bool:
    """Return whether something is at `path`: any file or folder, or a complete store in a bucket."""
    if isinstance(path, ObjectPath):
        return zarr_storage(path).size(NODE) is not None
    return os.path.lexists(path)


def zarr_storage(path: Path | ObjectPath) -> Storage:
    """Return the storage of a Zarr store."""
    if isinstance(path, Path):
        return LocalStorage(path, temporary=TEMPORARY)
    if path.suffix == ".h5":
        raise InvalidValueError(f"cannot read {path}: a store in a bucket is a .zarr; copy the file to a disk")
    return ObjectStorage.at(path, temporary=TEMPORARY)


def create(path: Path | ObjectPath, metadata: Metadata, frozen: Mapping[str, NDArray[Any]], *, hdf5: bool) -> None:
    """Create a complete store without rows at the new path `path`; `frozen` are the arrays that never change."""
    if hdf5:
        from embstore.store.hdf5 import writer as hdf5_writer

        assert isinstance(path, Path)
        hdf5_writer.create(path, metadata, frozen)
        return
    from embstore.store.zarr import writer as zarr_writer

    if isinstance(path, Path):
        zarr_writer.create_local(path, metadata, frozen)
    else:
        zarr_writer.create_remote(zarr_storage(path), metadata, frozen)


def open_reader(path: Path | ObjectPath) -> Reader:
    """Open what exists at a path, a folder or URL as Zarr and a file as HDF5."""
    if isinstance(path, Path) and is_file(path):
        from embstore.store.hdf5.reader import HDF5Reader

        return HDF5Reader(path)
    from embstore.store.zarr.reader import ZarrReader

    return ZarrReader(zarr_storage(path))


def open_writer(path: Path | ObjectPath) -> Writer:
    """Open what exists at a path for writing."""
    if isinstance(path, Path) and is_file(path):
        from embstore.store.hdf5.writer import HDF5Writer

        return HDF5Writer(path)
    from embstore.store.zarr.writer import ZarrWriter

    return ZarrWriter(zarr_storage(path))


def no_store(path: Path | ObjectPath) -> StoreNotFoundError:
    """Return the error for a path at which nothing exists."""
    return StoreNotFoundError(f"there is no store at {path}: embstore extract makes one")


def is_file(path: Path) -> bool:
    """Return whether a file, not a folder, exists at a path; raise a one-line error for what cannot be a store."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise no_store(path) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    folder = stat.S_ISDIR(mode)
    if path.suffix == ".zarr" and not folder:
        raise StoreFormatError(f"{path} is a file; a Zarr store is a folder")
    if path.suffix == ".h5" and folder:
        raise StoreFormatError(f"{path} is a folder; an HDF5 store is a file")
    if not (folder or stat.S_ISREG(mode)):
        raise StoreNotFoundError(f"{path} is a pipe or device, not a store: give NAME.zarr or NAME.h5")
    if not folder and path.suffix != ".h5":
        with reading(path), path.open("rb") as file:
            head = file.read(1024)
        if not head.startswith(HDF5):
            kind = "another kind of file" if b"\0" in head else "a text"
            raise StoreNotFoundError(f"{path} is {kind}, not a store: give NAME.zarr or NAME.h5")
    return not folder
