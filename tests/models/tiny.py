"""Tiny models with random weights, and tokenizers trained on a few sentences, saved as a user would find them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, processors

TEXT = """\
The bank of the river was steep , and the old bank on the hill was closed .
She didn't deposit 1,234 dollars at the bank .
Unbelievably , antidisestablishmentarianism matters .
No
Café naïve Straße résumé 日本語 — “ quoted ” … ok !
a b c d e f g h i j k l m n o p q r s t u v w x y z
the cat sat on the mat because the mat was warm and the cat was cold
Rivers flow to the sea ; banks lend money to people who need it .
"""
SENTENCES = [line.split() for line in TEXT.splitlines()]
VOCABULARY = 400


def _saved(name: str) -> Tokenizer:
    """Return a tokenizer of up to 400 subwords that was trained on `SENTENCES` (training again gives another one)."""
    tokenizer = Tokenizer.from_file(str(Path(__file__).parent / "tokenizers" / f"{name}.json"))
    # what a published tokenizer.json may carry, and what must not reach us
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = _saved("wordpiece")
    _around(tokenizer, "[CLS] $A [SEP]", ["[CLS]", "[SEP]"])
    return tokenizer


def byte_level(*, around: tuple[str, str] | None = None) -> Tokenizer:
    tokenizer = _saved("byte_level")
    if around:
        _around(tokenizer, f"{around[0]} $A {around[1]}".strip(), [piece for piece in around if piece])
    return tokenizer


def unigram(template: str, *specials: str) -> Tokenizer:
    tokenizer = _saved("unigram")
    _around(tokenizer, template, list(specials))
    return tokenizer


def _around(tokenizer: Tokenizer, template: str, specials: list[str]) -> None:
    known = [(piece, tokenizer.token_to_id(piece)) for piece in specials]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=known)


def _of(kind: str, tokenizer: Tokenizer, **options: Any) -> tuple[Any, Tokenizer]:
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **options)
    return getattr(transformers, "T5EncoderModel" if kind == "T5" else f"{kind}Model")(config), tokenizer


def _bert(**other: Any) -> dict[str, Any]:
    """The options of BERT, as most architectures call them."""
    options = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    return options | {"max_position_embeddings": 320, "pad_token_id": 0} | other


def _cls_sep() -> Tokenizer:
    return unigram("[CLS] $A [SEP]", "[CLS]", "[SEP]")


KEYS = {"num_key_value_heads": 2}
EXPERTS = KEYS | {"num_experts_per_tok": 2}
DEBERTA = {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"], "conv_act": "gelu"}
DEBERTA |= {"position_biased_input": False, "norm_rel_ebd": "layer_norm", "share_att_key": True, "conv_kernel_size": 3}
QWEN = EXPERTS | {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
MODERNBERT = {"local_attention": 16, "global_attn_every_n_layers": 2, "pad_token_id": 1}
MODERNBERT |= {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}

ARCHITECTURES: dict[str, Callable[[], tuple[Any, Tokenizer]]] = {
    "bert": lambda: _of("Bert", wordpiece(), **_bert()),
    "roberta": lambda: _of(
        "Roberta",
        byte_level(around=("<s>", "</s>")),
        **_bert(pad_token_id=1, max_position_embeddings=322, type_vocab_size=1),
    ),
    "distilbert": lambda: _of(
        "DistilBert", wordpiece(), dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=320
    ),
    "albert": lambda: _of("Albert", _cls_sep(), **_bert(embedding_size=16, num_hidden_groups=1)),
    "electra": lambda: _of("Electra", wordpiece(), **_bert(embedding_size=16)),
    "deberta_v2": lambda: _of("DebertaV2", _cls_sep(), **_bert(type_vocab_size=0, **DEBERTA)),
    "xlnet": lambda: _of(
        "XLNet",
        unigram("$A:0 <sep>:0 <cls>:2", "<sep>", "<cls>"),
        d_model=32,
        n_layer=3,
        n_head=4,
        d_inner=48,
        pad_token_id=5,
    ),
    "mpnet": lambda: _of("MPNet", byte_level(around=("<s>", "</s>")), **_bert()),  # its padding is 1 whatever it says
    "gpt2": lambda: _of(
        "GPT2", byte_level(), n_embd=32, n_layer=3, n_head=4, n_positions=320, bos_token_id=0, eos_token_id=2
    ),
    "gpt_neox": lambda: _of("GPTNeoX", byte_level(), **_bert()),
    "llama": lambda: _of("Llama", byte_level(around=("<s>", "")), **_bert(**KEYS)),
    "mistral": lambda: _of("Mistral", byte_level(around=("<s>", "")), **_bert(sliding_window=24, **KEYS)),
    "mixtral": lambda: _of("Mixtral", byte_level(around=("<s>", "")), **_bert(num_local_experts=4, **EXPERTS)),
    "qwen2_moe": lambda: _of("Qwen2Moe", byte_level(), **_bert(**QWEN)),
    "modernbert": lambda: _of("ModernBert", byte_level(around=("<s>", "</s>")), **_bert(**MODERNBERT)),
    "t5": lambda: _of(
        "T5", unigram("$A </s>", "</s>"), d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, pad_token_id=0
    ),
}

LLAMA = _bert(**KEYS)
MAMBA = {"mamba_d_state": 8, "mamba_d_head": 8, "mamba_n_heads": 8, "mamba_n_groups": 1}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
EXPERTS_3 = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
MLA |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4}
HYBRID_TYPES = ["linear_attention", "full_attention", "linear_attention"]

# Decoders of large models: mixtures of experts, sliding windows, state spaces and hybrids.
DECODERS: dict[str, Callable[[], tuple[Any, Tokenizer]]] = {
    "llama64": lambda: _of("Llama", byte_level(), **(LLAMA | {"hidden_size": 64, "intermediate_size": 128})),
    "gemma2": lambda: _of("Gemma2", byte_level(around=("<s>", "")), **LLAMA, head_dim=8, sliding_window=24),
    "gemma3": lambda: _of("Gemma3Text", byte_level(around=("<s>", "")), **LLAMA, head_dim=8, sliding_window=24),
    "gpt_oss": lambda: _of(
        "GptOss", byte_level(), **LLAMA, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=24
    ),
    "llama4": lambda: _of(
        "Llama4Text",
        byte_level(),
        **LLAMA,
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=2,
        attention_chunk_size=24,
    ),
    "deepseek_v3": lambda: _of(
        "DeepseekV3", byte_level(), **(LLAMA | MLA), moe_intermediate_size=24, first_k_dense_replace=1
    ),
    "qwen3_next": lambda: _of(
        "Qwen3Next", byte_level(), **LLAMA, **LINEAR, **EXPERTS_3, head_dim=8, layer_types=HYBRID_TYPES
    ),
    "mamba": lambda: _of("Mamba", byte_level(), hidden_size=32, num_hidden_layers=3, state_size=8),
    "mamba2": lambda: _of(
        "Mamba2", byte_level(), hidden_size=32, num_hidden_layers=3, state_size=8, num_heads=8, head_dim=8, n_groups=2
    ),
    "rwkv": lambda: _of("Rwkv", byte_level(), hidden_size=32, num_hidden_layers=3, attention_hidden_size=32),
    "jamba": lambda: _of(
        "Jamba",
        byte_level(),
        **LLAMA,
        num_experts=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "falcon_h1": lambda: _of("FalconH1", byte_level(), **LLAMA, **MAMBA, head_dim=8, mamba_d_ssm=64),
    "recurrent_gemma": lambda: _of(
        "RecurrentGemma", byte_level(), **LLAMA, head_dim=8, lru_width=32, attention_window_size=24
    ),
}


# As many blocks as the layers of a large model that the documentation names.
DEEP = {"llama41": lambda: _of("Llama", byte_level(around=("<s>", "")), **_bert(num_hidden_layers=41, **KEYS))}


def save(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny model of that architecture, with weights large enough that attention matters."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in _files(name, (DECODERS | ARCHITECTURES | DEEP)[name], seed).items():
        (folder / file).write_bytes(content)
    torch.manual_seed(seed)  # the same after the first time and after others
    return folder


@cache
def _files(name: str, make: Callable[[], tuple[Any, Tokenizer]], seed: int) -> dict[str, bytes]:
    """Return the files of a model, made once in a process."""
    torch.manual_seed(seed)
    model, tokenizer = make()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    names = ["input_ids", "attention_mask"]
    if name in ("bert", "albert", "electra", "deberta_v2", "xlnet"):
        names.insert(1, "token_type_ids")
    with TemporaryDirectory() as folder:
        transformers.utils.logging.disable_progress_bar()
        model.save_pretrained(folder)
        transformers.utils.logging.enable_progress_bar()
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names)
        fast.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def random_sentences(count: int, *, seed: int) -> list[list[str]]:
    """Return sentences of many lengths from the words above, some of them unseen by the tokenizers."""
    rng = np.random.default_rng(seed)
    words = [word for sentence in SENTENCES for word in sentence] + ["zebra", "Quixotic", "x1y2", "—"]
    return [[words[i] for i in rng.integers(len(words), size=length)] for length in rng.geometric(0.08, size=count)]
