"""What verification has found, and the checks that both formats share."""

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


class Checks:
    """The checks of one store at `path`: its faults, and how many bytes have been compared."""

    def __init__(self, path: Path | ObjectPath, report: Report) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.missing: list[int] = []
        self.n_partitions = 0  # until the metadata are read
        self.checked_nbytes = 0
        self.total_nbytes = 0
        self._report = report

    def fault(self, part: str, what: str, *, partition: int | None = None) -> None:
        self.faults.append(Fault(part, partition, what))

    def checked(self, nbytes: int) -> None:
        self.checked_nbytes += nbytes
        self._report(self.checked_nbytes, max(self.total_nbytes, self.checked_nbytes))

    def verify_report(self) -> VerifyReport:
        return VerifyReport(self.path, tuple(self.faults), tuple(self.missing), self.n_partitions, self.checked_nbytes)

    def attribute(self, fields: Any) -> tuple[Metadata, dict[str, StoredArray]] | None:
        """Parse the attribute "embstore" and compare it with its schema; None, with faults, where it is invalid."""
        try:
            metadata, arrays = parse(fields, path=str(self.path))
            wrong = schema_faults(fields)
        except EmbstoreError as error:
            wrong = [str(error)]
        for what in wrong:
            self.fault("metadata", what)
        if wrong:
            return None
        self.n_partitions = metadata.n_partitions
        return metadata, arrays

    def index(self, columns: Mapping[str, NDArray[Any] | None], metadata: Metadata) -> None:
        """Check that the columns of the index are consistent with each other, where all have their checksums."""
        complete = {name: column for name, column in columns.items() if column is not None}
        for what in column_faults(complete, metadata) if len(complete) == len(columns) else ():
            self.fault("index", what)

    def records(self, records: Records, layout: Layout, part: str) -> list[int]:
        """Return the partitions that are committed by the records [partition, 2]; note the others."""
        complete = committed(records, layout)
        for partition in np.flatnonzero(~complete).tolist():
            start, stop = layout.span(partition)
            n_rows, checksum = records[partition].tolist()
            if n_rows == checksum == NOT_WRITTEN:
                self.missing.append(partition)
            else:
                what = f"the commit record {n_rows:x} {checksum:x} is invalid; the partition has {stop - start} rows"
                self.fault(part, what, partition=partition)
        return np.flatnonzero(complete).tolist()


def schema_faults(fields: Any) -> list[str]:
    """Validate the attribute "embstore" against schemas/store.schema.json; returns one line per fault."""
    import jsonschema

    text = resources.files("embstore.schemas").joinpath("store.schema.json").read_text("utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    return [f"{error.json_path}: {error.message}"[:300] for error in validator.iter_errors(fields)]
