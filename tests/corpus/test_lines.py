"""Lines do not depend on blocks, compression and encoding; and corpora read back equal to what was written."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path

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
    st.characters(codec="utf-8", exclude_characters="\0@_", exclude_categories=["Zs", "Zl", "Zp", "Cc"]),
    min_size=1,
    max_size=8,
).filter(lambda word: not word.startswith("\ufeff"))
LABEL = st.sampled_from(["A", "B-x", "noun.Tops", "O"])
COLUMNS = ("upos", "xpos", "lemma", "deprel")


@st.composite
def sentences(draw: st.DrawFn, columns: tuple[str, ...]) -> Sentence:
    """A sentence of words and targets, labelled at the first word of each."""
    units = draw(st.lists(st.lists(WORD, min_size=1, max_size=3), min_size=1, max_size=6))
    words = [word for unit in units for word in unit]
    starts = list(accumulate(map(len, units), initial=0))
    targets = [(start, stop) for start, stop in pairwise(starts) if stop > start + 1]
    labels = {name: [draw(LABEL) if at in starts else None for at in range(len(words))] for name in columns}
    return Sentence(words, labels, targets)


def units(sentence: Sentence) -> list[tuple[str, dict[str, str]]]:
    """The forms of a sentence, targets joined by a space, each with its labels."""
    stops = dict(sentence.targets)
    found = []
    at = 0
    while at < len(sentence.words):
        stop = stops.get(at, at + 1)
        form = " ".join(sentence.words[at:stop])
        found.append((form, {name: str(column[at]) for name, column in sentence.labels.items()}))
        at = stop
    return found


def as_conllu(sentence: Sentence) -> str:
    rows = []
    for number, (form, labels) in enumerate(units(sentence), 1):
        lemma, upos, xpos, deprel = (labels[name] for name in ("lemma", "upos", "xpos", "deprel"))
        rows.append("\t".join([str(number), form, lemma, upos, xpos, "_", "0", deprel, "_", "_"]) + "\n")
    return "".join(rows) + "\n"


def as_conll(sentence: Sentence) -> str:
    return "".join(f"{form}\t{labels['label']}\n" for form, labels in units(sentence)) + "\n"


def as_pse(sentence: Sentence) -> str:
    return " ".join(f"@{form.replace(' ', '_')}@-{labels['class']}" for form, labels in units(sentence)) + "\n"


# File name -> label columns, and the text of a sentence.
WRITTEN: dict[str, tuple[tuple[str, ...], Callable[[Sentence], str]]] = {
    "a.conllu": (COLUMNS, as_conllu),
    "a.conll": (("label",), as_conll),
    "a.pse": (("class",), as_pse),
}


def plain(sentence: Sentence) -> object:
    labels = {name: list(column) for name, column in sentence.labels.items()}
    return list(sentence.words), labels, list(sentence.targets)


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.quick(1)
def test_round_trip(name: str, data: st.DataObject) -> None:
    columns, as_written = WRITTEN[name]
    written = data.draw(st.lists(sentences(columns), min_size=1, max_size=5))
    content = "".join(map(as_written, written)).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(zstandard.compress(content))
        assert list(map(plain, open_corpus(path))) == list(map(plain, written))
    words = [list(sentence.words) for sentence in written]
    assert [list(sentence.words) for sentence in open_corpus(words)] == words
