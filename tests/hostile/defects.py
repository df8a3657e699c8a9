"""Defects of files, as hypothesis draws them, and what comes of reading a file that has one."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from embstore.errors import EmbstoreError

SECONDS = 60  # of one read, against hanging
NBYTES = 8 * 2**30  # of addresses beyond those of the process
LONGEST = 700  # characters of a message

Edit = Callable[[dict[str, Any]], object]

# What may be in the place of a file, each without its content.
PLACES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a pipe": os.mkfifo,
    "a socket": lambda path: _bind(path),
    "a folder": lambda path: path.mkdir(),
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}

# What may be in a file instead of its content.
CONTENTS: tuple[bytes, ...] = (
    b"", b"x", b"\xff" * 300, bytes(300), b"PK\x03\x04" + bytes(200), b"not at all " * 100, b"[1]", b"null",
    b'"embstore"', b"{}", b"{}{}", b'{"attributes": {"emb', b'{"a": "\xff"}', b"[" * 200_000, b'{"a":' * 100_000,
    b"9" * 5000, "{}".encode("utf-16"), b'"' + b"x" * 2**22, b"\x89HDF\r\n\x1a\n" + bytes(90),
)  # fmt: skip

# What may be in a JSON document instead of a value.
VALUES: tuple[Any, ...] = (
    0, -1, 1, 9, 255, 2**31 - 1, 2**39, 2**62, 2**64, 10**30, 10**400, 1.5, float("nan"), "", "many", "x" * 5000,
    "\0", "\ud800", "../../secret", "/etc/passwd", None, True, [], [1, 1], [-5], [2**62], ["x"], {}, {"x": 1},
    [[[[]]]], "float63", ">f2",
)  # fmt: skip
REMOVED = "removed"  # in place of a value: it is left out


def _bind(path: Path) -> None:
    """Bind a socket, from its folder since the longest address has 107 bytes."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.fchdir(here)
    os.close(here)


@dataclass(frozen=True)
class Bytes:
    """The bytes of a file are changed: the first of them at the share `place` of its length.

    `file`: its name below the path, or its number among the sorted names.
    """

    file: str | int
    edit: str
    place: float = 0.5
    value: int = 0

    EDITS = ("cut", "flip", "zeros", "number", "append", "exchange", "content", "byte less")

    def make(self, path: Path, kind: Kind) -> None:
        target = file_at(path, self.file)
        data = bytearray(target.read_bytes())
        at = int(self.place * len(data))
        if self.edit == "content":
            data = bytearray(CONTENTS[self.value % len(CONTENTS)])
        elif self.edit == "append":
            data += self.value.to_bytes(8, "little")[: 1 + self.value % 8]
        elif self.edit == "exchange":
            data = data[at:] + data[:at]
        elif self.edit in ("cut", "byte less"):
            del data[at if self.edit == "cut" else -1 :]
        elif data and self.edit == "flip":
            data[min(at, len(data) - 1)] ^= 1 << self.value % 8
        else:
            new = bytes(64) if self.edit == "zeros" else self.value.to_bytes(8, "little")
            data[at : at + len(new)] = new[: len(data) - at]
        target.write_bytes(data)


@dataclass(frozen=True)
class Place:
    """Something else is in the place of a file, or of the path for ""."""

    file: str | int
    what: str

    def make(self, path: Path, kind: Kind) -> None:
        target = path if self.file == "" else file_at(path, self.file)
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        PLACES[self.what](target)


@dataclass(frozen=True)
class Document:
    """A value of a JSON document is replaced or removed; `where`: keys, or numbers of members, from the outermost.

    `name`: which document of the kind it is; one whose checksum is made right again is among them.
    """

    where: tuple[str | int, ...]
    value: Any
    name: str = ""

    def make(self, path: Path, kind: Kind) -> None:
        kind.documents[self.name](path, self.change)

    def change(self, document: Any) -> None:
        for number, step in enumerate(self.where):
            if isinstance(step, int) and isinstance(document, dict) and document:
                step = sorted(document, key=str)[step % len(document)]
            elif isinstance(step, int) and isinstance(document, list) and document:
                step %= len(document)
            child = document[step] if isinstance(step, int) else document.get(step)
            if number + 1 < len(self.where) and isinstance(child, dict | list) and child:
                document = child
            elif self.value == REMOVED:
                del document[step]
                return
            else:
                document[step] = self.value
                return


@dataclass(frozen=True)
class Kind:
    """A kind of file: `prepare(folder)` writes a good one, with what is read beside it, and returns its path.

    `read` returns something that tells what the file holds. `is_checked`: it has checksums, so that it is never read as
    something else. `documents`: functions that edit the JSON of the file, by name. `files`: those that may have a
    defect, if not all.
    """

    prepare: Callable[[Path], Path]
    read: Callable[[Path], object]
    is_checked: bool = False
    documents: Mapping[str, Callable[[Path, Edit], object]] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def file_at(path: Path, file: str | int) -> Path:
    """Return a file of a kind by its name or number."""
    if path.is_file() or isinstance(file, str):
        return path / file if isinstance(file, str) and file else path
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return files[file % len(files)]


def edited(name: str) -> Callable[[Path, Edit], None]:
    """Edit a JSON file below a path, or at it for ""."""

    def edit(path: Path, change: Edit) -> None:
        file = path / name if name else path
        document = json.loads(file.read_bytes())
        change(document)
        file.write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))

    return edit


def safetensors_header(path: Path, change: Edit) -> None:
    """Edit the header of a file of tensors."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


NUMBERS = st.sampled_from([0, 1, 2**31 - 1, 2**32, 2**40, 2**62, 2**63, 2**64 - 1, 2**64 - 8192])


def defects(kind: Kind, *, places: tuple[str, ...] = tuple(PLACES)) -> st.SearchStrategy[Any]:
    """Draw defects of a kind of file."""
    files: st.SearchStrategy[Any] = st.sampled_from(kind.files) if kind.files else st.integers(0, 200)
    values = NUMBERS | st.integers(0, 2**64 - 1)
    drawn: st.SearchStrategy[Any] = st.builds(Bytes, files, st.sampled_from(Bytes.EDITS), st.floats(0, 1), values)
    drawn |= st.builds(Place, files | st.just(""), st.sampled_from(places))
    if kind.documents:
        where = st.lists(st.integers(0, 40), min_size=1, max_size=4).map(tuple)
        values = st.sampled_from([*VALUES, REMOVED])
        drawn |= st.builds(Document, where, values, st.sampled_from(sorted(kind.documents)))
    return drawn


@contextmanager
def limited() -> Iterator[None]:
    """Let no read take more than a minute, or much memory."""

    def late(*signal: object) -> None:
        raise AssertionError("it hangs")

    before, (soft, hard) = signal.signal(signal.SIGALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + NBYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(read: Callable[[], object], good: object) -> str:
    """Return "refused", "same" as the good file, or "other"; what is not refused in one line of embstore fails."""
    with limited(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "same" if read() == good else "other"
        except EmbstoreError as error:
            message = str(error)
    assert "\n" not in message
    assert 0 < len(message) <= LONGEST, message
    return "refused"
