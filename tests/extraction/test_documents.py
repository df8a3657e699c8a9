"""Documents, their fields and their text, from the corpus to the table, compared with plain Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.corpus.sentence import Document, Sentence, sentence_of_forms
from embstore.errors import CorpusError
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.rows import make_index
from embstore.extraction.survey import survey
from embstore.extraction.windows import Overlap
from embstore.store import Index
from embstore.store.check.consistency import index_faults
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of

FIELDS: dict[str, list[Any]] = {  # of each document
    "author": ["Woolf", None, "Joyce", "Woolf", "Eliot"],
    "year": [1925, 1900, None, -5, 1925],
    "score": [1, 0.5, None, -0.0, float("nan")],
    "checked": [True, False, None, True, None],
    "mixed": [1, "1", 1.0, True, None],
    "late": [None, None, "x", None, "y"],
    "never": [None] * 5,
}


def sentences(words: int = 30) -> list[Sentence]:
    """Documents of some sentences, next to sentences without one; words have no piece, or no space before them."""
    random = np.random.default_rng(3)
    fields = [{name: values[at] for name, values in FIELDS.items() if values[at] is not None} for at in range(5)]
    fields[0]["never"] = None
    found = []
    for document in [None, *(Document(fields=each) for each in fields), None]:
        for _ in range(3):
            chosen = random.choice(["bank", "river", "~", "Constantinople"], random.integers(1, 6)).tolist()
            attached = [at for at in range(1, len(chosen)) if random.random() < 0.4]
            made = sentence_of_forms(chosen, {}, attached)
            found.append(replace(made, document=document, text=made.text + " \n", stop=made.stop))
    return found


def read(corpus: list[Sentence], **keep: Any) -> tuple[Index, str]:
    encoder = FakeEncoder()
    read = es.open_corpus(corpus)
    found = survey(read, encoder, ExtractionOptions(), limit=99, report=lambda n: None)
    options = ExtractionOptions(keep=es.corpus.Keep(**keep))
    index, _ = make_index(found, options=options, encoder=encoder, limit=99, overlap=Overlap())
    assert not list(index_faults(index, len(index.type)))
    return index, found.digest.hexdigest()


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.parametrize("words", [None, ["bank"]])
@pytest.mark.quick(2)
def test_the_table_is_that_of_plain_python(words: list[str] | None, suffix: str, tmp_path: Path) -> None:
    corpus = sentences()
    keep = es.corpus.Keep(words=None if words is None else frozenset(words))
    store = es.extract(plan_of(corpus, model=FakeEncoder(), keep=keep), tmp_path / f"s{suffix}")
    documents: list[Any] = []
    expected = []
    for number, sentence in enumerate(corpus):
        kept = [at for at, word in enumerate(sentence.words) if word != "~" and (words is None or word in words)]
        if kept and (sentence.document is None or sentence.document not in documents):
            documents.append(sentence.document)
        own = sentence.document.fields if sentence.document else {}
        score = None if own.get("score") is None or np.isnan(own["score"]) else float(own["score"])
        typed = {name: own.get(name) for name in FIELDS} | {"score": score}
        typed["mixed"] = None if "mixed" not in own else str(own["mixed"]).replace("True", "true")
        expected += [
            {"source": number, "document": len(documents) - 1, "position": at, "text": str(sentence), **typed}
            for at in kept
        ]
    columns = list(expected[0])
    assert store.table(columns=columns).to_dicts() == expected
    assert [{name: row[name] for name in columns} for row in store.select().to_dicts()] == expected
    parts = store.select().concordance()
    assert [before + word + after for before, word, after in parts] == [row["text"] for row in expected]
    rows = [at for at, row in enumerate(expected) if row["year"] == 1925]
    assert store.select(labels={"year": 1925}).rows.tolist() == rows
    assert store.select(where="year > 1900").rows.tolist() == rows
    assert store.select(labels={"checked": True}, where="author = 'Woolf'").rows.tolist() == [
        at for at, row in enumerate(expected) if row["checked"] and row["author"] == "Woolf"
    ]
    part = es.export(store.select(where="score < 1"), tmp_path / f"part{suffix}")
    some = [row for row in expected if row["score"] is not None and row["score"] < 1]
    assert part.table(columns=columns[2:]).to_dicts() == [{name: row[name] for name in columns[2:]} for row in some]
    assert es.verify(part.path).ok
    described = store.describe()["fields"]
    assert described["year"] == {"kind": "int", "values": len(set(FIELDS["year"]) - {None})}
    assert {name: own["kind"] for name, own in described.items()} == {
        "author": "str", "year": "int", "score": "float", "checked": "bool", "mixed": "str", "late": "str",
        "never": "str",
    }  # fmt: skip


def test_the_digest_covers_documents_fields_and_spaces() -> None:
    words = [["a", "b"], ["c"], ["c"]]
    one, other = Document(fields={"year": 1}), Document(fields={"year": 1})

    def digest(documents: list[Document | None], attached: tuple[int, ...] = ()) -> str:
        given = zip(words, documents, strict=True)
        made = ((sentence_of_forms(each, {}, attached if "b" in each else ()), document) for each, document in given)
        return read([replace(sentence, document=document) for sentence, document in made])[1]

    digests = [
        digest([None, None, None]),
        digest([None, None, None], (1,)),
        digest([one, one, other]),
        digest([one, other, other]),
        digest([one, one, Document(fields={"year": 2})]),
        digest([one, one, Document(fields={"year": 1.0})]),
        digest([one, one, Document(fields={"years": 1})]),
        digest([one, one, Document()]),
    ]
    assert len(set(digests)) == len(digests)
    assert digest([one, one, other]) == digest([other, other, one])


def test_what_names_no_document_stores_none() -> None:
    index, _ = read([Sentence(["a"]), Sentence(["b"])])
    assert index.document is None
    years = [Document(fields={"year": year}) for year in (1, 2)]
    index, _ = read([Sentence([word], {}, (), document) for word, document in zip("ab", years, strict=True)])
    assert index.document is None, "each sentence is a document of its own"
    assert index.labels["year"].codes.tolist() == [0, 1]


def test_bad_documents_are_refused_in_one_line() -> None:
    for fields, labels, message in [
        ({"year": [1]}, {}, "document 0 has the field 'year' [1]: a value is text"),
        ({"year": 1}, {"year": ["x"]}, "'year' is both a label column and a field"),
        ({"a/b": 1}, {}, "column 'a/b': a name is made of letters"),
        ({"word": 1}, {}, "column 'word': every occurrence table has one"),
    ]:
        with pytest.raises(CorpusError) as caught:
            read([Sentence(["a"], labels, (), Document(fields=fields))])
        assert message in str(caught.value)


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"sentences/document": [0, 0, 1]}, "does not fit the number of sentences"),
    ({"sentences/document": [1, 1, 2, 2]}, "does not number the documents from 0 on"),
    ({"sentences/document": [0, 1, 0, 1]}, "does not number the documents from 0 on"),
    ({"sentences/document": [0, 0, 1, 2]}, "has 2 values for 3 documents"),
    ({"documents/fields/year/codes": [0, 2]}, "holds a value that is not from -1 to 1"),
    ({"documents/fields/year/name_bytes": b"9910"}, "does not hold distinct values of kind int, ascending"),
    ({"documents/fields/year/name_bytes": b"a199"}, "holds a value that is not of kind int"),
]


@pytest.mark.parametrize(("changes", "message"), HOSTILE)
def test_hostile_columns_are_found(changes: dict[str, Any], message: str) -> None:
    documents = [Document(fields={"year": 10}), Document(fields={"year": 99})]
    made = [Sentence([word], {}, (), documents[at // 2]) for at, word in enumerate(["aa", "cc", "dd", "ee"])]
    index, _ = read(made)
    arrays = index.arrays()
    assert not list(index_faults(Index(arrays, {"year": "int"}), 4))
    for name, values in changes.items():
        given = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else np.array(values)
        arrays[name] = given.astype(arrays[name].dtype)
    assert message in "; ".join(index_faults(Index(arrays, {"year": "int"}), 4))
