"""Encoders without context against dictionary lookups and loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import ExecutorError, InvalidValueError, ModelError, WordVectorsError
from embstore.executors import Processes
from embstore.extraction.survey import NO_SUBWORD
from embstore.models import bag_encoder, load_encoder, model_kind, vector_encoder
from embstore.models.names import locate
from embstore.models.running import LayerPooling
from embstore.models.static import WordTable
from embstore.vectors import WordVectors, write_vectors
from embstore.vectors.word_vectors import RandomVectors
from tests.extraction.plans import plan_of
from tests.models import tiny
from tests.models.oracle import REDUCE, PlainScript, gather, tokenize, word_spans

DIMENSIONS = 6
WORDS = ("the", "bank", "Bank", "of", "river", "new", "los_angeles", "São", "new_york")
SENTENCES = [
    Sentence(["The", "Bank", "of", "the", "river"], {"class": ["x", "y", None, "x", "z"]}),
    Sentence(["new", "york", "and", "Los", "Angeles", "lend"], {"class": ["a"] + [None] * 5}, [(0, 2), (3, 5)]),
    Sentence(["unseen", "words", "unseen"], {}, [(0, 2)]),
    Sentence(["new", "river", "unseen", "SÃO"], {}, [(0, 3)]),
    Sentence(["bank"] * 40),
    Sentence(["of"]),
]
PHRASES = {"new york": "new_york", "Los Angeles": "los_angeles"}
POOLINGS = ("mean", "first", "last", "max")


def table() -> dict[str, np.ndarray]:
    """Numbers far from any norm, so that a normalized vector would show."""
    rng = np.random.default_rng(5)
    return {word: (rng.normal(3, 50, DIMENSIONS) * 10.0**place).astype(np.float32) for place, word in enumerate(WORDS)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "table.txt"
    entries = table()
    write_vectors(WordVectors(tuple(entries), np.stack(list(entries.values()))), path)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "bert")


def vector_of(word: str, missing: str, seed: int = 0) -> np.ndarray | None:
    entries = table()
    for form in (word, word.lower()):
        if form in entries:
            return entries[form]
    return RandomVectors(DIMENSIONS, seed=seed).vectors_of([word])[0] if missing == "random" else None


def expected(*, missing: str, bag: bool, pooling: str, seed: int = 0) -> dict[tuple[int, int], np.ndarray]:
    """The vector of every row by its sentence and position, word by word."""
    rows = {}
    for number, sentence in enumerate(SENTENCES):
        starts = dict(sentence.targets)
        inside = {word for start, stop in sentence.targets for word in range(start + 1, stop)}
        for position in range(len(sentence.words)):
            if position in inside:
                continue
            words = sentence.words[position : starts.get(position, position + 1)]
            vectors = [vector_of(word, missing, seed) for word in words]
            entry = PHRASES.get(" ".join(words))
            if not bag and entry is not None and all(vector is not None for vector in vectors):
                vectors = [table()[entry]]
            known = [vector for vector in vectors if vector is not None]
            if not known:
                continue
            if bag:
                every = [vector_of(word, missing, seed) for word in sentence.words]
                rows[number, position] = np.mean([vector for vector in every if vector is not None], axis=0)
            else:
                rows[number, position] = REDUCE[pooling](np.array(known))
    return rows


def stored(store: es.Store) -> dict[tuple[int, int], np.ndarray]:
    index, vectors = store.index, store.vectors(np.arange(store.n_rows), layers=0)
    source = [int(index.source[int(number)]) for number in index.sentence]
    return dict(zip(zip(source, index.position.tolist(), strict=True), vectors, strict=True))


def assert_same(found: dict[tuple[int, int], np.ndarray], wanted: dict[tuple[int, int], np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for place, vector in wanted.items():
        np.testing.assert_allclose(found[place], vector, rtol=2e-6, err_msg=str(place))


@pytest.mark.parametrize("missing", ["random", "drop"])
@pytest.mark.parametrize(("bag", "pooling"), [(True, "mean"), *((False, pooling) for pooling in POOLINGS)])
@pytest.mark.quick(3)
def test_a_store_of_word_vectors(file: Path, tmp_path: Path, missing: Any, bag: bool, pooling: str) -> None:
    encoder = vector_encoder(file, missing=missing, seed=7)
    plan = plan_of(SENTENCES, model=bag_encoder(encoder) if bag else encoder, dtype="float32", pooling=pooling)
    store = es.extract(plan, tmp_path / "store.zarr")
    wanted = expected(missing=missing, bag=bag, pooling=pooling, seed=7)
    assert_same(stored(store), wanted)
    dropped = {drop.reason: drop.count for drop in store.metadata.dropped}
    rows = sum(len(s.words) for s in SENTENCES) - sum(stop - start - 1 for s in SENTENCES for start, stop in s.targets)
    assert dropped == ({} if missing == "random" else {NO_SUBWORD: rows - len(wanted)})
    assert store.metadata.model["name"] == f"{'bag:' if bag else ''}vectors:{file.name}"
    assert str(file.parent) not in str(store.metadata)
    assert (store.metadata.model["num_hidden_layers"], store.metadata.model["final_norm"]) == (0, False)


@pytest.mark.parametrize("batch_subwords", [1, 3, 7, 1000])
@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize("missing", ["random", "drop"])
@pytest.mark.quick(3)
def test_batches_change_nothing(file: Path, batch_subwords: int, bag: bool, missing: Any) -> None:
    encoder = vector_encoder(file, missing=missing)
    encoder = bag_encoder(encoder) if bag else encoder
    tokenized = tokenize(encoder, [sentence.words for sentence in SENTENCES])
    spans, places = word_spans(tokenized)
    known = [vector_of(word, missing) is not None for sentence in SENTENCES for word in sentence.words]
    assert len(places) == sum(known)
    passes = encoder.encode(tokenized, spans, layers=[0], pooling="mean", batch_subwords=batch_subwords)
    vectors = gather(passes, spans, 1, DIMENSIONS)[0]
    for place, vector in zip(places, vectors, strict=True):
        words = SENTENCES[place[0]].words
        chosen = [vector_of(word, missing) for word in (words if bag else [words[place[1]]])]
        np.testing.assert_allclose(vector, np.mean([v for v in chosen if v is not None], axis=0), rtol=2e-6)


def test_bags_see_a_context_window_alone(file: Path, tmp_path: Path) -> None:
    for window in (0, 1, 100):
        plan = plan_of(SENTENCES, model=bag_encoder(load_encoder(file)), dtype="float32", context_window=window)
        found = stored(es.extract(plan, tmp_path / f"{window}.zarr"))
        for (number, position), vector in found.items():
            sentence = SENTENCES[number]
            stop = dict(sentence.targets).get(position, position + 1)
            words = sentence.words[max(0, position - window) : stop + window]
            mean = np.mean([vector_of(word, "random") for word in words], axis=0)
            np.testing.assert_allclose(vector, mean, rtol=2e-6)


def test_random_vectors_by_word(tmp_path: Path) -> None:
    plan = plan_of(SENTENCES, model=load_encoder("random:9"), dtype="float32")
    found = stored(es.extract(plan, tmp_path / "s.zarr"))
    table = RandomVectors(9)
    assert (found[0, 0] != found[0, 3]).any()  # The, the
    np.testing.assert_array_equal(found[0, 3], table.vectors_of(["the"])[0])
    np.testing.assert_array_equal(found[1, 0], table.vectors_of(["new_york"])[0])
    np.testing.assert_array_equal(found[4, 0], found[4, 39])
    bag = plan_of(SENTENCES, model=bag_encoder(load_encoder("random:9")), dtype="float32")
    bags = stored(es.extract(bag, tmp_path / "b.zarr"))
    words = RandomVectors(9).vectors_of(SENTENCES[1].words)
    np.testing.assert_allclose(bags[1, 0], words.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(bags[1, 0], bags[1, 5])


def test_random_vectors_are_normal_and_the_same_in_any_process() -> None:
    code = (
        "from embstore.vectors.word_vectors import RandomVectors\n"
        "print(RandomVectors(300, seed=1).vectors_of(['Straße']).sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    one = RandomVectors(300, seed=1).vectors_of(["Straße"])
    assert done.stdout.strip() == str(one.sum())
    # The numbers themselves, so that stores made years apart agree.
    np.testing.assert_allclose(RandomVectors(3).vectors_of(["bank"])[0], BANK, rtol=1e-6)
    many = RandomVectors(50, seed=2).vectors_of([f"word{number}" for number in range(2000)])
    assert abs(many.mean()) < 0.02
    assert abs(many.std() - 1) < 0.02
    assert np.abs(np.corrcoef(many.T) - np.eye(50)).max() < 0.1
    assert (RandomVectors(5).vectors_of(["a"]) != RandomVectors(5, seed=1).vectors_of(["a"])).all()


BANK = [-0.047010358, -1.2043618, -0.29957727]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.quick(2)
def test_a_models_own_subwords(bert: Path, pooling: str) -> None:
    plain = PlainScript.open(bert)
    weight = plain.model.get_input_embeddings().weight.detach().numpy()
    sentences = [list(sentence) for sentence in tiny.SENTENCES[:6]]
    encoder = load_encoder(f"subwords:{bert}")
    tokenized = tokenize(encoder, sentences)
    for width in (1, 2):
        spans, places = word_spans(tokenized, width=width)
        passes = encoder.encode(tokenized, spans, layers=[0], pooling=pooling, batch_subwords=50)
        vectors = gather(passes, spans, 1, weight.shape[1])[0]
        bags = bag_encoder(encoder)
        passes = bags.encode(tokenized, spans, layers=[0], pooling=pooling, batch_subwords=50)
        means = gather(passes, spans, 1, weight.shape[1])[0]
        for (sentence, word), vector, mean in zip(places, vectors, means, strict=True):
            encoding = plain.tokenizer.encode(sentences[sentence], is_pretokenized=True)
            pieces = zip(encoding.ids, encoding.word_ids, strict=True)
            owned = [(piece, of) for piece, of in pieces if of is not None]
            own = [piece for piece, of in owned if word <= of < word + width]
            np.testing.assert_allclose(vector, REDUCE[pooling](weight[own]), rtol=1e-5, atol=1e-7)
            every = weight[[piece for piece, _ in owned]].mean(0)
            np.testing.assert_allclose(mean, every, rtol=1e-5, atol=1e-7)
    assert encoder.info.weights_sha256 == load_encoder(bert).info.weights_sha256
    assert encoder.subword_text(int(tokenized.ids[0])) == plain.tokenizer.id_to_token(int(tokenized.ids[0]))


def test_identities_of_encoders(file: Path, bert: Path) -> None:
    subwords, words = load_encoder(f"subwords:{bert}"), vector_encoder(file)
    encoders = [words, vector_encoder(file, missing="drop"), vector_encoder(file, seed=1), bag_encoder(words)]
    encoders += [load_encoder("random:6"), subwords, bag_encoder(subwords)]
    identities = {(e.info.architecture, e.info.weights_sha256, e.info.tokenizer_sha256) for e in encoders}
    assert len(identities) == len(encoders)
    named = [encoder for encoder in encoders if encoder.source]
    assert named == [words, encoders[4], subwords]  # the others have options that no name says
    assert [encoder.source for encoder in named] == [f"vectors:{file}", "random:6", f"subwords:{bert}"]
    folders = ("gone", file.parent, bert.parent)
    for encoder in named:
        assert load_encoder(encoder.source).info == encoder.info
        assert locate(encoder.info.name, None, folders=folders) == encoder.source
        assert model_kind(encoder.source) == "static"
    for encoder in encoders:
        assert (encoder.info.max_subwords, encoder.n_specials, encoder.compute_dtype) == (None, 0, "float32")
        encoder.use_batching(encoder.batching)
        with pytest.raises(InvalidValueError, match="batching 'padded'"):
            encoder.use_batching("padded")
        tokenized = tokenize(encoder, [["the", "bank", "unseen"], ["of"]])
        assert encoder.self_check(tokenized, layers=[0], pooling="mean") <= 2e-6
        assert encoder.projected_nbytes(n_features=8, batch_subwords=10) > 0
        with pytest.raises(InvalidValueError, match="does not exist: choose among 0"):
            encoder.encode(tokenized, word_spans(tokenized)[0], layers=[1], pooling="mean", batch_subwords=9)


@pytest.mark.parametrize("bag", [False, True])
def test_the_self_check_finds_wrong_vectors(file: Path, bag: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors changed at their last step, another row of the table, and a sum in the place of a mean."""

    def check() -> float:
        encoder = bag_encoder(vector_encoder(file)) if bag else vector_encoder(file)
        tokenized = tokenize(encoder, [["the", "bank", "of"], ["river", "unseen"]])
        return encoder.self_check(tokenized, layers=[0], pooling="mean")

    assert check() < 2e-6
    vectors, append, pooled = WordTable.vectors, WordTable._append, LayerPooling.vectors
    for target, name, changed in (
        (LayerPooling, "vectors", lambda self: [pooled(self)[0] * 1.001]),
        (LayerPooling, "vectors", lambda self: [pooled(self)[0] * float("nan")]),
        (WordTable, "vectors", lambda self, ids: vectors(self, np.maximum(ids - 1, 0))),
        (WordTable, "_append", lambda self, vectors: append(self, vectors.flip(0))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, changed)
            with pytest.raises(ModelError, match=r"no batching of .* reproduces"):
                check()


def test_half_precision(file: Path, tmp_path: Path) -> None:
    small = WordVectors(("a", "b"), np.array([[1.1, 2], [3, 4]], np.float32))
    encoder = vector_encoder(small, compute_dtype="float16")
    tokenized = tokenize(encoder, [["a", "b", "a"]])
    assert encoder.self_check(tokenized, layers=[0], pooling="mean") < 1e-3
    large = vector_encoder(WordVectors(("a",), np.array([[1e6]], np.float32)), compute_dtype="float16")
    with pytest.raises(ModelError, match="'a' has numbers beyond float16"):
        large.self_check(tokenize(large, [["a"]]), layers=[0], pooling="mean")


def test_names_of_models(file: Path, bert: Path, tmp_path: Path) -> None:
    assert load_encoder(file).info == vector_encoder(file).info
    assert model_kind(bert) == "transformer"
    with pytest.raises(InvalidValueError, match="a bag needs an encoder without context"):
        bag_encoder(load_encoder(bert))
    with pytest.raises(InvalidValueError, match="model 'bert' is not in this folder: give the location"):
        locate("bert", None, folders=("gone", tmp_path))
    assert locate("bert", "main", folders=()) == "bert"
    with pytest.raises(InvalidValueError, match="revision 'main'"):
        load_encoder("random:3", revision="main")
    with pytest.raises(ExecutorError, match="no other process can load it"), Processes(1) as executor:
        es.extract(plan_of([["a"]], model=vector_encoder(file, seed=1)), tmp_path / "x.zarr", executor=executor)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("random:", "'random:' cannot be read: write random:DIMENSIONS"),
        ("random:0", "dimensions 0 is not allowed: give 1 to 65,536"),
        ("vectors:gone.txt", "no word vectors at gone.txt"),
        ("gone.vec", "there is no vector file 'gone.vec'"),
    ],
)
def test_bad_names_are_one_line(tmp_path: Path, name: str, says: str) -> None:
    prose = tmp_path / "prose.txt"
    prose.write_text("it was the best of times\nit was the worst of times\n")
    with pytest.raises((InvalidValueError, ModelError, WordVectorsError)) as caught:
        load_encoder(name.replace("PROSE", str(prose)))
    assert says in str(caught.value)
