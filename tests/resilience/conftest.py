"""Small partitions, and the stores of uninterrupted runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.resilience.scene")

from tests.resilience.scene import Reference, make_reference  # noqa: E402


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)


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
