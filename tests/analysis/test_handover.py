"""Maps and vectors for Embedding Atlas and TensorBoard's projector, against the store's own answers."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis.projection import project
from embstore.errors import InvalidValueError, StorageError
from tests.store_making import make_store

ARGUMENTS = ["--x", "x", "--y", "y", "--text", "text", "--neighbors", "neighbors"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    return make_store(tmp_path_factory.mktemp("handover") / "s.zarr").store


def test_atlas_has_table_map_and_exact_neighbours(store: es.Store, tmp_path: Path) -> None:
    bank = store.select(words="bank")
    frame = pl.read_parquet(es.analysis.write_atlas(bank, tmp_path / "a.parquet", layer=2, k=3))
    plane = project(bank, layer=2)
    assert frame["occurrence"].to_list() == plane.rows.tolist() == bank.rows.tolist()
    np.testing.assert_array_equal(frame.select("x", "y").to_numpy(), plane.points)
    assert frame["upos"].to_list() == bank.table()["upos"].to_list()
    assert all("[bank]" in text for text in frame["text"])
    vectors = store.gather(bank.rows, 2).astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = 1 - unit @ unit.T
    np.fill_diagonal(distances, np.inf)
    for line, found in enumerate(frame["neighbors"].to_list()):
        assert found["ids"] == np.argsort(distances[line], kind="stable")[:3].tolist()
        np.testing.assert_allclose(found["distances"], np.sort(distances[line])[:3], atol=1e-6)


def test_atlas_takes_a_sample_of_the_last_layer_without_neighbours(store: es.Store, tmp_path: Path) -> None:
    frame = pl.read_parquet(es.analysis.write_atlas(store, tmp_path / "a.parquet", sample=40, k=0, seed=3))
    plane = project(store, layer=5, sample=40, seed=3)
    assert "neighbors" not in frame.columns
    assert frame["occurrence"].to_list() == plane.rows.tolist()
    np.testing.assert_array_equal(frame["x"].to_numpy(), plane.points[:, 0])


def test_projector_has_vectors_of_each_layer_and_their_table(store: es.Store, tmp_path: Path) -> None:
    hostile = store.with_labels("note", ["a\tb\r\nc" if row % 2 else None for row in range(store.n_rows)])
    out = es.analysis.write_projector(hostile.select(words="river", layers=[5, 0]), tmp_path / "p")
    rows = store.select(words="river").rows
    config = (out / "projector_config.pbtxt").read_text()
    for layer in (5, 0):
        values = np.fromfile(out / f"layer_{layer}.bytes", "<f4").reshape(len(rows), store.hidden_size)
        np.testing.assert_array_equal(values, store.gather(rows, layer))
        entry = rf'tensor_name: "layer {layer}" tensor_path: "layer_{layer}.bytes" metadata_path: "metadata.tsv"'
        assert re.search(rf"{entry} tensor_shape: {len(rows)} tensor_shape: {store.hidden_size} }}", config)
    lines = (out / "metadata.tsv").read_text("utf-8").split("\n")
    header, *table = [line.split("\t") for line in lines[:-1]]
    assert [int(line[header.index("occurrence")]) for line in table] == rows.tolist()
    assert {line[header.index("note")] for line in table} == {"", "a b  c"}
    assert {len(line) for line in table} == {len(header)}
    assert (
        len((es.analysis.write_projector(store, tmp_path / "q", sample=7) / "metadata.tsv").read_text().split("\n"))
        == 9
    )


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "")


def test_a_full_disk_leaves_no_folder(store: es.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.DataFrame, "write_csv", full)
    with pytest.raises(StorageError, match="the disk is full"):
        es.analysis.write_projector(store, tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused(store: es.Store, tmp_path: Path) -> None:
    (tmp_path / "there.parquet").touch()
    for path, message in (("a.csv", "a.csv has no known suffix"), ("there.parquet", "exists already")):
        with pytest.raises(InvalidValueError, match=message):
            es.analysis.write_atlas(store, tmp_path / path)
    with pytest.raises(InvalidValueError, match="exists already"):
        es.analysis.write_projector(store, tmp_path)


@pytest.mark.slow
def test_embedding_atlas_loads_the_file(store: es.Store, tmp_path: Path) -> None:
    command = shutil.which("embedding-atlas")
    if command is None:
        pytest.skip("the command embedding-atlas is not installed")
    path = es.analysis.write_atlas(store, tmp_path / "a.parquet")
    subprocess.run([command, path, *ARGUMENTS, "--export-application", tmp_path / "app"], check=True)
    loaded = pl.read_parquet(tmp_path / "app" / "data" / "dataset.parquet")
    assert loaded.select("occurrence", "x", "y", "text").equals(
        pl.read_parquet(path, columns=["occurrence", "x", "y", "text"])
    )
    assert loaded["neighbors"].struct.field("ids").list.len().unique().to_list() == [10]
    metadata = (tmp_path / "app" / "data" / "metadata.json").read_text()
    assert '"neighbors": "neighbors"' in metadata
