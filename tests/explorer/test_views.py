"""The explorer in a browser: what it shows is what the library says, and its address restores it."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest

import embstore as es
from tests.explorer.conftest import EMOJI, HOSTILE, LONG, RIGHT_TO_LEFT, Opened, loaded

pytestmark = pytest.mark.slow
VIEWS = ("word", "map", "neighbors", "layers", "sentence", "compare")


def values(page: Any) -> dict[str, str]:
    return {name: texts[0] for name, texts in parse_qs(urlsplit(page.url).query).items()}


def lines(page: Any) -> list[tuple[str, str, str]]:
    """The concordance: left, word and right of each line."""
    rows = page.locator(".view-word tbody tr").all()
    return [tuple(row.locator(f"td.{name}").inner_text().strip() for name in ("left", "word", "right")) for row in rows]


def expected(store: es.Store, **chosen: Any) -> list[tuple[str, str, str]]:
    return [tuple(part.strip() for part in line) for line in store.select(**chosen).concordance()]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_accessible(view: Opened, name: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    page = view(view=name, word="bank", row=2, sentence=1, theme=theme)
    assert page.locator(".state.error").count() == 0, page.locator(".state.error").first.inner_text()
    assert page.locator("nav a[aria-current=page]").count() == 1
    found = axe.run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_fits_a_window_of_200_percent(view: Opened, name: str) -> None:
    page = view(view=name, word="bank", width=640, height=360)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_word_is_searched_filtered_sorted_and_shared(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    page = view(view="word")
    box = page.get_by_role("combobox", name="Word")
    box.press_sequentially("ban")
    page.get_by_role("option", name=re.compile("^bank ")).wait_for()
    box.press("ArrowDown")
    assert page.get_by_role("listbox").get_by_role("option", selected=True).count() == 1
    box.press("Enter")
    page.get_by_role("heading", name="bank").wait_for()
    loaded(page)
    assert values(page)["word"] == "bank"
    assert page.get_by_role("listbox").is_visible() is False
    assert lines(page) == expected(store, words="bank")[:50]
    page.get_by_role("button", name="Next page").click()
    page.get_by_text(re.compile("^51–")).wait_for()
    loaded(page)
    assert lines(page) == expected(store, words="bank")[50:100]

    where = page.get_by_role("textbox", name="Where")
    where.fill("sentence < 20 AND upos = 'NOUN'")
    where.press("Enter")
    page.get_by_text(re.compile("^1–1. of 1.$")).wait_for()
    page.get_by_role("button", name="Right").click()
    page.locator("th[aria-sort=ascending]").wait_for()
    loaded(page)
    chosen = [
        line
        for line, at in zip(
            expected(store, words="bank"),
            store.select(words="bank").table(columns=["sentence"])["sentence"],
            strict=True,
        )
        if at < 20
    ]
    assert lines(page) == sorted(chosen, key=lambda line: line[2].casefold().split())
    shared = view(**{name: value for name, value in values(page).items() if name != "token"})
    assert lines(shared) == lines(page)
    assert shared.get_by_role("textbox", name="Where").input_value() == "sentence < 20 AND upos = 'NOUN'"
    page.go_back()
    page.locator("th[aria-sort]").wait_for(state="detached")
    loaded(page)
    assert lines(page) == chosen


def test_escape_closes_the_completion_and_then_restores_the_word(view: Opened) -> None:
    page = view(view="word", word="bank")
    box = page.get_by_role("combobox", name="Word")
    box.fill("riv")
    page.get_by_role("listbox").get_by_role("option").first.wait_for()
    box.press("Escape")
    assert page.get_by_role("listbox").is_visible() is False
    box.press("Escape")
    assert box.input_value() == "bank"


def test_senses_choose_lines(view: Opened) -> None:
    page = view(view="word", word="bank", layer=1)
    sense = page.locator(".senses li button").first
    count = int(sense.locator(".number").inner_text().split(" ")[0])
    sense.click()
    page.locator(".senses button[aria-pressed=true]").wait_for()
    loaded(page)
    assert page.locator(".pager .numbers").inner_text().endswith(f"of {count}")
    assert set(page.locator("td.sense").all_inner_texts()) == {sense.locator(".code").inner_text()}
    assert values(page)["sense"] == "0"


def test_neighbors_of_a_word_an_occurrence_and_a_typed_sentence(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    page = view(view="word", word="river")
    page.get_by_role("link", name=re.compile("^Neighbours of row")).nth(2).click()
    page.locator(".neighbors li").first.wait_for()
    loaded(page)
    row = int(values(page)["row"])
    assert row == store.select(words="river").rows[2]
    columns = page.locator(".columns section").all()
    assert [int(column.locator("select").input_value()) for column in columns] == [0, 2, 3]
    for layer, column in zip((0, 2, 3), columns, strict=True):
        shown = [float(each) for each in column.locator(".neighbors .number").all_inner_texts()]
        found = es.neighbors(store, occurrence=row, layer=layer, k=10)
        assert shown == pytest.approx(found["score"].to_list(), abs=6e-4)
    box = page.get_by_role("combobox", name="Of")
    box.fill("they sat on the [bank] of the river")
    box.press("Enter")
    page.locator(".quote mark", has_text="bank").wait_for()
    loaded(page)
    assert values(page)["text"] == "they sat on the [bank] of the river"
    assert "row" not in values(page)
    page.get_by_role("region", name="Layer 0").get_by_role("combobox").select_option("2")
    page.get_by_role("region", name="Layer 2").nth(1).wait_for()
    assert values(page)["layers"] == "2,2,3"


def test_layers_show_curves_and_a_matrix(view: Opened, stores: list[Path]) -> None:
    page = view(view="layers")
    first, second = es.open(stores[0]), es.open(stores[1])
    assert page.get_by_role("img", name=re.compile("by layer$")).count() == 4
    similarity = page.get_by_role("img", name="Similarity by layer")
    similarity.locator("[data-mark=dot] circle").first.hover()
    expected = es.geometry(first, metrics="selfsim").filter(layer=0, item="")["value"][0]
    similarity.get_by_text(f"layer 0: {expected:.4f}").wait_for()

    page.get_by_role("combobox", name="with").select_option("1")
    page.get_by_text("layer of second").first.wait_for()
    loaded(page)
    assert values(page)["other"] == "1"
    matrix = page.get_by_role("img", name="Linear CKA between layers")
    cka = es.analysis.linear_cka(first, second)["value"].to_list()
    assert len(set(cka)) == len(cka), "all differ: a transposed matrix would fail"
    assert matrix.locator("[data-mark=cell] rect").count() == len(first.layers) * len(second.layers)
    placed = "texts => texts.map(text => [text.getBoundingClientRect(), text.textContent]).map(([at, text]) => "
    placed += "[-Math.round(at.y + at.height / 2), at.x + at.width / 2, Number(text)])"
    shown = sorted(matrix.locator("[data-mark=text] text").evaluate_all(placed))  # from below, then from the left
    assert [value for _, _, value in shown] == pytest.approx(cka, abs=0.0051)


def test_two_stores_are_compared(view: Opened) -> None:
    page = view(view="compare", word="bank", of="neighbors")
    left, right = page.get_by_role("region", name="Left"), page.get_by_role("region", name="Right")
    assert left.get_by_role("combobox", name="Store").input_value() == "0"
    assert right.get_by_role("combobox", name="Store").input_value() == "1"
    assert left.locator(".neighbors .number").all_inner_texts() != right.locator(".neighbors .number").all_inner_texts()
    box = right.get_by_role("combobox", name="Of")
    box.fill("river")
    box.press("Enter")
    left.locator(".quote mark", has_text="river").wait_for()
    right.get_by_role("combobox", name="Store").select_option("0")
    page.wait_for_url(re.compile("store2=0"))
    loaded(page)
    assert left.locator(".neighbors .number").all_inner_texts() == right.locator(".neighbors .number").all_inner_texts()


def test_tables_pictures_and_calls_are_saved(view: Opened, stores: list[Path]) -> None:
    page = view(view="word", word="bank")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    with page.expect_download() as started:
        page.get_by_role("region", name="Concordance").get_by_role("link", name="CSV").click()
    table = list(csv.DictReader(io.StringIO(Path(started.value.path()).read_text("utf-8"))))
    assert len(table) == len(es.open(stores[0]).select(words="bank"))
    with page.expect_download() as started:
        page.get_by_role("button", name="SVG").click()
    drawn = ElementTree.parse(started.value.path()).getroot()
    assert drawn.tag.endswith("svg")
    assert "var(" not in ElementTree.tostring(drawn, "unicode")
    with page.expect_download() as started:
        page.get_by_role("button", name="PNG").click()
    assert Path(started.value.path()).read_bytes().startswith(b"\x89PNG")
    page.get_by_role("region", name="Concordance").get_by_role("button", name="Copy").click()
    page.get_by_text("Copied").wait_for()
    called = page.evaluate("navigator.clipboard.readText()")
    found: dict[str, Any] = {}
    exec(called.rpartition("\n")[0] + "\nfound = " + called.rpartition("\n")[2], found)
    assert len(found["found"]) == len(table)


def test_hostile_words_are_text(view: Opened) -> None:
    for word in (HOSTILE, RIGHT_TO_LEFT, EMOJI):
        page = view(view="word", word=word)
        assert page.locator("td.word").all_inner_texts() == [word]
        assert page.locator("main img").count() == 0
        page.locator("td.word a").click()
        loaded(page)
        assert word in page.locator("main").inner_text()
    page = view(view="word", word="w96")
    page.locator("td.word a").first.click()
    loaded(page)
    assert values(page)["view"] == "sentence"
    assert page.locator("main").inner_text().count("w9") >= LONG // 97


def test_errors_say_one_line_and_can_be_tried_again(view: Opened) -> None:
    page = view(view="word", where="nonsense ((")
    error = page.get_by_role("alert")
    assert "nonsense" in error.inner_text()
    page.get_by_role("button", name="Try again").click()
    error.wait_for()
    page.get_by_role("button", name="Clear").click()
    page.locator("tbody tr").first.wait_for()
    page.route("**/api/occurrences*", lambda route: route.abort())
    page.get_by_role("button", name="Next page").click()
    page.get_by_text("is `embstore explore` still running?").wait_for()
    page.unroute("**/api/occurrences*")
    page.get_by_role("button", name="Try again").click()
    page.get_by_text(re.compile("^51–")).wait_for()
    assert all("Failed to load resource" in complaint for complaint in view.complaints)
    view.complaints.clear()


def test_the_theme_is_chosen_and_remembered(view: Opened) -> None:
    page = view(view="word")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Switch to dark colours").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    loaded(page)
    assert page.evaluate(ground) == dark


def test_the_keyboard_reaches_the_view_first(view: Opened) -> None:
    page = view(view="word")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the view"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
