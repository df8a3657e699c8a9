"""The explorer in a browser: what it shows is what the library says, and its address restores it."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.etree import ElementTree

import pytest

import embstore as es
from tests.explorer import conftest
from tests.explorer.conftest import EMOJI, HOSTILE, LONG, RIGHT_TO_LEFT, Opened, becomes, loaded, pointed, served

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect
pytestmark = pytest.mark.slow
VIEWS = ("word", "map", "neighbors", "layers", "sentence", "compare")


def values(page: Any) -> dict[str, str]:
    """What the address says now; `page.url` hears of it later."""
    return {name: texts[0] for name, texts in parse_qs(page.evaluate("location.search")[1:]).items()}


def shows(page: Any, wanted: list[tuple[str, str, str]]) -> None:
    """Wait until the concordance has these lines: left, word and right of each."""
    loaded(page)
    read = "rows => rows.map(row => [...row.querySelectorAll('.left, .word, .right')].map(td => td.innerText.trim()))"
    becomes(page, lambda: page.locator(".view-word tbody tr").evaluate_all(read), [list(line) for line in wanted])


def expected(store: es.Store, **chosen: Any) -> list[tuple[str, str, str]]:
    return [tuple(part.strip() for part in line) for line in store.select(**chosen).concordance()]


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_accessible(view: Opened, name: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    page = view(view=name, word="bank", row=2, sentence=1)
    expect(page.locator(".state.error")).to_have_count(0)
    expect(page.locator("nav a[aria-current=page]")).to_have_count(1)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        found = axe.run(page).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == [], theme


def test_a_word_is_searched_filtered_sorted_and_shared(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    page = view(view="word")
    box = page.get_by_role("combobox", name="Word")
    box.press_sequentially("ban")
    page.get_by_role("option", name=re.compile("^bank ")).wait_for()
    loaded(page)  # the words that begin with b, ba and ban came one after the other
    box.press("ArrowDown")
    expect(page.get_by_role("listbox").get_by_role("option", selected=True)).to_have_count(1)
    box.press("Enter")
    page.get_by_role("heading", name="bank").wait_for()
    assert values(page)["word"] == "bank"
    expect(page.get_by_role("listbox")).to_be_hidden()
    shows(page, expected(store, words="bank")[:50])
    page.get_by_role("button", name="Next page").click()
    page.get_by_text(re.compile("^51–")).wait_for()
    shows(page, expected(store, words="bank")[50:100])
    where = page.get_by_role("textbox", name="Where")
    where.fill("sentence < 20 AND upos = 'NOUN'")
    where.press("Enter")
    page.get_by_text(re.compile("^1–1. of 1.$")).wait_for()
    page.get_by_role("button", name="Right").click()
    page.locator("th[aria-sort=ascending]").wait_for()
    chosen = expected(store, words="bank", where="sentence < 20")
    by_right = sorted(chosen, key=lambda line: line[2].casefold().split())
    shows(page, by_right)
    shared = view(**{name: value for name, value in values(page).items() if name != "token"})
    shows(shared, by_right)
    expect(shared.get_by_role("textbox", name="Where")).to_have_value("sentence < 20 AND upos = 'NOUN'")
    page.go_back()
    page.locator("th[aria-sort]").wait_for(state="detached")
    shows(page, chosen)


def test_the_menu_writes_conditions_and_an_address_is_one_entry_of_the_history(view: Opened) -> None:
    page = view(view="word", word="bank")
    menu, where = page.get_by_label("Add a condition on a label"), page.get_by_role("textbox", name="Where")
    for label, condition in (("it's", "upos = 'it''s'"), ("NOUN", "upos = 'it''s' AND upos = 'NOUN'")):
        menu.select_option(label=label)
        expect(where).to_have_value(condition)
        becomes(page, lambda condition=condition: values(page).get("where"), condition)
    entries = page.evaluate("history.length")
    where.press("Enter")
    where.fill("sentence < 20")
    where.press("Escape")
    expect(where).to_have_value("upos = 'it''s' AND upos = 'NOUN'")
    assert page.evaluate("history.length") == entries
    page.get_by_text("Clear", exact=True).click()
    becomes(page, lambda: values(page).get("where"), None)


def test_senses_choose_lines(view: Opened) -> None:
    page = view(view="word", word="bank", layer=1)
    sense = page.locator(".senses li button").first
    count = int(sense.locator(".number").inner_text().split(" ")[0])
    sense.click()
    page.locator(".senses button[aria-pressed=true]").wait_for()
    expect(page.locator(".pager .numbers")).to_have_text(re.compile(f"of {count}$"))
    becomes(page, lambda: {*page.locator("td.sense").all_inner_texts()}, {sense.locator(".code").inner_text()})
    assert values(page)["sense"] == "0"
    expect(page.locator("h2 .tag")).to_have_text("cluster 1")
    page.get_by_role("link", name="Sentence", exact=True).click()
    expect(page.locator(".sentence-text a.chosen").first).to_have_text("bank")


def test_neighbors_of_a_word_an_occurrence_and_a_typed_sentence(view: Opened, stores: list[Path]) -> None:
    store = es.open(stores[0])
    page = view(view="word", word="river")
    page.get_by_role("link", name=re.compile("^Neighbours of row")).nth(2).click()
    page.locator(".neighbors li").first.wait_for()
    loaded(page)
    row = int(values(page)["row"])
    assert row == store.select(words="river").rows[2]
    columns = page.locator(".columns section")
    expect(columns).to_have_count(3)
    for layer, column in zip((0, 2, 3), columns.all(), strict=True):
        expect(column.locator("select")).to_have_value(str(layer))
        found = es.neighbors(store, store.select(rows=[row]), layers=layer, k=10)
        expect(column.locator(".neighbors .number")).to_have_count(10)
        shown = [float(each) for each in column.locator(".neighbors .number").all_inner_texts()]
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
    expect(page.get_by_role("img", name=re.compile("by layer$"))).to_have_count(4)
    similarity = page.get_by_role("img", name="Similarity by layer")
    expected = es.geometry(first, metrics="selfsim").filter(layer=0, item="")["value"][0]
    dot = similarity.locator("[data-mark=dot] circle").first
    pointed(dot, lambda width, height: (width / 2, height / 2), similarity.get_by_text(f"layer 0: {expected:.4f}"))

    page.get_by_role("combobox", name="with").select_option("1")
    page.get_by_text("layer of second").first.wait_for()
    loaded(page)
    assert values(page)["other"] == "1"
    matrix = page.get_by_role("img", name="Linear CKA between layers")
    cka = es.analysis.linear_cka(first, second)["value"].to_list()
    assert len(set(cka)) == len(cka), "all differ: a transposed matrix would fail"
    expect(matrix.locator("[data-mark=cell] rect")).to_have_count(len(first.layers) * len(second.layers))
    placed = "texts => texts.map(text => [text.getBoundingClientRect(), text.textContent]).map(([at, text]) => "
    placed += "[-Math.round(at.y + at.height / 2), at.x + at.width / 2, Number(text)])"
    shown = sorted(matrix.locator("[data-mark=text] text").evaluate_all(placed))  # from below, then from the left
    assert [value for _, _, value in shown] == pytest.approx(cka, abs=0.0051)


def test_two_stores_are_compared(view: Opened) -> None:
    page = view(view="compare", word="bank", of="neighbors")
    left, right = page.get_by_role("region", name="Left"), page.get_by_role("region", name="Right")
    expect(left.get_by_role("combobox", name="Store")).to_have_value("0")
    expect(right.get_by_role("combobox", name="Store")).to_have_value("1")
    found = [side.locator(".neighbors .number") for side in (left, right)]
    for each in found:
        expect(each).to_have_count(30)
    assert found[0].all_inner_texts() != found[1].all_inner_texts()
    box = right.get_by_role("combobox", name="Of")
    box.fill("river")
    box.press("Enter")
    left.locator(".quote mark", has_text="river").wait_for()
    right.get_by_role("combobox", name="Store").select_option("0")
    becomes(page, lambda: values(page).get("store2"), "0")
    loaded(page)
    becomes(page, found[0].all_inner_texts, found[1].all_inner_texts())


def test_an_empty_view_shows_an_example_and_others_to_choose(view: Opened, stores: list[Path]) -> None:
    page = view(view="neighbors")
    expect(page.locator(".examples a")).to_have_count(3)
    example = page.locator(".quote mark").inner_text()
    shown = page.locator(".neighbors .strong")
    assert example not in {text.casefold() for text in shown.all_inner_texts()}
    page.get_by_label("Other words").uncheck()
    page.locator(".neighbors .strong", has_text=re.compile(f"^{example}$")).first.wait_for()
    page.locator(".examples a").first.click()
    becomes(page, lambda: values(page).get("word"), example)
    page = view(view="sentence", label="-")
    page.get_by_role("searchbox").fill("RIVER   bank 7")
    page.get_by_role("button", name="Search").click()
    page.locator(".found-sentences a").click()
    becomes(page, page.locator(".sentence-text").inner_text, "the river bank 7 is old")


def test_one_store_is_compared_at_two_layers_and_opened_again_where_it_is_replaced(
    browser: Any, stores: list[Path], tmp_path: Path
) -> None:
    store = Path(shutil.copytree(stores[0], tmp_path / "one" / "s.zarr"))
    with served(store, XDG_CACHE_HOME=str(tmp_path / "cache")) as address:
        view = Opened(browser, address)
        page = view(view="compare", of="neighbors", word="bank")
        layers = [each.input_value() for each in page.locator(".columns select").all()]
        assert layers == ["1", "3"]
        page = view(view="neighbors", width=390, row=5)
        shutil.rmtree(store)
        es.export(es.open(stores[1]).select(layers=2), store)
        page.get_by_label("Other words").check()
        page.get_by_role("button", name="Open again").click()
        expect(page.locator(".neighbors li").first).to_be_visible()
        assert "row" not in values(page)
        page = view(view="layers")  # one layer: nothing to compare or to choose
        expect(page.get_by_role("img", name=re.compile("layer"))).to_have_count(4)
        expect(view(view="map").get_by_role("slider")).to_have_count(0)
        view.complaints[:] = [each for each in view.complaints if "Failed to load resource" not in each]
        view.close()


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
    becomes(page, lambda: page.evaluate("navigator.clipboard.readText()").startswith("import embstore"), True)
    assert len(conftest.called(page.evaluate("navigator.clipboard.readText()"))) == len(table)


def test_hostile_words_are_text(view: Opened) -> None:
    for word in (HOSTILE, RIGHT_TO_LEFT, EMOJI):
        page = view(view="word", word=word)
        expect(page.locator("td.word")).to_have_text([word])
        expect(page.locator("main img")).to_have_count(0)
        page.locator("td.word a").click()
        expect(page.locator(".sentence-text")).to_contain_text(word)
        loaded(page)
    page = view(view="word", word="w96")
    page.locator("td.word a").first.click()
    page.locator(".view-sentence").wait_for()
    expect(page.locator(".sentence-text a")).to_have_count(LONG)


def test_text_is_shown_as_it_was_written(view: Opened, stores: list[Path]) -> None:
    number = next(place for place, text in enumerate(es.open(stores[0]).index.text) if text == conftest.WRITTEN)
    page = view(view="sentence", sentence=number)
    page.get_by_label("Label").select_option("none")
    assert page.locator(".sentence-text").inner_text() == conftest.WRITTEN
    page = view(view="word", where=f"sentence = {number} AND word = 'mat'")
    assert page.locator("td.left bdi").text_content() == conftest.WRITTEN.partition("mat")[0].replace("\n", "↵")
    assert page.locator("td.left").evaluate("cell => getComputedStyle(cell).whiteSpace") == "pre"
    expect(page.locator("td.word")).to_have_text("mat")


def test_errors_say_one_line_and_can_be_tried_again(view: Opened) -> None:
    page = view(view="word", where="nonsense ((")
    error = page.get_by_role("alert")
    expect(error).to_contain_text("nonsense")
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
    view.complaints[:] = [each for each in view.complaints if "Failed to load resource" not in each]


def test_a_word_that_no_text_has_is_said_once_with_words_to_choose(view: Opened) -> None:
    page = view(view="word", word="bankk")
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'bank'")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    page.get_by_role("complementary", name="Frequent words").get_by_role("link", name="bank", exact=True).wait_for()
    expect(view(view="sentence", word="bankk").get_by_role("searchbox")).to_be_visible()
    page.get_by_role("alert").get_by_role("link", name="bank", exact=True).click()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("complementary", name="The word").wait_for()
    view.complaints[:] = [each for each in view.complaints if "Failed to load resource" not in each]


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_a_model_that_is_missing_is_named_in_the_page(
    browser: Any, stores: list[Path], tmp_path: Path, theme: str, width: int
) -> None:
    """Where a sentence is typed and where attention is shown, until it is the right one."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    store = Path(shutil.copytree(stores[0], tmp_path / "alone" / "first.zarr"))
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "EMBSTORE_CACHE": str(tmp_path / "cache")}
    with served(store, EMBSTORE_MODEL="", **places) as address:
        view = Opened(browser, address)
        page = view(theme=theme, width=width, view="sentence")
        expect(page.get_by_role("region", name="Attention")).to_contain_text("is not found")
        expect(page.get_by_role("textbox", name="Model")).to_be_visible()
        page = view(theme=theme, width=width, view="neighbors", text="the [bank] is old")
        expect(page.get_by_role("alert")).to_contain_text("--model")
        found = axe.run(page).response["violations"]
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing is wider than the page"
        box = page.get_by_role("textbox", name="Model")
        box.fill(str(stores[0].parent / "model-second"))
        box.press("Enter")
        expect(page.locator(".model-form .warn")).to_contain_text("model-second has other weights than the model")
        box.fill(str(stores[0].parent / "model-first"))
        page.get_by_role("button", name="Use it").click()
        page.locator(".quote mark", has_text="bank").wait_for()
        expect(page.get_by_role("alert")).to_have_count(0)
        page.get_by_role("link", name="Sentence", exact=True).click()
        page.get_by_role("button", name="Load the model").click()
        expect(page.get_by_role("region", name="Attention", exact=True)).to_contain_text("Head 0 of block")
        view.complaints[:] = [each for each in view.complaints if "Failed to load resource" not in each]
        view.close()


def test_the_keyboard_reaches_the_view_first(view: Opened) -> None:
    page = view(view="word")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the view")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
