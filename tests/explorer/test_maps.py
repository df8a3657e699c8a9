"""The map: its rows, regions, colours, cache and process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.analysis.projection import turn
from embstore.errors import ExecutorError, InvalidValueError, UnfinishedStoreWarning
from embstore_explorer import answer, report
from embstore_explorer.background import in_process
from embstore_explorer.queries import map as map_query
from embstore_explorer.queries.registry import CancelledQueryError
from embstore_explorer.regions import find_regions, name_groups
from embstore_explorer.stores import Explored
from tests.analysis.test_projection import rewritten
from tests.explorer.conftest import called
from tests.store_making import Made, make_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("maps") / "a.zarr", sentences=150, hidden_size=7)


@pytest.fixture
def explored(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explored:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Explored(made.store)


def ask(explored: Explored, **params: Any) -> Any:
    return answer([explored], "map", params)


def test_the_same_rows_are_drawn_at_every_layer_and_seeds_differ(explored: Explored) -> None:
    rows = [ask(explored, layer=layer, sample=50).arrays["row"] for layer in explored.store.layers]
    assert all(np.array_equal(rows[0], each) for each in rows)
    assert not np.array_equal(rows[0], ask(explored, layer=0, sample=50, seed=1).arrays["row"])
    assert set(ask(explored, layer=0, sample=50, parts="points").arrays) == {"x", "y", "color"}


def test_a_second_answer_is_read_from_the_cache(explored: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(explored, layer=2, sample=60)
    monkeypatch.setattr(map_query, "_kept", lambda *_, **__: pytest.fail("computed again"))
    again = ask(Explored(explored.store), layer=2, sample=60)
    for name in ("row", "x", "y"):
        np.testing.assert_array_equal(first.arrays[name], again.arrays[name])
    assert first.data == again.data


def test_stores_of_other_vectors_do_not_share_cached_maps(explored: Explored, made: Made, tmp_path: Path) -> None:
    first = ask(explored, layer=2, sample=60)
    other = Explored(rewritten(tmp_path / "other.zarr", made, made.vectors[::-1] * 2))
    assert not np.array_equal(first.arrays["x"], ask(other, layer=2, sample=60).arrays["x"])


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: b"", lambda data: data[:-1] + b"\x7f"])
def test_a_damaged_cache_is_made_again(explored: Explored, tmp_path: Path, damage: Any) -> None:
    first = ask(explored, layer=2, sample=60)
    (file,) = (tmp_path / "embstore" / "maps").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = ask(Explored(explored.store), layer=2, sample=60)
    np.testing.assert_array_equal(first.arrays["x"], again.arrays["x"])
    assert file.read_bytes() == whole


def test_the_oldest_maps_are_removed(explored: Explored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(explored, layer=0, sample=60)
    (oldest,) = (tmp_path / "embstore" / "maps").iterdir()
    os.utime(oldest, (1, 1))
    monkeypatch.setattr(map_query, "CACHE_NBYTES", 2 * oldest.stat().st_size + 100)
    for layer in (2, 5):
        ask(explored, layer=layer, sample=60)
    left = list((tmp_path / "embstore" / "maps").iterdir())
    assert len(left) == 2
    assert oldest not in left


def test_colours_are_those_of_labels_and_words(explored: Explored, made: Made) -> None:
    for color, column in (("upos", "upos"), ("word", "word")):
        found = ask(explored, layer=2, color=color)
        names = [*found.data["colors"], None]
        values = [made.table[int(row)][column] for row in found.arrays["row"]]
        assert [names[code] for code in found.arrays["color"]] == values
        counts = [values.count(name) for name in found.data["colors"]]
        assert counts == sorted(counts, reverse=True)
    assert set(ask(explored, layer=2).arrays["color"].tolist()) == {-1}
    assert ask(explored, layer=2, color="cluster").data["note"] == map_query.DENSE_NOTE
    with pytest.raises(InvalidValueError, match="upso"):
        ask(explored, layer=2, color="upso")


def test_rare_values_share_a_colour() -> None:
    codes = np.repeat(np.arange(12), np.arange(12, 0, -1))
    found, names = map_query._frequent(np.append(codes, -1), [f"v{number}" for number in range(12)])
    assert names == [*(f"v{number}" for number in range(7)), "5 others"]
    assert found.tolist() == [*np.minimum(codes, 7).tolist(), -1]


def test_ascending_values_are_binned_in_their_order() -> None:
    codes = np.repeat(np.arange(40, dtype=np.int32), 5)
    found, names = map_query._ordered(np.append(codes, np.int32(-1)), [str(1900 + number) for number in range(40)])
    assert found[-1] == -1
    assert np.all(np.diff(found[:-1]) >= 0)
    assert len(names) == 7
    for number, name in enumerate(names):
        first, _, last = name.partition(" to ")
        inside = codes[found[:-1] == number]
        assert (inside.min() + 1900, inside.max() + 1900) == (int(first), int(last))


def test_clusters_of_a_word_are_its_senses(explored: Explored) -> None:
    found = ask(explored, layer=2, word="bank", color="cluster")
    senses = es.senses(explored.store, "bank", layers=2)
    assert found.data["note"] == (" ".join(f"{each.capitalize()}." for each in senses.caveats) or None)
    codes = dict(zip(senses.occurrences["occurrence"].to_list(), senses.occurrences["cluster"] - 1, strict=True))
    assert {int(row): code for row, code in zip(found.arrays["row"], found.arrays["color"], strict=True)} == codes


def test_clusters_of_a_frequent_word_reach_all_rows(explored: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_query, "CLUSTERED", 30)
    codes = ask(explored, layer=2, word="bank", color="cluster").arrays["color"]
    assert (codes >= 0).sum() == len(codes) > 60


def test_regions_are_the_hills_of_the_density() -> None:
    random = np.random.default_rng(0)
    centers = np.array([[0, 0], [10, 0], [0, 10]])
    counts = [3000, 2000, 1000]
    points = np.concatenate([random.normal(each, 0.7, (count, 2)) for each, count in zip(centers, counts, strict=True)])
    found = find_regions(points.astype(np.float32))
    assert len(found.counts) == 3
    np.testing.assert_allclose(found.centers, centers, atol=0.4)
    np.testing.assert_allclose(found.counts, counts, rtol=0.03)
    for code in range(3):
        np.testing.assert_allclose(points[found.codes == code].mean(0), found.centers[code], atol=1e-4)
    assert len(find_regions(np.zeros((20, 2), np.float32)).counts) == 1


def test_common_words_name_only_regions_that_consist_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["the", "of", "boat", "loan", "7", "!", *(f"w{number}" for number in range(400))]
    share = np.zeros((4, len(words)), int)
    share[:, :6] = [[500, 40, 40, 0, 30, 0], [60, 20, 0, 45, 0, 30], [0, 0, 0, 0, 0, 9], [0] * 6]
    share[3, 6:], share[1, 6:] = 1, 2
    codes = np.repeat(np.arange(4), share.sum(1)).astype(np.int8)
    types = np.concatenate([np.repeat(np.arange(len(words)), own) for own in share])
    index = type("Index", (), {"type": types, "words": words})
    one: Any = type("One", (), {"store": type("Store", (), {"index": index})})
    names = name_groups(one, np.arange(len(types)), codes, 4, by_context=False)
    assert names[:3] == ["boat, 7, the", "loan", "!"]
    codes[codes == 0], codes[types == 0] = 3, -1
    assert name_groups(one, np.arange(len(types)), codes, 4, by_context=False)[3] == "boat, 7"  # "of" is common
    monkeypatch.setattr("embstore_explorer.regions.NAMED_ROWS", len(types) // 2)
    assert set(name_groups(one, np.arange(len(types)), codes, 4, by_context=False)[3].split(", ")) == {"boat", "7"}


def test_a_condition_and_the_python_call(explored: Explored, made: Made) -> None:
    found = ask(explored, layer=2, where="upos = 'NOUN' and position > 0", sample=50)
    rows = [row["occurrence"] for row in made.table if row["upos"] == "NOUN" and row["position"]]
    assert set(found.arrays["row"]) <= set(rows)
    assert found.data["total"] == len(rows)
    np.testing.assert_array_equal(called(found.data["python"]).points[:, 0], found.arrays["x"])


def test_attention_sinks_are_left_out_of_maps_and_measures(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 2, 9, 4))
    vectors[:, :, 0] *= 500
    sentences = [*[list("abcdefghi")] * 19, list("bacdefghi")]
    store = es.store.write_arrays(tmp_path / "a.zarr", sentences, vectors, model="none")
    found = ask(Explored(store), layer=0)
    assert {*range(180)} - {*found.arrays["row"].tolist()} == {*range(0, 180, 9)}
    assert found.data["note"] == "20 attention sinks are left out."
    assert len(answer([Explored(store)], "senses", {"word": "b"})["rows"]) == 19
    own = answer([Explored(store)], "word", {"word": "b"})["selfsimilarity"]
    given = es.geometry(store.select(words="b", sinks=False), metrics="selfsim", min_contexts=1)
    assert own == given.filter(item="b").sort("layer")["value"].to_list()
    rows = answer([Explored(store)], "geometry", {})["rows"]
    assert max(row["value"] for row in rows if row["metric"] == "top_component") < 0.5
    (section,) = report(store, sections="similarity").sections
    assert section.frames["cka"].equals(es.analysis.linear_cka(store.select(sinks=False), layers=(0, 1)))
    assert section.caveats[0] == "Measured on 160 of 180 rows, attention sinks left out."
    hits = answer([Explored(store)], "neighbors", {"word": "b", "layers": "0", "k": 3})
    near = es.neighbors(store, store.select(words="b", layers=0, sinks=False).vectors().mean(0), layers=0, k=3)
    assert hits["query"]["count"] == 19
    assert [each["row"] for each in hits["layers"][0]["neighbors"]] == near["occurrence"].to_list()


def test_only_written_rows_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(UnfinishedStoreWarning):
        made = make_store(tmp_path / "a.zarr", sentences=150, leave_out=(1,))
    rows = ask(Explored(made.store), layer=2).arrays["row"]
    assert len(rows) == made.store.n_committed_rows
    assert not np.isin(np.arange(256, 512), rows).any()


def echoed(value: Any, *, progress: Any) -> Any:
    progress(1, 2)
    return value


def forever(*, progress: Any) -> None:
    while True:
        time.sleep(0.01)


def failing(*, progress: Any) -> None:
    raise InvalidValueError("four or more")


def ending(*, progress: Any) -> None:
    os._exit(3)


@pytest.mark.slow
def test_work_in_a_process_is_reported_cancelled_and_explained() -> None:
    seen: list[tuple[int, int | None]] = []

    def report(done: int, total: int | None) -> None:
        seen.append((done, total))

    assert in_process(echoed, [1, 2], report=report) == [1, 2]
    assert seen[-1] == (1, 2)
    with pytest.raises(InvalidValueError, match="four or more"):
        in_process(failing, report=report)
    with pytest.raises(ExecutorError, match="memory"):
        in_process(ending, report=report)

    def cancel(done: int, total: int | None) -> None:
        raise CancelledQueryError

    with pytest.raises(CancelledQueryError):
        in_process(forever, report=cancel)


@pytest.mark.slow
def test_umap_begins_with_the_principal_components(explored: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("umap", reason="umap-learn is not installed")
    monkeypatch.setattr(map_query, "in_process", lambda function, *args, report: function(*args, progress=report))
    seen: list[tuple[int, int | None]] = []
    found = answer(
        [explored], "map", {"layer": 2, "method": "umap"}, progress=lambda done, total: seen.append((done, total))
    )
    assert found.data["explained"] is None
    assert "not distances" in found.data["note"]
    assert any(done and done <= (total or 0) for done, total in seen)
    again = es.analysis.project(explored.store, layers=2, method="umap")
    np.testing.assert_array_equal(again.points[:, 0], found.arrays["x"])
    pca = es.analysis.project(explored.store, layers=2, method="pca").points
    np.testing.assert_allclose(turn(again.points, pca), np.eye(2), atol=1e-4)
    with pytest.raises(CancelledQueryError):
        answer([explored], "map", {"layer": 5, "method": "umap"}, cancelled=lambda: True)
