"""Text and binary files of word vectors, memory-mapped: words are read at once, vectors as they are asked for."""

from __future__ import annotations

import hashlib
import mmap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import SurplusWordsWarning, WordVectorsError
from embstore.vectors.binary import WORD_NBYTES, word_of
from embstore.vectors.lookup import RowTable
from embstore.vectors.source import Source
from embstore.vectors.text import Lines, dimensions_of, read_header
from embstore.vectors.vectors import first_not_finite

BLOCK_NBYTES = 2**24
ROWS_AT_ONCE = 2**12
_NEWLINE, _SPACE = 10, 32


def map_file(path: Path) -> mmap.mmap:
    """Map a file for reading; raises WordVectorsError where it is empty or cannot be read."""
    Source(path).ahead(1)  # says what is wrong with a path
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise WordVectorsError(f"{path}: is empty: not a file of word vectors") from None


def sha256_of_files(paths: Sequence[Path]) -> str:
    """Hash files as if they were one, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while block := file.read(2**22):
                digest.update(block)
    return digest.hexdigest()


def map_text(path: Path, *, header: bool, sha256: str) -> RowTable:
    """Open word2vec's text format, or GloVe's without a header; lines are checked as they are read.

    Raises WordVectorsError, with the line, for a word that stands twice and for counts other than the header's.
    """
    source = Source(path)
    promised = None
    if header:
        promised, dimensions = read_header(source)
    elif source.ahead(3) == b"\xef\xbb\xbf":
        source.take(3)
    if not source.ahead(1):
        raise source.error("no word in it" if header else "is empty: a line is a word and its numbers")
    if not header:
        dimensions = dimensions_of(source)
    data = map_file(path)
    first = data.find(b"\n") + 1 if header else 3 * (data[:3] == b"\xef\xbb\xbf")
    lines = Lines(source, dimensions, first_line=2 if header else 1)
    lines.parse(data[first : data.find(b"\n", first) + 1 or len(data)])
    starts, words = _index_lines(source, data, lines, first)
    if promised is not None:
        if len(words) < promised:
            raise source.error(
                f"the header promises {promised} words, {len(words)} follow: the file is cut off", line=1
            )
        if len(words) > promised:
            told = f"{path}: {len(words)} words under a header that promises {promised}: those beyond are left out"
            warnings.warn(told, SurplusWordsWarning, stacklevel=4)
            words = words[:promised]
    places = _places(source, words, first_line=lines.first_line)

    def rows(chosen: Sequence[int]) -> NDArray[np.float32]:
        parts = [_parsed(data, starts, lines, chosen[at : at + ROWS_AT_ONCE]) for at in _steps(chosen)]
        return np.concatenate(parts) if parts else np.empty((0, dimensions), np.float32)

    return RowTable(places, rows, dimensions=dimensions, sha256=sha256)


def _steps(chosen: Sequence[int]) -> range:
    return range(0, len(chosen), ROWS_AT_ONCE)


def _index_lines(source: Source, data: mmap.mmap, lines: Lines, first: int) -> tuple[NDArray[np.int64], list[str]]:
    """Return where every line starts, and one end more, and the words."""
    words: list[str] = []
    starts: list[NDArray[np.int64]] = []
    empty = 0
    for begin, block in _blocks_of_lines(data, first):
        bytes_of = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(bytes_of == _NEWLINE)
        if not block.endswith(b"\n"):
            ends = np.append(ends, len(block))
        begins = np.concatenate([[0], ends[:-1] + 1])
        spaces = np.flatnonzero(bytes_of == _SPACE)
        place = np.searchsorted(spaces, begins)
        many = np.searchsorted(spaces, ends) - place
        many -= (bytes_of[np.maximum(ends - 1, 0)] == _SPACE) & (ends > begins)  # fastText ends its lines with a space
        after = np.append(spaces, 0)[place]
        usual = many == lines.dimensions
        for start, stop, space, plain in zip(
            begins.tolist(), ends.tolist(), after.tolist(), usual.tolist(), strict=True
        ):
            number = lines.first_line + len(words) + empty
            if plain and space > start and not empty:
                words.append(_decoded(source, block[start:space], number))
                continue
            line = block[start:stop]
            if not line.strip():
                empty += 1
                continue
            if empty:
                raise source.error("an empty line before it: a line is a word and its numbers", line=number)
            words.append(lines.parse_line(line, number)[0])
        starts.append(begins + begin)
    return np.append(np.concatenate(starts), len(data)), words


def _blocks_of_lines(data: mmap.mmap, first: int) -> Iterator[tuple[int, bytes]]:
    begin = first
    while begin < len(data):
        stop = min(begin + BLOCK_NBYTES, len(data))
        if stop < len(data):
            stop = data.rfind(b"\n", begin, stop) + 1 or data.find(b"\n", stop) + 1 or len(data)
        yield begin, data[begin:stop]
        begin = stop


def _decoded(source: Source, word: bytes, line: int) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        shown = repr(word[:60].decode("utf-8", "replace"))
        raise source.error(f"the word {shown} is not UTF-8", line=line) from None


def _places(source: Source, words: Sequence[str], *, first_line: int) -> dict[str, int]:
    places: dict[str, int] = {}
    for row, word in enumerate(words):
        if (before := places.setdefault(word, row)) != row:
            raise source.error(
                f"the word {word!r} stands in line {first_line + before} too: a word has one vector",
                line=first_line + row,
            )
    return places


def _parsed(data: mmap.mmap, starts: NDArray[np.int64], lines: Lines, chosen: Sequence[int]) -> NDArray[np.float32]:
    found = [data[starts[row] : starts[row + 1]].rstrip() for row in chosen]
    parsed = lines.parse_at_once(b"\n".join(found))
    if parsed is None:
        with np.errstate(over="ignore"):
            numbers = [lines.first_line + row for row in chosen]
            vectors = np.array([lines.parse_line(*each)[1] for each in zip(found, numbers, strict=True)], np.float32)
    else:
        vectors = parsed[1]
    if (row := first_not_finite(vectors)) is not None:
        word = found[row].split(b" ", 1)[0].decode("utf-8", "replace")
        line = lines.first_line + chosen[row]
        raise lines.source.error(f"the vector of {word!r} has NaN or infinity in it", line=line)
    return vectors


def map_binary(path: Path, *, sha256: str) -> RowTable:
    """Open word2vec's binary format; raises WordVectorsError where it is cut off, goes on or repeats a word."""
    source = Source(path)
    promised, dimensions = read_header(source)
    data = map_file(path)
    nbytes, position = 4 * dimensions, data.find(b"\n") + 1
    if promised * (nbytes + 2) > len(data):
        raise source.error(f"the header promises {promised} x {dimensions} numbers, more than the file holds: cut off")
    begins = np.empty(promised, np.int64)
    words: list[str] = []
    for row in range(promised):
        position += data[position : position + 1] == b"\n"
        space = data.find(b" ", position, position + WORD_NBYTES + 1)
        if space < 0 and position + WORD_NBYTES < len(data):
            raise source.error(f"no space within {WORD_NBYTES} bytes after word {row}: not this format")
        if space < 0 or space + 1 + nbytes > len(data):
            raise source.error(f"ends in word {row + 1} of the {promised} that its header promises: it is cut off")
        words.append(word_of(source, data[position:space], row))
        begins[row] = space + 1
        position = space + 1 + nbytes
    if data[position : position + 2].strip(b"\n"):
        raise source.error(f"goes on after the {promised} words that its header promises: the header is wrong")
    places: dict[str, int] = {}
    for row, word in enumerate(words):
        if (before := places.setdefault(word, row)) != row:
            raise source.error(f"the word {word!r} is both word {before + 1} and word {row + 1}")

    def rows(chosen: Sequence[int]) -> NDArray[np.float32]:
        vectors = np.empty((len(chosen), dimensions), np.float32)
        for at, row in enumerate(chosen):
            vectors[at] = np.frombuffer(data, "<f4", dimensions, int(begins[row]))
        if (bad := first_not_finite(vectors)) is not None:
            raise source.error(
                f"the vector of {words[chosen[bad]]!r} (word {chosen[bad] + 1}) has NaN or infinity in it"
            )
        return vectors

    return RowTable(places, rows, dimensions=dimensions, sha256=sha256)
