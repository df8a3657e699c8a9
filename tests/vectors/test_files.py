"""Word vectors read back equal to what was written, in every format; damaged files are refused in one line."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from gensim.models import FastText, KeyedVectors
from gensim.models.fasttext import load_facebook_vectors, save_facebook_model
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import EmbstoreWarning, InvalidValueError, StorageError, WordVectorsError
from embstore.vectors import WordVectors, read_vectors, write_vectors
from embstore.vectors.files import open_vector_table
from embstore.vectors.linalg import unit_rows

NAMES = {"text": "v.txt", "glove": "v.vec", "binary": "v.bin"}
ODD_WORDS = ("the", "café", '"', "#", "NA", "null", "1", "0.5", "-", "日本語", "a,b", "\u00a0", "\\n", "𝔘", "'s", "nan")


def any_float32(count: int, dimensions: int, *, seed: int = 0) -> np.ndarray:
    """Finite numbers of all magnitudes, subnormal ones and both zeros among them."""
    bits = np.random.default_rng(seed).integers(0, 2**32, (count, dimensions), dtype=np.uint32)
    numbers = bits.view(np.float32)
    return np.where(np.isfinite(numbers), numbers, np.float32(-0.0))


def table(words: tuple[str, ...] = ODD_WORDS, dimensions: int = 5) -> WordVectors:
    return WordVectors(words, any_float32(len(words), dimensions))


def same(left: WordVectors, right: WordVectors) -> bool:
    return left.words == right.words and left.vectors.tobytes() == right.vectors.tobytes()


CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0")


@settings(max_examples=60)
@given(
    words=st.lists(st.text(CHARACTERS, min_size=1), min_size=1, unique=True),
    dimensions=st.integers(1, 4),
    seed=st.integers(0, 99),
    format=st.sampled_from(list(NAMES)),
)
def test_any_words_round_trip(
    words: list[str], dimensions: int, seed: int, format: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = list(dict.fromkeys(word.replace(" ", "") or "x" for word in words))
    given_ = WordVectors(tuple(words), any_float32(len(words), dimensions, seed=seed))
    path = tmp_path_factory.mktemp("any") / "v.txt"
    write_vectors(given_, path, format=format)
    assert same(read_vectors(path, format=format), given_)
    if format != "glove" or dimensions > 1:  # a first line such as `5 3` is taken for a header
        assert same(read_vectors(path), given_)


def test_literal_bytes(tmp_path: Path) -> None:
    few = WordVectors(("a", "b"), np.array([[0.1, -2.0], [1e-40, 3e38]], np.float32))
    write_vectors(few, tmp_path / "v.txt")
    assert (tmp_path / "v.txt").read_bytes() == b"2 2\na 0.1 -2.0\nb 1e-40 3e+38\n"
    write_vectors(few, tmp_path / "v.bin")
    expected = b"2 2\na " + struct.pack("<2f", 0.1, -2) + b"b " + struct.pack("<2f", 1e-40, 3e38)
    assert (tmp_path / "v.bin").read_bytes() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.bin", "v.txt"]


@pytest.mark.parametrize("format", ["text", "binary"])
def test_gensim_reads_what_is_written(format: str, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    words = (*ODD_WORDS[:-1], "new york")
    given_ = WordVectors(words, any_float32(len(words), 7))
    with pytest.warns(EmbstoreWarning, match="1 word such as 'new york'"):
        write_vectors(given_, tmp_path / "v", format=format)
    loaded = models.KeyedVectors.load_word2vec_format(str(tmp_path / "v"), binary=format == "binary")
    assert loaded.index_to_key == [*ODD_WORDS[:-1], "new_york"]
    assert loaded.vectors.tobytes() == given_.vectors.tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_what_gensim_writes_is_read(binary: bool, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    keyed = models.KeyedVectors(5)
    keyed.add_vectors(list(ODD_WORDS), table().vectors)
    keyed.save_word2vec_format(str(tmp_path / "v"), binary=binary, sort_attr=None)
    assert same(read_vectors(tmp_path / "v"), table())


@pytest.mark.parametrize("format", ["text", "glove", "binary"])
def test_compressed(format: str, tmp_path: Path) -> None:
    write_vectors(table(), tmp_path / "v", format=format)
    plain = (tmp_path / "v").read_bytes()
    for name, compress in {"v.gz": gzip.compress, "v.zst": zstandard.ZstdCompressor().compress}.items():
        (tmp_path / name).write_bytes(compress(plain))
        assert same(read_vectors(tmp_path / name), table())
        assert same(read_vectors(tmp_path / name, format=format, limit=3), table().take([0, 1, 2]))


def test_lookup() -> None:
    vectors = WordVectors(("b", "a", "new york"), np.eye(3, dtype=np.float64))
    assert vectors.vectors.dtype == np.float32
    assert (vectors.row_of("a"), vectors.row_of("A")) == (1, None)
    assert vectors.rows_of(["new york", "x", "b"]).tolist() == [2, -1, 0]
    assert "a" in vectors
    assert "x" not in vectors
    assert (len(vectors), vectors.dimensions) == (3, 3)
    assert vectors.take([2, 0]).words == ("new york", "b")
    assert repr(vectors) == "<WordVectors of 3 words ('b', 'a', 'new york'), 3 dimensions>"
    assert len(repr(table())) < 200


def test_words_and_rows_that_would_get_the_vectors_of_others() -> None:
    with pytest.raises(InvalidValueError, match=r"words .* are not allowed: give a list of words"):
        WordVectors({"a", "b"}, np.eye(2))  # type: ignore[arg-type]  # in any order
    vectors = WordVectors(("a", "b"), np.eye(2, dtype=np.float32))
    for row in (-1, 2):
        with pytest.raises(InvalidValueError, match=f"there is no row {row}: the 2 words have rows 0 to 1"):
            vectors.take([0, row])


def test_spaces_become_underscores_with_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_vectors(table(), tmp_path / "v.txt")
    with pytest.raises(InvalidValueError, match=r"'new york' and 'new_york' would both be 'new_york' .* rename one"):
        write_vectors(WordVectors(("new york", "new_york"), np.ones((2, 2))), tmp_path / "w.txt")
    assert not (tmp_path / "w.txt").exists()


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    name, target = "v.txt", tmp_path / "target.txt"
    (tmp_path / name).symlink_to(target)
    for words in (ODD_WORDS, ODD_WORDS[::-1]):
        write_vectors(table(words), tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert same(read_vectors(tmp_path / name), table(words))


def entry(word: bytes, *numbers: float) -> bytes:
    return word + b" " + struct.pack(f"<{len(numbers)}f", *numbers) + b"\n"


TEXT = {
    "empty": b"",
    "word alone": b"word\n",
    "header alone": b"2 3\n",
    "too few words": b"3 2\na 1 2\nb 3 4\n",
    "short row": b"2 3\na 1 2 3\nb 3 4\n",
    "long row": b"2 2\na 1 2\nb 3 4 5\n",
    "short and long rows": b"a 1 2\nb 3 4 5\nc 4 5 6\n",
    "wrong dimensions": b"2 3\na 1 2\nb 3 4\n",
    "enormous dimensions": b"1 99999999999\na 1 2\n",
    "no number": b"a 1 2\nb 3 x\n",
    "NaN": b"a 1 2\nb 3 nan\n",
    "infinity": b"2 2\na 1 2\nb 3 -inf\n",
    "beyond float32": b"a 1 2\nb 3 1e39\n",
    "twice": b"3 2\na 1 2\nb 3 4\na 5 6\n",
    "twice without a header": b"a 1 2\nb 3 4\na 5 6\n",
    "empty line": b"a 1 2\n\nb 3 4\n",
    "tabs": b"a\t1\t2\n",
    "byte-order mark": b"\xef\xbb\xbfa 1 2\n",
    "not UTF-8": b"a 1 2\n\xe9t\xe9 3 4\n",
}
BINARY = {
    "empty": b"",
    "no header": entry(b"a", 1, 2),
    "NaN": b"1 2\n" + entry(b"a", 1, float("nan")),
    "twice": b"2 1\n" + entry(b"a", 1) + entry(b"a", 2),
    "enormous": b"99999999999999 99999999999999\n" + entry(b"a", 1),
    "not UTF-8": b"1 1\n" + entry(b"\xe9", 1),
    "empty word": b"1 1\n" + entry(b"", 1),
    "no space": b"1 1\n" + b"x" * 70000,
}


@pytest.mark.parametrize(
    ("format", "content"),
    [("auto", content) for content in TEXT.values()] + [("binary", content) for content in BINARY.values()],
    ids=[*TEXT, *(f"binary, {name}" for name in BINARY)],
)
def test_damaged_text_and_binary(format: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(WordVectorsError, match=r"^\S*/v(, line \d)?: [^\n]+$"):
        read_vectors(tmp_path / "v", format=format)


@pytest.mark.parametrize(("header", "line"), [(b"3 3\n", 3), (b"", 2)])
def test_a_line_of_one_number_is_named(header: bytes, line: int, tmp_path: Path) -> None:
    """Gensim alone would give the number to all dimensions."""
    (tmp_path / "v").write_bytes(header + b"a 1 2 3\nb 4\nc 5 6 7\n")
    with pytest.raises(WordVectorsError, match=f"^\\S*/v, line {line}: 1 numbers where others have 3$"):
        read_vectors(tmp_path / "v")
    assert read_vectors(tmp_path / "v", limit=1).words == ("a",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no word vector in it"),
        (b"a 1 2\nb 3 x\n", ", line 2: 'x' is not a number"),
        (b"a\t1\t2\n", ", line 1: 0 numbers after the word and a space"),
        (b"2 3\na 1 2\nb 3 4\n", ", line 2: 2 numbers where others have 3"),
        (b"3 2\na 1 2\nb 3 4\n", "its header says 3 vectors, and it has 2: it is cut off"),
        (b"a 1 2\nb 3 4\na 5 6\n", "has 2 different words in 3 rows"),
        (b"\xef\xbb\xbfa 1 2\n", "begins with a byte-order mark"),
    ],
)
def test_messages_of_damaged_files(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(WordVectorsError, match=re.escape(says)):
        read_vectors(tmp_path / "v")


def test_more_vectors_than_the_header_says_are_refused(tmp_path: Path) -> None:
    """Gensim leaves them out without a word."""
    (tmp_path / "v.txt").write_bytes(b"2 2\na 1 2\nb 3 4\nc 5 6\n")
    (tmp_path / "v.bin").write_bytes(b"2 2\n" + entry(b"a", 1, 2) + entry(b"b", 3, 4) + entry(b"c", 5, 6))
    for name in ("v.txt", "v.bin"):
        with pytest.raises(WordVectorsError, match="its header says 2 vectors, and it has more: correct the header"):
            read_vectors(tmp_path / name)
        assert read_vectors(tmp_path / name, limit=2).words == ("a", "b")


def test_every_cut_of_a_binary_file_is_refused(tmp_path: Path) -> None:
    whole = b"2 2\n" + entry(b"a", 1, 2) + entry(b"bc", 3, 4)
    for end in range(len(whole) - 1):  # the last newline may be missing
        (tmp_path / "v").write_bytes(whole[:end])
        with pytest.raises(WordVectorsError):
            read_vectors(tmp_path / "v", format="binary")


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(WordVectorsError, match=r"no word vectors at .*gone"):
        read_vectors(tmp_path / "gone")
    with pytest.raises(WordVectorsError, match="is a folder"):
        read_vectors(tmp_path)
    (tmp_path / "v.gz").write_bytes(gzip.compress(b"a 1 2\n" * 100)[:-20])
    with pytest.raises(WordVectorsError, match=r"v\.gz: the gzip data end too early"):
        read_vectors(tmp_path / "v.gz")
    with pytest.raises(StorageError, match=r"the folder .*none does not exist"):
        write_vectors(WordVectors(("a",), np.ones((1, 1))), tmp_path / "none" / "v.txt")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "v.txt")
    for call in (read_vectors, open_vector_table):
        with pytest.raises(WordVectorsError, match="a pipe or device"):
            call(tmp_path / "v.txt")


ONE = WordVectors(("a",), np.ones((1, 1)))


def two(word: str) -> WordVectors:
    return WordVectors(("a", word), np.ones((2, 1)))


OPTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "compressed": (lambda path: write_vectors(ONE, path.with_suffix(".gz")), r"leave \.gz out"),
    "newline": (lambda path: write_vectors(two("b\nc"), path), r"'b\\nc' cannot be written"),
    "surrogate": (lambda path: write_vectors(two("\ud800"), path), r"'\\ud800' cannot be written"),
    "counts": (lambda path: WordVectors(("a",), np.ones((2, 1))), "1 words and 2 vectors"),
    "shape": (lambda path: WordVectors(("a",), np.ones(1)), r"shape \(1,\)"),
    "twice": (lambda path: two("a"), "'a' is given twice, at 0 and at 1"),
    "NaN": (lambda path: WordVectors(("a",), np.full((1, 1), np.nan)), r"'a' \(row 0\) has NaN"),
    "empty word": (lambda path: WordVectors(("",), np.ones((1, 1))), "word 0 is ''"),
    "nothing": (lambda path: WordVectors((), np.ones((0, 3))), r"shape \(0, 3\)"),
}


@pytest.mark.parametrize(("act", "message"), OPTIONS.values(), ids=OPTIONS)
def test_arguments(act: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=message):
        act(tmp_path / "v")
    assert list(tmp_path.iterdir()) == []


WORDS = ("the", "Bank", "bank", "café", "日本語", "los_angeles", "'s", "1", "x" * 300)
TEXTS = [["the", "Straße", "日本語", "new_york", "naïve", "a"], ["the", "a", "bank"]] * 20
UNSEEN = ["unknown", "Strassen", "日本", "𝔘ü", "Naïve", "New_York", "b", "the!", "\u00a0"]


def vectors(words: tuple[str, ...] = WORDS, dimensions: int = 5) -> WordVectors:
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((len(words), dimensions)) * 10.0 ** rng.integers(-30, 30, (len(words), 1))
    return WordVectors(words, numbers.astype(np.float32))


def written(held: WordVectors, path: Path, kind: str) -> Path:
    names = {"text": ".txt", "glove": ".vec", "binary": ".bin", "gz": ".txt"}
    path = path.with_suffix(names[kind])
    write_vectors(held, path, format="text" if kind == "gz" else kind)  # type: ignore[arg-type]
    if kind == "gz":
        path = path.with_suffix(".txt.gz")
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    return path


def assert_holds(table: Any, held: WordVectors) -> None:
    assert table.dimensions == held.dimensions
    order = np.random.default_rng(0).permutation(len(held))
    chosen = [held.words[row] for row in order] * 2
    np.testing.assert_array_equal(table.vectors_of(chosen), np.concatenate([held.vectors[order]] * 2))
    for word in chosen:
        np.testing.assert_array_equal(table.vectors_of([word])[0], held.vectors[held.words.index(word)])


@pytest.mark.parametrize("kind", ["text", "glove", "binary", "gz"])
def test_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    held = vectors()
    path = written(held, tmp_path / "v", kind)
    table = open_vector_table(path)
    assert_holds(table, held)
    assert [table.holds(word) for word in ("THE", "BANK", "CAFÉ", "absent", "")] == [True, True, True, False, False]
    np.testing.assert_array_equal(table.vectors_of(["BANK"])[0], held.vectors[2])
    np.testing.assert_array_equal(table.vectors_of(["Bank"])[0], held.vectors[1])
    assert table.phrase(["Los", "Angeles"]) == "Los_Angeles"
    assert table.phrase(["new", "york"]) is None
    assert table.vectors_of([]).shape == (0, 5)
    with pytest.raises(KeyError, match="absent"):
        table.vectors_of(["the", "absent"])
    assert table.sha256 == open_vector_table(path).sha256
    other = written(WordVectors(held.words, held.vectors * 2), tmp_path / "w", kind)
    assert open_vector_table(other).sha256 != table.sha256


@pytest.fixture(scope="module")
def trained() -> FastText:
    return FastText(TEXTS, vector_size=7, min_count=1, bucket=50, min_n=2, max_n=5, seed=1, workers=1, epochs=1)


def test_fasttext_vectors_equal_those_of_gensim(trained: FastText, tmp_path: Path) -> None:
    path = tmp_path / "f.bin"
    save_facebook_model(trained, str(path))
    table, reference = open_vector_table(path), load_facebook_vectors(str(path))
    compressed = tmp_path / "f.bin.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    np.testing.assert_array_equal(open_vector_table(compressed).vectors_of(UNSEEN), table.vectors_of(UNSEEN))
    with pytest.raises(WordVectorsError, match=r"a fastText model, .* read its \.vec file"):
        read_vectors(path)
    words = list(reference.index_to_key)
    assert set(words) == {word for text in TEXTS for word in text}
    np.testing.assert_allclose(table.vectors_of(words), [reference[word] for word in words], atol=1e-7)
    assert all(table.has(word) for word in UNSEEN)
    assert [table.holds(word) for word in UNSEEN] == [word in ("Naïve", "New_York") for word in UNSEEN]
    made = [word for word in UNSEEN if not table.holds(word)]
    np.testing.assert_allclose(table.vectors_of(made), [reference[word] for word in made], atol=1e-7)
    np.testing.assert_array_equal(table.vectors_of(["New_York"]), table.vectors_of(["new_york"]))
    assert table.phrase(["new", "york"]) == "new_york"
    assert table.phrase(["un", "known"]) is None


def test_fasttext_without_ngrams(tmp_path: Path) -> None:
    for options in ({"max_n": 0, "min_n": 0}, {"min_n": 4, "max_n": 4}):
        model = FastText(TEXTS, vector_size=3, min_count=1, bucket=20, seed=1, workers=1, epochs=1, **options)
        path = tmp_path / "f.bin"
        save_facebook_model(model, str(path))
        table, reference = open_vector_table(path), load_facebook_vectors(str(path))
        assert not table.has("b")
        assert table.has("bb") == (options["max_n"] == 4)
        np.testing.assert_allclose(table.vectors_of(["a", "the"]), [reference["a"], reference["the"]], atol=1e-7)


class Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch opened",)


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.kv").write_bytes(pickle.dumps({"vectors": Runs()}))
    held = vectors()
    keyed = KeyedVectors(held.dimensions)
    keyed.add_vectors(list(held.words), held.vectors)
    keyed.save("gensim.kv")
    for name in ("v.kv", "gensim.kv"):
        for read in (open_vector_table, read_vectors):
            with pytest.raises(WordVectorsError, match=r"a pickle, as gensim saves it, .* convert it: .*save_word2vec"):
                read(name)
    assert not Path("opened").exists()
    KeyedVectors.load("gensim.kv").save_word2vec_format("vectors.bin", binary=True)
    assert_holds(open_vector_table("vectors.bin"), held)


def test_unit_rows_of_extreme_vectors() -> None:
    rows = np.array([[3e38, 3e38], [1e-44, 0], [0, 0], [3, 4]], np.float32)
    assert np.allclose(unit_rows(rows), [[0.5**0.5] * 2, [1, 0], [0, 0], [0.6, 0.8]], atol=1e-6)
    assert rows[3].tolist() == [3, 4]
