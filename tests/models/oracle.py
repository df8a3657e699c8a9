"""What a plain script gives: the tokenizer's own encoding of pre-split sentences, one sentence a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from embstore.corpus.sentence import Sentence
from embstore.models.encoder import Encoder, Spans, Tokenized

REDUCE = {
    "mean": lambda rows: rows.mean(axis=0),
    "max": lambda rows: rows.max(axis=0),
    "first": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
}


@dataclass
class PlainScript:
    """A model and its tokenizer as files on disk say, with nothing of embstore."""

    tokenizer: Tokenizer
    model: Any
    takes_types: bool
    seen: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> PlainScript:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        config = transformers.AutoConfig.from_pretrained(folder)
        kind = transformers.T5EncoderModel if config.model_type == "t5" else transformers.AutoModel
        model = kind.from_pretrained(folder, attn_implementation="eager").eval()
        names = transformers.AutoTokenizer.from_pretrained(folder).model_input_names
        return cls(tokenizer, model, "token_type_ids" in names)

    @torch.inference_mode()
    def layers(self, words: list[str]) -> tuple[NDArray[np.float32], list[int | None]]:
        """Return all hidden states [layer, subword, feature] and the word of each subword."""
        encoding = self.tokenizer.encode(words, is_pretokenized=True)
        inputs = {"input_ids": torch.tensor([encoding.ids])}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if self.takes_types:
            inputs["token_type_ids"] = torch.tensor([encoding.type_ids])
        states = self.model(**inputs, output_hidden_states=True).hidden_states
        return torch.cat(states).numpy(), list(encoding.word_ids)

    def span(self, words: list[str], start: int, stop: int, pooling: str) -> NDArray[np.float32]:
        """Return every layer's vector of the words `[start, stop)`: [layer, feature]."""
        if tuple(words) not in self.seen:
            self.seen[tuple(words)] = self.layers(words)
        states, owners = self.seen[tuple(words)]
        places = [place for place, word in enumerate(owners) if word is not None and start <= word < stop]
        return np.stack([REDUCE[pooling](layer[places]) for layer in states])


@dataclass(frozen=True)
class Words(Tokenized):
    """Also where the subwords of each word begin and end, and the words of each sentence."""

    word_indptr: NDArray[np.int64] = field(kw_only=True)
    sentence_indptr: NDArray[np.int64] = field(kw_only=True)


def tokenize(encoder: Encoder, sentences: Sequence[Sequence[str]]) -> Words:
    """Split sentences of words, each by itself, as `PlainScript` does."""
    split = encoder.tokenize(list(map(Sentence, sentences)), by="words")
    bounds = {"word_indptr": np.append(split.first, len(split.ids)), "sentence_indptr": split.indptr}
    return Words(split.ids, split.bounds, split.words, split.types, **bounds)


def word_spans(tokenized: Words, *, width: int = 1) -> tuple[Spans, list[tuple[int, int]]]:
    """Return a span for every run of `width` words that has subwords, and its sentence and first word."""
    sentences, starts, stops, names = [], [], [], []
    for sentence in range(len(tokenized.sentence_indptr) - 1):
        first, last = tokenized.sentence_indptr[sentence : sentence + 2]
        origin = tokenized.word_indptr[first]
        for word in range(first, last - width + 1):
            start, stop = tokenized.word_indptr[word] - origin, tokenized.word_indptr[word + width] - origin
            if stop > start:
                sentences.append(sentence)
                starts.append(start)
                stops.append(stop)
                names.append((sentence, int(word - first)))
    return Spans(*(np.array(values, np.int64) for values in (sentences, starts, stops))), names


def gather(passes: Any, spans: Spans, layers: int, features: int) -> NDArray[np.float32]:
    """Put the vectors of all batches in the order of the spans; every span must come exactly once."""
    vectors = np.full((layers, len(spans.sentence), features), np.nan, np.float32)
    seen = np.zeros(len(spans.sentence), np.int64)
    for pooled in passes:
        vectors[:, pooled.rows] = pooled.vectors.float().numpy()
        seen[pooled.rows] += 1
    assert (seen == 1).all()
    return vectors


def relative_error(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest difference of any layer, relative to the layer's largest value."""
    apart = np.abs(vectors - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
    return float(apart.max())
