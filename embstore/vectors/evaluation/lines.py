"""The lines of a benchmark's file."""

from __future__ import annotations

from pathlib import Path

from embstore.corpus.lines import read_blocks
from embstore.errors import BenchmarkError, CorpusError


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a text file that are neither blank nor comments (# and a space or nothing), with their numbers."""
    try:
        text = b"".join(read_blocks(path)).decode("utf-8-sig")
    except OSError as error:
        raise BenchmarkError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise wrong(path, number, f"byte 0x{error.object[error.start]:02x} is not UTF-8") from None
    except CorpusError as error:
        raise BenchmarkError(str(error)) from None
    lines = ((number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in lines if line.strip() and not f"{line} ".startswith("# ")]


def wrong(path: Path, number: int, message: str) -> BenchmarkError:
    """What is wrong with a line, to be raised."""
    return BenchmarkError(f"{path}:{number}: {message}")


def shown(line: str) -> str:
    """A line, quoted, not too long."""
    text = repr(line)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"
