"""word2vec's binary format: a line with both counts, then a word, a space and its float32 numbers, entry by entry."""

from __future__ import annotations

import numpy as np

from embstore.errors import WordVectorsError
from embstore.vectors.source import Source
from embstore.vectors.text import read_header
from embstore.vectors.vectors import WordVectors, first_not_finite, first_repeated

BLOCK_NBYTES = 2**24
WORD_NBYTES = 2**16


def read_binary(source: Source, *, limit: int | None) -> WordVectors:
    """Read the format, with the newline after each vector that word2vec writes or without it, as others write it."""
    promised, dimensions = read_header(source)
    wanted = promised if limit is None else min(promised, limit)
    nbytes = 4 * dimensions
    try:
        vectors = np.empty((wanted, dimensions), "<f4")
    except (MemoryError, ValueError, OverflowError):
        raise source.error(f"the header promises {promised} x {dimensions} numbers: too many for the memory") from None
    words: list[str] = []
    data = b""
    while len(words) < wanted:
        block = source.take(max(BLOCK_NBYTES, nbytes))
        if not block:
            raise source.error(
                f"ends in word {len(words) + 1} of the {promised} that its header promises: it is cut off"
            )
        data += block
        start = 0
        while len(words) < wanted:
            start += data[start : start + 1] == b"\n"
            space = data.find(b" ", start)
            stop = space + 1 + nbytes
            if space < 0 or space - start > WORD_NBYTES:
                if len(data) - start > WORD_NBYTES:
                    raise source.error(f"no space within {WORD_NBYTES} bytes after word {len(words)}: not this format")
                break
            if stop > len(data):
                break
            vectors[len(words)] = np.frombuffer(data, "<f4", dimensions, space + 1)
            words.append(word_of(source, data[start:space], len(words)))
            start = stop
        data = data[start:]
    if wanted == promised and (data + source.take(2)).strip(b"\n"):
        raise source.error(f"goes on after the {promised} words that its header promises: the header is wrong")
    if (row := first_not_finite(vectors)) is not None:
        raise source.error(f"the vector of {words[row]!r} (word {row + 1}) has NaN or infinity in it")
    if (twice := first_repeated(words)) is not None:
        raise source.error(f"the word {words[twice[1]]!r} is both word {twice[0] + 1} and word {twice[1] + 1}")
    return WordVectors(tuple(words), vectors)


def word_of(source: Source, word: bytes, row: int) -> str:
    if not word:
        raise source.error(f"word {row + 1} is empty: not this format, or the dimensions in the header are wrong")
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise _undecodable(source, word, row) from None


def _undecodable(source: Source, word: bytes, row: int) -> WordVectorsError:
    shown = word[:20].decode("utf-8", "backslashreplace")
    return source.error(f"word {row + 1}, {shown!r}, is not UTF-8: not this format, or the header is wrong")
