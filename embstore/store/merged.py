"""The members of a collection, and their columns as one: types and labels united, rows one after another."""

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
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, StoreDamagedError
from embstore.store.arrays import frozen_kind
from embstore.store.backend import open_reader
from embstore.store.index import FIELDS, KINDS, LABELS, Labels, rows_by_type
from embstore.store.source import FileSource
from embstore.store.storage.files import REPAIR_HINT, new_column
from embstore.store.storage.location import ObjectPath, member_names
from embstore.store.strings import Strings
from embstore.store.zarr.reader import max_mapped

MEMBER = "member"  # the field of documents with the name of the member that they are in
CONTEXT_COLUMNS = ("start", "stop", "indptr")

# Columns that are joined: by what the numbers of each member are shifted (the lengths of a column of those before it),
# and how many last entries of each member but the last are left out.
_JOINED: dict[str, tuple[str | None, int]] = {
    "occurrences/sentence": ("sentences/source", 0),
    "sentences/text_offsets": ("sentences/text_bytes", 1),
    "sentences/text_bytes": (None, 0),
    "sentences/indptr": ("occurrences/type", 1),
    "sentences/word_indptr": ("words/start", 1),
    "sentences/subword_indptr": ("subwords/id", 1),
    **dict.fromkeys(
        (
            *(
                "occurrences/position",
                "occurrences/subwords",
                "occurrences/subword",
                "sentences/start",
                "sentences/stop",
                "words/start",
                "words/stop",
                "words/subword",
            ),
            *("words/subwords", "subwords/id", "subwords/start", "subwords/stop"),
        ),
        (None, 0),
    ),
}


@dataclass(frozen=True)
class Member:
    """A store of a collection. `n_sentences`: of its corpus. `finished`: whether it had all rows when it was added."""

    path: Path | ObjectPath
    n_rows: int
    n_sentences: int
    fingerprint: str
    finished: bool
    index_nbytes: int

    @classmethod
    def of(cls, source: FileSource) -> Member:
        metadata = source.metadata
        n_sentences = metadata.corpus.get("n_sentences") or source.column_shapes()["sentences/source"][0]
        counts = metadata.n_rows, n_sentences
        return cls(source.path, *counts, metadata.fingerprint, source.finished, source.index_nbytes)


class Members:
    """The stores of a collection, opened when they are first read; those not used for longest are closed again."""

    def __init__(self, members: Sequence[Member], *, verify: Literal["lazy"] | None, site: str) -> None:
        self.members = tuple(members)
        self.paths = [member.path for member in members]
        self.names = member_names(self.paths)
        self.first_sentences = np.cumsum([0, *(member.n_sentences for member in members)], dtype=np.int64).tolist()
        self._options = verify, site
        self._open: OrderedDict[int, FileSource] = OrderedDict()
        self._most = max(16, max_mapped() // 4)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[FileSource]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> FileSource:
        """Open a member. Raises StoreDamagedError where it is no longer the store that was added."""
        if number >= len(self):
            raise IndexError(number)
        source = self._open.get(number)
        if source is None:
            source = self._opened(number)  # without the lock: several at a time in a bucket
        with self._lock:
            source = self._open.setdefault(number, source)
            self._open.move_to_end(number)
            if len(self._open) > self._most:
                self._open.popitem(last=False)
            return source

    def _opened(self, number: int) -> FileSource:
        verify, site = self._options
        member = self.members[number]
        reader = open_reader(member.path)
        if reader.metadata.fingerprint != member.fingerprint:
            raise StoreDamagedError(
                f"{member.path} is another store than the one that was added to the collection: put that one back, or "
                "make the collection again"
            )
        reader.max_mapped = max(1, max_mapped() // min(len(self), self._most))
        return FileSource(reader, verify=verify, site=site)

    def opened(self) -> list[FileSource]:
        """Return the members that are open now."""
        with self._lock:
            return list(self._open.values())

    def forget(self, number: int) -> None:
        """Close a member, so that its rows written since then can be read."""
        with self._lock:
            self._open.pop(number, None)

    def column(self, member: int, name: str) -> NDArray[Any]:
        return self[member].stored_column(name)


class MergedColumns(Mapping[str, NDArray[Any]]):
    """The columns of several stores as those of one, by name, each made when it is first used.

    Types and labels are numbered in the order of their first appearance, values of fields are sorted; the field MEMBER
    has the name of a document's store. `kinds`: of the fields. Long columns are mapped from temporary files.
    """

    def __init__(self, members: Members, kinds: Mapping[str, str]) -> None:
        self._of, self._kinds = members, kinds
        self._numbers = range(len(members))
        self._made: dict[str, NDArray[Any]] = {}

    @cached_property
    def _shapes(self) -> list[Mapping[str, tuple[int, ...]]]:
        return [source.column_shapes() for source in self._of]

    @cached_property
    def _added(self) -> list[Mapping[str, Labels]]:
        """The labels of each member that are not of its corpus."""
        return [source.label_files.read() for source in self._of]

    @cached_property
    def _names(self) -> dict[str, None]:
        """The names of all columns; those of labels are known once the files of labels are read."""
        stored = {name for shapes in self._shapes for name in shapes} - {"center", "layer", "block"}
        labels = {name for added in self._added for name in added}
        added = {f"{LABELS}{name}" for name in labels}
        added |= {f"labels/{name}/name_{part}" for name in labels for part in ("offsets", "bytes")}
        fields = {f"{FIELDS}{MEMBER}/{part}" for part in ("codes", "name_offsets", "name_bytes")}
        names = stored | added | fields
        both = sorted({path.removeprefix(LABELS) for path in names if path.startswith(LABELS)} & set(self._kinds))
        if both:
            raise InvalidValueError(
                f"{both[0]!r} is a label column of one member and a field of others, or of the collection: "
                "rename it where it is a label"
            )
        return dict.fromkeys(sorted(names))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name.startswith(("occurrences/", "labels/", FIELDS)):
            return name in self._names
        return any(name in shapes for shapes in self._shapes)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._made:
            self._make(name)
        return self._made[name]

    def _make(self, name: str) -> None:
        made = self._made
        if name in _JOINED:
            made[name] = self._joined(name)
        elif name == "sentences/source":
            made[name] = self._shifted(name, self._of.first_sentences)
        elif name == "occurrences/type":
            made[name] = self._renumbered_column(name, self.types[1])
        elif name.startswith("types/form"):
            self._put_strings("types/form", Strings.of(self.types[0]))
        elif name in ("types/indptr", "types/occurrences"):
            with rows_by_type(self["occurrences/type"], len(self.types[0]), Path(tempfile.gettempdir())) as found:
                made["types/indptr"], made["types/occurrences"] = found
        elif name == "sentences/document" and name in self:
            made[name] = self._documents_of_all()
        elif name.startswith("contexts/"):
            made |= self._contexts()
        elif name.startswith(FIELDS):
            self._make_field(name.split("/")[2])
        elif name.startswith("labels/"):
            self._put_strings(f"labels/{name.split('/')[1]}/name", Strings.of(self._label(name.split("/")[1])[0]))
        elif name.startswith(LABELS):
            made[name] = self._renumbered_column(name, self._label(name.removeprefix(LABELS))[1])
        else:
            raise KeyError(name)

    def _put_strings(self, name: str, strings: Strings) -> None:
        self._made[f"{name}_offsets"], self._made[f"{name}_bytes"] = strings.offsets, strings.data

    def _starts(self, name: str, spare: int = 0) -> list[int]:
        """Return where each member begins in a column, and its length; `spare`: last entries that are not joined."""
        sizes = [shapes[name][0] - spare for shapes in self._shapes]
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def _joined(self, name: str) -> NDArray[Any]:
        shift, spare = _JOINED[name]
        return self._shifted(name, None if shift is None else self._starts(shift), spare)

    def _shifted(self, name: str, shift: Sequence[int] | None, spare: int = 0) -> NDArray[Any]:
        """Return a column of all members, increased by `shift` [member]."""
        bounds = self._starts(name, spare)
        out = new_column(bounds[-1] + spare, frozen_kind(name)[0])
        for member in self._numbers:
            part = self._of.column(member, name)
            np.add(part, 0 if shift is None else shift[member], out=out[bounds[member] : bounds[member] + len(part)])
        return out

    def _strings(self, member: int, prefix: str) -> list[str]:
        return list(Strings(self._of.column(member, f"{prefix}_offsets"), self._of.column(member, f"{prefix}_bytes")))

    @cached_property
    def types(self) -> tuple[dict[str, int], dict[int, NDArray[np.int32]]]:
        """The number of each form, and for each member the numbers of its types."""
        return self._united({member: partial(self._strings, member, "types/form") for member in self._numbers})

    @staticmethod
    def _united(
        parts: Mapping[int, Callable[[], Iterable[str]]],
    ) -> tuple[dict[str, int], dict[int, NDArray[np.int32]]]:
        numbers: dict[str, int] = {}
        maps = {}
        for member, names in parts.items():
            maps[member] = np.array([numbers.setdefault(name, len(numbers)) for name in names()], np.int32)
        return numbers, maps

    def _renumbered(
        self, name: str, member: int, numbers: NDArray[np.int32], codes: NDArray[np.int32] | None = None
    ) -> NDArray[np.int32]:
        """Return a column of codes of a member with the codes that the merged column has; -1 stays."""
        codes = self._of.column(member, name) if codes is None else codes
        least = 0 if name == "occurrences/type" else -1
        if len(codes) and not least <= int(codes.min()) <= int(codes.max()) < len(numbers):
            raise StoreDamagedError(f"the index of {self._of.paths[member]} is damaged ({name}): {REPAIR_HINT}")
        renumbered: NDArray[np.int32] = np.append(numbers, np.int32(-1))[codes]
        return renumbered

    def _renumbered_column(self, name: str, numbers: Mapping[int, NDArray[np.int32]]) -> NDArray[np.int32]:
        """Return a column of codes of rows; those of members without the column are -1."""
        bounds = self._starts("occurrences/type")
        out = new_column(bounds[-1], np.dtype(np.int32))
        for member in self._numbers:
            part = out[bounds[member] : bounds[member + 1]]
            if member not in numbers:
                part[...] = -1
                continue
            added = self._added[member].get(name.removeprefix(LABELS)) if name.startswith(LABELS) else None
            part[...] = self._renumbered(name, member, numbers[member], None if added is None else added.codes)
        return out

    def _documents_of_all(self) -> NDArray[np.int64]:
        bounds = self._starts("sentences/source")
        out = new_column(bounds[-1], np.dtype(np.int64))
        for member in self._numbers:
            out[bounds[member] : bounds[member + 1]] = self._documents(member) + self._first_documents[member]
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

    def _contexts(self) -> dict[str, NDArray[np.int64]]:
        """Return the contexts of all members; the sentences of those whose contexts are their sentences."""
        subwords = self["sentences/subword_indptr"]
        sentences, parts = self._starts("sentences/source"), []
        for member, rows in enumerate(self._starts("occurrences/type")[:-1]):
            own = subwords[sentences[member] : sentences[member + 1] + 1]
            if "contexts/start" in self._shapes[member]:
                start, stop, indptr = (self._of.column(member, f"contexts/{name}") for name in CONTEXT_COLUMNS)
                parts.append((start + own[0], stop + own[0], indptr[:-1] + rows))
            else:
                parts.append((own[:-1], own[1:], self._of.column(member, "sentences/indptr")[:-1] + rows))
        starts, stops, bounds = (np.concatenate(each) for each in zip(*parts, strict=True))
        bounds = np.append(bounds, self._starts("occurrences/type")[-1])
        return {"contexts/start": starts, "contexts/stop": stops, "contexts/indptr": bounds}

    def _make_field(self, name: str) -> None:
        """Make the columns of a field, whose values have the kind of all members."""
        path, kind = f"{FIELDS}{name}", self._kinds[name]
        if name == MEMBER:
            names = sorted(self._of.names)
            ranks = np.array([names.index(each) for each in self._of.names], np.int32)
            codes = np.repeat(ranks, np.diff(self._first_documents))
        else:
            some = [member for member in self._numbers if f"{path}/codes" in self._shapes[member]]
            read: dict[int, Callable[[], Iterable[str]]] = {
                member: partial(self._strings, member, f"{path}/name") for member in some
            }
            if kind == "float":  # of a member, they may be whole
                read = {member: partial(_as_floats, strings) for member, strings in read.items()}
            numbers, maps = self._united(read)
            names = sorted(numbers, key=KINDS[kind])
            ranks = np.empty(len(names), np.int32)
            ranks[[numbers[value] for value in names]] = np.arange(len(names))
            codes = np.full(self._first_documents[-1], -1, np.int32)
            for member, own in maps.items():
                first, last = self._first_documents[member : member + 2]
                codes[first:last] = self._renumbered(f"{path}/codes", member, ranks[own])
        self._made[f"{path}/codes"] = codes
        self._put_strings(f"{path}/name", Strings.of(names))

    def _label(self, name: str) -> tuple[dict[str, int], dict[int, NDArray[np.int32]]]:
        """Return the number of each label of a column, and the numbers that those of each member with it become."""
        read: dict[int, Callable[[], Iterable[str]]] = {}
        for member in self._numbers:
            added = self._added[member].get(name)
            if added is not None:
                read[member] = partial(iter, added.names)
            elif LABELS + name in self._shapes[member]:
                read[member] = partial(self._strings, member, f"labels/{name}/name")
        return self._united(read)

    def rows_of_type(self, number: int) -> NDArray[np.int64]:
        """Return the rows of a type in each member that has it, which needs no column of all members."""
        starts, found = self._starts("occurrences/type"), [np.empty(0, np.int64)]
        for member, numbers in self.types[1].items():
            for own in np.flatnonzero(numbers == number).tolist():
                first, last = self._of.column(member, "types/indptr")[own : own + 2].tolist()
                found.append(self._of.column(member, "types/occurrences")[first:last] + starts[member])
        return np.concatenate(found)


def _as_floats(values: Callable[[], Iterable[str]]) -> list[str]:
    return [str(float(value)) for value in values()]
