"""A bucket in memory for writers whose every request can be struck, or made to wait for its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import Objects

URL = "s3://bucket/x.zarr"

Step = Callable[[str, str, str], None]


class SteppingObjects(Objects):
    """Objects of a bucket in memory; `step` is called before ("begin") and after ("end") each request."""

    def __init__(self, path: ObjectPath, client: Any, step: Step) -> None:
        super().__init__(path, client)
        self._step = step

    def _stepped(self, kind: str, name: str, work: Callable[[], Any]) -> Any:
        self._step("begin", kind, name)
        done = work()
        self._step("end", kind, name)
        return done

    def get(self, name: str) -> bytes:
        return self._stepped("read", name, lambda: super(SteppingObjects, self).get(name))

    def get_many(self, names: Iterable[str]) -> list[bytes | None]:
        return [self.get_or_none(name) for name in names]

    def get_range(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        return self._stepped("read", name, lambda: super(SteppingObjects, self).get_range(name, start, stop))

    def get_ranges(self, name: str, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [self.get_range(name, start, stop) for start, stop in zip(starts, stops, strict=True)]

    def size(self, name: str) -> int | None:
        return self._stepped("read", name, lambda: super(SteppingObjects, self).size(name))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self._stepped("list", prefix, lambda: super(SteppingObjects, self).sizes(prefix))

    def put(self, name: str, data: NDArray[Any] | bytes, *, create: bool = False) -> None:
        self._stepped("put", name, lambda: super(SteppingObjects, self).put(name, data, create=create))

    def put_large(self, name: str, pieces: Iterable[NDArray[Any] | bytes]) -> None:
        self._stepped("put_large", name, lambda: super(SteppingObjects, self).put_large(name, pieces))

    def replace(self, name: str, before: bytes, after: bytes) -> bool:
        return self._stepped("replace", name, lambda: super(SteppingObjects, self).replace(name, before, after))

    def copy_new(self, source: str, name: str) -> None:
        self._stepped("copy", name, lambda: super(SteppingObjects, self).copy_new(source, name))

    def delete(self, name: str) -> None:
        self._stepped("delete", name, lambda: super(SteppingObjects, self).delete(name))


class MemoryBucket:
    """Takes the place of every bucket; `step` is told of each request. `objects` are past all steps."""

    def __init__(self) -> None:
        from obstore.store import MemoryStore

        self.client = MemoryStore()
        self.step: Step = lambda when, kind, name: None
        self.objects = Objects(ObjectPath(URL), self.client)

    def at(self, path: ObjectPath) -> Objects:
        return SteppingObjects(path, self.client, lambda when, kind, name: self.step(when, kind, name))

    def files(self) -> dict[str, bytes]:
        return {name: self.objects.get(name) for name in self.objects.names()}

    def all_objects(self) -> dict[str, bytes]:
        """Every object of the bucket by its key."""
        bucket = Objects(ObjectPath("s3://bucket"), self.client)
        return {name: bucket.get(name) for name in bucket.names()}

    def download(self, folder: Path) -> Path:
        """Write every object as a file, so that what reads stores from disks can judge it."""
        for name, data in self.files().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder


class Turns:
    """Lets writers, a thread each, make one request at a time, whose turn it is as a list of choices says."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = list(choices)
        self._changed = threading.Condition()
        self._live: set[int] = set()
        self._waiting: set[int] = set()
        self._turn: int | None = None

    def run(self, writers: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        """Run all to their ends and return what each raised."""
        raised: list[BaseException | None] = [None] * len(writers)
        self._live = set(range(len(writers)))
        self._owners: dict[threading.Thread, int] = {}

        def work(number: int) -> None:
            self._owners[threading.current_thread()] = number
            try:
                writers[number]()
            except BaseException as error:
                raised[number] = error
            finally:
                with self._changed:
                    self._live.discard(number)
                    self._turn = None
                    self._choose()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(writers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return raised

    def step(self, when: str, kind: str, name: str) -> None:
        """Wait for this thread's turn; requests from threads that a writer began itself pass at once."""
        owner = self._owners.get(threading.current_thread())
        if when == "end" or owner is None:
            return
        with self._changed:
            self._turn = None if self._turn == owner else self._turn
            self._waiting.add(owner)
            self._choose()
            while self._turn != owner:
                assert self._changed.wait(5), "a writer hangs"
            self._waiting.discard(owner)

    def _choose(self) -> None:
        if self._turn is None and self._live and self._waiting >= self._live:
            ready = sorted(self._waiting)
            choice = self._choices.pop(0) if self._choices else 0
            self._turn = ready[choice % len(ready)]
            self._changed.notify_all()
