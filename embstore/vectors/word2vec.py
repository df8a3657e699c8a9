"""word2vec's formats: text, a line a word with its numbers, under a header or without (GloVe), and binary."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import SurplusWordsWarning
from embstore.vectors.mapped import BOM, MappedFile, sha256_of_files, shown_bytes
from embstore.vectors.word_vectors import RowTable, first_repeated

BLOCK_NBYTES = 2**24
ROWS_AT_ONCE = 2**12
MAX_WORD_NBYTES = 2**16
_NEWLINE, _SPACE = 10, 32


def open_text(file: MappedFile, *, header: bool, limit: int | None = None) -> RowTable:
    """Open a text file: the words are read now, and the numbers of a line when its word is looked up.

    `header`: whether the first line holds the counts, as word2vec writes it. `limit`: only the first words. Words
    beyond the header's count are ignored with a SurplusWordsWarning. Raises WordVectorsError, with the line, for a line
    of another length, a repeated word and fewer words than the header says.
    """
    data = file.data
    n_promised = None
    start = len(BOM) if data[: len(BOM)] == BOM else 0
    if header:
        n_promised, dimensions = file.header()
        start = data.find(b"\n") + 1 or len(data)
    first = data[start : data.find(b"\n", start) + 1 or len(data)]
    if not first.strip():
        raise file.error("no word in it" if header else "is empty: a line is a word and its numbers")
    if not header:
        dimensions = len([field for field in first.rstrip().split(b" ") if field]) - 1
        if dimensions < 1:
            text = shown_bytes(first.strip())
            raise file.error(f"{text}: a line is a word and its numbers, separated by spaces", line=1)
    lines = _Lines(file, dimensions, first_line=2 if header else 1)
    lines.parse_line(first, lines.first_line)  # the first line confirms the number of columns
    starts, words = lines.index(data, start, limit)
    if n_promised is not None and (limit is None or limit > min(len(words), n_promised)):
        if len(words) < n_promised:
            raise file.error(f"the header says {n_promised} words, {len(words)} follow: the file is cut off", line=1)
        if len(words) > n_promised:
            message = f"{file.path}: {len(words)} words, but its header says {n_promised}: the others are ignored"
            warnings.warn(message, SurplusWordsWarning, stacklevel=5)
            words = words[:n_promised]
    if (pair := first_repeated(words)) is not None:
        at, again = (lines.first_line + row for row in pair)
        raise file.error(f"the word {words[pair[1]]!r} is in line {at} too: a word has one vector", line=again)

    def read_rows(rows: Sequence[int]) -> NDArray[np.float32]:
        vectors = np.empty((len(rows), dimensions), np.float32)
        for at in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[at : at + ROWS_AT_ONCE]
            vectors[at : at + len(some)] = lines.parse([data[starts[row] : starts[row + 1]] for row in some], some)
        file.check_finite(vectors, rows, words, line=lines.first_line)
        return vectors

    return RowTable(words, read_rows, dimensions=dimensions, hash_data=lambda: sha256_of_files(file.path))


def open_binary(file: MappedFile, *, limit: int | None = None) -> RowTable:
    """Open a binary file: after a header line, each entry is a word, a space and its float32 numbers.

    The words are read now, and a vector when its word is looked up. A newline after a vector, as word2vec writes it, is
    optional. `limit`: only the first words. Raises WordVectorsError for a file that is cut off, has more data than the
    header says, or repeats a word.
    """
    n_promised, dimensions = file.header()
    n_wanted = n_promised if limit is None else min(n_promised, limit)
    data = file.data
    nbytes, position = 4 * dimensions, data.find(b"\n") + 1
    begins: list[int] = []
    words: list[str] = []
    for row in range(n_wanted):
        position += data[position : position + 1] == b"\n"
        space = data.find(b" ", position, position + MAX_WORD_NBYTES + 1)
        if space < 0 and position + MAX_WORD_NBYTES < len(data):
            raise file.error(f"no space within {MAX_WORD_NBYTES} bytes after word {row}: not this format")
        if space < 0 or space + 1 + nbytes > len(data):
            raise file.error(f"ends in word {row + 1} of the {n_promised} that its header says: it is cut off")
        word = data[position:space]
        if not word:
            raise file.error(f"word {row + 1} is empty: not this format, or the dimensions in the header are wrong")
        try:
            words.append(word.decode())
        except UnicodeDecodeError:
            shown = word[:20].decode("utf-8", "backslashreplace")
            message = f"word {row + 1}, {shown!r}, is not UTF-8: not this format, or the header is wrong"
            raise file.error(message) from None
        begins.append(space + 1)
        position = space + 1 + nbytes
    if n_wanted == n_promised and data[position : position + 2].strip(b"\n"):
        raise file.error(f"has data after the {n_promised} words that its header says: the header is wrong")
    if (pair := first_repeated(words)) is not None:
        raise file.error(f"the word {words[pair[1]]!r} is both word {pair[0] + 1} and word {pair[1] + 1}")

    def read_rows(rows: Sequence[int]) -> NDArray[np.float32]:
        vectors = np.empty((len(rows), dimensions), np.float32)
        for at, row in enumerate(rows):
            vectors[at] = np.frombuffer(data, "<f4", dimensions, begins[row])
        file.check_finite(vectors, rows, words, line=0)
        return vectors

    return RowTable(words, read_rows, dimensions=dimensions, hash_data=lambda: sha256_of_files(file.path))


class _Lines:
    """A parser of lines that hold one word and `dimensions` numbers."""

    def __init__(self, file: MappedFile, dimensions: int, *, first_line: int) -> None:
        self.file = file
        self.dimensions = dimensions
        self.first_line = first_line
        self._schema: dict[str, Any] | None = None

    def index(self, data: mmap.mmap | bytes, first: int, limit: int | None) -> tuple[NDArray[np.int64], list[str]]:
        """Return the start of every line, and the end of the last, and the words, at least `limit` if there are."""
        words: list[str] = []
        starts: list[NDArray[np.int64]] = []
        n_empty = 0
        end = first
        for begin, block in _line_blocks(data, first):
            end = begin + len(block)
            content = np.frombuffer(block, np.uint8)
            ends = np.flatnonzero(content == _NEWLINE)
            if not block.endswith(b"\n"):
                ends = np.append(ends, len(block))
            begins = np.concatenate([[0], ends[:-1] + 1])
            spaces = np.flatnonzero(content == _SPACE)
            before = np.searchsorted(spaces, begins)
            n_spaces = np.searchsorted(spaces, ends) - before
            n_spaces -= (content[np.maximum(ends - 1, 0)] == _SPACE) & (ends > begins)  # fastText ends lines with one
            first_space = np.append(spaces, 0)[before]
            usual = n_spaces == self.dimensions
            columns = (begins.tolist(), ends.tolist(), first_space.tolist(), usual.tolist())
            for start, stop, space, is_usual in zip(*columns, strict=True):
                number = self.first_line + len(words) + n_empty
                line = block[start:stop]
                if is_usual and space > start and not n_empty:
                    words.append(self._decode(block[start:space], number))
                elif not line.strip():
                    n_empty += 1
                elif n_empty:
                    raise self.file.error("an empty line before it: a line is a word and its numbers", line=number)
                else:
                    words.append(self.parse_line(line, number)[0])
            starts.append(begins + begin)
            if limit is not None and len(words) >= limit:
                words = words[:limit]
                break
        return np.append(np.concatenate(starts), end), words

    def parse(self, lines: Sequence[bytes], rows: Sequence[int]) -> NDArray[np.float32]:
        """Return the vectors of lines: all at once if they are usual, else line by line with precise errors."""
        import polars as pl  # loaded late: after it, a blocking read no longer ends with Ctrl-C

        stripped = [line.rstrip() for line in lines]
        if self._schema is None:
            self._schema = {"word": pl.String, **{f"{n}": pl.Float32 for n in range(self.dimensions)}}
        try:
            content = b"\n".join(stripped)
            frame = pl.read_csv(content, has_header=False, separator=" ", quote_char=None, schema=self._schema)
            if len(frame) == len(lines) and not any(column.null_count() for column in frame):
                return frame.drop("word").to_numpy(order="c")
        except (pl.exceptions.PolarsError, UnicodeError):
            pass
        with np.errstate(over="ignore"):
            numbers = [
                self.parse_line(line, self.first_line + row)[1] for line, row in zip(stripped, rows, strict=True)
            ]
            return np.array(numbers, np.float32)

    def parse_line(self, line: bytes, number: int) -> tuple[str, list[float]]:
        """Return the word and the numbers of a line. Raises WordVectorsError with the line number."""
        fields = [field for field in line.rstrip().split(b" ") if field]
        word, values = fields[0], fields[1:]
        beyond = len(values) - self.dimensions
        if beyond > 0 and not all(_is_number(field) for field in values[:beyond]):
            word, values = b" ".join(fields[: beyond + 1]), values[beyond:]  # GloVe 840B has words with spaces
        if len(values) != self.dimensions:
            numbers = "1 number" if len(values) == 1 else f"{len(values)} numbers"
            source = "header says" if self.first_line == 2 else "first line has"
            message = f"{shown_bytes(word)} has {numbers}, not {self.dimensions} as the {source}"
            raise self.file.error(message, line=number)
        for value in values:
            if not _is_number(value):
                message = f"{shown_bytes(value)} in the vector of {shown_bytes(word)} is not a number"
                raise self.file.error(message, line=number)
        return self._decode(word, number), [float(value) for value in values]

    def _decode(self, word: bytes, number: int) -> str:
        try:
            return word.decode()
        except UnicodeDecodeError:
            raise self.file.error(f"the word {shown_bytes(word)} is not UTF-8", line=number) from None


def _line_blocks(data: mmap.mmap | bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines with their position."""
    begin = first
    while begin < len(data):
        stop = min(begin + BLOCK_NBYTES, len(data))
        if stop < len(data):
            stop = data.rfind(b"\n", begin, stop) + 1 or data.find(b"\n", stop) + 1 or len(data)
        yield begin, data[begin:stop]
        begin = stop


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field  # Python's spelling of thousands, which no other tool reads
