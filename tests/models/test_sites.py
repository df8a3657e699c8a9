"""Sites of many architectures against a plain run of transformers with hooks, one sentence at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from embstore.errors import ModelError
from embstore.models import load_encoder
from embstore.models.encoder import Spans, Tokenized
from tests.models import tiny
from tests.models.oracle import tokenize
from tests.models.tiny import KEYS, SENTENCES, byte_level, random_sentences, save

SITES = (
    *("residual", "attention_output", "head_output", "mlp_output"),
    *("query", "key", "value", "residual_mid", "neurons"),
)
OPT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32}
MORE: dict[str, Callable[[], tuple[Any, Tokenizer]]] = {
    "qwen2": lambda: tiny._of("Qwen2", byte_level(), **tiny._bert(**KEYS)),
    "qwen3": lambda: tiny._of("Qwen3", byte_level(), **tiny._bert(head_dim=16, **KEYS)),
    "gemma2": lambda: tiny._of(
        "Gemma2", byte_level(around=("<s>", "")), **tiny._bert(head_dim=8, attn_logit_softcapping=None, **KEYS)
    ),
    "opt": lambda: tiny._of("OPT", byte_level(around=("</s>", "")), max_position_embeddings=320, **OPT),
    "opt_post": lambda: tiny._of(
        "OPT", byte_level(around=("</s>", "")), max_position_embeddings=320, do_layer_norm_before=False, **OPT
    ),
    "granite": lambda: tiny._of("Granite", byte_level(), **tiny._bert(residual_multiplier=0.5, **KEYS)),
}

BERT = (
    "encoder.layer.{}.attention.output.dense",
    "encoder.layer.{}.output.dense",
    "encoder.layer.{}.attention.self.value",
)
LLAMA = ("layers.{}.self_attn.o_proj", "layers.{}.mlp", "layers.{}.self_attn.v_proj")
OPTS = ("decoder.layers.{}.self_attn.out_proj", "decoder.layers.{}.fc2", "decoder.layers.{}.self_attn.v_proj")
SHARED = "encoder.albert_layer_groups.0.albert_layers.0."
# the module whose input is the head output and whose output is the attention output, the MLP's, and that of the values
MODULES: dict[str, tuple[str, str, str]] = {
    "bert": BERT,
    "roberta": BERT,
    "electra": BERT,
    "distilbert": (
        "transformer.layer.{}.attention.out_lin",
        "transformer.layer.{}.ffn.lin2",
        "transformer.layer.{}.attention.v_lin",
    ),
    "albert": (SHARED + "attention.dense", SHARED + "ffn_output", SHARED + "attention.value"),
    "gpt2": ("h.{}.attn.c_proj", "h.{}.mlp.c_proj", ""),
    "gpt_neox": ("layers.{}.attention.dense", "layers.{}.mlp.dense_4h_to_h", ""),
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "modernbert": ("layers.{}.attn.Wo", "layers.{}.mlp.Wo", ""),
    "opt": OPTS,
    "opt_post": OPTS,
    "gemma2": ("layers.{}.self_attn.o_proj", "layers.{}.post_feedforward_layernorm", "layers.{}.self_attn.v_proj"),
    "t5": (
        "encoder.block.{}.layer.0.SelfAttention.o",
        "encoder.block.{}.layer.1.DenseReluDense",
        "encoder.block.{}.layer.0.SelfAttention.v",
    ),
}
BERT_READERS = ("encoder.layer.{}.intermediate", "encoder.layer.{}.output.dense")
LLAMA_READERS = ("layers.{}.post_attention_layernorm", "layers.{}.mlp.down_proj")
# the modules that are given the stream between attention and MLP, and the neurons
READERS: dict[str, tuple[str, str]] = {
    "bert": BERT_READERS,
    "roberta": BERT_READERS,
    "electra": BERT_READERS,
    "distilbert": ("transformer.layer.{}.ffn", "transformer.layer.{}.ffn.lin2"),
    "albert": (SHARED + "ffn", SHARED + "ffn_output"),
    "gpt2": ("h.{}.ln_2", "h.{}.mlp.c_proj"),
    "gpt_neox": ("", "layers.{}.mlp.dense_4h_to_h"),
    "llama": LLAMA_READERS,
    "mistral": LLAMA_READERS,
    "mixtral": ("layers.{}.post_attention_layernorm", ""),
    "qwen2": LLAMA_READERS,
    "qwen3": LLAMA_READERS,
    "modernbert": ("layers.{}.mlp_norm", "layers.{}.mlp.Wo"),
    "opt": ("decoder.layers.{}.final_layer_norm", "decoder.layers.{}.fc2"),
    "opt_post": ("decoder.layers.{}.fc1", "decoder.layers.{}.fc2"),
    "gemma2": ("layers.{}.pre_feedforward_layernorm", "layers.{}.mlp.down_proj"),
    "t5": ("encoder.block.{}.layer.1.layer_norm", "encoder.block.{}.layer.1.DenseReluDense.wo"),
}
NORMED = {"gemma2": "layers.{}.post_attention_layernorm"}  # whose output is added instead
ADDED = {"gpt2", "gpt_neox", "llama", "mistral", "mixtral", "qwen2", "qwen3", "modernbert", "opt", "gemma2", "t5"}
SCALED = {"opt", "opt_post"}  # the query is scaled before its product with the key
BIASED = {"t5"}
QUICK = ("bert", "llama")


class Plain:
    """A model run as transformers loads it, one sentence at a time, with hooks on modules named above."""

    def __init__(self, name: str, folder: Path) -> None:
        kind = transformers.T5EncoderModel if name == "t5" else transformers.AutoModel
        self.model = kind.from_pretrained(folder, attn_implementation="eager").eval()
        self.name, self.names, self.normed = name, MODULES[name], NORMED.get(name)

    @torch.inference_mode()
    def run(self, ids: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return each site [layer, position, feature], and the attention weights [layer, head, position, position]."""
        given: dict[str, list[torch.Tensor]] = {
            "attention_output": [],
            "head_output": [],
            "mlp_output": [],
            "value": [],
        }

        def after(site: str, args: tuple[Any, ...], result: Any) -> None:
            result = result[0] if isinstance(result, tuple) else result
            given[site].append(result.reshape(-1, result.shape[-1]))
            if site == "attention_output":
                given["head_output"].append(args[0].reshape(-1, args[0].shape[-1]))

        handles = []
        for site, path in zip(("attention_output", "mlp_output", "value"), self.names, strict=True):
            for name in dict.fromkeys(path.format(layer) for layer in range(3)) if path else ():
                module = self.model.get_submodule(name)
                handles.append(module.register_forward_hook(lambda _, a, r, site=site: after(site, a, r)))
        for site, path in zip(("residual_mid", "neurons"), READERS[self.name], strict=True):
            for name in dict.fromkeys(path.format(layer) for layer in range(3)) if path else ():
                read = given.setdefault(site, [])
                module = self.model.get_submodule(name)
                handles.append(
                    module.register_forward_pre_hook(
                        lambda _, a, read=read: read.append(a[0].reshape(-1, a[0].shape[-1]))
                    )
                )
        added: list[torch.Tensor] = []
        for layer in range(3) if self.normed else ():
            module = self.model.get_submodule(self.normed.format(layer))
            handles.append(module.register_forward_hook(lambda _, a, r: added.append(r[0])))
        out = self.model(torch.from_numpy(ids)[None], output_hidden_states=True, output_attentions=True)
        for handle in handles:
            handle.remove()
        given["attention_output"] = added or given["attention_output"]
        sites = {site: torch.stack(found).numpy() for site, found in given.items() if found}
        sites["residual"] = torch.cat(out.hidden_states).numpy()
        return sites, torch.cat(out.attentions).numpy()


class Case:
    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.plain = name, Plain(name, folder)
        self.encoder = load_encoder(folder)
        self.sentences = [sentence for sentence in (*SENTENCES, *random_sentences(9, seed=1)) if sentence]
        self.tokenized = tokenize(self.encoder, self.sentences)
        has = dict(zip(("residual_mid", "neurons"), READERS[name], strict=True))
        self.sites = tuple(site for site in SITES if has.get(site, site))
        every = {"layers": range(4), "pooling": "mean", "sites": self.sites}
        assert self.encoder.self_check(self.tokenized, **every) < 2e-5

    def subwords(self) -> Spans:
        """A span for each subword."""
        lengths = np.diff(self.tokenized.bounds)
        start = np.concatenate([np.arange(length) for length in lengths])
        return Spans(np.repeat(np.arange(len(lengths)), lengths), start, start + 1)

    def encode(self, spans: Spans, how: str) -> dict[str, np.ndarray]:
        self.encoder.use_batching(how)
        options = {"layers": range(4), "pooling": "mean", "batch_subwords": 256, "sites": self.sites}
        found: dict[str, np.ndarray] = {}
        for pooled in self.encoder.encode(self.tokenized, spans, **options):
            vectors = pooled.vectors.numpy()
            out = found.setdefault(pooled.site, np.full((len(vectors), len(spans.start), vectors.shape[2]), np.nan))
            out[:, pooled.rows] = vectors
        return found

    def expected(self, sentence: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The plain sites of the subwords of a sentence, and the attention among them."""
        begin, end = self.tokenized.bounds[sentence : sentence + 2]
        specials = self.encoder.network.tokenizer.specials
        ids = np.array([*specials.prefix, *self.tokenized.ids[begin:end], *specials.suffix], np.int64)
        own = slice(len(specials.prefix), len(specials.prefix) + end - begin)
        sites, weights = self.plain.run(ids)
        return {site: states[:, own] for site, states in sites.items()}, weights[:, :, own, own]


@pytest.fixture(
    scope="module", params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODULES]
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, made(request.param, tmp_path_factory.mktemp(request.param)))


def made(name: str, folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for other, make in MORE.items():
            patch.setitem(tiny.ARCHITECTURES, other, make)
        return save(name, folder)


def close(found: np.ndarray, expected: np.ndarray, *, within: float = 2e-5) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= within * max(1e-6, np.abs(expected).max())


@pytest.mark.parametrize("how", ["packed", "padded", "equal", "varlen"])
@pytest.mark.quick(1)
def test_sites_are_those_of_a_plain_run(case: Case, how: str) -> None:
    """Attention and MLP outputs, heads and values by hooks; query and key by the attention weights they give."""
    if how == "varlen" and case.name in BIASED:
        return  # its positions are biases of pairs
    spans = case.subwords()
    found = case.encode(spans, how)
    assert tuple(found) == case.sites
    assert set(case.encoder.network.sites.sizes) | {"residual"} == set(case.sites)
    assert {len(vectors) for vectors in found.values()} == {3, 4}
    bounds = case.tokenized.bounds
    for sentence in range(len(case.sentences)):
        expected, weights = case.expected(sentence)
        for site, states in expected.items():
            close(found[site][:, bounds[sentence] : bounds[sentence + 1]], states)
        if case.name not in BIASED and weights.shape[2] < 20:
            rows = slice(bounds[sentence], bounds[sentence + 1])
            check_weights(case, found["query"][:, rows], found["key"][:, rows], weights)


def test_few_spans_have_the_sites_of_all(case: Case) -> None:
    """Where the last block is not computed for all positions, its sites still are."""
    every, some = case.subwords(), slice(0, None, 11)
    few = Spans(*(part[some] for part in vars(every).values()))
    whole = case.encode(every, "packed")
    for site, vectors in case.encode(few, "packed").items():
        close(vectors, whole[site][:, some])


def check_weights(case: Case, query: np.ndarray, key: np.ndarray, weights: np.ndarray) -> None:
    """Compare the softmax of scores among words with the attention weights among words, scaled to sum to one."""
    n_heads, size = weights.shape[1], query.shape[2] // weights.shape[1]
    config = case.encoder.network.model.config
    scale = 1.0 if case.name in SCALED else getattr(config, "query_pre_attn_scalar", size) ** -0.5
    assert case.encoder.attention == {"head_size": size, "scaling": scale}
    for layer, head in np.ndindex(3, n_heads):
        group = head // (n_heads // (key.shape[2] // size))
        scores = query[layer, :, head * size : (head + 1) * size] @ key[layer, :, group * size : (group + 1) * size].T
        scores = scores * scale
        scores = np.where(weights[layer, head] > 0, scores, -np.inf)
        softmax = np.exp(scores - scores.max(1, keepdims=True))
        shares = weights[layer, head] / weights[layer, head].sum(1, keepdims=True)
        np.testing.assert_allclose(softmax / softmax.sum(1, keepdims=True), shares, atol=1e-4)


def test_the_output_of_each_block_follows_from_its_sites(case: Case) -> None:
    """By addition where norms come first; the last layer may be normed once more."""
    if case.name not in ADDED:
        return
    found = case.encode(case.subwords(), "packed")
    residual = found["residual"]
    for layer in (1, 2):
        between = residual[layer - 1] + found["attention_output"][layer - 1]
        close(between + found["mlp_output"][layer - 1], residual[layer], within=1e-4)


def test_words_are_pooled_alike_at_all_sites(case: Case) -> None:
    single, bounds = case.encode(case.subwords(), "packed"), case.tokenized.bounds
    stop = int(bounds[1])
    whole = case.encode(Spans(np.array([0]), np.array([0]), np.array([stop])), "packed")
    for site in case.sites:
        close(whole[site][:, 0], single[site][:, :stop].mean(1))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("deberta_v2", "attention interface is used 0 times, not once, in block 1 .DebertaV2Layer.; only the site"),
        pytest.param("xlnet", "its blocks were not found", marks=pytest.mark.slow),
        (
            "granite",
            "the output does not follow from the outputs of attention and MLP in block 1 .GraniteDecoderLayer.",
        ),
    ],
)
def test_other_structures_are_refused_by_name(name: str, reason: str, tmp_path: Path) -> None:
    encoder = load_encoder(made(name, tmp_path / "a-model"))
    assert encoder.site_sizes(["residual"]) == {"residual": 32}
    with pytest.raises(ModelError, match=f"sites of 'a-model' are not known: .*{reason}"):
        encoder.site_sizes(["residual", "query"])


def test_what_does_not_add_up_is_refused(tmp_path: Path) -> None:
    """The structure is found; the numbers are not those of it."""
    folder = made("llama", tmp_path / "model")
    for layer, path, reason in (
        (1, "self_attn.o_proj", "no module receives the output of the heads in block 2"),
        (2, "", "does not follow from the outputs of attention and MLP in block 3 .LlamaDecoderLayer."),
    ):
        encoder = load_encoder(folder)
        module = encoder.network.model.layers[layer].get_submodule(path)
        if path:
            module.register_forward_pre_hook(lambda _, args: (args[0] * 1.001,))
        else:
            module.register_forward_hook(lambda _, args, output: output * 1.001)
        with pytest.raises(ModelError, match=reason):
            encoder.site_sizes(["mlp_output"])


def test_vectors_without_context_have_no_other_site() -> None:
    encoder = load_encoder("random:5")
    with pytest.raises(ModelError, match="no site value: only the site residual"):
        encoder.site_sizes(["value"])
    assert isinstance(tokenize(encoder, [["a"]]), Tokenized)
