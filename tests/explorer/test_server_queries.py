"""The answers of the explorer's queries are those of the public functions, and tables of them can be read back."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import InputError, InvalidValueError, StoreDamagedError
from embstore.store.storage.safetensors import parse
from embstore_explorer import answer, explored
from embstore_explorer import stores as explored_stores
from embstore_explorer.answers import Arrays
from embstore_explorer.queries import layers, senses, words
from embstore_explorer.queries import neighbors as neighbors_module
from embstore_explorer.queries import sentence as sentence_module
from embstore_explorer.queries.registry import CancelledQueryError, NotFoundError
from embstore_explorer.stores import Explored
from embstore_explorer.tables import as_file, table
from tests.store_making import make_store, make_text_store


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> list[Explored]:
    return explored([make_store(tmp_path_factory.mktemp("made") / "s.zarr").store])


@pytest.fixture(scope="module")
def store(one: list[Explored]) -> es.Store:
    return one[0].store


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def run(stores: list[Explored], name: str, **params: Any) -> Any:
    """Answer a query as a client sees it: all parameters are texts, and the answer is JSON."""
    return json.loads(json.dumps(answer(stores, name, {key: as_text(value) for key, value in params.items()})))


def test_stores_are_described(one: list[Explored], store: es.Store) -> None:
    (found,) = run(one, "stores")
    assert {name: found[name] for name in ("name", "layers", "dim", "rows", "types", "sentences", "finished")} == {
        "name": "s", "layers": [0, 2, 5], "dim": 6, "rows": store.n_rows, "types": 6, "sentences": 120,
        "finished": True,
    }  # fmt: skip
    assert found["labels"] == [{"name": "upos", "values": ["NOUN", "DET", "X"]}]
    assert found["can_encode"] is False, "its model is nowhere"
    assert found["umap"] is (find_spec("umap") is not None)


def test_an_unfinished_store_says_so_and_answers_from_what_is_written(tmp_path: Path) -> None:
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        made = make_store(tmp_path / "s.zarr", leave_out=(1,))
    stores = explored([made.store])
    (found,) = run(stores, "stores")
    assert not found["finished"]
    assert found["written"] < found["rows"]
    layers = run(stores, "neighbors", row=3, k=50)["layers"]
    assert all(0 <= each["row"] < 256 or each["row"] >= 512 for layer in layers for each in layer["neighbors"])


def test_stores_of_one_name_are_named_by_their_paths(tmp_path: Path, one: list[Explored]) -> None:
    other = make_store(tmp_path / "s.zarr", seed=1).store
    names = [each["name"] for each in run(explored([one[0].store, other]), "stores")]
    assert len(set(names)) == 2


def test_completion_is_by_frequency_whatever_the_case(one: list[Explored], store: es.Store, tmp_path: Path) -> None:
    counts = {word: len(store.select(words=word)) for word in store.index.words}
    ordered = sorted(counts, key=lambda word: -counts[word])
    assert [each["word"] for each in run(one, "complete")["words"]] == ordered
    assert run(one, "complete", prefix="É")["words"] == [{"word": "évident", "count": counts["évident"]}]
    assert run(one, "complete", prefix="x")["words"] == []
    assert len(run(one, "complete", limit=2)["words"]) == 2
    plain = es.store.write_arrays(
        tmp_path / "a.zarr", [["the", "Hall", "ĊĠ", "The", "ĊĠ", "Ġthe", "ĠâĢĺ"]], [np.eye(7)[None]], model="none"
    )
    found = run(explored([plain]), "complete", content=True)["words"]
    assert [each["word"] for each in found] == ["Hall", "ĊĠ", "the", "The", "Ġthe", "ĠâĢĺ"]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", ["row", "word", "sentence", "position", "upos", "left", "right"])
def test_a_concordance_is_sorted_and_paged(one: list[Explored], store: es.Store, sort: str, descending: bool) -> None:
    where = "upos = 'NOUN' or upos is null or lower(word) like 'ban%'"
    pages = [
        run(one, "occurrences", where=where, sort=sort, descending=descending, offset=offset, limit=100)
        for offset in range(0, 400, 100)
    ]
    chosen = store.select(where=where)
    assert {page["total"] for page in pages} == {len(chosen)}
    rows = [each for page in pages for each in page["rows"]]
    assert sorted(each["row"] for each in rows) == chosen.rows.tolist()

    def key(each: dict[str, Any]) -> Any:
        if sort == "upos":
            return each["labels"]["upos"]
        if sort == "left":
            return [word.casefold() for word in each["left"].split()[::-1]]
        return [word.casefold() for word in each["right"].split()] if sort == "right" else each[sort]

    known = [each for each in rows if key(each) is not None]
    assert rows[: len(known)] == known, "those without a value are last"
    by_row = sorted(known, key=lambda each: each["row"])
    assert [each["row"] for each in known] == [each["row"] for each in sorted(by_row, key=key, reverse=descending)]


def test_occurrences_are_shown_in_their_sentences(one: list[Explored], store: es.Store) -> None:
    found = run(one, "occurrences", word="new york", where="position > 2")
    table = store.select(words="new york").table().filter(pl.col("position") > 2)
    assert found["total"] == len(table) > 0
    for each, held in zip(found["rows"], table.to_dicts(), strict=False):
        assert each["left"] + each["word"] + each["right"] == held["text"]
        at = (each["row"], each["sentence"], each["position"], each["labels"]["upos"])
        assert at == (held["occurrence"], held["sentence"], held["position"], held["upos"])
    assert (found["columns"], found["same"]) == ([{"name": "upos", "kind": "label"}], {})
    nouns = run(one, "occurrences", where="upos = 'NOUN'")
    assert (nouns["columns"], nouns["same"]) == ([], {"upos": "NOUN"}), "a value that all rows have is no column"
    given = run(one, "occurrences", rows="7,3-5,4")
    assert [each["row"] for each in given["rows"]] == [3, 4, 5, 7]


def test_text_is_as_it_was_written(tmp_path: Path) -> None:
    text = "In  New\r\nYork, she\tsaid…"
    words, starts = ["In", "New", "York", ",", "she", "said", "…"], [0, 4, 9, 13, 15, 19, 23]
    sentence = Sentence(words, {"tag": list("abcdefg")}, [(1, 3)], text=f" {text}\n", starts=[at + 1 for at in starts],
                        start=1, stop=len(text) + 1)  # fmt: skip
    made = explored([es.extract(es.plan([sentence], model="random:4"), tmp_path / "s.zarr")])
    (row,) = run(made, "occurrences", word="New York")["rows"]
    assert [row[name] for name in ("left", "word", "right", "form")] == ["In  ", "New\r\nYork", text[13:], "New York"]
    found = run(made, "sentence", sentence=0)
    assert (found["text"], found["words"]) == (text, words)
    assert found["forms"] == ["In", "New\r\nYork", ",", "she", "said", "…"]
    assert found["gaps"] == ["", "  ", "", " ", "\t", "", ""]
    assert found["labels"] == {"tag": list("abdefg")}
    assert answer(made, "similarity", {"sentence": 0}).data["words"] == found["forms"]
    for side, first in (("left", "In"), ("right", "…")):
        assert run(made, "occurrences", sort=side)["rows"][0]["word"] == first


def test_a_word_is_compared_with_the_corpus(one: list[Explored], store: es.Store) -> None:
    found = run(one, "word", word="bank")
    own = es.geometry(store.select(words="bank"), metrics="selfsim", min_contexts=1).filter(pl.col("item") == "bank")
    assert np.allclose(found["selfsimilarity"], own.sort("layer")["value"], atol=1e-6)
    whole = es.geometry(store, metrics=["selfsim", "anisotropy"]).filter(pl.col("item") == "").sort("layer")
    for name, metric in (("corpus", "selfsim"), ("anisotropy", "anisotropy")):
        assert np.allclose(found[name], whole.filter(pl.col("metric") == metric)["value"], atol=1e-7)
    assert found["count"] == len(store.select(words="bank"))


def test_a_word_of_one_occurrence_has_no_self_similarity(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr", sentences=2, seed=3)
    once = next(word for word in made.store.index.words if len(made.store.select(words=word)) == 1)
    assert run(explored([made.store]), "word", word=once)["selfsimilarity"] == [None] * 3


def test_the_means_of_a_corpus_are_kept_by_its_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = sorted(each.name for each in tmp_path.iterdir())
    made = make_store(tmp_path / "s.zarr").store
    first = run(explored([made]), "word", word="bank")
    (kept,) = (tmp_path / "cache" / "embstore" / "explorer").iterdir()
    changed = json.loads(kept.read_text())
    kept.write_text(json.dumps({**changed, "selfsim": [0.25, 0.5, 0.75]}))
    assert run(explored([made]), "word", word="bank")["corpus"] == [0.25, 0.5, 0.75]
    kept.write_text("{damaged")
    assert run(explored([made]), "word", word="bank") == first
    other = make_store(tmp_path / "t.zarr", seed=1).store
    assert run(explored([other]), "word", word="bank")["corpus"] != first["corpus"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*before, "cache", "s.zarr", "t.zarr"])


@pytest.mark.parametrize("where", [None, "upos = 'NOUN'"])
@pytest.mark.parametrize("query", [{"row": 17}, {"word": "bank"}])
def test_neighbors_are_those_of_the_public_function(
    one: list[Explored], store: es.Store, query: dict[str, Any], where: str | None
) -> None:
    found = run(one, "neighbors", **query, layers="0,5", k=7, **({} if where is None else {"where": where}))
    data = store if where is None else store.select(where=where)
    assert [each["layer"] for each in found["layers"]] == [0, 5]
    for each in found["layers"]:
        bank = store.select(words="bank", layers=each["layer"])
        asked = store.select(rows=[17]) if "row" in query else bank.vectors(dtype="float64").mean(0)
        expected = es.neighbors(data, asked, layers=each["layer"], k=7)
        assert [hit["row"] for hit in each["neighbors"]] == expected["occurrence"].to_list()
        assert np.allclose([hit["similarity"] for hit in each["neighbors"]], expected["score"], atol=1e-12)


def test_neighbors_that_are_other_words_are_each_the_nearest_of_its_word(one: list[Explored], store: es.Store) -> None:
    """As a full sort of all occurrences says."""
    vectors, names = store.vectors(layers=2).astype(np.float64), store.select().table()["word"].to_list()
    asked = vectors[store.select(words="bank").rows].mean(0)
    scores = vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)
    best = dict(reversed([(names[row], row) for row in np.argsort(-scores, kind="stable") if names[row] != "bank"]))
    wanted = sorted(best.values(), key=lambda row: -scores[row])
    for k in (3, 5, 9):
        found = run(one, "neighbors", word="bank", layers="2", k=k, others=True)
        assert [each["row"] for each in found["layers"][0]["neighbors"]] == wanted[:k], "there are five other words"
    chosen = run(one, "neighbors", row=17, layers="2", others=True, where="upos = 'NOUN'")["layers"][0]["neighbors"]
    assert len({each["form"] for each in chosen} - {names[17]}) == len(chosen)


def test_a_selection_is_summed_up(one: list[Explored], store: es.Store) -> None:
    rows = [*store.select(words="river").rows[:30], *store.select(words="suit").rows[:30].tolist(), 0]
    found = run(one, "summary", rows=",".join(map(str, rows)))
    assert (found["count"], found["marking"]) == (len({*rows}), True)
    assert {each["word"] for each in found["words"]} == {"river", "suit"}
    labels = store.select(rows=sorted({*map(int, rows)})).table()["upos"].to_list()
    assert {(each["value"], each["count"]) for each in found["labels"][0]["values"]} == {*Counter(labels).items()}
    whole = run(one, "summary", rows=f"0-{store.n_rows - 1}")
    assert (whole["marking"], whole["words"][0]["word"]) == (False, run(one, "complete")["words"][0]["word"])


def test_what_is_common_around_a_word_is_said_where_nothing_marks_some_of_its_occurrences(tmp_path: Path) -> None:
    store = make_text_store(tmp_path / "s.zarr", [["hand", "in", "hand", "the", "boat"], ["the", "boat", ",", "hand"]])
    found = run([Explored(store)], "summary", rows=",".join(map(str, store.select(words="hand").rows)))
    assert (found["marking"], found["words"][0]) == (False, {"word": "boat", "count": 3})
    assert [each["word"] for each in found["words"]] == ["boat", "the", "in"]


def test_sentences_are_found_by_their_text(one: list[Explored], store: es.Store) -> None:
    found = run(one, "search", text=" NEW  york the", limit=1000)
    texts = list(store.index.text)
    assert [row["sentence"] for row in found["rows"]] == [at for at, text in enumerate(texts) if "new york the" in text]
    assert (found["total"], {row["match"] for row in found["rows"]}) == (len(found["rows"]), {"new york the"})


def test_a_store_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    stores = explored([make_store(tmp_path / "s.zarr", sentences=20).store.path])
    shutil.rmtree(tmp_path / "s.zarr")
    made = make_store(tmp_path / "s.zarr", sentences=30, seed=1)
    with pytest.raises(StoreDamagedError, match="open it again"):
        run(stores, "neighbors", row=1)
    assert run(stores, "reopen") == {"store": "s", "rows": made.store.n_rows}
    assert run(stores, "neighbors", row=1)["query"]["word"] == made.table[1]["word"]


def test_equal_vectors_do_not_find_the_query_itself(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr", ties=True).store
    twins = np.flatnonzero((made.vectors(np.arange(made.n_rows), layers=0) == made.vectors([0], layers=0)).all(1))
    row = int(twins[-1])
    (found,) = run(explored([made]), "neighbors", row=row, layers="0", k=5)["layers"]
    expected = es.neighbors(made, made.select(rows=[row]), layers=0, k=5)["occurrence"].to_list()
    assert [each["row"] for each in found["neighbors"]] == expected


def test_neighbors_of_many_clients_are_searched_together(one: list[Explored], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors_module, "AT_ONCE", 4)
    sizes: list[int] = []
    search = es.neighbors

    def counted(data: Any, vectors: Any, **options: Any) -> Any:
        sizes.append(len(vectors))
        return search(data, vectors, **options)

    params = [{"row": row, "k": 3 + row % 4} for row in range(30)]
    alone = [run(one, "neighbors", **each) for each in params]
    monkeypatch.setattr(neighbors_module.es, "neighbors", counted)
    searches = one[0].once("searches", lambda: pytest.fail("there are searches"))
    with ThreadPoolExecutor(30) as pool:
        gate = Event()
        searches.thread.submit(gate.wait)  # nobody searches before all wait
        asked = [pool.submit(run, one, "neighbors", **each) for each in params]
        while sum(map(len, searches.waiting.values())) < 3 * 30:
            pass
        gate.set()
        together = [each.result() for each in asked]
    assert (together, max(sizes)) == (alone, 4)
    assert sum(sizes) == 3 * 30
    assert not searches.waiting


@pytest.mark.parametrize("error", [BaseException("a panic of Rust"), ValueError("any")])
def test_a_failing_search_is_answered(store: es.Store, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    monkeypatch.setattr(neighbors_module.es, "neighbors", Mock(side_effect=error))
    with ThreadPoolExecutor(1) as pool, pytest.raises(type(error), match=str(error)):
        pool.submit(run, [Explored(store)], "neighbors", row=1).result(60)


@pytest.mark.slow
def test_a_new_sentence_is_encoded_by_the_model_of_the_store(stores: list[Path]) -> None:
    opened = explored([stores[0]])
    assert run(opened, "stores")[0]["can_encode"]
    text = "the [bank] is old"
    found = run(opened, "neighbors", text=text, layers="0,last", k=4)
    assert found["query"] == {"word": "bank", "left": "the ", "right": " is old", "count": 1}
    for each in found["layers"]:
        expected = es.neighbors(
            opened[0].store, text, layers=each["layer"], k=4, model=stores[0].parent / "model-first"
        )
        assert [hit["row"] for hit in each["neighbors"]] == expected["occurrence"].to_list()
        assert np.allclose([hit["similarity"] for hit in each["neighbors"]], expected["score"], atol=1e-6)


def test_senses_are_those_of_the_library(one: list[Explored], store: es.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.analysis.neighbors.senses.DRAWS", 1)
    found = run(one, "senses", word="bank", layer="2", clusters=3)
    expected = es.senses(store, "bank", layers=2, n_clusters=3)
    assert found["rows"] == expected.occurrences["occurrence"].to_list()
    assert found["codes"] == (expected.occurrences["cluster"] - 1).to_list()
    assert [each["count"] for each in found["clusters"]] == expected.frame["count"].to_list()
    nearest = expected.nearest(5)
    for each in found["clusters"]:
        own = nearest.filter(cluster=each["cluster"] + 1)["occurrence"].to_list()
        assert [example["row"] for example in each["examples"]] == own
    best = run(one, "senses", word="bank")
    assert (best["layer"], best["silhouette"]) == (5, es.senses(store, "bank").silhouette)


def test_geometry_and_cka_are_those_of_the_public_functions(one: list[Explored], store: es.Store) -> None:
    found = pl.DataFrame(run(one, "geometry")["rows"])
    metrics = list(dict.fromkeys(found["metric"]))
    assert {"selfsim", "intrasim", "mev", "anisotropy"} <= set(metrics)
    expected = es.analysis.summarize_geometry(es.geometry(store, metrics=metrics))
    for name in ("layer", "metric", "value", "low", "high"):
        assert found[name].to_list() == pytest.approx(expected[name].cast(found[name].dtype).to_list(), nan_ok=True)
    cka = run(one, "cka")
    values = es.analysis.linear_cka(store)["value"].to_numpy().reshape(3, 3)
    assert np.allclose(cka["values"], values)
    assert (cka["a"], cka["b"]) == ([0, 2, 5], [0, 2, 5])


def test_two_stores_are_compared_by_cka(tmp_path: Path, one: list[Explored], monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_store(tmp_path / "t.zarr", seed=0, ties=True).store
    both = explored([one[0].store, other])
    assert np.allclose(np.diag(run(both, "cka", store=0)["values"]), 1), "not that of two stores, which is kept too"
    found = run(both, "cka", store=0, other=1)
    assert np.allclose(found["values"], es.analysis.linear_cka(one[0].store, other)["value"].to_numpy().reshape(3, 3))
    monkeypatch.setattr(layers, "SAMPLE", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    step = -(-other.n_rows // 100)
    found = run(explored([other]), "cka")
    assert f"slice(None, None, {step})" in found["python"]
    expected = es.analysis.linear_cka(other.select(rows=slice(None, None, step)))["value"]
    assert np.allclose(np.ravel(found["values"]), expected)


@pytest.mark.parametrize(("layer", "sample", "said"), [(0, 5000, "layer 0 is the word"), (2, 20, "a random 20 of")])
def test_clusters_without_evidence_and_samples_have_a_caveat(
    one: list[Explored], monkeypatch: pytest.MonkeyPatch, layer: int, sample: int, said: str
) -> None:
    monkeypatch.setattr(senses, "SAMPLE", sample)
    answer = run([Explored(one[0].store)], "senses", word="bank", clusters=2, layer=layer)
    clusters = es.senses(one[0].store, "bank", layers=layer, n_clusters=2, sample=sample)
    assert (answer["null"], answer["p"]) == (clusters.null, clusters.p)
    assert said in answer["caveat"]
    assert "no evidence of clusters" in answer["caveat"]


def test_lines_are_sorted_whatever_their_case_and_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [f"w{number}" for number in range(900)]
    store = make_text_store(tmp_path / "s.zarr", [["x", "Bee"], ["x", "ant"], ["x"], ["x", "Cat", *long], ["x", "ant"]])
    stores = [Explored(store)]
    rows = run(stores, "occurrences", word="x", sort="right")["rows"]
    assert [each["sentence"] for each in rows] == [2, 1, 4, 0, 3]
    assert rows[-1]["right"] == f" Cat {' '.join(long)}"[:1000] + "…"
    last = run(stores, "occurrences", word="w899")["rows"][0]
    assert last["left"] == "…" + f"x Cat {' '.join(long[:-1])} "[-1000:]
    code = run(stores, "occurrences", rows="0-30")["python"]
    assert f"rows={list(range(20))}"[:-1] + ", ...]" in code
    monkeypatch.setattr(words, "MAX_SORTED", 4)
    monkeypatch.setattr(words, "MAX_EXPORTED", 4)
    with pytest.raises(InvalidValueError, match=r"5 occurrences cannot be sorted .* choose 4 or fewer"):
        answer(stores, "occurrences", {"word": "x", "sort": "left"})
    with pytest.raises(InvalidValueError, match="5 occurrences are too many"):
        answer(stores, "occurrences", {"word": "x"}, whole=True)


def test_results_are_made_once_for_all_and_the_last_are_kept(store: es.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explored_stores, "KEPT", 2)
    one, made = Explored(store), []
    for key in "abaca":
        one.once(key, lambda key=key: made.append(key))  # type: ignore[misc]
    assert made == ["a", "b", "c"], "b is the least recently used when c is made"
    one.once("b", lambda: made.append("b again"))
    assert made[-1] == "b again"
    started, entered, go = Event(), Event(), Event()

    def slow() -> int:
        started.set()
        assert go.wait(600)
        return 7

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.once, "slow", slow)
        assert started.wait(600)
        second = pool.submit(lambda: (entered.set(), one.once("slow", lambda: pytest.fail("made twice"))))
        assert entered.wait(600)
        go.set()
        assert (first.result(), second.result()[1]) == (7, 7)


def test_large_results_take_the_place_of_older_ones(monkeypatch: pytest.MonkeyPatch, store: es.Store) -> None:
    one = Explored(store)
    monkeypatch.setattr(explored_stores, "KEPT_NBYTES", 1000)
    for number in range(4):
        one.once(("sorted", number), lambda: np.zeros(50))
    assert list(one._kept) == [("sorted", 2), ("sorted", 3)]
    one.once(("rows", tuple(range(20))), lambda: np.zeros(1))
    assert list(one._kept) == [("rows", tuple(range(20)))]
    whole = one.once("whole", lambda: np.zeros(500))
    assert list(one._kept) == ["whole"], "the last one is kept however large it is"
    assert one.once("whole", lambda: None) is whole


def test_a_layer_is_a_number_or_a_name(one: list[Explored], monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[tuple[str, dict[str, object]]] = [("map", {}), ("similarity", {"sentence": 0})]
    queries += [("senses", {"word": "bank"})]
    for name, given in queries:
        last = answer(one, name, {**given, "layer": "last"})
        assert (last if name == "senses" else last.data)["layer"] == 5
        for wrong in ("--2", "0,2", "all"):
            with pytest.raises(InvalidValueError, match=r"is not|give one"):
                answer(one, name, {**given, "layer": wrong})
    monkeypatch.setattr(neighbors_module, "MAX_LAYERS", 2)
    with pytest.raises(InvalidValueError, match="3 layers are too many: give 2 at most"):
        answer(one, "neighbors", {"row": 1})
    asked: list[object] = []

    def attention(text: str, *, layers: list[object], **_: object) -> es.analysis.SentenceAttention:
        asked.extend(layers)
        return es.analysis.SentenceAttention(("a",), (12,), (0,), np.ones((1, 1, 1, 1), np.float32))

    monkeypatch.setattr(sentence_module, "sentence_attention", attention)
    monkeypatch.setattr(Explored, "model_location", lambda self: "model")
    monkeypatch.setattr(Explored, "encoder", lambda self: None)
    assert answer(one, "attention", {"sentence": 0, "layer": "last"}).data["layer"] == 12
    assert answer(one, "attention", {"sentence": 0, "layer": 3}).data["layer"] == 12
    assert asked == ["last", 3]


def test_a_table_has_the_columns_of_one_length() -> None:
    frame = table({"layers": [0, 2], "values": [0.5, 1.5], "note": [3], "word": "a"})
    assert frame.to_dict(as_series=False) == {"word": ["a", "a"], "layers": [0, 2], "values": [0.5, 1.5]}


def test_a_table_of_a_matrix_has_a_row_for_each_number() -> None:
    values = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    frame = table(Arrays({"values": values}, {"words": ["a"]}))
    assert frame.columns == ["axis_0", "axis_1", "axis_2", "values"]
    assert frame.rows() == [(*place, values[place].item()) for place in np.ndindex(values.shape)]
    many = table(Arrays({"values": np.zeros((2, 1000, 1000), np.float32)}, {}))
    assert many.estimated_size() == 2_000_000 * 16, "four bytes a number and a place, not an object each"


def test_tables_of_scores_next_to_a_store_are_shown(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr").store
    (tmp_path / "probes").mkdir()
    rows = [{"store": "other", "layer": 0, "metric": "accuracy", "value": 0.75, "low": None}] * 150  # then a number
    rows.append({"store": "s", "layer": 0, "metric": "accuracy", "value": 0.5, "low": 0.25})
    pl.DataFrame(rows, infer_schema_length=None).write_csv(tmp_path / "probes" / "scores.csv")
    pl.DataFrame({"word": ["a"]}).write_parquet(tmp_path / "probes" / "words.parquet")
    (tmp_path / "probes" / "notes.txt").write_text("not probes")
    (result,) = run(explored([made]), "probes")["results"]
    assert result == {"name": "scores", "kind": "scores", "rows": rows[-1:]}
    (tmp_path / "probes" / "bad.parquet").write_text("PAR1")
    with pytest.raises(InvalidValueError, match="bad"):
        answer(explored([made]), "probes", {})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_exported_tables_are_read_back(one: list[Explored], store: es.Store, suffix: str) -> None:
    def read(name: str, **params: object) -> pl.DataFrame:
        data, _ = as_file(answer(one, name, params, whole=True), suffix)
        return pl.read_csv(io.BytesIO(data)) if suffix == "csv" else pl.read_parquet(io.BytesIO(data))

    where = "upos = 'DET'"
    whole = read("occurrences", where=where, limit=1)
    table = store.table().filter(pl.sql_expr(where))
    for name in table.columns:
        assert whole[name].to_list() == table[name].to_list()
    near = read("neighbors", row=5, layers="0,5", k=3)
    assert near["layer"].to_list() == [0, 0, 0, 5, 5, 5]
    expected = es.neighbors(store, store.select(rows=[5]), layers=0, k=3)
    assert near["row"][:3].to_list() == expected["occurrence"].to_list()
    assert near.columns[-2:] == ["upos", "similarity"]
    by_layer = read("word", word="bank")
    assert by_layer["layers"].to_list() == [0, 2, 5]
    assert by_layer["selfsimilarity"].to_list() == pytest.approx(run(one, "word", word="bank")["selfsimilarity"])
    pairs = read("cka")
    assert len(pairs) == 9
    labels = read("sentence", sentence=3)["upos"].unique().item()  # lists in a cell are JSON
    assert json.loads(labels) == run(one, "sentence", sentence=3)["labels"]["upos"]
    assert pairs.filter(a=0, b=5)["value"].item() == pytest.approx(run(one, "cka")["values"][0][2])


def test_arrays_are_safetensors_that_are_aligned() -> None:
    held = {"color": np.array([1, -1, 2], np.int32), "row": np.arange(3.0)}
    data = np.frombuffer(Arrays(held, {"total": 3, "note": float("nan")}).to_bytes(), np.uint8)
    for name, array in parse(data, path="answer").items():
        assert array.tolist() == held[name].tolist()
        assert array.ctypes.data % array.itemsize == data.ctypes.data % array.itemsize
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8].tobytes(), "little")].tobytes())
    assert json.loads(header["__metadata__"]["json"]) == {"total": 3, "note": None}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("occurrences", {"sort": "left", "where": "position > 0"}), ("word", {"word": "river"}), ("cka", {}),
        ("neighbors", {"row": 3}), ("search", {"text": "bank"}), ("senses", {"word": "suit"}), ("geometry", {}),
    ],
)  # fmt: skip
@pytest.mark.quick(3)
def test_every_query_that_takes_long_can_be_cancelled(tmp_path: Path, name: str, params: dict[str, Any]) -> None:
    stores = explored([make_store(tmp_path / "s.zarr", seed=7).store])
    with pytest.raises(CancelledQueryError):
        answer(stores, name, params, cancelled=lambda: True)
    seen: list[tuple[int, int | None]] = []
    assert answer(stores, name, params, progress=lambda done, total: seen.append((done, total)))
    assert seen, "it reports its progress"


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("occurrences", {"limit": "1001"}, "limit 1001 is not allowed: give 1 to 1,000"),
        ("occurrences", {"offset": "-1"}, "offset -1"), ("occurrences", {"rows": "5-1"}, "rows"),
        ("occurrences", {"descending": "yes"}, "true or false"), ("word", {}, "the parameter word is missing"),
        ("occurrences", {"rows": "0-99999999"}, "more than 1,000,000 rows"),
        ("occurrences", {"rows": "0-600000,0-600000"}, "more than 1,000,000 rows"),
        ("occurrences", {"unknown": "1"}, "there is no parameter 'unknown'"),
        ("occurrences", {"word": ""}, "word has 0 characters"), ("occurrences", {"word": "\ud800"}, "surrogate"),
        ("occurrences", {"where": "x" * 2001}, "where has 2,001 characters"),
        ("occurrences", {"where": "upos = 'NOUN'; drop table x"}, "is not a condition"),
        ("occurrences", {"where": "read_csv('/etc/passwd') = 'x'"}, "where"),
        ("occurrences", {"sort": "colour"}, "choose one of row, word"),
        ("neighbors", {"row": "1", "word": "bank"}, "give one of row, word and text"),
        ("neighbors", {"row": "1", "layers": "1"}, "layer 1 is not stored"),
        ("neighbors", {"row": "1", "where": "upos = 'NONE'"}, "no occurrence"),
        ("neighbors", {"text": "a [bank] again"}, "model"),
        ("senses", {"word": "bank", "layer": "0-999999999"}, "is not stored"),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(one: list[Explored], name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        answer(one, name, params)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("name", "params"), [("nothing", {}), ("word", {"word": "no"}), ("neighbors", {"row": "9999"})]
)
def test_what_is_not_there_is_not_found(one: list[Explored], name: str, params: dict[str, Any]) -> None:
    with pytest.raises(NotFoundError):
        answer(one, name, params)
