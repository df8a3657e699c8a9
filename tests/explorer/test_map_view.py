"""Maps and sentences in a browser: few or many points are where the library puts them, and lead further."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.corpus import Document
from tests.explorer.conftest import HOSTILE, Opened, becomes, loaded, new_page, pointed, served
from tests.explorer.test_views import values
from tests.models import tiny

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect
pytestmark = pytest.mark.slow
DRAWN = """() => {
  const map = document.querySelector(".map-box canvas");
  const copy = Object.assign(document.createElement("canvas"), {width: map.width, height: map.height});
  const pen = copy.getContext("2d");
  pen.drawImage(map, 0, 0);
  return pen.getImageData(0, 0, copy.width, copy.height).data.filter((value, at) => at % 4 === 3 && value > 0).length;
}"""


def drawn(page: Any, most: float = float("inf")) -> int:
    """How many pixels of the map have a point, once there are some, and fewer than `most`."""
    for _ in range(1000):  # frames; the page's policy forbids to wait for a function
        count = int(page.evaluate(DRAWN))
        if 0 < count < most:
            return count
        page.evaluate("() => new Promise(requestAnimationFrame)")
    raise AssertionError(f"{count} pixels are drawn")


def placed(points: np.ndarray, step: int = 1) -> np.ndarray:
    """Points as the map has them: in the middle of a square from -1 to 1, but for those far out."""
    ends = np.percentile(points[::step], (0.02, 99.98), axis=0, method="nearest")
    return np.asarray((points - ends.mean(0)) / (np.ptp(ends, axis=0).max() / 2))


def lonely(store: es.Store, layer: int) -> tuple[int, np.ndarray]:
    """The row whose point is farthest from all others but inside the picture, and where it is, from -1 to 1."""
    found = es.analysis.project(store, layers=layer)
    points = placed(found.points)
    near = np.linalg.norm(points[:, None] - points, axis=2) + 9 * np.eye(len(points))
    chosen = int(np.where(np.abs(points).max(1) < 0.95, near.min(1), 0).argmax())
    return int(found.rows[chosen]), points[chosen]


def place(point: np.ndarray, width: float, height: float) -> tuple[float, float]:
    """Where a point is on a map of this width and height in pixels, from its top left."""
    unit = 0.47 * min(width, height)
    return width / 2 + float(point[0]) * unit, height / 2 - float(point[1]) * unit


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_point_is_where_the_library_puts_it(view: Opened, stores: list[Path], theme: str) -> None:
    store = es.open(stores[0])
    row, point = lonely(store, 2)
    page = view(view="map", layer=2, color="upos", theme=theme)
    assert drawn(page) > 100
    (left, word, right) = store.select(rows=[row]).concordance()[0]
    said = page.locator(".map-line")
    shown = said.locator("mark", has_text=re.compile(f"^{re.escape(word)}$"))
    pointed(page.locator(".map-box"), partial(place, point), shown)
    becomes(page, lambda: said.inner_text().split(), f"{left[-120:]} {word} {right[:120]}".split())
    box = page.locator(".map-box").bounding_box()
    page.locator(".map-box").click(position=dict(zip("xy", place(point, box["width"], box["height"]), strict=True)))
    page.locator(".sentence-text a.chosen", has_text=word).wait_for()
    assert values(page)["row"] == str(row)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_cut_keeps_the_word_and_its_neighbors_lead_to_its_map(view: Opened, stores: list[Path], width: int) -> None:
    row = int(es.open(stores[0]).select(words="w50").rows[2])  # amid a sentence of 500 words
    page = view(view="word", word="w50", width=width)
    page.get_by_role("link", name=f"Neighbours of row {row}").click()
    loaded(page)
    assert re.fullmatch(r"….* w49 w50 w51 .*…", page.locator("h2 .cut").inner_text())
    for cut in page.locator(".neighbors .cut").all():
        line, word = cut.bounding_box(), cut.locator("mark").bounding_box()
        assert line["x"] <= word["x"] < word["x"] + word["width"] <= line["x"] + line["width"] + 1
    page.get_by_role("link", name="Map", exact=True).click()
    expect(page.get_by_role("combobox", name="Word")).to_have_value("w50")
    assert re.fullmatch(r"….* w49 *w50 *w51 .*…", page.locator(".map-line .cut").inner_text().replace("\n", " "))


def test_the_lasso_fills_the_table_and_is_shared(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    page = view(view="map", word="bank", layer=1, color="none")
    drawn(page)
    total = len(store.select(words="bank"))
    page.get_by_text(f"{total} of {total} occurrences").wait_for()
    page.get_by_role("button", name="Lasso").click()
    corners = [(-1.04, -1.04), (-1.04, 1.04), (0, 1.04), (0, -1.04)]
    page.locator(".map-box").hover()  # once it rests
    box = page.locator(".map-box").bounding_box()
    for number, step in enumerate(np.concatenate([np.linspace(*pair, 12) for pair in pairwise(corners)])):
        x, y = place(step, box["width"], box["height"])
        page.mouse.move(box["x"] + x, box["y"] + y)
        if number == 0:
            page.mouse.down()
    page.mouse.up()
    heading = page.get_by_role("heading", name=re.compile(r"^\d+ selected$"))
    heading.wait_for()
    loaded(page)
    found = es.analysis.project(store.select(words="bank"), layers=1)
    points = placed(found.points)
    inside = (points[:, 0] < 0) & (np.abs(points) < 1.04).all(1)
    near = int((np.abs(points[:, 0]) < 0.02).sum())
    assert abs(int(heading.inner_text().split()[0]) - int(inside.sum())) <= near
    shared = view(**{name: value for name, value in values(page).items() if name != "token"})
    shared.get_by_role("heading", name=heading.inner_text()).wait_for()
    shared.get_by_role("slider", name="Layer").press("ArrowRight")  # where the same points lie elsewhere
    shared.get_by_role("heading", name="All points").wait_for()
    page.get_by_role("button", name="Clear", exact=True).last.click()
    page.get_by_role("heading", name="All points").wait_for()
    assert "lasso" not in values(page)


def test_all_points_inside_a_lasso_are_saved(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    page = view(view="map", layer=1, color="none", lasso="-9,-9;-9,9;9,9;9,-9")
    page.get_by_role("heading", name=f"{store.n_rows:,} selected").wait_for()
    loaded(page)
    with page.expect_download() as started:  # more rows than an address holds
        page.get_by_role("region", name="Points").get_by_role("button", name="CSV").click()
    with Path(started.value.path()).open(newline="") as file:
        assert [int(each["occurrence"]) for each in csv.DictReader(file)] == list(range(store.n_rows))
    page.route("**/api/export/**", lambda route: route.fulfill(status=400, json={"error": "too many"}))
    page.get_by_role("region", name="Points").get_by_role("button", name="Parquet").click()
    page.get_by_role("alert").get_by_text("too many").wait_for()
    view.complaints.clear()  # of the answer 400


def test_colours_hide_points_and_layers_keep_them(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    page = view(view="map", layer=1, color="upos")
    whole = drawn(page)
    noun = page.get_by_role("button", name=re.compile("^NOUN"))
    noun.click()
    drawn(page, whole)
    expect(noun).to_have_attribute("aria-pressed", "false")
    assert values(page)["hidden"]
    shown = len(store.select(where="upos <> 'NOUN' OR upos IS NULL"))
    page.get_by_role("heading", name=f"{shown:,} shown").wait_for()
    expect(page.locator("option[value=umap]")).to_be_enabled(enabled=find_spec("umap") is not None)
    slider = page.get_by_role("slider", name="Layer")
    before = page.locator("p.note").first.inner_text()
    slider.press("ArrowRight")
    expect(page.locator("p.note").first).not_to_have_text(before)
    loaded(page)
    assert values(page)["layer"] == "2"
    expect(noun).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name=re.compile("^Show row 2 on")).click()
    page.locator(".map-box .found").wait_for()
    assert values(page)["row"] == "2"


def test_clusters_keep_the_colour_of_most_of_their_rows_at_another_layer(view: Opened, stores: list[Path]) -> None:
    page, store, before = view(view="map", word="bank", layer=1), es.open(stores[0]), None
    for layer in (1, 2, 3):
        clusters = es.senses(store, "bank", layers=layer).occurrences.sort("occurrence")["cluster"].to_numpy() - 1
        becomes(page, page.locator(".legend li").count, int(clusters.max()) + 1)
        swatches = page.locator(".legend circle").evaluate_all("dots => dots.map(dot => dot.style.fill)")
        assert len({*swatches}) == len(swatches)
        colours = np.array(swatches)[clusters]
        if before is not None:
            most = max((clusters == one)[before == colour].sum() for one in {*clusters} for colour in {*before})
            assert (colours == before).sum() >= most > 0
        before = colours
        page.get_by_role("slider", name="Layer").press("ArrowRight")
        loaded(page)


def test_the_keyboard_moves_the_map_and_it_is_saved(view: Opened, stores: list[Path]) -> None:
    page = view(view="map", layer=2, row=3)
    found = es.analysis.project(es.open(stores[0]), layers=2)
    point = placed(found.points)[found.rows == 3][0]
    circle, box = page.locator(".map-box .found"), page.locator(".map-box").bounding_box()
    at = place(point, box["width"], box["height"])[0]
    becomes(page, lambda: float(circle.get_attribute("cx")), pytest.approx(at, abs=0.1))
    page.locator(".map-box").press("ArrowRight")
    becomes(page, lambda: float(circle.get_attribute("cx")), pytest.approx(at - 60, abs=0.1))
    with page.expect_download() as picture:
        page.get_by_role("button", name="PNG").first.click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as table:
        page.get_by_role("link", name="CSV").last.click()
    with Path(table.value.path()).open(newline="") as file:
        assert {"row", "x", "y"} <= set(next(csv.reader(file)))


def test_without_webgl_the_table_remains(browser: Any, address: str) -> None:
    context = browser.new_context()
    context.add_init_script(
        "const get = HTMLCanvasElement.prototype.getContext;"
        "HTMLCanvasElement.prototype.getContext = function (kind, ...more) {"
        "  return kind === 'webgl2' ? null : get.call(this, kind, ...more); };"
    )
    page = new_page(context)
    page.goto(f"{address}&view=map")
    page.get_by_role("alert").get_by_text("no WebGL 2").wait_for()
    page.locator("td.word").first.wait_for()
    context.close()


def last_cell(width: float, height: float) -> tuple[float, float]:
    return width - 4, height - 4


def test_a_sentence_shows_its_words_and_their_similarity(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    number = next(place for place, text in enumerate(store.index.text) if HOSTILE in text)
    page = view(view="sentence", sentence=number, layer=2)
    words = store.index.text.words(number)
    expect(page.locator(".sentence-text a")).to_have_text(words)
    expect(page.locator(".sentence-text rt").nth(2)).to_have_text("NOUN")
    said = page.locator(".matrix .note").get_by_text(f"{words[-1]} × {words[-1]}: 1.000")
    pointed(page.locator(".matrix canvas"), last_cell, said)
    box = page.locator(".matrix canvas").bounding_box()
    page.get_by_role("button", name="Next", exact=True).press("Enter")
    becomes(page, lambda: values(page)["sentence"], str(number + 1))
    loaded(page)  # another matrix lies under the pointer, which rests
    shown = page.locator(".matrix .note").inner_text()
    assert "×" in shown
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] - 4)
    expect(page.locator(".matrix .note")).to_have_text(shown)


@pytest.mark.parametrize("block", [1, 2])
def test_attention_is_that_of_the_model(view: Opened, stores: list[Path], block: int) -> None:
    store = es.open(stores[0])
    page = view(view="sentence", sentence=1, layer=block)
    page.get_by_role("button", name="Load the model").click()
    page.locator(".heads button").first.wait_for()
    loaded(page)
    model = stores[0].parent / str(store.metadata.model["name"])
    found = es.analysis.sentence_attention(store.index.text[1], model=model, layers=[block])
    expect(page.locator(".heads button")).to_have_count(len(found.heads))
    page.get_by_role("button", name="Head 1").click()
    page.get_by_role("heading", name="Head 1 of block").wait_for()
    said = page.locator(".matrix .note").last.get_by_text(f"{found.values[0, 1, -1, -1]:.3f}")
    pointed(page.locator(".matrix canvas").last, last_cell, said)


def test_subwords_of_bytes_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    model = tiny.save("gpt2", tmp_path / "model")
    es.extract(es.plan([Document("a bank on the café")], model=model), tmp_path / "a.zarr")
    assert es.analysis.sentence_attention("the café", model=model, layers=[1]).subwords[-1] == "fÃ©"
    options = es.ExtractionOptions(unit="subword")
    es.extract(es.plan([Document("a bank on the bank. " * 9)], model=model, options=options), tmp_path / "b.zarr")
    with served(tmp_path / "a.zarr", tmp_path / "b.zarr", XDG_CACHE_HOME=str(tmp_path)) as address:
        view = Opened(browser, address)
        assert not re.search("Ġ|^$", view(view="map", store=1, layer=0).locator(".legend").inner_text())
        page = view(view="sentence", layer=1)
        page.get_by_role("button", name="Load the model").click()
        page.get_by_role("button", name="Head 0").wait_for()
        loaded(page)
        said = page.locator(".matrix .note").last.get_by_text(re.compile("fé × fé: "))
        pointed(page.locator(".matrix canvas").last, last_cell, said)
        view.close()


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


def test_many_points_are_seen_and_selected_in_each_layer(many: Opened, store: es.Store) -> None:
    outline = "-1.5,-1.5;-1.5,1.5;0.2,1.5;0.2,-1.5"
    for layer in store.layers:
        page = many(view="map", layer=layer, sample=1_000_000, color="word", lasso=outline)
        expect(page.get_by_text(f"{N_ROWS:,} of {N_ROWS:,} occurrences")).to_be_visible()
        found = es.analysis.project(store, layers=layer, sample=None)
        points = placed(found.points, 3)
        inside = (points[:, 0] < 0.2) & (np.abs(points) < 1.5).all(1)
        expect(page.locator(".map-box")).to_have_attribute("aria-label", re.compile(f"Map of {N_ROWS} points"))
        expect(page.get_by_role("heading", name=re.compile(f"^{inside.sum() // 1000},")).first).to_be_visible()
        assert drawn(page) > 1000


def test_few_points_of_many_are_drawn_one_by_one_from_near(many: Opened, store: es.Store) -> None:
    page = many(view="map", layer=0, sample=1_000_000, color="none", row=5)
    expect(page.get_by_text(f"{N_ROWS:,} of {N_ROWS:,} occurrences")).to_be_visible()
    whole = drawn(page)
    for _ in range(14):
        page.locator(".map-box").press("+")
    drawn(page, whole)
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.locator(".map-box .found")).to_have_count(1)
