"""Imports of files written here in the formats of NeuroX and AllenNLP, compared with numpy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import (
    CorpusError,
    EmbstoreError,
    InvalidValueError,
    NonFiniteError,
    StorageError,
    StoreFormatError,
    StoreNotFoundError,
)
from embstore.store import StoreWriter, import_store, open_store, verify
from tests.store.example import SUFFIXES, table, values
from tests.store_making import make_store

SENTENCES = [["the", "bank", "of", "the", "river"], ["a", "bank"], ["the", "bank", "of", "the", "river"], ["évident"]]
Vectors = Sequence[np.ndarray]


def vectors_of(sentences: Iterable[Sequence[str]], *, layers: int = 3, features: int = 4, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(layers, len(words), features)).astype(np.float32) for words in sentences]


def _name_sentences(file: h5py.File, mapping: dict[str, str]) -> None:
    named = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
    named[0] = json.dumps(mapping)


def write_neurox(path: Path, sentences: Iterable[Sequence[str]], vectors: Vectors) -> Path:
    """Write a file as NeuroX does: a repeated sentence gets a suffix."""
    mapping: dict[str, str] = {}
    with h5py.File(path, "w") as file:
        for number, (words, values) in enumerate(zip(sentences, vectors, strict=True)):
            file.create_dataset(str(number), values.shape, dtype="float32", data=values)
            sentence = " ".join(words)
            times, name = 1, sentence
            while name in mapping:
                times += 1
                name = f"{sentence} (Occurrence {times})"
            mapping[name] = str(number)
        _name_sentences(file, mapping)
    return path


def write_allennlp(
    path: Path, lines: Iterable[str], vectors: Vectors, *, output: str = "all", named: bool = True
) -> Path:
    """Write a file as `allennlp elmo` does: it names the last of equal sentences; top and average have no layers."""
    mapping = {}
    with h5py.File(path, "w") as file:
        for number, (line, values) in enumerate(zip(lines, vectors, strict=True)):
            stored = {"all": values, "top": values[-1], "average": values.mean(0)}[output]
            file.create_dataset(str(number), stored.shape, dtype="float32", data=stored)
            mapping[line] = str(number)
        if named:
            _name_sentences(file, mapping)
    return path


def joined(vectors: Vectors) -> np.ndarray:
    return np.concatenate(list(vectors), axis=1)


def expected_table(sentences: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    given = [(number, words) for number, words in enumerate(sentences) if words]
    rows = [
        {
            "word": word,
            "sentence": row,
            "position": position,
            "subwords": 1,
            "source": number,
            "document": row,
            "text": " ".join(words),
        }
        for row, (number, words) in enumerate(given)
        for position, word in enumerate(words)
    ]
    return [{"occurrence": number, **row} for number, row in enumerate(rows)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_neurox(tmp_path: Path, suffix: str) -> None:
    vectors = vectors_of(SENTENCES)
    source = write_neurox(tmp_path / "a.hdf5", SENTENCES, vectors)
    before = source.read_bytes()
    store = import_store(source, tmp_path / f"out{suffix}")
    assert store.layers == (0, 1, 2)
    assert store.dtype == "float16"
    np.testing.assert_array_equal(values(store), joined(vectors).astype(np.float16))
    assert table(store) == expected_table(SENTENCES)
    assert store.finished
    assert verify(store.path).ok
    assert source.read_bytes() == before


def test_metadata(tmp_path: Path) -> None:
    source = write_neurox(tmp_path / "a.hdf5", SENTENCES, vectors_of(SENTENCES))
    metadata = import_store(source, tmp_path / "out.zarr").metadata
    assert metadata.model["name"] == "imported from a.hdf5"
    assert metadata.model["architecture"] == "unknown"
    assert metadata.model["num_hidden_layers"] == 2
    assert metadata.extraction["pooling"] == "unknown"
    assert metadata.extraction["import"]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert (metadata.corpus["n_sentences"], metadata.corpus["n_words"]) == (4, 13)


def test_allennlp_white_space(tmp_path: Path) -> None:
    lines = ["the  bank\tof a river", "a\u00a0bank"]
    sentences = [line.split() for line in lines]
    vectors = vectors_of(sentences)
    store = import_store(write_allennlp(tmp_path / "a.hdf5", lines, vectors), tmp_path / "out.zarr", dtype="float32")
    np.testing.assert_array_equal(values(store), joined(vectors))
    assert table(store) == expected_table(sentences)


def test_neurox_white_space(tmp_path: Path) -> None:
    """NeuroX splits at the space alone, so its words may hold other white space."""
    sentences = [["10\u00a0000", "banks"], ["a", "x (Occurrence", "2)"]]
    vectors = vectors_of([["10\u00a0000", "banks"], ["a", "x", "(Occurrence", "2)"]])
    split = [sentences[0], ["a", "x", "(Occurrence", "2)"]]
    store = import_store(write_neurox(tmp_path / "a.hdf5", split, vectors), tmp_path / "out.zarr", dtype="float32")
    assert table(store) == expected_table(split)


def test_the_pieces_of_words_are_joined(tmp_path: Path) -> None:
    """NeuroX writes a word as its pieces with the tokenizer's marks; pieces of byte-level BPE are not its spelling."""
    pieces = [["mu##rta##ugh", "c##", "##", "#1"], ["\u2581mur", "\u2581", "naï\u2581ve"], ["mur", "\u0120tÃ©"]]
    words = [["murtaugh", "c##", "##", "#1"], ["mur", "\u2581", "naï\u2581ve"], ["mur", "té"]]
    source = write_neurox(tmp_path / "a.hdf5", pieces[:2], vectors_of(pieces[:2]))
    assert table(import_store(source, tmp_path / "a.zarr")) == expected_table(words[:2])
    source = write_neurox(tmp_path / "b.hdf5", pieces, vectors_of(pieces))
    refused(source, tmp_path, CorpusError, "dataset '2' has the word '\u0120t.*', made of pieces of byte-level BPE")
    assert table(import_store(source, tmp_path / "b.zarr", corpus=words)) == expected_table(words)


@pytest.mark.parametrize("output", ["top", "average"])
def test_allennlp_one_layer(tmp_path: Path, output: str) -> None:
    sentences = [["a", "bank"], ["the", "river"]]
    vectors = vectors_of(sentences)
    source = write_allennlp(tmp_path / "a.hdf5", map(" ".join, sentences), vectors, output=output)
    store = import_store(source, tmp_path / "out.h5", dtype="float32")
    expected = joined(vectors)[-1] if output == "top" else np.concatenate([each.mean(0) for each in vectors])
    assert store.layers == (0,)
    np.testing.assert_array_equal(values(store)[0], expected)


def test_equal_sentences_of_allennlp_need_the_corpus(tmp_path: Path) -> None:
    vectors = vectors_of(SENTENCES)
    source = write_allennlp(tmp_path / "a.hdf5", map(" ".join, SENTENCES), vectors)
    with pytest.raises(CorpusError, match=r"does not say what the sentence of dataset '0' is .* give the corpus"):
        import_store(source, tmp_path / "out.zarr")
    store = import_store(source, tmp_path / "out.zarr", corpus=iter(SENTENCES), dtype="float32")
    np.testing.assert_array_equal(values(store), joined(vectors))
    assert table(store) == expected_table(SENTENCES)


def test_more_than_ten_sentences_are_in_order_of_their_numbers(tmp_path: Path) -> None:
    sentences = [[f"w{number}", "end"] for number in range(25)]
    vectors = vectors_of(sentences)
    for write in (write_neurox, lambda path, each, found: write_allennlp(path, map(" ".join, each), found)):
        store = import_store(write(tmp_path / "a.hdf5", sentences, vectors), tmp_path / "out.zarr", dtype="float32")
        assert store.index.source.tolist() == list(range(25))
        np.testing.assert_array_equal(values(store), joined(vectors))
        for file in sorted(store.path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        store.path.rmdir()


def test_empty_sentences_get_no_row(tmp_path: Path) -> None:
    sentences: list[list[str]] = [[], ["a", "bank"], [], ["river"], []]
    vectors = vectors_of(sentences)
    odd = [
        np.zeros((3, 0, 1024), np.float32) if not words else each
        for words, each in zip(sentences, vectors, strict=True)
    ]
    source = write_allennlp(tmp_path / "a.hdf5", map(str, range(5)), odd, named=False)
    with h5py.File(source, "a") as file:
        del file["4"]
    store = import_store(source, tmp_path / "out.zarr", corpus=sentences, dtype="float32")
    assert table(store) == expected_table(sentences)
    assert store.index.source.tolist() == [1, 3]


def test_imported_files_are_one_collection(tmp_path: Path) -> None:
    """Sentences of different files never have the same number, also where the first ones of a file have no word."""
    paths = []
    for seed, sentences in enumerate((SENTENCES, [[], [], ["river"]], SENTENCES)):
        vectors = vectors_of(sentences, seed=seed)
        source = write_allennlp(tmp_path / f"{seed}.hdf5", map(str, range(len(sentences))), vectors, named=False)
        with h5py.File(source, "a") as file:
            for number in (number for number, words in enumerate(sentences) if not words):
                del file[str(number)]
        paths.append(import_store(source, tmp_path / f"{seed}.zarr", corpus=sentences).path)
    store = open_store(paths)
    assert store.index.source.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10]
    assert store.select().vectors().shape == (3, 27, 4)


@given(data=st.data())
@settings(max_examples=20)
@pytest.mark.slow
def test_random_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("random")
    word = st.text(st.characters(exclude_characters=" \x1f", exclude_categories=["Cs"]), min_size=1, max_size=4)
    sentences = data.draw(st.lists(st.lists(word, min_size=1, max_size=70), min_size=1, max_size=12))
    layers = data.draw(st.integers(1, 3))
    vectors = vectors_of(sentences, layers=layers, seed=data.draw(st.integers(0, 99)))
    source = write_allennlp(folder / "a.hdf5", map(" ".join, sentences), vectors, named=False)
    chosen = sorted(data.draw(st.sets(st.integers(0, layers - 1), min_size=1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
        store = import_store(
            source,
            folder / f"out{data.draw(st.sampled_from(SUFFIXES))}",
            corpus=sentences,
            layers=chosen,
            dtype="float32",
        )
    assert store.layers == tuple(chosen)
    np.testing.assert_array_equal(values(store), joined(vectors)[chosen])
    assert table(store) == expected_table(sentences)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.quick(2)
def test_several_partitions_and_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    sentences = [[f"w{number % 7}"] * (number % 40 + 1) for number in range(50)]
    vectors = vectors_of(sentences)
    source = write_allennlp(tmp_path / "a.hdf5", map(" ".join, sentences), vectors, named=False)
    store = import_store(source, tmp_path / "out.zarr", corpus=sentences, dtype=dtype)
    assert store.layout.n_partitions > 2
    step = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8, "int8": 0}[dtype]
    expected = joined(vectors)
    tolerance = np.abs(expected) * step
    if dtype == "int8":
        tolerance = np.abs(expected - store.center[:, None]).max(2, keepdims=True) / 127 * 0.5001 + 1e-7
        np.testing.assert_allclose(store.center, expected.mean(1), atol=1e-6)
    assert (np.abs(values(store) - expected) <= tolerance).all()


def test_float64_and_float16_files(tmp_path: Path) -> None:
    vectors = joined(vectors_of([["a", "b"]]))
    for kind in ("float64", "float16"):
        with h5py.File(tmp_path / f"{kind}.hdf5", "w") as file:
            file["0"] = vectors.astype(kind)
        store = import_store(tmp_path / f"{kind}.hdf5", tmp_path / f"{kind}.zarr", corpus=[["a", "b"]], dtype="float32")
        np.testing.assert_array_equal(values(store), vectors.astype(kind).astype(np.float32))


def test_the_fixture_of_allennlp(data: Path, tmp_path: Path) -> None:
    batches = json.loads((data / "elmo-fixture" / "lm_embeddings_sentences.json").read_text("utf-8"))
    for number, lines in enumerate(batches):
        source = data / "elmo-fixture" / f"lm_embeddings_{number}.hdf5"
        with h5py.File(source) as file:
            expected = np.concatenate([file[str(line)][...] for line in range(len(file))], axis=1)
        sentences = [line.split() for line in lines]
        store = import_store(source, tmp_path / f"{number}.zarr", corpus=sentences, dtype="float32")
        assert store.layers == (0, 1)
        assert store.hidden_size == 16
        np.testing.assert_array_equal(values(store), expected)
        assert table(store) == expected_table(sentences)
        assert verify(store.path).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.quick(1)
def test_an_interrupted_import_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    sentences = [["w"] * 100 for _ in range(8)]
    source = write_neurox(tmp_path / "a.hdf5", sentences, vectors_of(sentences))
    whole = import_store(source, tmp_path / f"whole{suffix}")
    write = StoreWriter.write

    def failing(self: StoreWriter, partition: int, arrays: Any) -> None:
        if partition == 2:
            raise StorageError("the disk is full")
        write(self, partition, arrays)

    monkeypatch.setattr(StoreWriter, "write", failing)
    with pytest.raises(StorageError):
        import_store(source, tmp_path / f"out{suffix}")
    monkeypatch.setattr(StoreWriter, "write", write)
    with pytest.raises(InvalidValueError, match="exists already"):
        import_store(source, tmp_path / f"out{suffix}", layers=0)
    calls: list[tuple[int, int | None]] = []
    store = import_store(source, tmp_path / f"out{suffix}", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(512, 800), (768, 800), (800, 800)]
    np.testing.assert_array_equal(values(store), values(whole))
    with pytest.raises(InvalidValueError, match="exists already"):
        import_store(source, tmp_path / f"out{suffix}")
    assert open_store(store.path).finished


def _plain(folder: Path, edit: Callable[[h5py.File], object] | None = None) -> Path:
    path = write_neurox(folder / "a.hdf5", SENTENCES, vectors_of(SENTENCES))
    if edit is not None:
        with h5py.File(path, "a") as file:
            edit(file)
    return path


def _replace(name: str, value: Any) -> Callable[[h5py.File], object]:
    def edit(file: h5py.File) -> None:
        del file[name]
        if value is not None:
            file[name] = value

    return edit


def _map(mapping: str) -> Callable[[h5py.File], object]:
    return _replace("sentence_to_index", [mapping])


def _without_words(file: h5py.File) -> None:
    for name in list(file):
        del file[name]
    file["0"] = np.zeros((3, 0, 4), np.float32)


FILES: list[tuple[Callable[[h5py.File], object], type[EmbstoreError], str]] = [
    (lambda file: [file.pop(name) for name in list(file)], StoreFormatError, "holds no dataset of a sentence"),
    (lambda file: [file.pop(str(number)) for number in range(4)], StoreFormatError, "holds no dataset of a sentence"),
    (_without_words, StoreFormatError, "holds no word"),
    (lambda file: file.move("1", "a bank"), StoreFormatError, "'a bank' is not the number of a sentence"),
    (lambda file: file.move("1", "01"), StoreFormatError, "'01' is not the number of a sentence"),
    (lambda file: file.create_group("7"), StoreFormatError, "'7' is a group, not floats"),
    (_replace("1", np.zeros((3, 2, 4), np.int32)), StoreFormatError, r"'1' is int32 \(3, 2, 4\), not floats"),
    (_replace("1", np.zeros(4, np.float32)), StoreFormatError, r"'1' is float32 \(4,\), not floats"),
    (_replace("1", np.zeros((2, 2, 4), "f4")), StoreFormatError, "'1' has 2 layers of 4 features, dataset '0' 3 of 4"),
    (_replace("1", np.zeros((3, 2, 5), "f4")), StoreFormatError, "'1' has 3 layers of 5 features, dataset '0' 3 of 4"),
    (_replace("1", np.zeros((3, 2, 0), "f4")), StoreFormatError, "'1' has the shape .* which holds nothing"),
    (_replace("1", np.zeros((3, 9, 4), "f4")), CorpusError, "dataset '1' has 9 words and its sentence 2"),
    (_replace("sentence_to_index", ["{}", "{}"]), StoreFormatError, "sentence_to_index is not a single string"),
    (_replace("1", h5py.SoftLink("/nowhere")), StoreFormatError, "is damaged: the HDF5 library says"),
    (_map("["), StoreFormatError, "sentence_to_index is not a JSON object"),
    (_map("[1, 2]"), StoreFormatError, "sentence_to_index is not a JSON object"),
    (_map('{"a bank": "x"}'), StoreFormatError, "sentence_to_index is not a JSON object"),
    (_map('{"a bank": "9"}'), StoreFormatError, "sentence_to_index names dataset '9', which does not exist"),
    (_map('{"a bank": "1"}'), CorpusError, "does not say what the sentence of dataset '0' is"),
    (_map('{"a b c d \\ud800": "0"}'), CorpusError, "half a surrogate pair"),
    (_replace("sentence_to_index", None), CorpusError, "does not say what the sentence of dataset '0' is"),
]


@pytest.mark.parametrize(("edit", "kind", "message"), FILES, ids=[message[:40] for _, _, message in FILES])
def test_bad_files(
    tmp_path: Path, edit: Callable[[h5py.File], object], kind: type[EmbstoreError], message: str
) -> None:
    refused(_plain(tmp_path, edit), tmp_path, kind, message)


def refused(source: Path, folder: Path, kind: type[EmbstoreError], message: str, **options: Any) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(kind, match=message):
        import_store(source, folder / "out.zarr", **options)
    assert sorted(folder.rglob("*")) == before


CORPORA: list[tuple[Any, str]] = [
    (SENTENCES[:3], "has a dataset '3' and the corpus no sentence 3"),
    ([*SENTENCES, ["more"]], "has no dataset '4' for sentence 4 of the corpus"),
    ([SENTENCES[0], ["one"], *SENTENCES[2:]], "dataset '1' has 2 words and sentence 1 of the corpus 1"),
    ([], "the corpus no sentence 0"),
    (["the bank of the river"], "sentence 0 of the corpus is str, not a list of words"),
    ([["the", "bank of", "the", "river", "x"]], "sentence 0 of the corpus has a word 'bank of'"),
    ([["the", "", "a", "b", "c"]], "sentence 0 of the corpus has a word ''"),
    ([[1, 2, 3, 4, 5]], "sentence 0 of the corpus is not a list of words"),
    ([5], "sentence 0 of the corpus is not a list of words"),
]


@pytest.mark.parametrize(("corpus", "message"), CORPORA, ids=lambda value: str(value)[:30])
def test_bad_corpora(tmp_path: Path, corpus: Any, message: str) -> None:
    refused(_plain(tmp_path), tmp_path, CorpusError, message, corpus=corpus)


def test_a_dataset_left_out_of_the_middle(tmp_path: Path) -> None:
    source = _plain(tmp_path, lambda file: (file.pop("1"), file.pop("sentence_to_index")))
    refused(source, tmp_path, CorpusError, "has no dataset '1' for sentence 1", corpus=SENTENCES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, "layer 3 is not stored: choose among 0, 1, 2"),
        ({"layers": []}, "no layer is chosen"),
        ({"dtype": "double"}, "unknown dtype 'double'"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    refused(_plain(tmp_path), tmp_path, InvalidValueError, message, **options)


def test_no_such_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.hdf5", tmp_path, StoreNotFoundError, "there is no file at")
    refused(tmp_path, tmp_path, StoreFormatError, "is a folder")
    (tmp_path / "text.hdf5").write_text("no HDF5")
    refused(tmp_path / "text.hdf5", tmp_path, StoreFormatError, "is not an HDF5 file")
    (tmp_path / "nx.json").write_text('{"linex_index": 0, "features": []}\n')
    refused(tmp_path / "nx.json", tmp_path, StoreFormatError, "is JSON, which is not imported: let NeuroX write HDF5")
    (tmp_path / "empty.hdf5").touch()
    refused(tmp_path / "empty.hdf5", tmp_path, StoreFormatError, "is not an HDF5 file")
    whole = _plain(tmp_path).read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "cut.hdf5", tmp_path, StoreFormatError, "is damaged: the HDF5 library says")
    store = make_store(tmp_path / "s.h5").store.path
    refused(store, tmp_path, StoreFormatError, "is an embstore store already: copy it with `embstore export`")


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.nan, "float16", "layer 2, sentence 1, word 1 of .*a.hdf5: nan is not finite"),
        (-np.inf, "float32", "layer 2, sentence 1, word 1 of .*a.hdf5: -inf is not finite"),
        (np.inf, "int8", "layer 2, sentence 1, word 1 of .*a.hdf5: inf is not finite"),
        (1e5, "float16", "word 1 of .*: 100,000 is beyond float16's 65,504: choose float32 or bfloat16"),
        (1e39, "float32", r"word 1 of .*: 1e\+39 is beyond float32's 3.40282e\+38"),
    ],
)
def test_values_that_cannot_be_stored(tmp_path: Path, value: float, dtype: str, message: str) -> None:
    changed = np.ones((3, 2, 4))
    changed[2, 1, 3] = value
    refused(_plain(tmp_path, _replace("1", changed)), tmp_path, NonFiniteError, message, dtype=dtype)
