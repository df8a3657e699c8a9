"""Label columns stored next to the vectors: one safetensors file each, listed with its checksum in `labels.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embstore.errors import InvalidValueError, StoreDamagedError, StoreFormatError
from embstore.store.backend import Reader
from embstore.store.check.consistency import labels_faults
from embstore.store.index import Labels
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.storage.base import KeyNotFoundError, Storage
from embstore.store.storage.files import MappedFile, as_bytes, crc32c, make_folders, storing
from embstore.store.storage.local import LocalStorage
from embstore.store.storage.lock import ProcessLock
from embstore.store.storage.safetensors import header, parse
from embstore.store.strings import Strings
from embstore.store.zarr.format import LABELS

LISTING = "labels.json"
FORMAT_VERSION = 1
_HINT = "remove it with `embstore label STORE --remove NAME`, or its folder, and add the labels again"


@dataclass(frozen=True)
class LabelFile:
    """The file of a label column, its size, the CRC32C of its bytes, and how many distinct labels it has."""

    file: str
    nbytes: int
    crc32c: int
    n_names: int


class LabelFiles:
    """The added label columns of the store that `reader` reads; they can be written on a disk only.

    The folder is `hidden_states/.labels` of a Zarr store and `NAME.h5.labels` of an HDF5 file. A column counts once
    `labels.json` lists it, which is replaced in one rename; `rows` in it are a checksum of the occurrences that the
    labels belong to.
    """

    def __init__(self, reader: Reader) -> None:
        self.path = reader.path
        self.n_rows = reader.metadata.n_rows
        crcs = {name: array.crc32c for name, array in reader.arrays.items() if name.startswith("occurrences/")}
        self._rows = crc32c(canonical(crcs))
        self._storage, self._prefix = _storage(reader)

    def listed(self) -> dict[str, LabelFile]:
        """Return the columns that are stored, by name; {} for none. Raises StoreDamagedError."""
        data = self._storage.get_or_none(self._prefix + LISTING)
        url = self._storage.url(self._prefix + LISTING)
        if data is None:
            if isinstance(self._storage, LocalStorage) and any(self._storage.path.glob("*.safetensors")):
                raise StoreDamagedError(f"{url} is missing: put it back, or remove its folder and add the labels again")
            return {}
        try:
            fields = json.loads(data)
            whole = fields["crc32c"] == document_crc32c(fields)
            files = {name: LabelFile(**each) for name, each in fields["labels"].items()} if whole else {}
            rows, version = fields["rows"], fields["format_version"]
            whole = whole and type(version) is int
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise StoreDamagedError(f"{url} was changed: remove its folder, and add the labels again")
        if version > FORMAT_VERSION:
            raise StoreFormatError(f"{url} has format {version}, newer than {FORMAT_VERSION}: upgrade embstore")
        if rows != self._rows:
            raise StoreDamagedError(
                f"{url} has labels of other occurrences than those of {self.path}: remove its folder, and add the "
                "labels again"
            )
        return files

    def read(self) -> dict[str, Labels]:
        """Return all columns; codes are mapped on a disk. Every byte is compared with its checksum.

        Raises StoreDamagedError for a file that was changed, cut short or removed.
        """
        listed = self.listed()
        try:
            return {name: self._read(name, file) for name, file in listed.items()}
        except (KeyNotFoundError, StoreDamagedError):
            if (again := self.listed()) == listed:
                raise
        return {name: self._read(name, file) for name, file in again.items()}  # replaced while it was read

    def _read(self, name: str, file: LabelFile) -> Labels:
        key = self._prefix + file.file
        url = self._storage.url(key)
        size = self._storage.size(key)
        if size != file.nbytes:
            what = "is missing" if size is None else f"has {size} bytes, not {file.nbytes}"
            raise StoreDamagedError(f"{url}, the labels {name!r}, {what}: {_HINT}")
        if isinstance(self._storage, LocalStorage):
            crc = self._storage.crc32c(key, file.nbytes)
            data = MappedFile(self._storage.path / key).bytes
        else:
            data = self._storage.read(key, file.nbytes)
            crc = crc32c(data)
        if crc != file.crc32c:
            raise StoreDamagedError(f"{url}, the labels {name!r}, was changed: {_HINT}")
        arrays = parse(data, path=url)
        labels = Labels(arrays["codes"], Strings(arrays["name_offsets"], arrays["name_bytes"]))
        for fault in labels_faults(name, labels, self.n_rows):
            raise StoreDamagedError(f"{url}: {fault}: {_HINT}")
        return labels

    def write(self, columns: Mapping[str, Labels], *, replace: bool) -> None:
        """Store columns, each file complete and durable before the list names it.

        Raises InvalidValueError for a name that is taken, unless `replace`, StoreBusyError where another process adds
        labels, StorageError.
        """

        def changed(listed: dict[str, LabelFile]) -> dict[str, LabelFile]:
            for name in columns:
                if name in listed and not replace:
                    raise InvalidValueError(
                        f"{self.path} has labels {name!r} already: give --replace (replace=True), or another name"
                    )
            return listed | {name: self._put(name, labels) for name, labels in columns.items()}

        self._change(changed)

    def remove(self, name: str) -> None:
        """Remove a column. Raises InvalidValueError for one that was not added."""

        def changed(listed: dict[str, LabelFile]) -> dict[str, LabelFile]:
            if name not in listed:
                raise InvalidValueError(
                    f"{self.path} has no added labels {name!r}: it has {', '.join(listed) or 'none'}"
                )
            return {other: file for other, file in listed.items() if other != name}

        self._change(changed)

    def _change(self, change: Callable[[dict[str, LabelFile]], dict[str, LabelFile]]) -> None:
        if not isinstance(self.path, Path) or not isinstance(self._storage, LocalStorage):
            raise InvalidValueError(f"cannot add labels to {self.path}: the store must be on a disk")
        folder = self._storage.path
        busy = f"another process is adding labels to {self.path}; wait until it ends"
        with ProcessLock(folder.with_name(f"{folder.name}.lock"), busy):
            with storing(folder):
                make_folders(folder)
            try:
                before = self.listed()
                if not before:  # a list is there before the first file is
                    self._put_list(before)
                listed = change(before)
                self._put_list(listed)
                for key in set(self._storage.sizes()) - {LISTING, *(file.file for file in listed.values())}:
                    self._storage.delete(key)  # replaced, or left by a writer that was killed
            finally:
                self._storage.finish()

    def _put_list(self, listed: Mapping[str, LabelFile]) -> None:
        labels = {name: asdict(file) for name, file in sorted(listed.items())}
        fields = {"format_version": FORMAT_VERSION, "rows": self._rows, "labels": labels}
        self._storage.put(LISTING, [canonical({**fields, "crc32c": document_crc32c(fields)})])

    def _put(self, name: str, labels: Labels) -> LabelFile:
        arrays = {
            "name_offsets": labels.names.offsets.astype("<i8", copy=False),
            "codes": labels.codes,
            "name_bytes": labels.names.data,
        }
        shapes = {key: (array.dtype.name, array.shape) for key, array in arrays.items()}
        parts: list[NDArray[Any] | bytes] = [header(shapes, {"labels": name}), *arrays.values()]
        crc = 0
        for part in parts:
            crc = crc32c(part, crc)
        nbytes = sum(len(as_bytes(part)) for part in parts)
        file = LabelFile(f"{name}-{crc:08x}.safetensors", nbytes, crc, len(labels.names))
        self._storage.put(file.file, parts)
        return file

    def faults(self) -> Iterator[tuple[str, str, int]]:
        """Yield (file, what is wrong, "" for nothing; bytes checked) for the list and each column."""
        try:
            listed = self.listed()
        except StoreDamagedError as error:
            yield self._storage.url(self._prefix + LISTING), str(error), 0
            return
        for name, file in listed.items():
            what = ""
            try:
                self._read(name, file)
            except StoreDamagedError as error:
                what = str(error)
            yield self._storage.url(self._prefix + file.file), what, file.nbytes


def _storage(reader: Reader) -> tuple[Storage, str]:
    """Return where the files are, and what precedes their keys."""
    path, storage = reader.path, getattr(reader, "storage", None)
    if isinstance(path, Path):
        return LocalStorage(path / LABELS if storage else path.with_name(f"{path.name}.labels")), ""
    assert isinstance(storage, Storage)
    return storage, f"{LABELS}/"
