"""The index of a store: its words, its sentences and what stands at each row, as plain columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Strings:
    """Many strings in two arrays, as Arrow keeps them: `offsets` int64 [n + 1] into `data`, uint8 UTF-8 bytes."""

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(item) for item in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.slice(0, len(self)))

    def slice(self, start: int, stop: int) -> list[str]:
        """The strings `[start, stop)`, read in one piece."""
        offsets = self.offsets[start : stop + 1].tolist()
        text = self.data[offsets[0] : offsets[-1]].tobytes()
        base = offsets[0]
        return [
            text[left - base : right - base].decode() for left, right in zip(offsets[:-1], offsets[1:], strict=True)
        ]


@dataclass(frozen=True)
class Labels:
    """One label column: `codes` int32 [occurrence], rows of `names`, -1 for none."""

    codes: NDArray[np.int32]
    names: Strings


@dataclass(frozen=True)
class Index:
    """All columns of a store but its vectors; arrays may be memory-mapped.

    `type`: int32 [occurrence], row of `words`. `sentence`: int64 [occurrence], row of `texts`, never falling.
    `position`: int32 [occurrence], index of the (first) word in its sentence. `subwords`: int16 [occurrence].
    `words`: the distinct forms; a form of several words joined by single spaces covers as many words from
    `position` on. `texts`: the words of each sentence that has a row, joined by one space.
    `indptr`: int64 [sentences + 1], the rows of each sentence. `source`: int64 [sentences], the sentence's
    number in the corpus. Where the unit is the subword, the forms are the spellings of subwords, and the subwords
    of a word follow each other at the word's position.
    """

    type: NDArray[np.int32]
    sentence: NDArray[np.int64]
    position: NDArray[np.int32]
    subwords: NDArray[np.int16]
    words: Strings
    texts: Strings
    indptr: NDArray[np.int64]
    source: NDArray[np.int64]
    labels: Mapping[str, Labels] = field(default_factory=dict)
