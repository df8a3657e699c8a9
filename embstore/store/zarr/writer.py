"""Writing a Zarr store: laying it out, its shards, its commits, and folding them at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.arrays import COMMIT_DTYPE, NOT_WRITTEN, ArraySpec, frozen_spec, payload_specs, stored_arrays
from embstore.store.layout import CHUNK_ROWS
from embstore.store.metadata import Metadata
from embstore.store.storage.files import fsync, fsync_folder, fsync_tree, remove, write_file
from embstore.store.zarr.format import (
    COMMITS_FOLDER,
    FOLDED_FILE,
    NODE,
    TEMPORARY,
    chunk_file,
    commit_file,
    commits_node,
    frozen_nodes,
    shard_file,
)
from embstore.store.zarr.reader import ZarrReader, read_commits
from embstore.store.zarr.shards import shard_index


def lay_out(path: Path, metadata: Metadata, frozen: Mapping[str, NDArray[Any]]) -> None:
    """Write a whole store without rows into the new folder `path`, lasting once this returns."""
    arrays = stored_arrays(frozen)
    nodes = frozen_nodes(metadata, arrays)
    nodes[f"commits/{NODE}"] = commits_node(metadata.layout.n_partitions, folded=False)
    for name, node in nodes.items():
        _write_new(path / name, [node])
    for name, array in frozen.items():
        if array.size:
            spec = frozen_spec(name, array.shape)
            _write_new(path / chunk_file(spec), [array, column_end(spec)])
    fsync_tree(path)


def column_end(spec: ArraySpec) -> bytes:
    """Return what follows the elements in the file of a frozen array: padding and index, where it is sharded."""
    if spec.shard == spec.chunk:
        return b""
    chunks = spec.shard[0] // spec.chunk[0]
    padding = np.full(spec.shard[0] - spec.shape[0], spec.fill, spec.dtype)
    return padding.tobytes() + shard_index((1, chunks), chunks, spec.chunk[0] * spec.dtype.itemsize)


def shard_pieces(spec: ArraySpec, rows: NDArray[Any]) -> Iterator[NDArray[Any] | bytes]:
    """Give the bytes of a shard that holds `rows` [layer, n, ...]: each layer with its padding, then the index."""
    count = rows.shape[1]
    written = -(-count // CHUNK_ROWS)
    padding = np.full((written * CHUNK_ROWS - count, *rows.shape[2:]), spec.fill, spec.dtype)
    for layer in rows:
        yield layer
        if len(padding):
            yield padding
    chunk_nbytes = int(np.prod(spec.chunk, dtype=np.int64)) * spec.dtype.itemsize
    yield shard_index((spec.shape[0], spec.shard[1] // CHUNK_ROWS), written, chunk_nbytes)


class ZarrWriter:
    """The changing parts of a Zarr store: shards and commits. One a store, under its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = ZarrReader(path).metadata
        self.partitions = self.metadata.layout.n_partitions
        self._specs = payload_specs(self.metadata)
        self._temporary = path / TEMPORARY
        self.commits()  # refuses commits that cannot be read, before anything is removed
        self._clean()

    def commits(self) -> NDArray[np.uint64]:
        return read_commits(self.path, self.partitions)

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the shards of a partition, lasting, and return the CRC32C of their bytes, one after the other."""
        crc = 0
        for spec in self._specs:
            crc = self._place(shard_file(spec, partition), shard_pieces(spec, arrays[spec.path]), crc=crc)
        return crc

    def adopt(self, partition: int, shards: Mapping[str, Path]) -> None:
        """Take over the shard files of another store, by array; they are not written again where links allow."""
        for spec in self._specs:
            target = self.path / shard_file(spec, partition)
            make_folders(self.path, target.parent)
            try:
                os.link(shards[spec.path], target)
            except OSError:
                shutil.copyfile(shards[spec.path], target)
            fsync(target)
            fsync_folder(target.parent)

    def commit(self, partition: int, record: NDArray[np.uint64]) -> None:
        self._unfold()
        self._place(commit_file(partition), [record.astype(COMMIT_DTYPE)])

    def discard(self, partitions: Iterable[int]) -> None:
        """Drop the records of partitions; their shards stay until they are written again."""
        self._unfold()
        for partition in partitions:
            remove((self.path / commit_file(partition)).parent)
        if (self.path / COMMITS_FOLDER).is_dir():
            fsync_folder(self.path / COMMITS_FOLDER)

    def fold(self) -> None:
        """Join the commits into one chunk: written first, then made valid by one rename, then tidied."""
        if not self._is_folded():
            self._place(FOLDED_FILE, [self.commits()])
            self._place(f"commits/{NODE}", [commits_node(self.partitions, folded=True)])
        self._clean()
        remove(self._temporary)
        fsync_folder(self.path)

    def close(self) -> None:
        """Nothing is held open."""

    def _unfold(self) -> None:
        """Give each partition its file of a record again: all in one rename, none valid before the next."""
        if not self._is_folded():
            return
        records, made = self.commits(), self._temporary / "c"
        for partition in np.flatnonzero(records[:, 0] != NOT_WRITTEN).tolist():
            _write_new(made / Path(commit_file(partition)).relative_to(COMMITS_FOLDER), [records[partition]])
        if made.is_dir():
            fsync_tree(made)
            remove(self.path / COMMITS_FOLDER)
            os.rename(made, self.path / COMMITS_FOLDER)
            fsync_folder(self.path / "commits")
        self._place(f"commits/{NODE}", [commits_node(self.partitions, folded=False)])
        self._clean()

    def _is_folded(self) -> bool:
        return (self.path / "commits" / NODE).read_bytes() == commits_node(self.partitions, folded=True)

    def _clean(self) -> None:
        """Remove what a killed writer left: temporary files, and commits in the form that is not valid."""
        remove(self._temporary)
        remove(self.path / (COMMITS_FOLDER if self._is_folded() else FOLDED_FILE))
        fsync_folder(self.path / "commits")

    def _place(self, name: str, pieces: Iterable[NDArray[Any] | bytes], *, crc: int = 0) -> int:
        """Write a file under a temporary name, lasting, then rename it to `name`, lasting."""
        self._temporary.mkdir(exist_ok=True)
        temporary = self._temporary / name.replace("/", "_")
        crc = write_file(temporary, pieces, crc=crc)
        target = self.path / name
        make_folders(self.path, target.parent)
        os.replace(temporary, target)
        fsync_folder(target.parent)
        return crc


def make_folders(root: Path, folder: Path) -> None:
    """Make a folder below `root` whose name lasts."""
    if folder == root or folder.is_dir():
        return
    make_folders(root, folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


def _write_new(path: Path, pieces: Iterable[NDArray[Any] | bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, pieces, fsync=False)
