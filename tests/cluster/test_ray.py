"""The recipe of a Ray cluster: an executor with three workers."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import NonFiniteError
from embstore.executors import iter_results
from tests.cluster.ray_head import RayHead
from tests.cluster.specs import first, use_fake_specs
from tests.cluster.test_executors import square
from tests.cluster.test_extraction import make_plan, poisoned
from tests.extraction.test_pipeline import small_partitions
from tests.object_server import Bucket, Proxy, bucket_environment
from tests.store.example import all_files


@pytest.fixture(scope="module")
def executor(object_server: tuple[Proxy, Any]) -> Iterator[Executor]:
    """Three workers of a cluster of its own, which find the bucket."""
    pytest.importorskip("ray")
    recipe = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "ray_cluster.py"))
    with RayHead(bucket_environment(object_server[0])) as head, recipe["RayExecutor"](head.address) as executor:
        yield executor


def die_once(folder: Path, number: int) -> int:
    if number == 5 and first(folder / "died"):
        os._exit(1)
    return number


@pytest.mark.slow
def test_tasks_of_three_workers(executor: Executor, tmp_path: Path) -> None:
    results = list(iter_results(executor, (partial(square, number) for number in range(12))))
    assert [result for result, _ in results] == [number * number for number in range(12)]
    assert len({process for _, process in results}) == 3
    with pytest.raises(ValueError, match="13 is refused"):
        list(iter_results(executor, (partial(square, number) for number in range(20)), in_order=False))
    array = executor.submit(np.arange, 5).result()
    array += 1  # results can be written to
    assert list(iter_results(executor, (partial(die_once, tmp_path, number) for number in range(9)))) == list(range(9))


@pytest.mark.slow
def test_workers_write_the_same_bytes_on_a_disk_and_into_a_bucket(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    small_partitions(monkeypatch)
    es.extract(make_plan(), tmp_path / "plain.zarr")
    use_fake_specs(monkeypatch)
    es.extract(make_plan(), tmp_path / "s.zarr", executor=executor)
    assert all_files(tmp_path / "s.zarr") == all_files(tmp_path / "plain.zarr")
    es.extract(make_plan(), f"{bucket.url}/s.zarr", executor=executor)
    keys = bucket.keys()
    assert {key.removeprefix("s.zarr/"): bucket.get(key) for key in keys} == all_files(tmp_path / "plain.zarr")


@pytest.mark.slow
def test_a_worker_that_dies_and_a_partition_that_fails(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    es.extract(make_plan(poisoned()), tmp_path / "plain.zarr")
    use_fake_specs(monkeypatch, word="zzz", fault="killed", folder=tmp_path)
    es.extract(make_plan(poisoned()), tmp_path / "s.zarr", executor=executor)  # Ray starts the worker again
    assert all_files(tmp_path / "s.zarr") == all_files(tmp_path / "plain.zarr")
    use_fake_specs(monkeypatch, poison="zzz")
    with pytest.raises(NonFiniteError, match=r"1 of 5 partitions .*: the same command continues"):
        es.extract(make_plan(poisoned()), tmp_path / "t.zarr", executor=executor)
