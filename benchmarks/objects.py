"""Requests, bytes and time of reading a store in a bucket: python benchmarks/objects.py (moto on loopback).

The server and the proxy that counts are those of the tests, so the times are theirs; requests and bytes are not.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from embstore.store import Store, open_store
from embstore.store.zarr.remote import GAP_KIB
from tests.object_server import Bucket, Proxy, bucket_environment
from tests.store.example import example


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bucket, stop = _serve()
        made = example(rows=options.rows, layers=(0, 1, 2), hidden_size=256, partition_rows=8192, labels=False)
        made.make(Path(folder) / "x.zarr")
        measure(bucket.upload(Path(folder) / "x.zarr", "x.zarr"), bucket.proxy, options.repeats)
        stop()


def measure(url: str, proxy: Proxy, repeats: int) -> None:
    """Print a row of a Markdown table for each kind of read."""

    def row(what: str, read: Callable[[], object]) -> None:
        times = []
        for _ in range(repeats):
            proxy.reset()
            began = time.perf_counter()
            read()
            times.append(time.perf_counter() - began)
        nbytes = [request.nbytes for request in proxy.requests]
        figures = f"{median(times) * 1e3:,.0f} ms | {len(nbytes):,} | {sum(nbytes) / 2**20:.2f} MiB"
        print(f"| {what} | {figures} | {max(nbytes) / 2**10:,.0f} KiB |", flush=True)

    remote = _opened(url)
    random = np.random.default_rng(0)
    print("| read | time | requests | bytes | largest |\n| --- | --- | --- | --- | --- |")
    row("open", lambda: open_store(url))
    row(f"index, {len(remote._reader.arrays)} columns", lambda: open_store(url).index)
    few, many = (random.choice(remote.n_rows, count, replace=False) for count in (50, 1_000))
    row("50 rows, one layer", lambda: remote.gather(few, 1))
    for gap in (0, 16, GAP_KIB):
        os.environ["EMBSTORE_GAP_KIB"] = str(gap)
        remote = _opened(url)
        row(f"1,000 rows, one layer, gaps of {gap} KiB", partial(remote.gather, many, 1))
    row("1,000 rows, three layers", lambda: remote.gather_layers(many))
    row("scan of a layer", lambda: [None for _ in remote.scan(1)])


def _opened(url: str) -> Store:
    """Open a store whose shards' indexes are known."""
    remote = open_store(url)
    remote.gather(np.arange(0, remote.n_rows, remote.layout.partition_rows), 0)
    return remote


def _serve() -> tuple[Bucket, Callable[[], None]]:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(*server.get_host_and_port())
    os.environ.update(bucket_environment(proxy))
    held = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    held.create_bucket("bucket", "us-east-1")
    return Bucket("bucket", proxy, held), server.stop


if __name__ == "__main__":
    main()
