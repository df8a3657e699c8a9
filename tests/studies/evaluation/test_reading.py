"""Benchmarks are recognised by folder or content, and read whole or refused with the line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from embstore.errors import CorpusError, EmbstoreWarning
from embstore_studies.evaluation.analogies import Analogies, read_analogies
from embstore_studies.evaluation.evaluate import read_benchmarks
from embstore_studies.evaluation.relations import Relations
from embstore_studies.evaluation.similarity import Categories, SimilarityPairs, read_categories, read_similarity

PARADIGMS = "1, a, CLASS, Kind:Of, flower:tulip,poem:sonnet. tree:oak\n2, b, PART, Some, car:wheel eat:food\n"
GOLD = '# Score\n 50.0 "weapon:spear"\n-3.5 "tree:elm"\n'

SEMEVAL = {
    "Gold/Testing/GoldRatings-2b.txt": '10 "a:b"\n',
    "Gold/Testing/GoldRatings-1a.txt": GOLD,
    "Gold/Training/GoldRatings-3c.txt": GOLD,
    "Package/subcategories-paradigms.txt": PARADIGMS,
    "Package/Testing/Phase2Answers/Phase2Answers-1a.txt": '"a:b"\t"c:d"\t"e:f"\t"g:h"\t"a:b"\t"c:d"\n',
    "Package/Examples/anything.txt": "anything",
}


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "new york\tcity\t7.5\ncar\tauto\t-2e1\n",
        "new york,city,7.5\ncar,auto,-20\n",
        "\ufeff# rated by us\nWord 1,Word 2,Human (mean)\nnew york,city,7.5\r\n\r\ncar,auto,-20\r\n",
        "new york\tcity\t7.5\t8\t7\ncar\tauto\t-20\t1",
    ],
)
def test_similarity_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(text)
    assert read_similarity(tmp_path / "s", name="s") == SimilarityPairs(
        "s", (("new york", "city"), ("car", "auto")), (7.5, -20)
    )


def test_similarity_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("sun  sunlight 50.0\ncar auto 50\n")
    assert read_similarity(tmp_path / "s", name="s").pairs == (("sun", "sunlight"), ("car", "auto"))


def test_analogies_with_and_without_sections(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(": capitals\nA B C D\nE F G H\n: gram1\nI J K L\n")
    expected = (("A", "B", "C", "D"), ("E", "F", "G", "H"), ("I", "J", "K", "L"))
    assert read_analogies(tmp_path / "a", name="a") == Analogies("a", expected, (("capitals", 0, 2), ("gram1", 2, 3)))
    (tmp_path / "a").write_text("A B C D\n\nE F G H\n")
    assert read_analogies(tmp_path / "a", name="a") == Analogies("a", expected[:2], ())


def test_categories(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("new york\tcity\nparis\tcity\noak\ttree\n")
    assert read_categories(tmp_path / "c", name="c") == Categories(
        "c", ("new york", "paris", "oak"), ("city", "city", "tree")
    )
    (tmp_path / "c").write_text("t-shirt-n\tclothing\tattri\tlong-j\nt-shirt-n\tclothing\thyper\tthing-n\n")
    assert read_categories(tmp_path / "c", name="c") == Categories("c", ("t-shirt",), ("clothing",))


def test_relations(tmp_path: Path) -> None:
    [found] = read_benchmarks(write(tmp_path, SEMEVAL))
    assert isinstance(found, Relations)
    first, second = found.relations
    assert (first.name, second.name) == ("1a", "2b")
    assert first.paradigms == (("flower", "tulip"), ("poem", "sonnet"), ("tree", "oak"))
    assert second.paradigms == (("car", "wheel"), ("eat", "food"))
    assert (first.pairs, first.ratings) == ((("weapon", "spear"), ("tree", "elm")), (50.0, -3.5))


def test_a_folder_of_everything(tmp_path: Path) -> None:
    write(tmp_path / "any name", SEMEVAL)
    files = {
        "similarity/s1.txt": "a b 1\n",
        "similarity/LICENSE": "MIT",
        "README.txt": "read me",
        "analogy/a.txt": "a b c d\n",
        "categorisation/c.txt": "x\tk\ny\tl\n",
        "loose.txt": "a\tb\t1\nc\td\t2\n",
        "other/loose.csv": "a,b,1\nc,d,2\n",
        "sections.txt": ": s\na b c d\n",
        "classes.txt": "a\tk\nb\tk\nc\tl\nd\tl\n",
        ".hidden": "x",
        "notes.md": "These are notes\nof ours.\n",
        "binary": b"\xff\xfe\x00",
        "empty": "",
    }
    write(tmp_path, files)
    with pytest.warns(EmbstoreWarning, match="3 files are not of a known format: binary, empty, notes.md"):
        found = read_benchmarks(tmp_path)
    kinds = {benchmark.name: type(benchmark).__name__ for benchmark in found}
    assert kinds == {
        "semeval2012-task2": "Relations",
        "s1": "SimilarityPairs",
        "a": "Analogies",
        "c": "Categories",
        "loose": "SimilarityPairs",
        "other/loose": "SimilarityPairs",
        "sections": "Analogies",
        "classes": "Categories",
    }


def test_one_file_or_one_folder_of_its_kind(tmp_path: Path) -> None:
    write(tmp_path, {"analogies/a.txt": "a b c 1\n", "loose.txt": "a b 1\n"})
    assert [type(it).__name__ for it in read_benchmarks(tmp_path / "analogies")] == ["Analogies"]
    assert [type(it).__name__ for it in read_benchmarks(tmp_path / "analogies/a.txt")] == ["Analogies"]
    assert [type(it).__name__ for it in read_benchmarks(tmp_path / "loose.txt")] == ["SimilarityPairs"]


def test_relations_next_to_other_benchmarks(tmp_path: Path) -> None:
    """Even with the packages in the root itself, the other files are not taken as part of them."""
    write(tmp_path, {**SEMEVAL, "similarity/s.txt": "a b 1\n"})
    assert [benchmark.name for benchmark in read_benchmarks(tmp_path)] == ["semeval2012-task2", "s"]


S, A, C, PACKAGE = "similarity/s.txt", "analogy/a.txt", "categorisation/c.txt", "Package/subcategories-paradigms.txt"
RATINGS = "Gold/Testing/GoldRatings-1a.txt"
BAD: dict[str, tuple[str, str | bytes, str]] = {
    "nothing": (".hidden", "", r": no benchmark in it"),
    "only unknown": ("notes.txt", "hello\n", r"in it \(1 files of other formats\)"),
    "two fields": (S, "a\tb\t1\nc\td\n", r"s\.txt:2: 'c\\td': give two"),
    "rating": (S, "a\tb\t1\nc\td\tx\n", r"s\.txt:2: the rating 'x'"),
    "NaN": (S, "a\tb\t1\nc\td\tnan\n", r"s\.txt:2: the rating 'nan'"),
    "only a heading": (S, "a\tb\tc\n", r"s\.txt: no pair in it"),
    "three words": (A, "a b c\n", r"a\.txt:1: 'a b c': give four words"),
    "section twice": (A, ": s\na b c d\n: s\n", r"a\.txt:3: ': s': a"),
    "section unnamed": (A, ":\na b c d\n", r"a\.txt:1: ':': a section"),
    "section empty": (A, ": s\n: t\na b c d\n", r"a\.txt:2: the section 's'"),
    "last section empty": (A, ": s\na b c d\n: t\n", r"in its last section"),
    "before sections": (A, "a b c d\n: t\na b c d\n", r"before the first"),
    "no question": (A, "\n", r"a\.txt: no question in it"),
    "class": (C, "a\n", r"c\.txt:1: 'a': give a word and its class"),
    "two classes": (C, "a\tk\na\tl\n", r"c\.txt:2: 'a' is of"),
    "no word": (C, "", r"c\.txt: no word in it"),
    "not UTF-8": (S, b"a b 1\n\xff b 2\n", r"s\.txt:2: byte 0xff is not UTF-8"),
    "no paradigm": (PACKAGE, "1, a, C, N, a:b\n", r"no paradigm pair of the relation 2b of GoldRatings-2b\.txt"),
    "paradigm": (PACKAGE, "1, a, C\n", r"subcategories-paradigms\.txt:1: '1, a, C': give number"),
    "gold": (RATINGS, "50 a:b\n", r"GoldRatings-1a\.txt:1: '50 a:b': give a rating and a pair"),
    "no gold": (RATINGS, "# none\n", r"GoldRatings-1a\.txt: no rated pair"),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_bad_files(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path, {**(SEMEVAL if name in SEMEVAL else {}), name: content})
    with pytest.raises(CorpusError, match=message):
        read_benchmarks(tmp_path)
    with pytest.raises(CorpusError, match=r"no benchmarks at .*gone"):
        read_benchmarks(tmp_path / "gone")
