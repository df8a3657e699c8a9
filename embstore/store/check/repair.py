"""Laying out a damaged store afresh, keeping every partition that is still what was committed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreFormatError, StoreMismatchError, StoreNotFoundError
from embstore.store.backend import is_hdf5, require_place
from embstore.store.index import Index
from embstore.store.metadata import Metadata, parse
from embstore.store.storage.files import map_file, remove, storing
from embstore.store.storage.location import ObjectPath, place_of
from embstore.store.storage.lock import StoreLock, new_path, swap
from embstore.store.writer import build, frozen_of
from embstore.store.zarr.format import NODE
from embstore.store.zarr.reader import read_root_attribute


def repair_layout(
    path: str | os.PathLike[str] | ObjectPath,
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None = None,
) -> list[int]:
    """Lay a store out afresh in place of one whose metadata, index or structure is damaged.

    Partitions whose bytes still match their commit record are kept; the others are returned, to be written by a
    StoreWriter, whose `finish` is needed in any case. The old store stands until the new one is whole. int8 codes
    are kept only where the old centre is, bit for bit, the one given. Raises StoreNotFoundError, StoreBusyError,
    and StoreMismatchError where the metadata can be read and is of another recipe; where it cannot be read and the
    digest of the recipe beside the vectors is not the plan's, StoreDamagedError or StoreFormatError.
    """
    path = place_of(path)
    hdf5 = is_hdf5(path)
    if isinstance(path, ObjectPath):
        return _repair_objects(path, metadata, index, center)
    with StoreLock(path):
        if not os.path.lexists(path):
            raise StoreNotFoundError(f"there is no store at {path}: embstore extract makes one")
        metadata = _stored_metadata(path, metadata)
        build(path, metadata=metadata, index=index, center=center)
        try:
            with storing(path):
                kept = _carry_over(path, metadata, center, hdf5=hdf5)
                swap(path)
        except BaseException:
            remove(new_path(path))
            raise
    return [partition for partition in range(metadata.layout.n_partitions) if partition not in kept]


def _repair_objects(path: ObjectPath, planned: Metadata, index: Index, center: NDArray[np.float32] | None) -> list[int]:
    """Mend a store in a bucket object by object: there is no other place to lay it out at and swap."""
    from embstore.store.check import object_repair

    require_place(path)
    try:
        stored = object_repair.stored_metadata(path)
    except (StoreDamagedError, StoreFormatError) as error:
        if not object_repair.names_recipe(path, planned):
            raise _unknown(path, error) from error
        stored = planned
    _require_same(path, stored, planned)
    with frozen_of(path, stored, index, center, scratch=Path(tempfile.gettempdir())) as frozen:
        return object_repair.mend(path, stored, frozen)


def _unknown(path: Path | ObjectPath, error: EmbstoreError) -> EmbstoreError:
    """Return the error for metadata that are lost, with nothing beside the vectors that says whose they are."""
    if isinstance(error, StoreFormatError):
        return error
    return StoreDamagedError(
        f"the metadata of {path} cannot be read, and nothing else in it says that this plan made it: give the "
        "options it was made with, or remove it first"
    )


def _stored_metadata(path: Path, planned: Metadata) -> Metadata:
    """Return the metadata of a store, or the plan's where they are damaged and its recipe stands beside the vectors."""
    try:
        if path.is_dir():
            stored, _ = parse(read_root_attribute(path), path=str(path))
        else:
            from embstore.store.hdf5.reader import read_metadata

            stored, _ = read_metadata(path)
    except EmbstoreError as error:
        if _names_recipe(path, planned):
            return planned
        if isinstance(error, StoreFormatError):
            raise
        raise _unknown(path, error) from error
    _require_same(path, stored, planned)
    return stored


def _names_recipe(path: Path, planned: Metadata) -> bool:
    """Look for the digest of the recipe that stands beside the vectors."""
    try:
        mapped = map_file(path / "hidden_states" / NODE if path.is_dir() else path)
    except OSError:
        return False
    return mapped is not None and mapped.find(planned.recipe_sha256.encode()) >= 0


def _require_same(path: Path | ObjectPath, stored: Metadata, planned: Metadata) -> None:
    then, now = stored.recipe, planned.recipe
    for key in sorted(then):
        if then[key] != now[key]:
            raise StoreMismatchError(f"{path} was made with another {key} than this plan: give the same options again")


def _carry_over(path: Path, metadata: Metadata, center: NDArray[np.float32] | None, *, hdf5: bool) -> set[int]:
    if hdf5:
        from embstore.store.check import salvage_hdf5

        return salvage_hdf5.carry_over(path, new_path(path), metadata, center)
    from embstore.store.check import salvage_zarr

    return salvage_zarr.carry_over(path, new_path(path), metadata, center)
