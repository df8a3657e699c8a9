"""Stores of many partitions: the commits are read once, not once per partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embstore.store import StoreWriter
from embstore.store.zarr import writer as zarr_writer
from tests.store.example import Example, example

PARTITIONS = 12


@pytest.fixture(scope="module")
def many() -> Example:
    return example(rows=256 * PARTITIONS - 100, layers=(0,), hidden_size=1, labels=False)


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[int]:
    calls: list[int] = []
    real: Callable[..., object] = getattr(module, name)

    def call(*arguments: object, **options: object) -> object:
        calls.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, call)
    return calls


def test_a_writer_reads_the_commits_once_however_much_it_writes(
    tmp_path: Path, many: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many.create(tmp_path / "a.zarr")
    read = counted(monkeypatch, zarr_writer, "read_records")
    with StoreWriter(path) as writer:
        assert writer.missing() == list(range(PARTITIONS))
        before = len(read)
        for partition in range(PARTITIONS):
            writer.write(partition, many.partition(partition))
        assert len(read) == before
        writer.discard([3])
        writer.write(3, many.partition(3))
        assert len(read) <= before + 1
