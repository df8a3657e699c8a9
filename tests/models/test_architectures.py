"""Every architecture against a plain script: batching, layers, pooling, spans, cuts, dtypes; which cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from embstore.errors import InvalidValueError, ModelError
from embstore.models import batched, load_encoder
from embstore.models.checkpoint import reason
from embstore.models.encoder import Pooled, Spans
from embstore.models.transformer.encoder import TransformerEncoder
from tests.models import tiny
from tests.models.oracle import PlainScript, gather, relative_error, tokenize, word_spans
from tests.models.tiny import ARCHITECTURES, DECODERS, SENTENCES, random_sentences, save

# Their positions are biases of pairs.
MASKED = {"deberta_v2": "padded", "xlnet": "padded", "t5": "packed", "mpnet": "packed"}
FINAL_NORM = {"gpt2", "gpt_neox", "llama", "mistral", "mixtral", "qwen2_moe", "modernbert", "t5"}
QUICK = ("bert", "llama", "t5")


class Case:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.encoder = load_encoder(folder)
        self.plain = PlainScript.open(folder)
        self.sentences = [*SENTENCES, ["a" * 50, "\u200b", "cat"], *random_sentences(24, seed=1)]
        self.tokenized = tokenize(self.encoder, self.sentences)
        self.layers = tuple(range(self.encoder.info.num_hidden_layers + 1))
        self.error = self.encoder.self_check(self.tokenized, layers=self.layers, pooling="mean")

    def encode(self, spans, *, layers=None, pooling="mean", batch_subwords=512):
        layers = self.layers if layers is None else layers
        passes = self.encoder.encode(
            self.tokenized, spans, layers=layers, pooling=pooling, batch_subwords=batch_subwords
        )
        return gather(passes, spans, len(layers), self.encoder.info.hidden_size)

    def expected(self, names, *, pooling="mean", width=1):
        vectors = [self.plain.span(self.sentences[s], w, w + width, pooling) for s, w in names]
        return np.stack(vectors, axis=1)


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES],
)
def case(request, tmp_path_factory):
    return Case(request.param, save(request.param, tmp_path_factory.mktemp(request.param)))


def test_batching_is_the_fastest_exact_one(case):
    assert case.encoder.batching == MASKED.get(case.name, "varlen")
    assert case.error < 2e-5
    assert case.encoder.info.final_norm == (case.name in FINAL_NORM)
    assert ("varlen" in case.encoder.candidate_batchings()) == (case.name not in MASKED)
    assert case.encoder.network.packed.nbytes > 0


def test_all_layers_of_words_equal_a_plain_script(case):
    spans, names = word_spans(case.tokenized)
    assert case.layers == (0, 1, 2, 3)
    assert relative_error(case.encode(spans), case.expected(names)) < 2e-5


def test_pooling_of_runs_of_words(case):
    spans, names = word_spans(case.tokenized, width=2)
    some = np.arange(0, len(names), 9)
    spans = Spans(spans.sentence[some], spans.start[some], spans.stop[some])
    for pooling in ("mean", "first", "last", "max"):
        expected = case.expected([names[i] for i in some], pooling=pooling, width=2)
        assert relative_error(case.encode(spans, pooling=pooling), expected) < 2e-5


def test_chosen_layers_are_the_same_as_all(case):
    spans, _ = word_spans(case.tokenized)
    full = case.encode(spans)
    for layers in ((0,), (2, 0), (1,), (3,), (3, 1)):
        assert np.array_equal(case.encode(spans, layers=layers), full[list(layers)])


def test_no_layer_beyond_the_deepest_is_computed(case):
    spans, _ = word_spans(case.tokenized)
    reached = []
    handles = [
        block.register_forward_hook(lambda module, args, output: reached.append(module))
        for block in case.encoder.network.tap.blocks
    ]
    passes = len(list(case.encoder.encode(case.tokenized, spans, layers=(1,), pooling="mean", batch_subwords=512)))
    for handle in handles:
        handle.remove()
    assert bool(reached) == (case.name != "xlnet"), "whose blocks take [positions, batch, features]"
    assert len(reached) in (0, passes)


def test_batch_size_and_order_change_only_the_last_bits(case):
    spans, names = word_spans(case.tokenized)
    full = case.encode(spans)
    assert np.array_equal(full, case.encode(spans))
    assert relative_error(case.encode(spans, batch_subwords=64), full) < 2e-5
    turned = tokenize(case.encoder, case.sentences[::-1])
    turned_spans, turned_names = word_spans(turned)
    passes = case.encoder.encode(turned, turned_spans, layers=case.layers, pooling="mean", batch_subwords=512)
    vectors = gather(passes, turned_spans, 4, case.encoder.info.hidden_size)
    last = len(case.sentences) - 1
    place = {name: row for row, name in enumerate(names)}
    rows = [place[(last - sentence, word)] for sentence, word in turned_names]
    assert relative_error(vectors, full[:, rows]) < 2e-5


def test_only_sentences_with_spans_are_run(case):
    spans, names = word_spans(case.tokenized)
    kept = np.flatnonzero((spans.sentence == 3) | (spans.sentence == 6))
    some = Spans(spans.sentence[kept], spans.start[kept], spans.stop[kept])
    assert relative_error(case.encode(some), case.expected([names[i] for i in kept])) < 2e-5
    none = Spans(*(np.empty(0, np.int64) for _ in range(3)))
    assert list(case.encoder.encode(case.tokenized, none, layers=(0,), pooling="mean", batch_subwords=512)) == []


def test_sentences_beyond_the_limit_are_cut(case):
    long = tokenize(case.encoder, [["cat", "bank"] * 400, ["river"]])
    limit = case.encoder.info.max_subwords
    spans, _ = word_spans(long)
    if limit is None:
        passes = case.encoder.encode(long, spans, layers=(3,), pooling="mean", batch_subwords=512)
        assert np.isfinite(gather(passes, spans, 1, case.encoder.info.hidden_size)).all()
        return
    with pytest.raises(InvalidValueError, match=f"{limit} subwords within the model's limit"):
        case.encoder.encode(long, spans, layers=(3,), pooling="mean", batch_subwords=512)
    fits = spans.stop <= limit
    within = Spans(spans.sentence[fits], spans.start[fits], spans.stop[fits])
    passes = case.encoder.encode(long, within, layers=(3,), pooling="mean", batch_subwords=512)
    vectors = gather(passes, within, 1, case.encoder.info.hidden_size)
    words = int((within.sentence == 0).sum())
    whole = len(tokenize(case.encoder, [(["cat", "bank"] * 400)[:words]]).ids) == limit
    if whole:  # the cut falls between two words, so a plain script can be given the same input
        expected = case.plain.span((["cat", "bank"] * 400)[:words], words - 1, words, "mean")[-1:]
        assert relative_error(vectors[:, words - 1 : words], expected[:, None]) < 2e-5


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return load_encoder(save("bert", tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize(
    "options",
    [
        {"layers": (4,)},
        {"layers": (-5,)},
        {"layers": (1, 1)},
        {"attention_window": -1},
        *({"spans": wrong} for wrong in ((0, 0, 0), (0, 2, 1), (0, -2, 1), (0, 0, 10_000), (9_999, 0, 1), (-1, 0, 1))),
    ],
)
@pytest.mark.quick(5)
def test_wrong_arguments_are_refused(options, bert):
    tokenized = tokenize(bert, SENTENCES)
    spans, _ = word_spans(tokenized)
    if "spans" in options:
        spans = Spans(*(np.array([value], np.int64) for value in options["spans"]))
    arguments = {"layers": (0,), "pooling": "mean", "batch_subwords": 512, **options}
    arguments.pop("spans", None)
    with pytest.raises(InvalidValueError):
        bert.encode(tokenized, spans, **arguments)


BART = {"d_model": 32, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
BART |= {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "attention_window": 16}
LED = BART | {"max_encoder_position_embeddings": 320, "max_decoder_position_embeddings": 320}
ROBERTA = tiny._bert(pad_token_id=1, max_position_embeddings=322)
ZAMBA = tiny._bert(mamba_d_state=8, mamba_expand=2, n_mamba_heads=4, mamba_ngroups=1, adapter_rank=8, chunk_size=16)
ZAMBA |= {"layers_block_type": ["mamba", "hybrid", "hybrid"]}
NANO = tiny._bert(**tiny.KEYS, num_hidden_layers=4, head_dim=8, hidden_size_per_layer_input=8, laurel_rank=4)
NANO |= {"vocab_size_per_layer_input": 400, "num_kv_shared_layers": 2, "sliding_window": 24, "altup_num_inputs": 2}
NANO |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 4}


def saved(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, **options: Any) -> Path:
    tokenizer = tiny.byte_level(around=("<s>", "</s>"))
    monkeypatch.setitem(tiny.ARCHITECTURES, kind, lambda: tiny._of(kind, tokenizer, **options))
    return tiny.save(kind, folder)


@pytest.mark.parametrize(
    ("kind", "options"), [("Longformer", ROBERTA | {"attention_window": 16}), ("LED", LED), ("Zamba2", ZAMBA)]
)
def test_blocks_of_padded_sentences(
    kind: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers equal the hidden states of transformers, which a plain pass gives."""
    encoder = load_encoder(saved(tmp_path, monkeypatch, kind, **options))
    assert encoder.self_check(tokenize(encoder, tiny.SENTENCES), layers=range(4), pooling="first") < 2e-5


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("IBert", ROBERTA, r"has embeddings of a kind that is not known, QuantEmbedding: use another model"),
        ("SqueezeBert", tiny._bert(embedding_size=32), r"cannot be used: its first hidden state is not the input of"),
        ("Gemma3nText", NANO, r"its first hidden state is not the input of its first block, .*; use another model"),
        ("Zamba2", ZAMBA | {"hybrid_layer_ids": [1]}, r"used: KeyError: 2, on a few subwords: check its config"),
    ],
)
def test_models_that_cannot_be_used(
    kind: str, options: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path, monkeypatch, kind, **options)
    with pytest.raises(ModelError, match=says):
        (encoder := load_encoder(folder)).self_check(tokenize(encoder, tiny.SENTENCES), layers=[1], pooling="mean")


def test_an_error_that_is_a_key_names_its_kind() -> None:
    assert reason(KeyError(2)) == "KeyError: 2"  # of Zamba2, where two lists of its config contradict each other
    assert (reason(ValueError()), reason(ValueError("a\nb"))) == ("ValueError", "a b")


def test_gpt_nano_equals_an_independent_implementation(data, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(data / "gpt-nano" / name, tmp_path)
    words = Tokenizer(models.WordLevel({"A": 0, "B": 1, "C": 2}, unk_token="A"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    expected = np.load(data / "gpt-nano" / "expected.npz")
    encoder = load_encoder(tmp_path)
    assert encoder.info.max_subwords == 11
    assert encoder.info.final_norm
    tokenized = tokenize(encoder, [["ABC"[int(index)] for index in row] for row in expected["idx"]])
    assert encoder.self_check(tokenized, layers=(0, 1, 2, 3), pooling="mean") < 2e-5
    assert encoder.batching == "varlen"
    places = np.tile(np.arange(11), 3)
    spans = Spans(np.repeat(np.arange(3), 11), places, places + 1)
    passes = encoder.encode(tokenized, spans, layers=(0, 1, 2, 3), pooling="mean", batch_subwords=64)
    vectors = gather(passes, spans, 4, 48)
    for layer, name in enumerate(("x", "block0", "block1", "ln_f")):
        assert np.abs(vectors[layer] - expected[name].reshape(33, 48)).max() < 2e-6


NAMES = [*ARCHITECTURES, *(name for name in DECODERS if name not in ("llama64", "falcon_h1"))]
LAYERS = (0, 1, 2, 3)
BOUND = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}
REFUSED = {  # in each dtype
    "deberta_v2": {"packed"},
    "xlnet": {"packed"},
    "llama4": {"varlen", "packed"},  # its attention is in chunks
    **{name: {"varlen", "packed"} for name in ("qwen3_next", "jamba", "recurrent_gemma")},  # they have states
    **{name: {"packed"} for name in ("mamba", "mamba2", "rwkv")},
}


def apart(vectors, expected):
    """Return how far each vector is from the expected one, in its length: [layer, vector]."""
    return np.linalg.norm(vectors - expected, axis=2) / np.linalg.norm(expected, axis=2)


@pytest.mark.parametrize(
    "name", [name if name == "t5" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_every_dtype_and_batching(name, tmp_path, monkeypatch):
    """A batch is as near to the plain pass of float32 as the plain pass of its own dtype is."""
    monkeypatch.setattr(TransformerEncoder, "choices_vary", True)  # as on a GPU, all batchings are tried
    monkeypatch.setattr(batched, "fastest", lambda names, run: names[0])
    exact = load_encoder(save(name, tmp_path))
    tokenized = tokenize(exact, SENTENCES)
    (spans, _), options = word_spans(tokenized), {"layers": LAYERS, "pooling": "mean"}
    right = exact.plain_vectors(tokenized, spans, **options)
    for dtype, bound in BOUND.items():
        if name == "xlnet" and dtype != "float32":
            with pytest.raises(ModelError, match=f"cannot be used: .*, in {dtype}: choose the compute dtype float32"):
                load_encoder(tmp_path, compute_dtype=dtype)
            continue
        encoder = load_encoder(tmp_path, compute_dtype=dtype)
        plain = encoder.plain_vectors(tokenized, spans, **options)
        assert encoder.self_check(tokenized, **options) <= bound
        assert set(encoder.refused) == REFUSED.get(name, set()), (dtype, encoder.refused)
        for batching in set(encoder.candidate_batchings()) - set(encoder.refused):
            encoder.use_batching(batching)
            passes = encoder.encode(tokenized, spans, **options, batch_subwords=256)
            vectors = gather(passes, spans, len(LAYERS), encoder.info.hidden_size)
            assert apart(vectors, plain).max() <= bound, (dtype, batching)
            assert apart(vectors, right).max() <= apart(plain, right).max() + bound, (dtype, batching)


def test_what_a_difference_is_relative_to():
    """Its own length, of a short vector that of others; one of a hundred may differ more where that is allowed."""
    expected = np.ones((1, 100, 4), np.float32)
    expected[0, 0], expected[0, 1] = 1e-6, 3000

    def difference(rows, by, but=0.0, missing=0):
        vectors = expected[:, missing:].copy()
        vectors[0, rows] += np.float32(by)
        pooled = Pooled(np.arange(missing, 100), torch.from_numpy(vectors))
        return batched.largest_difference([pooled], {"residual": expected}, but)

    assert difference([5], 0.5) == difference([1, 5], 0.5) == 0.5
    assert difference([1], 3) == pytest.approx(1e-3)
    assert difference([0], 1e-6) == pytest.approx(1e-5)
    assert (difference([5], 0.5, but=0.01), difference([5, 6], 0.5, but=0.01)) == (0, 0.5)
    assert difference([5], np.nan, but=0.01) == difference([5], 0, missing=1) == np.inf


def test_vectors_of_a_mixture_in_half_precision_may_differ(tmp_path):
    folders = [save(name, tmp_path / name) for name in ("mixtral", "bert")]
    assert [load_encoder(folder, compute_dtype="float16").outliers for folder in folders] == [0.01, 0.0]
