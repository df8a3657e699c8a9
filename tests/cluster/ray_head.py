"""A Ray cluster of this machine on a port of its own, in processes of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]
OBJECT_STORE_NBYTES = 80 * 2**20


class RayHead:
    """A head with places for three workers; `address` is where executors reach it.

    `environment`: variables of its workers, in addition to those of this process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment or {}
        self.port = free_port()
        self.address = ""
        self._folder = Path(tempfile.mkdtemp(prefix="ray"))  # short: the names of its sockets are limited
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> RayHead:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the head; returns when it answers."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.ray_head", str(self.port)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_TMPDIR": str(self._folder),
                **self._environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address.endswith(f":{self.port}"), "no head has started"

    def stop(self) -> None:
        """End the head and all that it has started."""
        if self._process is not None:
            self._process.communicate(timeout=600)
            self._process = None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def serve(port: int) -> None:
    """Run a head until standard input is closed."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 3,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_NBYTES,
            "gcs_server_port": port,
        },
    )
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
