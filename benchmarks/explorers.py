"""Compare the explorer with TensorBoard's projector and Embedding Atlas: the same rows, the first picture, memory.

python -m benchmarks.explorers STORE --rivals VENV/bin [--out benchmarks/results/explorers.json]

Each tool in turn, `--rounds` times, is started on the last layer of STORE and opened in headless Chromium, which draws
with the CPU; results are medians, and a tool that is not in VENV/bin is left out. Each has an empty cache folder and a
fresh browser; the files of STORE may be in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from playwright.sync_api import Error, sync_playwright

import embstore as es
from benchmarks.measure import parser_of, write_json

ARGUMENTS = "--no-sandbox --disable-quic --no-first-run --disable-background-networking --disable-sync"
WEBGPU = " --enable-unsafe-webgpu --use-webgpu-adapter=swiftshader"  # without it Embedding Atlas draws nothing
TIMEOUT = 120_000


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def resident(process: int) -> float:
    """The MiB that a process and its children do not share with others."""
    root = psutil.Process(process)
    total = 0
    for each in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            total += each.memory_full_info().uss
    return round(total / 2**20, 1)


def answers(url: str) -> bool:
    with suppress(OSError):
        urllib.request.urlopen(url, timeout=5).close()
        return True
    return False


def measured(run: Any, command: list[str], address: str, ready: str, rows: str) -> dict[str, Any]:
    """Start a server, open it, and wait for its picture: seconds, MiB of server and browser, and the rows it shows.

    `address`: the page, or of a server that prints its own, the text that is added to it.
    """
    cache = tempfile.TemporaryDirectory()
    began = time.perf_counter()
    settings = {**os.environ, "XDG_CACHE_HOME": cache.name}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=settings)
    browser = None
    try:
        url = address
        if not address.startswith("http"):
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, command
            url = found[0].replace("/?", f"/?{address}&")
        else:
            while not answers(url):
                if server.poll() is not None:
                    return {"failed": f"ended with status {server.returncode}"}
                time.sleep(0.1)
        started = time.perf_counter()
        browser = run.chromium.launch(executable_path="/usr/bin/chromium", args=(ARGUMENTS + WEBGPU).split())
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(TIMEOUT)
        opened = time.perf_counter()
        page.goto(url, wait_until="commit")
        inside = page.frame_locator("iframe").frame_locator("iframe") if url.endswith("#projector") else page
        try:
            inside.locator(ready).first.wait_for()
        except Error:
            return {"failed": f"no picture in {TIMEOUT // 1000} s", "said": page.locator("body").inner_text()[:2000]}
        drawn = time.perf_counter()
        found = re.search(rows, inside.locator(ready).first.inner_text())
        browsers = [each for each in psutil.Process().children(recursive=True) if "chrom" in each.name()]
        result = {
            "server_seconds": round(started - began, 2),
            "picture_seconds": round(drawn - opened, 2),
            "server_mib": resident(server.pid),
            "browser_mib": round(sum(each.memory_full_info().uss for each in browsers) / 2**20, 1),
            "shown": found[1] if found else None,
        }
        return result
    finally:
        if browser is not None:
            browser.close()
        for child in [*psutil.Process(server.pid).children(recursive=True), server]:
            with suppress(psutil.Error):
                child.terminate()
        server.wait()
        cache.cleanup()


def calls(given: argparse.Namespace, store: es.Store, folder: Path) -> dict[str, tuple[list[str], str, str, str]]:
    """The arguments of `measured` for each tool that is installed; writes what the others read."""
    ours = [str(Path(sys.executable).parent / "embstore"), "explore", given.store, "--no-browser"]
    found = {}
    for sample in dict.fromkeys((min(100_000, store.n_rows), store.n_rows)):
        view = f"view=map&layer={store.layers[-1]}&sample={sample}"
        ready = f".map-split .note:has-text('{sample:,} of')"
        found[f"embstore, {sample:,} rows"] = ours, view, ready, r"([\d,]+) of [\d,]+ occurrences"
    if (given.rivals / "embedding-atlas").exists():
        table = es.analysis.write_atlas(store, folder / "rows.parquet", sample=store.n_rows, k=0)
        columns = ["--x", "x", "--y", "y", "--text", "text", "--port", str(port := free_port())]
        atlas = [str(given.rivals / "embedding-atlas"), str(table), *columns]
        shown = f"text=/^{store.n_rows:,} points/"  # under the map, 0 until it is drawn
        found["embedding-atlas"] = atlas, f"http://localhost:{port}", shown, r"([\d,]+) points"
    if (given.rivals / "tensorboard").exists():
        logs = es.analysis.write_projector(store.select(layers="last"), folder / "logs", sample=store.n_rows)
        board = [str(given.rivals / "tensorboard"), "--logdir", str(logs), "--port", str(port := free_port())]
        address = f"http://localhost:{port}/#projector"
        found["tensorboard"] = board, address, "text=/Points: *[1-9]/", r"Points:\s*([\d,]+)"
    return found


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number of the runs that did not fail, and how many did."""
    done = [run for run in runs if "failed" not in run]
    if not done:
        return runs[0]
    found = {key: median(run[key] for run in done) for key in done[0] if key != "shown"}
    return {**found, "shown": done[0]["shown"], "n_failed": len(runs) - len(done)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.set_defaults(out=Path(__file__).parent / "results" / "explorers.json")
    parser.add_argument("store")
    parser.add_argument("--rivals", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    store = es.open(given.store)
    runs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as run:
        cases = calls(given, store, Path(name))
        for _ in range(given.rounds):
            for case, arguments in cases.items():
                runs.setdefault(case, []).append(measured(run, *arguments))
                print(case, runs[case][-1], flush=True)
    results = {case: medians(each) for case, each in runs.items()}
    shape = {"n_rows": store.n_rows, "layers": len(store.layers), "hidden_size": store.hidden_size}
    settings = {"store": shape, "rounds": given.rounds}
    result = {"benchmark": "explorers", "rows": [], "tools": results, "settings": settings}
    write_json(given.out, result)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
