"""Stored rows in other tools, equal to `vectors()` to the bit: Arrow, Parquet, torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch

import embstore as es
from embstore.errors import InvalidValueError, MissingRowsError, StorageError, UnfinishedStoreWarning
from embstore.store.convert import tables
from embstore.store.convert.torch_dataset import TorchDataset
from embstore.store.framed import Framed
from tests.store.example import DTYPES, SUFFIXES, example

EXPECTED = {"float16": np.float16, "float32": np.float32, "bfloat16": np.float32, "int8": np.float32}


@pytest.fixture(params=[f"{suffix} {dtype}" for suffix in SUFFIXES for dtype in DTYPES])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> es.Store:
    monkeypatch.setattr(tables, "BATCH_NBYTES", 5000)
    monkeypatch.setattr(tables, "TABLE_ROWS", 150)  # neither divides the other, nor the number of rows
    suffix, dtype = request.param.split()
    return example(dtype=dtype).make(tmp_path / f"s{suffix}")


def selections(store: es.Store) -> list[es.store.Selection]:
    rows = np.random.default_rng(0).permutation(store.n_rows)[:333]
    return [store.select(), store.select(rows=slice(100, 523), layers=[5, 0]), store.select(rows=rows, layers=-1)]


def check(frame: pl.DataFrame, selection: es.store.Selection) -> None:
    vectors = selection.vectors().reshape(len(selection.layers), len(selection), -1)
    for layer, each in zip(selection.layers, vectors, strict=True):
        found = frame[f"layer_{layer}"].to_numpy()
        assert found.dtype == each.dtype == EXPECTED[selection.store.dtype]
        assert found.tobytes() == each.tobytes()
    table = selection.table()
    for name in table.columns:
        assert frame[name].cast(table[name].dtype).equals(table[name]), name


@pytest.mark.quick(1)
def test_parquet_has_the_table_and_the_vectors(store: es.Store, tmp_path: Path) -> None:
    for number, selection in enumerate(selections(store)):
        path = es.store.write_table(selection, tmp_path / f"{number}.parquet")
        check(pl.read_parquet(path), selection)
    assert "embstore" in pl.read_parquet_metadata(path)


@pytest.mark.quick(1)
def test_arrow_streams_read_only_what_is_asked_for(store: es.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for selection in selections(store):
        batches = list(selection.to_arrow())
        assert len(batches) > 2
        check(pl.concat(batches), selection)
        check(pl.DataFrame(selection.to_arrow()), selection)  # through the Arrow C stream
    check(pl.DataFrame(store.select().to_arrow()), store.select())
    read: list[Any] = []
    vectors = es.Store.vectors
    monkeypatch.setattr(
        es.Store, "vectors", lambda self, rows, *, layers: read.append(layers) or vectors(self, rows, layers=layers)
    )
    frame = pl.DataFrame(store.select().to_arrow(columns=["word", "layer_3"]))
    assert frame.columns == ["word", "layer_3"]
    assert {tuple(layers) for layers in read} == {(3,)}
    read.clear()
    assert pl.DataFrame(store.select().to_arrow(columns=["position"])).height == store.n_rows
    assert read == []
    with pytest.raises(InvalidValueError, match="there is no column 'layer_4': the store has occurrence"):
        store.select().to_arrow(columns=["layer_4"])


@pytest.mark.quick(3)
def test_torch_is_the_same_dataset(store: es.Store) -> None:
    made = store.to_torch(batch_size=100, shuffle=True, seed=3)
    same = TorchDataset(store.select(), batch_size=100, shuffle=True, seed=3)
    assert all(torch.equal(one.vectors, other.vectors) for one, other in zip(made, same, strict=True))
    assert isinstance(store.select(layers=-1).to_torch(), TorchDataset)


@pytest.mark.parametrize("method", ["write_parquet", "sink_parquet"])
def test_a_full_disk_leaves_no_table(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = example().make(tmp_path / "s.zarr")
    kind, full = (
        (pl.DataFrame, lambda: es.store.write_frame(pl.DataFrame({"a": [1]}), tmp_path / "t.parquet"))
        if method == "write_parquet"
        else (pl.LazyFrame, lambda: es.store.write_table(store.select(), tmp_path / "t.parquet"))
    )
    text = "parquet: File out of specification: Invalid thrift: transport error"  # as of Polars where its disk is full
    monkeypatch.setattr(kind, method, Mock(side_effect=pl.exceptions.ComputeError(text)))
    with pytest.raises(StorageError, match=r"cannot write .*t.parquet .*is the disk full\?"):
        full()
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    made = example()
    store = made.make(tmp_path / "s.zarr")
    (tmp_path / "taken.parquet").write_text("mine")
    for name, message in (("x.csv", "has another suffix than .parquet"), ("taken.parquet", "exists already")):
        with pytest.raises(InvalidValueError, match=message):
            es.store.write_table(store.select(), tmp_path / name)
    assert (tmp_path / "taken.parquet").read_text() == "mine"
    made.fill(made.create(tmp_path / "part.zarr"), [0])
    with pytest.warns(UnfinishedStoreWarning):
        part = es.open(tmp_path / "part.zarr")
    with pytest.raises(MissingRowsError, match="not written yet"):
        es.store.write_table(part.select(), tmp_path / "part.parquet")
    assert not (tmp_path / "part.parquet").exists()
    es.store.write_table(part.select(rows=range(100)), tmp_path / "part.parquet")


def test_a_result_that_is_a_frame_is_shown_and_saved(tmp_path: Path) -> None:
    class Found(Framed):
        frame = pl.DataFrame({"word": ["bank"]})

    assert "bank" in Found()._repr_html_()
    Found().save(tmp_path / "found.csv")
    assert pl.read_csv(tmp_path / "found.csv").equals(Found.frame)
