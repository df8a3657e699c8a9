"""Benchmarks are recognised by folder or content, and read whole or refused with the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embstore.errors import BenchmarkError, IgnoredFilesWarning
from embstore.vectors import read_benchmarks
from embstore.vectors.evaluation.analogies import Analogies, read_analogies
from embstore.vectors.evaluation.categories import Categories, read_categories
from embstore.vectors.evaluation.relations import Relations
from embstore.vectors.evaluation.similarity import SimilarityPairs, read_similarity

PARADIGMS = "1, a, CLASS, Kind:Of, flower:tulip,poem:sonnet. tree:oak\n2, b, PART, Some, car:wheel eat:food\n"
GOLD = '# Score\n 50.0 "weapon:spear"\n-3.5 "tree:elm"\n'
PHASE_2 = "Package/Testing/Phase2Answers/Phase2Answers-1a.txt"
ANSWERS = '# pair1\n"a:b"\t"c:d"\t"e:f"\t"g:h"\t"a:b"\t"c:d"\t"Y is X"\n'


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_txt", ".txt").replace("_csv", ".csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def semeval(folder: Path) -> Path:
    gold, package = folder / "Gold", folder / "Package"
    for path, text in {
        gold / "Testing/GoldRatings-2b.txt": '10 "a:b"\n',
        gold / "Testing/GoldRatings-1a.txt": GOLD,
        gold / "Training/GoldRatings-3c.txt": GOLD,
        package / "subcategories-paradigms.txt": PARADIGMS,
        package / "Testing/Phase2Answers/Phase2Answers-1a.txt": ANSWERS,
        package / "Training/Phase2Answers/Phase2Answers-2b.txt": ANSWERS,
        package / "Examples/anything.txt": "anything",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
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
    [found] = read_benchmarks(semeval(tmp_path))
    assert isinstance(found, Relations)
    first, second = found.relations
    assert (first.name, second.name) == ("1a", "2b")
    assert first.paradigms == (("flower", "tulip"), ("poem", "sonnet"), ("tree", "oak"))
    assert second.paradigms == (("car", "wheel"), ("eat", "food"))
    assert (first.pairs, first.ratings) == ((("weapon", "spear"), ("tree", "elm")), (50.0, -3.5))
    assert (len(first.questions), len(second.questions)) == (1, 0)


def test_a_folder_of_everything(tmp_path: Path) -> None:
    semeval(tmp_path / "any name")
    write(
        tmp_path,
        similarity__s1_txt="a b 1\n",
        similarity__LICENSE="MIT",
        README_txt="read me",
        analogy__a_txt="a b c d\n",
        categorisation__c_txt="x\tk\ny\tl\n",
        loose_txt="a\tb\t1\nc\td\t2\n",
        other__loose_csv="a,b,1\nc,d,2\n",
        sections_txt=": s\na b c d\n",
        classes_txt="a\tk\nb\tk\nc\tl\nd\tl\n",
    )
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "notes.md").write_text("These are notes\nof ours.\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("")
    with pytest.warns(IgnoredFilesWarning, match="3 files are not of a known format: binary, empty, notes.md"):
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
    write(tmp_path, analogies__a_txt="a b c 1\n", loose_txt="a b 1\n")
    assert [type(it).__name__ for it in read_benchmarks(tmp_path / "analogies")] == ["Analogies"]
    assert [type(it).__name__ for it in read_benchmarks(tmp_path / "analogies/a.txt")] == ["Analogies"]
    assert [type(it).__name__ for it in read_benchmarks(tmp_path / "loose.txt")] == ["SimilarityPairs"]


def test_relations_next_to_other_benchmarks(tmp_path: Path) -> None:
    """Even with the packages in the root itself, the other files are not taken as part of them."""
    write(semeval(tmp_path), similarity__s_txt="a b 1\n")
    assert [benchmark.name for benchmark in read_benchmarks(tmp_path)] == ["semeval2012-task2", "s"]


BAD = {
    "nothing": (lambda folder: None, r": no benchmark in it"),
    "only unknown": (
        lambda folder: write(folder, notes_txt="hello\n"),
        r"in it \(1 files of other formats\)",
    ),
    "two fields": (lambda folder: write(folder, similarity__s_txt="a\tb\t1\nc\td\n"), r"s\.txt:2: 'c\\td': give two"),
    "rating": (lambda folder: write(folder, similarity__s_txt="a\tb\t1\nc\td\tx\n"), r"s\.txt:2: the rating 'x'"),
    "NaN": (lambda folder: write(folder, similarity__s_txt="a\tb\t1\nc\td\tnan\n"), r"s\.txt:2: the rating 'nan'"),
    "only a heading": (lambda folder: write(folder, similarity__s_txt="a\tb\tc\n"), r"s\.txt: no pair in it"),
    "three words": (lambda folder: write(folder, analogy__a_txt="a b c\n"), r"a\.txt:1: 'a b c': give four words"),
    "section twice": (
        lambda folder: write(folder, analogy__a_txt=": s\na b c d\n: s\n"),
        r"a\.txt:3: ': s': a",
    ),
    "section unnamed": (lambda folder: write(folder, analogy__a_txt=":\na b c d\n"), r"a\.txt:1: ':': a section"),
    "section empty": (lambda folder: write(folder, analogy__a_txt=": s\n: t\na b c d\n"), r"a\.txt:2: the section 's'"),
    "last section empty": (lambda folder: write(folder, analogy__a_txt=": s\na b c d\n: t\n"), r"in its last section"),
    "before sections": (
        lambda folder: write(folder, analogy__a_txt="a b c d\n: t\na b c d\n"),
        r"before the first",
    ),
    "no question": (lambda folder: write(folder, analogy__a_txt="\n"), r"a\.txt: no question in it"),
    "class": (lambda folder: write(folder, categorisation__c_txt="a\n"), r"c\.txt:1: 'a': give a word and its class"),
    "two classes": (
        lambda folder: write(folder, categorisation__c_txt="a\tk\na\tl\n"),
        r"c\.txt:2: 'a' is of",
    ),
    "no word": (lambda folder: write(folder, categorisation__c_txt=""), r"c\.txt: no word in it"),
    "not UTF-8": (
        lambda folder: (
            write(folder, similarity__s_txt="").joinpath("similarity/s.txt").write_bytes(b"a b 1\n\xff b 2\n")
        ),
        r"s\.txt:2: byte 0xff is not UTF-8",
    ),
    "no paradigm": (
        lambda folder: (semeval(folder) / "Package/subcategories-paradigms.txt").write_text("1, a, C, N, a:b\n"),
        r"no paradigm pair of the relation 2b of GoldRatings-2b\.txt",
    ),
    "paradigm": (
        lambda folder: (semeval(folder) / "Package/subcategories-paradigms.txt").write_text("1, a, C\n"),
        r"subcategories-paradigms\.txt:1: '1, a, C': give number",
    ),
    "gold": (
        lambda folder: (semeval(folder) / "Gold/Testing/GoldRatings-1a.txt").write_text("50 a:b\n"),
        r"GoldRatings-1a\.txt:1: '50 a:b': give a rating and a pair",
    ),
    "no gold": (
        lambda folder: (semeval(folder) / "Gold/Testing/GoldRatings-1a.txt").write_text("# none\n"),
        r"GoldRatings-1a\.txt: no rated pair",
    ),
    "answer": (
        lambda folder: (semeval(folder) / PHASE_2).write_text("a:b\tc:d\n"),
        r"Phase2Answers-1a\.txt:1: .*give four pairs",
    ),
    "other answer": (
        lambda folder: (semeval(folder) / PHASE_2).write_text(ANSWERS.replace('"a:b"\t"c:d"\t"Y', '"x:y"\t"c:d"\t"Y')),
        r"Phase2Answers-1a\.txt:2: .*two of the four",
    ),
}


@pytest.mark.parametrize(("prepare", "message"), BAD.values(), ids=BAD)
def test_bad_files(prepare: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    prepare(tmp_path)
    with pytest.raises(BenchmarkError, match=message) as caught:
        read_benchmarks(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"no benchmarks at .*gone"):
        read_benchmarks(tmp_path / "gone")
