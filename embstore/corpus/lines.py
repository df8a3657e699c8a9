"""The lines of a text file, each with its number where something is wrong with it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embstore.corpus.compression import blocks
from embstore.corpus.messages import one_line
from embstore.errors import CorpusError, CorpusNotFoundError


@dataclass(frozen=True)
class Lines:
    """A file of text, plain or compressed, as a stream of lines without their ends.

    Lines end at LF or CRLF. A byte-order mark at the start is dropped. Only the block being read and the line
    being put together are held in memory.
    """

    path: Path
    encoding: str = "utf-8"

    def __iter__(self) -> Iterator[str]:
        open_line: list[str] = []
        for text in self._texts():
            lines = text.split("\n")
            if len(lines) == 1:
                open_line.append(text)
                continue
            open_line.append(lines[0])
            lines[0] = "".join(open_line)
            open_line = [lines.pop()]
            if "\r" in text or lines[0].endswith("\r"):
                lines = [line.removesuffix("\r") for line in lines]
            yield from lines
        if last := "".join(open_line):
            yield last.removesuffix("\r")

    def error(self, number: int, message: str) -> CorpusError:
        """What is wrong with a line, to be raised; lines count from 1."""
        return CorpusError(f"{one_line(self.path)}:{number}: {message}")

    def whole_error(self, message: str) -> CorpusError:
        """What is wrong with the file, to be raised."""
        return CorpusError(f"{one_line(self.path)}: {message}")

    def _texts(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)("strict")
        newlines = nbytes = 0
        begun = False
        for block in self._blocks():
            nbytes += len(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise self._undecodable(error, newlines, nbytes) from None
            except UnicodeError as error:
                raise self.error(newlines + 1, f"not {self.encoding}: {error}") from None
            if text and not begun:
                text, begun = text.removeprefix("\ufeff"), True
            if "\0" in text:
                number = newlines + text.count("\n", 0, text.index("\0")) + 1
                raise self.error(number, "a NUL character: the file is binary, not text (or not in the encoding given)")
            newlines += text.count("\n")
            yield text

    def _blocks(self) -> Iterator[bytes]:
        """The bytes, then an empty block at which the decoder says whether a character is left unfinished."""
        try:
            yield from blocks(self.path)
        except FileNotFoundError:
            raise CorpusNotFoundError(f"no corpus at {one_line(self.path)}: give a file that is there") from None
        except IsADirectoryError:
            raise self.whole_error("is a folder, not a file") from None
        except PermissionError:
            raise self.whole_error("cannot be read: permission denied") from None
        except OSError as error:
            raise self.whole_error(f"cannot be read: {error.strerror or error}") from None
        yield b""

    def _undecodable(self, error: UnicodeDecodeError, newlines: int, nbytes: int) -> CorpusError:
        before = error.object[: error.start]
        number = newlines + before.decode(self.encoding, "replace").count("\n") + 1
        offset = nbytes - len(error.object) + error.start
        byte = f"0x{error.object[error.start]:02x}"
        return self.error(
            number,
            f"byte {byte} at offset {offset} is not {self.encoding} ({error.reason}); "
            f"if it is text, name its encoding with --encoding, for example latin-1",
        )


def is_encodable(text: str) -> bool:
    """Whether a text from JSON or Python holds whole characters only, no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
