"""How many CPU threads a command uses, and how idle ones wait."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran, Work

VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, str]]:
    """Unset the variables of OpenMP, until the test ends; returns those that are set when called."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # restored at the end
        monkeypatch.delenv(name)
    return lambda: {name: os.environ[name] for name in VARIABLES if name in os.environ}


def test_idle_threads_sleep(run: Callable[..., Ran], variables: Callable[[], dict[str, str]]) -> None:
    assert run("--version").status == 0
    assert variables() == {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_has_set_stays(
    run: Callable[..., Ran], variables: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "7")
    assert run("--version").status == 0
    assert variables() == {name: "7"}


@pytest.mark.parametrize("threads", ["0", "1025", "many"])
def test_bad_numbers_of_threads(work: Work, threads: str) -> None:
    work.refuses(f"--threads {threads} extract corpus.txt x.zarr --model random:8", "threads", threads)
