"""Models that give their blocks padded sentences, and models that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from embstore.errors import ModelError
from embstore.models import load_encoder
from embstore.models.checkpoint import reason
from tests.models import tiny
from tests.models.oracle import gather, relative_error, word_spans

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
    encoder = load_encoder(saved(tmp_path, monkeypatch, kind, **options))
    tokenized = encoder.tokenize(tiny.SENTENCES)
    encoder.self_check(tokenized, layers=range(4), pooling="first")
    spans, names = word_spans(tokenized)
    passes = encoder.encode(tokenized, spans, layers=range(4), pooling="first", batch_subwords=256)
    vectors = gather(passes, spans, 4, 32)
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    model = model.get_encoder() if kind == "LED" else model
    for sentence in range(len(tiny.SENTENCES)):
        start, stop = tokenized.sentence_bounds[sentence : sentence + 2]
        ids = [*encoder.special_ids[0], *tokenized.ids[start:stop].tolist(), *encoder.special_ids[1]]
        given = torch.tensor([ids])
        with torch.inference_mode():
            states = model(input_ids=given, attention_mask=torch.ones_like(given), output_hidden_states=True)
        expected = torch.cat(states.hidden_states).numpy()
        rows = [row for row, (of, _) in enumerate(names) if of == sentence]
        assert relative_error(vectors[:, rows], expected[:, 1 + spans.start[rows]]) < 2e-5


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
        (encoder := load_encoder(folder)).self_check(encoder.tokenize(tiny.SENTENCES), layers=[1], pooling="mean")


def test_an_error_that_is_a_key_names_its_kind() -> None:
    assert reason(KeyError(2)) == "KeyError: 2"  # of Zamba2, where two lists of its config contradict each other
    assert reason(ValueError()) == "ValueError"
    assert reason(ValueError("a\nb")) == "a b"
