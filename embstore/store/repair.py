"""Laying out a damaged store afresh, keeping every partition that is still what was committed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreMismatchError, StoreNotFoundError
from embstore.store.backend import is_hdf5
from embstore.store.files import remove, storing
from embstore.store.index import Index
from embstore.store.lock import StoreLock, new_path, swap
from embstore.store.metadata import Metadata, parse
from embstore.store.writer import build


def repair_layout(
    path: str | os.PathLike[str],
    *,
    metadata: Metadata,
    index: Index,
    center: NDArray[np.float32] | None = None,
) -> list[int]:
    """Lay a store out afresh in place of one whose metadata, index or structure is damaged.

    Partitions whose bytes still match their commit record are kept; the others are returned, to be written by a
    StoreWriter, whose `finish` is needed in any case. The old store stands until the new one is whole. int8 codes
    are kept only where the old centre is, bit for bit, the one given. Raises StoreNotFoundError, StoreBusyError,
    and StoreMismatchError where the metadata can be read and is of another recipe.
    """
    path = Path(path)
    hdf5 = is_hdf5(path)
    with StoreLock(path):
        if not os.path.lexists(path):
            raise StoreNotFoundError(f"there is no store at {path}")
        stored = _metadata_or_none(path)
        if stored is not None:
            _require_same(path, stored, metadata)
            metadata = stored
        build(path, metadata=metadata, index=index, center=center)
        try:
            with storing(path):
                kept = _carry_over(path, metadata, center, hdf5=hdf5)
                swap(path)
        except BaseException:
            remove(new_path(path))
            raise
    return [partition for partition in range(metadata.layout.partitions) if partition not in kept]


def _metadata_or_none(path: Path) -> Metadata | None:
    try:
        if path.is_dir():
            from embstore.store.zarr_reader import read_root_attribute

            return parse(read_root_attribute(path), path=str(path))[0]
        from embstore.store.hdf5_reader import read_metadata

        return read_metadata(path)[0]
    except (EmbstoreError, OSError):
        return None


def _require_same(path: Path, stored: Metadata, planned: Metadata) -> None:
    then, now = stored.recipe, planned.recipe
    for key in sorted(then):
        if then[key] != now[key]:
            raise StoreMismatchError(f"{path} was made with another {key} than this plan: give the same options again")


def _carry_over(path: Path, metadata: Metadata, center: NDArray[np.float32] | None, *, hdf5: bool) -> set[int]:
    if hdf5:
        from embstore.store import salvage_hdf5

        return salvage_hdf5.carry_over(path, new_path(path), metadata, center)
    from embstore.store import salvage_zarr

    return salvage_zarr.carry_over(path, new_path(path), metadata, center)
