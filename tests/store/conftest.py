"""Fixtures of the tests of stores."""

from __future__ import annotations

import pytest

from tests.store.memory_bucket import MemoryBucket


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    """A bucket in memory that replaces every other one."""
    bucket = MemoryBucket()
    monkeypatch.setattr("embstore.store.storage.objects.ObjectStorage.at", bucket.at)
    return bucket
