"""Saved probes of any kind: a folder of metadata as JSON and of files it has the checksums of, whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from embstore.errors import InvalidValueError, SavedProbesError, SavedProbesNotFoundError
from embstore.store import Store
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.storage.files import crc32c_of_file, fsync_tree, remove, storing, write_file

Saved = TypeVar("Saved")


@dataclass(frozen=True)
class ProbeFolder:
    """One kind of saved probes: the file of its `metadata`, the `files` beside it, the newest `format_version`.

    `empty` and `other`: what a folder without them holds none of, and what one must not hold to be overwritten.
    """

    metadata: str
    files: tuple[str, ...]
    format_version: int
    empty: str
    other: str

    def require_free(self, folder: Path) -> None:
        """Raise InvalidValueError where saving would overwrite anything but probes of this kind."""
        known = (folder / self.metadata).is_file()
        if folder.exists() and not known and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidValueError(f"{folder} exists and holds something else than {self.other}: give another folder")

    def save(self, path: str | os.PathLike[str], fields: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Write a folder, whole or not at all, in place of probes of this kind that stood there.

        `fields`: the metadata; format version, checksums and versions of software are added. Raises StorageError.
        """
        folder = Path(path)
        self.require_free(folder)
        new = folder.with_name(f".{folder.name}.new")
        with storing(folder):
            remove(new)
            new.mkdir(parents=True)
            for name in self.files:
                write_file(new / name, [files[name]])  # with the rights of any other file
            write_file(new / self.metadata, [json_bytes(self._document(new, fields))])
            fsync_tree(new)
            remove(folder)
            os.rename(new, folder)

    def load(
        self, path: str | os.PathLike[str], parse: Callable[[Mapping[str, Any], Mapping[str, Path]], Saved]
    ) -> Saved:
        """Read a folder: `parse` gets its metadata and the places of its files, whose checksums are right.

        Whatever `parse` raises of ValueError, KeyError, TypeError and the like is damage. Raises
        SavedProbesNotFoundError, SavedProbesError (damaged, or of a newer format).
        """
        folder = Path(path)
        if not (folder / self.metadata).is_file():
            raise SavedProbesNotFoundError(f"{folder} holds no {self.empty}: there is no {self.metadata} in it")
        try:
            fields = json.loads((folder / self.metadata).read_bytes())
            if fields["format_version"] > self.format_version:
                raise SavedProbesError(
                    f"the probes {folder} have format {fields['format_version']}, newer than {self.format_version}, "
                    "the newest that this version reads: upgrade embstore"
                )
            if document_crc32c(fields) != fields.get("crc32c"):
                raise ValueError(f"{self.metadata} was changed")
            for name in self.files:
                if fields["files"][name] != _checked(folder / name):
                    raise ValueError(f"{name} was changed")
            return parse(fields, {name: folder / name for name in self.files})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            if isinstance(error, SavedProbesError):
                raise
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise SavedProbesError(f"the probes {folder} are damaged ({reason}): train them again") from None

    def _document(self, folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {
            **fields,
            "format_version": self.format_version,
            "files": {name: _checked(folder / name) for name in self.files},
            "software": {name: version(name) for name in ("embstore", "torch")},
        }
        document["crc32c"] = document_crc32c(document)
        return dict(sorted(document.items()))


def made_by(store: Store) -> dict[str, Any]:
    """What made the store that probes learnt from: its model, corpus and extraction, its `digest`."""
    made = {
        "digest": store.digest,
        "model": dict(store.metadata.model),
        "corpus": dict(store.metadata.corpus),
        "extraction": dict(store.metadata.extraction),
    }
    return dict(json.loads(canonical(made)))


def json_bytes(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _checked(path: Path) -> dict[str, int]:
    crc, nbytes = crc32c_of_file(path)
    return {"nbytes": nbytes, "crc32c": crc}
