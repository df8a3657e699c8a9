"""fastText's binary models, memory-mapped: every word has a vector, made of its n-grams."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import WordVectorsError
from embstore.vectors.lookup import VectorTable
from embstore.vectors.mapped import map_file
from embstore.vectors.vectors import first_not_finite

MAGIC = struct.pack("<i", 793712314)
WORD_NBYTES = 2**16
WORDS_AT_ONCE = 1024
END_OF_SENTENCE = "</s>"  # has no n-grams in fastText
_HEADER = struct.Struct("<2i12id3i2q")
_ENTRY = struct.Struct("<qb")
_MATRIX = struct.Struct("<?2q")


class FastTextTable(VectorTable):
    """Words of a fastText model: a word's vector is the mean over its own row and those of its n-grams.

    A word that is not in the vocabulary, as it is spelled or lower-cased, has the mean over its n-grams; where it
    is too short for any, or the model was trained without them, it has no vector. Raises WordVectorsError for a
    file that is cut off, quantised (.ftz) or of an older format.
    """

    def __init__(self, path: Path, *, sha256: str) -> None:
        self.sha256 = sha256
        self._path = path
        data = map_file(path)
        try:
            position = self._read_words(data)
            quantised, rows, self.dimensions = _MATRIX.unpack_from(data, position)
        except struct.error:
            raise self._error("it is cut off") from None
        if quantised:
            raise self._error("it is quantised: quantised models are not read, take the .bin of the same model")
        if (rows, self.dimensions) != self._promised:
            promised = " x ".join(map(str, self._promised))
            raise self._error(f"its matrix is {rows} x {self.dimensions}, its header says {promised}")
        position += _MATRIX.size
        if position + 4 * rows * self.dimensions > len(data):
            raise self._error("it is cut off")
        # As bytes: the numbers need not be aligned, and numpy would copy a whole unaligned array to gather from it.
        flat = np.frombuffer(data, np.uint8, 4 * rows * self.dimensions, position)
        self._matrix = flat.reshape(rows, 4 * self.dimensions)

    def holds(self, word: str) -> bool:
        return self._place_of(word) is not None

    def has(self, word: str) -> bool:
        return self.holds(word) or next(self._ngrams(word), None) is not None

    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(words), self.dimensions), np.float32)
        for start in range(0, len(words), WORDS_AT_ONCE):
            some = words[start : start + WORDS_AT_ONCE]
            rows = [self._rows_of(word) for word in some]
            counts = np.array(list(map(len, rows)), np.int64)
            if not counts.all():
                raise KeyError(some[int(counts.argmin())])
            gathered = self._matrix[np.concatenate(rows)].view("<f4")
            sums = np.add.reduceat(gathered, np.cumsum(counts) - counts)
            vectors[start : start + len(some)] = sums / counts[:, None]
        if (row := first_not_finite(vectors)) is not None:
            raise self._error(f"the vector of {words[row]!r} has NaN or infinity in it")
        return vectors

    def _place_of(self, word: str) -> int | None:
        place = self._places.get(word)
        return self._places.get(word.lower()) if place is None else place

    def _rows_of(self, word: str) -> list[int]:
        place = self._place_of(word)
        if place is None:
            return list(self._ngrams(word))
        own = self._words[place]
        return [place] if own == END_OF_SENTENCE else [place, *self._ngrams(own)]

    def _ngrams(self, word: str) -> Iterator[int]:
        """Yield the row of every n-gram of "<word>", as fastText cuts and hashes them (FNV-1a over signed bytes)."""
        if not self._buckets:
            return
        letters = [letter.encode("utf-8", "surrogatepass") for letter in f"<{word}>"]
        for start in range(len(letters)):
            value = 2166136261
            for many, letter in enumerate(letters[start : start + self._longest], 1):
                for byte in letter:
                    value = (value ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619 & 0xFFFFFFFF
                edge = many == 1 and (start == 0 or start == len(letters) - 1)
                if many >= self._shortest and not edge:
                    yield len(self._places) + value % self._buckets

    def _read_words(self, data: mmap.mmap) -> int:
        """Read header and vocabulary; returns where the matrix begins."""
        header = _HEADER.unpack_from(data)
        dimensions = header[2]
        buckets, self._shortest, self._longest = header[10:13]
        size, words = header[15:17]
        pruned = header[19]
        self._promised = words + buckets, dimensions
        self._buckets = buckets if self._longest > 0 else 0
        if min(size, words, buckets) < 0 or dimensions < 1 or words > size:
            raise self._error("its header makes no sense: the file is damaged")
        if pruned >= 0:
            raise self._error("its n-grams are pruned: such models are not read, take the .bin of the same model")
        self._places: dict[str, int] = {}
        self._words: list[str] = []
        position = _HEADER.size
        for row in range(size):
            stop = data.find(b"\0", position, position + WORD_NBYTES)
            if stop < 0:
                raise self._error(f"it ends, or goes wrong, in word {row + 1} of {size}")
            spelled = data[position:stop]
            _, is_label = _ENTRY.unpack_from(data, stop + 1)
            position = stop + 1 + _ENTRY.size
            if row < words and not is_label:
                word = spelled.decode("utf-8", "backslashreplace")
                if self._places.setdefault(word, row) != row:
                    raise self._error(f"the word {word!r} stands in it twice")
                self._words.append(word)
        if len(self._words) != words:
            raise self._error("its words and labels do not stand in their places: the file is damaged")
        return position

    def _error(self, reason: str) -> WordVectorsError:
        return WordVectorsError(f"{self._path}: cannot be read as a fastText model: {reason}")
