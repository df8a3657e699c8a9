"""Sketches of vectors: a few bits of each feature, and upper bounds of what the bits leave out.

A sketch holds the vectors minus their mean, rotated to principal components, in levels of 64 components. A level has 4
bits of each, the scale of the row, and two lengths that are never too small: of the error of these codes, and of the
components of all further levels. By the Cauchy-Schwarz inequality they bound any product with a query. The rows of each
segment are ordered by clusters, so that those that a query leaves out are together. What is read is
checked: norms and the first levels when a process first reads them, a record of a further level each time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, NonFiniteError, SearchIndexError, StoreDamagedError, quoted
from embstore.kernels import will_need
from embstore.store.storage.base import Storage
from embstore.store.storage.files import crc32c, regular_file

LEVEL, GROUP, GROUPED = 64, 16, 3  # components of a level; rows that the first levels hold together; how many do
OFFSETS = 2  # the number of the streamed part that has the rows
GROUP_NBYTES, RECORD_NBYTES = GROUP * (LEVEL // 2 + 6), LEVEL // 2 + 8  # of a group, and of a row in a further level
SEGMENT, CLUSTER_ROWS = 2**16, 256  # rows that are ordered by what they are like, and of a cluster of them
CLUSTER_SAMPLE, CLUSTER_STEPS = 32, 3  # rows for each center, and times that the centers are moved
CHECKED_ROWS = 4096  # rows of a part of the file that has a checksum
MAX_LEVELS = 16
FLAT = 1.5  # the largest deviation of a component, in medians, up to which no component is much larger than others
STEP = 0.335  # between codes, in standard deviations: the least squared error of 16 codes of a normal distribution
LEAST_DEVIATION = 1e-3  # of a component, of the largest
LONGEST = 1e15  # of a vector: its square, and products with it, fit float32
NORM_ROUNDING = 2.0**-9  # of the norm of a vector as it is stored: the most that it is off
SLACK = 1e-9  # of the length of a vector: far above the rounding of float64 in its rotation
SLACK_OF_CODES = 2.0**-16  # likewise of float32 in the codes: above the rounding of 64 products and their sum
MAX_GAP = 2**15  # bytes between two records that one request reads both of
Wanted = Callable[[], NDArray[np.bool_]]


@dataclass(frozen=True)
class Rotation:
    """What a sketch subtracts and multiplies with: `mean` [d], `directions` [components, d], `steps` [components]."""

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    steps: NDArray[np.float64]

    @property
    def n_levels(self) -> int:
        return len(self.directions) // LEVEL

    @property
    def is_flat(self) -> bool:
        """Whether no component is much larger than others: as of random vectors, the first levels tell too little."""
        return self.n_levels > GROUPED and bool(self.steps.max() < FLAT * np.median(self.steps[self.steps > 0]))

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


def as_norms(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest float32 of which only the 16 bits after the sign are set, as these bits; of values from 0 on."""
    return ((values.view(np.uint32) + 0x4000) >> 15).astype(np.uint16)


def of_norms(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 15).view(np.float32)


@dataclass(frozen=True)
class Encoded:
    """Sketched vectors: `norms` [2, n], of the vectors and of their differences from the mean; codes of each level."""

    norms: NDArray[np.float32]
    levels: list[tuple[NDArray[np.uint8], NDArray[np.uint16]]]

    @classmethod
    def joined(cls, parts: list[Encoded]) -> Encoded:
        levels = [
            (np.concatenate([codes for codes, _ in own]), np.concatenate([lengths for _, lengths in own]))
            for own in zip(*(part.levels for part in parts), strict=True)
        ]
        return cls(np.concatenate([part.norms for part in parts], 1), levels)

    def ordered(self, order: NDArray[np.int64]) -> Encoded:
        return Encoded(self.norms[:, order], [(codes[order], lengths[order]) for codes, lengths in self.levels])

    def groups(self, level: int) -> NDArray[np.uint8]:
        """One of the first levels in groups of rows: [group, GROUP_NBYTES]."""
        codes, lengths = self.levels[level]
        missing = -len(codes) % GROUP
        codes = np.concatenate([codes, np.zeros((missing, LEVEL), np.uint8)])
        lengths = np.concatenate([lengths, np.zeros((missing, 3), np.uint16)])
        fours = codes.reshape(-1, GROUP, LEVEL // 8, 2, 4)
        packed = (fours[..., 0, :] | fours[..., 1, :] << 4).transpose(0, 2, 1, 3).reshape(len(fours), -1)
        others = lengths.reshape(-1, GROUP, 3).transpose(0, 2, 1).reshape(len(fours), -1)
        return np.concatenate([packed, np.ascontiguousarray(others).view(np.uint8)], 1)

    def records(self, level: int, first: int) -> NDArray[np.uint8]:
        """A further level by row, of rows from `first` on: [n, RECORD_NBYTES]; the last word is a checksum."""
        codes, lengths = self.levels[level]
        packed = codes[:, : LEVEL // 2] | codes[:, LEVEL // 2 :] << 4
        words = np.concatenate([np.ascontiguousarray(packed).view(np.uint16), lengths], 1).astype(np.int64)
        n_words = words.shape[1]
        sums = np.arange(first, first + len(words)) + level + words @ np.arange(1, 2 * n_words, 2)
        last = -sums * pow(2 * n_words + 1, -1, 2**16)
        return np.concatenate([words, last[:, None]], 1).astype(np.uint16).view(np.uint8)


@dataclass(frozen=True)
class Layout:
    """Where the parts of a sketch are in its file, by position: both norms, the row, the levels, and the checksums.

    A row is stored as its number in its segment. A CRC32C is of CHECKED_ROWS positions of a streamed part: the norms
    (0), those of centered vectors (1), the rows (2), the first levels.
    """

    n_rows: int
    n_levels: int

    @property
    def n_padded(self) -> int:
        return -(-self.n_rows // GROUP) * GROUP

    @property
    def row_nbytes(self) -> tuple[int, ...]:
        """The bytes of a row in each streamed part."""
        return 2, 2, 2, *[GROUP_NBYTES // GROUP] * min(GROUPED, self.n_levels)

    @property
    def n_checks(self) -> int:
        return -(-self.n_rows // CHECKED_ROWS)

    def streamed_at(self, part: int) -> int:
        return self.n_padded * sum(self.row_nbytes[:part])

    def records_at(self, level: int) -> int:
        return self.streamed_at(len(self.row_nbytes)) + max(0, level - GROUPED) * self.n_rows * RECORD_NBYTES

    @property
    def checks_at(self) -> int:
        return self.records_at(self.n_levels)

    @property
    def nbytes(self) -> int:
        return self.checks_at + 4 * len(self.row_nbytes) * self.n_checks


class Codes:
    """The file of a sketch, of which a subclass reads bytes."""

    def __init__(self, layout: Layout, where: str) -> None:
        self.layout, self.where = layout, where
        self._sound = np.zeros((len(layout.row_nbytes), layout.n_checks), bool)  # the parts that were checked
        self._checks: NDArray[np.uint32] | None = None

    def _range(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Some bytes of the file."""
        raise NotImplementedError

    def expect(self, first: int, stop: int) -> None:
        """Start reading these rows of the streamed parts, where the file is on a disk; returns at once."""

    def _streamed(self, part: int, first: int, stop: int, wanted: Wanted | None) -> NDArray[np.uint8]:
        """The bytes of whole groups of rows in a streamed part, checked where they are wanted and were not yet."""
        at, nbytes = self.layout.streamed_at(part), self.layout.row_nbytes[part]
        start = first // CHECKED_ROWS
        unchecked = start + np.flatnonzero(~self._sound[part, start : -(-stop // CHECKED_ROWS)])
        if wanted is not None and len(unchecked):
            rows = first + GROUP * np.flatnonzero(wanted())
            unchecked = np.intersect1d(unchecked, rows // CHECKED_ROWS)
        for chunk in unchecked.tolist():
            end = min((chunk + 1) * CHECKED_ROWS, self.layout.n_padded)
            self._check(part, chunk, self._range(at + chunk * CHECKED_ROWS * nbytes, at + end * nbytes))
        return self._range(at + first * nbytes, at + stop * nbytes)

    def norms(self, centered: bool, first: int, stop: int) -> NDArray[np.uint16]:
        """Of rows from `first`, a multiple of GROUP, to a whole group; of the vectors, or of them minus the mean."""
        return self._streamed(int(centered), first, -(-stop // GROUP) * GROUP, None).view(np.uint16)

    def offsets(self, first: int, stop: int) -> NDArray[np.uint16]:
        """Of the same positions, the numbers of their rows in the segment."""
        return self._streamed(OFFSETS, first, -(-stop // GROUP) * GROUP, None).view(np.uint16)

    def rows_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at positions of which the offsets were read."""
        start = self.layout.streamed_at(OFFSETS)
        offsets = self._range(start, start + 2 * self.layout.n_padded).view(np.uint16)
        return positions // SEGMENT * SEGMENT + offsets[positions]

    def groups(self, level: int, first: int, stop: int, wanted: Wanted | None = None) -> NDArray[np.uint8]:
        """The groups [group, byte] of these rows in one of the first levels.

        Those that are not `wanted` (it returns which are, [group]) may be any. Raises SearchIndexError where the bytes
        are not those that were written.
        """
        return self._streamed(OFFSETS + 1 + level, first, -(-stop // GROUP) * GROUP, wanted).reshape(-1, GROUP_NBYTES)

    def _check(self, part: int, chunk: int, read: NDArray[np.uint8]) -> None:
        if self._checks is None:
            self._checks = self._range(self.layout.checks_at, self.layout.nbytes).view(np.uint32)
        if crc32c(read) != self._checks.reshape(self._sound.shape)[part, chunk]:
            raise self.damaged()
        self._sound[part, chunk] = True

    def damaged(self) -> SearchIndexError:
        return SearchIndexError(f"the sketch {self.where} is damaged: build it again with embstore index --kind sketch")

    def records(
        self, level: int, rows: NDArray[np.int64], filled: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Records of rows in a further level, and the position of each row among them.

        Of line i of `rows` [q, c], the first filled[i] are set.
        """
        start = self.layout.records_at(level)
        return self._range(start, start + self.layout.n_rows * RECORD_NBYTES).reshape(-1, RECORD_NBYTES), rows


class MappedCodes(Codes):
    """The file of a sketch on a disk, mapped into memory."""

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(layout, str(path))
        state = path.stat()
        self._sound, self._asked, self._asked_records = _known(str(path), state.st_ino, state.st_mtime_ns, layout)
        self._bytes = np.asarray(np.memmap(regular_file(path), np.uint8, "r", shape=(layout.nbytes,)))

    def _range(self, start: int, stop: int) -> NDArray[np.uint8]:
        return self._bytes[start:stop]

    def expect(self, first: int, stop: int) -> None:
        checks = slice(first // CHECKED_ROWS, -(-min(stop, self.layout.n_padded) // CHECKED_ROWS))
        for part, nbytes in enumerate(self.layout.row_nbytes):
            new = checks.start + np.flatnonzero(~self._asked[part, checks])
            self._asked[part, checks] = True
            self._request(self.layout.streamed_at(part) + new * CHECKED_ROWS * nbytes, CHECKED_ROWS * nbytes)

    def records(
        self, level: int, rows: NDArray[np.int64], filled: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if not self._asked_records[level]:
            wanted = np.unique(rows[np.arange(rows.shape[1]) < filled[:, None]])
            self._request(self.layout.records_at(level) + wanted * RECORD_NBYTES, RECORD_NBYTES)
            self._asked_records[level] = True
        return super().records(level, rows, filled)

    def _request(self, starts: NDArray[np.int64], nbytes: int) -> None:
        will_need((self._bytes.ctypes.data + starts).astype(np.uint64), nbytes)


@lru_cache(64)
def _known(path: str, inode: int, modified: int, layout: Layout) -> tuple[NDArray[np.bool_], ...]:
    """Which parts of this file the process has checked, and requested, and of which further levels it has read."""
    shape = len(layout.row_nbytes), layout.n_checks
    return np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(layout.n_levels, bool)


class StoredCodes(Codes):
    """The file of a sketch in a bucket, read by ranges; `key`: where it is below the storage."""

    def __init__(self, storage: Storage, key: str, layout: Layout) -> None:
        super().__init__(layout, key)
        self._storage, self._key = storage, key
        self._offsets = np.zeros(layout.n_padded, np.uint16)
        self._read = np.zeros(layout.n_checks, bool)  # of which parts these are

    def offsets(self, first: int, stop: int) -> NDArray[np.uint16]:
        chunks, padded = slice(first // CHECKED_ROWS, -(-stop // CHECKED_ROWS)), -(-stop // GROUP) * GROUP
        if not self._read[chunks].all():
            self._offsets[first:padded] = super().offsets(first, stop)
            self._read[-(-first // CHECKED_ROWS) : padded // CHECKED_ROWS] = True
        return self._offsets[first:padded]

    def rows_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return positions // SEGMENT * SEGMENT + self._offsets[positions]

    def _streamed(self, part: int, first: int, stop: int, wanted: Wanted | None) -> NDArray[np.uint8]:
        at, nbytes = self.layout.streamed_at(part), self.layout.row_nbytes[part]
        chunks = np.arange(first // CHECKED_ROWS, -(-stop // CHECKED_ROWS))
        if wanted is not None:
            chunks = np.unique((first + GROUP * np.flatnonzero(wanted())) // CHECKED_ROWS)
        start = first // CHECKED_ROWS * CHECKED_ROWS
        out = np.zeros((-(-stop // CHECKED_ROWS) * CHECKED_ROWS - start) * nbytes, np.uint8)
        for run in np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1) if len(chunks) else []:
            begin, end = int(run[0]) * CHECKED_ROWS, min((int(run[-1]) + 1) * CHECKED_ROWS, self.layout.n_padded)
            read = self._range(at + begin * nbytes, at + end * nbytes)
            for chunk in run.tolist():
                own = (chunk - int(run[0])) * CHECKED_ROWS * nbytes
                self._check(part, chunk, read[own : own + CHECKED_ROWS * nbytes])
            out[(begin - start) * nbytes : (end - start) * nbytes] = read
        return out[(first - start) * nbytes : (stop - start) * nbytes]

    def records(
        self, level: int, rows: NDArray[np.int64], filled: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        start, known = self.layout.records_at(level), np.arange(rows.shape[1]) < filled[:, None]
        wanted, places = np.unique(rows[known], return_inverse=True)
        parts = np.split(wanted, np.flatnonzero(np.diff(wanted) * RECORD_NBYTES > MAX_GAP) + 1)
        ends = [(start + int(each[0]) * RECORD_NBYTES, start + (int(each[-1]) + 1) * RECORD_NBYTES) for each in parts]
        read = [
            self._range(*end).reshape(-1, RECORD_NBYTES)[own - own[0]] for end, own in zip(ends, parts, strict=True)
        ]
        out = np.zeros(rows.shape, np.int64)
        out[known] = places
        return np.concatenate(read), out

    def _range(self, start: int, stop: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._storage.get_range(self._key, start, stop), np.uint8)


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
    """Write the sketch of vectors that come in blocks, from the first row on.

    Returns the length of the longest vector. Raises NonFiniteError, which says of `what` a row is.
    """
    layout = Layout(n_rows, rotation.n_levels)
    longest = 0.0
    with path.open("wb") as file:
        file.truncate(layout.nbytes)
        for start, encoded in _segments(blocks, rotation, what):
            order = _by_cluster(rotation, encoded)
            encoded = encoded.ordered(order)
            offsets = np.zeros(-(-len(order) // GROUP) * GROUP, np.uint16)
            offsets[: len(order)] = order
            streamed: list[NDArray[Any]] = [*as_norms(encoded.norms), offsets]
            streamed += [encoded.groups(level) for level in range(min(GROUPED, layout.n_levels))]
            parts = [
                (layout.streamed_at(part) + start * nbytes, values)
                for part, (nbytes, values) in enumerate(zip(layout.row_nbytes, streamed, strict=True))
            ]
            for level in range(GROUPED, layout.n_levels):
                parts.append((layout.records_at(level) + start * RECORD_NBYTES, encoded.records(level, start)))
            for at, values in parts:
                file.seek(at)
                file.write(values.tobytes())
            longest = max(longest, float(encoded.norms[0].max()))
    written = np.memmap(path, np.uint8, "r+", shape=(layout.nbytes,))
    checks = [
        crc32c(written[at + first * nbytes : at + min(first + CHECKED_ROWS, layout.n_padded) * nbytes])
        for part, nbytes in enumerate(layout.row_nbytes)
        for at in (layout.streamed_at(part),)
        for first in range(0, n_rows, CHECKED_ROWS)
    ]
    written[layout.checks_at :] = np.array(checks, np.uint32).view(np.uint8)
    written.flush()
    return longest


def _segments(
    blocks: Iterable[tuple[int, NDArray[np.floating]]], rotation: Rotation, what: str
) -> Iterator[tuple[int, Encoded]]:
    """The sketches of whole segments, each with its first row, from vectors that come in order."""
    held: list[Encoded] = []
    first = done = 0
    for start, vectors in blocks:
        done = start
        while len(vectors):
            part, vectors = np.split(vectors, [min(len(vectors), first + SEGMENT - done)])
            try:
                held.append(rotation.encode(part))
            except NonFiniteError as error:
                raise NonFiniteError(
                    f"{what}, row {done + int(str(error))} holds a value that is not finite or too large for float32: "
                    "run embstore verify"
                ) from None
            done += len(part)
            if done == first + SEGMENT:
                yield first, Encoded.joined(held)
                first, held = done, []
    if held:
        yield first, Encoded.joined(held)


def _by_cluster(rotation: Rotation, encoded: Encoded) -> NDArray[np.int64]:
    """The rows of a segment ordered by clusters of their first level; k-means, always with the same result."""
    codes, lengths = encoded.levels[0]
    n_rows, n_clusters = len(codes), len(codes) // CLUSTER_ROWS
    if n_clusters < 2:
        return np.arange(n_rows)
    values = (codes - np.float32(7.5)) * (rotation.steps[:LEVEL].astype(np.float32) * of_bfloat(lengths[:, :1]))
    sample = values[:: max(1, n_rows // (CLUSTER_SAMPLE * n_clusters))]
    centers = values[:: n_rows // n_clusters][:n_clusters].copy()
    for _ in range(CLUSTER_STEPS):
        nearest = _nearest(sample, centers)
        counts = np.bincount(nearest, minlength=n_clusters)
        sums = (np.arange(n_clusters)[:, None] == nearest).astype(np.float32) @ sample
        centers[counts > 0] = sums[counts > 0] / counts[counts > 0, None]
    return np.argsort(_nearest(values, centers), kind="stable")


def _nearest(values: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.int64]:
    """The nearest center of each row."""
    halves = np.square(centers).sum(1) / 2
    parts = [values[start : start + CHECKED_ROWS] @ centers.T - halves for start in range(0, len(values), CHECKED_ROWS)]
    return np.concatenate([part.argmax(1) for part in parts])
