"""fastText's binary models, memory-mapped: the vector of a word is composed of its n-grams."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embstore.errors import WordVectorsError
from embstore.vectors.mapped import MappedFile, sha256_of_files
from embstore.vectors.word_vectors import VectorTable, first_nonfinite

MAGIC = struct.pack("<i", 793712314)
WORD_NBYTES = 2**16
WORDS_AT_ONCE = 1024
END_OF_SENTENCE = "</s>"  # has no n-grams in fastText
_HEADER = struct.Struct("<2i12id3i2q")
_ENTRY = struct.Struct("<qb")
_MATRIX = struct.Struct("<?2q")


class FastTextTable(VectorTable):
    """The words of a fastText model: a word's vector is the mean over its own row and the rows of its n-grams.

    A word that is not in the vocabulary, as spelled or in lower case, has the mean over its n-grams; if it is too short
    for any, or the model was trained without them, it has no vector. Raises WordVectorsError for a file that is cut
    off, quantised (.ftz) or of an older format.
    """

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        try:
            position = self._read_words()
            quantised, n_rows, self.dimensions = _MATRIX.unpack_from(file.data, position)
        except struct.error:
            raise self._error("it is cut off") from None
        if quantised:
            raise self._error("it is quantised: use the .bin file of the same model")
        if (n_rows, self.dimensions) != self._shape:
            expected = " x ".join(map(str, self._shape))
            raise self._error(f"its matrix is {n_rows} x {self.dimensions}, its header says {expected}")
        position += _MATRIX.size
        if position + 4 * n_rows * self.dimensions > len(file.data):
            raise self._error("it is cut off")
        # As bytes: the numbers need not be aligned, and numpy would copy a whole unaligned array to gather from it.
        flat = np.frombuffer(file.data, np.uint8, 4 * n_rows * self.dimensions, position)
        self._matrix = flat.reshape(n_rows, 4 * self.dimensions)

    @cached_property
    def sha256(self) -> str:
        return sha256_of_files(self._file.path)

    def holds(self, word: str) -> bool:
        return self._row(word) is not None

    def has(self, word: str) -> bool:
        return self.holds(word) or next(self._ngram_rows(word), None) is not None

    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(words), self.dimensions), np.float32)
        for start in range(0, len(words), WORDS_AT_ONCE):
            some = words[start : start + WORDS_AT_ONCE]
            rows = [self._rows(word) for word in some]
            counts = np.array(list(map(len, rows)), np.int64)
            if not counts.all():
                raise KeyError(some[int(counts.argmin())])
            gathered = self._matrix[np.concatenate(rows)].view("<f4")
            sums = np.add.reduceat(gathered, np.cumsum(counts) - counts)
            vectors[start : start + len(some)] = sums / counts[:, None]
        if (row := first_nonfinite(vectors)) is not None:
            raise self._error(f"the vector of {words[row]!r} has NaN or infinity in it")
        return vectors

    def _row(self, word: str) -> int | None:
        row = self._row_of.get(word)
        return self._row_of.get(word.lower()) if row is None else row

    def _rows(self, word: str) -> list[int]:
        """Return the rows whose mean is the vector of a word: its own, if it has one, and those of its n-grams."""
        row = self._row(word)
        if row is None:
            return list(self._ngram_rows(word))
        own = self._words[row]
        return [row] if own == END_OF_SENTENCE else [row, *self._ngram_rows(own)]

    def _ngram_rows(self, word: str) -> Iterator[int]:
        """Yield the row of each n-gram of "<word>", cut and hashed as by fastText (FNV-1a over signed bytes)."""
        if not self._n_buckets:
            return
        letters = [letter.encode("utf-8", "surrogatepass") for letter in f"<{word}>"]
        for start in range(len(letters)):
            value = 2166136261
            for length, letter in enumerate(letters[start : start + self._max_n], 1):
                for byte in letter:
                    value = (value ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619 & 0xFFFFFFFF
                is_boundary = length == 1 and (start == 0 or start == len(letters) - 1)
                if length >= self._min_n and not is_boundary:
                    yield len(self._row_of) + value % self._n_buckets

    def _read_words(self) -> int:
        """Read header and vocabulary; returns the position of the matrix."""
        data = self._file.data
        header = _HEADER.unpack_from(data)
        dimensions = header[2]
        n_buckets, self._min_n, self._max_n = header[10:13]
        n_entries, n_words = header[15:17]
        n_pruned = header[19]
        self._shape = n_words + n_buckets, dimensions
        self._n_buckets = n_buckets if self._max_n > 0 else 0
        if min(n_entries, n_words, n_buckets) < 0 or dimensions < 1 or n_words > n_entries:
            raise self._error("its header is not valid: the file is damaged")
        if n_pruned >= 0:
            raise self._error("its n-grams are pruned, which is not supported: use the .bin file of the same model")
        self._row_of: dict[str, int] = {}
        self._words: list[str] = []
        position = _HEADER.size
        for row in range(n_entries):
            stop = data.find(b"\0", position, position + WORD_NBYTES)
            if stop < 0:
                raise self._error(f"it ends, or is damaged, in word {row + 1} of {n_entries}")
            spelled = data[position:stop]
            _, is_label = _ENTRY.unpack_from(data, stop + 1)
            position = stop + 1 + _ENTRY.size
            if row < n_words and not is_label:
                word = spelled.decode("utf-8", "backslashreplace")
                if self._row_of.setdefault(word, row) != row:
                    raise self._error(f"the word {word!r} is in it twice")
                self._words.append(word)
        if len(self._words) != n_words:
            raise self._error("its words and labels are out of order: the file is damaged")
        return position

    def _error(self, reason: str) -> WordVectorsError:
        return self._file.error(f"cannot be read as a fastText model: {reason}")
