"""A static folder on a plain web host answers as the server does, read by ranges in a real browser."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import embstore as es
from embstore.analysis.projection import components
from embstore.errors import InvalidValueError, StorageError
from embstore.explorer import Arrays, answer, explored, write_static
from embstore.explorer import static as module
from embstore.explorer.queries.words import described
from tests.explorer.conftest import loaded, new_page
from tests.store.example import example
from tests.store_making import make_store, make_text_store
from tests.web_host import WebHost, web_host

SAMPLED = 600


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebHost, es.Store]]:
    folder = tmp_path_factory.mktemp("static")
    (folder / "data").mkdir()
    store = make_store(folder / "data" / "s.zarr", sentences=400).store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 2)
        patch.setattr(module, "BLOCK", 100)
        patch.setattr(module, "SAMPLE", SAMPLED)
        patch.setattr(module, "SHOWN", 10)
        patch.setattr(module, "SENSE_SHARE", 1.0)
        write_static([store], folder / "site")
    with web_host(folder) as host:
        yield host, store


@pytest.fixture(scope="module")
def page(browser: Any, served: tuple[WebHost, es.Store]) -> Iterator[Any]:
    page = new_page(browser.new_context())
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{served[0].url}/site/?view=word&word=bank&layer=2")
    loaded(page)  # from here on it asks only what tests ask
    yield page
    assert not problems
    page.context.close()


def ask(page: Any, name: str, **params: Any) -> Any:
    """Ask the page's source; arrays come as lists."""
    script = """async ([name, params]) => {
        const answer = await embstore.query(name, params);
        if (!answer.arrays) return answer;
        const lists = Object.entries(answer.arrays).map(([key, each]) => [key, Array.from(each.values)]);
        return { ...answer.meta, ...Object.fromEntries(lists) };
    }"""
    return page.evaluate(script, [name, params])


QUERIES: list[tuple[str, dict[str, Any]]] = [
    ("complete", {"prefix": ""}),
    ("complete", {"prefix": "SU"}),
    ("complete", {"prefix": "é", "limit": 1}),
    ("complete", {"prefix": "zebra"}),
    ("occurrences", {"word": "bank", "limit": 1000}),
    ("occurrences", {"word": "new york", "offset": 7, "limit": 9, "descending": True}),
    ("occurrences", {"word": "évident", "sort": "right", "limit": 500}),
    ("occurrences", {"word": "the", "sort": "upos", "descending": True, "offset": 3}),
    ("occurrences", {"word": "suit", "sort": "position"}),
    ("occurrences", {"offset": 255, "limit": 4}),
    ("occurrences", {"rows": "7,300-302"}),
    ("occurrences", {"word": "bank", "where": "upos = 'NOUN' AND position >= 2", "limit": 20, "offset": 4}),
    ("occurrences", {"word": "bank", "where": "\"upos\" <> 'X'", "sort": "left"}),
    ("occurrences", {"rows": "0-90", "where": "position <= 2"}),
    ("occurrences", {"word": "bank", "where": "upos <> 'it''s'"}),
    ("sentence", {"sentence": 3}),
    ("sentence", {"row": 77}),
    ("sentence", {}),
    ("senses", {"word": "bank", "layer": 2}),
    ("stores", {}),
    ("geometry", {"store": 0}),
    ("cka", {"store": 0}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params"), QUERIES, ids=str)
def test_answers_are_those_of_the_server(
    page: Any, served: tuple[WebHost, es.Store], name: str, params: dict[str, Any]
) -> None:
    expected = json.loads(json.dumps(answer(explored([served[1]]), name, params)))
    path = str(served[1].path)
    expected = json.loads(json.dumps(expected).replace(path, "s.zarr"))
    found = ask(page, name, **params)
    if name == "occurrences":
        assert len(found["rows"]) > 0
    if name == "sentence":  # a static page loads no model
        expected["attention"] = False
    assert found == expected


@pytest.mark.slow
def test_self_similarity_is_computed_in_the_browser(page: Any, served: tuple[WebHost, es.Store]) -> None:
    expected = answer(explored([served[1]]), "word", {"word": "bank"})
    found = ask(page, "word", word="bank")
    np.testing.assert_allclose(found.pop("selfsimilarity"), expected.pop("selfsimilarity"), atol=1e-9)
    assert found.pop("python") == expected.pop("python").replace(str(served[1].path), "s.zarr")
    np.testing.assert_allclose(found.pop("anisotropy"), expected.pop("anisotropy"), rtol=1e-12)
    assert found == expected


@pytest.mark.slow
def test_rows_are_mapped_in_the_browser_in_step_with_the_layer_before(
    page: Any, served: tuple[WebHost, es.Store]
) -> None:
    store = served[1]
    rows = store.select(words="river").rows
    listed = ",".join(map(str, rows.tolist()))
    shown = {layer: ask(page, "map", rows=listed, layer=layer, color="upos") for layer in store.layers}
    codes = store.index.labels["upos"].codes[rows]
    before = None
    for layer, found in shown.items():
        points = np.array([found["x"], found["y"]]).T
        assert found["row"] == rows.tolist()
        expected = answer(explored([store]), "map", {"word": "river", "layer": layer})
        assert isinstance(expected, Arrays)
        exact = np.array([expected.arrays["x"], expected.arrays["y"]], np.float64).T
        np.testing.assert_allclose(_distances(points), _distances(exact), atol=1e-3)
        assert sum(found["explained"]) == pytest.approx(sum(expected.data["explained"]), abs=1e-5)
        names = [found["colors"][code] if code >= 0 else None for code in found["color"]]
        assert names == [store.index.labels["upos"].names[code] if code >= 0 else None for code in codes.tolist()]
        if before is not None:
            product = points.T @ before  # symmetric and positive after the best turn
            np.testing.assert_allclose(product, product.T, rtol=1e-3, atol=1e-2)
            assert np.linalg.eigvalsh((product + product.T) / 2)[0] > -1e-2  # by a turn or a mirror
        before = points


@pytest.mark.slow
def test_a_frequent_word_is_mapped_from_one_range(page: Any, served: tuple[WebHost, es.Store]) -> None:
    store, requests = served[1], served[0].requests
    word = max(store.index.words, key=lambda each: len(store.select(words=each).rows))
    rows = store.select(words=word).rows
    assert len(rows) > 128
    for layer in store.layers:  # six features: the first principal components are all of them
        before = len(requests)
        found = ask(page, "map", word=word, layer=layer)
        asked = [path for path, _ in requests[before:] if "words/" not in path]
        assert sorted(asked) == ["/data/s.zarr/types/occurrences/c/0", f"/site/maps/0/{layer}"]
        expected = answer(explored([store]), "map", {"word": word, "layer": layer})
        assert isinstance(expected, Arrays)
        points, exact = (np.array([each["x"], each["y"]], np.float64).T for each in (found, expected.arrays))
        np.testing.assert_allclose(_distances(points), _distances(exact), atol=1e-2)
        assert found["row"] == rows.tolist()
        assert found["explained"] is None
        assert "16 principal components" in found["note"]


def test_components_are_those_of_a_singular_value_decomposition(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr").store
    for count in (3, 8):  # of six features
        found = np.full((store.n_rows, count), np.nan, np.float16)
        components(store, 2, found)
        vectors = np.asarray(store.gather(np.arange(store.n_rows), 2), np.float64)
        vectors -= vectors.mean(0)
        left, scale, _ = np.linalg.svd(vectors, full_matrices=False)
        expected = (left * scale)[:, :count]
        signs = np.sign((expected * found[:, :6]).sum(0))
        np.testing.assert_allclose(found[:, :6] * signs, expected, atol=2e-2)
        assert not found[:, 6:].any()


@pytest.mark.parametrize("maps", [None, False])
def test_maps_of_words_are_written_where_they_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maps: bool | None
) -> None:
    monkeypatch.setattr(module, "_write_answers", lambda *_: {})
    store = make_store(tmp_path / "s.zarr", sentences=30).store
    for limit in (module.maps_nbytes(store), module.maps_nbytes(store) + 1):
        monkeypatch.setattr(module, "MAPS_NBYTES", limit)
        monkeypatch.setattr(module, "LINES", 7)
        out = write_static([store], tmp_path / f"{limit}", maps=maps)
        sizes = [file.stat().st_size for file in out.glob("maps/0/[0-9]*")]
        lines = (out / "words" / "0" / "lines").read_text("utf-8")
        assert lines.count('"row":') == np.minimum(np.diff(store.occurrences[0]), module.LINES).sum() < store.n_rows
        assert sum(sizes) == (limit - 1 if maps is None and limit > module.maps_nbytes(store) else 0)


@pytest.mark.parametrize("large", [True, False])
def test_larger_maps_are_written_with_the_maps_of_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    shown = explored([make_store(tmp_path / "s.zarr", sentences=30).store])
    assert not [params for _, params in module._calls(shown, True) if "sample" in params]
    monkeypatch.setattr(module, "SHOWN", 10)
    assert any("sample" in params for _, params in module._calls(shown, large)) is large


def _distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


@pytest.mark.slow
def test_the_first_page_of_a_word_is_one_range(page: Any, served: tuple[WebHost, es.Store]) -> None:
    store, requests = served[1], served[0].requests
    for word in store.index.words:
        ask(page, "complete", prefix=word)  # the words are read once
        before = len(requests)
        found = ask(page, "occurrences", word=word, limit=50)
        assert [path for path, _ in requests[before:] if "/words/0/" not in path or path.endswith("lines")] == [
            "/site/words/0/lines"
        ]
        assert found["rows"] == json.loads(json.dumps(described(store, store.select(words=word).rows[:50])))


@pytest.mark.slow
def test_a_words_labels_are_one_range(page: Any, served: tuple[WebHost, es.Store]) -> None:
    store, requests = served[1], served[0].requests
    before = len(requests)
    found = ask(page, "map", word="the", layer=2, color="upos")
    read = [path for path, _ in requests[before:]]
    assert read.count("/site/maps/0/label-upos") == 1
    assert not [path for path in read if "occurrences/labels" in path]
    expected = answer(explored([store]), "map", {"word": "the", "layer": 2, "color": "upos"})
    assert isinstance(expected, Arrays)
    names = [[*each, None] for each in (found["colors"], expected.data["colors"])]
    codes = (found["color"], expected.arrays["color"].tolist())
    assert [names[0][code] for code in codes[0]] == [names[1][code] for code in codes[1]]
    counts = np.bincount([code for code in found["color"] if code >= 0])
    assert len(counts) > 1
    assert (np.diff(counts) <= 0).all(), "the most frequent label has the first colour"


@pytest.mark.slow
def test_a_larger_sample_has_a_map_of_its_own(page: Any, served: tuple[WebHost, es.Store]) -> None:
    requests, answers = served[0].requests, []
    for sample in (100_000, 100_001):
        ask(page, "map", layer=2, color="upos", sample=sample, parts="all", method="pca")
        answers.append(requests[-1][0].removeprefix("/site/"))
    held = json.loads((served[1].path.parent.parent / "site" / "static.json").read_text())["answers"]
    wanted = ["map?color=upos&layer=2&store=0", "map?color=upos&layer=2&sample=1000000&store=0"]
    assert answers == [held[key] for key in wanted]
    assert answers[0] != answers[1]


@pytest.mark.slow
def test_from_near_the_map_has_more_points(page: Any, served: tuple[WebHost, es.Store]) -> None:
    from playwright.sync_api import expect

    near = page.context.new_page()
    near.goto(f"{served[0].url}/site/?view=map&layer=2")
    near.locator(".map-split .note").first.wait_for()
    for _ in range(3):
        near.locator(".map-box").press("+")
    assert "sample" not in near.url
    near.locator(".map-box").press("+")
    near.locator(".map-box").press("+")
    expect(near).to_have_url(re.compile("sample=1000000"))
    expect(near.locator(".map-split .note").first).to_contain_text(f"{served[1].n_rows:,} of {served[1].n_rows:,}")
    near.close()


AT_ONCE = """new MutationObserver((_, own) => {
  const map = document.querySelector(".map-box");
  if (!map) return;
  own.disconnect();
  for (let i = 0; i < 5; i++) map.dispatchEvent(new KeyboardEvent("keydown", {key: "+", bubbles: true}));
}).observe(document, {childList: true, subtree: true});"""


@pytest.mark.slow
def test_keys_count_from_when_the_map_is_there(page: Any, served: tuple[WebHost, es.Store]) -> None:
    from playwright.sync_api import expect

    early = page.context.new_page()
    early.add_init_script(AT_ONCE)
    early.goto(f"{served[0].url}/site/?view=map&layer=2")
    early.locator(".map-split .note").first.wait_for()
    expect(early).to_have_url(re.compile("sample=1000000"))
    early.close()


@pytest.mark.slow
def test_the_similarity_of_a_sentence_is_computed_in_the_browser(page: Any, served: tuple[WebHost, es.Store]) -> None:
    sentence = int(np.argmax(np.diff(served[1].index.indptr)))
    expected = answer(explored([served[1]]), "similarity", {"sentence": sentence, "layer": 5})
    found = ask(page, "similarity", sentence=sentence, layer=5)
    assert isinstance(expected, Arrays)
    np.testing.assert_allclose(found["values"], expected.arrays["values"].ravel(), atol=1e-6)
    assert (found["words"], found["positions"]) == (expected.data["words"], expected.data["positions"])


@pytest.mark.slow
@pytest.mark.parametrize("query", [{"row": 40}, {"word": "river"}])
def test_neighbours_are_the_nearest_of_a_sample_and_it_is_said(
    page: Any, served: tuple[WebHost, es.Store], query: dict[str, Any]
) -> None:
    store = served[1]
    sample = np.fromfile(store.path.parent.parent / "site" / "sample" / "0" / "rows", "<i8")
    assert len(sample) == SAMPLED < store.n_rows
    found = ask(page, "neighbors", k=5, layers="2,5", **query)
    rows = np.array([query["row"]]) if "row" in query else store.select(words=query["word"]).rows
    rows = rows[np.arange(min(128, len(rows))) * len(rows) // min(128, len(rows))]
    for each in found["layers"]:
        mean = np.asarray(store.gather(rows, each["layer"]), np.float64).mean(0)
        vectors = np.asarray(store.gather(sample, each["layer"]), np.float64)
        cosines = vectors @ mean / np.linalg.norm(vectors, axis=1) / np.linalg.norm(mean)
        cosines[sample == query.get("row")] = -1
        own = [cosines[np.flatnonzero(sample == line["row"])[0]] for line in each["neighbors"]]
        np.testing.assert_allclose([line["similarity"] for line in each["neighbors"]], own, atol=0.01)
        np.testing.assert_allclose(own, np.sort(cosines)[::-1][:5], atol=0.02)
    assert f"compares with {SAMPLED} occurrences drawn evenly" in found["note"]


@pytest.mark.slow
def test_what_a_static_page_cannot_answer_is_said(page: Any) -> None:
    for name, params, message in (
        ("neighbors", {"text": "the [bank]"}, "cannot encode"),
        ("neighbors", {"row": 3, "where": "upos = 'X'"}, "without a condition"),
        ("occurrences", {"where": "upos = 'X'"}, "choose a word"),
        ("occurrences", {"word": "bank", "where": "upos IN ('X')"}, "reads conditions such as"),
        ("occurrences", {"word": "bank", "where": "upos = 'X' AND"}, "reads conditions such as"),
        ("occurrences", {"word": "bank", "where": "year = '3'"}, "there is no 'year'"),
        ("occurrences", {"word": "zebra"}, "no word 'zebra'"),
        ("senses", {"word": "bank", "layer": 0}, "were computed at layers 2 and 5 of"),
    ):
        found = page.evaluate(
            "([name, params]) => embstore.query(name, params).then(() => null, (error) => error.message)",
            [name, params],
        )
        assert message in found
    assert page.evaluate("embstore.has('attention')") is False
    assert page.evaluate("embstore.has('senses', { word: 'bank' })") is True
    assert page.evaluate("embstore.has('senses', { word: 'zebra' })") is False


@pytest.mark.slow
def test_the_page_shows_a_shared_word_and_reads_only_ranges_of_the_store(
    page: Any, served: tuple[WebHost, es.Store]
) -> None:
    page.get_by_text("bank", exact=True).first.wait_for()
    sizes = {path: nbytes for path, nbytes in served[0].requests if "/data/" in path}
    assert sizes
    assert max(sizes.values()) < 64 * 1024
    assert not [path for path, _ in served[0].requests if "/data/" in path and path.endswith(".json")]


@pytest.mark.slow
def test_the_folder_names_no_folder_of_this_machine(served: tuple[WebHost, es.Store]) -> None:
    store = served[1]
    site = store.path.parent.parent / "site"
    for file in site.rglob("*.json"):
        assert str(store.path.parent) not in file.read_text("utf-8")
    assert json.loads((site / "static.json").read_text())["stores"][0]["url"] == "../data/s.zarr"
    assert "connect-src 'self';" in (site / "index.html").read_text("utf-8")


@pytest.mark.slow
def test_addresses_of_several_stores(tmp_path: Path) -> None:
    for name in "ab":
        make_store(tmp_path / f"{name} 1.zarr", sentences=30)
    paths = [tmp_path / f"{name} 1.zarr" for name in "ab"]
    out = write_static(paths, tmp_path / "out", store_url="https://host.example/stores/")
    held = json.loads((out / "static.json").read_text())
    urls = [each["url"] for each in held["stores"]]
    assert urls == ["https://host.example/stores/a%201.zarr", "https://host.example/stores/b%201.zarr"]
    assert "connect-src 'self' https://host.example;" in (out / "index.html").read_text("utf-8")
    assert {"map?layer=5&store=1", "cka?other=1&store=0", "geometry?store=1", "stores?"} <= set(held["answers"])


def test_a_store_of_words_that_occur_once_has_a_page(tmp_path: Path) -> None:
    store = make_text_store(tmp_path / "s.zarr", [["a", "b"], ["c", "d"]])
    held = json.loads((write_static([store], tmp_path / "out") / "static.json").read_text())
    found = answer(explored([store]), "word", {"store": 0, "word": "a"})
    corpus = held["stores"][0]["corpus"]
    assert found["corpus"] == found["selfsimilarity"] == corpus["selfsim"] == [None, None, None]
    assert found["anisotropy"] == corpus["anisotropy"] == pytest.approx([1, 1, 1])


def test_a_failure_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "s.zarr").store
    monkeypatch.setattr(module, "_describe", Mock(side_effect=OSError(errno.ENOSPC, "")))
    with pytest.raises(StorageError, match="the disk is full"):
        write_static([store], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_stores_that_a_browser_cannot_read_are_refused(tmp_path: Path) -> None:
    cases = [
        (make_store(tmp_path / "s.h5").store, "not one Zarr store"),
        (example(dtype="int8").make(tmp_path / "int8.zarr"), "vectors of int8"),
    ]
    for store, message in cases:
        with pytest.raises(InvalidValueError, match=message):
            write_static([store], tmp_path / "out")
        assert not (tmp_path / "out").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidValueError, match="exists already"):
        write_static([tmp_path / "gone.zarr"], tmp_path / "there")
