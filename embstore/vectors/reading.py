"""Word vectors read from the files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, WordVectorsError, WordVectorsNotFoundError
from embstore.vectors.binary import read_binary
from embstore.vectors.source import Source
from embstore.vectors.text import header_counts, read_text
from embstore.vectors.vectors import WordVectors, first_not_finite, first_repeated

Format = Literal["auto", "text", "glove", "binary", "npy"]
NPY_MAGIC = b"\x93NUMPY"
_NUMBERS = frozenset(b"0123456789+-.eEnaifNAIFty \t\r")


def read_word_vectors(path: str | Path, *, format: Format = "auto", limit: int | None = None) -> WordVectors:
    """Read word vectors, the first `limit` of them where it is given.

    `text` is word2vec's with a header, `glove` the same without, `binary` word2vec's, `npy` an array
    [words, dimensions] with the words, one a line, in a file of the same name with the suffix .vocab; `auto` finds
    out which. All but npy may be compressed (gzip, zstd).

    Raises WordVectorsError, with the line where there are lines, for a word that stands twice, a vector of another
    length, NaN or infinity, counts that differ from the header's, and a file that is cut off.
    """
    path = Path(path)
    check_format(format)
    if limit is not None and limit < 1:
        raise InvalidValueError(f"limit {limit} is not allowed: give 1 or more, or None for all words")
    source = Source(path)
    if format == "auto":
        format = format_of(source)
    if format == "npy":
        return _read_npy(path, limit)
    if format == "binary":
        return read_binary(source, limit=limit)
    return read_text(source, header=format == "text", limit=limit)


def check_format(format: str) -> None:
    """Raise InvalidValueError for a format that is not known."""
    if format not in get_args(Format):
        raise InvalidValueError(f"format {format!r} is not known: choose {', '.join(get_args(Format))}")


def vocabulary_path(path: Path) -> Path:
    """Where the words of an .npy file stand."""
    return path.with_suffix(".vocab")


def format_of(source: Source) -> Format:
    start = source.ahead(2**12)
    if start.startswith(NPY_MAGIC):
        return "npy"
    first, _, rest = start.partition(b"\n")
    if header_counts(first) is None:
        return "glove"
    numbers = rest.partition(b" ")[2].partition(b"\n")[0]
    return "text" if _NUMBERS.issuperset(numbers) else "binary"


def _read_npy(path: Path, limit: int | None) -> WordVectors:
    words, stored = open_npy(path)
    with np.errstate(over="ignore"):
        vectors = np.array(stored[:limit], np.float32)
    if (row := first_not_finite(vectors)) is not None:
        raise WordVectorsError(f"{path}: the vector of {words[row]!r} (row {row}) has NaN or infinity in it")
    return WordVectors(tuple(words[:limit]), vectors)


def open_npy(path: Path) -> tuple[list[str], NDArray[Any]]:
    """Open an array of vectors, memory-mapped, and read its words; numbers are not looked at."""
    vocabulary = vocabulary_path(path)
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise WordVectorsNotFoundError(f"no word vectors at {path}: give a file that is there") from None
    except (OSError, ValueError, EOFError) as error:
        raise WordVectorsError(f"{path}: cannot be read as .npy: {' '.join(str(error).split())}") from None
    if not isinstance(stored, np.ndarray) or stored.ndim != 2 or stored.dtype.kind != "f" or not stored.size:
        shape = getattr(stored, "shape", "of several arrays")
        raise WordVectorsError(f"{path}: the array is {shape}: it must hold floats [words, dimensions]")
    words = read_vocabulary(vocabulary, beside=path)
    if len(words) != len(stored):
        raise WordVectorsError(f"{vocabulary}: {len(words)} words for the {len(stored)} vectors of {path.name}")
    return words, stored


def read_vocabulary(path: Path, *, beside: Path) -> list[str]:
    source = Source(path)
    content = bytearray()
    try:
        while block := source.take(2**22):
            content += block
        words = content.decode().removesuffix("\n").split("\n")
    except WordVectorsNotFoundError:
        raise WordVectorsNotFoundError(f"no words at {path}: they stand there, one a line, for {beside.name}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise source.error(f"byte 0x{content[error.start]:02x} is not UTF-8", line=line) from None
    if "\r" in words[0]:
        words = [word.removesuffix("\r") for word in words]
    if "" in words:
        raise source.error("is empty: write one word a line", line=words.index("") + 1)
    if (twice := first_repeated(words)) is not None:
        word = words[twice[1]]
        raise source.error(
            f"the word {word!r} stands in line {twice[0] + 1} too: a word has one vector", line=twice[1] + 1
        )
    return words
