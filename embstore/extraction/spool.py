"""Columns in temporary files, for plans of any size in little memory."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.errors import StorageError
from embstore.store.storage.files import TOO_MANY_FILES, allow_files

BLOCK = 2**16  # entries of a column that are handled at a time


@dataclass
class _Column:
    file: IO[bytes]
    dtype: np.dtype[Any]
    length: int = 0


class Spool:
    """Named columns in temporary files without a name, which vanish with the object or its process.

    Columns grow on disk block by block, so that a plan of any size needs little memory, and are read back
    memory-mapped.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Add values to the end of a column; the first call fixes its dtype."""
        with _storing():
            if name not in self._columns:
                file = tempfile.TemporaryFile()  # noqa: SIM115
                self._columns[name] = _Column(file, values.dtype)
                allow_files(8 * len(self._columns))
            column = self._columns[name]
            column.file.write(np.ascontiguousarray(values, column.dtype).data)
        column.length += len(values)

    def length(self, name: str) -> int:
        return self._columns[name].length if name in self._columns else 0

    def read(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """Map a column; a column that was never written is empty."""
        if not self.length(name):
            return np.empty(0, dtype)
        column = self._columns[name]
        with _storing():
            column.file.flush()
        return np.memmap(column.file, column.dtype, "r", shape=(column.length,)).view(np.ndarray)

    def rename(self, name: str, new: str) -> None:
        """Rename a column, replacing one of the new name; arrays read before stay valid."""
        self._columns.pop(new, None)
        if name in self._columns:
            self._columns[new] = self._columns.pop(name)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise StorageError(f"a column of the plan cannot be opened: {TOO_MANY_FILES}") from error
        raise StorageError(
            f"the columns of the plan do not fit into {tempfile.gettempdir()}: {error.strerror}; "
            "make space there or set TMPDIR to a larger folder"
        ) from error
