"""SQL about stores: the same answers with and without push-down, only the vectors that are needed, errors in a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import embstore as es
from embstore.database import query as database
from embstore.errors import InvalidValueError, MissingRowsError
from tests.store_making import Made, make_store

WORD = "(select h5 from occurrences where occurrence = 2)"
NEAREST = [
    "select occurrence, cos(h5, vec(2, 5)) s from occurrences order by s desc limit 9",
    "select occurrence from occurrences order by cos(h5, vec(2, 5)) desc limit 200",
    "select occurrence, cos(vec(2, 5), h5) from occurrences order by 2 desc limit 7 offset 4",
    "select * from occurrences o order by ip(o.h2, vec(4, 2)) desc limit 12",
    "select word, l2(h5, vec(3, 5)) as far from occurrences order by far limit 30",
    "select word, l2(h5, vec(2, 5)) from occurrences where upos = 'NOUN' order by l2(h5, vec(2, 5)) limit 5",
    "select occurrence from occurrences where upos is null and position > 1 order by cos(h0, vec(5, 0)) desc limit 8",
    "select occurrence from occurrences where cos(h2, vec(2, 2)) > 0.2 order by cos(h5, vec(2, 5)) desc limit 8",
    "select occurrence from occurrences where word = 'no such' order by cos(h5, vec(2, 5)) desc limit 3",
    f"select occurrence, cos(h5, {WORD}) s from occurrences order by s desc limit 6",
    "select occurrence, cos(h5, [1, 0, 0, 2, 0, 1]) s from occurrences order by s desc limit 6",
    "select n.word, s.text from (select * from occurrences order by cos(h5, vec(9, 5)) desc limit 4) n "
    "join sentences s using (sentence) order by n.occurrence",
    # what the search cannot answer
    "select occurrence from occurrences order by cos(h5, vec(2, 5)) desc limit 0",
    "select occurrence from occurrences order by cos(h5, vec(2, 5)) limit 6",
    "select occurrence from occurrences order by cos(h5, vec(2, 5)) desc nulls first limit 6",
    "select occurrence from occurrences order by l2(h5, vec(2, 5)) desc limit 6",
    "select occurrence from occurrences order by cos(h5, vec(2, 5)) desc, position limit 40",
    "select occurrence from occurrences order by cos(h5, h2) desc limit 6",
    "select occurrence, row_number() over (order by occurrence) n from occurrences "
    "order by cos(h5, vec(2, 5)) desc, occurrence limit 5",
    "select distinct round(cos(h5, vec(2, 5)), 3) s from occurrences order by s desc limit 3",
    "select max(cos(h5, vec(2, 5))) from occurrences order by 1 limit 3",
    "select o.occurrence, unnest([1, 2]) u from occurrences o order by cos(o.h5, vec(2, 5)) desc, 1, 2 limit 3",
    "with occurrences as (select 1 as occurrence, [1.0, 2.0] as h5) select occurrence from occurrences "
    "order by cos(h5, [2.0, 1.0]) desc limit 2",
]
OTHERS = [
    "select occurrence, word, h5 from occurrences order by position desc, occurrence limit 6 offset 2",
    "select occurrence, h5, cos(h5, h2) from occurrences where word = 'bank' order by sentence limit 3",
    "select * from occurrences order by word limit 3",
    "select o.occurrence, o.h2 from occurrences o join sentences s using (sentence) where s.sentence = 3 order by 1",
    "select o.occurrence, h2, o.h2[1] one from occurrences o left join types t using (word) order by 1 limit 4",
    "select a.occurrence x, b.occurrence y, cos(a.h5, b.h5) s from occurrences a, occurrences b "
    "where a.sentence = 4 and b.sentence = 5 order by s desc, x, y",
    "select word, (select max(cos(i.h5, o.h5)) from occurrences i where i.sentence = 7) m from occurrences o "
    "where o.sentence = 8 order by o.occurrence",
    "select occurrence from occurrences where cos(h5, h0) > 0.5 order by occurrence",
    "select e.p, cos(e.v, vec(1, 2)) from (select position p, h2 v from occurrences where sentence < 4) e "
    "order by 2, 1",
]
GROUPED = [
    "select word, count(*) n, centroid(h5) c, selfsim(h5) s, avg(h2) m from occurrences group by word order by word",
    "select upos, sentence % 3 as part, selfsim(h0) from occurrences group by all order by all",
    "select word, selfsim(h5) s from occurrences where upos = 'DET' group by word having count(*) > 3 order by s",
    "select word, centroid(h5) filter (where upos is null) c from occurrences group by word order by word",
    "select selfsim(h5), centroid(h5), count(*) from occurrences where word = 'no such'",
    "select word, cos(centroid(h0), centroid(h5)) s from occurrences group by word order by s",
    "with c as (select word, centroid(h5) v from occurrences group by word) "
    "select a.word, b.word other, cos(a.v, b.v) s from c a, c b where a.word < b.word order by s desc",
    "select word, avg(cos(h2, h5)) s, max(l2(h2, h5)) from occurrences group by word order by s",
    "select sentence, selfsim(h5) s from occurrences where sentence < 6 group by sentence order by s nulls last, 1",
    "select o.upos, centroid(o.h5) c from occurrences o join sentences s using (sentence) where s.sentence > 50 "
    "group by o.upos order by 1",
    "with c as (select word, centroid(h5) v from occurrences group by word) "
    "select o.occurrence, cos(o.h5, c.v) s from occurrences o join c using (word) order by s desc, 1 limit 5",
    "select occurrence from occurrences order by cos(h5, (select centroid(h5) from occurrences where word = 'the')) "
    "desc limit 5",
]


# Statements whose tables are narrowed to rows found in the index, and how many tables are.
NARROWED = [
    ("select * from occurrences where word = 'bank'", 1),
    ("select avg(cos(h2, h5)) from occurrences where 'bank' = WORD", 1),
    ("select occurrence from occurrences where word in ('bank', 'suit', null, 'no such') order by position, 1", 1),
    ("select count(*), sum(occurrence) from occurrences where word = 'no such'", 1),
    ("select count(*) from occurrences where word in (null)", 1),
    ("select count(*) from occurrences o where o.upos = 'NOUN' and position > 1 and o.word = 'new york'", 1),
    ("select word, count(*) from main.occurrences where upos = 'NOUN' and year = 1910 group by word order by 1", 1),
    ("select count(*) from occurrences where year in (1900, -5)", 1),
    ("select count(*) from occurrences where place = 'O''Hare' and word = 'évident'", 1),
    ("select 'bank' as word, occurrence from occurrences where word = 'suit'", 1),
    ("select occurrence, cos(h5, vec(2, 5)) s from occurrences where word = 'suit' order by s desc limit 5", 1),
    ("select word, h2 from occurrences where word = 'suit' order by position desc limit 4", 1),
    ("select word, selfsim(h5) from occurrences where word in ('bank', 'the') group by word order by word", 1),
    ("select a.occurrence, b.occurrence o, cos(a.h5, b.h5) from occurrences a join occurrences b using (sentence) "
     "where a.word = 'bank' and b.word = 'suit' order by 1, 2", 2),
    ("select o.occurrence, s.text, h2 from occurrences o left join sentences s on s.sentence = o.sentence "
     "and s.sentence % 2 = 0 where o.word = 'bank' order by 1", 1),
    ("select s.sentence, o.occurrence from sentences s left join occurrences o on o.sentence = s.sentence "
     "where o.word = 'bank' order by all", 1),
    ("select s.sentence, (select count(*) from occurrences i where i.sentence = s.sentence and i.word = 'the') n "
     "from sentences s order by 1", 1),
    ("select count(*) from occurrences where word = 'bank' and occurrence in "
     "(select occurrence from occurrences where upos = 'NOUN')", 2),
    ("select row_number() over (order by occurrence) n, occurrence from occurrences where word = 'the' order by 2", 1),
    ("select count(*) from occurrences where word in ('bank', 'suit') and word in ('suit', 'the')", 1),
    ("select count(*) from occurrences where word = 'bank' and word = 'suit'", 1),
    ("select count(*) from occurrences where year in (1900, 1910) and year = 1910 and word = 'the'", 1),
    ("select count(*) from occurrences where word in ('bank', 'suit') and word not in ('bank')", 1),
    ("select * from (select word w from occurrences where upos = 'DET') where w = 'bank'", 1),
    # what must stay as it is
    ("select count(*) from occurrences where word = 'bank' or upos = 'NOUN'", 0),
    ("select count(*) from occurrences where not (word = 'bank')", 0),
    ("select count(*) from occurrences where word not in ('bank')", 0),
    ("select count(*) from occurrences where not word in ('bank', 'suit')", 0),
    ("select count(*) from occurrences where word not in ('bank', null)", 0),
    ("select count(*) from occurrences where year not in (1900)", 0),
    ("select count(*) from occurrences where word <> 'bank' and upos is null", 0),
    ("select count(*) from occurrences where lower(word) = 'bank' or word = null", 0),
    ("select count(*) from occurrences where word in (select word from types where count > 85)", 0),
    ("select count(*) from occurrences where year = '1910'", 0),
    ("select count(*) from occurrences where word = upos", 0),
    ("select main.occurrences.word from occurrences where word = 'bank'", 0),
    ("select s.sentence from sentences s anti join occurrences o on o.sentence = s.sentence and o.word = 'bank' "
     "where s.place = 'x' order by 1", 0),
    ("select a.occurrence, b.occurrence o from occurrences a asof join occurrences b on a.occurrence >= b.occurrence "
     "where b.word = 'bank' order by 1", 0),
    ("select a.occurrence, b.word from occurrences a positional join occurrences b where b.word = 'bank' order by 1",
     0),
    ("select count(*) from occurrences o where (select count(*) from types i where o.word = 'bank' and count > 5) > 0",
     0),
    ("select s.sentence from sentences s, (select 'bank' as word) t where word = 'bank'", 0),
    ("with t as (select 'bank' as word) select count(*) from occurrences o, t where t.word = 'bank'", 0),
    ("select word from occurrences where word = 'bank' using sample 3 rows (reservoir, 1)", 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    return make_store(tmp_path_factory.mktemp("dated") / "store.zarr", ties=True, years=True).store


@pytest.mark.parametrize(("query", "count"), NARROWED)
@pytest.mark.quick(1)
def test_narrowed_tables_change_nothing(
    dated: es.Store, query: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = es.sql(dated, query, pushdown=False)
    found: list[str | None] = []
    narrowed = database.Database.narrowed
    monkeypatch.setattr(database, "SHARE", 1)
    monkeypatch.setattr(database.Database, "narrowed", lambda *a: found.append(narrowed(*a)) or found[-1])
    for small in (database.SMALL, 0):  # held in memory or not
        found.clear()
        monkeypatch.setattr(database, "SMALL", small)
        if small == 0:
            database.close_databases()
        assert_frame_equal(es.sql(dated, query), expected, abs_tol=1e-12, check_row_order="order by" in query)
        assert sum(each is not None for each in found) == count


def test_rows_of_two_conditions_are_in_both(dated: es.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str | None] = []
    narrowed = database.Database.narrowed
    monkeypatch.setattr(database, "SHARE", dated.n_rows + 1)  # only a table without rows is narrowed
    monkeypatch.setattr(database.Database, "narrowed", lambda *a: found.append(narrowed(*a)) or found[-1])
    for one, other in (("bank", "suit"), ("suit", "bank")):
        query = f"select count(*) n from occurrences where word = '{one}' and word in ('{other}', 'the')"
        assert es.sql(dated, query)["n"].to_list() == [0]
    assert None not in found
    assert es.sql(dated, "select count(*) n from occurrences where word = 'bank'")["n"][0] > 0
    assert (len(found), found[-1]) == (3, None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    yield make_store(tmp_path_factory.mktemp("sql") / "store.zarr", ties=True)
    database.close_databases()


@pytest.mark.parametrize("query", [*NEAREST, *OTHERS])
@pytest.mark.quick(3)
def test_push_down_changes_nothing(made: Made, query: str) -> None:
    expected = es.sql(made.store, query, pushdown=False)
    found = es.sql(made.store, query)
    assert_frame_equal(found, expected, check_exact=True)
    assert len(found) or "no such" in query or "limit 0" in query


@pytest.mark.parametrize("query", GROUPED)
def test_push_down_changes_nothing_in_groups(made: Made, query: str) -> None:
    expected = es.sql(made.store, query, pushdown=False)
    assert_frame_equal(es.sql(made.store, query), expected, abs_tol=1e-12)
    assert len(expected)


def test_what_is_kept_between_statements_is_their_syntax_alone(made: Made, tmp_path: Path) -> None:
    query = "select count(*) n, sum(occurrence) s from occurrences where cos(h5, vec({}, 5)) > 0.3"
    found = [es.sql(made.store, query.format(row)).row(0) for row in (2, 4, 2)]
    assert found[0] == found[2] != found[1]
    query = f"select * from '{tmp_path / 'x.parquet'}'"
    for frame in (pl.DataFrame({"a": [1]}), pl.DataFrame({"b": ["x", "y"]})):
        frame.write_parquet(tmp_path / "x.parquet")
        assert_frame_equal(es.sql(made.store, query), frame)


def test_scores_are_those_of_neighbors_to_the_bit(made: Made) -> None:
    for metric, name, order in (("cosine", "cos", "desc"), ("ip", "ip", "desc"), ("l2", "l2", "asc")):
        expected = es.neighbors(made.store, occurrence=20, layer=2, k=40, metric=metric)
        found = es.sql(
            made.store,
            f"select occurrence, {name}(h2, vec(20, 2)) score from occurrences where occurrence <> 20 "
            f"order by score {order} limit 40",
        )
        assert_frame_equal(found, expected.select("occurrence", "score"), check_exact=True)


def test_functions_of_groups(made: Made) -> None:
    vectors, words = made.vectors[2].astype(np.float64), np.array([row["word"] for row in made.table])
    found = es.sql(made.store, "select word, centroid(h5) c, selfsim(h5) s, count(*) n from occurrences group by word")
    assert set(found["word"]) == set(words)
    for word, mean, similarity, count in found.rows():
        own = vectors[words == word]
        np.testing.assert_allclose(mean, own.mean(0), atol=1e-12)
        lengths = np.linalg.norm(own, axis=1, keepdims=True)
        cosines = (own / np.where(lengths, lengths, 1)) @ (own / np.where(lengths, lengths, 1)).T
        pairs = cosines[~np.eye(len(own), dtype=bool)]
        assert similarity == pytest.approx(pairs.mean(), abs=1e-12)
        assert count == len(own)


@pytest.mark.parametrize("pushdown", [True, False])
def test_groups_without_a_vector_have_none(made: Made, pushdown: bool) -> None:
    query = (
        "select t.w, centroid(o.h5) c, selfsim(o.h5) s from (values ('no such'), ('nor such')) t(w) "
        "left join occurrences o on o.word = t.w group by t.w"
    )
    for text in (query, "select 'w' w, centroid(v) c, selfsim(v) s from (select null::double[] as v)"):
        assert {row[1:] for row in es.sql(made.store, text, pushdown=pushdown).rows()} == {(None, None)}
    for call in ("cos([]::double[], [])", "cos([], h5)", "centroid([]::double[])", "selfsim([]::double[])"):
        with pytest.raises(InvalidValueError, match="a vector of no numbers"):
            es.sql(made.store, f"select {call} from occurrences", pushdown=pushdown)


@pytest.mark.parametrize("pushdown", [True, False])
def test_rows_are_sorted_by_all_columns_and_by_the_names_of_the_result(made: Made, pushdown: bool) -> None:
    """ORDER BY ALL was taken for the order of the occurrences, and a name for another column's of the table."""
    pairs = sorted((str(word), row) for row, word in enumerate(made.store.table()["word"]))
    for query, wanted in {
        "select word, occurrence from occurrences order by all limit 5": pairs[:5],
        "select word, occurrence from occurrences order by all desc limit 5": pairs[:-6:-1],
        "select word as occurrence, occurrence as word from occurrences order by occurrence, word limit 5": pairs[:5],
    }.items():
        assert es.sql(made.store, query, pushdown=pushdown).rows() == wanted


@pytest.mark.parametrize("name", ["select", "temp", "pg_catalog"])
def test_names_of_schemas_that_are_taken(made: Made, name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"'{name}' cannot be the name of a schema in DuckDB: choose"):
        es.sql({name: made.store}, "select 1")


def test_names_that_are_one_in_sql_are_refused(made: Made) -> None:
    """The labels of the one would be answered for the other, or the labels for vectors."""
    with pytest.raises(InvalidValueError, match=r"^the names of stores 'a' and 'A' are one in SQL: rename one$"):
        es.sql({"a": made.store, "A": made.store}, "select 1")
    for label, other in (("Word", "word"), ("UPOS", "upos"), ("h5", "h5")):
        store = made.store.with_labels(label, ["x"] * made.store.n_rows)
        with pytest.raises(InvalidValueError, match=rf"'({other}' and '{label}|{label}' and '{other})' are one in SQL"):
            es.sql(store, "select count(*) from occurrences")


def test_tables(made: Made) -> None:
    store = made.store
    rows = es.sql(store, "select * exclude (h0, h2, h5) from occurrences order by occurrence")
    assert rows.to_dicts() == [{k: v for k, v in row.items() if k != "text"} for row in made.table]
    vectors = es.sql(store, "select h0, h2, h5 from occurrences order by occurrence")
    assert vectors.schema == dict.fromkeys(("h0", "h2", "h5"), pl.Array(pl.Float32, 6))
    np.testing.assert_array_equal(np.stack([vectors[name].to_numpy() for name in vectors.columns]), made.vectors)
    texts = es.sql(store, "select sentence, text from sentences order by sentence")
    assert texts.rows() == sorted({(row["sentence"], row["text"]) for row in made.table})
    frame = pl.DataFrame(made.table)
    counts = es.sql(store, "select * from types order by word")
    assert counts.rows() == frame.group_by("word").len().sort("word").rows()
    labels = es.sql(store, "select label, count from labels where \"column\" = 'upos' order by label")
    assert labels.rows() == frame.drop_nulls("upos").group_by("upos").len().sort("upos").rows()


@pytest.fixture
def read(made: Made, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is read from the store while a query runs: (layer, number of rows)."""
    found: list[tuple[int, int]] = []
    vectors, methods = es.Store.vectors, {name: getattr(es.Store, name) for name in ("scan", "stored_blocks")}

    def gathered(self: es.Store, rows: Any, *, layers: Any, **options: Any) -> Any:
        found.append((layers, len(rows)))
        return vectors(self, rows, layers=layers, **options)

    def scanned(name: str) -> Any:
        def scan(self: es.Store, layer: Any, start: int, stop: int, **options: Any) -> Any:
            found.append((layer, stop - start))
            return methods[name](self, layer, start, stop, **options)

        return scan

    monkeypatch.setattr(es.Store, "vectors", gathered)
    for name in methods:
        monkeypatch.setattr(es.Store, name, scanned(name))
    return found


def test_vectors_that_are_not_needed_are_not_read(made: Made, read: list[tuple[int, int]]) -> None:
    n_rows, n_suits = made.store.n_rows, sum(row["word"] == "suit" for row in made.table)

    def count(query: str) -> dict[int, int]:
        read.clear()
        es.sql(made.store, query)
        return {layer: sum(n for each, n in read if each == layer) for layer in {layer for layer, _ in read}}

    assert count("select word, count(*) from occurrences group by word") == {}
    assert count("select word, h2 from occurrences where sentence = 0 and position = 0") == {2: 1}
    assert count("select h2, h5 from occurrences order by position desc limit 3") == {2: 3, 5: 3}
    assert count("select o.h2 from occurrences o join sentences s using (sentence) where s.sentence = 0") == {
        2: sum(row["sentence"] == 0 for row in made.table)
    }
    assert count("select selfsim(h5), count(*) from occurrences where sentence < 3") == {
        5: sum(row["sentence"] in (0, 1, 2) for row in made.table)
    }
    assert count("select word, selfsim(h5) from occurrences group by word") == {5: n_rows}
    nearest = "select occurrence, cos(h5, vec(2, 5)) s from occurrences {} order by s desc limit 3"
    some = count(nearest.format("where word = 'suit'"))[5]
    assert n_suits <= some <= 2 * n_suits + 1 + 3  # the query, the search, and the scores of three
    assert n_rows <= count(nearest.format(""))[5] <= 2 * n_rows + 1 + 3
    assert count(nearest.format("where word = 'no such'")) == {5: 1}


def test_several_stores_and_files(made: Made, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other.zarr", seed=1, hidden_size=4)
    pl.DataFrame({"word": ["bank", "the"], "n": [7, 90]}).write_parquet(tmp_path / "counts.parquet")
    stores = {"old": made.store, "new": other.store}
    query = (
        "select t.word, t.count, f.n, (select count(*) from new.occurrences o where o.word = t.word) later "
        f"from old.types t join '{tmp_path / 'counts.parquet'}' f using (word) order by t.word"
    )
    words = [[row["word"] for row in each.table] for each in (made, other)]
    expected = [(word, words[0].count(word), n, words[1].count(word)) for word, n in (("bank", 7), ("the", 90))]
    assert es.sql(stores, query).rows() == expected
    query = "select occurrence, h0, cos(h0, new.vec(1, 0)) s from new.occurrences order by s desc limit 3"
    assert_frame_equal(es.sql(stores, query), es.sql(stores, query, pushdown=False), check_exact=True)
    query = "select word, centroid(h0) c, selfsim(h0) s from new.occurrences group by word order by word"
    assert_frame_equal(es.sql(stores, query), es.sql(stores, query, pushdown=False), abs_tol=1e-12)
    with pytest.raises(InvalidValueError, match=r"say which, such as old\.vec"):
        es.sql(stores, "select vec(1, 0)")
    with pytest.raises(InvalidValueError, match="vectors of 4 and of 6 numbers cannot be compared"):
        es.sql(stores, "select cos(h0, old.vec(1, 0)) from new.occurrences")


def test_missing_rows(tmp_path: Path) -> None:
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        made = make_store(tmp_path / "unfinished.zarr", leave_out=(1,), ties=True)
    with pytest.raises(MissingRowsError, match=r"unfinished\.zarr is not finished: resume"):
        es.sql(made.store, "select count(*) from occurrences")
    written = (np.arange(made.store.n_rows) // 256) != 1
    rows = es.sql(made.store, "select h2, cos(h2, vec(0, 2)) s from occurrences order by occurrence", missing="null")
    np.testing.assert_array_equal(rows["h2"].is_not_null(), written)
    np.testing.assert_array_equal(rows["s"].is_not_null(), written)
    for query in (NEAREST[0], NEAREST[1].replace("200", "400"), GROUPED[0], GROUPED[8]):
        expected = es.sql(made.store, query, missing="null", pushdown=False)
        assert_frame_equal(es.sql(made.store, query, missing="null"), expected, abs_tol=1e-12)


def test_an_index_answers_on_request(tmp_path: Path) -> None:
    made = make_store(tmp_path / "indexed.zarr")
    es.build_index(made.store, layer=5, kind="flat", name="five")
    query = "select occurrence, cos(h5, vec(3, 5)) s from occurrences {} order by s desc limit 8"
    for where in ("", "where upos = 'NOUN'"):
        expected = es.sql(made.store, query.format(where))
        assert_frame_equal(es.sql(made.store, query.format(where), index="five"), expected)
    with pytest.raises(InvalidValueError, match="the index five is of cosine in layer 5, the query of l2 in layer 2"):
        es.sql(made.store, "select word from occurrences order by l2(h2, vec(3, 2)) limit 3", index="five")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec 1", r"\(line 1, column 1\): syntax error at or near \"selec\""),
        ("select word\nfrom occurrences\nwhere foo = 1", r"\(line 3, column 7\): Referenced column \"foo\" not found"),
        ("select évident, foo from occurrences", r"\(line 1, column 8\): Referenced column \"évident\""),
        ("select 'é', foo from occurrences", r"\(line 1, column 13\): Referenced column \"foo\""),
        ("select cos(h5, vec(2, 5)), nofunction(h5) from occurrences", r"\(line 1, column 28\): .* nofunction"),
        ("select * from nowhere", r"\(line 1, column 15\): Table with name nowhere does not exist"),
        ("select word, avg(h5) from occurrences", "cannot be run: .*GROUP BY"),
        ("select cos(h5, h2) from occurrences where cast(word as int) > 0", "cannot be run: Could not convert string"),
        ("select * from 'nofile.parquet'", "nofile.parquet"),
        ("select 1; select 2", "has 2 statements"),
        ("copy (select 1) to 'copy.csv'", "must be a SELECT"),
        ("create table t as select 1", "must be a SELECT"),
        ("attach 'x.db'", "must be a SELECT"),
        ("select vec(1, 9) from occurrences", "layer 9 is not stored"),
        ("select vec(999999, 5)", "no row 999999"),
        ("select vec(word, 5) from occurrences", "vec takes constants"),
        ("select vec(1.5)", "vec takes a text"),
        ("select cos(h5, [1, 2]) from occurrences", "vectors of 2 and of 6 numbers"),
        ("select * from frame", "Table with name frame does not exist"),
        ("", "must be a SELECT"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_the_place(
    made: Made, query: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pl.DataFrame({"x": [1]})  # variables of Python are not tables
    with pytest.raises(InvalidValueError, match=message):
        es.sql(made.store, query)
    assert len(frame) == 1
    assert not list(tmp_path.iterdir())


def test_refused_arguments(made: Made) -> None:
    for data, message in (({}, "no store is given"), ({"a b": made.store}, "name of a schema"), ({"a": 1}, "Store")):
        with pytest.raises(InvalidValueError, match=message):
            es.sql(data, "select 1")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="missing"):
        es.sql(made.store, "select 1", missing="skip")
    assert es.sql(made.store, "select cos(1.0) c", memory="1GiB").item() == pytest.approx(np.cos(1))
