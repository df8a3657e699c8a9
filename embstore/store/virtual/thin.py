"""Thinning a store: vectors that its model can compute again are dropped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import recomputing
from embstore.arguments import checked
from embstore.config import settings
from embstore.errors import InvalidValueError, MissingRowsError, StoreDamagedError
from embstore.progress import reporting
from embstore.store.arrays import committed, payload_specs, record_crc32c
from embstore.store.opening import members_at
from embstore.store.source import FileSource
from embstore.store.storage.files import crc32c, storing
from embstore.store.storage.local import LocalStorage
from embstore.store.storage.location import parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.store import Store
from embstore.store.virtual.fingerprints import fingerprints
from embstore.store.virtual.recomputed import crc_of, require_near, virtual_chunks
from embstore.store.zarr.format import TEMPORARY, all_nodes, shard_parts
from embstore.store.zarr.reader import ZarrReader
from embstore.store.zarr.writer import ZarrWriter


@checked
def thin(path: str | os.PathLike[str], *, model: str | Path | None = None) -> Store:
    """Drop the vectors of a finished store; they are computed again when they are read.

    What stays is the index, the metadata, the commit records and a fingerprint of each row. Everything is computed
    again and compared before anything is dropped. Each partition is thinned atomically; the same call resumes after an
    interruption.

    Parameters
    ----------
    path : path
        A .zarr on a disk.
    model : str, path or None
        Where its model is, if it is not found by its name.

    Returns
    -------
    Store
        The thinned store.

    Raises
    ------
    InvalidValueError
        For a store that cannot be computed again, or not to the same bits, or is not a .zarr on a disk.
    ModelError
        Where its model is not found or is another one.
    StoreDamagedError
        Where what is computed is not what was committed: nothing is dropped then.
    StoreBusyError
        Where another process is writing to it.
    """
    location = parse_location(path)
    if not isinstance(location, Path) or location.suffix != ".zarr" or len(members_at(location)) > 1:
        raise InvalidValueError(f"{location} cannot be thinned: only one .zarr on a disk can, without appended parts")
    storage = LocalStorage(location, temporary=TEMPORARY)
    with StoreLock(location), storing(location):
        try:
            _thin(storage, None if model is None else str(model))
        finally:
            storage.finish()
    return Store(FileSource(ZarrReader(storage)))


def _thin(storage: LocalStorage, model: str | None) -> None:
    reader = ZarrReader(storage)
    if not committed(reader.commits(), reader.metadata.layout).all():
        raise MissingRowsError(
            f"{storage.path} is not finished: complete it by the command that began it, then thin it"
        )
    for name in reader.arrays:
        if crc32c(reader.column(name)) != reader.arrays[name].crc32c:
            raise StoreDamagedError(f"{name} of {storage.path} was changed: repair the store before it is thinned")
    numbers = range(reader.metadata.n_partitions)
    whole = [number for number in numbers if reader.has_shards(number)]
    same: set[int] = set()
    with reporting(settings().progress, total=len(whole), unit="partitions", label="compute again") as report:
        for done, number in enumerate(whole):
            report(done)
            if number not in same:
                _compare(reader, number, same, model)
    metadata = replace(reader.metadata, virtual=True)
    if not reader.metadata.virtual:  # first the arrays that it then has, at last its metadata; all shards are there
        for key, parts in virtual_chunks(metadata).items():
            if storage.size(key) is None:
                storage.put(key, parts)
        for key, node in all_nodes(metadata, reader.arrays).items():
            if not storage.holds(key, [node]):
                storage.put(key, [node])
    reader, writer = ZarrReader(storage), ZarrWriter(storage, metadata)
    with reporting(settings().progress, total=len(numbers), unit="partitions", label="thin") as report:
        for number in numbers:
            if number in same:
                writer.thin(number, _stored(reader, number))
            else:
                writer.remove_shards([number])  # of an interrupted thinning
            report(number + 1)
    storage.finish()
    for folder, _, _ in os.walk(storage.path, topdown=False):
        with suppress(OSError):  # not empty
            os.rmdir(folder)


def _stored(reader: ZarrReader, number: int) -> dict[str, NDArray[Any]]:
    """Read a partition as it is stored; raises StoreDamagedError unless it is what was committed."""
    specs, (start, stop) = payload_specs(reader.metadata, number), reader.metadata.layout.span(number)
    arrays = {}
    for spec in specs:
        arrays[spec.path] = np.empty((spec.shape[0], stop - start, *spec.shape[2:]), spec.dtype)
        for position, rows in enumerate(arrays[spec.path]):
            layer, [file] = reader.layer(spec.path, position, [number % reader.metadata.layout.n_partitions])
            layer.take(np.arange(start, stop), [file], rows)
    if crc_of([shard_parts(spec, arrays[spec.path]) for spec in specs]) != record_crc32c(reader.commits()[number]):
        raise StoreDamagedError(f"partition {number} of {reader.path} was changed: repair it before it is thinned")
    return arrays


def _compare(reader: ZarrReader, requested: int, same: set[int], model: str | None) -> None:
    """Compute a partition again with those of its group, and add those that are as they are stored to `same`."""

    def take(number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        if not reader.has_shards(number):
            return  # it was thinned before an interruption
        stored = _stored(reader, number)
        if any(not np.array_equal(stored[name].view(np.uint8), arrays[name].view(np.uint8)) for name in stored):
            spec = payload_specs(reader.metadata, number)[0]
            apart = require_near(reader.path, number, *(fingerprints(spec, each) for each in (stored, arrays)))
            raise InvalidValueError(
                f"partition {number} of {reader.path} is computed here with other last bits than it has (the "
                f"fingerprints differ by {apart:.2g}), which would be lost: thin it where it was made"
            )
        same.add(number)

    recomputing.recompute(reader, requested, take, model)
    if requested not in same:
        raise StoreDamagedError(f"partition {requested} of {reader.path} was not computed again: nothing was dropped")
