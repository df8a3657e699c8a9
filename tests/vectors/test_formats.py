"""Word vectors read back equal to what was written, in every format, and as gensim reads and writes them."""

from __future__ import annotations

import gzip
import os
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidValueError, RenamedWordsWarning, StorageError, SurplusWordsWarning
from embstore.vectors import WordVectors, read_vectors, word2vec, write_vectors

NAMES = {"text": "v.txt", "glove": "v.vec", "binary": "v.bin", "npy": "v.npy"}
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


@pytest.mark.parametrize("format", NAMES)
def test_round_trip(format: str, tmp_path: Path) -> None:
    path = tmp_path / NAMES[format]
    for dimensions in (5, len(ODD_WORDS)):  # also a square block
        written = table(dimensions=dimensions)
        write_vectors(written, path, format=format)
        assert same(read_vectors(path, format=format), written)
        assert same(read_vectors(path), written)
        assert same(read_vectors(path, limit=10**9), written)


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
    if format != "npy":  # only npy keeps spaces
        words = list(dict.fromkeys(word.replace(" ", "") or "x" for word in words))
    given_ = WordVectors(tuple(words), any_float32(len(words), dimensions, seed=seed))
    path = tmp_path_factory.mktemp("any") / ("v.npy" if format == "npy" else "v.txt")
    write_vectors(given_, path, format=format)
    assert same(read_vectors(path, format=format), given_)
    if format != "glove" or dimensions > 1:  # a first line such as `5 3` is taken for a header
        assert same(read_vectors(path), given_)


def test_a_first_word_that_begins_like_a_byte_order_mark(tmp_path: Path) -> None:
    for format in NAMES:
        written = table(("\ufeff", "\ufeffb", "c"))
        write_vectors(written, tmp_path / NAMES[format], format=format)
        assert same(read_vectors(tmp_path / NAMES[format], format=format), written)


def test_files_of_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word2vec, "BLOCK_NBYTES", 1000)
    monkeypatch.setattr(word2vec, "ROWS_AT_ONCE", 700)
    many = WordVectors(tuple(f"w{n}" for n in range(9000)), any_float32(9000, 3))
    for format in ("text", "glove", "binary"):
        write_vectors(many, tmp_path / "v", format=format)
        assert same(read_vectors(tmp_path / "v"), many)
        assert same(read_vectors(tmp_path / "v", limit=4097), many.take(range(4097)))


def test_literal_bytes(tmp_path: Path) -> None:
    few = WordVectors(("a", "b"), np.array([[0.1, -2.0], [1e-40, 3e38]], np.float32))
    write_vectors(few, tmp_path / "v.txt")
    assert (tmp_path / "v.txt").read_bytes() == b"2 2\na 0.1 -2.0\nb 1e-40 3e+38\n"
    write_vectors(few, tmp_path / "v.bin")
    expected = b"2 2\na " + struct.pack("<2f", 0.1, -2) + b"\nb " + struct.pack("<2f", 1e-40, 3e38) + b"\n"
    assert (tmp_path / "v.bin").read_bytes() == expected
    write_vectors(few, tmp_path / "v.npy")
    assert (tmp_path / "v.vocab").read_bytes() == b"a\nb\n"
    assert np.load(tmp_path / "v.npy").tobytes() == few.vectors.tobytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.bin", "v.npy", "v.txt", "v.vocab"]


@pytest.mark.parametrize("format", ["text", "binary"])
def test_gensim_reads_what_is_written(format: str, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    words = (*ODD_WORDS[:-1], "new york")
    given_ = WordVectors(words, any_float32(len(words), 7))
    with pytest.warns(RenamedWordsWarning, match="1 word such as 'new york'"):
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


def test_real_vectors_as_gensim_reads_them(data: Path) -> None:
    path = data / "glove" / "glove50_4k.txt"
    with pytest.warns(SurplusWordsWarning, match="4197 words, but its header says 4196"):
        glove = read_vectors(path)
    assert (len(glove), glove.dimensions) == (4196, 50)
    models = pytest.importorskip("gensim.models")
    loaded = models.KeyedVectors.load_word2vec_format(str(path))
    assert tuple(loaded.index_to_key) == glove.words
    assert loaded.vectors.tobytes() == glove.vectors.tobytes()


@pytest.mark.parametrize("format", ["text", "glove", "binary"])
def test_compressed(format: str, tmp_path: Path) -> None:
    write_vectors(table(), tmp_path / "v", format=format)
    plain = (tmp_path / "v").read_bytes()
    for name, compress in {"v.gz": gzip.compress, "v.zst": zstandard.ZstdCompressor().compress}.items():
        (tmp_path / name).write_bytes(compress(plain))
        assert same(read_vectors(tmp_path / name), table())
        assert same(read_vectors(tmp_path / name, format=format, limit=3), table().take([0, 1, 2]))


def test_spellings_of_text_that_other_tools_write(tmp_path: Path) -> None:
    expected = WordVectors(("a", "b c", "d"), np.array([[1, 2.5], [-3, 4], [5e-1, 6]], np.float32))
    spellings = {
        "windows": b"3 2\r\na 1 2.5\r\nb c -3 4\r\nd .5 6\r\n",
        "fasttext": b"3 2\na 1 2.5 \nb c -3 4 \nd .5 6 \n",
        "no last newline": b"3 2\na 1 2.5\nb c -3 4\nd .5 +6",
        "blank lines at the end": b"3 2\na 1 2.5\nb c -3 4\nd .5 6\n\n \n",
        "byte-order mark": b"\xef\xbb\xbfa 1 2.5\nb c -3 4\nd .5 6\n",
        "byte-order mark and header": b"\xef\xbb\xbf3 2\na 1 2.5\nb c -3 4\nd .5 6\n",
        "two spaces": b"a 1  2.5\nb c -3 4\nd .5 6\n",
    }
    for name, content in spellings.items():
        (tmp_path / name).write_bytes(content)
        assert same(read_vectors(tmp_path / name), expected), name


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
        write_vectors(WordVectors(("new york",), np.ones((1, 2))), tmp_path / "v.npy")
    assert read_vectors(tmp_path / "v.npy").words == ("new york",)
    with pytest.raises(InvalidValueError, match=r"'new york' and 'new_york' would both be 'new_york' .* write \.npy"):
        write_vectors(WordVectors(("new york", "new_york"), np.ones((2, 2))), tmp_path / "w.txt")
    assert not (tmp_path / "w.txt").exists()


def test_an_old_array_never_has_the_new_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between the two renames, there is no array rather than one with the words of another."""
    write_vectors(table(), tmp_path / "v.npy")
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(target).suffix == ".npy":
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        write_vectors(table(ODD_WORDS[::-1]), tmp_path / "v.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["v.vocab"]


@pytest.mark.parametrize("name", ["v.npy", "v.txt"])
def test_a_link_stays_and_what_it_names_is_replaced(name: str, tmp_path: Path) -> None:
    target = tmp_path / f"target{name[-4:]}"
    (tmp_path / name).symlink_to(target)
    for words in (ODD_WORDS, ODD_WORDS[::-1]):
        write_vectors(table(words), tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert same(read_vectors(tmp_path / name), table(words))
