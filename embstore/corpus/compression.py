"""The bytes of a file, decompressed where its first bytes say that it is gzip or zstd."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from embstore.corpus.messages import one_line
from embstore.errors import CorpusError

BLOCK_NBYTES = 2**18
SUFFIXES = frozenset({".gz", ".zst"})
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's content block by block; CorpusError where it is cut off or damaged."""
    with path.open("rb") as file:
        magic = file.peek(4)[:4]
        if magic.startswith(_GZIP):
            yield from _gzip(file, path)
        elif magic == _ZSTD:
            yield from _zstd(file, path)
        else:
            while block := file.read(BLOCK_NBYTES):
                yield block


def _gzip(file: BinaryIO, path: Path) -> Iterator[bytes]:
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


def _zstd(file: BinaryIO, path: Path) -> Iterator[bytes]:
    # The library's stream reader takes a cut-off file for a whole one; its decompression object knows better.
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    data = b""
    while data or (data := file.read(BLOCK_NBYTES)):
        if frame.eof:
            frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            block = frame.decompress(data)
        except zstandard.ZstdError as error:
            raise _damaged(path, "zstd", error) from None
        data = frame.unused_data if frame.eof else b""
        if block:
            yield block
    if not frame.eof:
        raise _cut_off(path, "zstd")


def _cut_off(path: Path, kind: str) -> CorpusError:
    return CorpusError(
        f"{one_line(path)}: the {kind} data end too early: the file is cut off; fetch or compress it again"
    )


def _damaged(path: Path, kind: str, error: Exception) -> CorpusError:
    reason = " ".join(str(error).split())
    return CorpusError(f"{one_line(path)}: damaged {kind} data ({reason}); fetch or compress it again")
