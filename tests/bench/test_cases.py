"""The rivals do the same work as embstore, and the whole table is measured on tiny data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest
import torch

import embstore as es
from embstore.analysis.neighbors.exact import exact_search
from embstore.analysis.neighbors.space import Space, StoreVectors
from embstore.bench import cases
from embstore.bench.extraction_cases import good_script, made_sentences
from embstore.bench.made import write_stores
from embstore.bench.probe_cases import epoch_of_baddbmm, epoch_of_linear_layers
from embstore.bench.rivals import GATHER, SEARCH, ReadData, Rival, SearchData, cosines_in_torch, made
from embstore.bench.run import QUICK, Sizes
from embstore.errors import InvalidValueError
from tests.json_schemas import validator_of
from tests.models.tiny import save
from tests.store_making import make_store

TINY = Sizes(1_500, 2, 16, (50, 1_000), (1, 20), (12,), 1, 0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    path = tmp_path_factory.mktemp("bench") / "made.zarr"
    write_stores([path], n_rows=900, n_layers=2, hidden_size=16)
    return es.open(path)


@pytest.mark.slow
def test_every_way_to_gather_returns_the_same_rows(
    store: es.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    slow = import_module("query").GATHER_SLOW
    vectors = np.array(store.gather(np.arange(store.n_rows), 1))
    ready, _ = made(GATHER | slow, ReadData(store, 1, vectors, tmp_path))
    assert len(ready) >= 4
    rows = np.array([5, 899, 0, 5, 77])
    for name, gather in ready.items():
        assert gather(rows).tobytes() == vectors[rows].tobytes(), name


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_every_way_to_search_finds_the_same_rows(store: es.Store, metric: str, share: float) -> None:
    vectors = np.array(store.gather(np.arange(store.n_rows), 1)).astype(np.float32)
    rows = None if share == 1 else np.flatnonzero(np.random.default_rng(1).random(len(vectors)) < share)
    exact = exact_search(StoreVectors(store, 1), vectors[:6], k=4, space=Space(metric), rows=rows, device="cpu")
    if metric == "cosine":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ready, _ = made(SEARCH, SearchData(vectors, 4, metric, rows, 1))
    assert {"numpy matmul, argpartition", "torch matmul, topk"} <= set(ready)
    for name, search in ready.items():
        found = search(vectors[:6])
        assert (np.sort(found) == np.sort(exact.rows)).mean() > 0.95, name


def test_wrong_vectors_end_a_measurement(store: es.Store, tmp_path: Path) -> None:
    setting = cases.Setting(store, 1, tmp_path, repeats=1)
    wrong = Rival("numpy", lambda module, data: lambda rows: data.vectors[rows - 1])
    with pytest.raises(RuntimeError, match="wrong vectors for 50 rows"):
        list(cases.gather_rows(setting, (50,), {"wrong": wrong}))


def test_cosines_by_hand_are_those_of_geometry(tmp_path: Path) -> None:
    held = make_store(tmp_path / "x.zarr", sentences=200).store
    index, layer = held.index, held.layers[1]
    vectors = np.array(held.gather(np.arange(held.n_rows), layer))
    words, sentences, anisotropy = cosines_in_torch(vectors, index.type, index.sentence)
    frame = es.geometry(held, metrics=("selfsim", "intrasim", "anisotropy"), layers=layer)
    by_hand = {word: float(value) for word, value in zip(index.words, words, strict=True)}
    by_hand |= {str(number): float(value) for number, value in enumerate(sentences)}
    items = frame.filter(pl.col("item") != "")
    assert items.height > 100
    for item, value in items.select("item", "value").rows():
        assert by_hand[item] == pytest.approx(value, abs=1e-6)
    assert float(anisotropy) == pytest.approx(frame.filter(pl.col("metric") == "anisotropy")["value"][0], abs=1e-6)


@pytest.mark.parametrize("epoch", [epoch_of_baddbmm, epoch_of_linear_layers])
def test_an_epoch_by_hand_takes_a_step_a_batch(epoch: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[list[tuple[int, ...]]] = []
    monkeypatch.setattr(
        torch.optim.Adam,
        "step",
        lambda self: sizes.append([tuple(p.grad.shape) for p in self.param_groups[0]["params"]]),
    )
    epoch(torch.randn(3, 40, 5), torch.eye(4).repeat(10, 1), 16)
    assert len(sizes) == 3
    assert sum(int(np.prod(shape)) for shape in sizes[0]) == 3 * (5 + 1) * 4, "weights and biases of three layers"


@pytest.mark.slow
def test_the_good_script_writes_the_vectors_of_an_extraction(tmp_path: Path) -> None:
    import transformers

    folder = save("bert", tmp_path / "model")
    words = ["the", "mouse", "mice", "unhappily", "and", "x1"]
    sentences = made_sentences(30, words)
    assert sentences == made_sentences(30, words) != made_sentences(30, words, seed=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    good_script(sentences, tokenizer, model, tmp_path / "script.npy")
    theirs = np.load(tmp_path / "script.npy")
    plan = es.plan(sentences, model=es.load_encoder(folder), progress=False)
    ours = es.extract(plan, tmp_path / "x.zarr", progress=False)
    assert np.abs(ours.gather_layers(np.arange(ours.n_rows)).astype(float) - theirs).max() < 2e-3


@pytest.mark.slow
def test_the_whole_table_on_tiny_data(tmp_path: Path) -> None:
    rows: list[es.bench.Row] = []
    model = save("bert", tmp_path / "model")
    report = es.bench.bench_all(quick=True, model=str(model), folder=tmp_path, each_row=rows.append, sizes=TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert tuple(rows) == report.rows
    report.save(tmp_path / "report.json")
    held = json.loads((tmp_path / "report.json").read_text())
    assert held == json.loads(json.dumps(report.as_json()))
    validator_of("bench").validate(held)
    what = [row.what for row in report.rows if row.threads == 1]
    begins = ("gather 50", "gather 1,000", "scan a layer", "scan a layer, cold", "open", "verify", "exact search")
    begins += ("geometry", "1,500 vectors in shuffled", "82 linear probes", "stream of edge", "embstore info")
    for begin in begins:
        assert any(each.startswith(begin) for each in what), begin
    assert any(row.what.startswith("extract 12 sentences") and row.to_rival for row in report.rows)
    assert all(row.ours > 0 and (row.limit is None or row.limit > 0) for row in report.rows)
    with pytest.raises(jsonschema.ValidationError):
        validator_of("bench").validate({**held, "rows": [{**held["rows"][0], "ours": -1.0}]})


@pytest.mark.slow
def test_a_store_of_the_user_is_measured(tmp_path: Path) -> None:
    held = make_store(tmp_path / "x.h5", sentences=300).store
    report = es.bench.bench_all(tmp_path / "x.h5", sizes=replace(TINY, gathered=(50,), queries=(1,)))
    assert f"{held.n_rows:,} vectors in shuffled batches" in [row.what for row in report.rows]
    with pytest.raises(InvalidValueError, match="rows"):
        es.bench.bench_all(sizes=replace(QUICK, rows=0))
