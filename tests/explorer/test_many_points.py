"""A map of more points than are drawn one by one: its density, its lasso, and its points again from near."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from tests.explorer.conftest import Opened, served
from tests.explorer.test_map_view import drawn

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect
pytestmark = pytest.mark.slow
N_ROWS, LENGTH = 320_000, 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    random = np.random.default_rng(0)
    types = random.integers(0, 50, (N_ROWS // LENGTH, LENGTH))
    centers = random.normal(size=(2, 50, 4)) * [6, 4, 1, 1]
    sentences = [[f"w{number}" for number in own] for own in types.tolist()]
    arrays = (centers[:, own] + random.standard_normal((LENGTH, 4)) for own in types)
    return es.store.write_arrays(tmp_path_factory.mktemp("many") / "a.zarr", sentences, arrays, model="none")


@pytest.fixture
def many(browser: Any, store: es.Store, tmp_path: Path) -> Iterator[Opened]:
    """Opens maps of all points; at the end no page may have complained."""
    with served(store.path, XDG_CACHE_HOME=str(tmp_path)) as address:
        opened = Opened(browser, address)
        yield opened
        opened.close()


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
