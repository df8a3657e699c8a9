"""Lines do not depend on blocks, compression and encoding; and corpora read back equal to what was written."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.corpus import Sentence, open_corpus
from embstore.corpus import lines as lines_module
from embstore.corpus.lines import Lines
from embstore.errors import CorpusError

COMPRESSED = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "two gzip members": lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
    "two zstd frames": lambda data: zstandard.compress(data[:7]) + zstandard.compress(data[7:]),
}


@pytest.mark.parametrize("how", COMPRESSED)
@pytest.mark.parametrize("block_nbytes", [1, 3, 7, 2**18])
def test_lines_do_not_depend_on_blocks(
    how: str, block_nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "BLOCK_NBYTES", block_nbytes)
    text = "\ufeffone\r\n\n¨two €\n" + "long " * 50 + "\r\n\r\r\n😀\ufeff end\r"
    path = tmp_path / "a.txt"
    path.write_bytes(COMPRESSED[how](text.encode()))
    assert list(Lines(path)) == ["one", "", "¨two €", "long " * 50, "\r", "😀\ufeff end"]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".TXT.zst", ".txt.ZST", ".txt.GZ"])
@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_compression_is_detected_by_the_first_bytes(suffix: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSED[how](b"one two\n"))
    corpus = open_corpus(path)
    assert corpus.format == "text"
    assert [list(sentence.words) for sentence in corpus] == [["one", "two"]]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "utf-8-sig"])
def test_other_encodings(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("café one\ntwo\r\n".encode(encoding))
    assert [list(s.words) for s in open_corpus(path, encoding=encoding)] == [["café", "one"], ["two"]]


@pytest.mark.parametrize("block_nbytes", [1, 5, 64, 2**18])
def test_the_position_of_a_bad_byte_does_not_depend_on_blocks(
    block_nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "BLOCK_NBYTES", block_nbytes)
    path = tmp_path / "a.txt"
    path.write_bytes("é\n".encode() * 100 + b"x\xe2\x82y\n")
    with pytest.raises(CorpusError, match=r"a\.txt:101: byte 0xe2 at offset 301 is not utf-8"):
        list(open_corpus(path))
    path.write_bytes("é\n".encode() * 100 + b"x\0")
    with pytest.raises(CorpusError, match=r"a\.txt:101: a NUL character"):
        list(open_corpus(path))


@pytest.mark.slow
def test_reading_holds_no_more_than_a_few_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one two three\n" * 1_000_000, 1))
    tracemalloc.start()
    many = sum(1 for _ in open_corpus(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert many == 1_000_000
    assert peak < 14_000_000 / 3


WORD = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Zs", "Zl", "Zp", "Cc"]),
    min_size=1,
    max_size=8,
).filter(lambda word: not word.startswith("\ufeff"))
LABEL = st.none() | st.sampled_from(["A", "B-x", "noun.Tops", "O"])
COLUMNS = ("upos", "xpos", "lemma", "deprel")


@st.composite
def sentences(draw: st.DrawFn, columns: tuple[str, ...]) -> Sentence:
    """A sentence of words and targets, labelled at the first word of each."""
    units = draw(st.lists(st.lists(WORD, min_size=1, max_size=3), min_size=1, max_size=6))
    words: list[str] = []
    targets = []
    labels: dict[str, list[str | None]] = {column: [] for column in columns}
    for unit in units:
        if len(unit) > 1:
            targets.append((len(words), len(words) + len(unit)))
        words.extend(unit)
        for column in labels.values():
            column.extend([draw(LABEL), *[None] * (len(unit) - 1)])
    return Sentence(words, labels, targets)


def units(sentence: Sentence) -> list[tuple[str, dict[str, str | None]]]:
    """The forms of a sentence, targets joined by a space, each with its labels."""
    stops = dict(sentence.targets)
    found = []
    at = 0
    while at < len(sentence.words):
        stop = stops.get(at, at + 1)
        form = " ".join(sentence.words[at:stop])
        found.append((form, {name: column[at] for name, column in sentence.labels.items()}))
        at = stop
    return found


def as_conllu(sentence: Sentence) -> str:
    rows = []
    for number, (form, labels) in enumerate(units(sentence), 1):
        row = {"lemma": "_", "upos": "_", "xpos": "_", "deprel": "_"}
        row.update({name: label for name, label in labels.items() if label is not None})
        fields = [str(number), form, row["lemma"], row["upos"], row["xpos"], "_", "0", row["deprel"], "_", "_"]
        rows.append("\t".join(fields) + "\n")
    return "".join(rows) + "\n"


def as_conll(sentence: Sentence) -> str:
    return "".join(f"{form}\t{labels['label'] or '_'}\n" for form, labels in units(sentence)) + "\n"


def as_pse(sentence: Sentence) -> str:
    written = []
    for form, labels in units(sentence):
        if labels["class"] is None and " " not in form:
            written.append(form)
        else:
            written.append(f"@{form.replace(' ', '_')}@-{labels['class'] or 'none'}")
    return " ".join(written) + "\n"


def as_edge(sentence: Sentence) -> str:
    spans = [(at, name) for at, name in enumerate(sentence.labels["label"]) if name is not None]
    targets: list[Any] = [{"span1": [at, at + 1], "label": name} for at, name in spans]
    return json.dumps({"text": " ".join(sentence.words), "targets": targets}) + "\n"


def read_back(name: str, written: str) -> list[Sentence]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(zstandard.compress(written.encode()))
        return list(open_corpus(path))


def same(found: list[Sentence], expected: list[Sentence]) -> bool:
    def plain(sentence: Sentence) -> object:
        labels = {name: list(column) for name, column in sentence.labels.items()}
        return list(sentence.words), labels, list(sentence.targets)

    return list(map(plain, found)) == list(map(plain, expected))


@settings(deadline=None, max_examples=40)
@given(st.lists(sentences(()), min_size=1, max_size=5))
def test_text_round_trip(given_sentences: list[Sentence]) -> None:
    written = "".join(" ".join(sentence.words) + "\n" for sentence in given_sentences)
    expected = [Sentence(sentence.words) for sentence in given_sentences]
    assert same(read_back("a.txt", written), expected)
    assert same(list(open_corpus([list(sentence.words) for sentence in given_sentences])), expected)


@settings(deadline=None, max_examples=40)
@given(st.lists(sentences(COLUMNS), min_size=1, max_size=5))
def test_conllu_round_trip(given_sentences: list[Sentence]) -> None:
    def no_lemma_of_underscore(sentence: Sentence) -> Sentence:
        lemmas = zip(sentence.words, sentence.labels["lemma"], strict=True)
        heads = {start for start, _ in sentence.targets}
        labels = {
            **sentence.labels,
            "lemma": [
                "_" if (word, lemma) == ("_", None) and at not in heads and not inside(sentence, at) else lemma
                for at, (word, lemma) in enumerate(lemmas)
            ],
        }
        return Sentence(sentence.words, labels, sentence.targets)

    written = "".join(map(as_conllu, given_sentences))
    assert same(read_back("a.conllu", written), list(map(no_lemma_of_underscore, given_sentences)))


def inside(sentence: Sentence, at: int) -> bool:
    return any(start < at < stop for start, stop in sentence.targets)


@settings(deadline=None, max_examples=40)
@given(st.lists(sentences(("label",)), min_size=1, max_size=5))
def test_conll_round_trip(given_sentences: list[Sentence]) -> None:
    if any(sentence.words[0] == "-DOCSTART-" for sentence in given_sentences):
        return
    assert same(read_back("a.conll", "".join(map(as_conll, given_sentences))), given_sentences)


@settings(deadline=None, max_examples=40)
@given(st.lists(sentences(("label",)), min_size=1, max_size=5))
def test_edge_round_trip(given_sentences: list[Sentence]) -> None:
    found = read_back("a.jsonl", "".join(map(as_edge, given_sentences)))
    for sentence, expected in zip(found, given_sentences, strict=True):
        labels = expected.labels["label"]
        assert list(sentence.words) == list(expected.words)
        assert list(sentence.labels["label"]) == list(labels)
        assert list(sentence.labels["target"]) == [None if label is None else "span1" for label in labels]


@settings(deadline=None, max_examples=40)
@given(st.lists(sentences(("class",)), min_size=1, max_size=5))
def test_pse_round_trip(given_sentences: list[Sentence]) -> None:
    if any(sign in word for sentence in given_sentences for word in sentence.words for sign in "@_"):
        return
    expected = []
    for sentence in given_sentences:
        heads = {start for start, _ in sentence.targets}
        labels = [
            "none" if label is None and at in heads else label for at, label in enumerate(sentence.labels["class"])
        ]
        expected.append(Sentence(sentence.words, {"class": labels}, sentence.targets))
    assert same(read_back("a.pse", "".join(map(as_pse, given_sentences))), expected)
