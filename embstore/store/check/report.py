"""What `verify` found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embstore.store.storage.location import ObjectPath

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Fault:
    """One thing that is not as it was written: `part` is a file or array, `partition` the one it belongs to."""

    part: str
    partition: int | None
    what: str

    def __str__(self) -> str:
        where = "" if self.partition is None else f" (partition {self.partition})"
        return f"{self.part}{where}: {self.what}"


@dataclass(frozen=True)
class Report:
    """The outcome of `verify`: what is damaged, and separately the partitions never written."""

    path: Path | ObjectPath
    faults: tuple[Fault, ...]
    missing: tuple[int, ...]
    n_partitions: int
    checked_nbytes: int

    @property
    def ok(self) -> bool:
        """Whether all that was written is as it was written."""
        return not self.faults


class Findings:
    """Faults and bytes, counted up while a store is verified."""

    def __init__(self, progress: Progress | None) -> None:
        self.faults: list[Fault] = []
        self.missing: list[int] = []
        self.checked_nbytes = 0
        self.total_nbytes = 0
        self._progress = progress

    def fault(self, part: str, what: str, *, partition: int | None = None) -> None:
        self.faults.append(Fault(part, partition, what))

    def checked(self, nbytes: int) -> None:
        self.checked_nbytes += nbytes
        if self._progress is not None:
            self._progress(self.checked_nbytes, max(self.total_nbytes, self.checked_nbytes))

    def report(self, path: Path | ObjectPath, partitions: int) -> Report:
        return Report(path, tuple(self.faults), tuple(self.missing), partitions, self.checked_nbytes)


def damaged_partitions(report: Report) -> list[int]:
    """The partitions that a report names as damaged, ascending."""
    return sorted({fault.partition for fault in report.faults if fault.partition is not None})
