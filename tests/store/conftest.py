"""What tests of stores may ask for beside what every test may."""

from __future__ import annotations

import pytest

from tests.store.memory_bucket import MemoryBucket


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    """A bucket in memory that takes the place of every other."""
    held = MemoryBucket()
    monkeypatch.setattr("embstore.store.storage.objects.Objects.at", held.at)
    monkeypatch.setattr("embstore.store.zarr.object_shards._FIRST_WAIT", 0.0)
    return held
