"""The options that say who does a query: this process, processes of this machine, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from embstore.errors import InvalidValueError
from embstore_cli.workers import PLACE, executor_of

if TYPE_CHECKING:
    from embstore.executor import Executor

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
    """Return what the options ask for, None for this process alone; a cluster that does not answer is refused."""
    if workers is not None and workers < 1:
        raise InvalidValueError(f"--workers {workers} is not allowed: give 1 or more")
    if cluster is None:
        return executor_of(None, None, ",".join(["cpu"] * workers)) if workers else None
    return executor_of(cluster, workers, None)
