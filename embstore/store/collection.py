"""Several stores as one: rows one after another, each read from the member that has it, which is opened when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, StoreMismatchError, check_choice
from embstore.store.conditions import checked_rows
from embstore.store.index import Labels
from embstore.store.labels.files import LabelFiles
from embstore.store.layout import Layer, partition_rows, resolve_layer
from embstore.store.merged import MEMBER, Member, Members, MergedIndex, MergedTypes
from embstore.store.metadata import Dropped, Metadata
from embstore.store.reading.gather import checked_out
from embstore.store.reading.scan import BLOCK_NBYTES, RowReader, StoredRows
from embstore.store.storage.location import ObjectPath
from embstore.store.store import Missing, Store

MAX_EXAMPLES = 5
REMOTE_AT_ONCE = 16
SAME = ("layers", "hidden_size", "dtype", "sites")  # of members
# What may differ between members: which words have a row, and how they were computed, not what a vector is
COMPUTED = {"batching", "batch_subwords", "group_partitions", "compute_dtype", "attention", "seed", "context_windows"}
FREE = {"model": {"name", "revision"}, "extraction": {"keep", "export", "import", *COMPUTED}}


class Collection(Store):
    """Several stores that are one to every query and analysis: rows, sentences and documents one after another.

    Made by `embstore.open` of several paths, of a glob, of a file that `collect` wrote, or of a store with appended
    parts. `members`: what is known of each store. The field "member" has the name of the store that a row is in.
    """

    def __init__(
        self,
        path: Path | ObjectPath,
        metadata: Metadata,
        members: Sequence[Member],
        *,
        is_stored: bool,
        cache: Path | None = None,
        verify: Literal["lazy"] | None = None,
        site: str | None = None,
    ) -> None:
        self._describe(path, cache, metadata, verify, site)
        self.is_stored = is_stored
        self.members = tuple(members)
        self._members = Members(members, cache=cache, verify=verify, site=self.layout.site, fields=metadata.fields)
        self._starts = np.cumsum([0, *(member.n_rows for member in members)], dtype=np.int64)

    def __repr__(self) -> str:
        return super().__repr__().replace("<Store", f"<Collection of {len(self.members):,} stores", 1)

    def __reduce__(self) -> tuple[Any, ...]:
        members = [
            replace(each, path=each.path.absolute()) if isinstance(each.path, Path) else each for each in self.members
        ]
        path = self.path.absolute() if isinstance(self.path, Path) else self.path
        options = {"is_stored": self.is_stored, "cache": self.cache, "verify": self._verify, "site": self.layout.site}
        return _reopen, (path, self.metadata, members, options, self._added_labels)

    def _again(self, *, verify: Literal["lazy"] | None, site: str) -> Collection:
        options = {"is_stored": self.is_stored, "cache": self.cache, "verify": verify, "site": site}
        return _reopen(self.path, self.metadata, self.members, options, self._added_labels)

    def site(self, name: str) -> Store:
        return self if name == self.layout.site else self._again(verify=self._verify, site=self._layout_of(name).site)

    def reopened(self, *, verify: Literal["lazy"] | None) -> Store:
        return self._again(verify=verify, site=self.layout.site)

    def stores(self) -> list[Store]:
        """Return the members, all of them open."""
        return [self._members[number] for number in range(len(self.members))]

    def refresh(self) -> None:
        for number, member in enumerate(self.members):
            if not member.finished:
                self._members.forget(number)
        self.__dict__.pop("n_committed_rows", None)

    def require_current(self, *, columns: bool) -> None:
        for store in self._members.opened():
            store.require_current(columns=False)

    @cached_property
    def n_committed_rows(self) -> int:  # type: ignore[override]
        return sum(
            member.n_rows if member.finished else self._members[number].n_committed_rows
            for number, member in enumerate(self.members)
        )

    @property
    def finished(self) -> bool:
        return all(member.finished or self._members[number].finished for number, member in enumerate(self.members))

    @property
    def is_remote(self) -> bool:
        return any(isinstance(member.path, ObjectPath) for member in self.members) and self.cache is None

    @property
    def digest(self) -> str:
        """SHA-256 of the digests of the members."""
        return hashlib.sha256(" ".join(store.digest for store in self.stores()).encode()).hexdigest()

    @property
    def center(self) -> None:
        """None: each member of int8 has its own."""

    @cached_property
    def label_files(self) -> MemberLabels:
        return MemberLabels(self)

    def column_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for store in self.stores() for name, shape in store.column_shapes().items()}

    @cached_property
    def index(self) -> MergedIndex:
        return MergedIndex(self._members, self._added_labels)

    @property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.index.by_type

    @cached_property
    def _type_index(self) -> MergedTypes:
        return MergedTypes(self.index)

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        n_partitions = sum(store.layout.n_partitions for store in self.stores())
        names = self._members.names
        members = [
            {"name": name, "path": str(member.path), "n_rows": member.n_rows}
            for name, member in zip(names, self.members, strict=True)
        ]
        return {**described, "n_partitions": n_partitions, "members": members}

    def is_written(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        written = np.ones(len(rows), bool)
        for number, some, own in self._by_member(rows):
            if not self.members[number].finished:
                written[some] = self._members[number].is_written(own)
        return written

    def _by_member(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice, NDArray[np.int64]]]:
        """Yield (member, positions among the rows, rows of the member) for each member that has some of them."""
        if not len(rows):
            return
        first, last = self._starts.searchsorted((rows.min(), rows.max()), "right") - 1
        if first == last:
            yield int(first), slice(None), rows - self._starts[first]
            return
        numbers = self._starts.searchsorted(rows, "right") - 1
        order = numbers.argsort(kind="stable")
        bounds = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=len(self.members)))
        for left, right in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            some = order[left:right]
            number = int(numbers[some[0]])
            yield number, some, rows[some] - self._starts[number]

    def _take(self, rows: ArrayLike, layers: tuple[int, ...], out: NDArray[Any] | None, missing: str) -> NDArray[Any]:
        check_choice("missing", missing, ("error", "nan"))
        numbers = checked_rows(rows, self.n_rows)
        target = checked_out(out, (len(layers), len(numbers), self.hidden_size), self.dtype)
        parts = list(self._by_member(numbers))

        def take(part: tuple[int, NDArray[np.int64] | slice, NDArray[np.int64]]) -> None:
            number, some, own = part
            store = self._members[number]
            if isinstance(some, slice):
                store._take(own, layers, target, missing)
            else:
                found = np.empty((len(layers), len(own), self.hidden_size), target.dtype)
                target[:, some] = store._take(own, layers, found, missing)

        with ThreadPoolExecutor(REMOTE_AT_ONCE) if self.is_remote and len(parts) > 1 else nullcontext() as pool:
            for _ in map(take, parts) if pool is None else pool.map(take, parts):
                pass
        return target

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Split rows `[start, stop)` by member: (member, first row, last row)."""
        while start < stop:
            number = int(self._starts.searchsorted(start, "right")) - 1
            end = min(int(self._starts[number + 1]), stop)
            yield number, start, end
            start = end

    def _scanned(
        self, layer: int, start: int, stop: int, block_rows: int | None, missing: Missing, copy: bool
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the blocks of members; with `copy`, one that reaches into the next member is gathered whole."""
        size = block_rows or max(1, BLOCK_NBYTES // (self.hidden_size * self.vector_dtype.itemsize))
        row = start
        while row < stop:
            number, _, end = next(self._spans(row, stop))
            if copy and end < stop:
                end -= (end - row) % size
            if end == row:
                end = min(row + size, stop)
                rows = np.arange(row, end)
                written = self.is_written(rows)
                if missing == "nan" or written.all():
                    yield row, self.vectors(rows, layers=layer, missing="nan" if missing == "nan" else "error")[0]
                    row = end
                    continue
                end = min(end, int(self._starts[number + 1]))  # rows are left out, and blocks begin after them
            first = int(self._starts[number])
            blocks = self._members[number].scan(
                layer, row - first, end - first, block_rows=size, missing=missing, copy=copy
            )
            for begin, vectors in blocks:
                yield first + begin, vectors
            row = end

    def stored_blocks(self, layer: Layer, start: int, stop: int, *, block_rows: int) -> Iterator[StoredRows]:
        layer = resolve_layer(layer, self.layers)
        self._require_committed(start, stop)
        return self._scanned_stored(layer, start, stop, block_rows)

    def _scanned_stored(self, layer: int, start: int, stop: int, block_rows: int) -> Iterator[StoredRows]:
        for number, first, last in self._spans(start, stop):
            base = int(self._starts[number])
            blocks = self._members[number].stored_blocks(layer, first - base, last - base, block_rows=block_rows)
            for block in blocks:
                yield replace(block, first=base + block.first)

    def sequential(self, array: str, layer: int, stop: int) -> RowReader:
        return _JoinedReader(self, array, layer, stop)

    def _require_committed(self, start: int, stop: int) -> None:
        for number, first, last in self._spans(start, stop):
            if not self.members[number].finished:
                base = int(self._starts[number])
                self._members[number]._require_committed(first - base, last - base)


class MemberLabels(LabelFiles):
    """The added label columns of a collection: each member has its part of them."""

    def __init__(self, collection: Collection) -> None:
        self._of = collection

    def write(self, columns: Mapping[str, Labels], *, replace: bool) -> None:
        stores = self._of.stores()
        for store in stores:
            taken = sorted(set(columns) & set(store.label_files.listed()))
            if taken and not replace:
                raise InvalidValueError(
                    f"{store.path} has labels {taken[0]!r} already: give --replace (replace=True), or another name"
                )
        for number, store in enumerate(stores):
            first, last = self._of._starts[number : number + 2]
            part = {name: Labels(labels.codes[first:last], labels.names) for name, labels in columns.items()}
            store.label_files.write(part, replace=replace)

    def remove(self, name: str) -> None:
        some = [store for store in self._of.stores() if name in store.label_files.listed()]
        if not some:
            raise InvalidValueError(f"{self._of.path} has no added labels {name!r}")
        for store in some:
            store.label_files.remove(name)


class _JoinedReader:
    """A RowReader over the members of a collection, one after the other."""

    def __init__(self, collection: Collection, array: str, layer: int, stop: int) -> None:
        self._of, self._array, self._layer, self._stop = collection, array, layer, stop
        self._member, self._reader = -1, ExitStack()

    def __enter__(self) -> _JoinedReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._reader.close()

    def read_rows(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        done = 0
        for number, _, own in self._of._by_member(rows):
            if number != self._member:
                self._reader.close()
                stop = min(self._stop - int(self._of._starts[number]), self._of.members[number].n_rows)
                reader = self._of._members[number].sequential(self._array, self._layer, stop)
                self._member, self._source = number, self._reader.enter_context(reader)
            self._source.read_rows(own, out[done : done + len(own)])
            done += len(own)


def _reopen(
    path: Path | ObjectPath,
    metadata: Metadata,
    members: Sequence[Member],
    options: Mapping[str, Any],
    labels: Mapping[str, Labels],
) -> Collection:
    collection = Collection(path, metadata, members, **options)
    collection._added_labels = dict(labels)
    return collection


def merged_metadata(stores: Sequence[Store]) -> Metadata:
    """Return the metadata of stores as one. Raises StoreMismatchError, with the difference, where they do not fit."""
    first = stores[0].metadata
    for store in stores[1:]:
        require_alike(first, store.metadata, stores[0].path, store.path)
    every = [store.metadata for store in stores]
    n_rows = sum(each.n_rows for each in every)
    dropped: dict[str, Dropped] = {}
    for each in (drop for metadata in every for drop in metadata.dropped):
        before = dropped.get(each.reason, Dropped(each.reason, 0, ()))
        examples = (*before.examples, *each.examples)[:MAX_EXAMPLES]
        dropped[each.reason] = Dropped(each.reason, before.count + each.count, examples)
    digest = hashlib.sha256(" ".join(each.fingerprint for each in every).encode()).hexdigest()
    names = list(dict.fromkeys(str(each.corpus["name"]) for each in every))
    sums = {name: sum(int(each.corpus.get(name, 0)) for each in every) for name in ("n_sentences", "n_words")}
    return replace(
        first,
        n_rows=n_rows,
        partition_rows=partition_rows(n_rows, first.n_features, first.dtype),
        corpus={
            **first.corpus,
            **sums,
            "name": names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more",
            "sha256": digest,
        },
        dropped=tuple(dropped.values()),
        fields={**_united_fields(stores), MEMBER: "str"},
    )


def require_alike(one: Metadata, other: Metadata, path: Any, other_path: Any) -> None:
    """Raise StoreMismatchError, naming the first difference, for stores that are not of the same kind of vectors."""

    def refuse(name: str, value: Any, others: Any) -> None:
        raise StoreMismatchError(
            f"{path} and {other_path} cannot be one collection: {name} is {value!r} in the first, {others!r} in the "
            "second; extract them in the same way"
        )

    for name in SAME:
        if getattr(one, name) != getattr(other, name):
            refuse(name, getattr(one, name), getattr(other, name))
    for part, free in FREE.items():
        first, second = getattr(one, part), getattr(other, part)
        for key in dict.fromkeys([*first, *second]):
            if key not in free and first.get(key) != second.get(key):
                refuse(f"{part}.{key}", first.get(key), second.get(key))


def _united_fields(stores: Sequence[Store]) -> dict[str, str]:
    """Return the kind of each field of documents: as for one corpus, float for numbers of both types, else str."""
    kinds: dict[str, str] = {}
    for store in stores:
        for name, kind in store.metadata.fields.items():
            known = kinds.setdefault(name, kind)
            if kind != known:
                kinds[name] = "float" if {kind, known} == {"int", "float"} else "str"
    return kinds
