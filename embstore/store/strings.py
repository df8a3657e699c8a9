"""A column of strings in two arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

_FIND_BLOCK = 1 << 20
_COUNT_BLOCK = 1 << 12


@dataclass(frozen=True)
class Strings:
    """A column of strings in two arrays, as in Arrow: `offsets` int64 [n + 1] into `data`, uint8 UTF-8 bytes."""

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

    def __repr__(self) -> str:
        return f"<Strings: {len(self):,} texts>"

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.slice(0, len(self)))

    @cached_property
    def enumeration(self) -> pl.Series:
        """All strings and a null as a Polars enumeration: to make its type takes long, to gather from it does not.

        Raises ValueError where they are not distinct.
        """
        import polars as pl

        return pl.Series([*range(len(self)), None], dtype=pl.UInt32).cat.to(pl.Enum(list(self)))

    def n_words(self) -> NDArray[np.int64]:
        """Return how many words each string has, int64 [n]: its spaces and one."""
        return self._counts(lambda data: data == ord(" ")) + 1

    def n_characters(self) -> NDArray[np.int64]:
        """Return how many characters each string has, int64 [n]."""
        return self._counts(lambda data: data & 0xC0 != 0x80)

    def _counts(self, is_counted: Callable[[NDArray[np.uint8]], NDArray[np.bool_]]) -> NDArray[np.int64]:
        """Return how many bytes of each string are counted."""
        counts = np.empty(len(self), np.int64)
        for start in range(0, len(self), _COUNT_BLOCK):
            offsets = self.offsets[start : start + _COUNT_BLOCK + 1]
            data = self.data[offsets[0] : offsets[-1]]
            before = np.zeros(len(data) + 1, np.int32)
            np.cumsum(is_counted(data), dtype=np.int32, out=before[1:])
            counts[start : start + _COUNT_BLOCK] = np.diff(before[offsets - offsets[0]])
        return counts

    def slice(self, start: int, stop: int) -> list[str]:
        """Return the strings `[start, stop)`, decoded from one contiguous read."""
        offsets = self.offsets[start : stop + 1].tolist()
        if len(offsets) < 2:
            return []
        text = self.data[offsets[0] : offsets[-1]].tobytes()
        base = offsets[0]
        return [text[left - base : right - base].decode() for left, right in pairwise(offsets)]

    def take(self, chosen: NDArray[np.int64]) -> list[str]:
        """Return the strings at some positions."""
        data = memoryview(self.data)  # type: ignore[arg-type]
        bounds = zip(self.offsets[chosen].tolist(), self.offsets[chosen + 1].tolist(), strict=True)
        return [str(data[start:stop], "utf-8") for start, stop in bounds]

    def find(self, string: str) -> int | None:
        """Return the position of the first equal string, or None; compares bytes without decoding them."""
        try:
            wanted = np.frombuffer(string.encode(), np.uint8)
        except UnicodeEncodeError:  # half of a character, which no UTF-8 text holds
            return None
        for start in range(0, len(self), _FIND_BLOCK):
            offsets = self.offsets[start : start + _FIND_BLOCK + 1]
            candidates = np.flatnonzero(np.diff(offsets) == len(wanted))
            for position, byte in enumerate(wanted):
                if not len(candidates):
                    break
                candidates = candidates[self.data[offsets[candidates] + position] == byte]
            if len(candidates):
                return start + int(candidates[0])
        return None

    def subset(self, chosen: NDArray[np.int64]) -> Strings:
        """Return some of the strings (positions, ascending); neighbours are copied together."""
        starts, stops = self.offsets[chosen], self.offsets[chosen + 1]
        offsets = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(stops - starts, out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        firsts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
        lasts = np.append(firsts, len(chosen))[1:]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            data[offsets[first] : offsets[last]] = self.data[starts[first] : stops[last - 1]]
        return Strings(offsets, data)
