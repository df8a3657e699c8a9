"""States in a store are those that TransformerLens, nnsight and SAELens give, where they are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from tests.models import tiny

pytestmark = pytest.mark.slow
TEXT, N_LAYERS, SIZE = "The cat sat because the river was warm, and people need the old hill.", 3, 8
SITES = ("residual", "residual_mid", "attention_output", "mlp_output", "head_output")
SITES += ("query", "key", "value", "neurons")
HOOKS = ("hook_resid_post", "hook_resid_mid", "hook_attn_out", "hook_mlp_out", "attn.hook_z")
HOOKS += ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_v", "mlp.hook_post")


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def store(model: Path, tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    options = {"unit": "subword", "context": "document", "begin": "none", "dtype": "float32", "sites": ",".join(SITES)}
    plan = es.plan([TEXT], model=model, options=es.ExtractionOptions(**options))  # type: ignore[arg-type]
    return es.extract(plan, tmp_path_factory.mktemp("stores") / "x.zarr")


def loaded(model: Path) -> tuple[Any, Any, torch.Tensor]:
    """Return the model and its tokenizer as transformers loads them, and the ids of the text."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    return network, tokenizer, torch.tensor([tokenizer(TEXT, add_special_tokens=False)["input_ids"]])


def check(store: es.Store, site: str, layer: int, found: torch.Tensor) -> None:
    stored = store.site(site).vectors(layers=layer)
    theirs = found.detach().reshape(len(stored), -1).numpy()
    np.testing.assert_allclose(stored, theirs, rtol=0, atol=2e-5 * np.abs(theirs).max(), err_msg=f"{site} {layer}")


def test_transformerlens(model: Path, store: es.Store) -> None:
    bridges = pytest.importorskip("transformer_lens.model_bridge", reason="TransformerLens 3 or later is not installed")
    network, tokenizer, ids = loaded(model)
    bridge = bridges.TransformerBridge.boot_transformers(str(model), hf_model=network, tokenizer=tokenizer)
    with torch.no_grad():
        cache = bridge.run_with_cache(ids)[1]
    check(store, "residual", 0, cache["hook_embed"] + dict(cache).get("hook_pos_embed", 0))
    for site, hook in zip(SITES, HOOKS, strict=True):
        for layer in range(1, N_LAYERS + (site != "residual")):  # the last one is stored after the final norm
            name = f"blocks.{layer - 1}.{hook}"
            check(store, site, layer, cache[name if name in cache else name.replace("rot_", "")])


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_nnsight(model: Path, store: es.Store) -> None:
    nnsight = pytest.importorskip("nnsight", reason="nnsight is not installed")
    network, _, ids = loaded(model)
    traced, saved = nnsight.NNsight(network), dict[tuple[str, int], Any]()
    with traced.trace(ids):
        saved["residual", 0] = traced.model.embed_tokens.output.save()
        for number, block in enumerate(traced.model.layers, 1):
            saved["value", number] = block.self_attn.v_proj.output.save()
            saved["head_output", number] = block.self_attn.o_proj.input.save()
            saved["attention_output", number] = block.self_attn.output[0].save()
            saved["residual_mid", number] = block.post_attention_layernorm.input.save()
            saved["neurons", number] = block.mlp.down_proj.input.save()
            saved["mlp_output", number] = block.mlp.output.save()
            saved["residual", number] = block.output.save()
    assert len(saved) == 7 * N_LAYERS + 1
    for (site, layer), found in saved.items():
        if (site, layer) != ("residual", N_LAYERS):
            check(store, site, layer, found)


def test_saelens(model: Path, store: es.Store, tmp_path: Path) -> None:
    """Its encoder's values are those of directions with a bias, and documents are packed alike."""
    saes: Any = pytest.importorskip("sae_lens", reason="SAELens is not installed")
    sae = saes.StandardSAE(saes.StandardSAEConfig(d_in=store.hidden_size, d_sae=20, apply_b_dec_to_input=False))
    torch.nn.init.normal_(sae.b_enc)
    with torch.no_grad():
        batches = store.select(layers=2).to_torch(batch_size=4)
        theirs = torch.cat([sae.encode(batch.vectors) for batch in batches]).numpy()
    found = es.activations(store, sae.W_enc.T.detach().numpy(), bias=sae.b_enc.detach().numpy(), layers=2, k=1)
    np.testing.assert_allclose(np.maximum(found.summary["highest"], 0), theirs.max(0), atol=1e-4)
    np.testing.assert_allclose(found.summary["share"], (theirs > 0).mean(0))
    tokenizer = loaded(model)[1]
    tokenizer.bos_token = tokenizer.convert_ids_to_tokens(5)
    tokenizer.save_pretrained(model)
    given = [torch.tensor(ids) for ids in tokenizer([TEXT, TEXT[9:], TEXT[4:]], add_special_tokens=False)["input_ids"]]
    packing = {"begin_batch_token_id": 5, "sequence_separator_token_id": 5}
    packed = saes.tokenization_and_batching.concat_and_batch_sequences(iter(given), SIZE, **packing)
    options = es.ExtractionOptions.like("saelens", context=SIZE, layers=0)
    plan = es.plan([es.corpus.Document(text) for text in (TEXT, TEXT[9:], TEXT[4:])], model=model, options=options)
    stream = es.extract(plan, tmp_path / "packed.zarr").index.text.ids.tolist()
    blocks = [[5, *stream[at : at + SIZE - 1]] for at in range(0, len(stream), SIZE - 1)]
    assert [block.tolist() for block in packed] == [block for block in blocks if len(block) == SIZE]
