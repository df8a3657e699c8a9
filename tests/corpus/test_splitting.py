"""Running text: paragraphs, sentences and words, which are slices of the text as it was read."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st

from embstore.corpus import Sentence, open_corpus, splitting
from embstore.corpus.sentence import Document, Span
from embstore.corpus.splitting import Splitter, ends_sentence, is_wrapped
from embstore.errors import CorpusError, InvalidValueError

PLAIN = Splitter()
PROSE = (
    "It was a bright cold day in April, and the clocks were striking thirteen. Mr. Smith, his chin nuzzled into his "
    "breast, slipped quickly through the doors; “Stop!” he said. The hallway smelt of boiled cabbage and old mats."
)


def shown(sentence: Sentence) -> str:
    """The words, with "|" before those that follow another without white space and a space before the others."""
    stops = {at + len(word) for at, word in zip(sentence.starts, sentence.words, strict=True)}
    words = zip(sentence.starts, sentence.words, strict=True)
    return "".join(f"{'|' if at in stops else ' '}{word}" for at, word in words).lstrip()


def read(folder: Path, text: str, **options: str) -> list[str]:
    (folder / "a.txt").write_bytes(text.encode())
    return [shown(sentence) for sentence in open_corpus(folder / "a.txt", **options)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Gray paid $3.50, not 1,650. He left.", ["Dr. Gray paid $|3.50|, not 1,650|.", "He left|."]),
        ("“Light, light,” she said.  'Yes!'", ["“|Light|, light|,|” she said|.", "'|Yes|!|'"]),
        ("I don't; it's well-known (really).", ["I do|n't|; it|'s well|-|known (|really|)|."]),
        ("See https://a.org/b?c=1, or me@x.org.", ["See https://a.org/b?c=1|, or me@x.org|."]),
        ("he said--and then-- --so", ["he said|--|and then|-- --|so"]),
        ("Wait... 10:30 a.m.?!", ["Wait|... 10:30 a.m.|?|!"]),
        (
            "x\u200by \U0001f469\u200d\U0001f52c! e\u0301te\u0301",
            ["x\u200by \U0001f469|\u200d|\U0001f52c|!", "e\u0301te\u0301"],
        ),
        ("שלום, עולם. مرحبا؟", ["שלום|, עולם|.", "مرحبا|؟"]),
        ("a\u00a0b\u3000c\td", ["a b c d"]),
        ("\r\n \u2028", []),
    ],
)
def test_sentences_and_words(text: str, expected: list[str]) -> None:
    assert [shown(sentence) for sentence in PLAIN.document(Document(text))] == expected


TEXTS = st.text(
    st.one_of(st.sampled_from("ab. ,'\"-\n\r\t(1\u200b\u3000中😀é!"), st.characters(codec="utf-8")), max_size=80
)


@given(TEXTS, st.sampled_from(["sentences", "lines"]), st.sampled_from(["punctuation", "spaces"]), st.integers(1, 9))
def test_no_character_is_lost(text: str, split: str, words: str, size: int) -> None:
    """However a file's text is cut into blocks, the words are its characters, in order, and the pieces its text."""
    splitter, document = Splitter(split, words), Document()
    found = list(splitter.read((text[at : at + size] for at in range(0, len(text), size)), document))
    whole = list(splitter.document(Document(text)))
    assert [replace(each, document=None) for each in found] == [replace(each, document=None) for each in whole]
    assert "".join(sentence.text for sentence in found) == (text if text.strip() else "")
    assert "".join(word for sentence in found for word in sentence.words) == "".join(text.split())
    for number, sentence in enumerate(found):
        before = sentence.start
        for at, word in zip(sentence.starts, sentence.words, strict=True):
            assert sentence.text[at : at + len(word)] == word
            assert not sentence.text[before:at].strip()  # nothing but white space is left out
            assert not re.search(r"\s", word)
            before = at + len(word)
        assert not sentence.text[: sentence.start].strip()
        assert not sentence.text[sentence.stop :].strip()
        if split == "sentences":
            assert str(sentence) == str(sentence).strip()
        else:
            assert str(sentence) in re.split(r"\r?\n|\r\Z", text)
        assert sentence.start == 0 or number == 0


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


@pytest.mark.parametrize("width", [40, 72, 100])
def test_wrapped_lines_are_joined_and_others_are_not(tmp_path: Path, width: int) -> None:
    expected = [shown(sentence) for sentence in PLAIN.document(Document(PROSE))]
    assert len(expected) == 3
    paragraph, line = "\n".join(wrapped(PROSE, width)), "A line without a mark"
    assert read(tmp_path, f"Chapter 1\r\n\r\n{paragraph}\n \n\n{paragraph}") == ["Chapter 1", *expected, *expected]
    assert read(tmp_path, f"Chapter 1\n{PROSE}\n{line}\n{PROSE}") == ["Chapter 1", *expected, line, *expected]


def test_what_is_wrapped() -> None:
    lines = wrapped(PROSE, 60)
    assert [is_wrapped(each) for each in (lines, lines[:1], [])] == [True, False, False]
    assert not is_wrapped([line.replace(" ", ". ") + "." for line in lines])  # lines that end sentences
    assert not is_wrapped(wrapped(PROSE, 20))
    assert not is_wrapped(wrapped(PROSE * 9, 200))
    assert not is_wrapped([line for each in lines for line in (each, "")])  # no line follows another
    assert is_wrapped([*["word " * 12] * 30, "word " * 28, *["word " * 12] * 30])  # one long line is not the width
    assert [ends_sentence(each) for each in ('He said: "Stop!") ', 'He said "stop" ')] == [True, False]
    verse = ["Tyger Tyger, burning bright,", "In the forests of the night;", "What immortal hand or eye,"]
    assert not is_wrapped([*verse, "Could frame thy fearful symmetry? And then a longer one of prose"])


def test_a_document_is_a_file_or_a_string(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One. Two.\n\nThree.")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.txt").write_text("Four.")
    one = [sentence.document for sentence in open_corpus(tmp_path / "a.txt")]
    assert (one, one[0] and one[0].fields) == ([one[0]] * 3, {})
    files = open_corpus([tmp_path / "a.txt", tmp_path / "b" / "c.txt"])
    documents = [sentence.document or Document() for sentence in files]
    assert len(set(documents)) == 2
    assert [document.fields["file"] for document in documents] == ["a.txt"] * 3 + ["b/c.txt"]
    strings = [sentence.document for sentence in open_corpus(["One. Two.", "Three."])]
    assert strings[0] is strings[1] is not strings[2]


@pytest.mark.parametrize("split", ["sentences", "lines"])
def test_a_huge_line_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    monkeypatch.setattr(splitting, "MAX_PIECE", 300)
    assert (
        max(len(each.text) for each in Splitter(split).document(Document("a b. " * 999 + "\n" + "a b " * 999))) <= 600
    )
    numbered = [f"w{number}" for number in range(2_000)]
    (tmp_path / "a.txt").write_text(" ".join(numbered))
    found = list(open_corpus(tmp_path / "a.txt", split=split))
    assert [word for sentence in found for word in sentence.words] == numbered
    assert len(found) > 10
    assert max(len(" ".join(sentence.words)) for sentence in found) <= 600
    if split == "sentences":  # pieces end where sentences do, if there is an end
        ended = [f"We saw number {number}." for number in range(200)]
        assert read(tmp_path, " ".join(ended)) == [each.replace(".", "|.") for each in ended]
        monkeypatch.setattr(splitting, "MAX_PIECE", 30)  # the second sentence goes on in the next piece
        assert len(read(tmp_path, "The bank was shut. A river ran by the old stone bank.")) == 2


def test_pieces_of_a_file_are_all_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "MAX_PIECE", 1_000)
    n_given = 0

    def blocks() -> Iterator[str]:
        nonlocal n_given
        for _ in range(100):
            n_given += 1
            yield PROSE

    found = PLAIN.read(blocks(), Document())
    next(found)
    assert n_given < 12


def test_a_run_without_white_space_is_cut() -> None:
    run = "(" * 1_201
    (found,) = PLAIN.document(Document(f"a {run}b c"))
    assert ("".join(found.words), shown(found).count(" ")) == (f"a{run}bc", 2)
    assert max(map(len, Splitter().sentence("é" * 1_201).words)) == splitting.MAX_WORD  # type: ignore[union-attr]


def test_languages() -> None:
    assert [shown(each) for each in open_corpus(["Er kam bzw. z.B. so."], language="de")] == ["Er kam bzw. z.B. so|."]
    with pytest.raises(InvalidValueError, match=r"language: 'klingon' is not one of .*en, .*xx is for any other"):
        open_corpus(["a"], language="klingon")


def test_chinese_is_split_into_words_by_a_package_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    splitting._tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(InvalidValueError, match=r"^language zh: its words need another package: pip install jieba$"):
        open_corpus(["a"], language="zh")
    cut = SimpleNamespace(cut=lambda text, cut_all: re.findall("今天|天气|.", text), setLogLevel=lambda level: None)
    monkeypatch.setitem(sys.modules, "jieba", cut)
    monkeypatch.setattr("spacy.lang.zh.try_jieba_import", lambda: cut)
    assert [shown(each) for each in open_corpus(["今天天气好。好"], language="zh")] == ["今天|天气|好|。", "好"]
    splitting._tokenizer.cache_clear()


HOSTILE = [
    "a\r\nb.\r\n\r\nC d.\r\n",
    "\n \n\t First.  \n\n\n Second\there.\n",
    "\ufeffA mark. e\u0301te\u0301 \u0301x.",
    "שלום, עולם. \u202eمرحبا\u202c؟ \U0001f469\u200d\U0001f52c!",
    "a\x0cb\x0b\x1c\x1d\x85c\u2028d\u2029e\u00a0f\u3000",
    "x" * 2**20,
    "(" * 2**20 + " a",
    "if x:\n    return  1\n\n\tpass",
    "one\rtwo\r\r\n\r",
]


@pytest.mark.parametrize("options", [{}, {"words": "spaces"}, {"split": "lines"}])
@pytest.mark.parametrize("number", range(len(HOSTILE)))
@pytest.mark.quick(12)
def test_pieces_of_a_document_are_its_text(number: int, options: dict[str, str], tmp_path: Path) -> None:
    text = HOSTILE[number]
    (tmp_path / "a.txt").write_bytes(text.encode())
    for source in (tmp_path / "a.txt", [text], [Document(text)], [{"text": text}]):
        found = list(open_corpus(source, **options))
        assert "".join(each.text for each in found) == (
            text.removeprefix("\ufeff") if isinstance(source, Path) else text
        )
        assert len({each.document for each in found}) == 1
    for half in ("a\ud800", "a\0b"):
        with pytest.raises(CorpusError, match=r"text: (half of a surrogate|a NUL)"):
            list(open_corpus([text + half], **options))


def test_a_line_is_a_sentence_with_its_white_space() -> None:
    found = list(Splitter("lines", "spaces").document(Document("\n  def f():\r\n\n    return 1  \n\n")))
    assert [str(each) for each in found] == ["  def f():", "    return 1  "]
    assert [(each.text, each.start) for each in found] == [("\n  def f():\r\n\n", 1), ("    return 1  \n\n", 0)]


def test_words_of_a_text_are_those_of_spacy(data: Path) -> None:
    """Each run of characters without white space has the words that it has in its text."""
    files = sorted((data / "litbank").glob("*.txt"))[:2]
    text = "".join(file.read_text()[:200_000] for file in files) + " Mr.? can't! Im, XD; cannot, A. (:-)) a--b."
    tokenizer = splitting._rules("en")
    for sentence in PLAIN.document(Document(text)):
        whole = " ".join(str(sentence).split())
        assert sentence.words == [token.text for token in tokenizer(whole) if not token.text.isspace()]


def test_words_that_no_pattern_is_about_are_those_of_spacy() -> None:
    """What is plain to look at may have a rule of its own, with a mark before or after it, or as a part of it."""
    tokenizer, random = splitting._rules("en"), Random(0)
    words, rules = ["a", "I", "bank", "Bank", "XD", "o", "mother", "the", "can", "s", "t"], sorted(tokenizer.rules)
    runs = splitting._tokenizer("en")
    n_plain = 0
    for _ in range(30_000):
        chosen = [random.choice(random.choice([words, rules])) for _ in range(random.choice([1, 1, 2, 3]))]
        run = random.choice(["", "", *'“"‘']) + random.choice(["-", "--"]).join(chosen)
        run += random.choice(["", *".,;!?"]) + random.choice(["", *'”"’'])
        if not re.search(r"\s", run):
            n_plain += splitting._PLAIN.fullmatch(run) is not None
            assert list(runs[run][0]) == [token.text for token in tokenizer(run)], run
    assert n_plain > 10_000


@pytest.mark.parametrize("language", ["de", "en", "es", "fa", "fr", "ru", "xx"])
@pytest.mark.quick(2)
def test_rules_are_those_of_spacy(language: str) -> None:
    nlp = spacy.blank(language)
    text = f"{PROSE} {' '.join(nlp.Defaults.tokenizer_exceptions)} 3km/h, l'eau $5.50 (x)."
    assert [token.text for token in splitting._rules(language)(text)] == [token.text for token in nlp.tokenizer(text)]


def test_forgetting_words_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [each.words for each in PLAIN.document(Document(PROSE))]
    monkeypatch.setattr(splitting, "MAX_RUNS", 30)
    splitting._tokenizer.cache_clear()
    assert [each.words for _ in range(2) for each in PLAIN.document(Document(PROSE))] == expected * 2
    splitting._tokenizer.cache_clear()


def test_spans_of_a_document() -> None:
    text = " New York-based Ann saw.\nIt was  old.<|end|> "
    spans = [
        Span(1, 9, "target"),
        Span(1, 9, labels={"ner": "LOC"}),
        Span(text.index("<"), len(text), labels={"part": "markup", "ner": "x"}),
        Span(9, 24, labels={"ner": "after"}),
        Span(4, 4, labels={"ner": "empty"}),
    ]
    first, second, third = PLAIN.document(Document(text, spans=spans))
    assert first.words == ["New", "York", "-based", "Ann", "saw", "."]
    assert first.labels["ner"] == ["LOC", "LOC", *["after"] * 4]
    assert (first.targets, first.text, str(first)) == ([(0, 2)], text[:25], text[1:24])
    assert (second.words, str(second)) == (["It", "was", "old", "."], "It was  old.")
    assert third.labels == {"ner": ["x"] * 3, "part": ["markup"] * 3}
    assert "".join(each.text for each in (first, second, third)) == text
    for split in ("sentences", "lines"):
        assert "".join(each.text for each in Splitter(split).document(Document(text, spans=spans), apart=True)) == text
    given = [Span(10, 25, "sentence"), Span(1, 9, "sentence"), Span(1, 9, "word"), Span(16, 19, "word")]
    first, second = PLAIN.document(Document(text, spans=given))
    assert (first.words, first.targets, first.text, str(first)) == (["New", "York"], [(0, 2)], text[:10], text[1:9])
    assert (second.words, second.text, str(second)) == (["Ann"], text[10:], text[10:25])
    for kind, words in {"target": ["One", ".", "Two"], "word": ["One.", "Two"]}.items():
        first, second = PLAIN.document(Document("One. Two. Six.", spans=[Span(0, 8, kind), Span(10, 13, kind)]))  # type: ignore[arg-type]
        assert (first.words[: len(words)], first.targets, str(first)) == (words, [(0, len(words))], "One. Two.")
        assert (second.words[0], second.text) == ("Six", "Six.")


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([Span(0, 9)], r"span of a label \[0, 9\): it is not within the 6 characters"),
        ([Span(2, 2, "word")], r"span of a word \[2, 2\)"),
        ([Span(0, 1, "phrase")], r"span of a 'phrase': allowed are sentence, word"),  # type: ignore[arg-type]
        ([Span(0, 4, "sentence"), Span(3, 5, "sentence")], "two sentences overlap at character 3"),
        ([Span(0, 3, "word"), Span(2, 4, "word")], "starts: a word begins before the one before it has ended"),
        (
            [Span(0, 2, "sentence"), Span(1, 3, "word")],
            "start 0, stop 2: these characters of the text do not hold all of the words",
        ),
        ([Span(0, 1, labels={"x": 1})], "label column 'x': 1 is neither text"),  # type: ignore[dict-item]
        ([Span(0, 6, "target"), Span(4, 6, "target"), Span(2, 6, "target")], r"target \(0, 2\)"),
    ],
)
def test_bad_spans(spans: list[Span], expected: str) -> None:
    with pytest.raises(CorpusError, match=f"^sentence 0: {expected}"):
        list(open_corpus([Document("and so", spans=spans)]))


def test_a_text_on_which_sentencex_ends_in_a_panic_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(language: str, text: str) -> None:
        raise type("PanicException", (BaseException,), {})("byte index 5 is not a char boundary")

    monkeypatch.setattr("sentencex.get_sentence_boundaries", panic)
    with pytest.raises(CorpusError, match="sentencex fails on the text 'foi"):
        list(open_corpus(["foi. Sim."]))
