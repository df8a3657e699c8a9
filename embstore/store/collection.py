"""Several stores as one: rows one after another, each read from the member that has it, which is opened when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidValueError, StoreMismatchError
from embstore.store.conditions import checked_rows
from embstore.store.index import Index, Labels
from embstore.store.layout import partition_rows
from embstore.store.merged import MEMBER, Member, Members, MergedColumns
from embstore.store.metadata import COUNTED, Dropped, Metadata
from embstore.store.reading.rows import BLOCK_NBYTES, StoredRows, checked_out
from embstore.store.source import CHECKED_NBYTES, FileSource, Missing, Verify, layout_of
from embstore.store.storage.location import ObjectPath
from embstore.store.vectors import VALUE_DTYPE

MAX_EXAMPLES = 5  # of words that have no row, in the metadata of a collection
REMOTE_AT_ONCE = 16  # members in a bucket from which rows are requested at the same time
SAME = ("layers", "hidden_size", "dtype", "sites")  # of members
# What may differ between members: which words have a row, and how they were computed, not what a vector is
COMPUTED = {"batching", "batch_subwords", "group_partitions", "compute_dtype", "attention", "seed"}
FREE = {"model": {"name", "revision"}, "extraction": {"keep", "export", "import", *COMPUTED}}


class JoinedSource:
    """Several stores that are one to every query and analysis: rows, sentences and documents one after another.

    Made by `embstore.open` of several paths, of a glob, of a file that lists them, or of a store with appended parts.
    The field "member" has the name of the store that a row is in. `n_members`: how many they are.
    """

    def __init__(
        self,
        path: Path | ObjectPath,
        metadata: Metadata,
        members: Sequence[Member],
        *,
        is_stored: bool,
        verify: Verify = None,
        site: str | None = None,
    ) -> None:
        self.path, self.metadata, self.is_stored, self.verify = path, metadata, is_stored, verify
        self.layout = layout_of(metadata, site, path)
        self.described = tuple(members)
        self.opened = Members(members, verify=verify, site=self.layout.site)
        self._starts = np.cumsum([0, *(member.n_rows for member in members)], dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        members = [
            replace(each, path=each.path.absolute()) if isinstance(each.path, Path) else each for each in self.described
        ]
        path = self.path.absolute() if isinstance(self.path, Path) else self.path
        options: dict[str, Any] = {"is_stored": self.is_stored, "verify": self.verify, "site": self.layout.site}
        return partial(JoinedSource, path, self.metadata, members, **options), ()

    def again(self, *, verify: Verify, site: str) -> JoinedSource:
        given = self.path, self.metadata, self.described
        return JoinedSource(*given, is_stored=self.is_stored, verify=verify, site=site)

    def members(self) -> list[FileSource]:
        """Return the members, all of them open."""
        return list(self.opened)

    def refresh(self) -> None:
        for number, member in enumerate(self.described):
            if not member.finished:
                self.opened.forget(number)
        self.__dict__.pop("n_committed_rows", None)

    def require_current(self, *, columns: bool) -> None:
        for source in self.opened.opened():
            source.require_current(columns=False)

    @cached_property
    def n_committed_rows(self) -> int:
        return sum(
            member.n_rows if member.finished else self.opened[number].n_committed_rows
            for number, member in enumerate(self.described)
        )

    @property
    def finished(self) -> bool:
        return all(member.finished or self.opened[number].finished for number, member in enumerate(self.described))

    @property
    def is_remote(self) -> bool:
        return any(isinstance(member.path, ObjectPath) for member in self.described)

    @property
    def digest(self) -> str:
        """SHA-256 of the digests of the members."""
        return hashlib.sha256(" ".join(source.digest for source in self.opened).encode()).hexdigest()

    @property
    def center(self) -> None:
        """None: each member of int8 has its own."""

    @cached_property
    def label_files(self) -> MemberLabels:
        return MemberLabels(self)

    def column_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for source in self.opened for name, shape in source.column_shapes().items()}

    @cached_property
    def index(self) -> Index:
        nbytes = sum(member.index_nbytes for member in self.described)
        if self.verify or (nbytes <= CHECKED_NBYTES and not self.is_remote):
            for source in self.opened:
                source.checked_index(is_checked=True)
                source.reader.release_columns()
        columns = MergedColumns(self.opened, self.metadata.fields)
        return Index(columns, self.metadata.fields, rows_of_type=columns.rows_of_type)

    def is_written(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        written = np.ones(len(rows), bool)
        for number, some, own in self._by_member(rows):
            if not self.described[number].finished:
                written[some] = self.opened[number].is_written(own)
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
        bounds = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=len(self.described)))
        for left, right in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            some = order[left:right]
            number = int(numbers[some[0]])
            yield number, some, rows[some] - self._starts[number]

    def take(self, rows: ArrayLike, layers: tuple[int, ...], out: NDArray[Any] | None, *, nan: bool) -> NDArray[Any]:
        numbers = checked_rows(rows, self.metadata.n_rows)
        target = checked_out(out, (len(layers), len(numbers), self.layout.hidden_size), self.layout.dtype)
        parts = list(self._by_member(numbers))

        def take(part: tuple[int, NDArray[np.int64] | slice, NDArray[np.int64]]) -> None:
            number, some, own = part
            source = self.opened[number]
            if isinstance(some, slice):
                source.take(own, layers, target, nan=nan)
            else:
                found = np.empty((len(layers), len(own), self.layout.hidden_size), target.dtype)
                target[:, some] = source.take(own, layers, found, nan=nan)

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

    def scan(
        self, layer: int, start: int, stop: int, *, block_rows: int | None, missing: Missing, copy: bool
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the blocks of members; with `copy`, one that reaches into the next member is gathered whole."""
        itemsize = VALUE_DTYPE[self.layout.dtype].itemsize
        size = block_rows or max(1, BLOCK_NBYTES // (self.layout.hidden_size * itemsize))
        row = start
        while row < stop:
            number, _, end = next(self._spans(row, stop))
            if copy and end < stop:
                end -= (end - row) % size
            if end == row:
                end = min(row + size, stop)
                rows = np.arange(row, end)
                if missing == "nan" or self.is_written(rows).all():
                    yield row, self.take(rows, (layer,), None, nan=missing == "nan")[0]
                    row = end
                    continue
                end = min(end, int(self._starts[number + 1]))  # rows are left out, and blocks begin after them
            first = int(self._starts[number])
            options: dict[str, Any] = {"block_rows": size, "missing": missing, "copy": copy}
            for begin, vectors in self.opened[number].scan(layer, row - first, end - first, **options):
                yield first + begin, vectors
            row = end

    def stored_blocks(self, layer: int, start: int, stop: int, *, block_rows: int) -> Iterator[StoredRows]:
        self.require_committed(start, stop)
        for number, first, last in self._spans(start, stop):
            base = int(self._starts[number])
            blocks = self.opened[number].stored_blocks(layer, first - base, last - base, block_rows=block_rows)
            for block in blocks:
                yield replace(block, first=base + block.first)

    def require_committed(self, start: int, stop: int) -> None:
        for number, first, last in self._spans(start, stop):
            if not self.described[number].finished:
                base = int(self._starts[number])
                self.opened[number].require_committed(first - base, last - base)


class MemberLabels:
    """The added label columns of a collection: each member has its part of them."""

    def __init__(self, joined: JoinedSource) -> None:
        self._of = joined

    def write(self, columns: Mapping[str, Labels], *, replace: bool) -> None:
        sources = self._of.members()
        for source in sources:
            taken = sorted(set(columns) & set(source.label_files.listed()))
            if taken and not replace:
                raise InvalidValueError(
                    f"{source.path} has labels {taken[0]!r} already: give --replace (replace=True), or another name"
                )
        for number, source in enumerate(sources):
            first, last = self._of._starts[number : number + 2]
            part = {name: Labels(labels.codes[first:last], labels.names) for name, labels in columns.items()}
            source.label_files.write(part, replace=replace)

    def remove(self, name: str) -> None:
        some = [source for source in self._of.members() if name in source.label_files.listed()]
        if not some:
            raise InvalidValueError(f"{self._of.path} has no added labels {name!r}")
        for source in some:
            source.label_files.remove(name)


# One store, or several that are one: what `Store` and the analyses read
Source: TypeAlias = FileSource | JoinedSource


def merged_metadata(stores: Sequence[Source]) -> Metadata:
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
    known = [name for name in COUNTED if any(name in each.corpus for each in every)]
    sums = {name: sum(each.corpus.get(name) or 0 for each in every) for name in known}
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
        virtual=any(each.virtual for each in every),
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


def _united_fields(stores: Sequence[Source]) -> dict[str, str]:
    """Return the kind of each field of documents: as for one corpus, float for numbers of both types, else str."""
    kinds: dict[str, str] = {}
    for store in stores:
        for name, kind in store.metadata.fields.items():
            known = kinds.setdefault(name, kind)
            if kind != known:
                kinds[name] = "float" if {kind, known} == {"int", "float"} else "str"
    return kinds
