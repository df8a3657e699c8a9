"""ELMo against its published outputs and the biLM word by word; its damaged files, and its stores."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import embstore as es
from embstore.errors import ModelError
from embstore.models import load_encoder
from embstore.models.elmo.network import TimeMajor
from embstore.store import StoreWriter
from tests.models.oracle import REDUCE, gather, relative_error, tokenize, word_spans
from tests.models.tiny_elmo import PlainBiLm, save_elmo
from tests.store.example import all_files

SENTENCES = [
    ["The", "bank", "of", "the", "river"],
    ["No"],
    ["Café", "naïve", "日本語", "—", "\u200b", "x" * 47, "x" * 48, "x" * 49, "é" * 30, "ok"],
    ["the", "old", "bank", "<S>", "lends", "</S>", "money", "to", "the", "bank", "!"],
    ["a", "an", "the"] * 9,
    ["The", "bank", "of", "the", "river"],
]


VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "no residual, no clip, tanh": {
        "lstm": {"use_skip_connections": False, "cell_clip": None, "proj_clip": None},
        "cnn": {"activation": "tanh"},
    },
    "no highway, filters as many as the projection is wide": {
        "lstm": {"projection_dim": 15},
        "cnn": {"n_highway": None, "max_characters_per_token": 9},
    },
    "three layers": {"lstm": {"n_layers": 3}},
}


class Case:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.encoder = load_encoder(folder)
        self.plain = PlainBiLm.open(folder)
        self.layers = tuple(range(self.encoder.info.num_hidden_layers + 1))
        self.tokenized = tokenize(self.encoder, SENTENCES)
        self.expected = np.concatenate([self.plain.layers(words) for words in SENTENCES], axis=1)

    def encode(self, *, width=1, layers=None, pooling="mean", batch_subwords=60):
        layers = self.layers if layers is None else layers
        spans, _ = word_spans(self.tokenized, width=width)
        passes = self.encoder.encode(
            self.tokenized, spans, layers=layers, pooling=pooling, batch_subwords=batch_subwords
        )
        return gather(passes, spans, len(layers), self.encoder.info.hidden_size)


QUICK = ("published", "no highway, filters as many as the projection is wide")


@pytest.fixture(
    scope="module", params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def case(request, tmp_path_factory):
    return Case(save_elmo(tmp_path_factory.mktemp("elmo"), **VARIANTS[request.param]))


@pytest.fixture
def folder(tmp_path):
    return save_elmo(tmp_path / "elmo")


def carried(encoder, batches, layers):
    """Yield the vectors of each sentence of each batch, which begins in the state in which its row of another ended."""
    states = [layer.zero_state(3) for layer in encoder.network.layers]
    for batch in batches:
        tokenized = tokenize(encoder, batch)
        n_words = np.diff(tokenized.sentence_indptr)
        longest_first = np.argsort(-n_words, kind="stable")
        words, text, bounds = encoder._text(tokenized.ids, n_words)
        begun = [tuple(part[:, longest_first] for part in state) for state in states]
        found = {}
        order, texts = TimeMajor.of(n_words[longest_first] + 2), np.split(text, bounds[1:-1])
        index = np.concatenate([texts[at] for at in longest_first])
        encoder.network.run(words, index, order, layers, found.__setitem__, states=begun)
        for state, ended in zip(states, begun, strict=True):
            for whole, part in zip(state, ended, strict=True):
                whole[:, longest_first] = part
        vectors = torch.stack([found[layer] for layer in layers]).numpy()
        ends = np.empty(len(n_words), np.int64)
        ends[longest_first] = np.cumsum(n_words[longest_first] + 2) - 1
        yield [vectors[:, end - many : end] for end, many in zip(ends.tolist(), n_words.tolist(), strict=True)]


def test_the_published_outputs(data):
    fixture = data / "elmo-fixture"
    texts = json.loads((fixture / "lm_embeddings_sentences.json").read_text("utf-8"))
    batches = [[text.split() for text in batch] for batch in zip(*texts, strict=True)]
    assert (len(batches), {len(batch) for batch in batches}) == (10, {3})
    encoder = load_encoder(fixture)
    found = list(carried(encoder, batches, [2]))
    fresh = [vectors for batch in batches for vectors in carried(encoder, [batch], [2])]
    apart = []
    for row in range(3):
        with h5py.File(fixture / f"lm_embeddings_{row}.hdf5") as file:
            for number in range(10):
                forward, backward = file[str(number)][()]
                gold = np.concatenate([forward, backward], -1)
                np.testing.assert_allclose(found[number][row][0], gold, rtol=0, atol=1e-5)
                apart.append(np.abs(fresh[number][row][0] - gold).max())
    assert min(apart[::10]) < 1e-5 < 1e-3 < max(apart)  # without the state only the first batch agrees


def test_every_layer_of_every_word(case):
    assert relative_error(case.encode(), case.expected) < 2e-5


def test_no_clip_is_idle(tmp_path):
    bound = PlainBiLm.open(save_elmo(tmp_path / "bound"))
    free = PlainBiLm.open(save_elmo(tmp_path / "free", lstm={"cell_clip": None}))
    open_ended = PlainBiLm.open(save_elmo(tmp_path / "open", lstm={"proj_clip": None}))
    layers = bound.layers(SENTENCES[4])
    for other in (free, open_ended):
        assert np.abs(layers - other.layers(SENTENCES[4])).max() > 1e-3


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max"])
def test_runs_of_words_are_pooled(case, pooling):
    expected, done = [], 0
    for words in SENTENCES:
        of_sentence = case.expected[:, done : done + len(words)]
        for start in range(len(words) - 2):
            window = of_sentence[:, start : start + 3]
            expected.append(np.stack([REDUCE[pooling](layer) for layer in window]))
        done += len(words)
    assert relative_error(case.encode(width=3, pooling=pooling), np.stack(expected, 1)) < 2e-5


def test_chosen_layers_are_the_same_as_all(case):
    full = case.encode()
    for layers in ((0,), (2, 0), (1,), (2,)):
        assert np.array_equal(case.encode(layers=layers), full[list(layers)])


def test_batches_change_only_the_last_bits(case):
    full = case.encode()
    assert np.array_equal(full, case.encode())
    for size in (1, 13, 10_000):
        assert relative_error(case.encode(batch_subwords=size), full) < 2e-6
    turned = tokenize(case.encoder, SENTENCES[::-1])
    spans, names = word_spans(turned)
    passes = case.encoder.encode(turned, spans, layers=case.layers, pooling="mean", batch_subwords=60)
    vectors = gather(passes, spans, len(case.layers), case.encoder.info.hidden_size)
    place = {name: row for row, name in enumerate(word_spans(case.tokenized)[1])}
    rows = [place[(len(SENTENCES) - 1 - sentence, word)] for sentence, word in names]
    assert relative_error(vectors, full[:, rows]) < 2e-6


def test_the_words_seen_before_change_nothing(case):
    other = load_encoder(case.folder)
    tokenize(other, [["river", "zebra", "the", "bank"], SENTENCES[4]])
    tokenized = tokenize(other, SENTENCES)
    assert not np.array_equal(tokenized.ids, case.tokenized.ids)
    spans, _ = word_spans(tokenized)
    passes = other.encode(tokenized, spans, layers=case.layers, pooling="mean", batch_subwords=60)
    assert np.array_equal(gather(passes, spans, len(case.layers), other.info.hidden_size), case.encode())


@pytest.mark.parametrize("rows", [1, 7])
def test_gates_are_made_in_runs_of_steps(case, rows, monkeypatch):
    monkeypatch.setattr("embstore.models.elmo.encoder.GATE_ROWS", {"cpu": rows})
    assert relative_error(case.encode(batch_subwords=10_000), case.expected) < 2e-5


def test_the_self_check_measures_the_batches(case, monkeypatch):
    assert case.encoder.self_check(case.tokenized, layers=case.layers, pooling="mean") < 2e-5
    empty = tokenize(case.encoder, [])
    assert case.encoder.self_check(empty, layers=case.layers, pooling="max") < 2e-5
    laid = TimeMajor.of

    def one_position_off(lengths):
        found = laid(lengths)
        return TimeMajor(found.counts, found.order, np.roll(found.inverse, 1, axis=1))

    monkeypatch.setattr(TimeMajor, "of", one_position_off)
    with pytest.raises(ModelError, match=r"no batching .* reproduces .* \(allowed is 2e-05\): packed differs by"):
        case.encoder.self_check(case.tokenized, layers=case.layers, pooling="mean")


@pytest.mark.parametrize(("dtype", "allowed"), [("bfloat16", 4e-2), ("float16", 5e-3)])
@pytest.mark.quick(1)
def test_half_precision(folder, dtype, allowed):
    encoder = load_encoder(folder, compute_dtype=dtype)
    tokenized = tokenize(encoder, SENTENCES)
    assert encoder.self_check(tokenized, layers=(0, 1, 2), pooling="mean") < allowed
    spans, _ = word_spans(tokenized)
    passes = list(encoder.encode(tokenized, spans, layers=(0, 1, 2), pooling="mean", batch_subwords=60))
    assert {str(pooled.vectors.dtype) for pooled in passes} == {f"torch.{dtype}"} == {f"torch.{encoder.compute_dtype}"}
    expected = np.concatenate([PlainBiLm.open(folder).layers(words) for words in SENTENCES], axis=1)
    assert relative_error(gather(passes, spans, 3, 12), expected) < allowed


def test_a_model_is_described(folder):
    encoder = load_encoder(folder)
    info = encoder.info
    both = (folder / "options.json").read_bytes() + (folder / "lm_weights.hdf5").read_bytes()
    assert info.weights_sha256 == hashlib.sha256(both).hexdigest()
    assert (info.name, info.architecture, info.revision) == (folder.name, "ELMo", None)
    assert (info.num_hidden_layers, info.hidden_size, info.max_subwords, info.final_norm) == (2, 12, None, False)
    assert (encoder.n_specials, encoder.batching, encoder.compute_dtype) == (2, "packed", "float32")
    other = save_elmo(folder.parent / "short", cnn={"max_characters_per_token": 20})
    assert load_encoder(other).info.tokenizer_sha256 != info.tokenizer_sha256
    small = encoder.projected_nbytes(n_features=12, batch_subwords=64)
    assert encoder.network.nbytes < small < encoder.projected_nbytes(n_features=36, batch_subwords=4096)


def test_words_are_numbered(folder):
    encoder = load_encoder(folder)
    tokenized = tokenize(encoder, [["b", "a"], [], ["a", "</S>", "c"]])
    assert tokenized.ids.tolist() == [2, 3, 3, 1, 4]
    assert tokenized.word_indptr.tolist() == [0, 1, 2, 3, 4, 5]
    assert tokenized.sentence_indptr.tolist() == [0, 2, 2, 5]
    assert [encoder.subword_text(number) for number in tokenized.ids] == ["b", "a", "a", "</S>", "c"]


def test_published_names_of_files(folder):
    for name in ("options.json", "lm_weights.hdf5"):
        (folder / name).rename(folder / f"elmo_2x4096_512_2048cnn_2xhighway_{name.removeprefix('lm_')}")
    assert load_encoder(folder).info.architecture == "ELMo"


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        load_encoder(folder)


@pytest.mark.parametrize(
    ("section", "key", "value", "match"),
    [
        ("lstm", "dim", None, "options.json' are not those of ELMo at lstm.dim: None is not of type 'integer'"),
        ("lstm", "dim", 11, r"contain RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0 as float32 \(12, 40\)"),
        ("lstm", "n_layers", 3, "do not contain RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0"),
        ("char_cnn", "filters", [[1, 4], [2, 5], [4, 7]], r"contain CNN/W_cnn_2 as float32 .* \(1, 4, 3, 7\)"),
    ],
)
def test_odd_options(folder, section, key, value, match):
    options = json.loads((folder / "options.json").read_text("utf-8"))
    options[section][key] = value
    (folder / "options.json").write_text(json.dumps(options), "utf-8")
    refused(folder, match)


@pytest.mark.parametrize("name", ["char_embed", "CNN_high_1/b_carry", "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0"])
@pytest.mark.parametrize(
    ("value", "match"), [(np.nan, "NaN or infinity in"), (np.inf, "NaN or infinity in"), (None, "do not contain")]
)
def test_weights_that_are_no_numbers_or_missing(folder, name, value, match):
    with h5py.File(folder / "lm_weights.hdf5", "r+") as file:
        if value is None:
            del file[name]
        else:
            file[name][1] = value
    refused(folder, f"lm_weights.hdf5' .*{match} {name}; ")


@pytest.mark.parametrize("kept", [0, 100, 3000])
def test_truncated_weights(folder, kept):
    whole = (folder / "lm_weights.hdf5").read_bytes()
    (folder / "lm_weights.hdf5").write_bytes(whole[:kept])
    refused(folder, "weights .*lm_weights.hdf5' cannot be read, or are damaged: ")


def test_files_that_are_missing_or_too_many(folder):
    whole = (folder / "lm_weights.hdf5").read_bytes()
    (folder / "other_weights.hdf5").write_bytes(whole)
    refused(folder, r"has lm_weights.hdf5, other_weights.hdf5 as \*weights.hdf5: give one published file")
    (folder / "other_weights.hdf5").unlink()
    (folder / "lm_weights.hdf5").unlink()
    refused(folder, r"ELMo folder .* has nothing as \*weights.hdf5")
    (folder / "lm_weights.hdf5").write_bytes(whole)
    (folder / "options.json").unlink()
    refused(folder, r"ELMo folder .* has nothing as \*options.json")


@pytest.mark.parametrize("name", ["options.json", "lm_weights.hdf5"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_files_that_are_no_files(folder, name, make):
    (folder / name).unlink()
    make(folder / name)
    refused(folder, f"has {name} as .*: give one published file")


def corpus(path: Path, *, seed: int = 3) -> Path:
    random = np.random.default_rng(seed)
    words = np.array([word for sentence in SENTENCES for word in sentence if not word.isspace()])
    lines = [" ".join(random.choice(words, size)) for size in random.integers(1, 15, 90)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(("suffix", "unit"), [(".zarr", "word"), (".h5", "subword")])
@pytest.mark.quick(1)
def test_a_store_holds_the_vectors_of_the_plain_model(folder, tmp_path, suffix, unit, monkeypatch):
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_SUBWORDS", 150)
    text = corpus(tmp_path / "corpus.txt")
    lines = es.open_corpus(text, split="lines", words="spaces")
    plan = es.plan(lines, model=folder, options=es.ExtractionOptions(dtype="float32", unit=unit, batch_subwords=64))
    store = es.extract(plan, tmp_path / f"store{suffix}")
    assert plan.layout.n_partitions > 1
    assert es.verify(store.path).ok
    sentences = [line.split(" ") for line in text.read_text("utf-8").splitlines()]
    assert [store.index.words[number] for number in store.index.type] == [word for words in sentences for word in words]
    plain = PlainBiLm.open(folder)
    expected = np.concatenate([plain.layers(words) for words in sentences], axis=1)
    found = np.stack([store.vectors(np.arange(store.n_rows), layers=layer) for layer in store.layers])
    assert relative_error(found, expected) < 2e-5
    assert (np.asarray(store.index.subwords) == 1).all()
    assert store.metadata.model["architecture"] == "ELMo"
    assert store.metadata.extraction["batching"] == "packed"


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.slow
def test_a_missing_partition_comes_back_with_the_same_bytes(folder, tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    text, path = corpus(tmp_path / "corpus.txt"), tmp_path / f"s{suffix}"
    for missing in ([], [1]):
        if missing:
            whole = all_files(path)
            with StoreWriter(path) as writer:
                writer.discard(missing)
        made = es.plan(text, model=folder, options=es.ExtractionOptions(layers=[1, 2]), calibrate=False)
        assert made.layout.n_partitions > 2
        es.extract(made, path)
    assert all_files(path) == whole
