"""JSON lines, CSV, Parquet and tables of Python: every row is a document with its columns as fields."""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard

from embstore.corpus import Sentence, open_corpus
from embstore.corpus.sentence import Document, Span
from embstore.errors import CorpusError, EmbstoreWarning, InvalidValueError
from tests.corpus.test_errors import complaint

ROWS: list[dict[str, Any]] = [
    {"text": "The bank was closed.", "year": 1900, "author": "Conrad", "score": 0.5, "draft": True},
    {"text": "A river, a bank.", "year": 1910, "author": None, "score": 1.0, "draft": False},
]
FIELDS = [{name: value for name, value in row.items() if name != "text"} for row in ROWS]


def jsonl(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def documents(corpus: Iterable[Sentence]) -> list[tuple[str, dict[str, Any]]]:
    """Return the text and the fields of each document."""
    found: list[tuple[Any, str, dict[str, Any]]] = []
    for sentence in corpus:
        assert sentence.document is not None
        text = sentence.text
        if found and found[-1][0] is sentence.document:
            text = found.pop()[1] + text
        found.append((sentence.document, text, dict(sentence.document.fields)))
    return [(text, fields) for _, text, fields in found]


class DataSet:
    """What a data set of Hugging Face's `datasets` shows."""

    column_names = ("tokens", "ner_tags", "kind")

    class _Label:
        names = ("O", "B-LOC", "I-LOC")

    class _List:
        def __init__(self, feature: Any) -> None:
            self.feature = feature

    features = {"tokens": _List(None), "ner_tags": _List(_Label()), "kind": _Label()}  # noqa: RUF012

    def __iter__(self) -> Any:
        yield {"tokens": ["New", "York", "is"], "ner_tags": [1, 2, 0], "kind": 1}


def written(folder: Path, kind: str) -> Any:
    """Return ROWS as a file, or as a table of Python."""
    frame = pl.DataFrame(ROWS)
    if kind in ("rows", "polars", "lazy"):
        return {"rows": ROWS, "polars": frame, "lazy": frame.lazy()}[kind]
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
    path = folder / f"a.{kind}"
    if kind == "parquet":
        frame.write_parquet(path, row_group_size=1)
    elif kind in ("csv", "tsv"):
        frame.write_csv(path, separator="\t" if kind == "tsv" else ",")
    else:
        data = jsonl(ROWS).encode()
        path.write_bytes({"gz": gzip.compress, "st": zstandard.compress}.get(kind[-2:], bytes)(data))
    return path


@pytest.mark.parametrize(
    "kind", ["jsonl", "ndjson", "jsonl.gz", "jsonl.zst", "parquet", "csv", "tsv", "rows", "polars", "lazy", "pandas"]
)
def test_a_row_is_a_document_whose_columns_are_fields(kind: str, tmp_path: Path) -> None:
    corpus = open_corpus(written(tmp_path, kind))
    for _ in range(2):
        found = documents(corpus)
        assert [text for text, _ in found] == [row["text"] for row in ROWS]
        fields = [dict(row) for _, row in found]
        if kind in ("csv", "tsv"):  # without a type for true and false
            assert [row.pop("draft") for row in fields] == ["true", "false"]
            fields[0]["draft"], fields[1]["draft"] = True, False
        assert fields == FIELDS
        assert [list(map(type, row.values())) for row in fields] == [list(map(type, row.values())) for row in FIELDS]


def test_columns_chooses_the_fields(tmp_path: Path) -> None:
    rows = [{"body": "one two", "year": 1, "meta": {"a": [1]}, "No. of  words": 2, "at": date(1900, 1, 2)}]
    assert "meta: {'a': [1]} is not one value; name the columns" in complaint(lambda: list(open_corpus(rows)))
    corpus = open_corpus(rows, columns="No. of  words,at")
    assert documents(corpus) == [("one two", {"No._of__words": 2, "at": "1900-01-02"})]
    assert documents(open_corpus(rows, columns=["body"])) == [("one two", {})]
    assert corpus.options["columns"] == "No. of  words,at"
    assert "no column 'years'; the columns are body, year" in complaint(
        lambda: list(open_corpus(rows, columns="years"))
    )


def test_a_column_of_words_with_labels(tmp_path: Path) -> None:
    (sentence,) = open_corpus(DataSet(), text="tokens")
    assert (sentence.words, sentence.labels) == (["New", "York", "is"], {"ner_tags": ["B-LOC", "I-LOC", "O"]})
    assert sentence.document is not None
    assert sentence.document.fields == {"kind": "B-LOC"}
    path = tmp_path / "a.parquet"
    pl.DataFrame({"tokens": [["New York", "is"]], "tag": [["LOC", None]], "year": [1]}).write_parquet(path)
    (sentence,) = open_corpus(path, text="tokens")
    assert (sentence.words, sentence.targets) == (["New", "York", "is"], [(0, 2)])
    assert sentence.labels == {"tag": ["LOC", None, None]}


def test_the_text_column() -> None:
    assert documents(open_corpus([{"body": "one", "year": 1}, {"year": 2, "body": "two"}]))[1] == ("two", {"year": 2})
    assert documents(open_corpus([{"text": "one", "body": "two"}], text="body")) == [("two", {"text_": "one"})]
    message = complaint(lambda: list(open_corpus([{"body": "one", "title": "two"}])))
    assert message == 'row 0: name the column of the text with text="...": the columns are body, title'


def test_columns_of_every_table_are_renamed() -> None:
    rows = [{"text": ["a"], "source": "web", "word": ["x"]}]
    (sentence,) = open_corpus(rows)
    assert (sentence.labels, sentence.document and sentence.document.fields) == ({"word_": ["x"]}, {"source_": "web"})


def test_rows_without_text_are_counted() -> None:
    rows = [{"text": "one"}, {"text": None}, {"text": ""}, {"text": float("nan")}, {"text": "two"}]
    with pytest.warns(EmbstoreWarning, match=r"^rows: rows without text in 'text' are left out: 3, the first is 1"):
        assert len(list(open_corpus(rows))) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(open_corpus(rows[:1]))) == 1


def test_a_folder_and_its_folders(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/c.jsonl", "a/d/e.jsonl.gz", ".hidden/f.jsonl", "a/notes.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = jsonl([{"text": path.name, "file": "own"} if name == "b.jsonl" else {"text": path.name}]).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    with pytest.warns(EmbstoreWarning, match="1 of 4 files have no known suffix"):
        found = [fields["file"] for _, fields in documents(open_corpus(tmp_path))]
    assert found == ["a/c.jsonl", "a/d/e.jsonl.gz", "own"]


def test_csv_quotes_and_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long = "word " * 40_000  # beyond the limit of Python's csv module
    path.write_text(
        'text,n,x,zip,mixed,empty\n"one, ""two""\nthree",1,1,007,1,\nfour,-2,1e-3,12,no,\n\n' + long + ",,,1,1,\n",
        "utf-8",
    )
    found = documents(open_corpus(path, split="lines", words="spaces"))
    assert (found[0][0], len(found[2][0].split())) == ('one, "two"\nthree', 40_000)
    fields = [fields for _, fields in found]
    assert fields[0] == {"n": 1, "x": 1.0, "zip": "007", "mixed": "1", "empty": None}
    assert fields[1] == {"n": -2, "x": 0.001, "zip": "12", "mixed": "no", "empty": None}
    assert fields[2]["n"] is None
    path.write_bytes(b'text\r\n"one\r\n two\n"\r\nthree\r\n')
    assert [text for text, _ in documents(open_corpus(path))] == ["one\r\n two\n", "three"]
    path.write_text("text;year\n12;1900\n")
    assert documents(open_corpus(path)) == [("12", {"year": 1900})]
    path.write_text("\n\nyear\ttext\n1900\t12\n")
    assert documents(open_corpus(path)) == [("12", {"year": 1900})], "blank lines before the header are skipped"


BAD: dict[str, tuple[str, bytes | str, str]] = {
    "missing column": ("a.jsonl", '{"text": "a"}\n{"body": "a"}\n', "a.jsonl:2: there is no column 'text'"),
    "text a number": ("a.jsonl", '{"text": 1}\n', "a.jsonl:1: text: 1 is neither a text, a list of words"),
    "surrogate": ("a.jsonl", '{"text": "a\\ud800"}\n', "a.jsonl:1: text: half of a surrogate pair"),
    "latin-1": ("a.jsonl", b'{"text": "caf\xe9"}\n', "a.jsonl:1: byte 0xe9 at offset 13 is not utf-8"),
    "long number": ("a.jsonl", '{"text": "a", "x": 9223372036854775808}', "is not within 64 bits"),
    "nested": ("a.jsonl", '{"text": "a", "x": [1, 2]}\n', "a.jsonl:1: x: [1, 2] is not one value"),
    "labels too few": ("a.jsonl", '{"text": ["a", "b"], "x": ["c"]}\n', "a.jsonl:1: x: 1 labels for 2 words"),
    "empty word": ("a.jsonl", '{"text": ["a", " "]}\n', "a.jsonl:1: word 1 is ' '"),
    "two names": ("a.jsonl", '{"text": "a", "x y": 1, "x_y": 2}\n', "two columns have the same name: x y, x_y"),
    "ragged": ("a.csv", "text,x\na,1\nb\n", "a.csv:3: 1 fields instead of 2, as in the header: ['b']"),
    "open quote": ("a.csv", 'text,x\n"a,1\nb,2\n', "a.csv:2: not CSV: unexpected end of data"),
    "no header": ("a.csv", ",\na,1\n", "a.csv:1: no header"),
    "same header": ("a.csv", "text,text\na,1\n", "a.csv:1: two columns have the same name: 'text,text'"),
    "no text in CSV": ("a.csv", "a,b\nx,y\n", 'a.csv:2: name the column of the text with text="..."'),
    "header only": ("a.csv", "text,b\n", "no sentence in it (read as csv)"),
    "spans a number": ("a.jsonl", '{"text": "a", "spans": [5]}\n', 'a.jsonl:1: spans: 5 has no numbers "start" and'),
    "returns in CSV": ("a.csv", "text,x\ra,1\rb,2\r", "a.csv:1: not CSV: a row ends with a carriage return alone"),
    "no Parquet": ("a.parquet", b"PAR1 nothing", "a.parquet: not a Parquet file that can be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(case: str, tmp_path: Path) -> None:
    name, content, expected = BAD[case]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert expected in complaint(lambda: list(open_corpus(path)))


@pytest.mark.parametrize("arrow", [True, False])
def test_parquet_is_read_in_batches(tmp_path: Path, arrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not arrow:
        monkeypatch.setitem(sys.modules, "pyarrow.lib", None)  # as if it were not installed
    monkeypatch.setattr("embstore.corpus.formats.tables.BATCH_ROWS", 7)
    path = tmp_path / "a.parquet"
    frame = pl.DataFrame(
        {"text": [f"word{n}" for n in range(3000)], "at": [date(1900, 1, 1 + n % 9) for n in range(3000)]}
    )
    frame.write_parquet(path, row_group_size=300)
    found = [(each.words[0], each.document.fields["at"]) for each in open_corpus(path) if each.document]
    assert found == [(text, str(at)) for text, at in frame.iter_rows()]
    data = path.read_bytes()
    for size in (len(data) - 1, len(data) // 2, 4):
        path.write_bytes(data[:size])
        assert f"{path}: not a Parquet file that can be read" in complaint(lambda: list(open_corpus(path)))


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ({"train": ["a"]}, {}, "source: a dict of train: give one of them"),
        ([{"text": "a"}, "b"], {}, "row 1: 'b' is not a row"),
        (["a b"], {"text": "body"}, "text: 'body' has no meaning for the format sentences"),
        ([{"text": "a"}], {"columns": " ,"}, "columns: ' ,' are not names of columns"),
        ([{"text": "a", "s": [[0, 1]]}], {}, "s: [[0, 1]] is not one value; name the columns"),
    ],
)
def test_bad_options(source: Any, options: dict[str, Any], expected: str) -> None:
    error = (CorpusError, InvalidValueError)
    assert expected in complaint(lambda: list(open_corpus(source, **options)), error)  # type: ignore[arg-type]


CHAT = [
    {"role": "user", "content": "No. The bank, was old."},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": "Rivers flow."},
]


def test_messages_are_text_with_the_role_of_each_word(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"messages": [CHAT], "id": ["x"]}).write_parquet(path)
    sentences = list(open_corpus(path))
    assert {sentence.document for sentence in sentences} == {sentences[0].document}
    assert "".join(each.text for each in sentences) == "No. The bank, was old.\n\nRivers flow."
    assert [each.document and each.document.fields for each in sentences] == [{"id": "x"}] * len(sentences)
    words = [(word, role) for each in sentences for word, role in zip(each.words, each.labels["role"], strict=True)]
    assert [word for word, role in words if role == "user"] == ["No", ".", "The", "bank", ",", "was", "old", "."]
    assert [word for word, role in words if role == "assistant"] == ["Rivers", "flow", "."]


@pytest.mark.parametrize(
    ("messages", "options", "expected"),
    [
        ([{"role": "user", "content": ["a"]}], {}, "row 0: message 0: content is ['a'], not a text"),
        ([{"content": "a"}], {}, "row 0: message 0: role is None, not a text"),
        ([{"role": "user", "content": "\ud800"}], {}, "message 0: content is '\\ud800', not a text"),
    ],
)
def test_bad_chats(messages: Any, options: dict[str, Any], expected: str) -> None:
    assert expected in complaint(lambda: list(open_corpus([{"messages": messages, "x": None}], **options)))


def test_a_chat_is_the_text_that_a_template_writes() -> None:
    def write(messages: Sequence[Mapping[str, Any]]) -> Document:
        text, spans = "", []
        for message in messages:
            for part, more in {"markup": f"<|{message['role']}|>", "content": message["content"] or ""}.items():
                spans.append(Span(len(text), len(text) + len(more), labels={"role": message["role"], "part": part}))
                text += more
        return Document(text, spans=spans)

    corpus = open_corpus([{"messages": CHAT, "id": 7}])
    found = list(corpus.sentences(write))
    text = "<|user|>No. The bank, was old.<|assistant|><|assistant|>Rivers flow."
    assert "".join(each.text for each in found) == text
    assert [str(each) for each in found if "content" in each.labels["part"]] == [
        "No.",
        "The bank, was old.",
        "Rivers flow.",
    ]
    assert all(len(set(each.labels["part"])) == 1 for each in found)
    assert found[0].document is not None
    assert (found[0].document.text, found[0].document.fields) == (text, {"id": 7})
    assert [each.text for each in corpus.sentences(lambda messages: None)] == [each.text for each in corpus]


def test_spans_and_ids_of_a_table(tmp_path: Path) -> None:
    text = "Once upon a time there was."
    row = {"text": text, "ids": [7, 0, 9], "year": 1}
    row["spans"] = [{"start": 0, "stop": 13, "part": "prompt"}, {"start": 13, "stop": 27, "part": None, "a b": 3}]
    (tmp_path / "a.jsonl").write_text(jsonl([row, {"text": "b", "spans": None, "ids": []}, {"text": "c", "spans": []}]))
    assert documents(open_corpus(tmp_path / "a.jsonl"))[1:] == [("b", {}), ("c", {})]
    pl.DataFrame([row]).write_parquet(tmp_path / "a.parquet")
    for source in (tmp_path / "a.jsonl", tmp_path / "a.parquet", [row]):
        first = next(iter(open_corpus(source)))
        assert first.words[3:5] == ["t", "ime"]
        assert first.labels == {"part": [*["prompt"] * 4, *[None] * 4], "a_b": [*[None] * 4, *["3"] * 4]}
        document = first.document
        assert document is not None
        assert (document.text, list(document.ids or ()), document.fields) == (text, [7, 0, 9], {"year": 1})
    for spans, expected in (
        ([{"start": 0}], "row 0: spans: {'start': 0} has no numbers"),
        ([{"start": 0, "stop": 28}], "row 0: span of a label [0, 28): it is not within the 27 characters"),
    ):
        assert expected in complaint(lambda spans=spans: list(open_corpus([{"text": text, "spans": spans}])))  # type: ignore[misc]
    assert documents(open_corpus([{"text": "a", "ids": 3, "spans": "x"}])) == [("a", {"ids": 3, "spans": "x"})]
