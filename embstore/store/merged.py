"""The members of a collection, and their indexes as one: types and labels united, rows one after another."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.errors import InvalidValueError, StoreDamagedError
from embstore.store.backend import open_reader
from embstore.store.index import KINDS, Contexts, Field, Index, Labels, Strings, TypeIndex, rows_by_type
from embstore.store.storage.files import REPAIR_HINT, new_column
from embstore.store.storage.location import ObjectPath
from embstore.store.store import Store
from embstore.store.zarr.reader import max_mapped

MEMBER = "member"  # the field of documents with the name of the member that they are in
_LOOKUPS_BEFORE_TABLE = 8
CONTEXT_COLUMNS = ("start", "stop", "indptr")
_LABELS, _FIELDS = "occurrences/labels/", "documents/fields/"


@dataclass(frozen=True)
class Member:
    """A store of a collection. `n_sentences`: of its corpus. `finished`: whether it had all rows when it was added."""

    path: Path | ObjectPath
    n_rows: int
    n_sentences: int
    fingerprint: str
    finished: bool

    @classmethod
    def of(cls, store: Store) -> Member:
        n_sentences = int(store.metadata.corpus.get("n_sentences", store.column_shapes()["sentences/source"][0]))
        return cls(store.path, store.n_rows, n_sentences, store.metadata.fingerprint, store.finished)


class Members:
    """The stores of a collection, opened when they are first read; those not used for longest are closed again."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        cache: Path | None,
        verify: Literal["lazy"] | None,
        site: str,
        fields: Mapping[str, str],
    ) -> None:
        self.members = tuple(members)
        self.fields = fields
        self.paths = [member.path for member in members]
        self.names = member_names(self.paths)
        self.first_sentences = np.cumsum([0, *(member.n_sentences for member in members)], dtype=np.int64).tolist()
        self._given = cache, verify, site
        self._open: OrderedDict[int, Store] = OrderedDict()
        self._most = max(16, max_mapped() // 4)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> Store:
        """Open a member. Raises StoreDamagedError where it is no longer the store that was added."""
        store = self._open.get(number)
        if store is None:
            store = self._opened(number)  # without the lock: several at a time in a bucket
        with self._lock:
            store = self._open.setdefault(number, store)
            self._open.move_to_end(number)
            if len(self._open) > self._most:
                self._open.popitem(last=False)
            return store

    def _opened(self, number: int) -> Store:
        cache, verify, site = self._given
        member = self.members[number]
        reader = open_reader(member.path, cache=cache)
        if reader.metadata.fingerprint != member.fingerprint:
            raise StoreDamagedError(
                f"{member.path} is another store than the one that was added to the collection: put that one back, or "
                "make the collection again"
            )
        reader.limit_files(max_mapped() // min(len(self), self._most))
        return Store(reader, verify=verify, site=site)

    def opened(self) -> list[Store]:
        """Return the members that are open now."""
        with self._lock:
            return list(self._open.values())

    def forget(self, number: int) -> None:
        """Close a member, so that its rows written since then can be read."""
        with self._lock:
            self._open.pop(number, None)

    def column(self, member: int, name: str) -> NDArray[Any]:
        return self[member].stored_column(name)


def member_names(paths: Sequence[Path | ObjectPath]) -> list[str]:
    """Return the names of members: those of their files without the ending, with as many folders as they differ in.

    Where only the endings distinguish two members, as a.zarr and a.h5, all names have theirs.
    """
    for with_ending in (False, True):
        parts = [[*str(path).split("/")[:-1], path.name if with_ending else path.stem] for path in paths]
        for depth in range(1, max(map(len, parts)) + 1):
            names = ["/".join(each[-depth:]) for each in parts]
            if len(set(names)) == len(names):
                return names
    return [str(path) for path in paths]


class MergedIndex(Index):
    """The index of several stores as one, each column made when it is first used.

    Types and labels are numbered in the order of their first appearance, values of fields are sorted; the field MEMBER
    has the name of a document's store. `added`: label columns in memory. Long columns are mapped from temporary files.
    """

    def __init__(self, members: Members, added: Mapping[str, Labels]) -> None:
        self.__dict__.update(_members=members, _added=dict(added))

    @property
    def _of(self) -> Members:
        members: Members = self.__dict__["_members"]
        return members

    @property
    def _numbers(self) -> range:
        return range(len(self._of.names))

    @cached_property
    def _shapes(self) -> list[Mapping[str, tuple[int, ...]]]:
        return [self._of[member].column_shapes() for member in self._numbers]

    def _starts(self, name: str, spare: int = 0) -> list[int]:
        """Return where each member begins in a column, and its length; `spare`: last entries that are not joined."""
        sizes = [shapes[name][0] - spare for shapes in self._shapes]
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def _joined(
        self, name: str, dtype: DTypeLike, *, shift: Sequence[int] | None = None, spare: int = 0
    ) -> NDArray[Any]:
        """Return a column of all members, increased by `shift` [member]; `spare`: last entries left out of each."""
        bounds = self._starts(name, spare)
        out = new_column(bounds[-1] + spare, np.dtype(dtype))
        for member in self._numbers:
            part = self._of.column(member, name)
            np.add(part, 0 if shift is None else shift[member], out=out[bounds[member] : bounds[member] + len(part)])
        return out

    def _strings(self, member: int, prefix: str) -> list[str]:
        return list(Strings(self._of.column(member, f"{prefix}_offsets"), self._of.column(member, f"{prefix}_bytes")))

    @cached_property
    def type_numbers(self) -> tuple[dict[str, int], list[NDArray[np.int32]]]:
        """The number of each form, and for each member the numbers of its types."""
        return self._united([partial(self._strings, member, "types/form") for member in self._numbers])

    @staticmethod
    def _united(parts: Iterable[Callable[[], list[str]]]) -> tuple[dict[str, int], list[NDArray[np.int32]]]:
        numbers: dict[str, int] = {}
        maps = []
        for names in parts:
            found = [numbers.setdefault(name, len(numbers)) for name in names()]
            maps.append(np.array(found, np.int32))
        return numbers, maps

    def _renumbered(
        self,
        name: str,
        member: int,
        numbers: NDArray[np.int32],
        least: int = 0,
        codes: NDArray[np.int32] | None = None,
    ) -> NDArray[np.int32]:
        """Return a column of codes of a member with the codes that the merged column has; -1 stays."""
        codes = self._of.column(member, name) if codes is None else codes
        if len(codes) and not least <= int(codes.min()) <= int(codes.max()) < len(numbers):
            raise StoreDamagedError(f"the index of {self._of.paths[member]} is damaged ({name}): {REPAIR_HINT}")
        renumbered: NDArray[np.int32] = np.append(numbers, np.int32(-1))[codes]
        return renumbered

    @cached_property
    def type(self) -> NDArray[np.int32]:
        bounds = self._starts("occurrences/type")
        out = new_column(bounds[-1], np.dtype(np.int32))
        for member, numbers in enumerate(self.type_numbers[1]):
            out[bounds[member] : bounds[member + 1]] = self._renumbered("occurrences/type", member, numbers)
        return out

    @cached_property
    def sentence(self) -> NDArray[np.int64]:
        return self._joined("occurrences/sentence", np.int64, shift=self._starts("sentences/source"))

    @cached_property
    def position(self) -> NDArray[np.int32]:
        return self._joined("occurrences/position", np.int32)

    @cached_property
    def subwords(self) -> NDArray[np.int16]:
        return self._joined("occurrences/subwords", np.int16)

    @cached_property
    def words(self) -> Strings:
        return Strings.of(self.type_numbers[0])

    @cached_property
    def texts(self) -> Strings:
        shift = self._starts("sentences/text_bytes")
        return Strings(
            self._joined("sentences/text_offsets", np.int64, shift=shift, spare=1),
            self._joined("sentences/text_bytes", np.uint8),
        )

    @cached_property
    def indptr(self) -> NDArray[np.int64]:
        return self._joined("sentences/indptr", np.int64, shift=self._starts("occurrences/type"), spare=1)

    @cached_property
    def source(self) -> NDArray[np.int64]:
        return self._joined("sentences/source", np.int64, shift=self._of.first_sentences)

    @cached_property
    def document(self) -> NDArray[np.int64] | None:
        if all("sentences/document" not in shapes for shapes in self._shapes):
            return None
        bounds = self._starts("sentences/source")
        out = new_column(bounds[-1], np.dtype(np.int64))
        for member in self._numbers:
            own = self._documents(member)
            out[bounds[member] : bounds[member + 1]] = own + self._first_documents[member]
        return out

    def _documents(self, member: int) -> NDArray[np.int64]:
        """Return the document of each sentence of a member, counted in it."""
        if "sentences/document" in self._shapes[member]:
            return self._of.column(member, "sentences/document")
        return np.arange(self._shapes[member]["sentences/source"][0])

    @cached_property
    def _first_documents(self) -> list[int]:
        """The first document of each member, and the number of all."""
        counts = [int(self._documents(member)[-1]) + 1 for member in self._numbers]
        return [0, *np.cumsum(counts, dtype=np.int64).tolist()]

    @cached_property
    def contexts(self) -> Contexts | None:
        """The contexts of all members; the sentences of those whose contexts are their sentences."""
        if all("contexts/start" not in shapes for shapes in self._shapes):
            return None
        sentences, words, parts = self._starts("sentences/source"), self.word_indptr, []
        for member, rows in enumerate(self._starts("occurrences/type")[:-1]):
            own = words[sentences[member] : sentences[member + 1] + 1]
            if "contexts/start" in self._shapes[member]:
                start, stop, indptr = (self._of.column(member, f"contexts/{name}") for name in CONTEXT_COLUMNS)
                parts.append((start + own[0], stop + own[0], indptr[:-1] + rows))
            else:
                parts.append((own[:-1], own[1:], self._of.column(member, "sentences/indptr")[:-1] + rows))
        starts, stops, bounds = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Contexts(starts, stops, np.append(bounds, len(self.type)))

    @cached_property
    def fields(self) -> dict[str, Field]:
        found = {name: self._field(name, kind) for name, kind in self._of.fields.items() if name != MEMBER}
        names = sorted(self._of.names)
        ranks = np.array([names.index(name) for name in self._of.names], np.int32)
        codes = np.repeat(ranks, np.diff(self._first_documents))
        return dict(sorted({**found, MEMBER: Field(codes, Strings.of(names), "str")}.items()))

    def _field(self, name: str, kind: str) -> Field:
        """Return a field whose values have the kind of all members."""
        path = f"{_FIELDS}{name}"
        some = [member for member in self._numbers if f"{path}/codes" in self._shapes[member]]
        parts: list[Callable[[], list[str]]] = [partial(self._strings, member, f"{path}/name") for member in some]
        if kind == "float":  # of a member, they may be whole
            parts = [partial(_as_floats, part) for part in parts]
        numbers, maps = self._united(parts)
        names = sorted(numbers, key=KINDS[kind])
        ranks = np.empty(len(names), np.int32)
        ranks[[numbers[value] for value in names]] = np.arange(len(names))
        codes = np.full(self._first_documents[-1], -1, np.int32)
        for member, own in zip(some, maps, strict=True):
            first, last = self._first_documents[member : member + 2]
            codes[first:last] = self._renumbered(f"{path}/codes", member, ranks[own], -1)
        return Field(codes, Strings.of(names), kind)

    @cached_property
    def labels(self) -> dict[str, Labels]:
        added = [self._of[member].label_files.read() for member in self._numbers]
        names = {path.removeprefix(_LABELS) for shapes in self._shapes for path in shapes if path.startswith(_LABELS)}
        names.update(name for each in added for name in each)
        if both := sorted(names & set(self.fields)):
            raise InvalidValueError(
                f"{both[0]!r} is a label column of one member and a field of others, or of the collection: "
                "rename it where it is a label"
            )
        found = {name: self._label(name, added) for name in sorted(names)}
        return {**found, **self.__dict__["_added"], **self.spread_fields()}

    def _label(self, name: str, added: Sequence[Mapping[str, Labels]]) -> Labels:
        """Return a label column of those members that have it; `added`: those of each that are not of its corpus."""

        def names(member: int) -> list[str]:
            own = added[member].get(name)
            return self._strings(member, f"labels/{name}/name") if own is None else list(own.names)

        some = [member for member in self._numbers if name in added[member] or _LABELS + name in self._shapes[member]]
        numbers, maps = self._united([partial(names, member) for member in some])

        def codes() -> NDArray[np.int32]:
            bounds, of_member = self._starts("occurrences/type"), dict(zip(some, maps, strict=True))
            out = new_column(bounds[-1], np.dtype(np.int32))
            for member in self._numbers:
                part = out[bounds[member] : bounds[member + 1]]
                if member not in of_member:
                    part[...] = -1
                    continue
                own = added[member][name].codes if name in added[member] else None
                part[...] = self._renumbered(_LABELS + name, member, of_member[member], -1, own)
            return out

        return _MergedLabels(Strings.of(numbers), codes)

    def rows_of_type(self, number: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of a type in each member that has it, which needs no column of all members."""
        starts = self._starts("occurrences/type")
        for member, numbers in enumerate(self.type_numbers[1]):
            for own in np.flatnonzero(numbers == number).tolist():
                first, last = self._of.column(member, "types/indptr")[own : own + 2].tolist()
                yield self._of.column(member, "types/occurrences")[first:last] + starts[member]

    @cached_property
    def by_type(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of every type, as `Store.occurrences`."""
        with rows_by_type(self.type, len(self.type_numbers[0]), Path(tempfile.gettempdir())) as found:
            return found


def _as_floats(values: Callable[[], list[str]]) -> list[str]:
    return [str(float(value)) for value in values()]


class _MergedLabels(Labels):
    """A label column whose codes are joined when they are first used."""

    def __init__(self, names: Strings, make: Callable[[], NDArray[np.int32]]) -> None:
        self.__dict__.update(names=names, _make=make)

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        made: NDArray[np.int32] = self.__dict__["_make"]()
        return made


class MergedTypes(TypeIndex):
    """Finds words and their rows in several stores: the first ones member by member, more in one table."""

    def __init__(self, index: MergedIndex) -> None:
        self._index = index
        self._n_found = 0

    @cached_property
    def words(self) -> Strings:
        return self._index.words

    @cached_property
    def _table(self) -> dict[str, int]:  # type: ignore[override]
        return self._index.type_numbers[0]

    @property
    def _indptr(self) -> NDArray[np.int64]:  # type: ignore[override]
        return self._index.by_type[0]

    @property
    def _rows(self) -> NDArray[np.int64]:  # type: ignore[override]
        return self._index.by_type[1]

    def rows_of(self, type_id: int) -> NDArray[np.int64]:
        self._n_found += 1
        known = isinstance(type_id, int | np.integer) and 0 <= type_id < len(self._table)
        if self._n_found > _LOOKUPS_BEFORE_TABLE or not known:
            return super().rows_of(type_id)
        return np.concatenate([np.empty(0, np.int64), *self._index.rows_of_type(type_id)])
