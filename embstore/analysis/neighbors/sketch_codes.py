"""Sketches of vectors: a few bits of each feature, and upper bounds of what the bits leave out.

A sketch holds the vectors minus their mean, rotated to principal components, in levels of 64 components. A level has 4
bits of each, the scale of the row, and two lengths that are never too small: of the error of these codes, and of the
components of all further levels. By the Cauchy-Schwarz inequality they bound any product with a query. The rows of each
segment are ordered by clusters, so that those that a query leaves out are together. What is read is checked when a
process first reads it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.space import StoreVectors, space_of
from embstore.errors import InvalidValueError, NonFiniteError, SearchIndexError, StoreDamagedError, quoted
from embstore.kernels import will_need
from embstore.store.storage.base import Storage
from embstore.store.storage.files import crc32c, regular_file

SKETCH_FILE, ROTATION = "sketch.bin", "space.npz"
LEVEL, GROUP = 64, 16  # components of a level; rows that a level holds together
OFFSETS = 2  # the number of the part that has the rows
EXPECTED = 3  # levels that a search reads of most rows: they are requested from the disk before they are used
GROUP_NBYTES = GROUP * (LEVEL // 2 + 6)
SAMPLE, POINTS = 20_000, 16  # rows that principal components are learned from at least, and a feature
SEGMENT, CLUSTER_ROWS = 2**16, 256  # rows that are ordered by what they are like, and of a cluster of them
CLUSTER_SAMPLE, CLUSTER_STEPS = 32, 3  # rows for each center, and times that the centers are moved
BLOCK_ROWS = 8192  # rows that are sketched at a time
CHECKED_ROWS = 1024  # rows of a part of the file that has a checksum: of a further level, few of them are read
MAX_LEVELS = 16
FLAT = 1.5  # the largest deviation of a component, in medians, up to which no component is much larger than others
STEP = 0.335  # between codes, in standard deviations: the least squared error of 16 codes of a normal distribution
LEAST_DEVIATION = 1e-3  # of a component, of the largest
LONGEST = 1e15  # of a vector: its square, and products with it, fit float32
NORM_ROUNDING = 2.0**-9  # of the norm of a vector as it is stored: the most that it is off
SLACK = 1e-9  # of the length of a vector: far above the rounding of float64 in its rotation
SLACK_OF_CODES = 2.0**-16  # likewise of float32 in the codes: above the rounding of 64 products and their sum
Needed = Callable[[], NDArray[np.bool_]]
Fetch = Callable[[int, int], Any]


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
        return self.n_levels > EXPECTED and bool(self.steps.max() < FLAT * np.median(self.steps[self.steps > 0]))

    @classmethod
    def of_file(cls, path: Path, crc: int, hidden_size: int, n_levels: int) -> Rotation:
        """Read what `write_sketch` wrote; of the same state of a file once. Raises StoreDamagedError, OSError."""
        state = path.stat()
        return _rotation_of(path, crc, state.st_ino, state.st_mtime_ns, hidden_size, n_levels)

    @classmethod
    def read(cls, content: bytes, crc: int, hidden_size: int, n_levels: int) -> Rotation:
        """The rotation in the content of a file; raises StoreDamagedError."""
        if crc32c(content) != crc:
            raise StoreDamagedError(f"{ROTATION} was changed")
        shapes = {"mean": (hidden_size,), "directions": (n_levels * LEVEL, hidden_size), "steps": (n_levels * LEVEL,)}
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in shapes}
        except (OSError, ValueError, KeyError, EOFError, MemoryError, AttributeError, TypeError, BadZipFile) as error:
            raise StoreDamagedError(f"the rotation of a sketch cannot be read ({quoted(error)})") from None
        for name, shape in shapes.items():
            if arrays[name].shape != shape or arrays[name].dtype != np.float64 or not np.isfinite(arrays[name]).all():
                raise StoreDamagedError(f"the {name} of a sketch are not {shape} of finite float64")
        return cls(**arrays)

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


@lru_cache(4)
def _rotation_of(path: Path, crc: int, inode: int, modified: int, hidden_size: int, n_levels: int) -> Rotation:
    return Rotation.read(path.read_bytes(), crc, hidden_size, n_levels)


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

    def groups(self, level: int) -> NDArray[np.uint8]:
        """A level in groups of rows: [group, GROUP_NBYTES]."""
        codes, lengths = self.levels[level]
        missing = -len(codes) % GROUP
        codes = np.concatenate([codes, np.zeros((missing, LEVEL), np.uint8)])
        lengths = np.concatenate([lengths, np.zeros((missing, 3), np.uint16)])
        fours = codes.reshape(-1, GROUP, LEVEL // 8, 2, 4)
        packed = (fours[..., 0, :] | fours[..., 1, :] << 4).transpose(0, 2, 1, 3).reshape(len(fours), -1)
        others = lengths.reshape(-1, GROUP, 3).transpose(0, 2, 1).reshape(len(fours), -1)
        return np.concatenate([packed, np.ascontiguousarray(others).view(np.uint8)], 1)


@dataclass(frozen=True)
class Layout:
    """Where the parts of a sketch are in its file, by position: both norms, the row, the levels, and the checksums.

    A row is stored as its number in its segment. A CRC32C is of CHECKED_ROWS positions of a part: the norms (0), those
    of centered vectors (1), the rows (2), the levels.
    """

    n_rows: int
    n_levels: int

    @property
    def n_padded(self) -> int:
        return -(-self.n_rows // GROUP) * GROUP

    @property
    def row_nbytes(self) -> tuple[int, ...]:
        """The bytes of a row in each part."""
        return 2, 2, 2, *[GROUP_NBYTES // GROUP] * self.n_levels

    @property
    def n_checks(self) -> int:
        return -(-self.n_rows // CHECKED_ROWS)

    def part_at(self, part: int) -> int:
        return self.n_padded * sum(self.row_nbytes[:part])

    @property
    def nbytes(self) -> int:
        return self.part_at(len(self.row_nbytes)) + 4 * len(self.row_nbytes) * self.n_checks


class Codes:
    """The content of the file of a sketch, of which each part is checked when it is first read.

    `content` is the file mapped into memory, or with `fetch` a place for what is read from a bucket.
    """

    def __init__(self, layout: Layout, where: str, content: NDArray[np.uint8], fetch: Fetch | None = None) -> None:
        self.layout, self.where = layout, where
        self._content, self._fetch = content, fetch
        shape = len(layout.row_nbytes), layout.n_checks
        self._sound, self._asked = np.zeros(shape, bool), np.zeros(shape, bool)  # what was checked, and requested
        self._checks: NDArray[np.uint32] | None = None

    @classmethod
    def mapped(cls, path: Path, layout: Layout) -> Codes:
        """The file of a sketch on a disk."""
        state = path.stat()
        content, *known = _known(path, state.st_ino, state.st_mtime_ns, state.st_size, layout)
        codes = cls(layout, str(path), content)
        codes._sound, codes._asked = known
        if len(codes._content) != layout.nbytes:
            raise codes.damaged()
        return codes

    @classmethod
    def stored(cls, storage: Storage, key: str, layout: Layout) -> Codes:
        """The file of a sketch in a bucket, of which ranges are read."""
        return cls(layout, key, np.zeros(layout.nbytes, np.uint8), partial(storage.get_range, key))

    def expect(self, first: int, stop: int) -> None:
        """Start reading these rows of the parts that every search reads from the disk; returns at once."""
        checks = slice(first // CHECKED_ROWS, -(-min(stop, self.layout.n_padded) // CHECKED_ROWS))
        for part, nbytes in enumerate(self.layout.row_nbytes[: OFFSETS + 1 + EXPECTED] if not self._fetch else ()):
            new = checks.start + np.flatnonzero(~self._asked[part, checks])
            self._asked[part, checks] = True
            starts = self._content.ctypes.data + self.layout.part_at(part) + new * CHECKED_ROWS * nbytes
            will_need(starts.astype(np.uint64), CHECKED_ROWS * nbytes)

    def _rows(self, part: int, first: int, stop: int, needed: Needed | None = None) -> NDArray[np.uint8]:
        """The bytes of rows from `first`, a multiple of GROUP, to a whole group; checked where they are needed."""
        at, nbytes, stop = self.layout.part_at(part), self.layout.row_nbytes[part], -(-stop // GROUP) * GROUP
        start = first // CHECKED_ROWS
        unchecked = start + np.flatnonzero(~self._sound[part, start : -(-stop // CHECKED_ROWS)])
        if needed is not None and len(unchecked):
            unchecked = np.intersect1d(unchecked, (first + GROUP * np.flatnonzero(needed())) // CHECKED_ROWS)
        for run in np.split(unchecked, np.flatnonzero(np.diff(unchecked) > 1) + 1) if len(unchecked) else ():
            end = min((int(run[-1]) + 1) * CHECKED_ROWS, self.layout.n_padded)
            self._check(part, run, at + int(run[0]) * CHECKED_ROWS * nbytes, at + end * nbytes)
        return self._content[at + first * nbytes : at + stop * nbytes]

    def _check(self, part: int, chunks: NDArray[np.int64], start: int, stop: int) -> None:
        """Fetch some chunks of a part that follow each other, and compare them with their checksums."""
        if self._checks is None:
            at = self.layout.part_at(len(self.layout.row_nbytes))
            self._checks = self._read(at, self.layout.nbytes).view(np.uint32).reshape(self._sound.shape)
        content, nbytes = self._read(start, stop), CHECKED_ROWS * self.layout.row_nbytes[part]
        for number, chunk in enumerate(chunks.tolist()):
            if crc32c(content[number * nbytes : (number + 1) * nbytes]) != self._checks[part, chunk]:
                raise self.damaged()
            self._sound[part, chunk] = True

    def _read(self, start: int, stop: int) -> NDArray[np.uint8]:
        if self._fetch is not None:
            self._content[start:stop] = np.frombuffer(self._fetch(start, stop), np.uint8)
        return self._content[start:stop]

    def norms(self, centered: bool, first: int, stop: int) -> NDArray[np.uint16]:
        """Of rows from `first` to a whole group; of the vectors, or of them minus the mean."""
        return self._rows(int(centered), first, stop).view(np.uint16)

    def offsets(self, first: int, stop: int) -> NDArray[np.uint16]:
        """Of the same positions, the numbers of their rows in the segment."""
        return self._rows(OFFSETS, first, stop).view(np.uint16)

    def rows_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at positions of which the offsets were read."""
        start = self.layout.part_at(OFFSETS)
        offsets = self._content[start : start + 2 * self.layout.n_padded].view(np.uint16)
        return positions // SEGMENT * SEGMENT + offsets[positions]

    def groups(self, level: int, first: int, stop: int, needed: Needed | None = None) -> NDArray[np.uint8]:
        """The groups [group, byte] of these rows in a level; those that are not `needed` (it returns which) may be any.

        Raises SearchIndexError where the bytes are not those that were written.
        """
        return self._rows(OFFSETS + 1 + level, first, stop, needed).reshape(-1, GROUP_NBYTES)

    def damaged(self) -> SearchIndexError:
        return SearchIndexError(f"the sketch {self.where} is damaged: build it again with embstore index --kind sketch")


@lru_cache(8)
def _known(
    path: Path, inode: int, modified: int, nbytes: int, layout: Layout
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.bool_]]:
    """A mapped file, and which parts of it the process has checked, and requested."""
    shape = len(layout.row_nbytes), layout.n_checks
    return np.memmap(regular_file(path), np.uint8, "r"), np.zeros(shape, bool), np.zeros(shape, bool)


def release() -> None:
    """Hold no file of a sketch open any more; those in use stay valid."""
    _known.cache_clear()


@dataclass(frozen=True)
class Sketch:
    """An open sketch of a layer; `longest`: the length of its longest vector."""

    rotation: Rotation
    codes: Codes
    layout: Layout
    longest: float


def write_sketch(
    vectors: StoreVectors, folder: Path, progress: Callable[[int], object]
) -> tuple[dict[str, int], float]:
    """Write the files of the sketch of a layer; returns its parameters and the length of the longest vector."""
    mean, count = space_of(vectors.store, vectors.layer, centered=True).mean, vectors.count
    assert mean is not None
    n_drawn = min(count, max(SAMPLE, POINTS * vectors.hidden_size))
    drawn = np.sort(np.random.default_rng(0).choice(count, n_drawn, replace=False)).astype(np.int64)
    rotation = Rotation.learn(vectors.gather(drawn), mean)
    with (folder / ROTATION).open("wb") as file:
        np.savez(file, mean=mean, directions=rotation.directions, steps=rotation.steps)

    def blocks() -> Iterator[tuple[int, NDArray[np.floating]]]:
        for start, block in vectors.store.scan(vectors.layer, block_rows=BLOCK_ROWS):
            yield start, block
            progress(start + len(block))

    longest = write_codes(folder / SKETCH_FILE, blocks(), count, rotation, f"layer {vectors.layer}")
    return {"levels": rotation.n_levels}, longest


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
            encoded = Encoded(encoded.norms[:, order], [(codes[order], own[order]) for codes, own in encoded.levels])
            offsets = np.zeros(-(-len(order) // GROUP) * GROUP, np.uint16)
            offsets[: len(order)] = order
            parts: list[NDArray[Any]] = [*as_norms(encoded.norms), offsets]
            parts += [encoded.groups(level) for level in range(layout.n_levels)]
            for part, (nbytes, values) in enumerate(zip(layout.row_nbytes, parts, strict=True)):
                file.seek(layout.part_at(part) + start * nbytes)
                file.write(values.tobytes())
            longest = max(longest, float(encoded.norms[0].max()))
    written = np.memmap(path, np.uint8, "r+", shape=(layout.nbytes,))
    checks = [
        crc32c(written[at + first * nbytes : at + min(first + CHECKED_ROWS, layout.n_padded) * nbytes])
        for part, nbytes in enumerate(layout.row_nbytes)
        for at in (layout.part_at(part),)
        for first in range(0, n_rows, CHECKED_ROWS)
    ]
    written[layout.part_at(len(layout.row_nbytes)) :] = np.array(checks, np.uint32).view(np.uint8)
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
