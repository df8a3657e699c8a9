"""Thinning a store: vectors that its model can compute again are dropped, all or all but those of some layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore import recomputing
from embstore.arguments import checked
from embstore.config import settings
from embstore.errors import InvalidValueError, MissingRowsError, StoreDamagedError
from embstore.progress import reporting
from embstore.store.arrays import KEPT, committed, frozen_specs, kept_positions, payload_specs, record_crc32c
from embstore.store.layout import Layers, resolve_layers
from embstore.store.metadata import Metadata
from embstore.store.opening import members_at
from embstore.store.source import FileSource
from embstore.store.storage.files import crc32c, storing
from embstore.store.storage.local import LocalStorage
from embstore.store.storage.location import parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.store import Store
from embstore.store.virtual.fingerprints import fingerprints
from embstore.store.virtual.recomputed import crc_of, require_near, virtual_chunks, warn_of_last_bits
from embstore.store.zarr.format import (
    DERIVED,
    NODE,
    TEMPORARY,
    all_nodes,
    column_key,
    is_packed,
    packed,
    packed_node,
    shard_parts,
)
from embstore.store.zarr.reader import ZarrReader
from embstore.store.zarr.writer import ZarrWriter


@checked
def thin(
    path: str | os.PathLike[str],
    *,
    keep: Layers | Literal["none"] = "none",
    check: Literal["all", "near", "sample"] = "all",
    model: str | Path | None = None,
) -> Store:
    """Drop the vectors of a finished store, or those of all layers but some; they are computed again when read.

    What stays is the index, the metadata, the commit records, a fingerprint of each row, and the layers `keep`. Each
    partition is thinned atomically; the same call resumes after an interruption.

    Parameters
    ----------
    path : path
        A .zarr on a disk. A virtual store may be thinned again to keep nothing.
    keep : layers or "none"
        The layers that stay.
    check : {"all", "near", "sample"}
        What is computed again and compared before anything is dropped: "all" vectors must have the same bits; with
        "near" their last bits may differ, which are then lost; "sample" compares three partitions, in the same way.
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
            _thin(storage, keep, check, model)
        finally:
            storage.finish()
    return Store(FileSource(ZarrReader(storage)))


def _thin(storage: LocalStorage, keep: Any, check: str, model: str | Path | None) -> None:
    reader = ZarrReader(storage)
    if reader.is_foreign:
        raise InvalidValueError(f"{storage.path} was rewritten by another tool: only a store as it was made is thinned")
    before = reader.metadata
    if not committed(reader.commits(), before.layout).all():
        raise MissingRowsError(
            f"{storage.path} is not finished: complete it by the command that began it, then thin it"
        )
    kept = () if isinstance(keep, str) and keep == "none" else resolve_layers(keep, before.layers, ascending=True)
    if before.kept is not None and kept not in (before.kept, ()):
        raise InvalidValueError(
            f"{storage.path} keeps layers {', '.join(map(str, before.kept)) or 'none'}: others are not stored any "
            "more; keep the same, or none"
        )
    for name in reader.arrays:
        if crc32c(reader.column(name)) != reader.arrays[name].crc32c:
            raise StoreDamagedError(f"{name} of {storage.path} was changed: repair the store before it is thinned")
    metadata = replace(before, kept=kept)
    whole = [number for number in range(metadata.n_partitions) if all(reader.whole_shards(number))]
    order = sorted({whole[0], whole[len(whole) // 2], whole[-1]}) if whole and check == "sample" else whole
    with reporting(settings().progress, total=len(order), unit="partitions", label="compute again") as report:
        same: set[int] = set()
        for done, number in enumerate(order):
            report(done)
            if number not in same:
                _compare(reader, number, same, None if model is None else str(model), is_exact=check == "all")
    if metadata != before:
        _declare(storage, reader, metadata)
        reader = ZarrReader(storage)
    _pack(storage, reader)
    writer = ZarrWriter(storage, metadata)
    with reporting(settings().progress, total=metadata.n_partitions, unit="partitions", label="thin") as report:
        for number in range(metadata.n_partitions):
            if number in whole:
                writer.thin(number, _checked_arrays(reader, number))
            elif not kept or any(reader.whole_shards(number)):  # interrupted
                writer.keep(number, _arrays(reader, number, kept_positions(metadata, number)) if kept else {})
            report(number + 1)
    storage.finish()
    for key in () if kept else storage.sizes(KEPT):
        storage.delete(key)
    for folder, _, _ in os.walk(storage.path, topdown=False):
        with suppress(OSError):  # not empty
            os.rmdir(folder)


def _declare(storage: LocalStorage, reader: ZarrReader, metadata: Metadata) -> None:
    """Make a store virtual: first the arrays that it then has, at last its metadata; all shards are complete still."""
    missing = {key: parts for key, parts in virtual_chunks(metadata).items() if storage.size(key) is None}
    columns = {f"{name}/{NODE}" for name in reader.arrays}
    nodes = {key: [node] for key, node in all_nodes(metadata, reader.arrays).items() if key not in columns}
    for key, parts in {**missing, **nodes}.items():
        if key in missing or not storage.holds(key, parts):
            storage.put(key, parts)
    assert list(nodes)[-1] == NODE


def _pack(storage: LocalStorage, reader: ZarrReader) -> None:
    """Compress the columns of a store that is virtual already; each is read as its zarr.json says at that moment."""
    specs = frozen_specs(reader.arrays)
    for spec in filter(is_packed, specs):
        node = packed_node(spec)
        if not storage.holds(f"{spec.path}/{NODE}", [node]):
            for key, chunk in packed(spec, reader.column(spec.path)):
                storage.put(key, [chunk])
            storage.put(f"{spec.path}/{NODE}", [node])
    reader.release_columns()
    for spec in specs:
        keys = [f"{spec.path}/{NODE}"] if spec.path in DERIVED else []
        for key in [*keys, column_key(spec)] if keys or is_packed(spec) else ():
            if storage.size(key) is not None:
                storage.delete(key)


def _arrays(reader: ZarrReader, number: int, positions: Sequence[int] | None = None) -> dict[str, NDArray[Any]]:
    """Read a partition, or the layers at some positions, as they are stored."""
    start, stop = reader.metadata.layout.span(number)
    arrays = {}
    for spec in payload_specs(reader.metadata, number):
        arrays[spec.path] = np.empty((spec.shape[0], stop - start, *spec.shape[2:]), spec.dtype)
        for position in range(spec.shape[0]) if positions is None else positions:
            reader.rows(spec.path, position, number).read(0, stop - start, arrays[spec.path][position])
    return arrays


def _checked_arrays(reader: ZarrReader, number: int) -> dict[str, NDArray[Any]]:
    """Read a partition as it is stored; raises StoreDamagedError unless it is what was committed."""
    specs, arrays = payload_specs(reader.metadata, number), _arrays(reader, number)
    if crc_of([shard_parts(spec, arrays[spec.path]) for spec in specs]) != record_crc32c(reader.commits()[number]):
        raise StoreDamagedError(f"partition {number} of {reader.path} was changed: repair it before it is thinned")
    return arrays


def _compare(reader: ZarrReader, requested: int, same: set[int], model: str | None, *, is_exact: bool) -> None:
    """Compute a partition again with those of its group, and add those that are as they are stored to `same`.

    `is_exact`: to the bit.
    """

    def take(number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        specs = payload_specs(reader.metadata, number)
        if not all(reader.whole_shards(number)):
            return  # it was thinned before an interruption
        stored = _checked_arrays(reader, number)
        if any(not np.array_equal(stored[name].view(np.uint8), arrays[name].view(np.uint8)) for name in stored):
            before, computed = (fingerprints(specs[0], each) for each in (stored, arrays))
            apart = require_near(reader.path, number, before, computed)
            if is_exact:
                raise InvalidValueError(
                    f"partition {number} of {reader.path} is computed here with other last bits than it has (the "
                    f"fingerprints differ by {apart:.2g}), which would be lost: thin it where it was made, or accept "
                    "that with --check near"
                )
            warn_of_last_bits(reader.path)
        same.add(number)

    recomputing.recompute(reader, requested, take, model)
    if requested not in same:
        raise StoreDamagedError(f"partition {requested} of {reader.path} was not computed again: nothing was dropped")
