"""What a disk may hold after a power failure: a recorded run, replayed under a strict reading of POSIX.

Only what was synced is sure: the bytes of a file after fsync of the file, the names in a folder after fsync of the
folder. Of everything else any part may have happened, in any order, and blocks of a file independently.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.resilience.calls import Call, watched

ROOT = 0
BLOCKS = (512, 4096)  # a disk writes a sector whole or not at all
Names = dict[str, int]


@dataclass(frozen=True)
class Changed:
    """Changes of the names in one folder, made at once: name -> node, None where it goes."""

    folder: int
    names: Mapping[str, int | None]


@dataclass(frozen=True)
class Written:
    """The contents of a file after a write."""

    node: int
    data: bytes


@dataclass(frozen=True)
class Synced:
    """An fsync of a file or folder; `site` names the functions that called it."""

    node: int
    site: str


@dataclass(frozen=True)
class Noted:
    """What the run reported as done."""

    done: int


Event = Changed | Written | Synced | Noted


@dataclass(frozen=True)
class Disk:
    """Nodes of a disk: what is sure of each, and what may have happened since.

    `contents`: of each file, the synced bytes and those of every later write. `folders`: of each folder its synced
    names. `pending`: changes of names that are not synced. `done`: what the run had reported.
    """

    contents: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    folders: dict[int, Names] = field(default_factory=lambda: {ROOT: {}})
    pending: tuple[Changed, ...] = ()
    done: int = 0

    def after(self, event: Event) -> Disk:
        match event:
            case Noted(done):
                return replace(self, done=done)
            case Written(node, data):
                return replace(self, contents={**self.contents, node: (*self.contents.get(node, (b"",)), data)})
            case Changed(_, names):
                new = {node: {} for node in names.values() if node is not None and node not in self.contents}
                return replace(self, folders={**new, **self.folders}, pending=(*self.pending, event))
        if event.node in self.contents:
            return replace(self, contents={**self.contents, event.node: self.contents[event.node][-1:]})
        mine = [change for change in self.pending if change.folder == event.node]
        others = tuple(change for change in self.pending if change.folder != event.node)
        folders = {**self.folders, event.node: _with(self.folders[event.node], mine)}
        return replace(self, folders=folders, pending=others)

    def states(self, rng: np.random.Generator, count: int) -> Iterator[dict[str, bytes | None]]:
        """Yield trees that a power failure may leave: the extremes, each pending change alone, and `count` drawn."""
        sure = {node: data[0] for node, data in self.contents.items()}
        latest = {node: data[-1] for node, data in self.contents.items()}
        last = {node: _last_alone(data) for node, data in self.contents.items()}
        for contents in (sure, latest, last):
            yield self._tree((), contents)
            yield self._tree(self.pending, contents)
        for change in self.pending:
            yield self._tree((change,), sure)
        for _ in range(count):
            kept = tuple(change for change in self.pending if rng.random() < 0.5)
            yield self._tree(kept, {node: _mixed(data, rng) for node, data in self.contents.items()})

    def _tree(self, changes: Sequence[Changed], contents: Mapping[int, bytes]) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}

        def walk(folder: int, prefix: str) -> None:
            names = _with(self.folders[folder], [change for change in changes if change.folder == folder])
            for name, node in names.items():
                found[prefix + name] = contents.get(node)
                if node not in contents:
                    walk(node, f"{prefix}{name}/")

        walk(ROOT, "")
        return found


def _with(names: Names, changes: Sequence[Changed]) -> Names:
    merged: dict[str, int | None] = dict(names)
    for change in changes:
        merged.update(change.names)
    return {name: node for name, node in merged.items() if node is not None}


def _last_alone(versions: tuple[bytes, ...]) -> bytes:
    """The synced bytes with nothing but the last write."""
    if len(versions) < 3:
        return versions[-1]
    size = len(versions[-1])
    sure, before, after = (
        np.frombuffer(data.ljust(size, b"\0")[:size], np.uint8) for data in (versions[0], *versions[-2:])
    )
    return np.where(before != after, after, sure).tobytes()


def _mixed(versions: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Blocks of any version each, in a file as long as any of them."""
    size, block = len(versions[rng.integers(len(versions))]), int(rng.choice(BLOCKS))
    padded = [data.ljust(size, b"\0") for data in versions]
    starts = np.arange(0, size, block)
    choices = rng.integers(len(versions), size=len(starts))
    return b"".join(
        padded[choice][start : min(start + block, size)]
        for start, choice in zip(starts.tolist(), choices.tolist(), strict=True)
    )


class Recorder:
    """Records what happens in a folder between any two calls that change the disk, and every fsync. A hook.

    `start`: the disk before, with all that is in the folder as synced.
    """

    def __init__(self, root: Path) -> None:
        self.events: list[Event] = []
        self.calls: list[tuple[str, int]] = []  # each with the bytes that it wrote
        self._root = root
        self._nodes: dict[int, int] = {root.stat().st_ino: ROOT}
        self._count = ROOT
        self._names: dict[int, Names] = {ROOT: {}}
        self._data: dict[int, bytes] = {}
        self._mutex = threading.RLock()
        self._look()
        self.events += [Synced(node, "") for node in [*self._data, *self._names]]
        *_, self.start = [Disk(), *replayed(Disk(), self.events)]
        self.events = []

    def __call__(self, name: str, call: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        with self._mutex:
            self._look()
            result = call(*arguments, **options)
            self.calls.append((name, len(arguments[1]) if name == "pwrite" else 0))
            if name == "fsync":
                node = self._nodes.get(os.fstat(arguments[0]).st_ino)
                if node is not None:
                    self.events.append(Synced(node, _site()))
            self._look()
            return result

    def note(self, done: int) -> None:
        self.events.append(Noted(done))

    def _look(self) -> None:
        """Add what has changed since the last look."""
        names: dict[int, Names] = {}
        data: dict[int, bytes] = {}
        seen: dict[int, int] = {self._root.stat().st_ino: ROOT}

        def walk(folder: str, node: int) -> None:
            names[node] = {}
            for entry in sorted(os.listdir(folder)):
                path = f"{folder}/{entry}"
                inode = os.lstat(path).st_ino
                if inode not in seen:
                    seen[inode] = self._nodes.get(inode) or self._new()
                child = names[node][entry] = seen[inode]
                if os.path.isdir(path):
                    walk(path, child)
                elif child not in data:
                    with _OPEN(path, "rb", buffering=0) as file:
                        data[child] = file.readall()

        walk(str(self._root), ROOT)
        for node, found in data.items():
            if self._data.get(node) != found:
                self.events.append(Written(node, found))
        for node, found in names.items():
            before = self._names.get(node, {})
            changed = {name: found.get(name) for name in {**before, **found} if before.get(name) != found.get(name)}
            if changed:
                self.events.append(Changed(node, changed))
        self._nodes, self._names, self._data = seen, names, data

    def _new(self) -> int:
        self._count += 1
        return self._count


_OPEN = open


@contextmanager
def recorded(root: Path) -> Iterator[Recorder]:
    """Record what the block does to the folder `root`; what is in it already is taken as synced."""
    recorder = Recorder(root)
    with watched(recorder):
        yield recorder


def _site() -> str:
    """The functions of embstore that called an fsync, the innermost first."""
    frame = sys._getframe(2)
    found: list[str] = []
    while frame is not None and len(found) < 3:
        if "/embstore/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
            found.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)


def replayed(disk: Disk, events: Sequence[Event]) -> Iterator[Disk]:
    """Yield the disk after each event."""
    for event in events:
        disk = disk.after(event)
        yield disk
