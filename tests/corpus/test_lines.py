"""Lines do not depend on blocks, compression and encoding; and corpora read back equal to what was written."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import assume, given, settings
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


def as_text(sentence: Sentence) -> str:
    return " ".join(sentence.words) + "\n"


def as_conllu(sentence: Sentence) -> str:
    rows = []
    for number, (form, labels) in enumerate(units(sentence), 1):
        lemma, upos, xpos, deprel = (labels[name] or "_" for name in ("lemma", "upos", "xpos", "deprel"))
        rows.append("\t".join([str(number), form, lemma, upos, xpos, "_", "0", deprel, "_", "_"]) + "\n")
    return "".join(rows) + "\n"


def as_conll(sentence: Sentence) -> str:
    assume(sentence.words[0] != "-DOCSTART-")
    return "".join(f"{form}\t{labels['label'] or '_'}\n" for form, labels in units(sentence)) + "\n"


def as_pse(sentence: Sentence) -> str:
    assume(not any(sign in word for word in sentence.words for sign in "@_"))
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


def with_lemma_of_underscore(sentence: Sentence) -> Sentence:
    """The lemma "_" of the word "_" is a label."""
    of_targets = {at for start, stop in sentence.targets for at in range(start, stop)}
    lemmas = [
        "_" if (word, lemma) == ("_", None) and at not in of_targets else lemma
        for at, (word, lemma) in enumerate(zip(sentence.words, sentence.labels["lemma"], strict=True))
    ]
    return Sentence(sentence.words, {**sentence.labels, "lemma": lemmas}, sentence.targets)


def with_class_of_targets(sentence: Sentence) -> Sentence:
    """A target has a class."""
    heads = {start for start, _ in sentence.targets}
    classes = ["none" if label is None and at in heads else label for at, label in enumerate(sentence.labels["class"])]
    return Sentence(sentence.words, {"class": classes}, sentence.targets)


def with_edge_columns(sentence: Sentence) -> Sentence:
    """A labelled word is the first span of its target."""
    labels = sentence.labels["label"]
    return Sentence(sentence.words, {"label": labels, "target": [label and "span1" for label in labels]})


# File name -> label columns, the text of a sentence, and the sentence that is read back.
WRITTEN: dict[str, tuple[tuple[str, ...], Callable[[Sentence], str], Callable[[Sentence], Sentence]]] = {
    "a.txt": ((), as_text, lambda sentence: Sentence(sentence.words)),
    "a.conllu": (COLUMNS, as_conllu, with_lemma_of_underscore),
    "a.conll": (("label",), as_conll, lambda sentence: sentence),
    "a.pse": (("class",), as_pse, with_class_of_targets),
    "a.jsonl": (("label",), as_edge, with_edge_columns),
}


def plain(sentence: Sentence) -> object:
    labels = {name: list(column) for name, column in sentence.labels.items()}
    return list(sentence.words), labels, list(sentence.targets)


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.quick(1)
def test_round_trip(name: str, data: st.DataObject) -> None:
    columns, as_written, as_read = WRITTEN[name]
    written = data.draw(st.lists(sentences(columns), min_size=1, max_size=5))
    content = "".join(map(as_written, written)).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(zstandard.compress(content))
        found = list(open_corpus(path, **({"split": "lines", "words": "spaces"} if name == "a.txt" else {})))
    assert list(map(plain, found)) == [plain(as_read(sentence)) for sentence in written]
    words = [list(sentence.words) for sentence in written]
    assert [list(sentence.words) for sentence in open_corpus(words)] == words
