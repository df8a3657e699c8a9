"""What a defect is, and the parts that the tables of defects are made of."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

Change = Callable[[Path], object]
Reads = Literal["refused", "same", "other", "either"]


@dataclass(frozen=True)
class Defect:
    """One fault that `make` gives to a good file of a kind.

    `reads`: what plain reading does. "same": it returns what the good file holds, as the fault is in something that is
    not read; "other": it returns other numbers, as a plain read does not look at checksums. Checks refuse both, unless
    the fault is `harmless`; "either" is refused or harmless.
    """

    kind: str
    name: str
    make: Change
    reads: Reads = "refused"
    harmless: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def patched(file: str, change: Callable[[bytearray], bytes | bytearray | None]) -> Change:
    """A defect of the bytes of a file below the path, or of the path itself for ""."""

    def make(path: Path) -> None:
        target = path / file if file else path
        data = bytearray(target.read_bytes())
        changed = change(data)
        target.write_bytes(data if changed is None else changed)

    return make


def edited(file: str, change: Callable[[dict[str, Any]], object]) -> Change:
    """A defect of a JSON document."""

    def make(path: Path) -> None:
        document = json.loads((path / file).read_bytes())
        change(document)
        (path / file).write_text(json.dumps(document))

    return make


def put(data: bytearray, offset: int, value: bytes) -> None:
    """Overwrite bytes, from the end where the offset is negative."""
    offset %= len(data)
    data[offset : offset + len(value)] = value


def flip(data: bytearray, offset: int) -> None:
    data[offset] ^= 4


def shifted(data: bytearray) -> bytearray:
    """The second half before the first."""
    middle = len(data) // 2
    return data[middle:] + data[:middle]


def removed(file: str) -> Change:
    return lambda path: shutil.rmtree(path / file) if (path / file).is_dir() else (path / file).unlink()


DEVICE = "a link to a device without end"

# What may be in the place of a file, each without its content.
PLACES: dict[str, Change] = {
    "a pipe": os.mkfifo,
    "a socket": lambda path: _socket(path),
    "a folder": lambda path: path.mkdir(),
    DEVICE: lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a file without permission": lambda path: (path.write_bytes(b"x"), path.chmod(0)),
}


def _socket(path: Path) -> None:
    """Bind a socket, from its folder since the longest address has 107 bytes."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.fchdir(here)
    os.close(here)


def replaced(file: str, place: Change) -> Change:
    """A defect: something else is in the place of a file or folder."""

    def make(path: Path) -> None:
        target = path / file if file else path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        place(target)

    return make


def at_each_place(kind: str, files: dict[str, Reads], *, but: tuple[str, ...] = ()) -> list[Defect]:
    """Each kind of thing, `but` some, in the place of each file; "" is the path itself."""
    return [
        Defect(kind, f"{place} in the place of {file or 'it'}", replaced(file, put), reads)
        for file, reads in files.items()
        for place, put in PLACES.items()
        if place not in but
    ]


# Texts that are not the JSON document that they replace.
NOT_JSON: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(300),
    "UTF-16": "{}".encode("utf-16"),
    "not UTF-8": b'{"attributes": "\xff"}',
    "a list": b"[1]",
    "null": b"null",
    "a text": b'"embstore"',
    "lists 200,000 deep": b"[" * 200_000,
    "closed lists 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects 100,000 deep": b'{"a":' * 100_000,
    "a number of 5,000 digits": b"9" * 5000,
    "an object cut in half": b'{"attributes": {"emb',
    "two documents": b"{}{}",
    "a comment": b"// {}",
    "an endless text": b'"' + b"x" * 2**22,
}

# Values that no whole number of a document may have.
NOT_NUMBERS: dict[str, Any] = {
    "0": 0, "-1": -1, "2^62": 2**62, "10^30": 10**30, "10^400": 10**400, "1.5": 1.5, "a text": "many", "null": None,
    "a list": [], "an object": {}, "NaN": float("nan"),
}  # fmt: skip


def column(position: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that changes one element of an array."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[position] = value
        return array

    return change
