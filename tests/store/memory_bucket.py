"""A bucket in memory that replaces every other one; each of its requests can be observed or made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.store.storage.base import Parts, Version
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import ObjectStorage

URL = "s3://bucket/x.zarr"

Step = Callable[[str, str, str], None]


class SteppingStorage(ObjectStorage):
    """Objects in memory; `step(when, kind, key)` is called before ("begin") and after ("end") each request."""

    def __init__(self, path: ObjectPath, client: Any, step: Step, **options: Any) -> None:
        super().__init__(path, client, **options)
        self._step = step

    def _stepped(self, kind: str, key: str, work: Callable[[], Any]) -> Any:
        self._step("begin", kind, key)
        done = work()
        self._step("end", kind, key)
        return done

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        return self._stepped("read", key, lambda: super(SteppingStorage, self).get_versioned(key))

    def get_range(self, key: str, start: int, stop: int, version: Version | None = None) -> NDArray[np.uint8]:
        return self._stepped("read", key, lambda: super(SteppingStorage, self).get_range(key, start, stop, version))

    def size(self, key: str) -> int | None:
        return self._stepped("read", key, lambda: super(SteppingStorage, self).size(key))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self._stepped("list", prefix, lambda: super(SteppingStorage, self).sizes(prefix))

    def put(self, key: str, parts: Parts) -> None:
        self._stepped("put", key, lambda: super(SteppingStorage, self).put(key, parts))

    def put_new(self, key: str, parts: Parts) -> bool:
        return self._stepped("put_new", key, lambda: super(SteppingStorage, self).put_new(key, parts))

    def delete(self, key: str) -> None:
        self._stepped("delete", key, lambda: super(SteppingStorage, self).delete(key))

    def _upload(self, key: str, flat: Iterable[NDArray[Any]]) -> None:
        self._stepped("upload", key, lambda: super(SteppingStorage, self)._upload(key, flat))


class MemoryBucket:
    """Replaces every bucket; `step` is called with each request. `storage` bypasses the steps."""

    def __init__(self) -> None:
        from obstore.store import MemoryStore

        self.client = MemoryStore()
        self.step: Step = lambda when, kind, key: None
        self.storage = ObjectStorage(ObjectPath(URL), self.client)

    def at(self, path: ObjectPath, **options: Any) -> ObjectStorage:
        return SteppingStorage(path, self.client, lambda when, kind, key: self.step(when, kind, key), **options)

    def files(self) -> dict[str, bytes]:
        return {key: self.storage.get(key) for key in sorted(self.storage.sizes())}

    def all_objects(self) -> dict[str, bytes]:
        """Return every object of the bucket by its key."""
        bucket = ObjectStorage(ObjectPath("s3://bucket"), self.client)
        return {key: bucket.get(key) for key in sorted(bucket.sizes())}

    def download(self, folder: Path) -> Path:
        """Write every object as a file, so that what reads local stores can judge it."""
        for key, data in self.files().items():
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(data)
        return folder
