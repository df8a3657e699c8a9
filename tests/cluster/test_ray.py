"""The executor of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embstore.cluster.ray import RayExecutor
from embstore.errors import ClusterError, InvalidValueError, MissingPackageError
from embstore.executor import Executor
from tests.cluster import jobs
from tests.cluster.conformance import ATTEMPTS, AllAtOnceTests
from tests.cluster.ray_head import RayHead, free_port


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    pytest.importorskip("ray")
    with RayHead() as head:
        yield head


@pytest.mark.slow
class TestThreeRayWorkers(AllAtOnceTests):
    @pytest.fixture
    def executor(self, head: RayHead) -> Executor:
        return RayExecutor(head.address, workers=3, attempts=ATTEMPTS)


def test_an_address_of_no_cluster_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    address = f"127.0.0.1:{free_port()}"
    for given in (address, f"ray://{address}"):
        with pytest.raises(ClusterError, match=f"no Ray cluster answers at {given}: Connection refused"):
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
