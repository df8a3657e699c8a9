"""Text files of word vectors: a word and its numbers a line, under a line of both counts (word2vec) or none (GloVe)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import SurplusWordsWarning
from embstore.vectors.source import Source
from embstore.vectors.vectors import WordVectors, first_not_finite, first_repeated

BLOCK_NBYTES = 2**24
_BOM = b"\xef\xbb\xbf"


def header_counts(line: bytes) -> tuple[int, int] | None:
    """The words and dimensions that a first line promises, None where it is no header."""
    fields = line.removeprefix(_BOM).split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def read_header(source: Source) -> tuple[int, int]:
    """Take the first line, which must be a header."""
    line = source.line()
    if line is None:
        raise source.error("is empty: word vectors begin with a line of the counts of words and dimensions")
    counts = header_counts(line)
    if counts is None:
        raise source.error(f"{_shown(line)} is no header: it holds the counts of words and dimensions alone", line=1)
    if 0 in counts:
        raise source.error(f"the header promises {counts[0]} words of {counts[1]} dimensions: give 1 or more", line=1)
    return counts


def read_text(source: Source, *, header: bool, limit: int | None) -> WordVectors:
    """Read word2vec's text format, or GloVe's, which has no header."""
    promised = None
    if header:
        promised, dimensions = read_header(source)
    first = source.ahead(1)
    if not first:
        raise source.error("no word in it" if header else "is empty: a line is a word and its numbers")
    if not header:
        if source.ahead(len(_BOM)) == _BOM:
            source.take(len(_BOM))
        dimensions = dimensions_of(source)
    lines = Lines(source, dimensions, first_line=2 if header else 1)
    words: list[str] = []
    found: list[NDArray[np.float32]] = []
    while (limit is None or len(words) < limit) and (block := source.lines(BLOCK_NBYTES)):
        more, vectors = lines.parse(block)
        words += more
        found.append(vectors)
    wanted = min(count for count in (limit, promised, len(words)) if count is not None)
    check_count(source, promised, len(words), limit)
    vectors = np.concatenate(found)[:wanted]
    words = words[:wanted]
    if (row := first_not_finite(vectors)) is not None:
        raise source.error(f"the vector of {words[row]!r} has NaN or infinity in it", line=lines.first_line + row)
    if (twice := first_repeated(words)) is not None:
        at, again = (lines.first_line + place for place in twice)
        raise source.error(f"the word {words[twice[1]]!r} stands in line {at} too: a word has one vector", line=again)
    return WordVectors(tuple(words), vectors)


def check_count(source: Source, promised: int | None, found: int, limit: int | None) -> None:
    if promised is None or (limit is not None and limit <= min(found, promised)):
        return
    if found < promised:
        raise source.error(f"the header promises {promised} words, {found} follow: the file is cut off", line=1)
    if found > promised:
        warnings.warn(
            f"{source.path}: {found} words under a header that promises {promised}: those beyond are left out",
            SurplusWordsWarning,
            stacklevel=4,
        )


def dimensions_of(source: Source) -> int:
    """The numbers of the first line, without taking it."""
    nbytes = 2**12
    while b"\n" not in (seen := source.ahead(nbytes)) and len(seen) == nbytes:
        nbytes *= 2
    fields = [field for field in seen.partition(b"\n")[0].rstrip().split(b" ") if field]
    if len(fields) < 2:
        raise source.error(f"{_shown(b' '.join(fields))}: a line is a word and its numbers, a space between", line=1)
    return len(fields) - 1


class Lines:
    """A parser of lines of one word and so many numbers: whole blocks at once, line by line where one is unusual."""

    def __init__(self, source: Source, dimensions: int, *, first_line: int) -> None:
        self.source = source
        self.dimensions = dimensions
        self.first_line = first_line
        self._done = 0
        self._ended = False
        self._schema: dict[str, Any] | None = None

    def parse(self, block: bytes) -> tuple[list[str], NDArray[np.float32]]:
        """The words of a block of whole lines, and their vectors."""
        if b" \n" in block:  # fastText ends its lines with a space
            block = block.replace(b" \n", b"\n")
        parsed = None if self._ended or self._schema is None else self.parse_at_once(block)
        if parsed is None:
            head, _, tail = (block, b"", b"") if self._schema is not None else block.partition(b"\n")
            parsed = self._parse_each(head)  # a first line that fits shows that the count of columns is sound
            self._schema = {"word": pl.String, **{f"{n}": pl.Float32 for n in range(self.dimensions)}}
            self._done += len(parsed[0])
            if not tail:
                return parsed
            words, vectors = self.parse(tail)
            return parsed[0] + words, np.concatenate([parsed[1], vectors])
        self._done += len(parsed[0])
        return parsed

    def parse_at_once(self, block: bytes) -> tuple[list[str], NDArray[np.float32]] | None:
        """Parse a block in which nothing is unusual, else None."""
        try:
            frame = pl.read_csv(block, has_header=False, separator=" ", quote_char=None, schema=self._schema)
        except (pl.exceptions.PolarsError, UnicodeError):
            return None
        if len(frame) != block.count(b"\n") + (not block.endswith(b"\n")):
            return None
        if any(column.null_count() for column in frame):
            return None
        return frame["word"].to_list(), frame.drop("word").to_numpy(order="c")

    def _parse_each(self, block: bytes) -> tuple[list[str], NDArray[np.float32]]:
        words, vectors = [], []
        for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), self.first_line + self._done):
            if not line.strip():
                self._ended = True
                continue
            if self._ended:
                raise self.source.error("an empty line before it: a line is a word and its numbers", line=number)
            word, vector = self.parse_line(line, number)
            words.append(word)
            vectors.append(vector)
        with np.errstate(over="ignore"):
            return words, np.array(vectors, np.float32).reshape(len(words), self.dimensions)

    def parse_line(self, line: bytes, number: int) -> tuple[str, list[float]]:
        fields = [field for field in line.rstrip().split(b" ") if field]
        word, values = fields[0], fields[1:]
        beyond = len(values) - self.dimensions
        if beyond > 0 and not all(_is_number(field) for field in values[:beyond]):
            word, values = b" ".join(fields[: beyond + 1]), values[beyond:]  # GloVe 840B has words with spaces
        if len(values) != self.dimensions:
            numbers = "1 number" if len(values) == 1 else f"{len(values)} numbers"
            raise self.source.error(
                f"{_shown(word)} has {numbers}, not {self.dimensions} as the "
                f"{'header says' if self.first_line == 2 else 'first line has'}",
                line=number,
            )
        try:
            return word.decode(), [_number(value) for value in values]
        except UnicodeDecodeError:
            raise self.source.error(f"the word {_shown(word)} is not UTF-8", line=number) from None
        except ValueError:
            wrong = next(value for value in values if not _is_number(value))
            raise self.source.error(
                f"{_shown(wrong)} in the vector of {_shown(word)} is no number", line=number
            ) from None


def _number(field: bytes) -> float:
    if b"_" in field:  # Python's spelling of thousands, no other tool's
        raise ValueError(field)
    return float(field)


def _is_number(field: bytes) -> bool:
    try:
        _number(field)
    except ValueError:
        return False
    return True


def _shown(text: bytes) -> str:
    shown = repr(text[:60].decode("utf-8", "replace"))
    return shown if len(text) <= 60 else f"{shown[:-1]}...{shown[-1]}"
