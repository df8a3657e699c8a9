"""Activations of directions next to a product of all rows in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis import directions as module
from embstore.errors import InvalidValueError
from tests.models import tiny
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=["zarr", "h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("stores") / f"store.{request.param}", sentences=200)


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("small", [False, True])
def test_the_highest_rows_are_those_of_all_products(
    made: Made, some: bool, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:  # many blocks of rows and of directions
        monkeypatch.setitem(module.NUMBERS, "cpu", (40, 30))
    rng = np.random.default_rng(3)
    size, k, layer = made.store.hidden_size, 7, made.store.layers[-1]
    given, bias = rng.standard_normal((5, size)).astype(np.float32), rng.standard_normal(5)
    given[4] = 0  # all rows are equal: in the order of rows
    data = made.store.select(where="occurrence % 3 > 0") if some else made.store
    rows = made.store.select(where="occurrence % 3 > 0").rows if some else np.arange(made.store.n_rows)
    found = es.activations(data, given, k=k, bias=bias, layers=layer, quantiles=[0.5], around=2)
    values = made.vectors[made.store.layers.index(layer)].astype(np.float64) @ given.T.astype(np.float64) + bias
    for number in range(5):
        own = values[rows, number]
        order = np.lexsort((rows, -own))[:k]
        top = found.frame.filter(direction=number, kind="top")
        assert top["occurrence"].to_list() == rows[order].tolist()
        assert top["rank"].to_list() == list(range(k))
        np.testing.assert_allclose(top["value"], own[order], rtol=1e-9, atol=1e-9)
        about = found.summary.filter(direction=number).to_dicts()[0]
        assert about["share"] == pytest.approx((own > 0).mean())
        assert about["mean"] == pytest.approx(own.mean(), abs=1e-5)
        middle = found.frame.filter(direction=number, kind="0.5")["value"].to_numpy()
        ranks = np.searchsorted(np.sort(own), middle)
        if number != 4:
            assert np.abs(ranks - (len(own) - 1) / 2).max() <= k, "the rows next in rank to the median"
    for row in found.frame.to_dicts():
        assert row["rows"][row["center"]] == row["occurrence"]
        assert row["rows"] == list(range(row["rows"][0], row["rows"][-1] + 1))
        assert len(row["rows"]) <= 5
        sentences = made.store.index.sentence[row["rows"]]
        assert (sentences == sentences[0]).all()
        np.testing.assert_allclose(row["values"], values[row["rows"], row["direction"]], rtol=1e-9, atol=1e-9)


def test_pieces_of_a_context_are_its_text(tmp_path: Path) -> None:
    text = "The cat sat.\n\nRain  fell on the river, and the boats turned. A cat!"
    options = es.ExtractionOptions(unit="subword", context=256)
    plan = es.plan([es.corpus.Document(text)], model=tiny.save("gpt2", tmp_path / "gpt2"), options=options)
    store = es.extract(plan, tmp_path / "store.zarr")
    found = es.activations(store, np.ones(store.hidden_size), k=3, around=10**6)
    assert {"".join(pieces) for pieces in found.frame["pieces"].to_list()} == {text}
    html = found._repr_html_()
    assert "font-weight:bold" in html
    assert "1 directions" in html


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (np.ones((6, 3)), {}, "give the transpose"),
        (np.ones((2, 5)), {}, r"directions must be \[n, 6\]"),
        (np.ones(6), {"bias": [1, 2]}, "give 1 finite numbers, or one"),
        (np.ones(6), {"layers": [0, 2]}, "2 layers"),
        (np.ones(6), {"quantiles": [1.5]}, "1.5"),
    ],
)
def test_other_directions_are_refused(made: Made, given: Any, options: dict[str, Any], message: str) -> None:
    assert made.store.hidden_size == 6
    with pytest.raises(InvalidValueError, match=message):
        es.activations(made.store, given, **options)


def test_a_plain_frame_follows(made: Made) -> None:
    frame = es.activations(made.store, np.eye(made.store.hidden_size), k=2).frame
    assert frame.group_by("direction").len()["len"].to_list() == [2] * made.store.hidden_size
    assert frame.schema["pieces"] == pl.List(pl.String)
