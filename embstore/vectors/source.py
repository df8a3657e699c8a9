"""The bytes of a file of word vectors, taken from the front."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from embstore.corpus.lines import read_blocks
from embstore.errors import CorpusError, WordVectorsError, WordVectorsNotFoundError


class Source:
    """A file, decompressed where it is gzip or zstd, as a stream that can be looked at ahead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blocks = self._read()
        self._held = bytearray()

    def ahead(self, nbytes: int) -> bytes:
        """The next bytes, fewer only at the end, without taking them."""
        while len(self._held) < nbytes and (block := next(self._blocks, b"")):
            self._held += block
        return bytes(self._held[:nbytes])

    def take(self, nbytes: int) -> bytes:
        """The next bytes, fewer only at the end."""
        taken = self.ahead(nbytes)
        del self._held[: len(taken)]
        return taken

    def line(self) -> bytes | None:
        """The next line without its end, None at the end of the file."""
        nbytes, end = 2**12, -1
        while end < 0:
            seen = self.ahead(nbytes)
            end = seen.find(b"\n")
            if len(seen) < nbytes:
                break
            nbytes *= 2
        if not seen:
            return None
        line = self.take(end + 1 if end >= 0 else len(seen))
        return line.removesuffix(b"\n").removesuffix(b"\r")

    def lines(self, nbytes: int) -> bytes:
        """About this many bytes of whole lines, at least one, none at the end of the file."""
        while seen := self.ahead(nbytes):
            if len(seen) < nbytes:
                return self.take(nbytes)
            if (end := seen.rfind(b"\n")) >= 0:
                return self.take(end + 1)
            nbytes *= 2
        return b""

    def error(self, message: str, *, line: int | None = None) -> WordVectorsError:
        """What is wrong with the file, to be raised; lines count from 1."""
        place = "" if line is None else f":{line}"
        return WordVectorsError(f"{self.path}{place}: {message}")

    def _read(self) -> Iterator[bytes]:
        try:
            yield from read_blocks(self.path)
        except FileNotFoundError:
            raise WordVectorsNotFoundError(f"no word vectors at {self.path}: give a file that is there") from None
        except IsADirectoryError:
            raise self.error("is a folder, not a file of word vectors") from None
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from None
        except CorpusError as error:
            raise WordVectorsError(str(error)) from None
