"""Files of word vectors, memory-mapped; compressed ones are decompressed into a temporary file first."""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.lines import GZIP_MAGIC, ZSTD_MAGIC, read_blocks
from embstore.errors import CorpusError, WordVectorsError, WordVectorsNotFoundError
from embstore.store.storage.files import regular_file
from embstore.vectors.word_vectors import first_nonfinite

BOM = b"\xef\xbb\xbf"


class MappedFile:
    """The bytes of a file in `data`, read from disk on access. Raises WordVectorsError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with regular_file(path).open("rb") as file:
                if file.peek(4)[:4].startswith((GZIP_MAGIC, ZSTD_MAGIC)):
                    with tempfile.TemporaryFile() as plain:
                        for block in read_blocks(path):
                            plain.write(block)
                        plain.flush()
                        self.data = _mapped(plain.fileno())
                else:
                    self.data = _mapped(file.fileno())
        except FileNotFoundError:
            raise WordVectorsNotFoundError(f"no word vectors at {path}: give an existing file") from None
        except IsADirectoryError:
            raise self.error("is a folder, not a file of word vectors") from None
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from None
        except CorpusError as error:
            raise WordVectorsError(str(error)) from None

    def error(self, message: str, *, line: int | None = None) -> WordVectorsError:
        """Return the error to raise for the file, or for a line of it; lines count from 1."""
        number = "" if line is None else f":{line}"
        return WordVectorsError(f"{self.path}{number}: {message}")

    def header(self) -> tuple[int, int]:
        """Parse the first line, which must hold the counts of words and dimensions."""
        if not self.data:
            raise self.error("is empty: word vectors begin with a line of the counts of words and dimensions")
        line = self.data[: self.data.find(b"\n") + 1 or len(self.data)]
        counts = header_counts(line)
        if counts is None:
            raise self.error(
                f"{shown_bytes(line.strip())} is not a header: give the counts of words and dimensions", line=1
            )
        if 0 in counts:
            raise self.error(f"the header has {counts[0]} words of {counts[1]} dimensions: give 1 or more", line=1)
        return counts

    def check_finite(
        self, vectors: NDArray[np.float32], rows: Sequence[int], words: Sequence[str], *, line: int
    ) -> None:
        """Raise WordVectorsError for a vector with NaN or infinity; `line`: that of row 0, or 0 without lines."""
        if (bad := first_nonfinite(vectors)) is not None:
            row = rows[bad]
            where = "" if line else f" (word {row + 1})"
            message = f"the vector of {words[row]!r}{where} has NaN or infinity in it"
            raise self.error(message, line=line + row if line else None)


def _mapped(descriptor: int) -> mmap.mmap | bytes:
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:  # an empty file cannot be mapped
        return b""


def header_counts(line: bytes) -> tuple[int, int] | None:
    """Return the counts of words and dimensions in a first line; None if it is not a header."""
    fields = line.removeprefix(BOM).split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def shown_bytes(text: bytes) -> str:
    """Return bytes quoted as text for an error message, cut after 60 bytes."""
    shown = repr(text[:60].decode("utf-8", "replace"))
    return shown if len(text) <= 60 else f"{shown[:-1]}...{shown[-1]}"


def sha256_of_files(*paths: Path) -> str:
    """Return the hash of the files' bytes, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
