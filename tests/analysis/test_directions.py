"""Top activations of directions against every value, in float64, sorted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis import directions as module
from embstore.analysis import scan
from embstore.analysis.directions import Activations
from embstore.analysis.projection import stretches
from embstore.errors import InvalidValueError, MissingRowsError, UnfinishedStoreWarning
from tests.extraction.plans import plan_of
from tests.models.tiny import save
from tests.store_making import make_store


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small stores into several parts of several blocks, and directions into several groups."""
    monkeypatch.setattr(scan, "MIN_PARTS", 3)
    monkeypatch.setattr(scan, "BLOCK_NBYTES", 4 * 6 * 40)
    monkeypatch.setattr(module, "VALUES", 40 * 5)
    monkeypatch.setattr(module, "RESCORED_NUMBERS", 6 * 17 * 3)


def ranked(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Positions by value, the highest first, equal ones by row."""
    return np.lexsort((rows, -values))


def check(
    found: Activations,
    data: Any,
    directions: np.ndarray,
    *,
    k: int,
    bias: Any = 0.0,
    quantiles: Any = (),
    around: int = 8,
) -> None:
    """Compare with all values of the selected rows, and those of the contexts row by row."""
    selection = data if isinstance(data, es.store.Selection) else data.select()
    store, rows = selection.store, np.unique(selection.rows)
    index, every = store.index, store.vectors(layers=found.layer).astype(np.float64)
    biases = np.broadcast_to(bias, len(directions))
    assert found.summary["direction"].to_list() == list(range(len(directions)))
    for number, direction in enumerate(directions):
        all_values = (every * direction.astype(np.float64)).sum(1) + biases[number]
        own = all_values[rows]
        order, about = ranked(own, rows), found.summary.row(number, named=True)
        part = found.frame.filter(direction=number)
        top = part.filter(kind="top")
        assert top["occurrence"].to_list() == rows[order[:k]].tolist()
        assert top["rank"].to_list() == list(range(min(k, len(rows))))
        for quantile in quantiles:
            near = part.filter(kind=f"{quantile:g}")
            center = round(quantile * (len(rows) - 1))
            low = min(max(0, center - k // 2), max(0, len(rows) - k))
            assert near["occurrence"].n_unique() == len(near)
            assert near["value"].to_list() == pytest.approx(np.sort(own)[low : low + k][::-1], abs=1e-5)  # as float32
            assert about[f"quantile_{quantile:g}"] == pytest.approx(np.sort(own)[center], abs=1e-5)
        assert about["count"] == len(rows)
        assert about["share"] == (own > 0).mean()
        assert about["mean"] == pytest.approx(own.mean(), abs=1e-5)
        assert about["highest"] == top["value"][0] == pytest.approx(own.max(), abs=1e-12)
        columns = part.select("occurrence", "value", "center", "rows", "values").rows()
        for row, value, center, shown, values in columns:
            indptr, context = index.indptr, index.sentence[row]
            if index.contexts is not None:
                indptr, context = index.contexts.indptr, int(index.contexts.of_rows(np.array([row]))[0])
            first, stop = max(int(indptr[context]), row - around), min(int(indptr[context + 1]), row + around + 1)
            assert (shown, center) == (list(range(first, stop)), row - first)
            assert values == pytest.approx(all_values[first:stop], abs=1e-12)
            assert value == values[center]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 7, 10_000])
def test_examples_are_those_of_all_values_sorted(k: int, ties: bool, tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", ties=ties).store
    drawn = np.random.default_rng(1).integers(-3, 4, (12, 6)).astype(np.float32)
    drawn[3] = 0
    bias = np.arange(-6, 6) / 4
    for data in (
        store,
        store.select(where="upos = 'NOUN'"),
        store.select(rows=[9, 4, 4, 300, 20]),
        store.select(rows=slice(5, 90)),
    ):
        few = np.asfortranarray(drawn) if k < 10_000 else drawn[:2]  # as a transposed encoder is
        options: dict[str, Any] = {"k": k, "quantiles": (0, 0.5, 0.9, 1), "around": 2}
        found = es.activations(data, few, layers=2, bias=bias[: len(few)], **options)
        check(found, data, few, bias=bias[: len(few)], **options)
        with es.config(threads=3):
            again = es.activations(data, few, layers=2, bias=bias[: len(few)], **options)
        assert again.frame.equals(found.frame)
        assert again.summary.equals(found.summary)


def test_quantiles_of_many_rows_are_those_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, drawn = make_store(tmp_path / "x.zarr").store, np.random.default_rng(2).normal(size=(5, 6))
    monkeypatch.setattr(module, "SAMPLE", 50)
    found = es.activations(store, drawn, k=3, quantiles=[0.5, 0.99], layers=0)
    sample = stretches(store.n_rows, 50, 0)
    assert set(found.frame.filter(pl.col("kind") != "top")["occurrence"]) <= set(sample.tolist())
    check(es.activations(store.select(rows=sample), drawn, k=3, layers=0), store.select(rows=sample), drawn, k=3)
    for kind in ("0.5", "0.99"):
        alone = es.activations(store.select(rows=sample), drawn, k=3, quantiles=[float(kind)], layers=0)
        assert found.frame.filter(kind=kind).equals(alone.frame.filter(kind=kind))


@pytest.mark.parametrize("unit", ["word", "subword"])
@pytest.mark.parametrize("context", ["sentence", "document", 16])
@pytest.mark.quick(3)
def test_contexts_are_shown_as_their_author_wrote_them(unit: str, context: Any, tmp_path: Path) -> None:
    texts = ["The bank  was closed!\n\n\nUnbelievably, Rivers flow to the\tsea.  The cat sat. ", " No\n"]
    options: dict[str, Any] = {"unit": unit, "context": context, "dtype": "float32", "layers": 2}
    store = es.extract(plan_of(texts, model=save("gpt2", tmp_path / "gpt2"), **options), tmp_path / "x.zarr")
    drawn, around = np.random.default_rng(3).normal(size=(4, 32)), 100 if context == "document" else 3
    found = es.activations(store, drawn, k=5, around=around)
    check(found, store, drawn, k=5, around=around)
    assert all("".join(pieces) in "".join(texts) for pieces in found.frame["pieces"].to_list())
    for row, pieces, center in found.frame.select("occurrence", "pieces", "center").rows():
        assert store.select(rows=[row]).concordance()[0][1] in pieces[center]
    if (unit, context) == ("word", "document"):
        assert "".join(max(found.frame["pieces"].to_list(), key=len)) == texts[0]


def test_what_is_not_written_is_null_beside_an_example(tmp_path: Path) -> None:
    with pytest.warns(UnfinishedStoreWarning):
        store = make_store(tmp_path / "x.zarr", leave_out=(1,)).store
    drawn = np.ones((1, 6))
    with pytest.raises(MissingRowsError):
        es.activations(store, drawn)
    found = es.activations(store.select().written(), drawn, k=10_000)
    last = found.frame.filter(occurrence=255)["values"][0].to_list()
    assert (None in last) == (store.index.sentence[255] == store.index.sentence[256])
    assert found.frame["value"].null_count() == 0


def test_a_notebook_shows_shaded_subwords(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr").store
    shown = es.activations(store, np.eye(6), k=5)._repr_html_()
    assert shown.count("<tr>") == 15
    assert "rgba(255,140,0,1.00);font-weight:bold" in shown
    found = es.activations(store, np.zeros(6), k=2)
    assert repr(found) == f"<Activations of 1 directions over {store.n_rows:,} rows of layer 5: top>"
    assert "rgba(255,140,0,0.00)" in found._repr_html_()
    found.save(tmp_path / "x.parquet")
    assert pl.read_parquet(tmp_path / "x.parquet").equals(found.frame)


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr").store
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (np.ones((6, 7)), {}, r"directions must be \[n, 6\] .*: give the transpose"),
        (np.ones((2, 6)), {"bias": [1, 2, 3]}, "bias of shape .3,. is not allowed"),
        (np.ones((2, 6)), {"bias": np.nan}, "one finite number or 2"),
        (np.ones((2, 6)), {"layers": [0, 2]}, "give one"),
        (np.ones((2, 6)), {"quantiles": [1.5]}, "quantiles 1.5 is not allowed"),
        (np.ones((2, 6)), {"k": 0}, "k 0 is not allowed"),
    ]
    for directions, options, says in wrong:
        with pytest.raises(InvalidValueError, match=says):
            es.activations(store, directions, **options)
    with es.config(memory=1000), pytest.raises(InvalidValueError, match=r"200 directions need .* give fewer at a time"):
        es.activations(store, np.ones((200, 6)))
