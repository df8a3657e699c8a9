"""`embstore geometry` and `embstore static` with workers: the same output, and what is refused."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Work


@pytest.mark.slow
def test_workers_give_what_one_process_gives(work: Work) -> None:
    command = ["geometry", "store.zarr", "--metrics", "all", "--min-contexts", "2", "--json"]
    alone, together = work.run(*command), work.run(*command, "--workers", "2")
    assert (together.status, together.err) == (0, "")
    assert together.out == alone.out
    for name, options in (("one.bin", []), ("two.bin", ["--workers", "1"])):
        ran = work.run("static", "store.zarr", name, "--layer", "2", *options)
        assert (ran.status, ran.err) == (0, "")
    assert (work / "one.bin").read_bytes() == (work / "two.bin").read_bytes()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workers", "0"], "--workers 0 is not allowed: give 1 or more"),
        (["--cluster", "spark"], "cluster 'spark' is not known: give ray"),
        (["--cluster", "ray:", "--workers", "2"], "cluster 'ray:' is not known"),
    ],
)
def test_workers_that_there_are_not(work: Work, options: list[str], told: str) -> None:
    for command in (["geometry", "store.zarr"], ["static", "store.zarr", "out.txt", "--layer", "1"]):
        ran = work.run(*command, *options)
        assert (ran.status, ran.out) == (2, "")
        assert told in ran.err
        assert len(ran.err.splitlines()) == 1
