"""Every way in which these tests damage a finished store: by name, with the partitions that are lost by it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from embstore.store.arrays import COMMITS
from embstore.store.hdf5.reader import CHECKSUM, read_addresses
from tests.store.example import flip

Inject = Callable[[Path], tuple[int, ...] | None]

ALL = (0, 1, 2, 3, 4)
NONE: tuple[int, ...] = ()
COLUMNS = (
    "layer",
    *(f"occurrences/{name}" for name in ("type", "sentence", "position", "subwords", "labels/class", "labels/upos")),
    *(f"types/{name}" for name in ("form_offsets", "form_bytes", "indptr", "occurrences")),
    *(f"sentences/{name}" for name in ("text_offsets", "text_bytes", "indptr", "source")),
    "sentences/word_indptr",
    "words/start",
    "subwords/id",
    *(f"labels/{column}/{name}" for column in ("class", "upos") for name in ("name_offsets", "name_bytes")),
)
CHUNK_NBYTES = 256 * 8 * 4  # rows, features, bytes of a float32


@dataclass(frozen=True)
class Injury:
    """One fault: `inject` makes it, verify must name the partitions `named`, a repair encodes those of `lost`.

    Where `inject` returns partitions, these are lost instead.
    """

    inject: Inject
    named: tuple[int, ...] = NONE
    lost: tuple[int, ...] = NONE


def in_partition(inject: Inject, *partitions: int) -> Injury:
    """A fault within partitions, which are named and encoded again."""
    return Injury(inject, partitions, partitions)


def write_at(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def cut(file: Path, nbytes: int) -> None:
    """Cut a file to `nbytes` bytes; below zero: cut as many off its end."""
    os.truncate(file, nbytes if nbytes >= 0 else file.stat().st_size + nbytes)


def edit(file: Path, old: bytes, new: bytes) -> None:
    """Replace the one place of a text in a file by another of the same length."""
    data = file.read_bytes()
    assert data.count(old) == 1
    write_at(file, data.index(old), new)


def at(name: str, change: Callable[..., None], *args: int, **options: int) -> Inject:
    """A change to a file inside a store."""
    return lambda path: change(path / name, *args, **options)


def append(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def half(file: Path) -> None:
    """Cut a file in half."""
    cut(file, file.stat().st_size // 2)


def zarr_injuries() -> Iterator[tuple[str, Injury]]:
    """Give faults of a finished Zarr store by name, besides those of the campaign."""
    shards = [f"hidden_states/c/0/{partition}/0" for partition in ALL]
    yield "bit in the padding of the last shard", in_partition(at(shards[4], flip, 255 * 32), 4)
    yield "bit in a shard's index", in_partition(at(shards[1], flip, -30), 1)
    yield "empty shard", in_partition(at(shards[3], cut, 0), 3)
    yield "missing folder of a shard", in_partition(at("hidden_states/c/0/4", shutil.rmtree), 4)
    yield "missing vectors", Injury(at("hidden_states", shutil.rmtree), ALL, ALL)
    yield "bytes after a shard", in_partition(at(shards[2], append), 2)
    yield "zeroed region of a shard", in_partition(at(shards[3], lambda file: write_at(file, 4096, bytes(512))), 3)
    yield "shard of zeros", in_partition(at(shards[1], zero), 1)
    yield "missing sentences", Injury(at("sentences", shutil.rmtree))
    yield "missing label column", Injury(at("occurrences/labels/class", shutil.rmtree))
    yield "edited pooling", Injury(at("zarr.json", lambda file: edit(file, b'"pooling": "mean"', b'"pooling": "last"')))
    yield "edited rows", Injury(at("zarr.json", lambda file: edit(file, b'"n_rows": 1200', b'"n_rows": 1198')))
    yield "edited checksum of the metadata", Injury(at("zarr.json", _edit_crc32c))
    yield "edited shape", Injury(at("hidden_states/zarr.json", lambda file: edit(file, b"1200", b"1198")))
    yield "edited fill value", Injury(at("hidden_states/zarr.json", lambda file: edit(file, b'"NaN"', b"  0.0")))
    records = "commits/c/0/0"
    yield "edited rows of a commit", in_partition(at(records, flip, 1 * 16), 1)
    yield "edited checksum of a commit", in_partition(at(records, flip, 3 * 16 + 8), 3)
    yield "checksum of a commit beyond 32 bits", in_partition(at(records, flip, 2 * 16 + 12), 2)
    yield "erased commit", in_partition(at(records, lambda file: write_at(file, 2 * 16, b"\xff" * 16)), 2)
    yield "swapped commits", in_partition(at(records, lambda file: swap_records(file, 0, 1, 2)), 1, 2)
    yield "cut commits", Injury(at(records, cut, -1), ALL, ALL)
    yield "missing commits", Injury(at(records, Path.unlink), ALL, ALL)
    yield "foreign file", Injury(lambda path: _write(path / "occurrences/notes.txt"))
    yield "shard past the last", Injury(lambda path: _write(path / "hidden_states/c/0/5/0"))
    yield "file next to the commits", Injury(lambda path: _write(path / "commits/c/1/0"))


def _edit_crc32c(file: Path) -> None:
    node = json.loads(file.read_bytes())
    crc = node["attributes"]["embstore"]["crc32c"]
    edit(file, f'"crc32c": {crc}'.encode(), f'"crc32c": {crc ^ 1}'.encode())


def _write(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"0123456789abcdef")


def swap_records(file: Path, start: int, one: int, other: int) -> None:
    """Exchange two commit records of 16 bytes in a table that begins at `start`."""
    data = file.read_bytes()
    first, second = (data[start + number * 16 : start + number * 16 + 16] for number in (one, other))
    assert first != second
    write_at(file, start + one * 16, second)
    write_at(file, start + other * 16, first)


def hdf5_injuries() -> Iterator[tuple[str, Injury]]:
    """Give faults of a finished HDF5 store by name."""
    yield from _hdf5_rows()
    for name in COLUMNS:
        yield f"bit in {name}", Injury(_flip_in(name))
    yield "bit in the checksum", Injury(_flip_in(CHECKSUM))
    yield "edited rows of a commit", in_partition(lambda path: flip(path, records(path, 1)), 1)
    yield "edited checksum of a commit", in_partition(lambda path: flip(path, records(path, 3) + 8), 3)
    yield "checksum of a commit beyond 32 bits", in_partition(lambda path: flip(path, records(path, 2) + 12), 2)
    yield "erased commit", in_partition(lambda path: write_at(path, records(path, 2), b"\xff" * 16), 2)
    yield "swapped commits", in_partition(lambda path: swap_records(path, records(path, 0), 1, 2), 1, 2)
    yield "commits of zeros", in_partition(lambda path: write_at(path, records(path, 0), bytes(80)), *ALL)
    yield from _hdf5_structure()
    yield "edited pooling", Injury(lambda path: edit(path, b'"pooling":"mean"', b'"pooling":"last"'))
    yield "edited rows", Injury(lambda path: edit(path, b'"n_rows":1200', b'"n_rows":1198'))
    yield "edited name of an array", Injury(lambda path: edit(path, b"hidden_states\0", b"hidden_statez\0"))
    yield "bytes after the end", Injury(append)


def _hdf5_rows() -> Iterator[tuple[str, Injury]]:
    """Faults of vectors; chunk [layer, partition] holds the rows of one partition."""
    for layer, partition in ((0, 0), (1, 2), (2, 4), (2, 1)):
        yield (
            f"bit in layer {layer} of partition {partition}",
            in_partition(lambda path, at=(layer, partition): flip(path, chunk(path, *at) + 1000, bit=5), partition),
        )
    yield "bit in the padding", in_partition(lambda path: flip(path, chunk(path, 1, 4) + CHUNK_NBYTES - 5), 4)
    yield "zeroed region", in_partition(lambda path: write_at(path, chunk(path, 1, 3) + 512, bytes(1024)), 3)
    yield "swapped chunks", in_partition(_swap_chunks, 0, 1)
    for name, keep in (("half", lambda size: size // 2), ("a byte", lambda size: size - 1)):
        yield f"cut by {name}", Injury(lambda path, keep=keep: _cut_rows(path, keep(path.stat().st_size)))


def _hdf5_structure() -> Iterator[tuple[str, Injury]]:
    """Faults of what the HDF5 library itself has written."""
    for offset in (0, 8, 9, 13, 16, 20, 24, 40, 60, 70):
        yield f"bit at {offset} of the superblock", Injury(lambda path, offset=offset: flip(path, offset))
    yield "superblock of zeros", Injury(lambda path: write_at(path, 0, bytes(96)))
    for signature in (b"TREE", b"SNOD", b"HEAP", b"GCOL"):
        for offset in (1, 10, 33):
            yield (
                f"bit {offset} into the first {signature.decode()}",
                Injury(lambda path, mark=signature, add=offset: flip(path, path.read_bytes().index(mark) + add)),
            )
        yield (
            f"bit in the last {signature.decode()}",
            Injury(lambda path, mark=signature: flip(path, path.read_bytes().rindex(mark) + 8)),
        )
    for name in ("/", "hidden_states", "commits", "occurrences", "sentences/text_bytes"):
        for offset in (0, 4, 20):
            yield (
                f"bit {offset} into the header of {name}",
                Injury(lambda path, name=name, add=offset: flip(path, _header(path, name) + add)),
            )


def chunk(path: Path, layer: int, partition: int) -> int:
    """Where the rows of a partition begin."""
    return int(read_addresses(path)[2].chunks["hidden_states"][layer, partition])


def records(path: Path, partition: int) -> int:
    """Where the commit record of a partition begins."""
    return read_addresses(path)[2].spans[COMMITS][0] + 16 * partition


def _header(path: Path, name: str) -> int:
    with h5py.File(path, "r", locking=False) as file:
        address: int = h5py.h5o.get_info(file[name].id).addr
    return address


def _flip_in(array: str) -> Inject:
    return lambda path: flip(path, sum(read_addresses(path)[2].spans[array]) // 2)


def _swap_chunks(path: Path) -> None:
    data = path.read_bytes()
    one, other = chunk(path, 0, 0), chunk(path, 0, 1)
    write_at(path, one, data[other : other + CHUNK_NBYTES])
    write_at(path, other, data[one : one + CHUNK_NBYTES])


def _cut_rows(path: Path, keep: int) -> tuple[int, ...]:
    """Cut the file; lost are the partitions with a row past its end."""
    places = read_addresses(path)[2]
    ends = places.chunks["hidden_states"] + CHUNK_NBYTES
    ends[:, -1] -= CHUNK_NBYTES - (1200 - 4 * 256) * 32
    lost = tuple(np.flatnonzero((ends > keep).any(axis=0)).tolist())
    lost = ALL if places.spans[COMMITS][1] > keep else lost
    cut(path, keep)
    return lost


INJURIES: dict[str, dict[str, Injury]] = {".zarr": dict(zarr_injuries()), ".h5": dict(hdf5_injuries())}
