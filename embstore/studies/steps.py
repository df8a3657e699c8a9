"""The folder of a study: a step's table is kept with what it was made from, and made again where that differs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from embstore.errors import InvalidValueError, StorageError
from embstore.store.metadata import canonical

if TYPE_CHECKING:
    import polars as pl

Tell = Callable[[str], object]
T = TypeVar("T")


@dataclass
class Study:
    """The folder of a study and what was done in it: `tell` hears of each step, `seconds` keeps what each took."""

    folder: Path
    tell: Tell = lambda text: None
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidValueError(f"{self.folder} is a file: give a folder for the study")
        try:
            for name in ("stores", "tables", "figures", "models", "probes"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be made: {error.strerror}") from error
        with suppress(OSError, ValueError):  # of an earlier call
            self.seconds.update(json.loads(self._times.read_text()))

    def store(self, name: str) -> Path:
        return self.folder / "stores" / f"{name}.zarr"

    @property
    def _times(self) -> Path:
        return self.folder / "tables" / "seconds.json"

    def timed(self, name: str, make: Callable[[], T]) -> T:
        """Do a step, told and timed; one that finds its work done keeps the time that it took."""
        self.tell(name)
        began = time.perf_counter()
        made = make()
        self.seconds[name] = max(time.perf_counter() - began, self.seconds.get(name, 0.0))
        self._times.write_text(json.dumps(self.seconds, indent=1))
        return made

    def table(
        self,
        name: str,
        made_from: Mapping[str, Any],
        make: Callable[[], pl.DataFrame],
        *,
        beside: Path | None = None,
    ) -> pl.DataFrame:
        """The table of a step: the one kept, where it was made from the same, or made now and kept.

        `beside`: what the step leaves as well; without it the step is done again.
        """
        import polars as pl

        path = self.folder / "tables" / f"{name}.parquet"
        origin = path.with_suffix(".json")
        wanted = json.loads(canonical(made_from))
        with suppress(OSError, ValueError):
            held = json.loads(origin.read_text())
            if held["made_from"] == wanted and (beside is None or beside.exists()):
                return pl.read_parquet(path)
        frame = self.timed(name, make)
        origin.unlink(missing_ok=True)
        for target, write in ((path, frame.write_parquet), (path.with_suffix(".csv"), frame.write_csv)):
            new = target.with_name(f".{target.name}.new")
            write(new)
            os.replace(new, target)
        origin.write_text(json.dumps({"made_from": wanted}, indent=1))
        return frame
