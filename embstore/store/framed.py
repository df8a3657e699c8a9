"""What the results that are a table have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embstore.arguments import checked
from embstore.html import html_frame
from embstore.store.storage.files import write_frame

if TYPE_CHECKING:
    import polars as pl


class Framed:
    """A result with a `frame`: notebooks show it below the one line of its repr, and `save` writes it."""

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a .csv, .parquet or .json file, atomically and durably.

        Raises InvalidValueError for another suffix, StorageError.
        """
        write_frame(self._written(), Path(path))

    def _written(self: Any) -> pl.DataFrame:
        frame: pl.DataFrame = self.frame
        return frame

    def _repr_html_(self: Any) -> str:
        return html_frame(self, self.frame)
