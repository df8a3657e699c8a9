"""Bad input: every error is one line that says where and what is wrong."""

from __future__ import annotations

import gzip
import os
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from embstore.corpus import Sentence, open_corpus, read_edges, read_word_classes
from embstore.corpus.lines import read_word_list
from embstore.corpus.sentence import Document, Span
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError
from tests.privileges import reachable_folder, without_privileges

ROW = "{}\t{}\tl\tX\tX\t_\t0\tdep\t_\t_\n"
EDGE = '{"text": "a b", "targets": [%s]}\n'
SPAN = '{"span1": [0, %s], "label": "x"}'
LONG_TEXT = "\n".join(f"sentence number {number} of many" for number in range(5000)).encode()
CHECKED_ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress(LONG_TEXT)

BAD_FILES: dict[str, tuple[str, bytes | str, str]] = {
    "empty": ("a.txt", "", "no sentence in it"),
    "binary": ("a.txt", b"one\ntwo\nth\0ree", "a.txt:3: a NUL character"),
    "latin-1": ("a.txt", "one\ntwo\ncafé".encode("latin-1"), "a.txt:3: byte 0xe9 at offset 11 is not utf-8"),
    "cp1252": ("a.txt", "one “two”".encode("cp1252"), "save it as UTF-8: iconv -f cp1252 -t utf-8"),
    "utf-16": ("a.txt", "one “two”".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
    "cut-off character": ("a.txt", "one\ncafé".encode()[:-1], "a.txt:2: byte 0xc3 at offset 7"),
    "bad byte in gzip": ("a.txt.gz", gzip.compress(b"one\n\xff"), "a.txt.gz:2: byte 0xff at offset 4"),
    "cut-off gzip": ("a.txt.gz", gzip.compress(LONG_TEXT)[:-9], "the gzip data end too early"),
    "damaged gzip": ("a.txt.gz", gzip.compress(LONG_TEXT)[:-8] + b"\0" * 8, "damaged gzip data"),
    "cut-off zstd": ("a.txt.zst", zstandard.compress(LONG_TEXT)[:-9], "the zstd data end too early"),
    "damaged zstd": ("a.txt.zst", CHECKED_ZSTD[:-4] + b"\0" * 4, "damaged zstd data"),
    "unknown suffix": ("a.md", "one", "unknown suffix '.md'; save as .txt or give --format: text"),
    "conllu, 9 columns": ("a.conllu", "# c\n" + ROW.format(1, "a")[:-3] + "\n", "a.conllu:2: 9 columns"),
    "conllu, id again": ("a.conllu", ROW.format(1, "a") * 2, "a.conllu:2: the id is neither 2"),
    "conllu, id 0": ("a.conllu", ROW.format(0, "a"), "a.conllu:1: the id is neither 1"),
    "conllu, no id": ("a.conllu", ROW.format("one", "a"), "a.conllu:1: the id is neither 1"),
    "conllu, range backwards": ("a.conllu", ROW.format("2-1", "a"), "a.conllu:1: the id is neither 1"),
    "conllu, empty node early": ("a.conllu", ROW.format("1.1", "a"), "a.conllu:1: the id is neither 1"),
    "conllu, empty form": ("a.conllu", ROW.format(1, " "), "a.conllu:1: the word (column 2) is empty"),
    "conll, ragged": ("a.conll", "a X O\nb O\n", "a.conll:2: 2 columns instead of 3 columns"),
    "conll, one column": ("a.conll", "a\n", "a.conll:1: 1 column, fewer than word,...,label names"),
    "conll, empty word": ("a.conll", "a\tO\n\tO\n", "a.conll:2: a column is empty"),
    "conllu, endless range": ("a.conllu", ROW.format("1-" + "9" * 5000, "a"), "the id is neither 1"),
    "pse, no class": ("a.pse", "x\n@color@ y", "a.pse:2: '@color@' is not a target"),
    "pse, not closed": ("a.pse", "@color-noun", "'@color-noun' is not a target"),
    "pse, empty word": ("a.pse", "@@-noun", "'@@-noun' is not a target"),
    "pse, comma in class": ("a.pse", "@york@-location, x", "'@york@-location,' is not a target"),
    "edge, no JSON": ("a.jsonl", EDGE % "" + '{"text": \n', "a.jsonl:2: not JSON"),
    "edge, endless number": ("a.jsonl", EDGE % (SPAN % ("9" * 5000)), "a.jsonl:1: a number of"),
    "edge, long number": ("a.jsonl", EDGE % (SPAN % ("9" * 4000)), "is not [start, stop] within"),
    "sts, endless score": ("a.tsv", f"s\t{'9' * 5000}\ta\tb\n", "a.tsv:1: the score (field 2)"),
    "edge, no text": ("a.jsonl", '{"targets": []}', 'a.jsonl:1: the key "text" is missing'),
    "edge, two spaces": ("a.jsonl", '{"text": "a  b", "targets": []}', "joined by single spaces"),
    "edge, surrogate": ("a.jsonl", '{"text": "a\\ud800", "targets": []}', "half of a surrogate pair"),
    "edge, target a number": ("a.jsonl", EDGE % "1", "targets: 1 is not an object"),
    "edge, no label": ("a.jsonl", EDGE % '{"span1": [0, 1]}', 'the key "label" is missing'),
    "edge, label a number": ("a.jsonl", EDGE % '{"span1": [0, 1], "label": [1]}', "label: [1] is not"),
    "edge, span out": ("a.jsonl", EDGE % '{"span1": [1, 3], "label": "x"}', "span1: [1, 3] is not [start"),
    "edge, span of three": ("a.jsonl", EDGE % '{"span1": [0, 1, 2], "label": "x"}', "[0, 1, 2] is not [start, stop]"),
    "edge, span2 out": ("a.jsonl", EDGE % '{"span1": [0, 1], "span2": [0, 9], "label": "x"}', "span2: [0, 9] is not ["),
    "sts, header": ("a.tsv", "set\tscore\tone\ttwo\n", "a.tsv:1: the score (field 2), 'score'"),
    "sts, 3 fields": ("a.tsv", "s\t1\ta\n", "a.tsv:1: 3 fields"),
    "sts, no sentence": ("a.tsv", "s\t1\ta\tb\ns\t1\ta\t \n", "a.tsv:2: sentence 2 has no word"),
    "sts, no set": ("a.tsv", "\t1\ta\tb\n", "a.tsv:1: the set (field 1) is empty"),
}


def complaint(act: Callable[[], object], error: type[Exception] = CorpusError) -> str:
    """Return the message of the error that a call raises, which is one short line."""
    with pytest.raises(error) as caught:
        act()
    message = str(caught.value)
    assert message
    assert "\r" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.quick(40)
def test_bad_files(case: str, tmp_path: Path) -> None:
    name, content, expected = BAD_FILES[case]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    form = case.split(",")[0]  # .jsonl and .tsv have two formats
    message = complaint(lambda: list(open_corpus(path, format=form if form in ("edge", "sts") else None)))
    assert expected in message
    assert str(path) in message or expected == "no sentence in it"


def test_a_sentence_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.corpus.lines.MAX_SENTENCE", 100)
    monkeypatch.setattr("embstore.corpus.sentence.MAX_SENTENCE", 100)
    block = "".join(ROW.format(number, "a") for number in range(1, 10))
    for name, text, message in (
        ("a.pse", "one\n" + "ab " * 34, "a.pse:2: a line of more than 100 characters"),
        ("a.pse", "one\n" + "a" * 100 + "\nb", None),
        ("a.pse", "a" * 101, "a.pse:1: a line of more than"),
        ("a.conllu", ROW.format(1, "a") + "\n" + block, "a.conllu:7: a sentence of more than 100 characters"),
        ("a.conllu", (ROW.format(1, "a") + "\n") * 20, None),
        ("a.conll", "a\tO\n" * 40, "a.conll:34: a sentence of more than 100 characters"),
        ("a.conll", "a\tO\n\n" * 40, None),
    ):
        path = tmp_path / name
        path.write_text(text)
        if message is None:
            assert len(list(open_corpus(path))) > 1
        else:
            assert message in complaint(lambda path=path: list(open_corpus(path)))  # type: ignore[misc]
    assert "sentence 1: a sentence of more than 100" in complaint(
        lambda: list(open_corpus(["a", ["b" * 60, "c" * 41]]))
    )


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.slow
def test_a_line_that_expands_without_end_is_refused_in_little_memory(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.pse"
    path.write_bytes(compress(b"one\n" + b"x" * 2**27))
    tracemalloc.start()
    message = complaint(lambda: list(open_corpus(path)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "a.pse:2: a line of more than 4,194,304 characters" in message
    assert peak < 2**26


def test_markup_of_any_length_is_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.pse"
    path.write_text("@" + "a" * 2**21)  # two minutes for each 300,000 characters, if the time were quadratic
    assert [len(sentence.words[0]) for sentence in open_corpus(path)] == [1 + 2**21]


def test_devices_are_refused_and_pipes_are_read_once(tmp_path: Path) -> None:
    assert "is a device, not a file" in complaint(lambda: open_corpus("/dev/zero", format="text"))
    pipe = tmp_path / "a.conllu"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(ROW.format(1, "a")), daemon=True)
    writer.start()
    assert [list(sentence.words) for sentence in open_corpus(pipe)] == [["a"]]
    writer.join()


PLACE = Document("ab cd")
BAD_SENTENCES: dict[str, tuple[Any, str]] = {
    "none": ([], "no sentence in it"),
    "no words": ([["a"], []], "sentence 1: no word in it"),
    "word a number": ([["a", 1]], "sentence 0: word 1 is 1"),
    "empty word": ([["a", ""]], "sentence 0: word 1 is ''"),
    "sentence a number": ([1], "sentence 0: 1 is neither a Sentence"),
    "space in a word": ([Sentence(["a b"])], "sentence 0: the word 'a b' has a space"),
    "words a string": ([Sentence("abc")], "words is one string"),
    "surrogate": ([["\ud800"]], "half of a surrogate pair"),
    "label a number": ([Sentence(["a"], {"x": [3]})], "3 is neither text nor None"),  # type: ignore[list-item]
    "column with a slash": ([Sentence(["a"], {"x/y": ["z"]})], "label column 'x/y'"),
    "target of one word": ([Sentence(["a", "b"], {}, [(0, 1)])], "target (0, 1)"),
    "pair of one": ([Sentence(["a", ""])], "sentence 0: word 1 is ''"),
    "starts too few": ([Sentence(["a", "b"], text="a b", starts=[0])], "starts: they are not where the 2 words begin"),
    "words that overlap": ([Sentence(["ab", "b"], text="ab", starts=[0, 1])], "starts: a word begins before"),
    "starts backwards": ([Sentence(["b", "a"], text="a b", starts=[2, 0])], "starts: a word begins before"),
    "start in a word": ([Sentence(["ab"], text="ab", starts=[0], start=1)], "start 1, stop 2: these characters"),
    "stop after the text": ([Sentence(["ab"], text="ab", starts=[0], stop=3)], "start 0, stop 3: these characters"),
    "spans without text": ([Document(ids=[1])], "sentence 0: a document with spans or ids and without the text"),
    "ids below 0": ([Document("a", ids=[-1])], "sentence 0: ids: they are not all numbers"),
    "NUL": ([["a\0"]], "sentence 0: text: a NUL character"),
    "word a number in a sentence": ([partial(Sentence, ["a", 5])], "word 1 is 5"),
    "words None": ([partial(Sentence, None)], "words None is not allowed"),
    "text a number": ([partial(Sentence, ["a"], text=5)], "text 5 is not allowed"),
    "starts of text": ([Sentence(["a"], text="a", starts=["0"])], "starts: they are not where"),  # type: ignore[list-item]
    "starts None": ([Sentence(["a"], text="a", starts=None)], "starts: they are not where"),  # type: ignore[arg-type]
    "start half": ([Sentence(["a"], text="a", starts=[0], start=0.5)], "start 0.5, stop 1"),  # type: ignore[arg-type]
    "fields None": ([Document("a", None)], "fields None is not allowed"),  # type: ignore[arg-type]
    "spans None": ([Document("a", spans=None)], "spans None is not allowed"),  # type: ignore[arg-type]
    "span a tuple": ([Document("a", spans=[(0, 1)])], "spans: member (0, 1) is not allowed"),  # type: ignore[list-item]
    "span of text": ([Document("a", spans=[Span("0", 1)])], "[0, 1): it is not within"),  # type: ignore[arg-type]
    "span half": ([Document("ab", spans=[Span(0.5, 2, "word")])], "[0.5, 2): it is not within"),  # type: ignore[arg-type]
    "labels None": ([Document("a", spans=[Span(0, 1, labels=None)])], "labels of a span None"),  # type: ignore[arg-type]
    "ids half": ([Document("a", ids=[1.5])], "ids: they are not all numbers"),  # type: ignore[list-item]
    "ids an array": ([Document("a", ids=np.array([1, 2]))], "ids array([1, 2]) is not allowed"),  # type: ignore[arg-type]
    "text of another": ([Sentence(["x"], document=Document("ab cd"))], "its text 'x' is not what the text of its"),
    "white space left out": ([Sentence([word], document=PLACE) for word in ("ab", "cd")], "white space included"),
    "targets that overlap": ([Sentence(["a", "b", "c"], {}, [(0, 2), (1, 3)])], "target (1, 3)"),
}


@pytest.mark.parametrize("case", BAD_SENTENCES)
def test_bad_sentences(case: str) -> None:
    source, expected = BAD_SENTENCES[case]
    error = InvalidValueError if isinstance(source[:1] and source[0], partial) else CorpusError
    assert expected in complaint(
        lambda: list(open_corpus([each() if callable(each) else each for each in source])), error
    )


def test_sentences_of_a_document_are_parts_of_its_text_in_any_choice() -> None:
    sentences = list(open_corpus([Document(" Yes. One two.\n Yes.")], split="sentences"))
    assert len(sentences) == 3
    for chosen in (sentences, sentences[::2], sentences[::-1], [*sentences, *sentences]):
        assert [each.text for each in open_corpus(chosen)] == [each.text for each in chosen]


BAD_OPTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "split of conllu": ("a.conllu", {"split": "space"}, "split: 'space' has no meaning for the format conllu"),
    "columns of text": ("a.txt", {"columns": "word"}, "columns: 'word' has no meaning for the format text"),
    "normalize": ("a.txt", {"normalize": "nfc,upper"}, "normalize: 'upper' is not one of nfc, nfkc, lower"),
    "no word column": ("a.conll", {"columns": "form,label"}, 'must name "word" once'),
    "column twice": ("a.conll", {"columns": "word,x,x"}, "repeats a name"),
    "empty column": ("a.conll", {"columns": "word,,x"}, "columns: 'word,,x' are not names"),
    "column with a slash": ("a.conll", {"columns": "word,a/b"}, "label column 'a/b'"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(case: str, tmp_path: Path) -> None:
    name, options, expected = BAD_OPTIONS[case]
    (tmp_path / name).write_text("x y")
    assert expected in complaint(lambda: open_corpus(tmp_path / name, **options), InvalidValueError)


def test_bad_paths(tmp_path: Path) -> None:
    assert "no corpus at" in complaint(lambda: open_corpus(tmp_path / "not\nthere.txt"), CorpusNotFoundError)
    assert issubclass(CorpusNotFoundError, FileNotFoundError)
    with pytest.raises(CorpusError, match="cannot be read"):
        open_corpus("x" * 5000)
    assert "no file of a known format" in complaint(lambda: open_corpus(tmp_path))
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.tsv").write_text("x")
    assert "a corpus has one format" in complaint(lambda: open_corpus(tmp_path))
    with pytest.raises(CorpusError, match=r"a\.txt is given twice: name each file once"):
        open_corpus([tmp_path / "a.txt", tmp_path / "a.txt"])
    corpus = open_corpus(tmp_path / "a.txt")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(CorpusNotFoundError):
        list(corpus)


def test_permission_denied() -> None:
    with reachable_folder() as folder:
        path = folder / "a.txt"
        path.write_text("x")
        path.chmod(0)
        with without_privileges(), pytest.raises(CorpusError, match="Permission denied"):
            list(open_corpus(path))


@pytest.mark.parametrize("source", ["", 7, None, b"a.txt", [Path("a.txt"), "a b"], [__file__]])
def test_bad_sources(source: Any) -> None:
    assert complaint(lambda: open_corpus(source), InvalidValueError).startswith("source: ")


def test_options_of_files_are_refused_for_sentences(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"^format: 'text' is for files"):
        open_corpus(iter(["a"]), format="text")
    with pytest.raises(InvalidValueError, match=r"^split: a Corpus has its options already"):
        open_corpus(open_corpus(["a"]), split="space")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@java@ -noun=3\n", ":1: '@java@ -noun=3' is not of the form"),
        ("@java@\t\n", ":1: "),
        ("@a@\t-n=1\n@java@\tnoun=3\n", ":2: "),
        ("@java@\t-noun=x\n", ":1: "),
        ("java\t-noun=1\n", ":1: "),
        ("@@\t-noun=1\n", ":1: "),
        ("@a_b@\t-n=1\n@a b@\t-n=1\n", ":2: the word 'a b' is in the list twice"),
        ("\n", ": no word in it"),
    ],
)
def test_bad_word_classes(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(text)
    assert f"{path}{expected}" in complaint(lambda: read_word_classes(path))


def test_bad_word_lists(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(CorpusError, match="no word in it"):
        read_word_list(tmp_path / "empty")
    with pytest.raises(CorpusNotFoundError, match=r"^no word list at .*missing: give an existing file$"):
        read_word_list(tmp_path / "missing")
    with pytest.raises(CorpusNotFoundError, match=r"^no list of words and classes at .*missing"):
        read_word_classes(tmp_path / "missing", optional=True)
    with pytest.raises(CorpusNotFoundError, match=r"^no file of targets at .*missing"):
        list(read_edges(tmp_path / "missing"))
    with pytest.raises(CorpusError, match="is a folder"):
        read_word_list(tmp_path)
