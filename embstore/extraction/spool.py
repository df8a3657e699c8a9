"""Columns that grow on disk while a corpus is read, so that a plan of any size needs little memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.errors import StorageError

BLOCK = 2**20


class Spool:
    """Named columns in temporary files without a name, which vanish with the object or its process.

    Columns are appended to block by block and then read back memory-mapped.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = Path(tempfile.gettempdir() if folder is None else folder)
        self._files: dict[str, IO[bytes]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._lengths: dict[str, int] = {}

    def append(self, column: str, values: NDArray[Any]) -> None:
        """Add values to the end of a column; the first call fixes its dtype."""
        with self._storing():
            if column not in self._files:
                self._files[column] = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
                self._dtypes[column] = values.dtype
                self._lengths[column] = 0
            self._files[column].write(np.ascontiguousarray(values, self._dtypes[column]).data)
        self._lengths[column] += len(values)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the columns of the plan do not fit into {self._folder}: {error.strerror}; "
                "make space there or set TMPDIR to a larger folder"
            ) from error

    def fill(self, column: str, value: int, count: int, dtype: DTypeLike) -> None:
        """Append one value `count` times."""
        for start in range(0, count, BLOCK):
            self.append(column, np.full(min(BLOCK, count - start), value, dtype))

    def length(self, column: str) -> int:
        return self._lengths.get(column, 0)

    def read(self, column: str, dtype: DTypeLike) -> NDArray[Any]:
        """Map a column; a column that was never written is empty."""
        if not self.length(column):
            return np.empty(0, dtype)
        file = self._files[column]
        with self._storing():
            file.flush()
        return np.memmap(file, self._dtypes[column], "r", shape=(self.length(column),)).view(np.ndarray)

    def rename(self, column: str, name: str) -> None:
        """Rename a column, replacing one of the new name; arrays read before stay valid."""
        for table in (self._files, self._dtypes, self._lengths):
            table.pop(name, None)
        if column in self._files:
            self._files[name] = self._files.pop(column)
            self._dtypes[name] = self._dtypes.pop(column)
            self._lengths[name] = self._lengths.pop(column)
