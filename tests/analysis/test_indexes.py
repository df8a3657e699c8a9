"""Indexes: exact kinds equal brute force, filters hold, answers are scored by what is stored."""

from __future__ import annotations

import sys
from pathlib import Path

import faiss
import numpy as np
import pytest

from embstore.analysis.neighbors import index as index_module
from embstore.analysis.neighbors import index_kinds
from embstore.analysis.neighbors.exact import Exclusion
from embstore.analysis.neighbors.index import LayerIndex, build_index, open_index
from embstore.analysis.neighbors.index_files import list_indexes, remove_index
from embstore.analysis.neighbors.index_kinds import choose_kind
from embstore.analysis.neighbors.recall import measure_recall
from embstore.errors import (
    InvalidValueError,
    MissingPackageError,
    MissingRowsError,
    NonFiniteError,
    SearchIndexError,
    SearchIndexNotFoundError,
)
from tests.analysis.index_store import LAYER, hard_store, require_nearest, require_space, scores_by_hand
from tests.analysis.word_store import Written, write_words

SUFFIXES = (".zarr", ".h5")
METRICS = ("cosine", "ip", "l2")


@pytest.fixture(scope="module", params=[".zarr", pytest.param(".h5", marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return hard_store(tmp_path_factory.mktemp("made") / f"s{request.param}")


def all_lists(index: LayerIndex) -> dict[str, int]:
    return {"nprobe": index.info.parameters["nlist"]} if "nlist" in index.info.parameters else {}


SLOW_TO_TRAIN = pytest.param("OPQ4,IVF4,PQ4x4,RFlat", marks=pytest.mark.slow)
SLOW_IVF, SLOW_HNSW = (pytest.param(kind, marks=pytest.mark.slow) for kind in ("IVF5,Flat", "PCA6,HNSW8"))


@pytest.mark.parametrize("kind", ["flat", "ivf", SLOW_IVF, "Flat"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("center", "components"), [(False, 0), (True, 0), (True, 3)])
@pytest.mark.quick(2)
def test_what_looks_at_every_row_equals_brute_force(
    made: Written, metric: str, kind: str, center: bool, components: int
) -> None:
    space = {"metric": metric, "centered": center, "n_components": components}
    index = build_index(made.store, layer=LAYER, kind=kind, threads=1, **space)  # type: ignore[arg-type]
    values = made.values[0]
    queries = np.concatenate([values[::40], values[::100] + 0.01, np.zeros((1, values.shape[1]))])
    require_space(index.space, values, centered=center, n_components=components)
    by_hand = scores_by_hand(queries, values, metric, mean=index.space.mean, directions=index.space.components)
    for k in (1, 7, 50):
        hits = index.search(queries, k=k, **all_lists(index))
        require_nearest(hits.rows, hits.scores, by_hand, metric=metric)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("metric", METRICS)
def test_every_dtype_is_searched_as_it_reads(dtype: str, metric: str, tmp_path: Path) -> None:
    made = hard_store(tmp_path / "s.zarr", words=6, dtype=dtype)
    index = build_index(made.store, layer=LAYER, kind="flat", metric=metric)
    queries = made.values[0][::30]
    hits = index.search(queries, k=12)
    require_nearest(hits.rows, hits.scores, scores_by_hand(queries, made.values[0], metric), metric=metric)


@pytest.mark.parametrize("kind", ["SQfp16", pytest.param("IVF3,SQfp16", marks=pytest.mark.slow), "Flat"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.quick(1)
def test_vectors_that_are_equal_in_float16_are_distinguished(tmp_path: Path, metric: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    near = rng.normal(size=(1, 12)) + 1e-4 * rng.normal(size=(500, 12))
    made = write_words(tmp_path / "s.zarr", [("near", near), ("far", rng.normal(size=(100, 12)))], dtype="float32")
    index = build_index(made.store, layer=LAYER, kind=kind, metric=metric, threads=1)
    queries = made.values[0][::25]
    hits = index.search(queries, k=5, **all_lists(index))
    require_nearest(hits.rows, hits.scores, scores_by_hand(queries, made.values[0], metric), metric=metric)


@pytest.mark.parametrize("kind", ["flat", "ivf", "ivfpq", "rabitq", "hnsw", SLOW_TO_TRAIN, SLOW_HNSW])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rescore", [True, False])
@pytest.mark.quick(3)
def test_filters_hold_and_k_answers_come_where_there_are_k(
    made: Written, metric: str, kind: str, rescore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "FEW_ROWS", 20)
    index = build_index(made.store, layer=LAYER, kind=kind, metric=metric, threads=1)
    least = {"nprobe": 1} if "nlist" in index.info.parameters else {"ef": 4} if "ef" in index.info.parameters else {}
    rng = np.random.default_rng(0)
    types = np.asarray(made.store.index.type, np.int64)
    sentences = np.asarray(made.store.index.sentence, np.int64)
    asked = rng.choice(made.store.n_rows, 25, replace=False)
    queries = made.values[0][asked]
    for size in (made.store.n_rows, 300, 33, 19):
        rows = np.sort(rng.choice(made.store.n_rows, size, replace=False))
        groups = np.where(rng.random(25) < 0.2, -1, types[asked])
        exclude = [Exclusion(types, groups), Exclusion(sentences, sentences[asked])]
        allowed = np.isin(np.arange(made.store.n_rows), rows)[None] & (sentences[None] != sentences[asked][:, None])
        allowed &= (types[None] != groups[:, None]) | (groups < 0)[:, None]
        by_hand = scores_by_hand(queries, made.values[0], metric)
        hits = index.search(queries, k=30, rows=rows, exclude=exclude, rescore=rescore, **least)
        for query, (found, scores) in enumerate(zip(hits.rows, hits.scores, strict=True)):
            there = found[found >= 0]
            assert len(there) == len(set(there.tolist())) == min(30, allowed[query].sum())
            assert allowed[query][there].all()
            assert (np.isnan(scores) == (found < 0)).all()
            if rescore:
                np.testing.assert_allclose(scores[found >= 0], by_hand[query][there], rtol=1e-12, atol=1e-10)
        if kind == "flat" and rescore:
            require_nearest(hits.rows, hits.scores, by_hand, metric=metric, allowed=allowed)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_without_rescoring_the_answers_are_those_of_faiss(made: Written, kind: str) -> None:
    index = build_index(made.store, layer=LAYER, kind=kind, metric="l2", threads=1)
    bare = faiss.read_index(str(index.path / "index.faiss"))
    if kind == "ivf":
        bare.nprobe = 3
    else:
        bare.hnsw.efSearch = 40
    queries = made.values[0][::20]
    scores, rows = bare.search(queries.astype(np.float32), 10)
    hits = index.search(queries, k=10, rescore=False, **({"nprobe": 3} if kind == "ivf" else {"ef": 40}))
    np.testing.assert_array_equal(hits.rows, rows)
    np.testing.assert_allclose(hits.scores, np.sqrt(scores), rtol=1e-6)


def test_more_than_there_are_and_a_single_query(made: Written) -> None:
    index = build_index(made.store, layer=LAYER, kind="ivf", threads=1)
    hits = index.search(made.values[0][0], k=made.store.n_rows + 5, nprobe=1)
    require_nearest(
        hits.rows, hits.scores, scores_by_hand(made.values[0][:1], made.values[0], "cosine"), metric="cosine"
    )
    none = index.search(made.values[0][0], k=3, rows=np.empty(0, np.int64))
    assert (none.rows == -1).all()


@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw", "flat"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.quick(4)
def test_the_recall_that_is_measured_is_reached(made: Written, kind: str, metric: str) -> None:
    index = build_index(made.store, layer=LAYER, kind=kind, metric=metric, threads=1)
    table = measure_recall(index, k=10, n_queries=60, seed=4, threads=1)
    assert table.columns == ["setting", "recall", "queries_per_second", "k"]
    assert table["recall"].is_between(0, 1).all()
    assert (table["queries_per_second"] > 0).all()
    asked = np.sort(np.random.default_rng(4).choice(made.store.n_rows, 60, replace=False))
    by_hand = scores_by_hand(made.values[0][asked], made.values[0], metric) * (-1 if metric == "l2" else 1)
    by_hand[np.arange(60), asked] = -np.inf
    limit = np.sort(by_hand, 1)[:, -10] - 1e-9
    for listed in table.to_dicts()[:-1]:
        setting = dict([listed["setting"].split("=")]) if "=" in listed["setting"] else {}
        own = Exclusion(np.arange(made.store.n_rows), asked)
        hits = index.search(
            made.values[0][asked], k=10, exclude=[own], **{key: int(value) for key, value in setting.items()}
        )
        near = np.take_along_axis(by_hand, hits.rows, 1) >= limit[:, None]
        assert listed["recall"] == pytest.approx(near.sum(1).clip(max=10).mean() / 10)
    assert table["setting"].to_list()[-1] == "exact search"
    if kind == "flat":
        assert table["recall"].to_list() == [1, 1]


def test_names_and_listing(made: Written) -> None:
    build_index(made.store, layer=LAYER, kind="IVF3,Flat", metric="ip", n_components=1, threads=1)
    build_index(made.store, layer=LAYER, kind="flat", metric="ip", name="mine")
    found = {state.name: state for state in list_indexes(made.store)}
    assert found["layer2-IVF3-Flat-ip-less1"].state == found["mine"].state == "ready"
    assert open_index(made.store, name="mine").metric == "ip"
    assert open_index(made.store, layer=LAYER, kind="IVF3,Flat").info.settings.n_components == 1
    with pytest.raises(InvalidValueError, match=r"several such indexes: give the name, one of .*mine"):
        open_index(made.store, layer=LAYER, metric="ip")
    remove_index(made.store, "mine")
    with pytest.raises(SearchIndexNotFoundError, match="has no index 'mine'"):
        open_index(made.store, name="mine")
    with pytest.raises(SearchIndexNotFoundError, match="has no index of kind LSH"):
        open_index(made.store, kind="LSH")
    with pytest.raises(SearchIndexNotFoundError, match="did you mean 'layer2-IVF3-Flat-ip-less1'"):
        remove_index(made.store, "layer2-IVF3-Flat-ip-less2")


def test_removing_the_last_leaves_nothing(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        made = hard_store(tmp_path / f"s{suffix}", words=2)
        before = sorted(tmp_path.rglob("*"))
        build_index(made.store, layer=LAYER, kind="flat", name="a")
        assert sorted(tmp_path.rglob("*")) != before
        remove_index(made.store, "a")
        assert sorted(tmp_path.rglob("*")) == before
        assert list_indexes(made.store) == []


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("tree", "unknown kind 'tree': allowed are auto, flat, ivf, ivfpq, rabitq, hnsw, sketch"),
        ("IVF0", "unknown kind 'IVF0'"),
        ("LSH", "unknown kind 'LSH'.*cosine"),
        ("IVF5000,Flat", "rows are too few to train"),
        ("IVF4(HNSW0),Flat", "faiss ends with status -6"),
        ("HNSW0", "kind 'HNSW0' is not allowed: faiss ends with status -6 in building such an index"),
        ("IVF0,Flat", "kind 'IVF0,Flat' is not allowed"),
        ("IDMap,Flat", "faiss cannot add rows to an index of this kind"),
        ("ZnLattice3x10_4", "is not allowed: faiss cannot build such an index"),
        ("IVF64,PQ4x10", "rows are too few to train"),
        ("IVF99999999999999999999,Flat", "unknown kind"),
    ],
)
@pytest.mark.quick(1)
def test_kinds_that_faiss_has_not_are_one_line(made: Written, kind: str, says: str) -> None:
    """Each is tried in a process of its own."""
    with pytest.raises(InvalidValueError, match=says):
        build_index(made.store, layer=LAYER, kind=kind)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "Flat\0"}, "embedded null byte"),
        ({"threads": 99999}, "threads 99999 is not allowed: give 1 to 1,024"),
        ({"seed": 2**64}, "seed 18446744073709551616 is not allowed"),
        ({"metric": "jaccard"}, "unknown metric 'jaccard'; allowed are cosine, ip, l2"),
        ({"n_components": 12}, "n_components 12 is not allowed: give 0 to 11"),
        ({"n_components": -1}, "n_components -1 is not allowed"),
        ({"train_sample": 0}, "train_sample 0"),
        ({"memory": 0}, "memory 0"),
        ({"seed": -1}, "seed -1"),
        ({"threads": 0}, "threads 0"),
        ({"name": "../x"}, "name '../x' is not allowed"),
        ({"name": ".x"}, "name '.x' is not allowed"),
        ({"name": ""}, "name '' is not allowed"),
        ({"layer": 7}, "layer 7 is not stored"),
    ],
)
def test_bad_options_are_one_line(made: Written, options: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        build_index(made.store, **{"layer": LAYER, **options})  # type: ignore[arg-type]


def test_bad_searches_are_one_line(made: Written) -> None:
    index = build_index(made.store, layer=LAYER, kind="flat")
    query = made.values[0][:2]
    for options, says in (
        ({"k": 0}, "k 0 is not allowed"),
        ({"k": 1, "nprobe": 3}, "nprobe is for ivf and ivfpq: the index layer2-flat-cosine is SQfp16"),
        ({"k": 1, "ef": 3}, "ef is for hnsw"),
        ({"k": 1, "threads": 0}, "threads 0"),
    ):
        with pytest.raises(InvalidValueError, match=says):
            index.search(query, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="nprobe 0 is not allowed"):
        build_index(made.store, layer=LAYER, kind="ivf", threads=1).search(query, k=1, nprobe=0)
    with pytest.raises(InvalidValueError, match="queries must be"):
        index.search(query[:, :5], k=1)
    with pytest.raises(NonFiniteError):
        index.search(query * np.nan, k=1)
    for device in ("cuda", "cuda:0", "abacus"):
        if faiss.get_num_gpus() == 0:
            with pytest.raises(InvalidValueError, match=device):
                open_index(made.store, name=index.name, device=device)
    assert open_index(made.store, name=index.name, device="auto").search(query, k=1).rows.shape == (2, 1)


def test_an_index_with_missing_rows_is_not_put_in_place(made: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_kinds, "add", lambda index, vectors, seed: index.add(vectors[1:]))
    with pytest.raises(InvalidValueError, match=r"kind 'Flat' is not allowed: such an index holds \d+ of 809 rows"):
        build_index(made.store, layer=LAYER, kind="Flat", name="short", threads=1)
    assert "short" not in [state.name for state in list_indexes(made.store)]


def test_each_block_of_a_graph_has_random_numbers_of_its_own_that_the_seed_fixes() -> None:
    vectors = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    levels = []
    for seed in (0, 0, 1):
        index = index_kinds.new_index("HNSW8", 8, "l2")
        for start in (0, 200):
            index_kinds.add(index, vectors[start : start + 200], seed)
        levels.append(faiss.vector_to_array(index.hnsw.levels))
    assert (levels[0] == levels[1]).all()
    assert (levels[0] != levels[2]).any()
    assert (levels[0][:200] != levels[0][200:]).any()


def test_an_index_that_faiss_cannot_search_is_one_line(made: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_index(made.store, layer=LAYER, kind="flat", threads=1)

    def search(*arguments: object, **options: object) -> None:
        raise RuntimeError("Error in faiss\nError: 'nprobe > 0' failed")

    monkeypatch.setattr(index._faiss, "search", search)
    with pytest.raises(SearchIndexError, match=r"faiss cannot search the index layer2-flat-cosine .*build it again"):
        index.search(made.values[0][:2], k=1)


def test_too_few_rows_for_ivfpq(tmp_path: Path) -> None:
    made = hard_store(tmp_path / "s.zarr", words=2)
    with pytest.raises(InvalidValueError, match=r"too few rows to train ivfpq: 149 of 624 or more; choose flat or ivf"):
        build_index(made.store, layer=LAYER, kind="ivfpq")


def test_a_store_that_is_not_finished_has_no_index(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="not finished"):
        made = write_words(tmp_path / "s.zarr", [("a", np.ones((600, 4)))], written=False)
    with pytest.raises(MissingRowsError, match="is not finished, and only a finished store can have an index"):
        build_index(made.store, layer=LAYER, kind="flat")


def test_values_that_are_not_finite_name_their_row(tmp_path: Path) -> None:
    vectors = np.ones((300, 4))
    made = write_words(tmp_path / "s.zarr", [("a", vectors), ("b", np.full((1, 4), np.nan))])
    row = made.rows["b"][0]
    for kind in ("flat", "IVF2,Flat"):
        with pytest.raises(NonFiniteError, match=f"layer 2, row {row} holds a value that is not finite"):
            build_index(made.store, layer=LAYER, kind=kind)


def test_values_beyond_float16_are_refused_by_what_keeps_float16(tmp_path: Path) -> None:
    made = write_words(tmp_path / "s.zarr", [("a", np.full((300, 4), 1e5))])
    with pytest.raises(InvalidValueError, match=r"beyond 65,504, .* give 'Flat' as the kind"):
        build_index(made.store, layer=LAYER, kind="SQfp16", metric="ip")
    assert build_index(made.store, layer=LAYER, kind="flat", metric="ip").info.settings.factory == "Flat"
    assert build_index(made.store, layer=LAYER, kind="flat", metric="cosine").info.settings.factory == "SQfp16"


def test_auto_goes_by_rows_and_memory(made: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(memory: int | None) -> str:
        options = {"metric": "cosine", "centered": False, "train_sample": None, "memory": memory}
        return choose_kind(made.store, kind="auto", **options).kind  # type: ignore[arg-type]

    assert planned(None) == "flat"
    assert planned(1000) == "ivfpq"
    monkeypatch.setattr("embstore.analysis.neighbors.index_kinds.FLAT_ROWS", 100)
    assert planned(None) == "ivf"


def test_without_faiss_the_extra_is_named(made: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(made.store, layer=LAYER, kind="flat", name="plain")
    monkeypatch.setitem(sys.modules, "faiss", None)
    for call in (build_index, open_index):
        with pytest.raises(MissingPackageError, match=r"embstore\[faiss-cpu\]"):
            call(made.store, layer=LAYER, kind="flat", name="plain")  # type: ignore[operator]
