"""Tables of word vectors: lookups in every kind of file, against the vectors that were written."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from gensim.models import FastText, KeyedVectors
from gensim.models.fasttext import load_facebook_vectors, save_facebook_model

from embstore.errors import WordVectorsError
from embstore.vectors import VectorTable, WordVectors, open_vector_table, read_vectors, word2vec, write_vectors

WORDS = ("the", "Bank", "bank", "café", "日本語", "los_angeles", "'s", "1", "x" * 300)
TEXTS = [["the", "Straße", "日本語", "new_york", "naïve", "a"], ["the", "a", "bank"]] * 20
UNSEEN = ["unknown", "Strassen", "日本", "𝔘ü", "Naïve", "New_York", "b", "the!", "\u00a0"]


def vectors(words: tuple[str, ...] = WORDS, dimensions: int = 5) -> WordVectors:
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((len(words), dimensions)) * 10.0 ** rng.integers(-30, 30, (len(words), 1))
    return WordVectors(words, numbers.astype(np.float32))


def written(held: WordVectors, path: Path, kind: str) -> Path:
    names = {"text": ".txt", "glove": ".vec", "binary": ".bin", "npy": ".npy", "gz": ".txt"}
    path = path.with_suffix(names[kind])
    write_vectors(held, path, format="text" if kind == "gz" else kind)  # type: ignore[arg-type]
    if kind == "gz":
        path = path.with_suffix(".txt.gz")
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    return path


def assert_holds(table: VectorTable, held: WordVectors) -> None:
    assert table.dimensions == held.dimensions
    order = np.random.default_rng(0).permutation(len(held))
    chosen = [held.words[row] for row in order] * 2
    np.testing.assert_array_equal(table.vectors_of(chosen), np.concatenate([held.vectors[order]] * 2))
    for word in chosen:
        np.testing.assert_array_equal(table.vectors_of([word])[0], held.vectors[held.words.index(word)])


@pytest.mark.parametrize("kind", ["text", "glove", "binary", "npy", "gz"])
def test_every_kind_of_file(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word2vec, "BLOCK_NBYTES", 200)
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


def test_phrases_with_spaces(tmp_path: Path) -> None:
    held = vectors(("a", "new york"))
    table = open_vector_table(written(held, tmp_path / "v", "npy"))
    assert table.phrase(["New", "York"]) == "New York"
    np.testing.assert_array_equal(table.vectors_of(["New York"])[0], held.vectors[1])


def test_only_lines_that_are_looked_up_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("a 1 2\nb x y\n")
    np.testing.assert_array_equal(open_vector_table(path).vectors_of(["a"]), [[1, 2]])


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


def test_damaged_fasttext_models(trained: FastText, tmp_path: Path) -> None:
    path = tmp_path / "f.bin"
    save_facebook_model(trained, str(path))
    whole = path.read_bytes()
    vocabulary = whole.index(b"the\0")
    for size in (4, 50, 100, vocabulary + 2, len(whole) // 3):
        path.write_bytes(whole[:size])
        with pytest.raises(WordVectorsError, match="cannot be read as a fastText model"):
            open_vector_table(path)
    path.write_bytes(whole[: vocabulary + 12] + b"\1" + whole[vocabulary + 13 :])  # the word is a label
    with pytest.raises(WordVectorsError, match="its words and labels are out of order"):
        open_vector_table(path)
    path.write_bytes(whole[:8] + struct.pack("<i", 9) + whole[12:])
    with pytest.raises(WordVectorsError, match="its matrix is 57 x 7, its header says 57 x 9"):
        open_vector_table(path)


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
