"""Stores of several sites: what each holds, and commits, resume, repair and export of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError, MissingRowsError, ModelError, StoreMismatchError
from embstore.store import StoreWriter
from tests.extraction.fake import SIZES, FakeEncoder, site_vectors
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import many, small_partitions
from tests.store.example import all_files, flip

SITES = tuple(SIZES)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_partitions(monkeypatch)


def plan(**options: Any) -> es.extraction.Plan:
    options = {"sites": SITES, "dtype": "float32", "model": FakeEncoder()} | options
    return plan_of(many(150), **options)


def require_all_sites(path: Path, *, layers: tuple[int, ...] = (0, 1, 2)) -> None:
    store = es.open(path)
    assert (store.sites, store.layers) == (SITES, layers)
    assert store.finished
    assert es.verify(path).ok
    residual = store.select(layers=[layer for layer in layers if layer]).vectors()
    for site in SITES:
        of_site = store.site(site)
        assert of_site.layers == (layers if site == "residual" else tuple(layer for layer in layers if layer))
        found = of_site.select(layers=[layer for layer in layers if layer]).vectors()
        np.testing.assert_array_equal(found, site_vectors(residual, site))
        scanned = np.concatenate([block for _, block in of_site.scan("last")])
        np.testing.assert_array_equal(scanned, found[-1])


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.quick(1)
def test_each_site_is_stored(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    made = plan()
    store = es.extract(made, path)
    assert made.layout.n_partitions > 2
    assert made.metadata.n_partitions == 3 * made.layout.n_partitions
    require_all_sites(path)
    alone = es.extract(plan(sites=["residual"]), tmp_path / f"alone{suffix}")
    np.testing.assert_array_equal(alone.select().vectors(), store.select().vectors())
    assert alone.sites == ("residual",)


def test_a_site_is_opened_by_name_and_by_path(tmp_path: Path) -> None:
    es.extract(plan(), tmp_path / "x.zarr")
    query = es.open(f"{tmp_path}/x.zarr#query")
    assert (query.hidden_size, query.layers) == (6, (1, 2))
    assert len(query) == query.n_rows
    digests = {es.open(tmp_path / "x.zarr", site=site).digest for site in SITES}
    assert (len(digests), query.digest) == (3, query.site("value").site("query").digest)
    copy = pickle.loads(pickle.dumps(query))
    np.testing.assert_array_equal(copy.vectors([0, 3], layers=2), query.vectors([0, 3], layers=2))
    with pytest.raises(InvalidValueError, match="no site 'key': it has residual, query, value"):
        es.open(tmp_path / "x.zarr", site="key")
    with pytest.raises(InvalidValueError, match="layer 0 is not stored"):
        query.vectors([0], layers=0)


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_without_the_residual_stream(tmp_path: Path, suffix: str) -> None:
    store = es.extract(plan(sites="value, query", layers="1-2"), tmp_path / f"x{suffix}")
    assert (store.sites, store.source.layout.site) == (("query", "value"), "query")
    assert store.hidden_size == 6
    assert es.verify(store.path).ok
    assert store.finished


class Stopped(Exception):
    pass


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.parametrize("survived", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 3, 5, 8))])
@pytest.mark.quick(1)
def test_interrupted_between_the_sites_of_a_partition(
    tmp_path: Path, suffix: str, survived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes result, wherever the first call ended."""
    expected = es.extract(plan(), tmp_path / f"whole{suffix}")
    path, write, left = tmp_path / f"x{suffix}", StoreWriter.write, [survived]

    def stopping(self: StoreWriter, partition: int, arrays: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stopped
        write(self, partition, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write", stopping)
        with pytest.raises(Stopped):
            es.extract(plan(), path)
    if survived == 2:  # residual and query of the first partition
        with pytest.warns(es.errors.UnfinishedStoreWarning):
            store = es.open(path)
        assert not store.finished
        assert store.site("query").source.committed.tolist() == [True] + [False] * (
            store.source.layout.n_partitions - 1
        )
        assert not store.site("value").source.committed.any()
        with pytest.raises(MissingRowsError):
            store.site("value").vectors([0], layers=1)
    counted: list[tuple[int, int | None]] = []
    with es.config(progress=lambda done, total: counted.append((done, total))):
        es.extract(plan(), path)
    assert counted[-1] == (expected.n_rows, expected.n_rows)
    assert all(done <= expected.n_rows for done, _ in counted)
    assert all_files(path) == all_files(expected.path)


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.quick(1)
def test_damage_of_one_site_is_named_and_repaired(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    store = es.extract(plan(), path)
    n_parts = store.source.layout.n_partitions
    target, before = path, store.site("query").vectors([0], layers=1)
    if suffix == ".zarr":
        target = path / "query" / "c" / "0" / "1" / "0"
        assert target.exists()
    row = store.site("query").vectors([store.source.layout.partition_rows], layers=1).tobytes()
    flip(target, target.read_bytes().find(row))
    report = es.verify(path)
    assert report.damaged_partitions == [n_parts + 1]
    assert "query" in str(report.faults[0])
    es.extract(plan(), path, repair=True)
    require_all_sites(path)
    np.testing.assert_array_equal(es.open(path, site="query").vectors([0], layers=1), before)


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.quick(1)
def test_damaged_metadata_are_repaired_and_rows_kept(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    es.extract(plan(), path)
    if suffix == ".zarr":
        (path / "query" / "zarr.json").unlink()
        (path / "block" / "c" / "0").unlink()
    else:
        at = path.read_bytes().find(b'"batch_subwords"')
        flip(path, at + 2)
    assert not es.verify(path).ok
    es.extract(plan(), path, repair=True)
    require_all_sites(path)


@pytest.mark.parametrize(("start", "end"), [(".zarr", ".h5"), (".h5", ".zarr")])
@pytest.mark.quick(1)
def test_all_sites_are_exported(tmp_path: Path, start: str, end: str) -> None:
    store = es.extract(plan(), tmp_path / f"x{start}")
    es.export(store.site("value"), tmp_path / f"copy{end}")
    require_all_sites(tmp_path / f"copy{end}")
    es.export(store.select(rows=slice(10, 300), layers=[0, 2]), tmp_path / f"part{end}")
    require_all_sites(tmp_path / f"part{end}", layers=(0, 2))
    half = es.export(store, tmp_path / f"half{end}", dtype="float16").site("query")
    assert half.dtype == "float16"
    assert es.verify(half.path).ok
    np.testing.assert_allclose(half.select().vectors(), store.site("query").select().vectors(), atol=1e-3)
    for dtype, layers, message in (("int8", [1], "int8 is possible"), (None, [0], "layer 0 comes before")):
        with pytest.raises(InvalidValueError, match=message):
            es.export(store.select(layers=layers), tmp_path / "no.zarr", dtype=dtype)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for sites, message in (("residual,quary", "unknown site 'quary': choose among residual, attention_output"),):
        with pytest.raises(InvalidValueError, match=message):
            es.ExtractionOptions(sites=sites)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="int8 is possible for the site residual alone"):
        es.ExtractionOptions(sites=SITES, dtype="int8")
    with pytest.raises(InvalidValueError, match="layer 0 comes before the first block"):
        plan(layers=0)
    with pytest.raises(ModelError, match="Fake has no site mlp_output"):
        plan(sites="mlp_output")
    es.extract(plan(), tmp_path / "x.zarr")
    with pytest.raises(StoreMismatchError, match="was made with sites"):
        plan(sites="residual", store=tmp_path / "x.zarr")
