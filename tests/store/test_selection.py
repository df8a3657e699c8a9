"""Selections and the occurrence table, compared with plain Python filters."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidValueError, MissingRowsError, UnfinishedStoreWarning
from embstore.store import Strings
from embstore.store.conditions import n_edits, near_words
from tests.store.example import example
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=[".zarr", ".h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("selection") / f"s{request.param}")


def oracle(made: Made, **conditions: Any) -> list[int]:
    """Return the rows that a selection must have, tested one by one."""
    rows = []
    for row in made.table:
        wanted = [
            "words" not in conditions or row["word"] in conditions["words"],
            "sentences" not in conditions or row["sentence"] in conditions["sentences"],
            "labels" not in conditions or row["upos"] in conditions["labels"]["upos"],
            "tag" not in conditions or row["upos"] == conditions["tag"],
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
        "sentences": st.lists(st.integers(0, 119), min_size=1, max_size=40),
        "tag": st.sampled_from(["NOUN", "DET", "no such label"]),
        "labels": st.fixed_dictionaries(
            {"upos": st.lists(st.sampled_from(["NOUN", "DET", "X"]), min_size=1, max_size=2)}
        ),
        "least": st.integers(0, 6),
        "rows": st.lists(st.integers(0, 400), max_size=60),
    },
)


@settings(max_examples=50)
@given(wanted=CONDITIONS, layers=st.lists(st.sampled_from([0, 2, 5]), min_size=1, max_size=3, unique=True))
@pytest.mark.quick(1)
def test_any_conditions(made: Made, wanted: dict[str, Any], layers: list[int]) -> None:
    conditions = {name: value for name, value in wanted.items() if name in ("words", "labels", "rows")}
    parts = [f"sentence IN ({', '.join(map(str, wanted['sentences']))})"] if "sentences" in wanted else []
    parts += [f"position >= {wanted['least']}"] if "least" in wanted else []
    parts += [f"upos = '{wanted['tag']}'"] if "tag" in wanted else []
    selection = made.store.select(**conditions, where=" AND ".join(parts) or None, layers=layers)
    rows = oracle(made, **wanted)
    assert (selection.rows.tolist(), len(selection)) == (rows, len(rows))
    places = [made.store.layers.index(layer) for layer in layers]
    np.testing.assert_array_equal(selection.vectors(), made.vectors[places][:, rows])
    blocks = list(selection.scan(block_rows=7))
    for layer, place in zip(layers, places, strict=True):
        own = [block for block in blocks if block.layer == layer]
        assert all(len(block.rows) <= 7 for block in own)
        assert [row for block in own for row in block.rows.tolist()] == rows
        for block in own:
            np.testing.assert_array_equal(block.vectors, made.vectors[place][block.rows])


def test_table(made: Made) -> None:
    table = made.store.select(words="new york").table()
    assert table.to_dicts() == [row for row in made.table if row["word"] == "new york"]
    assert made.store.select(rows=[5, 3, 5]).table().to_dicts() == [made.table[row] for row in (5, 3, 5)]
    assert made.store.table().to_dicts() == made.table
    assert made.store.select(rows=[5, 3, 5]).to_dicts() == [made.table[row] for row in (5, 3, 5)]
    assert made.store.select().to_dicts() == made.table
    few = made.store.table(columns=["upos", "occurrence"])
    assert few.to_dicts() == [{"upos": row["upos"], "occurrence": row["occurrence"]} for row in made.table]


def test_columns_are_named_once_in_any_iterable(made: Made) -> None:
    store = made.store
    for columns in (["word", "position"], (name for name in ("word", "position"))):
        assert store.table(columns=columns).equals(store.table().select("word", "position"))  # type: ignore[arg-type]
    every = store.select()
    assert next(iter(every.to_arrow(columns=(name for name in ("word", "layer_2"))))).columns == ["word", "layer_2"]  # type: ignore[arg-type]
    for read in (store.table, every.to_arrow):
        with pytest.raises(InvalidValueError, match="the column 'word' is given twice: name each once"):
            read(columns=["word", "position", "word"])


@pytest.mark.parametrize("rows", [None, [3, 3, *range(400, 100, -3)], slice(10, 300)])
def test_conditions_in_sql(made: Made, rows: Any) -> None:
    chosen = made.store.select(rows=rows).rows.tolist()
    for where, is_true in {
        "length(word) > 4 AND (upos IS NULL OR upos = 'X')": lambda row: (
            len(str(row["word"])) > 4 and row["upos"] in (None, "X")
        ),
        "upos <> 'NOUN'": lambda row: row["upos"] not in (None, "NOUN"),
        "upos IS NULL": lambda row: row["upos"] is None,
        "lower(word) LIKE '%an%'": lambda row: "an" in str(row["word"]),
        "from_end = 0": lambda row: (
            row["position"] + str(row["word"]).count(" ") + 1 == len(str(row["text"]).split(" "))
        ),
        "occurrence % 7 = 3": lambda row: row["occurrence"] % 7 == 3,
    }.items():
        expected = [row for row in chosen if is_true(made.table[row])]
        assert made.store.select(rows=rows, where=where).rows.tolist() == expected != [], where


def test_rows_in_every_notation(made: Made) -> None:
    count = made.store.n_rows
    mask = np.arange(count) % 3 == 0
    assert made.store.select(rows=mask).rows.tolist() == np.flatnonzero(mask).tolist()
    assert made.store.select(rows=slice(2, 9, 2)).rows.tolist() == [2, 4, 6, 8]
    assert made.store.select(rows=[]).rows.tolist() == []
    assert made.store.select(words=["new york"] * 2, layers=2).rows.tolist() == oracle(made, words=["new york"])
    assert made.store.select().rows.tolist() == list(range(count))
    assert made.store.select(words="bank").vectors(dtype="float64").dtype == np.float64


def test_a_slice_of_rows_is_a_range_and_not_a_list(made: Made) -> None:
    count = made.store.n_rows
    for bounds in [(None, None), (5, 60), (-30, -2), (7, 7), (9, 3), (count - 3, count + 9), (0, count, 1)]:
        chosen = slice(*bounds)
        rows = list(range(count))[chosen]
        selection = made.store.select(rows=chosen, layers=2)
        assert selection.span is not None
        assert (list(selection.span), len(selection)) == (rows, len(rows))
        blocks = list(selection.scan(block_rows=7))
        assert "rows" not in vars(selection)
        assert [row for block in blocks for row in block.rows.tolist()] == rows == selection.rows.tolist()
        for block in blocks:
            np.testing.assert_array_equal(block.vectors, made.vectors[made.store.layers.index(2)][block.rows])
        column = np.arange(count)
        assert column[selection.rows_at(2, 9)].tolist() == rows[2:9]
        assert np.shares_memory(column[selection.rows_at(0, len(rows))], column) == bool(rows)
    for listed in (slice(20, 0, -1), slice(0, 20, 2), [3, 4, 5]):
        selection = made.store.select(rows=listed)
        assert selection.span is None
        assert selection.rows_at(1, 3).tolist() == selection.rows[1:3].tolist()  # type: ignore[union-attr]
    few = made.store.select(rows=slice(0, 50), words="bank")
    assert few.span is None
    assert few.rows.tolist() == oracle(made, words=["bank"], rows=range(50))


def test_a_selection_reads_no_vectors_until_they_are_needed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(made.store), "vectors", None)
    assert len(made.store.select(words="bank")) > 0


def test_vectors_of_a_store_take_the_conditions_of_select(made: Made) -> None:
    for chosen, rows in (({"words": "bank"}, oracle(made, words=["bank"])), ({"rows": [3, 1, 3]}, [3, 1, 3])):
        found = made.store.vectors(**chosen, layers=2, dtype="float64")
        np.testing.assert_array_equal(found, made.store.vectors(layers=2)[rows].astype("float64"), strict=True)
    with pytest.raises(InvalidValueError, match="out takes rows and layers alone"):
        made.store.vectors([1], dtype="float64", out=found)


@pytest.mark.parametrize("rows", [None, range(10, 400), range(10, 400, 3)])
def test_blocks_without_a_copy_are_views_of_the_file(tmp_path: Path, rows: range | None) -> None:
    made = example(rows=600)
    store = made.make(tmp_path / "s.zarr")
    selection = store.select(rows=rows, layers=3)
    blocks = list(selection.scan(block_rows=100, copy=False))
    np.testing.assert_array_equal(np.concatenate([block.rows for block in blocks]), selection.rows)
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), made.values[1, selection.rows])
    dense = rows is None or rows.step == 1
    assert any(block.vectors.flags.writeable for block in blocks) != dense
    assert all(block.vectors.flags.writeable for block in selection.scan(block_rows=100))


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"words": "bnak"}, "the store has no word 'bnak': did you mean 'bank'?"),
        ({"words": ["bank", "zebra"]}, "the store has no word 'zebra'; words are spelled as in the corpus"),
        ({"words": list("123456789")}, "the store has no word '1', '2', '3', '4', '5' and 4 more"),
        ({"labels": {"pos": "X"}}, "there is no label column 'pos': the store has upos"),
        ({"labels": {"upos": "VERB"}}, "no occurrence has upos 'VERB': the labels are NOUN, DET, X"),
        ({"rows": [-1]}, "there is no row -1"),
        ({"rows": "bank"}, 'give words="..." for a word'),
        ({"rows": np.ones(3, bool)}, "rows of booleans must have the shape"),
        ({"rows": slice(0, 9, 0)}, "the step of a slice of rows is 0: give 1 or more"),
        ({"layers": 1}, "layer 1 is not stored: choose among 0, 2, 5"),
        ({"where": "nonsense = 1"}, "there is no column 'nonsense'; text is in single quotes, and the columns are"),
        ({"where": "word AND upos"}, "cannot be used"),
    ],
)
def test_bad_conditions(made: Made, conditions: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _ = made.store.select(**conditions).rows
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "stored"),
    [(-1, (5,)), ("last", (5,)), (-3, (0,)), ("all", (0, 2, 5)), (np.int64(2), (2,)), ([-1, 0, "last"], (5, 0, 5))],
)
def test_layers_count_from_the_end(made: Made, layers: Any, stored: tuple[int, ...]) -> None:
    assert made.store.select(layers=layers).layers == stored
    places = [(0, 2, 5).index(layer) for layer in stored]
    found, expected = made.store.vectors([7, 3], layers=layers), made.vectors[places][:, [7, 3]]
    if len(stored) > 1:
        np.testing.assert_array_equal(found, expected)
    else:  # no axis of layers
        np.testing.assert_array_equal(found, expected[0])
        for same in (
            made.store.select(rows=[7, 3], layers=layers),
            made.store.select(rows=[7, 3], layers=layers).written(),
        ):
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(same)).vectors(), expected[0])
        np.testing.assert_array_equal(made.store.vectors([7, 3], layers=list(stored)), expected)
        ((_, block),) = made.store.scan(layers, 10, 20)
        np.testing.assert_array_equal(block, made.vectors[places[0], 10:20])


@pytest.mark.parametrize("layer", [1, 6, -4, True, "first", [0, 3], None, 2.0, [0, 2]])
def test_a_layer_that_is_not_stored(made: Made, layer: Any) -> None:
    one = "is not stored: choose among 0, 2, 5, or -1 or 'last'|are not understood: give one|layers: give one"
    with pytest.raises(InvalidValueError, match=one):
        made.store.scan(layer)
    if layer not in (None, [0, 2]):
        with pytest.raises(InvalidValueError, match=one):
            made.store.vectors([0], layers=layer)


@pytest.mark.parametrize("given", [{"words": "bank"}, {"labels": {"upos": "DET"}}, {"rows": slice(3, 9)}])
def test_a_pickled_selection_has_the_same_rows(made: Made, given: dict[str, Any]) -> None:
    """As the workers of a DataLoader need that are not forked."""
    chosen = made.store.select(layers=[5, 0], **given)
    again = pickle.loads(pickle.dumps(chosen))
    assert (again.layers, again.rows.tolist()) == ((5, 0), chosen.rows.tolist())
    np.testing.assert_array_equal(again.vectors(), chosen.vectors())


def test_labels_added_to_a_store(made: Made) -> None:
    long = [len(str(row["word"])) > 4 for row in made.table]
    store = made.store.with_labels("long", np.array(long))
    assert store.select(labels={"long": "true"}).rows.tolist() == np.flatnonzero(long).tolist()
    assert store.select(where="long = 'false'").rows.tolist() == np.flatnonzero(~np.array(long)).tolist()
    assert store.table()["long"].to_list() == ["true" if each else "false" for each in long]
    assert (
        pickle.loads(pickle.dumps(store)).select(labels={"long": "true"}).rows.tolist() == np.flatnonzero(long).tolist()
    )
    assert "long" not in made.store.index.labels
    other = store.with_labels("upos", ["A"] * made.store.n_rows)  # in place of the column on disk
    assert list(other.index.labels["upos"].names) == ["A"]
    assert store.index.labels["upos"].codes.tolist() == made.store.index.labels["upos"].codes.tolist()


def test_labels_added_to_a_selection(made: Made) -> None:
    selection = made.store.select(rows=[30, 4, 17], layers=-1)
    labelled = selection.with_labels("grade", [10, None, 9])
    assert (labelled.rows.tolist(), labelled.layers) == ([30, 4, 17], (5,))
    assert labelled.table(columns=["occurrence", "grade"]).rows() == [(30, "10"), (4, None), (17, "9")]
    assert labelled.store.select(labels={"grade": ["9", "10"]}).rows.tolist() == [17, 30]
    assert list(labelled.store.index.labels["grade"].names) == ["9", "10"]
    np.testing.assert_array_equal(labelled.vectors(), selection.vectors())


@pytest.mark.parametrize("pandas", [False, True])
def test_labels_from_a_frame(made: Made, pandas: bool) -> None:
    frame = made.store.select(words="bank").table().with_columns(pl.col("position").cast(pl.String).alias("where"))
    columns = frame.select("occurrence", "where")
    values: Any = pytest.importorskip("pandas").DataFrame(columns.to_dict(as_series=False)) if pandas else columns
    store = made.store.with_labels("where", values)
    expected = [str(row["position"]) if row["word"] == "bank" else None for row in made.table]
    assert store.table()["where"].to_list() == expected
    assert (
        made.store.select(words="bank").with_labels("where", values).table().equals(store.select(words="bank").table())
    )


@pytest.mark.parametrize("pandas", [False, True])
def test_nan_is_no_label(made: Made, pandas: bool) -> None:
    given: Any = np.array(["a", np.nan, None, "NaN"], object)
    if pandas:
        frame = pytest.importorskip("pandas").DataFrame({"occurrence": [3, 4, 5, 6], "x": given})
        store = made.store.with_labels(frame)
    else:
        store = made.store.select(rows=[3, 4, 5, 6]).with_labels("x", given).store
    assert store.table()["x"].to_list()[3:7] == ["a", None, None, "NaN"]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("x", ["a"], "1 values of 'x' do not fit 3 rows"),
        ("x", ["a", "b", "c"], "a row is given two different labels of 'x'"),
        ("x", {"a", "b", "c"}, "are not labels of 'x': give a list of strings"),
        ("x", {5: "a", 7: "b", 6: "c"}, "are not labels of 'x': give a list of strings"),
        ("x", pl.DataFrame({"occurrence": [8], "x": ["a"]}), "row 1 of its data: the selection has no occurrence 8"),
    ],
)
def test_labels_that_do_not_fit(made: Made, name: str, values: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        made.store.select(rows=[5, 7, 5]).with_labels(name, values)


def test_representations(made: Made) -> None:
    store = made.store
    path = str(store.path)
    assert len(store) == store.n_rows == len(store.select())
    assert repr(store.select(words="bank", layers=[0, -1])).endswith("rows, layers 0, 5>")
    assert f"<caption>Store {path}</caption>" in store._repr_html_()
    assert f">Rows</th><td style='text-align:left'>{store.n_rows:,}</td></tr>" in store._repr_html_()
    html = store.select(rows=[1, 2], layers=2)._repr_html_()
    assert ">Selected</th><td style='text-align:left'>2 rows</td>" in html
    assert ">Layers</th><td style='text-align:left'>2</td>" in html


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_rows_not_written_are_refused_or_nan(tmp_path: Path, suffix: str) -> None:
    with pytest.warns(UnfinishedStoreWarning):
        made = make_store(tmp_path / f"s{suffix}", leave_out=(1,))
    written = [*range(256), *range(512, made.store.n_rows)]
    assert f"{len(written):,} written ({len(written) / made.store.n_rows:.0%})" in made.store._repr_html_()
    selection = made.store.select()
    with pytest.raises(MissingRowsError):
        selection.vectors()
    with pytest.raises(MissingRowsError):
        list(selection.scan())
    with pytest.raises(MissingRowsError):
        list(made.store.select(rows=[0, 300]).scan())
    vectors = selection.vectors(missing="nan")
    assert np.isnan(vectors[:, 256:512]).all()
    np.testing.assert_array_equal(vectors[:, written], made.vectors[:, written])
    committed = selection.written()
    assert committed.rows.tolist() == written
    blocks = [block for block in committed.scan() if block.layer == 5]
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), made.vectors[2][written])


def test_strings_are_found_in_every_block_and_their_words_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.strings._FIND_BLOCK", 2)
    monkeypatch.setattr("embstore.store.strings._COUNT_BLOCK", 2)
    strings = Strings.of(["a bé字", "d", "e f", "d"])
    assert [strings.find(string) for string in ("a bé字", "d", "e f", "g")] == [0, 1, 2, None]
    assert strings.n_words().tolist() == [2, 1, 2, 1]
    assert strings.n_characters().tolist() == [5, 1, 3, 1]


def test_a_word_that_differs_in_case_alone_is_suggested_alone() -> None:
    words = ["and", "sand", "land", "hand"]
    assert near_words("Hand", words) == ["hand"]
    assert "hand" not in near_words("Hand", words[:3])
    assert near_words("chanclor", ["chancellor", "channel", "lord"]) == ["chancellor"], "a few edits of many letters"
    assert set(near_words("teh", ["tea", "the", "thee"])) == {"tea", "the"}


@given(*[st.text("abc", max_size=4)] * 2)
def test_edits_are_those_of_the_definition(one: str, other: str) -> None:
    def edits(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        ways = [edits(a[1:], b) + 1, edits(a, b[1:]) + 1, edits(a[1:], b[1:]) + (a[0] != b[0])]
        return min(*ways, edits(a[2:], b[2:]) + 1 if len(a) > 1 < len(b) and a[:2] == b[1::-1] else 9)

    assert n_edits(one, other) == edits(one, other)
