"""The outcome of `verify`."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from embstore.progress import Report
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
        state = "ok" if self.ok else f"{len(self.faults)} faults"
        missing = f", {len(self.missing)} not written" if self.missing else ""
        return f"<VerifyReport of {self.path}: {state}, {self.n_partitions} partitions{missing}>"

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
