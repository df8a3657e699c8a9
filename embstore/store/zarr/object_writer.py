"""Writing a store in a bucket: its shards, its commits, and folding them; docs/objects.md has the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StorageError
from embstore.store.arrays import COMMIT_DTYPE, NOT_WRITTEN
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import CutShortError, Objects
from embstore.store.zarr.format import FOLDED_FILE, TEMPORARY, commit_file, commits_node
from embstore.store.zarr.object_commits import COMMITS_NODE, is_folded, read_commits, record_of, single_commits
from embstore.store.zarr.object_shards import TRIES, ObjectShards, at_once, hold, put_new


class ObjectWriter:
    """The changing parts of a store in a bucket: shards and commits. Several may write one store at a time."""

    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self._objects = Objects.at(path)
        self._shards = ObjectShards(path)
        self.metadata = self._shards.metadata
        self.partitions = self.metadata.layout.n_partitions
        self._unfolded = not is_folded(self._objects, self.partitions)

    def commits(self) -> NDArray[np.uint64]:
        return read_commits(self._objects, self.partitions)

    def write(self, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the shards of a partition, or adopt those that stand, and return the CRC32C of their bytes."""
        return self._shards.write(partition, arrays)

    def record(self, partition: int) -> NDArray[np.uint64] | None:
        """Return the record that the shards of a partition, read back, ask for; None where they are not whole."""
        return self._shards.record(partition)

    def commit(self, partition: int, record: NDArray[np.uint64]) -> None:
        """Record a partition, unless another writer has; of two records that differ the shards' own one stays."""
        self._unfold()
        name, wanted = commit_file(partition), record.astype(COMMIT_DTYPE).tobytes()
        for _ in range(TRIES):
            if put_new(self._objects, name, wanted):
                return
            standing = self._objects.get_or_none(name)
            if standing == wanted:
                return
            found = self._shards.record(partition)
            if found is None:
                break
            wanted = found.astype(COMMIT_DTYPE).tobytes()
            if standing is not None and standing != wanted:
                with suppress(CutShortError):
                    self._objects.replace(name, standing, wanted)
        raise StorageError(
            f"partition {partition} of {self.path} is changed by others again and again: let one `embstore extract` "
            "run at a time"
        )

    def discard(self, partitions: Iterable[int]) -> None:
        """Remove partitions, the records first, so that no record is ever without its shard."""
        self._unfolded = not is_folded(self._objects, self.partitions)
        self._unfold()
        for partition in partitions:
            self._objects.delete(commit_file(partition))
            self._shards.remove(partition)

    def fold(self) -> None:
        """Join the commits into one chunk: written first, then made valid by one conditional put, then tidied."""
        for _ in range(TRIES):
            if not is_folded(self._objects, self.partitions):
                self._join()
            elif self._tidied():
                return
        raise self._restless()

    def close(self) -> None:
        """Nothing is held open."""

    def _join(self) -> None:
        if hold(self._objects, FOLDED_FILE, self.commits().tobytes()):
            self._turn(folded=True)

    def _tidied(self) -> bool:
        """Remove the single records and what is temporary; False where a record contradicts the joined ones."""
        joined = self.commits()
        there = single_commits(self._objects, self.partitions)
        for partition, data in zip(there, self._objects.get_many(map(commit_file, there)), strict=True):
            if data is not None and not np.array_equal(record_of(data), joined[partition]):
                found = self._shards.record(partition)
                if found is None or not np.array_equal(found, joined[partition]):
                    self._open_again(joined, keep={partition})
                    return False
        at_once(self._objects.delete, [commit_file(partition) for partition in there])
        at_once(self._objects.delete, self._objects.names(TEMPORARY))
        return True

    def _unfold(self) -> None:
        if not self._unfolded:
            self._open_again(self.commits(), keep=set())

    def _open_again(self, joined: NDArray[np.uint64], *, keep: set[int]) -> None:
        """Give every partition its own record again, but those of `keep`, which have one that is newer."""

        def place(partition: int) -> bool:
            return hold(self._objects, commit_file(partition), joined[partition].tobytes())

        written = set(np.flatnonzero(joined[:, 0] != NOT_WRITTEN).tolist())
        if not all(at_once(place, sorted(written - keep))):
            raise self._restless()
        self._turn(folded=False)
        self._unfolded = True

    def _turn(self, *, folded: bool) -> None:
        """Make one form of the commits the valid one; where another writer did so first, that is as well."""
        before, after = (commits_node(self.partitions, folded=form) for form in (not folded, folded))
        for _ in range(TRIES):
            with suppress(CutShortError):  # then it is looked at again
                self._objects.replace(COMMITS_NODE, before, after)
                return

    def _restless(self) -> StorageError:
        return StorageError(f"the commits of {self.path} are changed by others: run the same command again")
