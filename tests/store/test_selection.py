"""Selections and the occurrence table against plain Python filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidValueError, MissingRowsError, UnfinishedStoreWarning
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=[".zarr", ".h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("selection") / f"s{request.param}")


def oracle(made: Made, **conditions: Any) -> list[int]:
    """The rows that a selection must have, one by one."""
    rows = []
    for row in made.table:
        wanted = [
            "words" not in conditions or row["word"] in conditions["words"],
            "sentences" not in conditions or row["sentence"] in conditions["sentences"],
            "labels" not in conditions or row["upos"] in conditions["labels"]["upos"],
            "least" not in conditions or int(str(row["position"])) >= conditions["least"],
        ]
        if all(wanted):
            rows.append(int(str(row["occurrence"])))
    given_rows = conditions.get("rows")
    return rows if given_rows is None else [row for row in given_rows if row in set(rows)]


CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "words": st.lists(st.sampled_from(["bank", "river", "the", "new york", "évident"]), min_size=1, max_size=3),
        "sentences": st.lists(st.integers(0, 119), max_size=40),
        "labels": st.fixed_dictionaries(
            {"upos": st.lists(st.sampled_from(["NOUN", "DET", "X"]), min_size=1, max_size=2)}
        ),
        "least": st.integers(0, 6),
        "rows": st.lists(st.integers(0, 400), max_size=60),
    },
)


@settings(max_examples=120, deadline=None)
@given(wanted=CONDITIONS, layers=st.lists(st.sampled_from([0, 2, 5]), min_size=1, max_size=3, unique=True))
def test_any_conditions(made: Made, wanted: dict[str, Any], layers: list[int]) -> None:
    conditions = dict(wanted)
    least = conditions.pop("least", None)
    where = None if least is None else pl.col("position") >= least
    selection = made.store.select(**conditions, where=where, layers=layers)
    rows = oracle(made, **wanted)
    assert selection.rows.tolist() == rows
    assert len(selection) == len(rows)
    places = [made.store.layers.index(layer) for layer in layers]
    np.testing.assert_array_equal(selection.vectors(), made.vectors[places][:, rows])
    blocks = list(selection.iter_blocks(block_rows=7))
    for layer, place in zip(layers, places, strict=True):
        own = [block for block in blocks if block.layer == layer]
        assert all(len(block.rows) <= 7 for block in own)
        assert [row for block in own for row in block.rows.tolist()] == rows
        for block in own:
            np.testing.assert_array_equal(block.vectors, made.vectors[place][block.rows])


def test_contexts_are_the_table(made: Made) -> None:
    contexts = made.store.select(words="new york").table()
    assert contexts.to_dicts() == [row for row in made.table if row["word"] == "new york"]
    assert made.store.select(rows=[5, 3, 5]).table().to_dicts() == [made.table[row] for row in (5, 3, 5)]
    assert made.store.table().to_dicts() == made.table
    few = made.store.table(columns=["upos", "occurrence"])
    assert few.to_dicts() == [{"upos": row["upos"], "occurrence": row["occurrence"]} for row in made.table]


def test_any_polars_expression_filters(made: Made) -> None:
    long_word = pl.col("word").cast(pl.String).str.len_chars() > 4
    rows = made.store.select(where=[long_word, pl.col("upos").is_null() | (pl.col("upos") == "X")]).rows.tolist()
    assert rows == [row["occurrence"] for row in made.table if len(str(row["word"])) > 4 and row["upos"] in (None, "X")]


def test_rows_in_every_notation(made: Made) -> None:
    count = made.store.n_rows
    mask = np.arange(count) % 3 == 0
    assert made.store.select(rows=mask).rows.tolist() == np.flatnonzero(mask).tolist()
    assert made.store.select(rows=slice(2, 9, 2)).rows.tolist() == [2, 4, 6, 8]
    assert made.store.select(rows=[]).rows.tolist() == []
    assert made.store.select(types=[3, 3], layers=2).rows.tolist() == oracle(made, words=["new york"])
    assert made.store.select().rows.tolist() == list(range(count))
    assert made.store.select(words="bank").vectors(dtype="float64").dtype == np.float64


def test_a_selection_reads_nothing_before_it_is_asked(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(made.store), "gather_layers", None)
    monkeypatch.setattr(type(made.store), "gather", None)
    assert len(made.store.select(words="bank")) > 0


def test_kept_blocks_stay_right(made: Made) -> None:
    blocks = list(made.store.select(layers=2).iter_blocks(block_rows=50))
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), made.vectors[1])


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"words": "bnak"}, "the store has no word 'bnak': did you mean 'bank'?"),
        ({"words": ["bank", "zebra"]}, "the store has no word 'zebra'"),
        ({"types": 99}, "there is no type 99: the store has types 0 to 5"),
        ({"labels": {"pos": "X"}}, "there is no label column 'pos': the store has upos"),
        ({"labels": {"upos": "VERB"}}, "no occurrence has upos 'VERB': the labels are NOUN, DET, X"),
        ({"sentences": [0, 120]}, "there is no sentence 120: the store has sentences 0 to 119"),
        ({"rows": [-1]}, "there is no row -1"),
        ({"rows": [1.5]}, "rows must be integers"),
        ({"rows": np.ones(3, bool)}, "rows must be integers, a slice or"),
        ({"layers": 1}, "layer 1 is not stored: choose among 0, 2, 5"),
        ({"layers": []}, "no layer is chosen"),
        (
            {"where": pl.col("nonsense") == 1},
            "there is no column 'nonsense': the occurrence table has occurrence, word",
        ),
        ({"where": pl.col("word") + 1}, "the condition cannot be used on the occurrence table"),
    ],
)
def test_bad_conditions(made: Made, conditions: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _ = made.store.select(**conditions).rows
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_rows_not_written_are_refused_or_nan(tmp_path: Path, suffix: str) -> None:
    with pytest.warns(UnfinishedStoreWarning):
        made = make_store(tmp_path / f"s{suffix}", leave_out=(1,))
    written = [*range(256), *range(512, made.store.n_rows)]
    selection = made.store.select()
    with pytest.raises(MissingRowsError):
        selection.vectors()
    with pytest.raises(MissingRowsError):
        list(selection.iter_blocks())
    with pytest.raises(MissingRowsError):
        list(made.store.select(rows=[0, 300]).iter_blocks())
    vectors = selection.vectors(missing="nan")
    assert np.isnan(vectors[:, 256:512]).all()
    np.testing.assert_array_equal(vectors[:, written], made.vectors[:, written])
    committed = selection.committed()
    assert committed.rows.tolist() == written
    blocks = [block for block in committed.iter_blocks() if block.layer == 5]
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), made.vectors[2][written])
