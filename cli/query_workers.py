"""The options that say where a query runs: this process, processes of this machine, or a cluster."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Annotated

import typer

from embstore.errors import InvalidValueError
from embstore_cli.workers import PLACE, ray_address

QueryCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ray[:ADDRESS]",
        rich_help_panel=PLACE,
        help="Workers of a Ray cluster: the one that runs on this machine, or at ADDRESS, HOST:PORT. Every machine "
        "needs embstore and the store's disk, or a store in a bucket.",
    ),
]
QueryWorkers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        rich_help_panel=PLACE,
        help="How many workers of the cluster, or else processes of this machine; each may use --memory.",
    ),
]


def query_executor(cluster: str | None, workers: int | None) -> Executor | None:
    """Return the executor of the options, None for this process alone; raises ExecutorError if no cluster answers."""
    if workers is not None and workers < 1:
        raise InvalidValueError(f"--workers {workers} is not allowed: give 1 or more")
    if cluster is None and workers is None:
        return None
    from embstore.executors import Processes, RayExecutor

    if cluster is None:
        return Processes(workers)
    return RayExecutor(ray_address(cluster), n_workers=workers)
