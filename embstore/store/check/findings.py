"""The outcome of `verify`, and the checks of metadata, index and commit records that both backends share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import EmbstoreError
from embstore.progress import Report
from embstore.store.arrays import NOT_WRITTEN, Records, committed
from embstore.store.check.consistency import column_faults
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata, StoredArray, parse
from embstore.store.storage.location import ObjectPath


@dataclass(frozen=True)
class Fault:
    """One file or array (`part`) that differs from what was written, and the partition it belongs to, if any."""

    part: str
    partition: int | None
    what: str

    def __str__(self) -> str:
        where = "" if self.partition is None else f" (partition {self.partition})"
        return f"{self.part}{where}: {self.what}"


@dataclass(frozen=True)
class VerifyReport:
    """The outcome of `verify`: what is damaged, and the partitions that are not written yet."""

    path: Path | ObjectPath
    faults: tuple[Fault, ...]
    missing: tuple[int, ...]
    n_partitions: int
    checked_nbytes: int

    def __repr__(self) -> str:
        n_faults, n = len(self.faults), self.n_partitions
        state = "ok" if self.ok else f"{n_faults} fault{'' if n_faults == 1 else 's'}"
        missing = f", {len(self.missing)} not written" if self.missing else ""
        return f"<VerifyReport of {self.path}: {state}, {n:,} partition{'' if n == 1 else 's'}{missing}>"

    def _repr_html_(self) -> str:
        faults = "".join(f"<li>{escape(str(fault))}</li>" for fault in self.faults)
        return f"<p>{escape(repr(self)[1:-1])}</p><ul>{faults}</ul>"

    @property
    def ok(self) -> bool:
        """Whether nothing that was written is damaged."""
        return not self.faults

    @property
    def damaged_partitions(self) -> list[int]:
        """The partitions with a fault, ascending."""
        return sorted({fault.partition for fault in self.faults if fault.partition is not None})


class Findings:
    """Collects faults and counts bytes while a store is verified."""

    def __init__(self, report: Report) -> None:
        self.faults: list[Fault] = []
        self.missing: list[int] = []
        self.checked_nbytes = 0
        self.total_nbytes = 0
        self._report = report

    def fault(self, part: str, what: str, *, partition: int | None = None) -> None:
        self.faults.append(Fault(part, partition, what))

    def checked(self, nbytes: int) -> None:
        self.checked_nbytes += nbytes
        self._report(self.checked_nbytes, max(self.total_nbytes, self.checked_nbytes))

    def report(self, path: Path | ObjectPath, partitions: int) -> VerifyReport:
        return VerifyReport(path, tuple(self.faults), tuple(self.missing), partitions, self.checked_nbytes)


def check_attribute(
    fields: Any, path: Path | ObjectPath, findings: Findings
) -> tuple[Metadata, dict[str, StoredArray]] | None:
    """Parse the attribute "embstore" and validate it against its schema; None, with a fault, where it is invalid."""
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
    """Validate the attribute "embstore" against schemas/store.schema.json; returns one line per fault."""
    import jsonschema

    text = resources.files("embstore.schemas").joinpath("store.schema.json").read_text("utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    return [f"{error.json_path}: {error.message}"[:300] for error in validator.iter_errors(fields)]


def check_index(columns: Mapping[str, NDArray[Any]], metadata: Metadata, findings: Findings) -> None:
    """Check that the columns of the index are consistent with each other; all must have passed their checksums."""
    for what in column_faults(columns, metadata):
        findings.fault("index", what)


def check_records(records: Records, layout: Layout, part: str, findings: Findings) -> None:
    """Note which partitions are not written, and report commit records [partition, 2] that no writer makes."""
    complete = committed(records, layout)
    for partition in np.flatnonzero(~complete).tolist():
        start, stop = layout.span(partition)
        n_rows, checksum = records[partition].tolist()
        if n_rows == checksum == NOT_WRITTEN:
            findings.missing.append(partition)
        else:
            what = f"the commit record {n_rows:x} {checksum:x} is invalid; the partition has {stop - start} rows"
            findings.fault(part, what, partition=partition)
