"""Scripts that pull hidden states of words from a Hugging Face model: as is usual, and as well as a script can."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
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


@torch.inference_mode()
def extract_well(
    sentences: Sequence[Sequence[str]], tokenizer: Any, model: Any, path: str | Path, *, dtype: str, budget: int = 2048
) -> None:
    """Write one memory map [layer, word, feature] of all words; a word without a subword is a row of zeros.

    What a competent engineer writes: sentences sorted by length, so that little is padding; batches of `budget`
    subwords; all words of a batch pooled by one sum over an index; no Python for each word.
    """
    encodings = tokenizer(list(sentences), is_split_into_words=True, truncation=True, max_length=512).encodings
    lengths = np.array([len(encoding.ids) for encoding in encodings])
    n_words = np.array([len(sentence) for sentence in sentences])
    first = np.concatenate([[0], np.cumsum(n_words)])
    shape = (model.config.num_hidden_layers + 1, int(first[-1]), model.config.hidden_size)
    out = np.lib.format.open_memmap(path, "w+", dtype, shape)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        chosen = order[start : start + max(1, budget // longest)]
        start += len(chosen)
        ids = np.zeros((len(chosen), longest), np.int64)
        owner = np.full((len(chosen), longest), np.nan)  # the word of each position, counted over the batch
        base = np.concatenate([[0], np.cumsum(n_words[chosen])])
        for row, sentence in enumerate(chosen.tolist()):
            ids[row, : lengths[sentence]] = encodings[sentence].ids
            owner[row, : lengths[sentence]] = np.array(encodings[sentence].word_ids, np.float64) + base[row]
        mask = np.arange(longest) < lengths[chosen, None]
        states = model(
            input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask).long(), output_hidden_states=True
        ).hidden_states
        flat = owner.ravel()
        positions = np.flatnonzero(~np.isnan(flat))
        words, places = torch.from_numpy(flat[positions].astype(np.int64)), torch.from_numpy(positions)
        counts = torch.bincount(words, minlength=int(base[-1])).clamp(min=1)[:, None]
        rows = np.concatenate([np.arange(first[sentence], first[sentence + 1]) for sentence in chosen])
        for layer, state in enumerate(states):
            subwords = state.reshape(-1, shape[-1])[places]
            out[layer, rows] = (torch.zeros(len(rows), shape[-1]).index_add_(0, words, subwords) / counts).numpy()
    out.flush()
