"""Measure a static page of a store of a billion rows on a plain web host: the first picture, a word, bytes sent.

python -m benchmarks.static_site STORE [--out benchmarks/results/static_site.json]

STORE gives the maps, of 100,000 points. The billion rows are simulated: sparse files in the shape of BERT base, which
hold what the measured word needs; its 1,000 occurrences lie in as many partitions.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from benchmarks.measure import Row, Target, parser_of, show_rows, write_json
from embstore.explorer import write_static
from embstore.explorer.answers import as_json
from embstore.explorer.static import COMPONENTS, SAMPLE, write_words
from embstore.store import Strings
from tests.web_host import web_host

N_ROWS, N_LAYERS, DIM, PARTITION = 10**9, 13, 768, 8192
N_TYPES, SENTENCE, COUNT = 1_000_000, 20, 1000
WORD = "bank"
TEXT = "the boat lay by the bank of the river , and nobody in the town had seen it come so far up"
ARGUMENTS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"


class Words:
    """What `write_words` reads of a store: a million words, of which the measured one is the first."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        letters = rng.integers(97, 123, (N_TYPES - 1, 9)).astype(np.uint8)
        words = [WORD, *(row.tobytes().decode()[: 3 + number % 7] + str(number) for number, row in enumerate(letters))]
        counts = np.append(COUNT, np.full(N_TYPES - 1, (N_ROWS - COUNT) // (N_TYPES - 1)))
        self.index = type("Index", (), {"words": Strings.of(words)})
        self.occurrences = (np.append(0, np.cumsum(counts)), None)


def write_sparse(path: Path, size: int, parts: dict[int, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
        for start, data in parts.items():
            file.seek(start)
            file.write(data)


def make_store(folder: Path) -> None:
    """Write the files of a store of a billion rows, with one word's occurrences."""
    rng = np.random.default_rng(1)
    rows = np.sort(
        rng.choice(N_ROWS // PARTITION, COUNT, replace=False) * PARTITION + rng.integers(0, PARTITION, COUNT)
    )
    text = TEXT.encode()
    sentences, at = rows // SENTENCE, text.split().index(WORD.encode())

    def column(name: str, dtype: str, count: int, parts: dict[int, Any]) -> None:
        size = np.dtype(dtype).itemsize
        data = {position * size: np.array(value, dtype).tobytes() for position, value in parts.items()}
        write_sparse(folder / name / "c" / "0", count * size, data)

    column("types/occurrences", "<i8", N_ROWS, {0: rows})
    column("occurrences/type", "<i4", N_ROWS, dict.fromkeys(rows.tolist(), 0))
    column("occurrences/sentence", "<i8", N_ROWS, dict(zip(rows.tolist(), sentences.tolist(), strict=True)))
    column("occurrences/position", "<i4", N_ROWS, dict.fromkeys(rows.tolist(), at))
    column("types/form_offsets", "<i8", N_TYPES + 1, {0: [0, len(WORD)]})
    write_sparse(folder / "types/form_bytes/c/0", N_TYPES * 9, {0: WORD.encode()})
    n_sentences = N_ROWS // SENTENCE
    offsets = {each: [each * len(text), (each + 1) * len(text)] for each in sentences.tolist()}
    column("sentences/text_offsets", "<i8", n_sentences + 1, offsets)
    texts = dict.fromkeys((sentences * len(text)).tolist(), text)
    write_sparse(folder / "sentences/text_bytes/c/0", n_sentences * len(text), texts)
    mapped = rng.normal(size=(COUNT, COMPONENTS)).astype("<f2").tobytes()
    for layer in range(N_LAYERS):
        write_sparse(folder / "maps" / str(layer), N_ROWS * COMPONENTS * 2, {0: mapped})
    spectrum = np.arange(1, DIM + 1) ** -0.5  # as of hidden states, variances fall off
    for row in rows.tolist():
        partition, place = divmod(row, PARTITION)
        vectors = (rng.normal(size=(N_LAYERS, DIM)) * spectrum).astype("<f2")
        parts = {(layer * PARTITION + place) * DIM * 2: vectors[layer].tobytes() for layer in range(N_LAYERS)}
        write_sparse(folder / f"hidden_states/c/0/{partition}/0", N_LAYERS * PARTITION * DIM * 2, parts)


def make_site(store: str, folder: Path) -> None:
    """Write the static page of STORE, and let it read the billion rows in its place."""
    site = write_static([store], folder / "site", progress=False)
    shutil.rmtree(site / "words")
    listed = [
        {"row": row, "sentence": row // SENTENCE, "position": 5, "left": TEXT[:19], "word": WORD, "right": TEXT[23:],
         "labels": {}}
        for row in np.fromfile(folder / ROWS, "<i8", 50).tolist()
    ]  # fmt: skip
    lines = as_json(listed).encode()
    write_words(Words(), site / "words" / "0", {WORD: [0.5] * N_LAYERS}, {WORD: (0, len(lines))})  # type: ignore[arg-type]
    (site / "words" / "0" / "lines").write_bytes(lines)
    write_sparse(site / "sample" / "0" / "rows", SAMPLE * 8, {0: np.fromfile(folder / ROWS, "<i8", COUNT).tobytes()})
    near = np.random.default_rng(2).integers(-127, 128, (SAMPLE, DIM)).astype(np.int8).tobytes()
    for layer in range(N_LAYERS):
        (site / "sample" / "0" / str(layer)).write_bytes(near)
    manifest = json.loads((site / "static.json").read_text())
    layers, held = list(range(N_LAYERS)), manifest["stores"][0]
    unknown: list[None] = [None] * N_LAYERS
    held |= {"url": "../billion.zarr", "dim": DIM, "rows": N_ROWS, "partition_rows": PARTITION, "layers": layers}
    held |= {"maps": "../billion.zarr/maps", "components": COMPONENTS, "sampled": SAMPLE, "senses": []}
    held |= {"columns": [], "documents": False, "vectors": "hidden_states", "dtype": "float16"}
    held["corpus"] |= {"selfsim": unknown, "anisotropy": unknown}
    (site / "static.json").write_text(json.dumps(manifest))
    path = site / manifest["answers"]["stores?"]
    shown = json.loads(path.read_text())
    shown[0] |= {"name": "billion", "rows": N_ROWS, "types": N_TYPES, "dim": DIM, "labels": []}
    path.write_text(json.dumps(shown))


def measured(browser: Browser, host: Any, address: str, ready: str) -> dict[str, float]:
    """Load an address in a fresh context until an element is visible: seconds and bytes."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.set_default_timeout(120_000)
    before, began = host.nbytes, time.perf_counter()
    page.goto(f"{host.url}/site/{address}", wait_until="commit")
    page.locator(ready).first.wait_for()
    seconds = time.perf_counter() - began
    context.close()
    return {"seconds": seconds, "nbytes": host.nbytes - before}


def asked(browser: Browser, host: Any, name: str, params: dict[str, Any]) -> dict[str, float]:
    """Ask a query of a page that shows something else already: seconds, bytes and requests."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{host.url}/site/?view=layers")
    page.locator("nav").wait_for()
    page.wait_for_load_state("networkidle")
    before, count = host.nbytes, len(host.requests)
    script = """async ([name, params]) => {
        const began = performance.now();
        await embstore.query(name, params);
        return performance.now() - began;
    }"""
    seconds = page.evaluate(script, [name, params]) / 1000
    context.close()
    return {"seconds": seconds, "nbytes": host.nbytes - before, "n_requests": len(host.requests) - count}


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = parser_of(__doc__)
    parser.set_defaults(out=Path(__file__).parent / "results" / "static_site.json")
    parser.add_argument("store")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as run:
        folder = Path(name)
        make_store(folder / "billion.zarr")
        make_site(given.store, folder)
        browser = run.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS.split())
        with web_host(folder) as host:
            word = {"word": WORD, "layer": 6}
            row = int(np.fromfile(folder / ROWS, "<i8", 1)[0])
            listed = {"rows": ",".join(map(str, np.fromfile(folder / ROWS, "<i8", COUNT).tolist())), "layer": 6}
            cases: dict[str, Any] = {
                "first map": lambda: measured(browser, host, "?view=map&layer=6", FIRST_MAP),
                "first page of a word": lambda: measured(browser, host, f"?view=word&word={WORD}&layer=6", FIRST_ROWS),
                "1,000 occurrences at a layer, mapped": lambda: asked(browser, host, "map", word),
                "1,000 occurrences at a layer, their vectors": lambda: asked(browser, host, "map", listed),
                "50 lines of a word": lambda: asked(browser, host, "occurrences", {"word": WORD, "limit": 50}),
                "its next 50 lines": lambda: asked(browser, host, "occurrences", {"word": WORD, "offset": 50}),
                "neighbours in the sample, 3 layers": lambda: asked(browser, host, "neighbors", {"row": row}),
                "completion": lambda: asked(browser, host, "complete", {"prefix": "ban"}),
            }
            runs: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
            for _ in range(given.runs):
                for case, measure in cases.items():
                    runs[case].append(measure())
        browser.close()
    write_json(given.out, report({case: median(each) for case, each in runs.items()}, given.runs))


def report(medians: dict[str, dict[str, float]], runs: int) -> dict[str, Any]:
    rows = []
    for case, each in medians.items():
        asked = f", {each['n_requests']:,.0f} requests" if "n_requests" in each else ""
        targets = {"seconds": TARGETS[case]} if case in TARGETS else {}
        rows.append(Row(f"{case}{asked}, {each['nbytes'] / 1e6:.2f} MB", each["seconds"], targets=targets))
    target = Target("first map, MB", medians["first map"]["nbytes"] / 1e6, 5, False)
    settings = {"n_rows": N_ROWS, "runs": runs}
    result = {"benchmark": "static_site", "rows": show_rows(rows), "settings": settings}
    return {**result, "targets": [target]}


TARGETS = {"first map": 2.0, "1,000 occurrences at a layer, mapped": 1.0}
ROWS = "billion.zarr/types/occurrences/c/0"
FIRST_MAP = ".map-split .note:has-text('occurrences')"
FIRST_ROWS = "tbody tr:nth-child(50)"

if __name__ == "__main__":
    main()
