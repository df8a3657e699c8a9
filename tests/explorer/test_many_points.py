"""A map of more points than are drawn one by one: its density, its lasso, and its points again from near."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.store import Index, Metadata, StoreWriter, Strings, create_store
from tests.explorer.conftest import Opened, served
from tests.explorer.test_map_view import drawn

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect
pytestmark = pytest.mark.slow
N_ROWS, LENGTH = 320_000, 20


def write_many(path: Path) -> es.Store:
    random = np.random.default_rng(0)
    n_sentences, words = N_ROWS // LENGTH, [f"w{number}" for number in range(50)]
    types = random.integers(0, len(words), N_ROWS).astype(np.int32)
    index = Index.of(
        type=types, sentence=np.repeat(np.arange(n_sentences), LENGTH),
        position=np.tile(np.arange(LENGTH, dtype=np.int32), n_sentences), subwords=np.ones(N_ROWS, np.int16),
        words=Strings.of(words), texts=Strings.of([" ".join(words[:LENGTH])] * n_sentences),
        indptr=np.arange(0, N_ROWS + 1, LENGTH), source=np.arange(n_sentences), labels={},
    )  # fmt: skip
    metadata = Metadata(
        n_rows=N_ROWS, layers=(0, 1), hidden_size=4, dtype="float32", partition_rows=65536,
        model={"name": "none", "architecture": "none"}, corpus={"name": "none", "sha256": "0" * 64},
        extraction={"unit": "word", "pooling": "mean"}, fields={},
    )  # fmt: skip
    create_store(path, metadata=metadata, index=index)
    centers = random.normal(size=(2, len(words), 4)) * [6, 4, 1, 1]
    with StoreWriter(path) as writer:
        for partition in writer.missing():
            own = types[slice(*metadata.layout.span(partition))]
            noise = random.standard_normal((len(own), 4))
            writer.write(partition, {"hidden_states": (centers[:, own] + noise).astype(np.float32)})
        writer.finish()
    return es.open(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    return write_many(tmp_path_factory.mktemp("many") / "a.zarr")


@pytest.fixture
def many(browser: Any, store: es.Store, tmp_path: Path) -> Iterator[Opened]:
    """Opens maps of all points; at the end no page may have complained."""
    with served(store.path, XDG_CACHE_HOME=str(tmp_path)) as address:
        opened = Opened(browser, address)
        yield opened
        for context in opened.contexts:
            context.close()
        assert opened.complaints == []


def test_many_points_are_seen_selected_and_followed_through_layers(many: Opened, store: es.Store) -> None:
    outline = "-1.5,-1.5;-1.5,1.5;0.2,1.5;0.2,-1.5"
    page = many(view="map", layer=0, sample=1_000_000, color="word", lasso=outline)
    for layer in store.layers:
        expect(page.get_by_text(f"{N_ROWS:,} of {N_ROWS:,} occurrences")).to_be_visible()
        found = es.analysis.project(store, layers=layer, sample=None)
        points = found.points / np.percentile(np.abs(found.points[::3]), 99.8)
        inside = (points[:, 0] < 0.2) & (np.abs(points) < 1.5).all(1)
        expect(page.locator(".map-box")).to_have_attribute("aria-label", re.compile(f"Map of {N_ROWS} points"))
        expect(page.get_by_role("heading", name=re.compile(f"^{inside.sum() // 1000},")).first).to_be_visible()
        assert drawn(page) > 1000
        page.get_by_role("slider", name="Layer").press("ArrowRight")


def test_few_points_of_many_are_drawn_one_by_one_from_near(many: Opened, store: es.Store) -> None:
    page = many(view="map", layer=0, sample=1_000_000, color="none", row=5)
    expect(page.get_by_text(f"{N_ROWS:,} of {N_ROWS:,} occurrences")).to_be_visible()
    whole = drawn(page)
    for _ in range(14):
        page.locator(".map-box").press("+")
    drawn(page, whole)
    with page.expect_download() as picture:
        page.get_by_role("button", name="PNG").first.click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.locator(".map-box .found")).to_have_count(1)
