"""A script that pulls hidden states of words from a Hugging Face model, as is usual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import torch


def extract_plainly(
    sentences: Sequence[Sequence[str]],
    tokenizer: Any,
    model: Any,
    path: str | Path,
    *,
    dtype: str,
    by_layer: bool = False,
    batch: int = 32,
    device: str = "cpu",
) -> None:
    """Write one dataset a sentence, [layer, word, feature]; a word without a subword is a row of zeros.

    `by_layer`: pool every layer of a word by itself, as many scripts do, rather than all layers of a word at once.
    `device`: where the model is; the hidden states of a batch come from there at once, and are pooled here.
    """
    with h5py.File(path, "w") as file, torch.no_grad():
        for start in range(0, len(sentences), batch):
            chunk = [list(sentence) for sentence in sentences[start : start + batch]]
            encoded = tokenizer(
                chunk, is_split_into_words=True, padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            output = model(**encoded.to(device), output_hidden_states=True)
            hidden_states = [layer.cpu() for layer in output.hidden_states]
            hidden_states = hidden_states if by_layer else torch.stack(hidden_states)
            for number, words in enumerate(chunk):
                subwords = defaultdict(list)
                for place, word in enumerate(encoded.word_ids(number)):
                    if word is not None:
                        subwords[word].append(place)
                vectors = torch.zeros(len(hidden_states), len(words), hidden_states[0].shape[-1])
                for word, places in subwords.items():
                    if by_layer:
                        vectors[:, word] = torch.stack([layer[number, places].mean(dim=0) for layer in hidden_states])
                    else:
                        vectors[:, word] = hidden_states[:, number, places].mean(dim=1)
                file.create_dataset(str(start + number), data=vectors.numpy().astype(dtype))
