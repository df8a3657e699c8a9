"""The options that say where an extraction runs: this process, processes of this machine, or a cluster."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Annotated

import typer

from embstore.errors import InvalidValueError

PLACE = "Where the work runs"
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
    """Return the executor of the options, None for this process alone; raises ExecutorError if no cluster answers."""
    if workers is not None and cluster is None:
        raise InvalidValueError(f"--workers {workers} is for a cluster: give --cluster ray too, or --devices instead")
    if devices is not None and cluster is not None:
        raise InvalidValueError("--devices and --cluster exclude each other: give one of them")
    if devices is None and cluster is None:
        return None
    from embstore.executors import Processes, RayExecutor

    if devices is not None:
        return Processes(devices=devices.split(","))
    assert cluster is not None
    return RayExecutor(ray_address(cluster), n_workers=workers)


def ray_address(cluster: str) -> str | None:
    """Return the address in `--cluster ray:ADDRESS`, None for the cluster of this machine."""
    kind, colon, address = cluster.partition(":")
    if kind != RAY or (colon and not address):
        raise InvalidValueError(f"unknown cluster {cluster!r}: give ray, or ray:HOST:PORT of its head")
    return address or None


def planning_device(device: str, devices: str | None) -> str:
    """Return the device that the plan is made on: the first of the workers' devices, unless another one is given."""
    if devices is None or device != "auto":
        return device
    from embstore.executors import device_name

    return device_name(devices.split(",")[0])
