"""Whether a store is still, byte for byte, what was written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError, StoreDamagedError, StoreNotFoundError
from embstore.store.arrays import NOT_WRITTEN
from embstore.store.backend import no_store, require_zarr, standing_kind
from embstore.store.check.consistency import index_faults, occurrence_faults
from embstore.store.check.report import Findings, Progress, Report
from embstore.store.index import Index
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.storage.location import ObjectPath, place_of


def verify(path: str | os.PathLike[str] | ObjectPath, *, progress: Progress | None = None) -> Report:
    """Read every byte of a store and hold it against its checksums; damage is reported, never raised.

    `progress` is called with (bytes checked, bytes in all). Raises StoreNotFoundError where nothing is there,
    StorageError where the server of an address does not answer.
    """
    path = place_of(path)
    findings = Findings(progress)
    try:
        if isinstance(path, ObjectPath):
            partitions = _verify_objects(path, findings)
        elif standing_kind(path) == "folder":
            from embstore.store.check.verify_zarr import verify_zarr

            partitions = verify_zarr(path, findings)
        else:
            from embstore.store.check.verify_hdf5 import verify_hdf5

            partitions = verify_hdf5(path, findings)
    except StoreNotFoundError:
        raise
    except (EmbstoreError, OSError) as error:
        if isinstance(path, ObjectPath) and not isinstance(error, StoreDamagedError):
            raise
        findings.fault("store", str(error))
        partitions = 0
    return findings.report(path, partitions)


def _verify_objects(path: ObjectPath, findings: Findings) -> int:
    from embstore.store.check.verify_zarr import verify_zarr
    from embstore.store.storage.objects import Objects

    require_zarr(path)
    if Objects.at(path).get_or_none("zarr.json") is None:
        raise no_store(path)
    return verify_zarr(path, findings)


def check_attribute(
    fields: Any, path: Path | ObjectPath, findings: Findings
) -> tuple[Metadata, dict[str, StoredArray]] | None:
    """Parse the attribute "embstore" and hold it against its schema; None where it cannot be relied on."""
    try:
        metadata, arrays = parse(fields, path=str(path))
    except EmbstoreError as error:
        findings.fault("metadata", str(error))
        return None
    wrong = schema_faults(fields)
    for what in wrong:
        findings.fault("metadata", what)
    return None if wrong else (metadata, arrays)


def schema_faults(fields: Any) -> list[str]:
    """Hold the attribute "embstore" against schemas/store.schema.json; one line a fault."""
    import jsonschema

    text = resources.files("embstore.schemas").joinpath("store.schema.json").read_text("utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    return [f"{error.json_path}: {error.message}"[:300] for error in validator.iter_errors(fields)]


def check_index(columns: Mapping[str, NDArray[Any]], metadata: Metadata, findings: Findings) -> None:
    """Hold the columns of the index against each other; all of them must be as they were written."""
    index = Index.of_arrays(columns)
    found = list(index_faults(index, metadata.n_rows))
    if not found:
        words = columns["type/indptr"], columns["type/occurrences"]
        if len(words[0]) != len(index.words) + 1 or len(words[1]) != metadata.n_rows:
            found = ["type/indptr and type/occurrences do not fit the number of types and rows"]
        else:
            found = list(occurrence_faults(index.type, len(index.words), *words))
    if not np.array_equal(columns["layer"], metadata.layers):
        found.append("layer does not hold the layers that the metadata names")
    for what in found:
        findings.fault("index", what)


def check_record(record: NDArray[np.uint64], partition: int, layout: Layout, part: str, findings: Findings) -> None:
    """Report a commit record that no writer has made."""
    start, stop = layout.span(partition)
    if (record == NOT_WRITTEN).all():
        findings.fault(part, "the commit record was erased", partition=partition)
    elif record[0] != stop - start or record[1] >= 2**32:
        what = f"the commit record says {record[0]} rows, CRC32C {record[1]:x}; the partition has {stop - start} rows"
        findings.fault(part, what, partition=partition)
