"""The options of the command line that say where work is done."""

from __future__ import annotations

import pytest

from embstore.cluster.processes import Processes
from embstore.errors import ExecutorError, InvalidValueError
from embstore_cli.workers import executor_of, planning_device, require_one_pass
from tests.cluster.ray_head import free_port


def test_nothing_asked_for_is_this_process() -> None:
    assert executor_of(None, None, None) is None
    assert planning_device("auto", None) == "auto"


def test_devices_are_processes_and_the_plan_is_made_on_the_first() -> None:
    executor = executor_of(None, None, "cuda:1, cpu,1")
    assert isinstance(executor, Processes)
    assert executor.devices == ("cuda:1", "cpu", "cuda:1")
    assert planning_device("auto", "1,cpu") == "cuda:1"
    assert planning_device("cpu", "1") == "cpu"


@pytest.mark.parametrize(
    ("cluster", "workers", "devices", "told"),
    [
        (None, 2, None, "give --cluster ray too"),
        ("ray", None, "0", "give one of them"),
        ("dask", None, None, "unknown cluster 'dask'"),
        ("ray:", None, None, "unknown cluster 'ray:'"),
        ("ray:here", None, None, "give host:port"),
        ("ray", 0, None, "workers 0 is not allowed"),
        (None, None, "0,,1", "device '' is not known"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cluster: str | None, workers: int | None, devices: str | None, told: str
) -> None:
    with pytest.raises(InvalidValueError, match=told):
        executor_of(cluster, workers, devices)


def test_a_cluster_that_does_not_answer_is_refused_before_the_corpus_is_read() -> None:
    with pytest.raises(ExecutorError, match="Connection refused"):
        executor_of(f"ray:127.0.0.1:{free_port()}", None, None)


def test_several_context_windows_are_refused() -> None:
    require_one_pass(("attention", (1, 2)))
    require_one_pass(("context", (1,)))
    with pytest.raises(InvalidValueError, match="several context windows"):
        require_one_pass(("context", (1, 2)))
