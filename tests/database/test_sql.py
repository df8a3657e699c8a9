"""SQL about stores: the same answers as DuckDB alone gives, only the vectors that are needed, errors in a line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import embstore as es
from embstore.database import query as database
from embstore.errors import InvalidValueError, MissingRowsError, StoreDamagedError
from tests.store_making import Made, make_store

WORD = "(select h5 from occurrences where occurrence = 2)"
NEAREST = [  # what the search answers; equal ones are in the order of their occurrences
    "select occurrence, cos(h5, vec(2, 5)) s from occurrences order by s desc limit 9",
    "select occurrence from occurrences order by cos(h5, vec(2, 5)) desc limit 200",
    "select occurrence, cos(vec(2, 5), h5) s from occurrences order by s desc limit 7 offset 4",
    "select * from occurrences o order by ip(o.h2, vec(4, 2)) desc limit 12",
    "select word, l2(h5, vec(3, 5)) as far from occurrences order by far limit 30",
    "select word, l2(h5, vec(2, 5)) from occurrences where upos = 'NOUN' order by l2(h5, vec(2, 5)) limit 5",
    "select occurrence from occurrences where upos is null and position > 1 order by cos(h0, vec(5, 0)) desc limit 8",
    "select occurrence from occurrences where cos(h2, vec(2, 2)) > 0.2 order by cos(h5, vec(2, 5)) desc limit 8",
    "select occurrence from occurrences where word = 'no such' order by cos(h5, vec(2, 5)) desc limit 3",
    f"select occurrence, cos(h5, {WORD}) s from occurrences order by s desc limit 6",
    "select occurrence, cos(h5, [1, 0, 0, 2, 0, 1]::double[]) s from occurrences order by s desc limit 6",
    'select "a""b".occurrence from occurrences "a""b" order by cos("a""b".h5, vec(2, 5)) desc limit 7',
    "select n.word, s.text from (select * from occurrences order by cos(h5, vec(9, 5)) desc limit 4) n "
    "join sentences s using (sentence) order by n.occurrence",
    "select m.occurrence, n.h5 from occurrences m left join (select * from occurrences order by cos(h5, vec(9, 5)) "
    "desc limit 4) n using (occurrence) order by m.occurrence",
    "select occurrence from occurrences order by cos(h5, (select centroid(h5) from occurrences where word = 'the')) "
    "desc limit 5",
]
OTHERS = [  # what it does not
    "select occurrence from occurrences order by cos(h5, vec(2, 5)) desc limit 0",
    "select occurrence from occurrences order by cos(h5, vec(2, 5)), occurrence limit 6",
    "select cos(h5, vec(2, 5)) s from occurrences order by s limit 6",
    "select l2(h5, vec(2, 5)) s from occurrences order by s desc limit 6",
    "select occurrence, s from (select occurrence, cos(h5, vec(2, 5)) s from occurrences) order by s desc, 1 limit 6",
    "select cos(h5, h2) s from occurrences order by s desc limit 6",
    "select count(*) over () n from occurrences order by cos(h5, vec(2, 5)) desc limit 5",
    "select distinct round(cos(h5, vec(2, 5)), 3) s from occurrences order by s desc limit 3",
    "select max(cos(h5, vec(2, 5))) from occurrences order by 1 limit 3",
    "select unnest([1, 1]) u from occurrences o order by cos(o.h5, vec(2, 5)) desc limit 3",
    "select o.h5 from occurrences o join (select 2 as occurrence) p on o.occurrence >= p.occurrence "
    "order by cos(o.h5, vec(2, 5)) desc, o.occurrence limit 3",
    "with occurrences as (select 1 as occurrence, [1.0, 2.0] as h5) select occurrence from occurrences "
    "order by cos(h5, [2.0, 1.0]) desc limit 2",
    "select word, (select max(cos(i.h5, o.h5)) from occurrences i where i.sentence = 7) m from occurrences o "
    "where o.sentence = 8 order by o.occurrence",
    "select occurrence, h5, cos(h5, h2) from occurrences where word = 'bank' order by sentence, 1 limit 3",
    "select o.occurrence, h2, o.h2[1] one from occurrences o left join types t using (word) order by 1 limit 4",
    "select a.occurrence x, b.occurrence y, cos(a.h5, b.h5) s from occurrences a, occurrences b "
    "where a.sentence = 4 and b.sentence = 5 order by s desc, x, y",
    "select word, avg(cos(h2, h5)) s, max(l2(h2, h5)) from occurrences group by word order by word",
    "select count(*) from occurrences where h5 is not null and lower(word) like 'ba%'",
    "select o from occurrences as O where word = 'bank' order by occurrence limit 3",
    "select columns('h[02]') from occurrences order by occurrence limit 3",
    "select count(*) n from occurrences a join occurrences b using (H5)",
    "select occurrences.word, main.occurrences.position from main.occurrences order by occurrence desc limit 3",
    "select word, (select count(*) from Occurrences i where i.word = o.word) n from occurrences o order by all limit 9",
]
GROUPED = [
    "select word, count(*) n, centroid(h5) c, selfsim(h5) s, avg(h2) m from occurrences group by word order by word",
    "select upos, sentence % 3 as part, selfsim(h0) from occurrences group by all order by all",
    "select word, selfsim(h5) s from occurrences where upos = 'DET' group by word having count(*) > 3 order by word",
    "select word, centroid(h5) filter (where upos is null) c from occurrences group by word order by word",
    "select selfsim(h5), centroid(h5), count(*) from occurrences where word = 'no such'",
    "select word, cos(centroid(h0), centroid(h5)) s from occurrences group by word order by word",
    "with c as (select word, centroid(h5) v from occurrences group by word) "
    "select a.word, b.word other, cos(a.v, b.v) s from c a, c b where a.word < b.word order by 1, 2",
    "select sentence, selfsim(h5) s from occurrences where sentence < 6 group by sentence order by sentence",
    "select o.upos, centroid(o.h5) c from occurrences o join sentences s using (sentence) where s.sentence > 50 "
    "group by o.upos order by 1",
    "select word from occurrences group by word having selfsim(h5) > 0.1 order by word",
    'select selfsim("a""b".h5) s from occurrences "a""b"',
]
UNLIKE = [  # a name that means something else than it seems
    "select selfsim(h5) from (select h2 as h5, occurrence from occurrences)",
    "select selfsim(h5) s from (select h5 from occurrences) where h5 is not null",
    "with c as (select 1 as occurrence, [1.0, 2.0] as h5) select centroid(h5) from c",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    yield make_store(tmp_path_factory.mktemp("sql") / "store.zarr", ties=True, years=True)
    database._database.cache_clear()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The tables of nearest rows that searches return."""
    found: list[str | None] = []
    nearest = database.Database.nearest
    monkeypatch.setattr(database.Database, "nearest", lambda *a: found.append(nearest(*a)) or found[-1])
    return found


def alone(data: es.Store | dict[str, es.Store], query: str) -> pl.DataFrame:
    """What DuckDB answers without a change of the statement."""
    stores = data if isinstance(data, dict) else {"main": data}
    with patch.object(database, "rewrite"):
        return database._database(tuple(stores), tuple(stores.values())).answer(query, {}, None)


@pytest.mark.parametrize("query", NEAREST)
@pytest.mark.quick(4)
def test_nearest_rows_are_those_of_sorting_all(made: Made, query: str, searches: list[str | None]) -> None:
    ordered = query.replace(" limit", ", occurrence limit", 1).replace("avg(h5)", "centroid(h5)")
    assert_frame_equal(es.sql(made.store, query), alone(made.store, ordered), abs_tol=1e-12)
    assert len(searches) == 1
    assert searches[0]


@pytest.mark.parametrize("query", [*OTHERS, *GROUPED, *UNLIKE])
@pytest.mark.quick(8)
def test_a_changed_statement_has_the_same_answer(made: Made, query: str, searches: list[str | None]) -> None:
    same = query.replace("avg(h2)", "centroid(h2)")
    same = same.replace("h5) filter (where upos is null)", "if(upos is null, h5, null))")
    expected = alone(made.store, same)
    assert_frame_equal(es.sql(made.store, query), expected, abs_tol=1e-12)
    assert len(expected) or "limit 0" in query
    assert not searches


@pytest.mark.parametrize(
    "query",
    [
        """select occurrence from occurrences "occurrence"" + current_setting('threads')::int, ""z" """
        "where position > 1 order by cos(h5, vec(2, 5)) desc limit 8",
        """select selfsim(h5) s from occurrences "occurrence""))+length(current_setting('memory_limit')),f(g(""z" """,
    ],
)
def test_a_quote_in_a_name_ends_no_name(made: Made, query: str) -> None:
    """What follows it would be run, and has not been looked at."""
    ordered = query.replace(" limit", ", occurrence limit")
    assert_frame_equal(es.sql(made.store, query), alone(made.store, ordered), abs_tol=1e-12)


@pytest.mark.parametrize("join", ["left join", "full join", "asof left join", "scalar"])
def test_vectors_of_rows_without_a_match_are_null(made: Made, join: str) -> None:
    """Before 2.0.1, DuckDB gives those of other rows, or an error."""
    rows, vectors = np.arange(made.store.n_rows), made.vectors[1]
    near = pl.DataFrame({"row": rows[::3], "v": pl.Series(vectors[::3].tolist(), dtype=pl.Array(pl.Float64, 6))})
    for step in (1, 3, 50, 301):
        source = f"occurrences a {join} occurrences b on a.occurrence = b.occurrence + {step} "
        text = "select a.occurrence x, a.h2, b.h2 prior, ip(a.h2, b.h2) s, g.v"
        if join == "scalar":
            source = "occurrences a "
            prior = f"(select h2 from occurrences b where a.occurrence = b.occurrence + {step})"
            text = f"select occurrence x, h2, {prior} prior, ip(h2, {prior}) s, g.v"
        source = source.replace("= b", ">= b") if "asof" in join else source
        query = f"{text} from {source} left join near g on g.row = a.occurrence where a.occurrence >= 0 order by x"
        frame = es.sql(made.store, query, near=near)
        assert frame.schema["prior"] == frame.schema["h2"] == pl.Array(pl.Float32, 6)
        assert frame.schema["v"] == pl.Array(pl.Float64, 6)
        np.testing.assert_array_equal(frame["h2"].to_numpy(), vectors)
        np.testing.assert_array_equal(frame["prior"].is_null(), rows < step)
        np.testing.assert_array_equal(frame["prior"].drop_nulls().to_numpy(), vectors[:-step])
        np.testing.assert_allclose(frame["s"].drop_nulls(), (vectors[step:] * vectors[:-step]).sum(1), atol=1e-5)
        assert_frame_equal(frame.filter(pl.col("v").is_not_null()).select(row="x", v="v"), near)
    assert es.sql(made.store, "select h2 from occurrences").schema["h2"] == pl.Array(pl.Float32, 6)


@pytest.mark.parametrize("number", ["'nan'::double", "'inf'::double", "1e300", "-1e16"])
def test_numbers_that_no_search_takes_are_left_to_duckdb(made: Made, number: str) -> None:
    for score, order in (("cos", "desc"), ("ip", "desc"), ("l2", "asc")):
        vector = f"[1, 0, 0, 2, 0, {number}]::double[]"
        scores = f"select occurrence, {score}(h5, {vector}) s from occurrences where occurrence % 7 <> 3"
        query = f"{scores} order by s {order}"
        expected = alone(made.store, f"{query}, occurrence limit 9")
        assert_frame_equal(es.sql(made.store, f"{query}, occurrence limit 9"), expected)
        found = es.sql(made.store, f"{query} limit 9")["s"].to_list()
        assert found == pytest.approx(expected["s"].to_list(), nan_ok=True)


def test_a_refused_name_leaves_nothing_to_complain_of(made: Made) -> None:
    program = f"import embstore as es; es.sql({{'memory': es.open({str(made.store.path)!r})}}, 'select 1')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1].endswith("'memory' cannot be the name of a schema in DuckDB: choose another")


def test_a_store_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    store = make_store(tmp_path / "gone.zarr").store
    es.sql(store, "select 1")
    shutil.rmtree(tmp_path / "gone.zarr")
    with pytest.raises(StoreDamagedError, match=r"^\S+gone\.zarr was replaced or removed since it was opened: open it"):
        es.sql(store, "select h5 from occurrences where position > 0")


def test_conditions_on_vectors_take_no_thread_of_arrow(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's threads wait for what is read here: with one of them, it would never come."""
    from embstore.database import tables

    threads: list[bool] = []

    class Dataset:
        def __init__(self, table: Any) -> None:
            self._table = table

        def to_table(self, *args: Any, use_threads: bool = True, **options: Any) -> Any:
            threads.append(use_threads)
            return made_by(self._table).to_table(*args, use_threads=use_threads, **options)

    made_by = tables.ds.dataset
    monkeypatch.setattr(tables.ds, "dataset", Dataset)
    query = "select count(*) from occurrences where h5 is not null and position > 1"
    assert es.sql(made.store, query).item() == sum(int(str(row["position"])) > 1 for row in made.table)
    assert set(threads) == {False}


def test_what_is_kept_between_statements_is_no_answer(made: Made) -> None:
    query = "select count(*) n, sum(occurrence) s from occurrences where cos(h5, vec({}, 5)) > 0.3"
    found = [es.sql(made.store, query.format(row)).row(0) for row in (2, 4, 2)]
    assert found[0] == found[2] != found[1]
    for frame in (pl.DataFrame({"a": [1]}), pl.DataFrame({"b": ["x", "y"]})):
        assert_frame_equal(es.sql(made.store, "select * from given", given=frame), frame)
    with pytest.raises(InvalidValueError, match="given does not exist"):
        es.sql(made.store, "select * from given")


def test_scores_are_those_of_neighbors(made: Made) -> None:
    for metric, name, order in (("cosine", "cos", "desc"), ("ip", "ip", "desc"), ("l2", "l2", "asc")):
        query = made.store.select(rows=[20])
        near = es.neighbors(made.store, query, layers=2, k=40, metric=metric).select("occurrence", "score")
        query = f"select occurrence, {name}(h2, vec(20, 2)) score from occurrences where occurrence <> 20 "
        assert_frame_equal(es.sql(made.store, f"{query} order by score {order} limit 40"), near, abs_tol=1e-12)
        joined = es.sql(made.store, "select occurrence, score from near join occurrences using (occurrence)", near=near)
        assert_frame_equal(joined, near, check_row_order=False)


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


def test_groups_without_a_vector_have_none(made: Made) -> None:
    query = (
        "select t.w, centroid(o.h5) c, selfsim(o.h5) s from (values ('no such'), ('nor such')) t(w) "
        "left join occurrences o on o.word = t.w group by t.w"
    )
    for text in (query, "select 'w' w, centroid(v) c, selfsim(v) s from (select null::double[] as v)"):
        assert {row[1:] for row in es.sql(made.store, text).rows()} == {(None, None)}
    for call in ("centroid([]::double[])", "selfsim([]::double[])"):
        with pytest.raises(InvalidValueError, match="vectors of 0"):
            es.sql(made.store, f"select {call} from occurrences")


def test_names_that_are_taken_or_one_in_sql_are_refused(made: Made) -> None:
    """The labels of the one would be answered for the other, or the labels for vectors."""
    for name in ("select", "temp", "pg_catalog"):
        with pytest.raises(InvalidValueError, match=f"'{name}' cannot be the name of a schema in DuckDB: choose"):
            es.sql({name: made.store}, "select 1")
    with pytest.raises(InvalidValueError, match=r"^the names of stores 'a' and 'A' are one in SQL: rename one$"):
        es.sql({"a": made.store, "A": made.store}, "select 1")
    for label, other in (("Word", "word"), ("UPOS", "upos"), ("h5", "h5")):
        store = made.store.with_labels(label, ["x"] * made.store.n_rows)
        with pytest.raises(InvalidValueError, match=rf"'({other}' and '{label}|{label}' and '{other})' are one in SQL"):
            es.sql(store, "select count(*) from occurrences")
    for name in ("occurrences", "_es_main", "_ES_main"):
        with pytest.raises(InvalidValueError, match=f"'{name}' cannot be the name"):
            es.sql(made.store, "select 1", **{name: pl.DataFrame({"a": [1]})})
    with pytest.raises(InvalidValueError, match="no store is given"):
        es.sql({}, "select 1")


@pytest.mark.parametrize("held", [10**6, 200])
def test_tables(made: Made, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the columns of a store are held in memory or not."""
    from embstore.database import tables

    database._database.cache_clear()
    monkeypatch.setattr(tables, "HELD_ROWS", held)
    monkeypatch.setattr(tables, "BATCH_ROWS", 64)
    store, frame = made.store, pl.DataFrame(made.table)
    rows = es.sql(store, "select * exclude (h0, h2, h5) from occurrences order by occurrence")
    assert rows.rows() == store.table(columns=rows.columns).rows()
    assert rows["word"].to_list() == frame["word"].to_list()
    vectors = es.sql(store, "select h0, h2, h5 from occurrences order by occurrence")
    assert vectors.schema == dict.fromkeys(("h0", "h2", "h5"), pl.Array(pl.Float32, 6))
    np.testing.assert_array_equal(np.stack([vectors[name].to_numpy() for name in vectors.columns]), made.vectors)
    texts = es.sql(store, "select sentence, text from sentences order by sentence")
    assert texts.rows() == sorted({(row["sentence"], row["text"]) for row in made.table})
    counts = es.sql(store, "select * from types order by word")
    assert counts.rows() == frame.group_by("word").len().sort("word").rows()
    labels = es.sql(store, "select label, count from labels where \"column\" = 'upos' order by label")
    assert labels.rows() == frame.drop_nulls("upos").group_by("upos").len().sort("upos").rows()
    where = "upos = 'NOUN' and year in (1900, 1910) or word = 'suit' or place is null and h2[1] > 0.5"
    kept = [
        row["occurrence"]
        for row, vector in zip(store.table().to_dicts(), made.vectors[1], strict=True)
        if (row["upos"] == "NOUN" and row["year"] in (1900, 1910))
        or row["word"] == "suit"
        or (row["place"] is None and vector[0] > 0.5)
    ]
    assert kept == es.sql(store, f"select occurrence from occurrences where {where} order by 1")["occurrence"].to_list()
    for query in NEAREST[:6]:
        expected = alone(store, query.replace(" limit", ", occurrence limit", 1))
        assert_frame_equal(es.sql(store, query), expected, abs_tol=1e-12)
    database._database.cache_clear()


def test_vectors_that_are_not_needed_are_not_read(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    from embstore.database import tables

    read: dict[str, int] = {}
    vectors = tables.Table._vectors

    def counted(self: Any, rows: Any, name: str) -> Any:
        read[name] = read.get(name, 0) + len(rows)
        return vectors(self, rows, name)

    monkeypatch.setattr(tables.Table, "_vectors", counted)

    def count(query: str) -> dict[str, int]:
        read.clear()
        es.sql(made.store, query)
        return dict(read)

    assert count("select word, count(*) from occurrences group by word") == {}
    assert count("select word, h2 from occurrences where sentence = 0 and position = 0") == {"h2": 1}
    assert count("select h2 from occurrences where word in ('suit', 'no such')") == {
        "h2": sum(row["word"] == "suit" for row in made.table)
    }
    assert count("select word, selfsim(h5), centroid(h2) from occurrences group by word") == {}
    assert count("select occurrence, cos(h5, vec(2, 5)) s from occurrences order by s desc limit 3") == {"h5": 3}
    assert count("select avg(h2[1]) from occurrences where word = 'no such'") == {}


def test_several_stores_and_frames(made: Made, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other.zarr", seed=1, hidden_size=4)
    stores = {"old": made.store, "New": other.store}
    query = (
        "select t.word, t.count, f.n, (select count(*) from new.occurrences o where o.word = t.word) later "
        "from old.types t join counts f using (word) order by t.word"
    )
    words = [[row["word"] for row in each.table] for each in (made, other)]
    expected = [(word, words[0].count(word), n, words[1].count(word)) for word, n in (("bank", 7), ("the", 90))]
    for counts in (given := pl.DataFrame({"word": ["bank", "the"], "n": [7, 90]}), given.to_dict(), given.to_arrow()):
        assert es.sql(stores, query, counts=counts).rows() == expected
    query = "select occurrence, h0, cos(h0, new.vec(1, 0)) s from new.occurrences order by s desc limit 3"
    assert_frame_equal(es.sql(stores, query), alone(stores, query), abs_tol=1e-12)
    query = "select word, centroid(h0) c, selfsim(h0) s from new.occurrences group by word order by word"
    assert_frame_equal(es.sql(stores, query), alone(stores, query), abs_tol=1e-12)
    given = pl.DataFrame({"occurrence": [1], "h0": pl.Series([[0.0] * 6], dtype=pl.Array(pl.Float32, 6))})
    assert es.sql(stores, "select count(*) from old.occurrences natural join given", given=given).item() == 0
    names = ", ".join(f"c{i}" for i in range(len(es.sql(stores, "select * from old.occurrences limit 0").columns)))
    last = f"select {names.split()[-1]} v from old.occurrences o({names}) order by c0"
    np.testing.assert_array_equal(es.sql(stores, last)["v"].to_numpy(), made.vectors[-1])
    with pytest.raises(InvalidValueError, match=r"say which, such as old\.vec"):
        es.sql(stores, "select vec(1, 0)")
    with pytest.raises(InvalidValueError, match="dimensions must be equal"):
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
    query = "select occurrence from occurrences order by cos(h5, vec(2, 5)) desc nulls last, occurrence limit 400"
    last = es.sql(made.store, query, missing="null")["occurrence"].to_list()[-1]
    assert last == np.flatnonzero(~written)[399 - written.sum()]
    for query in (GROUPED[0], GROUPED[7], "select cos(h5, vec(2, 5)) s from occurrences order by s desc limit 9"):
        expected = alone(made.store, query.replace("avg(h2)", "centroid(h2)"))
        assert_frame_equal(es.sql(made.store, query, missing="null"), expected, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec 1", r"\(line 1\): syntax error at or near \"selec\""),
        ("select word\nfrom occurrences\nwhere wrd = 1", r"\(line 3\): .* \"wrd\" not found.* like it are \"word\""),
        ("select évident, foo from occurrences", r"\(line 1\): Referenced column \"évident\""),
        ("select cos(h5, vec(2, 5)), nofunction(h5) from occurrences", r"\(line 1\): .* nofunction"),
        ("select * from nowhere", r"\(line 1\): Table with name nowhere does not exist"),
        ("select cos(h5, h2) from occurrences where cast(word as int) > 0", "line 1.: Could not convert string"),
        ("select 1; select 2", "has 2 statements"),
        ("copy (select 1) to 'copy.csv'", "must be a SELECT"),
        ("create table t as select 1", "must be a SELECT"),
        ("attach 'x.db'", "must be a SELECT"),
        ("select centroid(distinct h5) from occurrences", '"DISTINCT".* only applicable to'),
        ("select selfsim(h5) from occurrences a, occurrences b", 'Ambiguous reference to column name "h5"'),
        ("select vec(1, 9) from occurrences", "layer 9 is not stored"),
        ("select vec(999999, 5)", "no row 999999"),
        ("select vec(1.5)", "vec takes a text"),
        ("select cos(h5, [1, 2]) from occurrences", "dimensions must be equal"),
        # nothing but its tables can be read
        ("select * from frame", "Table with name frame does not exist"),
        ("select * from 'here.csv'", "file system operations are disabled"),
        ("select * from read_csv('here.csv')", "read_csv is not allowed in a query"),
        ("select * from enable_profiling(save_location='file.json')", "enable_profiling is not allowed"),
        ("select * from enable_logging(storage='file', storage_config={'path': 'x'})", "enable_logging is not allowed"),
        ("select (select max(Success) from checkpoint())", "checkpoint is not allowed"),
        ("with a as (select * from query('select 1')) select * from a", "query is not allowed"),
        ("select list_transform([1], lambda x: system.main.write_log('x'))", "write_log is not allowed"),
        ("select _es_vec('other', '0', 'BIGINT', 0)", "_es_vec is not allowed"),
        ("with _es_index as (select 'x' as word) select word from occurrences", "_es_index is not allowed"),
        ("select * from PG_Settings", "pg_settings is not allowed"),
        ("with a as (copy (select 1) to 'file.csv') select 1", "COPY is not allowed inside a SELECT"),
        ("with a as (insert into occurrences values (1)) select 1", "INSERT is not allowed inside a SELECT"),
        # nor come back as another value
        ("select interval 3 months x", "the column 'x' is INTERVAL, which a frame does not hold: cast it"),
        ("select [{'a': interval 1 day}] x", "the column 'x' is STRUCT.*, which a frame does not hold"),
        ("select map {'a': '2020-01-01'::date} x", "the column 'x' is MAP.*, which a frame does not hold"),
        ("select map {'a'::blob: 1} x", "the column 'x' is MAP.*, which a frame does not hold"),
        ("select union_value(k := 1) x", "the column 'x' is UNION"),
        ("select 340282366920938463463374607431768211455::uhugeint x", "the column 'x' is UHUGEINT"),
        ("select '24:00:00'::time x", "the column 'x' is TIME, which a frame does not hold"),
        ("select 'a\0b' x", "holds the character NUL: write chr"),
        ("select time with time zone '12:00:00+01' x", "the column 'x' is TIME WITH TIME ZONE"),
        ("select -170141183460469231731687303715884105727::hugeint x", "the column 'x' has more than 38 digits"),
        ("select 'infinity'::date x", "the column 'x' has a date outside the years 1 to 9999"),
        ("select [{'a': ['-infinity'::timestamp]}] x", "the column 'x' has a date outside the years 1 to 9999"),
        ("select '-4000-01-01'::date x", "the column 'x' has a date outside the years 1 to 9999"),
        ("select getenv('HOME')", "getenv does not exist"),
    ],
)
def test_errors_are_one_line_with_the_place(
    made: Made, query: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.csv").write_text("a\n1\n")
    frame = pl.DataFrame({"x": [1]})  # variables of Python are not tables
    with pytest.raises(InvalidValueError, match=message) as refused:
        es.sql(made.store, query)
    assert len(str(refused.value).splitlines()) == len(frame)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_deep_query_is_computed_or_refused_in_one_line(made: Made) -> None:
    """The parser of JSON goes deeper on some versions of Python, as far as DuckDB does."""
    query = "select 1" + " + 1" * 900
    try:
        answer = es.sql(made.store, query).item()
    except InvalidValueError as error:
        answer = str(error)
    assert answer in (901, "the query is nested too deeply: write it with fewer operators in a row")
    with pytest.raises(InvalidValueError, match=r"nested too deeply|depth limit"):
        es.sql(made.store, query + " + 1" * 9000)


def test_values_at_the_limits_are_held(made: Made) -> None:
    text = (
        "select '0001-01-01'::date a, '9999-12-31 23:59:59'::timestamp b, ('1' || repeat('0', 37))::hugeint c, "
        "[null::date] d, map {'x': 2} e, sum(n) f from (select 9223372036854775807 as n from range(3))"
    )
    row = es.sql(made.store, text).row(0, named=True)
    assert (row["a"], row["b"]) == (date(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59))
    assert (row["c"], row["d"], row["f"]) == (Decimal(10) ** 37, [None], Decimal(3 * (2**63 - 1)))
    assert es.sql(made.store, f"select -{'9' * 38}::decimal(38, 0)").item() == Decimal("-" + "9" * 38)
    assert es.sql(made.store, "select n from stats", stats=pl.DataFrame({"n": [3]})).item() == 3


# What has been looked at of DuckDB's functions: of tables, those that no statement may call ...
REFUSED_TABLES = """arrow_scan arrow_scan_dumb checkpoint create_external_resource deregister_external_resource
destroy_external_resource disable_logging disable_profiling duckdb_* enable_logging enable_profiling force_checkpoint
glob histogram histogram_values icu_calendar_names json_execute_serialized_sql pandas_scan parquet_* pg_timezone_names
pragma_* python_arrow_scan python_map_function query query_table read_* register_external_resource
register_external_resource_type seq_scan sniff_csv summary test_all_types test_vector_types truncate_duckdb_logs
which_secret *_grammar_extension""".split()  # noqa: SIM905
# ... and of values, those that say more than their arguments and may be called.
HARMLESS = """current_database current_date current_localtime current_localtimestamp current_schema current_schemas
error gen_random_uuid get_current_time get_current_timestamp in_search_path now random today transaction_timestamp
uuid uuidv4 uuidv7 vector_type""".split()  # noqa: SIM905


def test_every_function_of_duckdb_is_allowed_or_refused(made: Made) -> None:
    """One that a new DuckDB adds fails here until someone has decided: name it above or in embstore.database.query."""
    connection = database._database(("main",), (made.store,)).connection
    columns = "function_name, function_type, stability, macro_definition, list_append(parameter_types, return_type)"
    rows = connection.execute(f"select {columns} from duckdb_functions() where internal").fetchall()
    tables = {name for name, kind, *_ in rows if kind in ("table", "table_macro")}
    assert tables >= database.TABLE_FUNCTIONS
    assert not [name for name in tables - database.TABLE_FUNCTIONS if not any(fnmatch(name, p) for p in REFUSED_TABLES)]
    impure = {(name, str(types)) for name, kind, state, _, types in rows if kind == "scalar" and state != "CONSISTENT"}
    impure_names = {name for name, types in impure if not re.search("TIME ZONE|TZ", types)}  # a setting, and locked
    assert impure_names - set(HARMLESS) <= database.REFUSED
    calls = {name: set(re.findall(r"(\w+)\"?\(", text)) for name, kind, _, text, _ in rows if kind == "macro" and text}
    assert {name for name, called in calls.items() if called & database.REFUSED} <= database.REFUSED
    kinds = {kind for _, kind, *_ in rows}
    assert kinds <= {"aggregate", "macro", "pragma", "scalar", "table", "table_macro", "window"}


def test_the_settings_of_the_database_are_locked(made: Made, tmp_path: Path) -> None:
    connection = database._database(("main",), (made.store,)).connection
    for setting in ("enable_external_access = true", "log_query_path = 'x'", "allowed_configs = ['temp_directory']"):
        with pytest.raises(duckdb.Error, match=r"locked|cannot be"):
            connection.execute(f"set {setting}")


def test_what_exceeds_the_memory_is_refused_and_not_written(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    query = "select count(*) from (select range, hash(range) h from range(4000000) order by h, 1 limit 3999999)"
    with es.config(memory=2**25), pytest.raises(InvalidValueError, match=r"^the query cannot be run: .*MiB") as refused:
        es.sql(made.store, query)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
    query = "select range x, range x from range(10000000)"
    with es.config(memory="32MiB"), pytest.raises(InvalidValueError, match=r"exceeds the .* es.config \(32MiB\)"):
        es.sql(made.store, query)
    assert es.sql(made.store, f"{query} limit 3").rows() == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(InvalidValueError, match=r"^the query cannot be run.*: Could not convert string 'x' to INT32$"):
        es.sql(made.store, "select if(range = 9000000, 'x', '1')::int from range(10000000)")


@pytest.mark.parametrize("value", [3, None, {"a": [1], "b": [1, 2]}, pl.DataFrame(), pl.DataFrame({"a": [1]}).lazy()])
def test_what_is_no_table_is_refused_in_one_line(made: Made, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^near cannot be a table, give a frame of columns: [^\n]+$"):
        es.sql(made.store, "select 1", near=value)
    one = pl.DataFrame({"a": [date(1999, 1, 2)]})
    assert es.sql(made.store, "select * from near", near=one).equals(one)
    with pytest.raises(InvalidValueError, match="the names of tables 'near' and 'NEAR' are one in SQL"):
        es.sql(made.store, "select 1", near=one, NEAR=one)
