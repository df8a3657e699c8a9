"""Sketches of vectors: a few bits of each feature, and upper bounds of what the bits leave out.

A sketch holds the vectors minus their mean, rotated to principal components, in levels of 64 components. A level has 4
bits of each, the scale of the row, and two lengths that are never too small: of the error of these codes, and of the
components of all further levels. By the Cauchy-Schwarz inequality they bound any product with a query.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, NonFiniteError, StoreDamagedError, quoted
from embstore.store.storage.base import Storage
from embstore.store.storage.files import regular_file

LEVEL, GROUP = 64, 16  # components of a level; rows that the first level holds together, as the kernels do
ROW_NBYTES, GROUP_NBYTES = LEVEL // 2 + 6, GROUP * (LEVEL // 2 + 6)
MAX_LEVELS = 16
STEP = 0.335  # between codes, in standard deviations: the least squared error of 16 codes of a normal distribution
LEAST_DEVIATION = 1e-3  # of a component, of the largest
LONGEST = 1e15  # of a vector: its square, and products with it, fit float32
SLACK = 1e-9  # of the length of a vector: far above the rounding of float64 in its rotation
SLACK_OF_CODES = 2.0**-16  # likewise of float32 in the codes: above the rounding of 64 products and their sum
MAX_GAP = 2**15  # bytes between two records that one request reads both of


@dataclass(frozen=True)
class Rotation:
    """What a sketch subtracts and multiplies with: `mean` [d], `directions` [components, d], `steps` [components]."""

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    steps: NDArray[np.float64]

    @property
    def n_levels(self) -> int:
        return len(self.directions) // LEVEL

    def as_bytes(self) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, mean=self.mean, directions=self.directions, steps=self.steps)
        return buffer.getvalue()

    @classmethod
    def read(cls, source: Any, hidden_size: int, n_levels: int) -> Rotation:
        """Read `as_bytes` from a file; raises StoreDamagedError."""
        shapes = {"mean": (hidden_size,), "directions": (n_levels * LEVEL, hidden_size), "steps": (n_levels * LEVEL,)}
        try:
            with np.load(source, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in shapes}
        except (OSError, ValueError, KeyError, EOFError, MemoryError, AttributeError, TypeError, BadZipFile) as error:
            raise StoreDamagedError(f"the rotation of a sketch cannot be read ({quoted(error)})") from None
        for name, shape in shapes.items():
            if found[name].shape != shape or found[name].dtype != np.float64 or not np.isfinite(found[name]).all():
                raise StoreDamagedError(f"the {name} of a sketch are not {shape} of finite float64")
        return cls(**found)

    @classmethod
    def learn(cls, sample: NDArray[np.floating], mean: NDArray[np.float64]) -> Rotation:
        """Principal components of the directions of a sample of vectors [n, d] around their `mean`."""
        size = len(mean)
        n_levels = min(MAX_LEVELS, -(-size // LEVEL))
        differences = sample - mean
        lengths = np.sqrt(np.square(differences).sum(1, keepdims=True))
        differences /= np.where(lengths > 0, lengths, 1)
        variances, vectors = np.linalg.eigh(differences.T @ differences / len(sample))
        n_kept = min(size, n_levels * LEVEL)
        directions, deviations = np.zeros((n_levels * LEVEL, size)), np.zeros(n_levels * LEVEL)
        directions[:n_kept] = vectors[:, ::-1][:, :n_kept].T
        if np.abs(directions[:n_kept] @ directions[:n_kept].T - np.eye(n_kept)).sum(1).max() > SLACK / 100:
            raise InvalidValueError("the principal components of this layer are not orthogonal: search it without")
        spread = np.sqrt(np.maximum(variances[::-1][:n_kept], 0))
        deviations[:n_kept] = np.maximum(spread, LEAST_DEVIATION * spread[0] if spread[0] > 0 else 1.0)
        return cls(mean, directions, STEP * deviations)

    def encode(self, vectors: NDArray[np.floating]) -> Encoded:
        """The sketch of vectors [n, d]; raises NonFiniteError with the number of a vector that has none."""
        given = np.asarray(vectors, np.float64)
        differences = given - self.mean
        squares = np.square(differences).sum(1)
        norms = np.sqrt(np.stack([np.square(given).sum(1), squares]))
        invalid = np.flatnonzero(~(norms[0] < LONGEST))
        if len(invalid):
            raise NonFiniteError(str(invalid[0]))
        rotated = differences @ self.directions.T
        slack, left, levels = SLACK_OF_CODES * norms[1], squares.copy(), []
        for first in range(0, len(self.steps), LEVEL):
            values = rotated[:, first : first + LEVEL]
            left -= np.square(values).sum(1)
            tails = np.sqrt(np.maximum(left, 0) + SLACK * squares)
            codes, scales, errors = self._quantized(values.astype(np.float32), self.steps[first : first + LEVEL])
            lengths = np.stack([as_bfloat(scales), bound_as_bfloat(errors + slack), bound_as_bfloat(tails)], 1)
            levels.append((codes, lengths))
        return Encoded(norms.astype(np.float32), levels)

    @staticmethod
    def _quantized(
        values: NDArray[np.float32], steps: NDArray[np.float64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float64]]:
        """Codes [n, LEVEL], the scale of each row as it is stored, and the length of the error."""
        single = steps.astype(np.float32)
        in_steps = values / np.where(single > 0, single, 1)
        scales = STEP * np.sqrt(np.square(in_steps).sum(1) / max(1, np.count_nonzero(single)))
        codes = in_steps / np.maximum(scales, np.finfo(np.float32).tiny)[:, None]
        np.clip(np.floor(codes, out=codes), -8, 7, out=codes)
        unscaled = (codes + np.float32(0.5)) * single
        squares = np.maximum(np.square(unscaled).sum(1), np.finfo(np.float32).tiny)
        scales = of_bfloat(as_bfloat(np.maximum((values * unscaled).sum(1) / squares, 0)))
        errors = np.sqrt(np.square(values - scales[:, None] * unscaled).sum(1, dtype=np.float64))
        return (codes + 8).astype(np.uint8), scales, errors


def as_bfloat(values: NDArray[np.floating]) -> NDArray[np.uint16]:
    """The nearest bfloat16, as bits; of values from 0 on."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) >> 16).astype(np.uint16)


def bound_as_bfloat(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """The lowest bfloat16 that is not below a value, as bits; of values from 0 on."""
    single = values.astype(np.float32)
    single = np.where(single < values, np.nextafter(single, np.float32(np.inf)), single)
    return ((single.view(np.uint32) + 0xFFFF) >> 16).astype(np.uint16)


def of_bfloat(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Encoded:
    """Sketched vectors: `norms` [2, n], of the vectors and of their differences from the mean; codes of each level."""

    norms: NDArray[np.float32]
    levels: list[tuple[NDArray[np.uint8], NDArray[np.uint16]]]

    def groups(self) -> NDArray[np.uint8]:
        """The first level in groups of rows: [group, GROUP_NBYTES]."""
        codes, lengths = self.levels[0]
        missing = -len(codes) % GROUP
        codes = np.concatenate([codes, np.zeros((missing, LEVEL), np.uint8)])
        lengths = np.concatenate([lengths, np.zeros((missing, 3), np.uint16)])
        pairs = codes.reshape(-1, GROUP, LEVEL // 2, 2)
        packed = (pairs[..., 0] | pairs[..., 1] << 4).transpose(0, 2, 1).reshape(len(pairs), -1)
        others = lengths.reshape(-1, GROUP, 3).transpose(0, 2, 1).reshape(len(pairs), -1)
        return np.concatenate([packed, np.ascontiguousarray(others).view(np.uint8)], 1)

    def records(self, level: int) -> NDArray[np.uint8]:
        """A further level by row: [n, ROW_NBYTES]."""
        codes, lengths = self.levels[level]
        packed = codes[:, : LEVEL // 2] | codes[:, LEVEL // 2 :] << 4
        return np.concatenate([packed, np.ascontiguousarray(lengths).view(np.uint8)], 1)


@dataclass(frozen=True)
class Layout:
    """Where the parts of a sketch are in its file: both norms of all rows, the first level, the others."""

    n_rows: int
    n_levels: int

    @property
    def n_padded(self) -> int:
        return self.n_groups * GROUP

    @property
    def n_groups(self) -> int:
        return -(-self.n_rows // GROUP)

    @property
    def groups_at(self) -> int:
        return 8 * self.n_padded

    def records_at(self, level: int) -> int:
        return self.groups_at + self.n_groups * GROUP_NBYTES + (level - 1) * self.n_rows * ROW_NBYTES

    @property
    def nbytes(self) -> int:
        return self.records_at(self.n_levels)


class Codes(Protocol):
    """The file of a sketch: `norms` of rows from `first` to `stop`, both multiples of GROUP, and their first level.

    `records`: those of some rows in a further level, and the position of each row among them; of line i of `rows`
    [q, c], the first filled[i] are set.
    """

    def norms(self, centered: bool, first: int, stop: int) -> NDArray[np.float32]: ...
    def groups(self, first: int, stop: int) -> NDArray[np.uint8]: ...
    def records(
        self, level: int, rows: NDArray[np.int64], filled: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]: ...


class MappedCodes:
    """The file of a sketch on a disk, mapped into memory."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        self._bytes = np.memmap(regular_file(path), np.uint8, "r", shape=(layout.nbytes,))

    def norms(self, centered: bool, first: int, stop: int) -> NDArray[np.float32]:
        start = 4 * centered * self._layout.n_padded
        return np.asarray(self._bytes[start + 4 * first : start + 4 * stop]).view(np.float32)

    def groups(self, first: int, stop: int) -> NDArray[np.uint8]:
        start, nbytes = self._layout.groups_at, ROW_NBYTES
        return np.asarray(self._bytes[start + first * nbytes : start + stop * nbytes]).reshape(-1, GROUP_NBYTES)

    def records(
        self, level: int, rows: NDArray[np.int64], filled: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        start = self._layout.records_at(level)
        part = np.asarray(self._bytes[start : start + self._layout.n_rows * ROW_NBYTES])
        return part.reshape(-1, ROW_NBYTES), rows


@dataclass(frozen=True)
class StoredCodes:
    """The file of a sketch in a bucket, read by ranges; `key`: where it is below the storage."""

    storage: Storage
    key: str
    layout: Layout

    def norms(self, centered: bool, first: int, stop: int) -> NDArray[np.float32]:
        start = 4 * centered * self.layout.n_padded
        return self._range(start + 4 * first, start + 4 * stop).view(np.float32)

    def groups(self, first: int, stop: int) -> NDArray[np.uint8]:
        start = self.layout.groups_at
        return self._range(start + first * ROW_NBYTES, start + stop * ROW_NBYTES).reshape(-1, GROUP_NBYTES)

    def records(
        self, level: int, rows: NDArray[np.int64], filled: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        start, known = self.layout.records_at(level), np.arange(rows.shape[1]) < filled[:, None]
        wanted, places = np.unique(rows[known], return_inverse=True)
        parts = np.split(wanted, np.flatnonzero(np.diff(wanted) * ROW_NBYTES > MAX_GAP) + 1)
        ends = [(start + int(each[0]) * ROW_NBYTES, start + (int(each[-1]) + 1) * ROW_NBYTES) for each in parts]
        read = [self._range(*end).reshape(-1, ROW_NBYTES)[own - own[0]] for end, own in zip(ends, parts, strict=True)]
        out = np.zeros(rows.shape, np.int64)
        out[known] = places
        return np.concatenate(read), out

    def _range(self, start: int, stop: int) -> NDArray[np.uint8]:
        return np.frombuffer(self.storage.get_range(self.key, start, stop), np.uint8)


@dataclass(frozen=True)
class Sketch:
    """An open sketch of a layer; `longest`: the length of its longest vector; `vector_nbytes`: of one as stored."""

    rotation: Rotation
    codes: Codes
    layout: Layout
    longest: float
    vector_nbytes: int

    @cached_property
    def mean_length(self) -> float:
        return float(np.linalg.norm(self.rotation.mean))


def write_codes(
    path: Path, blocks: Iterable[tuple[int, NDArray[np.floating]]], n_rows: int, rotation: Rotation, what: str
) -> float:
    """Write the sketch of vectors that come in blocks, each from a row on that is a multiple of GROUP.

    Returns the length of the longest vector. Raises NonFiniteError, which says of `what` a row is.
    """
    layout = Layout(n_rows, rotation.n_levels)
    longest = 0.0
    with path.open("wb") as file:
        file.truncate(layout.nbytes)
        for start, vectors in blocks:
            try:
                encoded = rotation.encode(vectors)
            except NonFiniteError as error:
                raise NonFiniteError(
                    f"{what}, row {start + int(str(error))} holds a value that is not finite or too large for float32: "
                    "run embstore verify"
                ) from None
            parts = [(4 * (number * layout.n_padded + start), norms) for number, norms in enumerate(encoded.norms)]
            parts.append((layout.groups_at + start * ROW_NBYTES, encoded.groups()))
            for level in range(1, layout.n_levels):
                parts.append((layout.records_at(level) + start * ROW_NBYTES, encoded.records(level)))
            for at, values in parts:
                file.seek(at)
                file.write(values.tobytes())
            longest = max(longest, float(encoded.norms[0].max()))
    return longest
