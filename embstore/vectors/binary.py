"""word2vec's binary format: a header line, then for each entry the word, a space and its float32 numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.vectors.mapped import MappedFile, sha256_of_files
from embstore.vectors.table import RowTable
from embstore.vectors.word_vectors import first_repeated

WORD_NBYTES = 2**16


def open_binary(file: MappedFile, *, limit: int | None = None) -> RowTable:
    """Open a binary file: the words are read now, and a vector when its word is looked up.

    A newline after a vector, as word2vec writes it, is optional. `limit`: only the first words. Raises WordVectorsError
    for a file that is cut off, has more data than the header says, or repeats a word.
    """
    n_promised, dimensions = file.header()
    n_wanted = n_promised if limit is None else min(n_promised, limit)
    data = file.data
    nbytes, position = 4 * dimensions, data.find(b"\n") + 1
    begins: list[int] = []
    words: list[str] = []
    for row in range(n_wanted):
        position += data[position : position + 1] == b"\n"
        space = data.find(b" ", position, position + WORD_NBYTES + 1)
        if space < 0 and position + WORD_NBYTES < len(data):
            raise file.error(f"no space within {WORD_NBYTES} bytes after word {row}: not this format")
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
