"""Tiny models with random weights, and tokenizers trained on a few sentences, saved as a user would find them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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


def once(train: Callable[..., Tokenizer]) -> Callable[..., Tokenizer]:
    """Train each tokenizer once: training again gives another one, as it is not deterministic."""

    @cache
    def trained(*args: Any, **options: Any) -> str:
        return train(*args, **options).to_str()

    return lambda *args, **options: Tokenizer.from_str(trained(*args, **options))


@once
def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    _train(tokenizer, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=specials, show_progress=False))
    _around(tokenizer, "[CLS] $A [SEP]", ["[CLS]", "[SEP]"])
    return tokenizer


@once
def byte_level(*, around: tuple[str, str] | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        ),
    )
    if around:
        _around(tokenizer, f"{around[0]} $A {around[1]}".strip(), [piece for piece in around if piece])
    return tokenizer


@once
def unigram(template: str, *specials: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    every = ["<pad>", "</s>", "<unk>", "<s>", "<sep>", "<cls>", "[CLS]", "[SEP]"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=every, unk_token="<unk>", show_progress=False)
    _train(tokenizer, trainer)
    _around(tokenizer, template, list(specials))
    return tokenizer


def _train(tokenizer: Tokenizer, trainer: Any) -> None:
    tokenizer.train_from_iterator([" ".join(sentence) for sentence in SENTENCES] * 3, trainer)
    # what a published tokenizer.json may carry, and what must not reach us
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)


def _around(tokenizer: Tokenizer, template: str, specials: list[str]) -> None:
    known = [(piece, tokenizer.token_to_id(piece)) for piece in specials]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=known)


def _bert(tokens: int, **other: Any) -> dict[str, Any]:
    return {
        "vocab_size": tokens,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 320,
        "pad_token_id": 0,
        **other,
    }


def _of(kind: str, tokenizer: Tokenizer, **options: Any) -> tuple[Any, Tokenizer]:
    config = getattr(transformers, f"{kind}Config")(**options)
    model = "T5EncoderModel" if kind == "T5" else f"{kind}Model"
    return getattr(transformers, model)(config), tokenizer


def _plain_bert() -> tuple[Any, Tokenizer]:
    return _of("Bert", wordpiece(), **_bert(VOCABULARY))


def _roberta() -> tuple[Any, Tokenizer]:
    options = _bert(VOCABULARY, pad_token_id=1, max_position_embeddings=322, type_vocab_size=1)
    return _of("Roberta", byte_level(around=("<s>", "</s>")), **options)


def _distilbert() -> tuple[Any, Tokenizer]:
    options = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 320}
    return _of("DistilBert", wordpiece(), vocab_size=VOCABULARY, **options)


def _albert() -> tuple[Any, Tokenizer]:
    tokenizer = unigram("[CLS] $A [SEP]", "[CLS]", "[SEP]")
    return _of("Albert", tokenizer, **_bert(VOCABULARY, embedding_size=16, num_hidden_groups=1))


def _electra() -> tuple[Any, Tokenizer]:
    return _of("Electra", wordpiece(), **_bert(VOCABULARY, embedding_size=16))


def _deberta_v2() -> tuple[Any, Tokenizer]:
    options = _bert(VOCABULARY, relative_attention=True, position_buckets=16, pos_att_type=["p2c", "c2p"])
    options |= {"position_biased_input": False, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    options |= {"conv_kernel_size": 3, "type_vocab_size": 0, "conv_act": "gelu"}
    return _of("DebertaV2", unigram("[CLS] $A [SEP]", "[CLS]", "[SEP]"), **options)


def _xlnet() -> tuple[Any, Tokenizer]:
    options = {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48}
    return _of("XLNet", unigram("$A:0 <sep>:0 <cls>:2", "<sep>", "<cls>"), **options, pad_token_id=5)


def _gpt2() -> tuple[Any, Tokenizer]:
    options = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 320, "bos_token_id": 0, "eos_token_id": 2}
    return _of("GPT2", byte_level(), vocab_size=VOCABULARY, **options)


def _gpt_neox() -> tuple[Any, Tokenizer]:
    return _of("GPTNeoX", byte_level(), **_bert(VOCABULARY))


def _llama() -> tuple[Any, Tokenizer]:
    return _of("Llama", byte_level(around=("<s>", "")), **_bert(VOCABULARY, num_key_value_heads=2))


def _mistral() -> tuple[Any, Tokenizer]:
    options = _bert(VOCABULARY, num_key_value_heads=2, sliding_window=24)
    return _of("Mistral", byte_level(around=("<s>", "")), **options)


def _mixtral() -> tuple[Any, Tokenizer]:
    options = _bert(VOCABULARY, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    return _of("Mixtral", byte_level(around=("<s>", "")), **options)


def _qwen2_moe() -> tuple[Any, Tokenizer]:
    options = _bert(VOCABULARY, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1)
    return _of("Qwen2Moe", byte_level(), **options, moe_intermediate_size=24, shared_expert_intermediate_size=24)


def _modernbert() -> tuple[Any, Tokenizer]:
    options = _bert(VOCABULARY, local_attention=16, global_attn_every_n_layers=2, pad_token_id=1)
    options |= {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
    return _of("ModernBert", byte_level(around=("<s>", "</s>")), **options)


def _t5() -> tuple[Any, Tokenizer]:
    options = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4, "vocab_size": VOCABULARY}
    return _of("T5", unigram("$A </s>", "</s>"), **options, pad_token_id=0)


ARCHITECTURES = {
    "bert": _plain_bert,
    "roberta": _roberta,
    "distilbert": _distilbert,
    "albert": _albert,
    "electra": _electra,
    "deberta_v2": _deberta_v2,
    "xlnet": _xlnet,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "modernbert": _modernbert,
    "t5": _t5,
}


def save(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny model of that architecture, with weights large enough that attention matters."""
    torch.manual_seed(seed)
    model, tokenizer = ARCHITECTURES[name]()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    transformers.utils.logging.enable_progress_bar()
    names = ["input_ids", "attention_mask"]
    if name in ("bert", "albert", "electra", "deberta_v2", "xlnet"):
        names.insert(1, "token_type_ids")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names)
    fast.save_pretrained(folder)
    return folder


def random_sentences(count: int, *, seed: int) -> list[list[str]]:
    """Return sentences of many lengths from the words above, some of them unseen by the tokenizers."""
    rng = np.random.default_rng(seed)
    words = [word for sentence in SENTENCES for word in sentence] + ["zebra", "Quixotic", "x1y2", "—"]
    return [[words[i] for i in rng.integers(len(words), size=length)] for length in rng.geometric(0.08, size=count)]
