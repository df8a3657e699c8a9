"""The explorer's map of up to ten million points in a browser: the first picture, another layer, frames, memory.

python -m benchmarks.explore_map [--out benchmarks/results/explore_map.json] [--folder DIR]

The store is made, of clustered random vectors (1.3 GB; removed afterwards). Chromium is headless and draws with the
CPU. Each round starts a server and a browser for each number of points, with an empty cache.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.measure import machine, table, write_json
from embstore.store import Index, Metadata, StoreWriter, Strings, create_store

LAYERS, DIM, SENTENCE, N_TYPES, CENTERS, PARTITION = (0, 1), 32, 20, 20_000, 60, 65536
SIZES = (100_000, 1_000_000, 10_000_000)
ARGUMENTS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
TIMEOUT = 300_000
PAN = """async (count) => {
    const box = document.querySelector(".map-box");
    const { left, top } = box.getBoundingClientRect();
    const at = (x) => ({ clientX: left + x, clientY: top + 200, pointerId: 1, bubbles: true });
    const send = (kind, x) => box.dispatchEvent(new PointerEvent(kind, at(x)));
    box.setPointerCapture = () => {};
    const times = [];
    send("pointerdown", 200);
    for (let frame = 0; frame < count; frame++) {
        const began = performance.now();
        send("pointermove", 210 + 5 * frame);
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        times.push(performance.now() - began);
    }
    send("pointerup", 210 + 5 * count);
    return times.sort((a, b) => a - b)[count >> 1];
}"""


def make_store(path: Path, n_rows: int) -> None:
    """Write a store whose words lie around common centers, of which each layer has its own."""
    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(N_TYPES)]
    share = 1 / np.arange(1, N_TYPES + 1)
    types = random.choice(N_TYPES, n_rows, p=share / share.sum()).astype(np.int32)
    sentences = n_rows // SENTENCE
    texts = (" ".join([words[each] for each in line]) for line in types.reshape(sentences, SENTENCE).tolist())
    index = Index(
        type=types,
        sentence=np.repeat(np.arange(sentences), SENTENCE),
        position=np.tile(np.arange(SENTENCE, dtype=np.int32), sentences),
        subwords=np.ones(n_rows, np.int16),
        words=Strings.of(words),
        texts=Strings.of(list(texts)),
        indptr=np.arange(0, n_rows + 1, SENTENCE),
        source=np.arange(sentences),
        labels={},
    )
    metadata = Metadata(
        n_rows=n_rows,
        layers=LAYERS,
        hidden_size=DIM,
        dtype="float16",
        partition_rows=PARTITION,
        model={"name": "none", "architecture": "none"},
        corpus={"name": "made", "sha256": "0" * 64},
        extraction={"unit": "word", "pooling": "mean"},
        fields={},
    )
    create_store(path, metadata=metadata, index=index)
    scale = np.arange(1, DIM + 1) ** -0.5
    centers = random.normal(size=(len(LAYERS), CENTERS, DIM)) * 3 * scale
    with StoreWriter(path) as writer:
        for partition in writer.missing():
            own = types[slice(*metadata.layout.span(partition))] % CENTERS
            noise = random.standard_normal((len(own), DIM), np.float32) * scale
            writer.write(partition, {"hidden_states": (centers[:, own] + noise).astype(np.float16)})
        writer.finish()


def anonymous(process: psutil.Process) -> float:
    """The MiB of anonymous memory of a process."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def drawn(page: Page, size: int, layer: int) -> float:
    """Wait until `size` points of a layer are drawn; returns the time."""
    page.locator(f".map-split .note:has-text('{size:,} of')").wait_for()
    page.locator(".map-split .answer[aria-busy=false]").wait_for()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return time.perf_counter()


def measured(browser: Browser, store: Path, size: int) -> dict[str, float]:
    """Start a server of the store and draw a map of `size` points."""
    with tempfile.TemporaryDirectory() as cache:
        command = [str(Path(sys.executable).parent / "embstore"), "explore", str(store), "--no-browser"]
        settings = {**os.environ, "XDG_CACHE_HOME": cache}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings)
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            context = browser.new_context(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
            page = context.new_page()
            page.set_default_timeout(TIMEOUT)
            process = psutil.Process(server.pid)
            before = anonymous(process)
            began = time.perf_counter()
            page.goto(f"{found[0]}&view=map&layer=0&sample={size}", wait_until="commit")
            page.locator(".map-box canvas").wait_for()
            first = time.perf_counter()
            whole = drawn(page, size, 0)
            result = {"first_picture_s": first - began, "all_points_s": whole - began}
            page.locator(".layer-slider input, input[type=range]").first.focus()
            began = time.perf_counter()
            page.keyboard.press("ArrowRight")
            page.wait_for_url("**layer=1**")
            page.locator(".map-split .answer[aria-busy=true]").wait_for()
            result["layer_change_s"] = drawn(page, size, 1) - began
            result["frame_ms"] = page.evaluate(PAN, 30)
            result["server_before_mib"], result["server_mib"] = before, anonymous(process)
            for _ in range(3):
                for key in ("ArrowLeft", "ArrowRight"):
                    page.locator(".layer-slider input, input[type=range]").first.focus()
                    page.keyboard.press(key)
                    page.wait_for_url(f"**layer={int(key == 'ArrowRight')}**")
                    drawn(page, size, 0)
            result["server_after_6_more_mib"] = anonymous(process)
            children = [each for each in psutil.Process().children(recursive=True) if "chrom" in each.name()]
            result["browser_mib"] = sum(each.memory_full_info().uss for each in children) / 2**20
            context.close()
            return result
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "explore_map.json")
    parser.add_argument("--folder", type=Path, help="where the store is written")
    parser.add_argument("--rows", type=int, default=max(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    runs: dict[int, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as name, sync_playwright() as run:
        store = Path(name) / "made.zarr"
        make_store(store, given.rows)
        for _ in range(given.rounds):
            for size in SIZES:
                browser = run.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS.split())
                runs.setdefault(size, []).append(measured(browser, store, size))
                browser.close()
    medians = {
        size: {key: statistics.median(one[key] for one in each) for key in each[0]} for size, each in runs.items()
    }
    print(table(["points", *medians[SIZES[0]]], [[size, *each.values()] for size, each in medians.items()]))
    settings = {"n_rows": given.rows, "hidden_size": DIM, "layers": len(LAYERS), "rounds": given.rounds}
    write_json(
        given.out, {"benchmark": "explore_map", "machine": machine(), "rows": [], "maps": medians, "settings": settings}
    )


if __name__ == "__main__":
    main()
