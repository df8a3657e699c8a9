"""Every corpus format with its special cases, on small texts written here and on a real corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embstore.corpus import Sentence, open_corpus, read_word_classes
from embstore.corpus.lines import read_word_list
from embstore.corpus.sentence import Document
from embstore.errors import EmbstoreWarning


def read(folder: Path, name: str, text: str, **options: str) -> list[Sentence]:
    path = folder / name
    path.write_bytes(text.encode())
    return list(open_corpus(path, **options))


def plain(sentence: Sentence) -> tuple[list[str], dict[str, list[str | None]], list[tuple[int, int]]]:
    labels = {name: list(column) for name, column in sentence.labels.items()}
    return list(sentence.words), labels, list(sentence.targets)


def words(sentences: list[Sentence]) -> list[list[str]]:
    return [list(sentence.words) for sentence in sentences]


def conllu(*rows: str) -> str:
    """Lines of CoNLL-U from "id form lemma upos xpos deprel", the form's spaces written as "~"."""
    lines = []
    for row in rows:
        number, form, lemma, upos, xpos, deprel = row.split(" ")
        lines.append("\t".join([number, form.replace("~", " "), lemma, upos, xpos, "_", "0", deprel, "_", "_"]))
    return "\n".join(lines) + "\n"


LINES = {"split": "lines", "words": "spaces"}


def test_text_of_a_sentence_a_line(tmp_path: Path) -> None:
    text = "\ufeffOne  two\u00a0three\u3000four\r\n\n \t \nfive\rsix\x0bseven\n\u200b last"
    found = read(tmp_path, "a.txt", text, **LINES)
    expected = [["One", "two", "three", "four"], ["five", "six", "seven"], ["\u200b", "last"]]
    assert words(found) == expected
    assert all(not sentence.labels and not sentence.targets for sentence in found)
    assert len({sentence.document for sentence in found}) == 1
    assert words(read(tmp_path, "a.txt", "a\u2028b\x85c\x0cd", **LINES)) == [["a", "b", "c", "d"]]


def test_conllu(tmp_path: Path) -> None:
    text = (
        "# sent_id = 1\n"
        + conllu("1-2 can't _ _ _ _", "1 ca can AUX MD aux", "2 n't not PART RB advmod", "2.1 go go VERB VB _")
        + "\n\n# no words here\n\n"
        + conllu("0.1 e _ _ _ _", "1 _ _ PUNCT NFP _", "2 x _ _ _ dep")
    )
    first, second = map(plain, read(tmp_path, "a.conllu", text.replace("\n", "\r\n")))
    assert first == (
        ["ca", "n't"],
        {"upos": ["AUX", "PART"], "xpos": ["MD", "RB"], "lemma": ["can", "not"], "deprel": ["aux", "advmod"]},
        [],
    )
    assert second == (
        ["_", "x"],
        {"upos": ["PUNCT", None], "xpos": ["NFP", None], "lemma": ["_", None], "deprel": [None, "dep"]},
        [],
    )


def test_conllu_words_without_a_space_before_them_are_attached(tmp_path: Path) -> None:
    rows = [
        "1 He SpaceAfter=No", "2 , _", "3-4 don't SpaceAfter=No|x=y", "3 do _", "4 n't _",
        "5 , CorrectSpaceAfter=No",
    ]  # fmt: skip
    rows += ["6-7 du _", "6 de _", "7 le SpaceAfter=No", "8 New_York SpaceAfter=No", "9 . SpaceAfter=No", "10-11 x _"]
    lines = []
    for row in rows:
        number, form, misc = row.split(" ")
        lines.append("\t".join([number, form.replace("_", " "), *["_"] * 7, misc]))
    (tmp_path / "a.conllu").write_text("\n".join(lines) + "\n\n")
    (sentence,) = open_corpus(tmp_path / "a.conllu")
    assert sentence.words == ["He", ",", "do", "n't", ",", "de", "le", "New", "York", "."]
    assert sentence.text == "He, don't, de le New York.", "a range whose words do not spell it has spaces in and after"


def test_conllu_text_is_that_of_its_comment_if_it_has_the_words(tmp_path: Path) -> None:
    blocks = ["# text =  New \u00a0York is\tnot... ", "#text=New York isn't", "# text = New Yorkisnot ...", ""]
    block = conllu("1 New~York a X X x", "2 is a X X x", "3 not a X X x", "4 ... a X X x")
    found = read(tmp_path, "a.conllu", "# newdoc\n" + "".join(f"{each}\n{block}\n" for each in blocks))
    assert [str(each) for each in found] == [
        "New \u00a0York is\tnot...",
        "New York is not ...",
        "New Yorkisnot ...",
        "New York is not ...",
    ]
    assert [each.text for each in found] == [str(found[0]), *(f" {each}" for each in found[1:])]
    for each in found:
        assert [each.text[at : at + len(word)] for at, word in zip(each.starts, each.words, strict=True)] == each.words
        assert each.words == ["New", "York", "is", "not", "..."]


def test_conllu_newdoc_begins_a_document(tmp_path: Path) -> None:
    word = conllu("1 a a X X root") + "\n"
    text = word + "# newdoc id = weblog 1 \n# sent_id = 1\n" + word + "# newdocument\n" + word
    text += "#newdoc id=b\n\n" + word + "# newdoc\r\n" + word + "# newpar\n" + word + "# newdoc id =\n" + word
    (tmp_path / "a.conllu").write_bytes(text.encode())
    documents = [sentence.document for sentence in open_corpus(tmp_path / "a.conllu")]
    fields = [None if each is None else dict(each.fields) for each in documents]
    assert fields == [None, *[{"newdoc_id": "weblog 1"}] * 2, {"newdoc_id": "b"}, {}, {}, {}]
    assert [documents.index(each) for each in documents] == [0, 1, 1, 3, 4, 4, 6]
    (tmp_path / "b.conllu").write_text("# newdoc id = weblog 1\n" + word)
    both = [sentence.document for sentence in open_corpus(tmp_path)]
    assert both[-1] is not None
    assert both[-1].fields == {"file": "b.conllu", "newdoc_id": "weblog 1"}


def test_conllu_form_with_spaces_is_a_target(tmp_path: Path) -> None:
    text = conllu("1 en~plus~de en~plus~de ADP IN case", "2 10\u00a0000 10000 NUM CD nummod", "3 a~b c X X dep")
    assert plain(read(tmp_path, "a.conllu", text)[0]) == (
        ["en", "plus", "de", "10\u00a0000", "a", "b"],
        {
            "upos": ["ADP", None, None, "NUM", "X", None],
            "xpos": ["IN", None, None, "CD", "X", None],
            "lemma": ["en~plus~de", None, None, "10000", "c", None],
            "deprel": ["case", None, None, "nummod", "dep", None],
        },
        [(0, 3), (4, 6)],
    )


def test_conll_takes_the_first_and_the_last_column(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n#tag NN _ O\n \t\nrejects VBZ B-VP _\n"
    found = [plain(sentence) for sentence in read(tmp_path, "a.conll", text)]
    assert found == [(["EU", "#tag"], {"label": ["B-ORG", "O"]}, []), (["rejects"], {"label": [None]}, [])]


def test_conll_columns_are_named(tmp_path: Path) -> None:
    text = "1\tNew York\tNNP\tB-LOC\n2\tis\tVBZ\tO\n"
    (found,) = read(tmp_path, "a.conll", text, columns="-,word,pos,ner")
    assert plain(found) == (["New", "York", "is"], {"pos": ["NNP", None, "VBZ"], "ner": ["B-LOC", None, "O"]}, [(0, 2)])
    assert plain(read(tmp_path, "b.conll", "a\nb\n", columns="word")[0]) == (["a", "b"], {}, [])
    (found,) = read(tmp_path, "c.conll", "a x y z\n", columns="word,pos,...")
    assert plain(found) == (["a"], {"pos": ["x"]}, [])


def test_pse_targets(tmp_path: Path) -> None:
    text = "@sara_foster@-person saw @_@-sign @'s@-verb.stative @+_o.@-x @a@b.c@-mail @non-catholic@-noun.Tops\n"
    assert plain(read(tmp_path, "a.pse", text)[0]) == (
        ["sara", "foster", "saw", "_", "'s", "+", "o.", "a@b.c", "non-catholic"],
        {"class": ["person", None, None, "sign", "verb.stative", "x", None, "mail", "noun.Tops"]},
        [(0, 2), (5, 7)],
    )


def test_pse_words_with_an_at_sign_that_are_not_targets(tmp_path: Path) -> None:
    ordinary = "a@b.c @ @@ me@x-y.org @handle @- @-ing @handle's color@ a@@b @handle:"
    (found,) = read(tmp_path, "a.pse", ordinary)
    assert list(found.words) == ordinary.split()
    assert found.labels == {"class": [None] * len(found.words)}


def test_edge(tmp_path: Path) -> None:
    targets = [
        {"span1": [1, 2], "label": "NN"},
        {"span1": [1, 2], "label": ["A", "NN"]},
        {"span1": [2, 4], "label": "VP"},
        {"span1": [0, 2], "span2": [1, 3], "label": "agent"},
    ]
    records = [
        {"text": "The cat sat down", "targets": targets, "info": {"id": 1}},
        {"text": "Yes\u00a0! ok", "targets": []},
    ]
    first, second = map(plain, read(tmp_path, "a.jsonl", "\n\n".join(map(json.dumps, records))))
    assert first == (
        ["The", "cat", "sat", "down"],
        {"label": [None, "A|NN", None, None], "target": ["span1", "span1|span2", "span1|span2", "span1"]},
        [],
    )
    assert second == (["Yes\u00a0!", "ok"], {"label": [None] * 2, "target": [None] * 2}, [])


def test_sts(tmp_path: Path) -> None:
    found = read(tmp_path, "a.tsv", 'MSRpar\t4.400\t"Don\'t," he said.\tNo.\n\n')
    assert [each.words for each in found] == [['"', "Do", "n't", ",", '"', "he", "said", "."], ["No", "."]]
    for each, side in zip(found, "12", strict=True):
        labels = {"set": "MSRpar", "score": "4.400", "side": side}
        assert each.labels == {name: [label] * len(each.words) for name, label in labels.items()}
    assert [(each.text, str(each)) for each in found] == [('"Don\'t," he said.',) * 2, ("No.",) * 2]
    assert words(read(tmp_path, "a.tsv", "s\t0\ta b.\tc", words="spaces")) == [["a", "b."], ["c"]]


def test_a_pair_is_two_texts_with_an_empty_word_between(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "a.pairs", "1\t  He  left.\t No. \n")
    assert found.words == ["He", "left", ".", "", "No", "."]
    assert found.labels == {"label": [*["1"] * 3, None, *["1"] * 2], "side": [*["1"] * 3, None, *["2"] * 2]}
    assert (found.text, found.starts) == ("He  left.\nNo.", [0, 4, 8, 9, 10, 12])
    assert list(open_corpus([found])) == [found]


def test_sentences_of_one_document_are_divided_by_a_space() -> None:
    own = Document()
    given = [Sentence(["a", "b"], document=own), Sentence(["c"], document=own), Sentence(["d"], document=Document())]
    found = list(open_corpus(given))
    assert [(each.text, each.starts, str(each)) for each in found] == [
        ("a b", [0, 2], "a b"),
        (" c", [1], "c"),
        ("d", [0], "d"),
    ]
    pieces = [Sentence(["a"], {}, (), own, "\ta,", [1], 1, 2), Sentence(["b"], {}, (), own, " b\n", [1], 0)]
    assert list(open_corpus(pieces)) == pieces


def test_python_sentences() -> None:
    given = Sentence(("New", "York"), {"ner": ("LOC", None)}, ((0, 2),))
    corpus = open_corpus(["to be", given, ["New York", "is"], ("a",)])
    assert (corpus.name, corpus.format) == ("sentences", "sentences")
    assert corpus.options == {"split": "sentences", "words": "punctuation", "language": "en", "normalize": None}
    for _ in range(2):
        found = list(corpus)
        assert words(found) == [["to", "be"], ["New", "York"], ["New", "York", "is"], ["a"]]
        assert found[1] is given
        assert list(found[2].targets) == [(0, 2)]
    assert open_corpus(corpus) is corpus


def test_an_iterator_can_be_read_only_once_and_an_iterable_again() -> None:
    corpus = open_corpus(iter(["a b"]), words="punctuation")
    assert words(list(corpus)) == [["a", "b"]]
    with pytest.raises(ValueError, match="only once"):
        list(corpus)

    class Repeatable:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(["a b"])

    corpus = open_corpus(Repeatable())
    assert words(list(corpus)) == words(list(corpus)) == [["a", "b"]]


@pytest.mark.parametrize(
    ("normalize", "expected"),
    [
        (None, ["ＡＢ", "E\u0301", "ﬁ", "´", "İ"]),
        ("none", ["ＡＢ", "E\u0301", "ﬁ", "´", "İ"]),
        ("nfc", ["ＡＢ", "É", "ﬁ", "´", "İ"]),
        ("nfkc", ["AB", "É", "fi", "\u0301", "İ"]),
        ("nfc, lower", ["ａｂ", "é", "ﬁ", "´", "i̇"]),
    ],
)
def test_words_are_kept_as_written_unless_normalized(normalize: str | None, expected: list[str]) -> None:
    given = Sentence(["ＡＢ", "E\u0301", "ﬁ", "´", "İ"], {"lemma": ["ＡＢ"] * 5}, [(0, 2)])
    (found,) = open_corpus([given], normalize=normalize)
    assert (list(found.words), found.labels) == (expected, given.labels)
    assert (found.targets, found.text) == (given.targets, " ".join(expected))
    spaced = Sentence(["ﬁ", "İs"], {}, (), Document(" «ﬁ  İs»\n"), " «ﬁ  İs»\n", [2, 5], 1, 8)
    (found,) = open_corpus([spaced], normalize=normalize)
    first, second = found.words
    assert found.text == f" «{first}  {second}»\n"
    assert [found.text[at:] for at in found.starts] == [f"{first}  {second}»\n", f"{second}»\n"]
    assert str(found) == f"«{first}  {second}»"
    assert (found.document is spaced.document) == (normalize in (None, "none"))


def test_a_folder_and_a_list_of_files_are_read_in_order(tmp_path: Path) -> None:
    for name, text in {"b.txt": "two", "a.txt": "one", "c.md": "no", ".d.txt": "no"}.items():
        (tmp_path / name).write_text(text)
    with pytest.warns(EmbstoreWarning, match=r"1 of 3 files have no known suffix and are left out, such as c\.md$"):
        found = list(open_corpus(tmp_path))
    assert words(found) == [["one"], ["two"]]
    assert [each.document and each.document.fields for each in found] == [{"file": f"{name}.txt"} for name in "ab"]
    assert words(list(open_corpus(tmp_path, format="text"))) == [["one"], ["two"], ["no"]]
    both = open_corpus([tmp_path / "b.txt", tmp_path / "a.txt"])
    assert (both.name, both.format, len(both.paths)) == ("b.txt and 1 more", "text", 2)
    assert words(list(both)) == [["two"], ["one"]]
    assert words(list(open_corpus([str(tmp_path / "c.md")], format="text"))) == [["no"]]
    for name in "ab":  # a block of lines ends with its file
        (tmp_path / f"{name}.conllu").write_text(conllu(f"1 {name} a X X dep"))
    assert words(list(open_corpus([tmp_path / "a.conllu", tmp_path / "b.conllu"]))) == [["a"], ["b"]]


def test_options_that_affect_reading_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.conll").write_text("x y")
    text = open_corpus(tmp_path / "a.txt", normalize="lower , nfc")
    splitting = {"split": "sentences", "words": "punctuation", "language": "en"}
    assert text.options == {**splitting, "normalize": "lower,nfc"}
    columns = open_corpus(str(tmp_path / "a.conll"), columns=["word", "pos"])
    assert columns.options == {"columns": "word,pos", "normalize": None}
    json.dumps([text.options, columns.options])
    assert repr(columns) == "<Corpus 'a.conll', format='conll', columns='word,pos'>"


def test_word_lists(tmp_path: Path) -> None:
    path = tmp_path / "words.lst"
    path.write_text("bank\n\nNew  York \nNew_York\n#x\n")
    assert read_word_list(path) == {"bank", "New York", "New_York", "#x"}


def test_word_classes(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("@java@\t-noun.location=3 -noun.food=2\n@d_better@\t-verb.stative=1\n")
    expected = {"java": {"noun.location": 3, "noun.food": 2}, "d better": {"verb.stative": 1}}
    assert read_word_classes(path) == read_word_classes(path, optional=True) == expected
    path.write_text("New York\n\nbank\n")
    assert read_word_classes(path, optional=True) == {"New York": {}, "bank": {}}


@pytest.mark.parametrize(
    ("part", "many"), [pytest.param("train", 12_544, marks=pytest.mark.slow), ("dev", 2_001), ("test", 2_077)]
)
def test_ewt(data: Path, part: str, many: int) -> None:
    path = data / "ud-ewt" / f"en_ewt-ud-{part}.conllu"
    found = list(open_corpus(path))
    assert len(found) == many
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")]
    rows = [row for row in rows if row[0].isdigit()]
    assert [word for s in found for word in s.words] == [row[1] for row in rows]
    for column, name in {2: "lemma", 3: "upos", 4: "xpos", 7: "deprel"}.items():
        labels, expected = [label for s in found for label in s.labels[name]], [row[column] for row in rows]
        different = [(a, b) for a, b in zip(labels, expected, strict=True) if a != b]
        assert set(different) <= {(None, "_")}
