"""The executor of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embstore as es
from embstore.cluster.ray import RayExecutor
from embstore.errors import ExecutorError, InvalidValueError, MissingPackageError
from embstore.executor import Executor
from embstore.store import StoreWriter
from tests.cluster import jobs
from tests.cluster.conformance import ATTEMPTS, AllAtOnceTests
from tests.cluster.ray_head import RayHead, free_port
from tests.cluster.test_extraction import made
from tests.cluster.troubles import Troubled, Troubles, quick_workers
from tests.extraction.test_pipeline import small_partitions, tree_bytes
from tests.object_server import Bucket, Proxy, bucket_environment

__all__ = ["quick_workers"]


@pytest.fixture(scope="module")
def head(object_server: tuple[Proxy, Any]) -> Iterator[RayHead]:
    """A head whose workers find the bucket."""
    pytest.importorskip("ray")
    with RayHead(bucket_environment(object_server[0])) as head:
        yield head


@pytest.mark.slow
class TestThreeRayWorkers(AllAtOnceTests):
    @pytest.fixture
    def executor(self, head: RayHead) -> Executor:
        return RayExecutor(head.address, workers=3, attempts=ATTEMPTS)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_write_the_same_bytes_on_a_disk_and_into_a_bucket(
    head: RayHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, workers: int
) -> None:
    small_partitions(monkeypatch)
    es.extract(made(), tmp_path / "plain.zarr")
    executor: Any = Troubled(RayExecutor(head.address, workers=workers), Troubles(tmp_path))
    es.extract(made(), tmp_path / "s.zarr", executor=executor)
    assert tree_bytes(tmp_path / "s.zarr") == tree_bytes(tmp_path / "plain.zarr")
    es.extract(made(), f"{bucket.url}/s.zarr", executor=executor)
    keys = bucket.keys()
    assert {key.removeprefix("s.zarr/"): bucket.get(key) for key in keys} == tree_bytes(tmp_path / "plain.zarr")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_a_head_that_is_stopped_and_started_again(
    head: RayHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    es.extract(made(), tmp_path / "plain.zarr")
    stopped = False

    def stop(state: es.extraction.Progress) -> None:
        nonlocal stopped
        if not stopped:
            head.stop()
            stopped = True

    executor = RayExecutor(head.address, workers=3)
    slowly = Troubled(executor, Troubles(tmp_path, seconds=1.0))
    with pytest.raises(
        ExecutorError, match=r"is gone, its head was stopped .* the same command again goes on"
    ) as raised:
        es.extract(made(), tmp_path / "s.zarr", executor=slowly, progress=stop)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    with StoreWriter(tmp_path / "s.zarr") as writer:
        assert 0 < len(writer.missing()) < writer.metadata.layout.n_partitions
    with pytest.raises(ExecutorError, match="no Ray cluster answers"):
        es.extract(made(), tmp_path / "s.zarr", executor=executor)
    head.start()
    es.extract(made(), tmp_path / "s.zarr", executor=Troubled(executor, Troubles(tmp_path)))  # type: ignore[arg-type]
    assert tree_bytes(tmp_path / "s.zarr") == tree_bytes(tmp_path / "plain.zarr")


def test_an_address_of_no_cluster_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    address = f"127.0.0.1:{free_port()}"
    for given in (address, f"ray://{address}"):
        with pytest.raises(ExecutorError, match=f"no Ray cluster answers at {given}: Connection refused"):
            list(RayExecutor(given).run(jobs.Squares(), range(3)))


@pytest.mark.parametrize("address", ["here", "host:", ":10", "host:99999", "http://host:10", "ray://host"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InvalidValueError, match="give host:port"):
        RayExecutor(address)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.cluster.ray.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'embstore\[ray\]'"):
        RayExecutor()


def test_nothing_to_do_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("embstore.cluster.ray.sys.executable", str(Path("/no/python")))
    assert list(RayExecutor("local").run(jobs.Squares(), [])) == []
