"""Small partitions, the stores of uninterrupted runs, and how much of a campaign is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.resilience.scene", "tests.resilience.scenes")

from tests.object_server import Proxy, bucket_environment  # noqa: E402
from tests.resilience.scene import Reference, make_reference  # noqa: E402
from tests.resilience.scenes import ALL_SCENES, BUCKET, LARGE_NBYTES, Whole  # noqa: E402


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)


@pytest.fixture(scope="session")
def scenes_bucket(object_server: tuple[Proxy, Any]) -> Iterator[None]:
    """The bucket of the scenes, whose shards are uploaded in parts."""
    proxy, held = object_server
    held.create_bucket(BUCKET, "us-east-1")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket_environment(proxy).items():
            patch.setenv(name, value)
        patch.setattr("embstore.store.storage.objects.LARGE_NBYTES", LARGE_NBYTES)
        yield


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reference]:
    """Gives the uninterrupted run of a suffix and a dtype."""

    @cache
    def made(suffix: str, dtype: str = "float32") -> Reference:
        path: Path = tmp_path_factory.mktemp("reference") / f"store{suffix}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
            return make_reference(path, dtype=dtype)

    return made


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, reference: Callable[..., Reference]) -> Callable[[str], Whole]:
    """Gives the folder of a scene before and after its work."""

    @cache
    def made(scene: str) -> Whole:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
            return ALL_SCENES[scene].whole(tmp_path_factory.mktemp("whole"), reference)

    return made


def campaign(full: int, sample: int) -> int:
    """How many trials are made: all of a campaign with EMBSTORE_CAMPAIGN=full, else a sample."""
    return full if os.environ.get("EMBSTORE_CAMPAIGN") == "full" else sample
