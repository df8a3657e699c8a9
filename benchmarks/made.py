"""Made-up words, sentences, models of random weights and stores of random vectors, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import embstore as es

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SENTENCE_WORDS, N_TYPES = 20, 30_000  # of a store: as in novels
SYLLABLES = [onset + nucleus for onset in (*"bdfghklmnprstvwz", "st", "tr") for nucleus in "aeiou"]
SHAPES = {
    "MiniLM": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "BERT-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "BERT-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "Llama-8B, 4 blocks": {"hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32,
                           "intermediate_size": 14336, "num_key_value_heads": 8},
    "tiny, decoder": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
                      "num_key_value_heads": 1},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
}  # fmt: skip


def made_words(count: int) -> list[str]:
    """Distinct pronounceable words, the first ones the shortest: numbers written in syllables."""
    words = list(SYLLABLES)
    start = 0
    while len(words) < count:
        stop = len(words)
        words += [word + syllable for word in words[start:stop] for syllable in SYLLABLES][: count - stop]
        start = stop
    return words[:count]


def save_tokenizer(folder: Path, words: Sequence[str], *, vocabulary: int, has_types: bool = True) -> int:
    """Save a WordPiece tokenizer that has the first words whole and splits the others; returns its size."""
    inner = [f"##{piece}" for piece in (*SYLLABLES, *"abcdefghijklmnopqrstuvwxyz")]
    pieces = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz", *inner]
    pieces += words[: max(0, vocabulary - len(pieces))]
    numbered = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab=numbered, unk_token="[UNK]", max_input_chars_per_word=200))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [(name, numbered[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_input_names=["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"],
    )
    fast.save_pretrained(folder)
    return len(numbered)


def save_model(folder: Path, words: Sequence[str], *, vocabulary: int = 30_522, seed: int = 0, **shape: Any) -> Path:
    """Save a BERT of a shape (see `SHAPES`), or a Llama, with random weights, and its tokenizer; returns the folder.

    Weights are drawn as BERT's were (normal, .02), biases and norms shaken so that none is without effect.
    """
    transformers.utils.logging.disable_progress_bar()
    kind = "Llama" if "num_key_value_heads" in shape else "Bert"
    size = save_tokenizer(folder, words, vocabulary=vocabulary, has_types=kind == "Bert")
    torch.manual_seed(seed)
    more = {"vocab_size": size, "max_position_embeddings": 512, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**more, **shape)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.02)
    model.save_pretrained(folder)
    return folder


def made_sentences(count: int, words: Sequence[str], *, seed: int = 0) -> list[list[str]]:
    """Return sentences of words drawn by a Zipf law, whose lengths vary as those of a novel do: 20 words on average."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.lognormal(2.8, 0.65, count).astype(int), 1, 120)
    drawn = np.array(words, object)[draw.zipf(1.2, lengths.sum()) % len(words)]
    return [part.tolist() for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def random_store(
    path: Path, *, rows: int, layers: int = 7, features: int = 384, dtype: Literal["float16", "float32"] = "float16"
) -> es.Store:
    """Write normal vectors whose words have the frequencies of a text."""
    draw = np.random.default_rng(0)
    types = np.minimum(draw.zipf(1.1, rows) - 1, N_TYPES - 1)
    parts = np.split(types, range(SENTENCE_WORDS, rows, SENTENCE_WORDS))
    vectors = (draw.standard_normal((layers, len(part), features), np.float32) for part in parts)
    sentences = ([f"w{word}" for word in part] for part in parts)
    return es.store.write_arrays(path, sentences, vectors, model="random", dtype=dtype)
