"""The logit lens against passes of the whole model and lenses written by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.analysis.lens import _measured
from embstore.errors import InvalidValueError, ModelError
from embstore.models.transformer.unembedding import load_unembedding
from tests.extraction.plans import plan_of
from tests.extraction.test_text import real_decoder
from tests.models.texts import kinds_of_text
from tests.models.tiny import LLAMA, byte_level, save

GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 320, "bos_token_id": 0, "eos_token_id": 2}
# A head that is tied, one with a bias, one that caps its logits, and two that scale them.
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "phi": ("Phi", LLAMA),
    "gemma2": ("Gemma2", LLAMA | {"head_dim": 8, "sliding_window": 24, "final_logit_softcapping": 5.0}),
    "granite": ("Granite", LLAMA | {"logits_scaling": 8.0}),
    "cohere": ("Cohere", LLAMA | {"logit_scale": 0.25}),
}
CASES = [*DECODERS, pytest.param("smollm2", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of decoders with a head, saved when they are first asked for."""

    def saved(name: str) -> Path:
        folder = tmp_path_factory.mktemp("models") / name
        return real_decoder(folder) if name == "smollm2" else save_decoder(folder, *DECODERS[name])

    return cache(saved)


def save_decoder(folder: Path, kind: str, options: dict[str, Any]) -> Path:
    config = getattr(transformers, f"{kind}Config")(vocab_size=400, **options)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * 0.3) if parameter.dim() > 1 else parameter.add_(drawn * 0.1)
    model.save_pretrained(folder)
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=byte_level(), model_input_names=["input_ids", "attention_mask"]).save_pretrained(folder)
    return folder


def store_of(texts: list[str], folder: Path, path: Path, **options: Any) -> es.Store:
    given = {"unit": "subword", "context": "document", "dtype": "float32"} | options
    return es.extract(plan_of(texts, model=folder, **given), path)


@torch.inference_mode()
def plain_logits(folder: Path, ids: list[int]) -> list[torch.Tensor]:
    """The logits of each layer, by a lens written for these architectures; of the last one those of the model."""
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    config, body = model.config, model.base_model
    output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    norm = next(getattr(body, name) for name in ("ln_f", "final_layernorm", "norm") if hasattr(body, name))
    logits = []
    for state in output.hidden_states[:-1]:
        own = model.lm_head(norm(state[0])) * (config.logit_scale if config.model_type == "cohere" else 1)
        own = own / getattr(config, "logits_scaling", 1)
        cap = getattr(config, "final_logit_softcapping", None)
        logits.append(own if cap is None else cap * torch.tanh(own / cap))
    return [*logits, output.logits[0]]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick(3)
def test_every_layer_is_read_as_the_model_reads_the_last(name: str, data: Path, decoders: Any, tmp_path: Path) -> None:
    folder, text = decoders(name), kinds_of_text(data)["python"][:300]
    store = store_of([text], folder, tmp_path / "x.zarr")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    found, expected = es.lens(store, top=3, model=folder), plain_logits(folder, ids)
    head = load_unembedding(folder, device=torch.device("cpu"), revision=None)
    assert found["layer"].to_list() == [layer for layer in store.layers for _ in ids]
    for layer, logits in zip(store.layers, expected, strict=True):
        states = torch.from_numpy(store.vectors(layers=layer))
        own = head.logits(states, normed=layer == store.layers[-1])
        scale = logits.abs().max()
        assert (own - logits).abs().max() < 2e-5 * scale
        part, p = found.filter(layer=layer), torch.softmax(logits.double(), 1).numpy()
        assert part["occurrence"].to_list() == list(range(len(ids)))
        assert part["token"].to_list() == ids
        assert part["next"].to_list() == [*ids[1:], None]
        true = p[np.arange(len(ids) - 1), ids[1:]]
        tolerance = 1e-4 * float(scale)  # an error e of a logit is one of e * p of its probability
        np.testing.assert_allclose(part["probability"].to_numpy()[:-1], true, rtol=tolerance, atol=1e-9)
        near = np.abs(np.log(p[:-1]) - np.log(true)[:, None]) < 2 * tolerance
        rank = part["rank"].to_numpy()[:-1]
        assert (
            (rank >= (p[:-1] > true[:, None]).sum(1) - near.sum(1)) & (rank <= (p[:-1] >= true[:, None]).sum(1))
        ).all()
        entropy = -(p * np.log2(np.maximum(p, 1e-300))).sum(1)
        np.testing.assert_allclose(part["entropy"].to_numpy(), entropy, rtol=1e-3, atol=1e-5)
        likely = np.array(part["top_probability"].to_list())
        np.testing.assert_allclose(likely, np.sort(p, 1)[:, ::-1][:, :3], rtol=tolerance, atol=1e-9)
        clear = np.flatnonzero(likely[:, 0] - likely[:, 1] > 1e-3)
        assert part["top"].list.first().gather(clear).to_list() == [tokenizer.decode([p[n].argmax()]) for n in clear]
    assert part.tail(1).select("rank", "probability").rows() == [(None, None)]


@pytest.mark.parametrize("context", ["sentence", "document", 16])
def test_the_next_subword_is_that_of_the_same_context(context: Any, decoders: Any, tmp_path: Path) -> None:
    folder, texts = decoders("gpt2"), ["The bank was closed. The cat sat on the mat!\n\nIt was warm.", "Rivers flow."]
    store = store_of(
        texts, folder, tmp_path / "x.zarr", context=context, min_left=4 if context == 16 else None, layers=2
    )
    index, ids = store.index, store.index.text.ids
    found = es.lens(store, model=folder)
    for row, own, following in found.select("occurrence", "token", "next").rows():
        at = int(index.subword_spans(np.array([row]))[0][0])
        if index.contexts is None:
            stop = index.text.subword_indptr[index.sentence[row] + 1]
        else:
            stop = index.contexts.stop[int(index.contexts.of_rows(np.array([row]))[0])]
        assert (own, following) == (ids[at], ids[at + 1] if at + 1 < stop else None)
    assert found["next"].null_count() == (len(index.text) if index.contexts is None else len(index.contexts.start))


def test_words_pooled_by_their_last_subword_are_those_rows(decoders: Any, tmp_path: Path) -> None:
    folder, text = decoders("gpt2"), ["Unbelievably, antidisestablishmentarianism matters at the bank."]
    subwords = es.lens(store_of(text, folder, tmp_path / "s.zarr"), model=folder)
    store = store_of(text, folder, tmp_path / "w.zarr", unit="word", pooling="last")
    words, last = es.lens(store, model=folder), store.index.subword_spans(np.arange(store.n_rows))[1] - 1
    assert store.index.subwords.max() > 1
    for layer in store.layers:
        expected = subwords.filter(layer=layer)[last.tolist()].drop("occurrence")
        own = words.filter(layer=layer).drop("occurrence")
        assert own.select("token", "next", "top").equals(expected.select("token", "next", "top"))
        np.testing.assert_allclose(own["entropy"], expected["entropy"], rtol=1e-4)
    mean = store_of(text, folder, tmp_path / "m.zarr", unit="word")
    with pytest.raises(InvalidValueError, match=r"rows are the mean of several subwords: store .*subwords = 1"):
        es.lens(mean, model=folder)
    some = es.lens(mean.select(where="subwords = 1", layers=[1]), model=folder)
    assert some["token"].to_list() == [t for t, n in zip(words["token"], store.index.subwords, strict=False) if n == 1]


def test_memory_changes_nothing_and_selections_are_kept(decoders: Any, tmp_path: Path) -> None:
    folder = decoders("gemma2")
    store = store_of(["The cat sat on the mat because it was warm."], folder, tmp_path / "x.zarr")
    whole = es.lens(store, layers=[-1, 0], model=folder)
    assert whole["layer"].unique(maintain_order=True).to_list() == [store.layers[-1], 0]
    done: list[int] = []
    with es.config(memory=1, progress=lambda n, total: done.append(n)):
        small = es.lens(store.select(layers=[-1, 0]), model=folder)
    assert done == list(range(1, 2 * store.n_rows + 1))
    for name in ("rank", "probability", "entropy"):
        np.testing.assert_allclose(small[name].drop_nulls(), whole[name].drop_nulls(), rtol=1e-4, atol=1e-7)
    turned = es.lens(store.select(rows=[3, 1], layers=0), model=folder)
    assert turned["occurrence"].to_list() == [3, 1]
    assert turned["next"].to_list() == whole.filter(layer=0)["next"].gather([3, 1]).to_list()


def test_equal_logits_share_a_rank_and_entropy_is_in_bits() -> None:
    logits = torch.tensor([[1.0, 3, 3, 3, 0], [0, 0, 0, 0, 0], [-torch.inf, 0, 0, -torch.inf, -torch.inf]])
    found = _measured(logits, torch.tensor([2, 4, 1]), 2)
    assert found["rank"].tolist() == [1, 2, 0.5]
    assert found["entropy"][1:].tolist() == pytest.approx([np.log2(5), 1])
    assert found["probability"][1:].tolist() == pytest.approx([0.2, 0.5])


def test_what_has_no_lens_is_refused(decoders: Any, tmp_path: Path) -> None:
    text, gpt2, bert, llama = ["The bank was closed."], decoders("gpt2"), tmp_path / "bert", tmp_path / "llama"
    transformers.BertForMaskedLM(transformers.AutoConfig.from_pretrained(save("bert", bert))).save_pretrained(bert)
    save("llama", llama)  # without a head
    for name, folder, says in (
        ("b", bert, "both directions"),
        ("l", llama, "no language modeling head.*lm_head.weight"),
    ):
        with pytest.raises(ModelError, match=says):
            es.lens(store_of(text, folder, tmp_path / f"{name}.zarr"), model=folder)
    sites = store_of(text, gpt2, tmp_path / "s.zarr", sites=["residual", "value"])
    special = store_of(text, bert, tmp_path / "c.zarr", specials=True, context="sentence")
    random = store_of(text, "random:8", tmp_path / "r.zarr", unit="word", context="sentence")  # type: ignore[arg-type]
    for data, options, says in (
        (sites.site("value"), {}, "not the site value"),
        (sites, {"top": 401}, "top 401 is more than the 400 subwords"),
        (special, {}, "select where special is null"),
        (random, {}, "are no subwords of a model|predicts no subword"),
    ):
        with pytest.raises(InvalidValueError, match=says):
            es.lens(data, model=gpt2, **options)
    with pytest.raises(ModelError, match="than the model 'gpt2' that made"):
        es.lens(sites, model=decoders("phi"))
