"""Extraction to disk compared with the script that a competent engineer would write."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.bench.cases import REST, Cases, in_each_round, products
from embstore.bench.measure import Row, interleaved, row_of
from embstore.extraction.extract import extract
from embstore.extraction.plan import plan
from embstore.models import load_encoder

MEAN_WORDS = 20
MAX_LENGTH = 512
TOKEN_BUDGET = 2048  # subwords of a batch, padding included
GOOD = "script: sorted, token budget, memory map"


def made_sentences(n_sentences: int, vocabulary: Sequence[str], seed: int = 0) -> list[list[str]]:
    """Return sentences of words drawn by a Zipf law, whose lengths vary as those of a novel do."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.lognormal(np.log(MEAN_WORDS) - 0.2, 0.65, n_sentences).astype(int), 1, 120)
    words = np.array(vocabulary, object)[draw.zipf(1.2, lengths.sum()) % len(vocabulary)]
    return [part.tolist() for part in np.split(words, np.cumsum(lengths)[:-1])]


@torch.inference_mode()
def good_script(
    sentences: Sequence[Sequence[str]],
    tokenizer: Any,
    model: Any,
    path: Path,
    *,
    dtype: str = "float16",
    budget: int = TOKEN_BUDGET,
) -> None:
    """Write one memory map [layer, word, feature] of all words; a word without a subword is a row of zeros.

    What a competent engineer writes: sentences sorted by length, so that little is padding; batches of `budget`
    subwords; all words of a batch pooled by one sum over an index; no Python for each word.
    """
    encodings = tokenizer(list(sentences), is_split_into_words=True, truncation=True, max_length=MAX_LENGTH).encodings
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
        mask = torch.from_numpy(np.arange(longest) < lengths[chosen, None]).long()
        states = model(torch.from_numpy(ids), attention_mask=mask, output_hidden_states=True).hidden_states
        flat = owner.ravel()
        positions = np.flatnonzero(~np.isnan(flat))
        words, places = torch.from_numpy(flat[positions].astype(np.int64)), torch.from_numpy(positions)
        counts = torch.bincount(words, minlength=int(base[-1])).clamp(min=1)[:, None]
        rows = np.concatenate([np.arange(first[sentence], first[sentence + 1]) for sentence in chosen])
        for layer, state in enumerate(states):
            subwords = state.reshape(-1, shape[-1])[places]
            out[layer, rows] = (torch.zeros(len(rows), shape[-1]).index_add_(0, words, subwords) / counts).numpy()
    out.flush()


def extraction_rows(folder: Path, model: str, counts: Sequence[int], *, threads: int, repeats: int) -> Iterator[Row]:
    """Made sentences to a committed store, plan included; the models are loaded before."""
    transformers = import_module("transformers")
    encoder = load_encoder(model, device="cpu", compute_dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    plain = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    vocabulary = tokenizer.get_vocab()
    words = [word for word in sorted(vocabulary, key=vocabulary.__getitem__) if word.isascii() and word.isalpha()]
    layers = range(plain.config.num_hidden_layers + 1)
    store, file = folder / "extracted.zarr", folder / "script.npy"

    def ours(sentences: list[list[str]]) -> None:
        shutil.rmtree(store, ignore_errors=True)
        extract(plan(sentences, model=encoder, store=store, progress=False), store, progress=False)

    for count in counts:
        sentences = made_sentences(count, words)
        lengths: NDArray[np.int64] = np.array(
            [len(ids) for ids in tokenizer(sentences, is_split_into_words=True)["input_ids"]]
        )
        cases: Cases = {
            "ours": in_each_round(ours, sentences),
            GOOD: in_each_round(good_script, sentences, tokenizer, plain, file),
            "limit": products(encoder.forward_flops(lengths, layers=layers) or 0.0),
        }
        times = interleaved(cases, repeats=repeats, rest=REST if threads > 1 else 0.0)
        what = f"extract {count:,} sentences, {len(layers)} layers"
        yield row_of(what, times, limit_name="sgemm", threads=threads, targets={"to_rival": 1.0})
        shutil.rmtree(store, ignore_errors=True)
        file.unlink(missing_ok=True)
