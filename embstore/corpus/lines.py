"""Text files, plain or compressed, as streams of bytes and of lines with precise errors."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypeVar

from embstore.arguments import checked
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError

BLOCK_NBYTES = 2**18  # of text: larger blocks are no faster
ZSTD_NBYTES = 2**10  # of compressed data at a time: they may expand to 32,000 times their size
MAX_SENTENCE = 2**22  # characters of a line, or of the block of lines that makes a sentence
COMPRESSED_SUFFIXES = frozenset({".gz", ".zst"})
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
T = TypeVar("T")


@dataclass(frozen=True)
class Lines:
    """A text file in UTF-8 as a stream of lines without their line ends, for readers of line-based formats.

    Lines end at LF or CRLF. A byte-order mark at the start is dropped. Only the current block and the current line are
    held in memory; a line of more than MAX_SENTENCE characters is an error. `kind` says in error messages what the
    file is, for example "word list". With `keeps_returns` the CR before an LF is part of the line.
    """

    path: Path
    kind: str = "corpus"
    keeps_returns: bool = False

    def __iter__(self) -> Iterator[str]:
        number, rest = 1, ""  # of the line that is not complete
        for text in self.texts():
            text = rest + text
            *lines, rest = text.split("\n")
            if len(lines[0] if lines else rest) > MAX_SENTENCE:  # blocks are shorter, so no other line is
                raise self.error(number, f"a line of more than {MAX_SENTENCE:,} characters: break it into sentences")
            number += len(lines)
            has_returns = "\r" in text and not self.keeps_returns
            yield from (line.removesuffix("\r") for line in lines) if has_returns else lines
        if rest:
            yield rest if self.keeps_returns else rest.removesuffix("\r")

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank, with their numbers from 1."""
        return ((number, line) for number, line in enumerate(self, 1) if line and not line.isspace())

    def blocks(self, divider: str = "\n") -> Iterator[list[tuple[int, str]]]:
        """Yield the numbered lines of each sentence; a blank line or one that begins with `divider` ends it."""
        block: list[tuple[int, str]] = []
        length = 0
        for number, line in chain(enumerate(self, 1), [(0, "")]):
            if line and not line.isspace() and not line.startswith(divider):
                block.append((number, line))
                length += len(line)
                if length > MAX_SENTENCE:
                    reason = "is a blank line missing between sentences?"
                    raise self.error(number, f"a sentence of more than {MAX_SENTENCE:,} characters: {reason}")
            elif block:
                yield block
                block, length = [], 0

    def parsed(self, parse: Callable[[str], T]) -> Iterator[tuple[int, T]]:
        """Yield the number of each line that is not blank, and what `parse` makes of it."""
        for number, line in self.numbered():
            try:
                yield number, parse(line)
            except InvalidValueError as error:
                raise self.error(number, str(error)) from None

    def error(self, number: int, message: str) -> CorpusError:
        """Return the error to raise for a line; lines count from 1."""
        return CorpusError(f"{self.path}:{number}: {message}")

    def file_error(self, message: str) -> CorpusError:
        """Return the error to raise for the whole file."""
        return CorpusError(f"{self.path}: {message}")

    def texts(self) -> Iterator[str]:
        """Yield the text of the file block by block."""
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        n_newlines = nbytes = 0
        at_start = True
        for block in self._blocks():
            nbytes += len(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                number = n_newlines + error.object.count(b"\n", 0, error.start) + 1
                offset = nbytes - len(error.object) + error.start
                is_wide = offset == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                advice = f"if it is text, save it as UTF-8: iconv -f {'utf-16' if is_wide else 'cp1252'} -t utf-8"
                byte = f"byte 0x{error.object[error.start]:02x} at offset {offset}"
                raise self.error(number, f"{byte} is not utf-8 ({error.reason}); {advice}") from None
            if text and at_start:
                text, at_start = text.removeprefix("\ufeff"), False
            if "\0" in text:
                number = n_newlines + text.count("\n", 0, text.index("\0")) + 1
                raise self.error(number, "a NUL character: the file is binary, not text (or not in UTF-8)")
            n_newlines += text.count("\n")
            yield text

    def _blocks(self) -> Iterator[bytes]:
        """Yield the bytes, then an empty block that makes the decoder report an incomplete character."""
        try:
            yield from read_blocks(self.path)
        except CorpusError:
            raise
        except FileNotFoundError:
            raise CorpusNotFoundError(f"no {self.kind} at {self.path}: give an existing file") from None
        except IsADirectoryError:
            raise self.file_error("is a folder, not a file") from None
        except (OSError, ValueError) as error:
            raise self.file_error(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
        yield b""


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file block by block, decompressed if its first bytes are those of gzip or zstd.

    Raises CorpusError for compressed data that are cut off or damaged, and OSError as `open` does.
    """
    with path.open("rb") as file:
        magic = file.peek(4)[:4]
        kind = "zstd" if magic == ZSTD_MAGIC else "gzip"
        try:
            if magic.startswith(GZIP_MAGIC):
                yield from iter(partial(gzip.GzipFile(fileobj=file).read, BLOCK_NBYTES), b"")
            else:
                yield from _zstd_blocks(file) if kind == "zstd" else iter(partial(file.read, BLOCK_NBYTES), b"")
        except EOFError:
            raise CorpusError(f"{path}: the {kind} data end too early: download or compress the file again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            reason = " ".join(str(error).split())
            raise CorpusError(f"{path}: damaged {kind} data ({reason}); download or compress the file again") from None


def _zstd_blocks(file: BinaryIO) -> Iterator[bytes]:
    # zstandard's stream reader accepts a cut-off file; its decompression object reports whether the frame has ended.
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    data = b""
    while data or (data := file.read(ZSTD_NBYTES)):
        if frame.eof:
            frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            block = frame.decompress(data)
        except zstandard.ZstdError as error:
            raise zlib.error(str(error)) from None
        data = frame.unused_data if frame.eof else b""
        for start in range(0, len(block), BLOCK_NBYTES):
            yield block[start : start + BLOCK_NBYTES]
    if not frame.eof:
        raise EOFError


@checked
def read_word_list(path: str | Path) -> frozenset[str]:
    """Read words or phrases, one a line, for example for `Keep(words=...)`.

    Blank lines are skipped. The words of a phrase are joined by spaces or "_". Raises CorpusError for a file without a
    word and CorpusNotFoundError for a missing one.
    """
    lines = Lines(Path(path), "word list")
    words = frozenset(" ".join(line.split()) for _, line in lines.numbered())
    if not words:
        raise lines.file_error("no word in it; write one a line")
    return words
