"""A browser, and a server of two small stores that it opens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import embstore as es
from embstore.corpus import Document, Sentence, Span
from tests.models import tiny

ARGUMENTS = [
    "--no-sandbox",
    "--use-angle=swiftshader",  # WebGL without a GPU
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT = 180_000  # milliseconds; a busy machine loads a model for a minute
HOSTILE = "<img/src=x/onerror=alert(1)>"
RIGHT_TO_LEFT = "שָׁלוֹם"
EMOJI = "👩🏽‍🚀"
WRITTEN = "The cat\n\t(sat)  on\n\nthe mat."
LONG = 500  # words of the longest sentence
SLOW = float(os.environ.get("EMBSTORE_SLOW_BROWSER", "1"))  # how many times slower the browser is made
LATER = """const ask = fetch;
window.fetch = (...given) =>
  new Promise((done) => setTimeout(done, 300 + 1200 * Math.random())).then(() => ask(...given));
window.ResizeObserver = class extends ResizeObserver {
  constructor(call) { super((...given) => setTimeout(() => this.closed || call(...given), 500 * Math.random())); }
  disconnect() { this.closed = true; super.disconnect(); }
};"""
RUN = "from embstore_cli.main import run; run()"


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what queries keep for later in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def _sentences() -> list[Sentence | Document]:
    nouns = {"bank", "river", "cat", "mat", "sea", "money", HOSTILE}
    written = [
        *tiny.SENTENCES,
        *(f"the {place} bank {number} is old".split() for number in range(30) for place in ("river", "city")),
        f"we saw {HOSTILE} there".split(),
        f"she said {RIGHT_TO_LEFT} to him {EMOJI} twice".split(),
        [f"w{number % 97}" for number in range(LONG)],
    ]
    tags = {**dict.fromkeys(nouns, "NOUN"), "w7": "it's"}  # a label with a quote
    sentences = [Sentence(words, {"upos": [tags.get(word, "X") for word in words]}) for words in written]
    return [*sentences, Document(WRITTEN, spans=[Span(0, len(WRITTEN), "sentence")])]


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores of the same sentences by models of the same shape, with the label column `upos`."""
    folder = tmp_path_factory.mktemp("explored")
    made = []
    for name, seed in (("first", 0), ("second", 1)):
        model = tiny.save("bert", folder / f"model-{name}", seed=seed)
        es.extract(es.plan(_sentences(), model=model), folder / f"{name}.zarr")
        made.append(folder / f"{name}.zarr")
    return made


@pytest.fixture(scope="session")
def address(stores: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the stores, with its token."""
    with served(*stores, XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache"))) as address:
        yield address


@contextmanager
def served(*stores: Path, **variables: str) -> Iterator[str]:
    """Run `embstore explore` in an environment with some variables; gives the address of the page."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
    command = [sys.executable, "-c", RUN, "explore", *map(str, stores), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        words = server.stdout.readline().split()  # waits until the server listens
        assert "at" in words, f"the server ended with {server.wait()}"
        yield words[words.index("at") + 1]
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, closed with its module: Playwright's event loop keeps others from running in the thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    playwright.expect.set_options(timeout=TIMEOUT)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield started
        started.close()


@dataclass
class Opened:
    """Opens views in pages of their own, and keeps what these pages complain of."""

    browser: Any
    address: str
    complaints: list[str] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)

    def __call__(self, *, theme: str = "light", width: int = 1280, height: int = 720, **values: object) -> Any:
        """Open the state of `values`, and wait until nothing loads any more."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
        )
        self.contexts.append(context)
        page = new_page(context)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.goto(f"{self.address}&{urlencode(values)}")
        loaded(page)
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        assert self.complaints == []

    def _heard(self, said: Any) -> None:
        if said.type in ("error", "warning") and "GL Driver Message" not in said.text:  # WebGL without a GPU is slow
            self.complaints.append(f"{said.text} {said.location}")


def new_page(context: Any) -> Any:
    """Open a page; with EMBSTORE_SLOW_BROWSER=6 one that computes 6 times slower, and has answers and sizes late."""
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    if SLOW > 1:
        page.add_init_script(LATER)
        context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOW})
    return page


def called(program: str) -> Any:
    """Run the Python that a view shows; returns the value of its last line."""
    lines, _, call = program.rpartition("\n")
    names: dict[str, Any] = {}
    exec(f"{lines}\nmade = {call}", names)
    return names["made"]


def loaded(page: Any) -> None:
    """Wait until the page shows a view whose parts are all drawn: those that wait for an answer say so."""
    page.wait_for_selector("main")
    page.locator(".state progress, [aria-busy=true]").first.wait_for(state="detached")


def becomes(page: Any, read: Callable[[], object], wanted: object) -> None:
    """Wait until what `read` reads from the page is `wanted`."""
    end = time.monotonic() + TIMEOUT / 1000
    while (found := read()) != wanted and time.monotonic() < end:
        page.evaluate("() => new Promise((done) => setTimeout(done, 50))")
    assert found == wanted


def pointed(target: Any, place: Callable[[float, float], tuple[float, float]], said: Any) -> None:
    """Move the pointer to a place of an element, given its width and height, again until `said` is seen."""
    from playwright.sync_api import Error

    for tries in range(20, -1, -1):
        box = target.bounding_box()
        try:
            target.hover(position=dict(zip("xy", place(box["width"], box["height"]), strict=True)))
            return said.wait_for(timeout=TIMEOUT / 20)
        except Error:
            if not tries:
                raise
            target.page.mouse.move(0, 0)


@pytest.fixture
def view(browser: Any, address: str) -> Iterator[Opened]:
    """Opens views; at the end no page may have complained."""
    opened = Opened(browser, address)
    yield opened
    opened.close()
