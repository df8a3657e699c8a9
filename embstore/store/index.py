"""The index of a store: its words, its sentences and what stands at each row, as plain columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIND_BLOCK = 1 << 20


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
        if len(offsets) < 2:
            return []
        text = self.data[offsets[0] : offsets[-1]].tobytes()
        base = offsets[0]
        return [text[left - base : right - base].decode() for left, right in pairwise(offsets)]

    def find(self, string: str) -> int | None:
        """The first place of a string, or None; compares bytes, so that no other string is decoded."""
        wanted = np.frombuffer(string.encode(), np.uint8)
        for start in range(0, len(self), _FIND_BLOCK):
            offsets = self.offsets[start : start + _FIND_BLOCK + 1]
            places = np.flatnonzero(np.diff(offsets) == len(wanted))
            for position, byte in enumerate(wanted):
                if not len(places):
                    break
                places = places[self.data[offsets[places] + position] == byte]
            if len(places):
                return start + int(places[0])
        return None


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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The columns under the names that they have in a store."""
        arrays: dict[str, NDArray[Any]] = {
            "occurrence/type": self.type,
            "occurrence/sentence": self.sentence,
            "occurrence/position": self.position,
            "occurrence/subwords": self.subwords,
            "type/form_offsets": self.words.offsets,
            "type/form_bytes": self.words.data,
            "sentence/text_offsets": self.texts.offsets,
            "sentence/text_bytes": self.texts.data,
            "sentence/indptr": self.indptr,
            "sentence/source": self.source,
        }
        for column, labels in self.labels.items():
            arrays[f"occurrence/label/{column}"] = labels.codes
            arrays[f"label/{column}/name_offsets"] = labels.names.offsets
            arrays[f"label/{column}/name_bytes"] = labels.names.data
        return arrays

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Index:
        """The inverse of `arrays`; other names are passed over."""
        prefix = "occurrence/label/"
        columns = [path[len(prefix) :] for path in sorted(arrays) if path.startswith(prefix)]
        return cls(
            type=arrays["occurrence/type"],
            sentence=arrays["occurrence/sentence"],
            position=arrays["occurrence/position"],
            subwords=arrays["occurrence/subwords"],
            words=Strings(arrays["type/form_offsets"], arrays["type/form_bytes"]),
            texts=Strings(arrays["sentence/text_offsets"], arrays["sentence/text_bytes"]),
            indptr=arrays["sentence/indptr"],
            source=arrays["sentence/source"],
            labels={
                column: Labels(
                    arrays[prefix + column],
                    Strings(arrays[f"label/{column}/name_offsets"], arrays[f"label/{column}/name_bytes"]),
                )
                for column in columns
            },
        )
