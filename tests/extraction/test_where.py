"""Words chosen by a condition: the rows and vectors that `select` finds for it in a store of all words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.corpus.sentence import Document, Sentence
from embstore.errors import CorpusError, InvalidValueError
from embstore.executors import Processes
from embstore.store import Index, places
from embstore.store.table import occurrence_table
from embstore.store.where import rows_where
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import counted, plan_of
from tests.models import tiny
from tests.store.example import all_files
from tests.store_making import make_store

COLUMNS = ("word", "sentence", "position", "source", "tag", "year", "text")


def corpus(*, is_marked: bool = True) -> list[Sentence]:
    """Sentences of documents with a year, words without a piece, phrases and labels; some are repeated."""
    random = np.random.default_rng(5)
    words = np.array(["bank", "river", "a", *["~"] * is_marked, "Constantinople", "der", "so"])
    documents = [Document(fields={"year": 1900 + number}) for number in range(5)]
    found = []
    for number in range(60):
        chosen = random.choice(words, random.integers(1, 9)).tolist()
        tags = random.choice(np.array(["NOUN", "VERB", ""]), len(chosen)).tolist()
        tags[:1], tags[-2:] = ["NOUN"], ["NOUN"] * len(tags[-2:])  # a run of labels would go on in the next document
        targets = [(len(chosen) - 2, len(chosen))] if number % 3 == 0 and len(chosen) > 2 else []
        document = documents[number // 12]
        found.append(Sentence(chosen, {"tag": [tag or None for tag in tags]}, targets=targets, document=document))
    return [*found, *found[:7]]


def conditions(seed: int, count: int) -> Iterator[str]:
    """Yield conditions of every kind of comparison, joined by AND, OR and NOT."""
    random = np.random.default_rng(seed)
    numbers = ["position", "length", "from_end", "occurrence", "sentence", "source", "document", "year", "subwords"]
    numbers += [f"{scope}_{end}" for scope in ("document", "context", "tag") for end in ("position", "from_end")]

    def simple() -> str:
        kind, name, value = random.integers(8), random.choice(numbers), random.integers(0, 9)
        value = int(value) + 1898 * (name == "year")
        return [
            f"{name} {random.choice(['<', '<=', '=', '<>', '>='])} {value}",
            f"{name} % {random.integers(2, 6)} = {random.integers(0, 2)}",
            f"{name} BETWEEN {value} AND {value + 3}",
            f"tag {random.choice(['=', '<>', '>'])} '{random.choice(['NOUN', 'VERB', 'ADJ'])}'",
            f"word {random.choice(['LIKE', 'NOT LIKE'])} '{random.choice(['%a%', 's_', 'Con%', '% %'])}'",
            f"tag IS {random.choice(['', 'NOT '])}NULL",
            f"word IN ('bank', '{random.choice(['so', 'nowhere'])}')",
            f"length - position > {value}",
        ][kind]

    for _ in range(count):
        joined = simple()
        for _ in range(int(random.integers(0, 3))):
            joined = f"({joined}) {random.choice(['AND', 'OR', 'AND NOT'])} ({simple()})"
        yield joined


def described(store: es.store.Selection | es.Store) -> list[Any]:
    return store.table(columns=COLUMNS).drop("sentence").rows()


@pytest.mark.parametrize("context", ["sentence", "document"])
@pytest.mark.parametrize("unit", ["word", "sentence"])
@pytest.mark.quick(1)
def test_the_rows_are_those_that_select_finds(unit: str, context: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": FakeEncoder(), "unit": unit, "context": context, "dtype": "float32"}
    whole = es.extract(plan_of(corpus(), **options), tmp_path / "whole.zarr")
    n_chosen, n_extracted = [], 0
    for condition in conditions(seed=1 + len(unit), count=16):
        expected = whole.select(where=condition)
        n_chosen.append(len(expected))
        if not len(expected):
            with pytest.raises(CorpusError, match="no word is left to extract"):
                plan_of(corpus(), keep=es.corpus.Keep(where=condition), **options)
            continue
        made = plan_of(corpus(), keep=es.corpus.Keep(where=condition), **options)
        table = expected.table(columns=["source", "position"])
        assert made.index.source[made.index.sentence].tolist() == table["source"].to_list(), condition
        assert made.index.position.tolist() == table["position"].to_list(), condition
        if n_extracted < 4 and n_extracted % 2 == len(n_chosen) % 2:
            suffix = "h5" if n_extracted % 3 == 1 else "zarr"
            store = es.extract(made, tmp_path / f"part{n_extracted}.{suffix}")
            assert described(store) == described(expected)
            np.testing.assert_array_equal(store.select().vectors(), expected.vectors())
            n_extracted += 1
    assert n_extracted == 4
    assert sum(0 < count < whole.n_rows for count in n_chosen) > 8


def plain(index: Index, name: str) -> list[Any]:
    """Return a column of an index, worked out one occurrence at a time."""
    n_words = [len(index.text.words(number)) for number in range(len(index.text))]
    starts, sentences = np.cumsum([0, *n_words]), index.sentence.tolist()
    documents = index.document_of(np.arange(len(n_words))).tolist()
    names = list(index.own_labels["tag"].names)
    tags = [None if code < 0 else names[code] for code in index.own_labels["tag"].codes.tolist()]
    runs = [(documents[sentence], tag) for sentence, tag in zip(sentences, tags, strict=True)]
    found = []
    for row, sentence in enumerate(sentences):
        word, width = int(starts[sentence] + index.position[row]), index.words[int(index.type[row])].count(" ") + 1
        own = [at for at, each in enumerate(documents) if each == documents[sentence]]
        first, last = starts[own[0]], starts[own[-1] + 1]
        begin = next(at + 1 for at in range(row, -2, -1) if at < 0 or runs[at] != runs[row])
        end = next(at for at in range(row, len(runs) + 1) if at == len(runs) or runs[at] != runs[row])
        context = None if index.contexts is None else int(index.contexts.of_rows(np.array([row]))[0])
        given = index.text.subword_indptr[[sentence, sentence + 1]]
        subword = int(given[0] + index.text.word_subword[word])
        if context is not None:
            assert index.contexts is not None
            given = np.array([index.contexts.start[context], index.contexts.stop[context]])
        found.append({
            "length": n_words[sentence],
            "token": index.text.ids[subword] if index.subwords[row] == 1 else -1,
            "from_end": n_words[sentence] - int(index.position[row]) - width,
            "document_position": word - first,
            "document_from_end": last - word - width,
            "context_position": subword - given[0],
            "context_from_end": given[1] - subword - int(index.subwords[row]),
            "tag_position": row - begin,
            "tag_from_end": end - row - 1,
        }[name])  # fmt: skip
    return found


@pytest.mark.parametrize("block_rows", [1, 7, 10**6])
@pytest.mark.slow
def test_places_are_those_counted_one_by_one(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "STEP", 2)
    index = plan_of(corpus(), model=FakeEncoder(), context="document").index
    assert index.contexts is not None
    for name in (*places.PLACES, "tag_position", "tag_from_end"):
        expected = plain(index, name)
        for value in sorted(set(expected) - {-1})[:: 1 + len(set(expected)) // 4]:
            found = np.concatenate(list(rows_where(index, f"{name} = {value}", block_rows=block_rows)))
            assert found.tolist() == [row for row, each in enumerate(expected) if each == value], (name, value)
        rows = np.random.default_rng(0).permutation(len(expected))
        column = occurrence_table(index, rows=rows, columns=[name])[name].fill_null(-1)
        assert column.to_list() == [expected[row] for row in rows], "in any order"


def test_the_rules_after_it_apply_to_what_it_leaves() -> None:
    def chosen(**rules: Any) -> list[tuple[int, int, str]]:
        index = plan_of(corpus(), model=FakeEncoder(), keep=es.corpus.Keep(**rules)).index
        words = [index.words[number] for number in index.type]
        return list(zip(index.source[index.sentence].tolist(), index.position.tolist(), words, strict=True))

    verbs, banks = chosen(where="tag = 'VERB'"), chosen(words=frozenset({"bank"}))
    assert set(chosen(where="tag = 'VERB'", words=frozenset({"bank"}))) == set(verbs) & set(banks)
    tenth = chosen(where="occurrence % 10 = 0")
    assert chosen(where="occurrence % 10 = 0", words=frozenset({"bank"})) == [each for each in tenth if each in banks]
    sampled = chosen(where="tag = 'VERB'", max_contexts=3)
    assert set(sampled) < set(verbs)
    counts = Counter(word for *_, word in verbs)
    assert Counter(word for *_, word in sampled) == {word: min(3, count) for word, count in counts.items()}


def test_special_tokens_go_with_their_sentences_unless_they_are_named(tmp_path: Path) -> None:
    model = es.models.load_encoder(tiny.save("bert", tmp_path / "bert"))
    given: dict[str, Any] = {"model": model, "specials": True}
    texts = [words for words in tiny.random_sentences(6, seed=1) if words]
    whole = plan_of(texts, **given).index
    last = plan_of(texts, keep=es.corpus.Keep(where="from_end = 0 AND sentence < 2"), **given).index
    assert [last.words[int(number)] for number in last.type] == [
        *("[CLS]", texts[0][-1], "[SEP]", "[CLS]", texts[1][-1], "[SEP]")
    ]
    named = plan_of(texts, keep=es.corpus.Keep(where="special = '[SEP]' OR position = 0"), **given).index
    rows = [row for each in rows_where(whole, "special = '[SEP]' OR position = 0") for row in each.tolist()]
    assert [named.words[int(number)] for number in named.type] == [whole.words[int(whole.type[row])] for row in rows]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("context", ["sentence", "document"])
@pytest.mark.quick(1)
def test_a_decoder_runs_nothing_after_the_last_chosen_word(name: str, context: str, tmp_path: Path) -> None:
    model = es.models.load_encoder(tiny.save(name, tmp_path / name))
    texts = [words for words in tiny.random_sentences(60, seed=1) if len(words) > 4]
    given: dict[str, Any] = {"model": model, "context": context, "dtype": "float32"}
    whole = es.extract(plan_of(texts, **given), tmp_path / "whole.zarr")
    condition = "position = 1 OR (position = 3 AND sentence % 2 = 0)"
    made = plan_of(texts, keep=es.corpus.Keep(where=condition), **given)
    store, n_run = counted(made, tmp_path / "x.zarr")
    expected = whole.select(where=condition)
    assert described_words(store.select()) == described_words(expected)
    scale = np.abs(expected.vectors()).max()
    np.testing.assert_allclose(store.select().vectors(), expected.vectors(), atol=1e-5 * scale)
    needed = 0
    for number, words in enumerate(texts):
        needed += int(model.tokenize([Sentence(words)]).last[1 if number % 2 else 3])
    assert n_run == made.estimate.subwords_to_run == needed < made.survey.n_subwords
    assert made.estimate.subwords_counted


def described_words(selection: es.store.Selection) -> list[Any]:
    return selection.table(columns=["word", "source", "position"]).rows()


def test_a_decoder_runs_a_sentence_to_its_end_for_a_special_token_there(tmp_path: Path) -> None:
    model = es.models.load_encoder(tiny.save("gpt2", tmp_path / "gpt2"))
    model.special_ids = ((), (1,))
    texts = [words for words in tiny.random_sentences(6, seed=1) if words]
    made = plan_of(texts, model=model, specials=True, keep=es.corpus.Keep(where="position = 0"))
    assert made.estimate.subwords_to_run == made.survey.n_subwords


def test_wrong_conditions_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("1\tthe\tthe\tDET\t_\t_\t0\troot\t_\t_\n2\tend\tend\tNOUN\t_\t_\t1\tobj\t_\t_\n\n")
    store = es.extract(plan_of(path, model=FakeEncoder()), tmp_path / "x.zarr")
    wrong = {
        "": "give 1 to 2,000 characters",
        "upos =": "is not a condition in SQL, such as",
        "1 = 1": "not about each occurrence on its own",
        "position = max(position)": "not about each occurrence on its own",
        "CURRENT_TIMESTAMP > word": "not about each occurrence on its own.* dates as text",
        "word IN ('a', CURRENT_DATE::text)": "not about each occurrence on its own",
        "upos IS  distinct FROM 'X' AND position = 0": r"has IS  distinct FROM: write NOT \(a <=> b\)",
        "pos = 'X'": "there is no column 'pos'; .* upos, .*length, .*_from_end",
        'upos = "NOUN"': "there is no column 'NOUN'; text is in single quotes",
        "position = 'a'": "cannot be used: cannot compare string with numeric type",
        "replace(replace(word, 'e', 'ee'), 'e', 'ee') = 'x'": "or makes text longer",
        "lpad(word, 1000000000, 'x') = 'x'": "or makes text longer",
        "position" + " between 0 and 1" * 14: "too many BETWEEN, CASE or functions inside each other",
        "nullif(" * 14 + "position" + ", 1)" * 14 + " = 1": "too many BETWEEN, CASE or functions inside each other",
        "position" + "::int" * 390 + " = 1": "has too many operators in a row: write fewer",
        "upos": "cannot be used: filter predicate must be of type `Boolean`",
    }

    def planned(condition: str) -> None:
        plan_of(path, model=FakeEncoder(), keep=es.corpus.Keep(where=condition))

    for condition, message in wrong.items():
        with pytest.raises(InvalidValueError, match=message):
            len(store.select(where=condition))
        with pytest.raises(InvalidValueError, match=message):
            planned(condition)
    with pytest.raises(es.errors.CorpusError, match=r"a\.conllu: no word is left to extract of 2 \(2 not chosen"):
        planned("upos = 'VERB'")
    with pytest.raises(InvalidValueError, match="is not text"):
        es.corpus.Keep(where=3)  # type: ignore[arg-type]


def test_conditions_mean_what_sql_means(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    store = es.extract(plan_of(corpus(), model=FakeEncoder()), tmp_path / "x.zarr")
    connection = duckdb.connect()
    connection.register("t", store.table().cast({pl.Enum: pl.String, pl.Int32: pl.Int64}).to_arrow())
    for condition in (
        "(tag = 'NOUN') IS NOT TRUE",
        "NOT (tag = 'NOUN' is  true) AND word <> 'it IS TRUE'",
        "tag = 'VERB' IS FALSE",
        "tag = 'VERB' IS NOT FALSE OR position = 0",
        "position + 9223372036854775807 > 0",
        "position * 9223372036854775807 * 2 > occurrence",
        "CAST(position AS DOUBLE) * 9223372036854775807 * 4294967296 * 4294967296 > 0 AND tag = 'VERB'",
        "position / 2 = 1 OR position / 2 > 2.2",
        "-position < -2",
        "length(word) - 5 > 0 OR length(tag) - 5 > 0",
        "strpos(word, 'x') - 1 < 0 AND abs(length(word) - 9) * 4000000000 > 5",
        "CAST(position AS INT) * 2000000000 * 3 > 0",
        "tag IS NOT DISTINCT FROM 'NOUN' AND position > 0 OR word = 'a IS DISTINCT FROM'",
        "substr(word, length(word)) = 'r' IS TRUE OR length(word) / 2 > position",
    ):
        wide = condition.replace("9223372036854775807", "9223372036854775807::hugeint").replace(
            "AS INT)", "AS HUGEINT)"
        )
        expected = connection.execute(f"select occurrence from t where {wide}").fetchall()
        assert store.select(where=condition).rows.tolist() == sorted(row for (row,) in expected), condition
        assert 0 < len(expected) <= store.n_rows


@pytest.mark.slow
def test_it_is_recorded_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBSTORE_CACHE", str(tmp_path / "cache"))
    model, path = tiny.save("gpt2", tmp_path / "gpt2"), tmp_path / "x.zarr"
    texts = [words for words in tiny.random_sentences(40, seed=1) if words]
    keep = es.corpus.Keep(where="from_end < 2 AND occurrence % 3 <> 0")
    made = plan_of(texts, model=model, keep=keep)
    store = es.extract(made, path)
    assert store.metadata.extraction["keep"]["where"] == keep.where == made.as_json()["where"]
    assert re.search(rf"where +{re.escape(keep.where)}\n", made.text(verbose=True))
    before = all_files(path)
    es.extract(made, path)
    assert (all_files(path), es.extraction.options_of(path).keep) == (before, keep)
    with pytest.raises(es.errors.StoreMismatchError, match=r"extraction\.keep\.where"):
        es.extract(plan_of(texts, model=model), path)
    with Processes(2) as executor:
        es.extract(made, tmp_path / "w.zarr", executor=executor)
    assert all_files(tmp_path / "w.zarr") == before
    virtual = es.extract(made, tmp_path / "v.zarr", virtual=True)
    np.testing.assert_array_equal(virtual.select().vectors(), store.select().vectors())
    more = plan_of(texts[:9], model=model, options=es.extraction.options_of(path))
    grown = es.extract(more, path, append=True)
    assert grown.n_rows == store.n_rows + more.layout.n_rows
    assert grown.metadata.extraction["keep"]["where"] == keep.where


def test_a_phrase_ends_with_its_last_word(tmp_path: Path) -> None:
    made = make_store(tmp_path / "store.zarr")
    store, n_words = made.store, np.diff(made.store.index.word_indptr)
    phrases = [row for row in made.table if row["word"] == "new york"]
    assert phrases
    for row in phrases:
        left = int(n_words[row["sentence"]]) - row["position"] - 2
        where = f"from_end = {left} AND document_from_end = {left} AND occurrence = {row['occurrence']}"
        assert store.select(where=where).rows.tolist() == [row["occurrence"]]


def test_runs_of_labels_end_with_their_document(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store.zarr").store
    labelled = store.with_labels("kind", ["x"] * store.n_rows)
    first = np.flatnonzero(np.diff(store.index.document_of(store.index.sentence), prepend=-1))
    assert labelled.select(where="kind_position = 0").rows.tolist() == first.tolist()
    last = np.append(first[1:], store.n_rows) - 1
    assert labelled.select(where="kind_from_end = 0").rows.tolist() == last.tolist()
