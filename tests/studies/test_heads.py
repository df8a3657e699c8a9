"""Disabled heads, their importance and pruning, against plain passes of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import transformers
from transformers.masking_utils import eager_mask

import embstore as es
from embstore.errors import EmbstoreError, ModelError
from embstore.models import load_encoder
from embstore.models.encoder import Spans
from embstore.models.transformer.heads import Replay, find_heads
from embstore_studies.finetuning.examples import FineTuneExample
from embstore_studies.finetuning.finetune import FineTuned, finetune
from embstore_studies.finetuning.settings import FineTuneSettings
from embstore_studies.finetuning.training import accuracy, entity_scores
from embstore_studies.heads.measure import disable_heads, head_importance, prune_heads
from embstore_studies.heads.network import HeadNetwork, Sentences
from embstore_studies.heads.scores import effects
from tests.models.test_sites import MODULES, made
from tests.models.tiny import random_sentences
from tests.studies.finetuning import planted

HEADS = [(1, 2), (3, 0), (3, 1)]
QUICK = ("bert", "gpt2", "llama")
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in (*QUICK, "t5", "albert")]


@contextmanager
def scaled(base: Any, name: str, heads: Sequence[tuple[int, int]], by: float, size: int) -> Iterator[None]:
    """Multiply what the output projections receive from heads, by hooks on modules named in a list."""
    path, calls = MODULES[name][0], [0]

    def change(_: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        calls[0] += 1
        states = args[0].clone()
        for _, head in [each for each in heads if each[0] == calls[0]]:
            states[..., head * size : (head + 1) * size] *= by
        return (states,)

    modules = {base.get_submodule(path.format(layer)) for layer in range(3)}
    handles = [module.register_forward_pre_hook(change) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def uniform_attention(heads: Sequence[tuple[int, int]]) -> Callable[..., Any]:
    """Attention in steps, in which some heads have the same probability for every position that is not masked."""
    calls = [0]

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, position_bias: Any = 0, **_: Any
    ) -> Any:
        calls[0] += 1
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        mask = torch.zeros(1) if mask is None else mask
        scores = query @ key.transpose(2, 3) * scaling + position_bias + mask
        allowed = (torch.zeros_like(scores) + mask > -1e9).float()
        weights = scores.softmax(-1)
        for _, head in [each for each in heads if each[0] == calls[0]]:
            weights[:, head] = allowed[:, head] / allowed[:, head].sum(-1, keepdim=True)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return attend


@contextmanager
def attending(model: Any, attend: Callable[..., Any]) -> Iterator[None]:
    transformers.AttentionInterface.register("embstore_test_uniform", attend)
    transformers.AttentionMaskInterface.register("embstore_test_uniform", eager_mask)
    before = model.config._attn_implementation
    model.config._attn_implementation = "embstore_test_uniform"
    try:
        yield
    finally:
        model.config._attn_implementation = before


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
@pytest.mark.quick(1)
def test_disabled_heads_are_those_of_a_plain_pass(name: str, tmp_path: Path) -> None:
    kind = transformers.T5EncoderModel if name == "t5" else transformers.AutoModel
    model = kind.from_pretrained(made(name, tmp_path / "model")).eval()
    model.config.use_cache = False
    ids = torch.arange(10, 34)[None]
    sites = find_heads(model, model, {"input_ids": ids}, name="model")
    assert (sites.n_heads, sites.tap.num_hidden_layers) == (4, 3)
    batch = {"input_ids": torch.stack([ids[0, :9], ids[0, 9:18]]), "attention_mask": torch.ones(2, 9).long()}
    batch["attention_mask"][1, 6:] = 0
    replay, real = Replay(sites, model, batch), batch["attention_mask"].bool()
    size = sites.sizes["head_output"] // 4
    for heads in ([HEADS[0]], HEADS[1:], [*HEADS, (2, 3)], [(layer, head) for layer in (1, 2, 3) for head in range(4)]):
        with scaled(model, name, heads, 0.0, size):
            zero = model(**batch)[0]
        with attending(model, uniform_attention(heads)):
            uniform = model(**batch)[0]
        for how, expected in (("zero", zero), ("uniform", uniform)):
            torch.testing.assert_close(replay.without(heads, how)[real], expected[real], atol=2e-5, rtol=2e-5)
            assert not torch.allclose(expected[real], replay.plain[real], atol=1e-3)
    assert torch.equal(replay.without([], "zero"), model(**batch)[0])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick(1)
def test_vectors_without_heads_are_those_of_a_plain_pass(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path / "model")
    kind = transformers.T5EncoderModel if name == "t5" else transformers.AutoModel
    plain, encoder = kind.from_pretrained(folder).eval(), load_encoder(folder)
    tokenized, whole = encoder.tokenize(random_sentences(4, seed=3)), encoder.info
    bounds = tokenized.sentence_bounds
    start = np.concatenate([np.arange(length) for length in np.diff(bounds)])
    spans = Spans(np.repeat(np.arange(4), np.diff(bounds)), start, start + 1)
    every: dict[str, Any] = {"layers": range(4), "pooling": "mean", "sites": ("residual", "head_output")}
    for how in ("zero", "uniform"):
        encoder.disable_heads(HEADS, how=how)
        assert encoder.self_check(tokenized, **every) < 2e-5
        found = {site: np.zeros((4, len(start), 32)) for site in every["sites"]}
        for pooled in encoder.encode(tokenized, spans, batch_subwords=40, **every):
            found[pooled.site][4 - len(pooled.vectors) :, pooled.rows] = pooled.vectors.numpy()
        for sentence in range(4):
            ids, _ = encoder.network.tokenizer.specials.around(tokenized.ids[bounds[sentence] : bounds[sentence + 1]])
            change = (
                attending(plain, uniform_attention(HEADS)) if how == "uniform" else scaled(plain, name, HEADS, 0, 8)
            )
            with torch.inference_mode(), change:
                states = plain(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
            own = slice(encoder.n_before, encoder.n_before + bounds[sentence + 1] - bounds[sentence])
            expected = torch.cat(states)[:, own].numpy()
            rows = found["residual"][:, bounds[sentence] : bounds[sentence + 1]]
            np.testing.assert_allclose(rows, expected, atol=2e-5 * np.abs(expected).max())
        if how == "zero":
            assert not found["head_output"][1][:, 16:24].any()
            assert found["head_output"][2].any()
        assert encoder.info.weights_sha256 != whole.weights_sha256
        assert encoder.info.name == f"model without 3 heads ({how})"
    encoder.disable_heads([])
    assert encoder.info == whole
    for heads in ([(4, 0)], [(0, 1)], [(1, 4)]):
        with pytest.raises(es.errors.InvalidValueError, match="head"):
            encoder.disable_heads(heads)


def test_blocks_below_a_disabled_head_are_not_run_again(tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(made("bert", tmp_path / "model")).eval()
    given = {"input_ids": torch.arange(10, 34)[None]}
    with torch.inference_mode():
        replay = Replay(find_heads(model, model, given, name="model"), model, given)
        ran: list[int] = []
        for layer in range(3):
            model.encoder.layer[layer].output.register_forward_hook(lambda *_, layer=layer: ran.append(layer + 1))
        replay.without([(2, 0), (3, 1)], "zero")
        assert ran == [2, 3]
        replay.without([(3, 1)], "uniform")
        assert ran == [2, 3, 3]


@pytest.mark.parametrize("name", ["deberta_v2", pytest.param("xlnet", marks=pytest.mark.slow)])
def test_models_without_known_heads_are_refused_by_name(name: str, tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(made(name, tmp_path / "a-model")).eval()
    with (
        torch.inference_mode(),
        pytest.raises(ModelError, match=r"^the heads of 'a-model' cannot be disabled: .*block"),
    ):
        find_heads(model, model, {"input_ids": torch.arange(10, 34)[None]}, name="a-model")


def tune(task: str, folder: Path) -> FineTuned:
    data = planted.folder(folder / "data", task, train=30, dev=10)
    settings = FineTuneSettings(epochs=2, batch_size=10, learning_rate=4e-3)
    model = planted.model(folder / "model")
    return finetune(data, task=task, model=model, out=folder / "tuned", settings=settings, device="cpu")


@pytest.fixture(scope="module")
def ner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tune("ner", tmp_path_factory.mktemp("ner")).path.parent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tune("paraphrase", tmp_path_factory.mktemp("pair")).path.parent


class Plain:
    """A fine-tuned BERT run by transformers one sentence at a time, in float64."""

    def __init__(self, folder: Path) -> None:
        kinds = transformers.AutoModelForTokenClassification
        self.network = kinds.from_pretrained(folder / "tuned", dtype=torch.float64).eval()
        self.examples, self.names = HeadNetwork(folder / "tuned", torch.device("cpu")).tuned.examples(
            next((folder / "data").glob("dev.*"))
        )

    @torch.inference_mode()
    def logits(self, example: FineTuneExample, heads: Sequence[tuple[int, int]], by: float = 0.0) -> torch.Tensor:
        """Return the logits at the labelled positions."""
        inputs = {"input_ids": torch.from_numpy(example.ids)[None], "token_type_ids": torch.from_numpy(example.types)}
        inputs["token_type_ids"] = inputs["token_type_ids"][None]
        with scaled(self.network.base_model, "bert", heads, by, 8):
            return self.network(**inputs).logits[0][torch.from_numpy(example.labels != -100)]

    def score(self, heads: Sequence[tuple[int, int]], metric: str) -> float:
        gold, predicted = [], []
        for example in self.examples.examples:
            gold.append([self.names[number] for number in example.labels if number != -100])
            predicted.append([self.names[number] for number in self.logits(example, heads).argmax(-1)])
        return accuracy(gold, predicted) if metric == "accuracy" else entity_scores(gold, predicted)["f1"]

    def loss(self, example: FineTuneExample, heads: Sequence[tuple[int, int]], by: float) -> float:
        labels = torch.from_numpy(example.labels[example.labels != -100])
        return float(torch.nn.functional.cross_entropy(self.logits(example, heads, by), labels))


@pytest.mark.parametrize("task", ["ner", pytest.param("pair", marks=pytest.mark.slow)])
def test_scores_with_disabled_heads_are_those_of_plain_passes(task: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(task)
    plain, dev = Plain(folder), next((folder / "data").glob("dev.*"))
    frame = disable_heads(dev, model=folder / "tuned", how="zero", resamples=50)
    assert frame["metric"].unique().to_list() == ["f1" if task == "ner" else "accuracy"]
    assert frame.height == 1 + 12 + 3
    for row in frame[[0, 1, 7, 14]].to_dicts():
        every = [(layer, head) for layer in (1, 2, 3) for head in range(4)]
        heads = [each for each in every if each[0] == row["layer"] and row["head"] in (None, each[1])]
        assert row["value"] == pytest.approx(plain.score(heads, row["metric"]))
        assert row["effect"] == pytest.approx(row["value"] - frame["value"][0])
    assert frame["count"][0] == plain.examples.n_labels


def test_importance_is_the_difference_of_losses_by_a_weight_of_each_head(ner: Path) -> None:
    plain = Plain(ner)
    frame = head_importance(ner / "data" / "dev.conll", model=ner / "tuned", resamples=20)
    found = frame["raw"].to_numpy().reshape(3, 4)
    for layer, head in [(1, 0), (2, 3), (3, 1)]:
        changes = [
            plain.loss(each, [(layer, head)], 1 + 1e-4) - plain.loss(each, [(layer, head)], 1 - 1e-4)
            for each in plain.examples.examples
        ]
        assert found[layer - 1, head] == pytest.approx(np.abs(changes).mean() / 2e-4, rel=1e-3)
    wanted = found / np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(frame["value"].to_numpy().reshape(3, 4), wanted)
    assert (frame["low"] < frame["high"]).all()
    assert frame["count"].to_list() == [len(plain.examples.examples)] * 12
    alone = head_importance(ner / "data" / "dev.conll", model=ner / "tuned", resamples=20, n_sentences=1)
    assert alone["low"].null_count() == alone["high"].null_count() == 12


@pytest.mark.slow
def test_pruning_ends_with_all_heads_disabled(pair: Path) -> None:
    dev, tuned = pair / "data" / "dev.tsv", pair / "tuned"
    importance = head_importance(pair / "data" / "train.tsv", model=tuned, resamples=0)
    frame = prune_heads(dev, model=tuned, importance=importance, seeds=(3, 4), resamples=50)
    plain, every = Plain(pair), [(layer, head) for layer in (1, 2, 3) for head in range(4)]
    assert frame.height == 33
    for (order, seed), part in frame.group_by("order", "seed", maintain_order=True):
        assert part["n_disabled"].to_list() == [0, 1, 2, 4, 5, 6, 7, 8, 10, 11, 12]
        assert part["share"][-1] == 1
        assert part["value"][0] == pytest.approx(plain.score([], "accuracy"))
        assert part["value"][-1] == pytest.approx(plain.score(every, "accuracy"))
        heads = importance.sort("value").select("layer", "head").rows()
        if order == "random":
            heads = np.random.default_rng(seed).permutation(np.array(every)).tolist()
        for size in (1, 4, 7):
            row = part.filter(n_disabled=size).row(0, named=True)
            assert row["value"] == pytest.approx(plain.score([tuple(head) for head in heads[:size]], "accuracy"))


def test_the_least_important_are_pruned_and_clear_effects_leave_out_zero(
    ner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are made up: without the first head fewer are right, without the second more, the others change none."""
    given: list[list[tuple[int, int]]] = []

    def counts(self: HeadNetwork, sentences: Sentences, variants: Any, how: str, report: Any) -> np.ndarray:
        given.extend(list(heads) for heads in variants)
        right = np.full((len(variants), 50), 20)
        right[1] -= np.arange(50) % 4
        right[2] += np.arange(50) % 3
        return np.stack([right, np.full_like(right, 40), np.full_like(right, 40)], -1)

    monkeypatch.setattr(HeadNetwork, "counts", counts)
    dev, every = ner / "data" / "dev.conll", [(layer, head) for layer in (1, 2, 3) for head in range(4)]
    frame = disable_heads(dev, model=ner / "tuned", resamples=100)
    assert frame["clear"].to_list() == [False, True, True, *[False] * 13]
    assert frame["high"][1] < 0 < frame["low"][2]
    assert given == [[], *([head] for head in every), *([(layer, head) for head in range(4)] for layer in (1, 2, 3))]
    given.clear()
    values = np.random.default_rng(1).permutation(12) / 12
    layers, heads = zip(*every, strict=True)
    importance = pl.DataFrame({"layer": layers, "head": heads, "value": values})
    prune_heads(dev, model=ner / "tuned", importance=importance, seeds=[], resamples=10)
    assert given[5] == [every[index] for index in np.argsort(values)[:5]]
    assert given[-1] == [every[index] for index in np.argsort(values)]


@pytest.mark.slow
def test_intervals_hold_for_all_heads_together() -> None:
    """Of heads that change labels at random, hardly a run has one whose effect is called clear; a real one is."""
    draws = np.random.default_rng(0)
    n_false = n_true = 0
    for seed in range(20):
        right = np.stack([draws.binomial(10, 0.9, 200) for _ in range(40)] + [draws.binomial(10, 0.7, 200)])
        whole = draws.binomial(10, 0.9, 200)
        rows = np.concatenate([whole[None], right])
        counts = np.stack([rows, np.full_like(rows, 10), np.full_like(rows, 10)], -1)
        effect, low, high = effects(counts, resamples=200, seed=seed)
        assert effect[5] == pytest.approx(rows[5].sum() / 2000 - whole.sum() / 2000)
        clear = (low > 0) | (high < 0)
        n_false += bool(clear[1:-1].any())
        n_true += bool(clear[-1])
    assert n_true == 20
    assert n_false <= 5


def test_an_effect_that_samples_cannot_vary_has_no_interval() -> None:
    counts = np.array([[[3, 4, 4]], [[2, 4, 4]], [[3, 4, 4]]])
    effect, low, high = effects(counts, resamples=10, seed=0)
    assert effect.tolist() == [0, -0.25, 0]
    assert np.isnan([low, high]).all(), "a single sentence says nothing of others"
    effect, low, high = effects(counts.repeat(2, axis=1), resamples=10, seed=0)
    assert effect.tolist() == [0, -0.25, 0]
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True, False]


def test_batches_hold_every_sentence_once_and_are_bounded() -> None:
    lengths = sorted(len(sentence) + 1 for sentence in random_sentences(40, seed=2))
    examples = [FineTuneExample(*(np.full(length, number) for _ in range(4))) for number, length in enumerate(lengths)]
    batches = list(Sentences(examples, []).batches(30))
    assert [example.ids[0] for batch in batches for example in batch] == list(range(40))
    assert all(len(batch) == 1 or len(batch) * len(batch[-1].ids) <= 30 for batch in batches)
    assert len(batches) < 40


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("model", "model has no finetuning.json: give the folder that finetune has written"),
        ("data", "no corpus at"),
        ("sentences", "sentences 0 is not allowed"),
        ("resamples", "resamples -1 is not allowed"),
        ("how", "half"),
        ("importance", "must have each of 12 heads of 'tuned' once, it has 11 rows"),
        ("columns", "the importance of heads"),
    ],
)
def test_bad_input_is_refused_in_one_line(case: str, says: str, ner: Path) -> None:
    dev, tuned = ner / "data" / "dev.conll", ner / "tuned"
    grid = pl.DataFrame({"layer": [1, 2, 3], "value": [0.0, 1.0, 2.0]}).join(
        pl.DataFrame({"head": range(4)}), how="cross"
    )
    calls: dict[str, Callable[[], Any]] = {
        "model": lambda: disable_heads(dev, model=ner / "model"),
        "data": lambda: head_importance(ner / "gone.conll", model=tuned),
        "sentences": lambda: disable_heads(dev, model=tuned, n_sentences=0),
        "resamples": lambda: disable_heads(dev, model=tuned, resamples=-1),
        "how": lambda: disable_heads(dev, model=tuned, how="half"),
        "importance": lambda: prune_heads(dev, model=tuned, importance=grid[:11]),
        "columns": lambda: prune_heads(dev, model=tuned, importance=grid.drop("value")),
    }
    with pytest.raises(EmbstoreError) as refused:
        calls[case]()
    assert says in str(refused.value)
