"""The options that say where work is done: here, in processes of this machine, or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from embstore.errors import InvalidValueError

if TYPE_CHECKING:
    from embstore.executor import Executor

PLACE = "Where the work is done"
RAY = "ray"

Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ray[:ADDRESS]",
        rich_help_panel=PLACE,
        help="Workers of a Ray cluster: the one that runs on this machine, or at ADDRESS, HOST:PORT. Every machine "
        "needs embstore, the model and the store's disk, or a store in a bucket.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", rich_help_panel=PLACE, help="How many workers of the cluster (all GPUs, or CPUs without any)."
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        rich_help_panel=PLACE,
        help="A process of this machine for each of these devices: numbers of GPUs, such as 0,1, or cpu.",
    ),
]


def executor_of(cluster: str | None, workers: int | None, devices: str | None) -> Executor | None:
    """Return what the options ask for, None for this process alone; a cluster that does not answer is refused."""
    if workers is not None and cluster is None:
        raise InvalidValueError(f"workers {workers} are of a cluster: give --cluster ray too, or --devices instead")
    if devices is not None:
        if cluster is not None:
            raise InvalidValueError(
                "devices are of this machine, --cluster takes what the cluster has: give one of them"
            )
        from embstore.cluster.processes import Processes

        return Processes(devices.split(","))
    if cluster is None:
        return None
    address = ray_address(cluster)
    from embstore.cluster.ray import RayExecutor

    executor = RayExecutor(address, workers=workers)
    executor.reach()
    return executor


def ray_address(cluster: str) -> str | None:
    """Return the address in `--cluster ray:ADDRESS`, None for the cluster of this machine."""
    kind, colon, address = cluster.partition(":")
    if kind != RAY or (colon and not address):
        raise InvalidValueError(f"unknown cluster {cluster!r}: give ray, or ray:HOST:PORT of its head")
    return address or None


def require_one_pass(asked: tuple[str, tuple[int | None, ...]]) -> None:
    """Refuse several context windows, before the corpus is read for them."""
    from embstore.extraction.pipeline import ONE_PROCESS

    kind, windows = asked
    if kind == "context" and len(windows) > 1:
        raise InvalidValueError(ONE_PROCESS)


def planning_device(device: str, devices: str | None) -> str:
    """Return the device that the plan is made on: of those of the work, where no other is asked for."""
    if devices is None or device != "auto":
        return device
    from embstore.cluster.processes import device_name

    return device_name(devices.split(",")[0])
