"""Every architecture against a plain script: batching, layers, pooling, spans, cuts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embstore.errors import InvalidValueError
from embstore.models import load_encoder
from embstore.models.encoder import Spans
from tests.models.oracle import PlainScript, gather, relative_error, word_spans
from tests.models.tiny import ARCHITECTURES, SENTENCES, random_sentences, save

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
        self.tokenized = self.encoder.tokenize(self.sentences)
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
    assert case.encoder.network.takes_varlen == (case.name not in MASKED)
    assert case.encoder.network.packed_nbytes > 0


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
        for block in case.encoder.network.fast_tap.blocks
    ]
    passes = len(list(case.encoder.encode(case.tokenized, spans, layers=(1,), pooling="mean", batch_subwords=512)))
    for handle in handles:
        handle.remove()
    assert case.encoder.network.fast_tap.blocks
    assert len(reached) == passes


def test_batch_size_and_order_change_only_the_last_bits(case):
    spans, names = word_spans(case.tokenized)
    full = case.encode(spans)
    assert np.array_equal(full, case.encode(spans))
    assert relative_error(case.encode(spans, batch_subwords=64), full) < 2e-5
    turned = case.encoder.tokenize(case.sentences[::-1])
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
    long = case.encoder.tokenize([["cat", "bank"] * 400, ["river"]])
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
    whole = len(case.encoder.tokenize([(["cat", "bank"] * 400)[:words]]).ids) == limit
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
        {"layers": (-1,)},
        {"layers": (1, 1)},
        {"attention_window": -1},
        *({"spans": wrong} for wrong in ((0, 0, 0), (0, 2, 1), (0, -2, 1), (0, 0, 10_000), (9_999, 0, 1), (-1, 0, 1))),
    ],
)
@pytest.mark.quick(5)
def test_wrong_arguments_are_refused(options, bert):
    tokenized = bert.tokenize(SENTENCES)
    spans, _ = word_spans(tokenized)
    if "spans" in options:
        spans = Spans(*(np.array([value], np.int64) for value in options["spans"]))
    arguments = {"layers": (0,), "pooling": "mean", "batch_subwords": 512, **options}
    arguments.pop("spans", None)
    with pytest.raises(InvalidValueError):
        bert.encode(tokenized, spans, **arguments)
