"""Text files, plain or compressed, as streams of bytes and of lines with precise errors."""

from __future__ import annotations

import codecs
import gzip
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    file is, for example "word list".
    """

    path: Path
    kind: str = "corpus"

    def __iter__(self) -> Iterator[str]:
        open_line: list[str] = []
        number, length = 1, 0  # of the open line
        for text in self.texts():
            lines = text.split("\n")
            open_line.append(lines[0])
            length += len(lines[0])
            if length > MAX_SENTENCE:
                raise self.error(number, f"a line of more than {MAX_SENTENCE:,} characters: break it into sentences")
            if len(lines) == 1:
                continue
            lines[0] = "".join(open_line)
            open_line = [lines.pop()]
            number, length = number + len(lines), len(open_line[0])
            if "\r" in text or lines[0].endswith("\r"):
                lines = [line.removesuffix("\r") for line in lines]
            yield from lines
        if last := "".join(open_line):
            yield last.removesuffix("\r")

    def sentence_length(self, number: int, length: int, line: str) -> int:
        """Return the characters of a sentence of several lines, `length` before this one; raises CorpusError."""
        length += len(line)
        if length > MAX_SENTENCE:
            raise self.error(
                number,
                f"a sentence of more than {MAX_SENTENCE:,} characters: is a blank line missing between sentences?",
            )
        return length

    def parsed(self, parse: Callable[[str], T]) -> Iterator[tuple[int, T]]:
        """Yield the number of each line that is not blank, and what `parse` makes of it."""
        for number, line in enumerate(self, 1):
            if line and not line.isspace():
                try:
                    made = parse(line)
                except InvalidValueError as error:
                    raise self.error(number, str(error)) from None
                yield number, made

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
                raise self._decode_error(error, n_newlines, nbytes) from None
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
        except FileNotFoundError:
            raise CorpusNotFoundError(f"no {self.kind} at {self.path}: give an existing file") from None
        except IsADirectoryError:
            raise self.file_error("is a folder, not a file") from None
        except PermissionError:
            raise self.file_error("cannot be read: permission denied") from None
        except (OSError, ValueError) as error:
            if isinstance(error, CorpusError):
                raise
            reason = error.strerror if isinstance(error, OSError) else None
            raise self.file_error(f"cannot be read: {reason or error}") from None
        yield b""

    def _decode_error(self, error: UnicodeDecodeError, n_newlines: int, nbytes: int) -> CorpusError:
        before = error.object[: error.start]
        number = n_newlines + before.decode("utf-8", "replace").count("\n") + 1
        offset = nbytes - len(error.object) + error.start
        is_wide = offset == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        return self.error(
            number,
            f"byte 0x{error.object[error.start]:02x} at offset {offset} is not utf-8 ({error.reason}); if it is text, "
            f"save it as UTF-8: iconv -f {'utf-16' if is_wide else 'cp1252'} -t utf-8",
        )


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file block by block, decompressed if its first bytes are those of gzip or zstd.

    Raises CorpusError for compressed data that are cut off or damaged, and OSError as `open` does.
    """
    with path.open("rb") as file:
        magic = file.peek(4)[:4]
        if magic.startswith(GZIP_MAGIC):
            yield from _gzip_blocks(file, path)
        elif magic == ZSTD_MAGIC:
            yield from _zstd_blocks(file, path)
        else:
            while block := file.read(BLOCK_NBYTES):
                yield block


def _gzip_blocks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as member:
        while True:
            try:
                block = member.read(BLOCK_NBYTES)
            except EOFError:
                raise _cut_off(path, "gzip") from None
            except (OSError, zlib.error) as error:
                raise _damaged(path, "gzip", error) from None
            if not block:
                return
            yield block


def _zstd_blocks(file: BinaryIO, path: Path) -> Iterator[bytes]:
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
            raise _damaged(path, "zstd", error) from None
        data = frame.unused_data if frame.eof else b""
        for start in range(0, len(block), BLOCK_NBYTES):
            yield block[start : start + BLOCK_NBYTES]
    if not frame.eof:
        raise _cut_off(path, "zstd")


def _cut_off(path: Path, kind: str) -> CorpusError:
    return CorpusError(f"{path}: the {kind} data end too early: download or compress the file again")


def _damaged(path: Path, kind: str, error: Exception) -> CorpusError:
    reason = " ".join(str(error).split())
    return CorpusError(f"{path}: damaged {kind} data ({reason}); download or compress the file again")


@checked
def read_word_list(path: str | Path) -> frozenset[str]:
    """Read words or phrases, one a line, for example for `Keep(words=...)`.

    Blank lines are skipped. The words of a phrase are joined by spaces or "_". Raises CorpusError for a file without a
    word and CorpusNotFoundError for a missing one.
    """
    lines = Lines(Path(path), "word list")
    words = frozenset(" ".join(line.split()) for line in lines if line and not line.isspace())
    if not words:
        raise lines.file_error("no word in it; write one a line")
    return words


def finite_number(text: str) -> float | None:
    """Return a field of a file as a finite number; None if it is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
