"""Ten questions in SQL: by es.sql, by embstore's own functions, by LanceDB, and by DuckDB over exported Parquet.

OMP_NUM_THREADS=1 python benchmarks/sql.py STORE --model "$MODEL" --out benchmarks/results/sql.json

The store has UD-EWT's labels and a layer 0. Results of SQL and of the functions are compared before they are measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Case, Row, measure, parser_of, write_result

import embstore as es
from embstore.analysis.neighbors.find import encode_word
from embstore.vectors.linalg import unit_rows

LIMIT = 1.5  # times our own functions
BLOCK_ROWS = 8192
WORD, TEXT, MIN_COUNT = "place", "this is the best [place] in town", 10


@dataclass(frozen=True)
class Question:
    """A question as one statement, as a call of our functions, and as calls of rivals, all with the same answer."""

    what: str
    statement: str
    function: Callable[[], pl.DataFrame]
    rivals: dict[str, Callable[[], Any]]


def add_years(store: es.Store) -> es.Store:
    """A year for each sentence, as EWT has none."""
    return store.with_labels("year", 1990 + np.asarray(store.index.sentence) % 20)


def batches(store: es.Store, layers: tuple[int, ...], kind: str) -> Iterator[pa.RecordBatch]:
    """The occurrences with some vectors, as Arrow."""
    table = store.table()
    for start in range(0, store.n_rows, BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, store.n_rows))
        columns = table[start : start + BLOCK_ROWS].cast({pl.Enum: pl.String}).to_arrow()
        for layer in layers:
            numbers = pa.array(store.vectors(rows, layers=layer).astype(kind).ravel())
            vectors = pa.FixedSizeListArray.from_arrays(numbers, store.hidden_size)
            columns = columns.append_column(f"h{layer}", vectors)
        yield from columns.combine_chunks().to_batches()


def export(store: es.Store, layers: tuple[int, ...], folder: Path) -> tuple[Any, Any]:
    """Write the occurrences as Parquet and for LanceDB; returns DuckDB's connection and LanceDB's table (or None)."""
    first = next(batches(store, layers, "float32"))
    with pq.ParquetWriter(folder / "occurrences.parquet", first.schema) as writer:
        for batch in batches(store, layers, "float32"):
            writer.write_batch(batch)
    connection = duckdb.connect(config={"threads": 1, "memory_limit": "2GB", "temp_directory": str(folder)})
    arrays = ", ".join(f"h{layer}::FLOAT[{store.hidden_size}] as h{layer}" for layer in layers)
    connection.execute(f"create view t as select * replace ({arrays}) from '{folder / 'occurrences.parquet'}'")
    counts = store.table(columns=["word"]).group_by("word").len()
    counts.select(pl.col("word").cast(pl.String), per_million=pl.col("len") * 1e6 / store.n_rows).write_parquet(
        folder / "frequencies.parquet"
    )
    try:
        import lancedb
    except ImportError:
        return connection, None
    reader = pa.RecordBatchReader.from_batches(
        next(batches(store, layers, "float16")).schema, batches(store, layers, "float16")
    )
    return connection, lancedb.connect(str(folder / "lance")).create_table("t", reader)


def questions(store: es.Store, folder: Path, model: str) -> list[Question]:
    layer = store.layers[-1]
    parquet, lance = export(store, (0, layer), folder)
    row = int(store.select(words=WORD).rows[0])
    query = store.vectors([row], layers=layer)[0].astype(np.float32)
    h, frequencies = f"h{layer}", folder / "frequencies.parquet"
    common = store.table(columns=["word"]).group_by("word").len().filter(pl.col("len") >= MIN_COUNT)["word"]
    types = np.sort(common.to_physical().to_numpy()).astype(np.int64)

    def asked(text: str, *values: Any) -> Callable[[], Any]:
        return lambda: parquet.sql(text, params=list(values)).pl()

    def searched(vector: Any, where: str | None = None) -> dict[str, Callable[[], Any]]:
        def ask() -> Any:
            found = lance.search(vector, vector_column_name=h).distance_type("cosine").limit(11)
            return (found.where(where, prefilter=True) if where else found).select(["occurrence"]).to_arrow()

        return {} if lance is None else {"LanceDB": ask}

    def summed(first: str, ending: str) -> Callable[[], Any]:
        """Means of every word in DuckDB: numbers one by one, as it has no sum of vectors."""
        return asked(
            f"with c as (select word, count(*) n from t group by word having n >= {MIN_COUNT}), "
            f"m as (select word, any_value(n) n, i, {first} from (select word, n, unnest(h0) a, unnest({h}) b, "
            f"generate_subscripts({h}, 1) i, sqrt(list_dot_product({h}, {h})) l from t join c using (word)) "
            f"group by word, i) {ending}"
        )

    def nearest(where: str) -> Callable[[], Any]:
        cosine = f"array_cosine_similarity({h}, ?::FLOAT[{store.hidden_size}])"
        return asked(f"select occurrence, word, {cosine} s from t {where} order by s desc limit 10", query.tolist())

    typed = encode_word(store, TEXT, layers=[layer], model=model)[0]

    def neighbours(query: Any) -> pl.DataFrame:
        return es.neighbors(store, query, layers=layer, k=10).select("occurrence", pl.col("word").cast(pl.String),
                                                                        s="score")  # fmt: skip

    def selfsim() -> pl.DataFrame:
        chosen = store.select(words=[store.index.words[int(number)] for number in types])
        found = es.geometry(chosen, layers=layer, metrics=["selfsim"], min_contexts=1)
        return found.filter(pl.col("item") != "").select(word="item", s="value").sort("word")

    def means(number: int) -> es.vectors.WordVectors:
        return es.static_vectors(store, layers=number, method="mean", types=types)

    def near_words() -> pl.DataFrame:
        found = es.neighbors(means(layer), WORD, k=10)
        return found.select("word", s="score")

    def changed() -> pl.DataFrame:
        first, last = means(0), means(layer)
        cosines = (unit_rows(first.vectors.astype(float)) * unit_rows(last.vectors.astype(float))).sum(1)
        return pl.DataFrame({"word": first.words, "s": cosines}).sort("s", "word").head(10)

    def between() -> pl.DataFrame:
        first, last = store.select(words=WORD, layers=[0, layer]).vectors(dtype="float64")
        cosines = (first * last).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(last, axis=1)
        return pl.DataFrame({"s": [cosines.mean()]})

    def counted() -> pl.DataFrame:
        return store.table(columns=["upos"]).group_by("upos").len("n").sort("n", descending=True).cast({"n": pl.Int64})

    def contexts() -> pl.DataFrame:
        table = store.select(words=WORD).table().sort("year", "occurrence")
        return table.select(pl.col("year").cast(pl.String), "position", "text")

    def rarest() -> pl.DataFrame:
        counts = store.table(columns=["word"]).group_by("word").len("n").cast({"word": pl.String})
        joined = counts.join(pl.read_parquet(frequencies), on="word")
        return joined.sort("per_million", "word", descending=[True, False]).head(10).cast({"n": pl.Int64})

    scored = f"cos({h}, vec({row}, {layer})) s"
    by_word = f"from occurrences group by word having count(*) >= {MIN_COUNT}"
    kwic = "select year, position, text from {} where word = '" + WORD + "' order by year, occurrence"
    shared = "select word, n, per_million from {} join frequencies using (word) order by 3 desc, 1 limit 10"
    joined = shared.replace("frequencies", f"'{frequencies}'")
    return [
        Question(
            "nearest occurrences",
            f"select occurrence, word, {scored} from occurrences where occurrence <> {row} order by s desc limit 10",
            lambda: neighbours(store.select(rows=[row])),
            {"DuckDB on Parquet": nearest(f"where occurrence <> {row}"), **searched(query)},
        ),
        Question(
            "nearest nouns",
            f"select occurrence, word, {scored} from occurrences where upos = 'NOUN' and occurrence <> {row} "
            "order by s desc limit 10",
            lambda: neighbours(occurrence=row, labels={"upos": "NOUN"}),
            {"DuckDB on Parquet": nearest(f"where upos = 'NOUN' and occurrence <> {row}"),
             **searched(query, "upos = 'NOUN'")},
        ),
        Question(
            "self-similarity of words",
            f"select word, selfsim({h}) s {by_word} order by word",
            selfsim,
            {"DuckDB on Parquet": summed("sum(b / l) s", "select word, (sum(s * s) - any_value(n)) / "
                                         "(any_value(n) * (any_value(n) - 1)) from m group by word")},
        ),
        Question(
            "words with the nearest centroids",
            f"with c as (select word, centroid({h}) v {by_word}) "
            f"select word, cos(v, (select v from c where word = '{WORD}')) s from c where word <> '{WORD}' "
            "order by s desc limit 10",
            near_words,
            {"DuckDB on Parquet": summed("avg(b) v", "select x.word, sum(x.v * y.v) / sqrt(sum(x.v * x.v)) s from m x "
                                         f"join m y using (i) where y.word = '{WORD}' group by 1 order by 2 desc")},
        ),
        Question("occurrences of each label", "select upos, count(*) n from occurrences group by upos order by n desc",
                 counted, {"DuckDB on Parquet": asked("select upos, count(*) n from t group by upos order by n desc")}),
        Question(
            "mean cosine of a word between two layers",
            f"select avg(cos(h0, {h})) s from occurrences where word = '{WORD}'",
            between,
            {"DuckDB on Parquet": asked(f"select avg(array_cosine_similarity(h0, {h})) from t where word = '{WORD}'")},
        ),
        Question(
            "words that change most between two layers",
            f"select word, cos(centroid(h0), centroid({h})) s {by_word} order by s, word limit 10",
            changed,
            {"DuckDB on Parquet": summed("avg(a) u, avg(b) v", "select word, sum(u * v) / sqrt(sum(u * u) * sum(v * v))"
                                         " s from m group by word order by s limit 10")},
        ),
        Question("contexts of a word by year", kwic.format("occurrences join sentences using (sentence)"), contexts,
                 {"DuckDB on Parquet": asked(kwic.format("t"))}),
        Question("words and a table of frequencies", shared.format("(select word, count as n from types)"), rarest,
                 {"DuckDB on Parquet": asked(joined.format("(select word, count(*) n from t group by word)"))}),
        Question(
            "nearest occurrences of a typed sentence",
            f"select occurrence, word, cos({h}, vec('{TEXT}', {layer})) s from occurrences order by s desc limit 10",
            lambda: neighbours(TEXT),
            {"DuckDB on Parquet": lambda: (encode_word(store, TEXT, layers=[layer], model=model), nearest("")()),
             "LanceDB": lambda: (encode_word(store, TEXT, layers=[layer], model=model), searched(typed)["LanceDB"]())}
            if lance is not None else {},
        ),
    ]  # fmt: skip


def require_equal(question: Question, found: pl.DataFrame) -> None:
    """Raise AssertionError unless SQL and the function give the same rows; scores of groups within 1e-6."""
    expected = question.function()
    assert found.shape == expected.shape, (question.what, found.shape, expected.shape)
    for ours, theirs in zip(found.rows(), expected.rows(), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            same = abs(one - other) < 1e-6 if isinstance(one, float) else one == other
            assert same, (question.what, ours, theirs)


def question_row(question: Question, ask: Callable[[str], pl.DataFrame], repeats: int) -> Row:
    require_equal(question, ask(question.statement))
    cases: dict[str, Case] = {
        "ours": lambda number: ask(question.statement),
        "limit": lambda number: question.function(),
    }
    cases |= {name: lambda number, call=call: call() for name, call in question.rivals.items()}  # type: ignore[misc]
    return measure(question.what, cases, repeats=repeats, limit="our function", target=LIMIT)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("store", help="a store of UD-EWT's train part by MiniLM, all layers")
    parser.add_argument("--model", required=True, help="folder of MiniLM")
    arguments = parser.parse_args()
    store = add_years(es.open(arguments.store))
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        asked = questions(store, Path(folder), arguments.model)
        ask = partial(
            es.sql, store, model=arguments.model, frequencies=pl.read_parquet(Path(folder) / "frequencies.parquet")
        )
        rows = [question_row(question, ask, arguments.repeats) for question in asked]
    write_result(arguments.out, rows, store={"rows": store.n_rows})


if __name__ == "__main__":
    main()
