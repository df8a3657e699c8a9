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

from embstore.bench.cases import REST, products
from embstore.bench.measure import Row, interleaved, row_of
from embstore.extraction.extract import extract
from embstore.extraction.plan import plan
from embstore.models import load_encoder

COMMON = """the of and to in a is that it was on are as with his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so these
would other into has more her two like him see time could no make than first been its who now people my made over did
down only way find use may water long little very after words called just where most know"""
MEAN_WORDS = 20
MAX_LENGTH = 512
TOKEN_BUDGET = 2048  # subwords of a batch, padding included


def made_sentences(n_sentences: int, seed: int = 0) -> list[list[str]]:
    """Return sentences of common words whose lengths vary as those of a novel do."""
    words, draw = COMMON.split(), np.random.default_rng(seed)
    lengths = np.clip(draw.lognormal(np.log(MEAN_WORDS) - 0.2, 0.65, n_sentences).astype(int), 1, 120)
    return [[words[number] for number in draw.integers(0, len(words), length)] for length in lengths.tolist()]


@torch.no_grad()
def good_script(sentences: Sequence[Sequence[str]], tokenizer: Any, model: Any, path: Path) -> NDArray[Any]:
    """Write float16 [layer, word, feature]: sentences sorted by length, a budget of tokens, pooling without loops."""
    encoded = tokenizer(
        [list(words) for words in sentences], is_split_into_words=True, truncation=True, max_length=MAX_LENGTH
    )
    begins = np.concatenate([[0], np.cumsum([len(words) for words in sentences])])
    config = model.config
    shape = (config.num_hidden_layers + 1, int(begins[-1]), config.hidden_size)
    out = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    order = sorted(range(len(sentences)), key=lambda number: -len(encoded["input_ids"][number]))
    while order:
        longest = len(encoded["input_ids"][order[0]])
        batch, order = order[: max(1, TOKEN_BUDGET // longest)], order[max(1, TOKEN_BUDGET // longest) :]
        inputs = tokenizer.pad({"input_ids": [encoded["input_ids"][number] for number in batch]}, return_tensors="pt")
        states = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)
        of_word = np.full(states.shape[1:3], -1, np.int64)
        first = 0
        rows: list[NDArray[np.int64]] = []
        for place, number in enumerate(batch):
            words = encoded.word_ids(number)
            of_word[place, : len(words)] = [-1 if word is None else first + word for word in words]
            n_words = int(begins[number + 1] - begins[number])
            rows.append(np.arange(begins[number], begins[number] + n_words))
            first += n_words
        chosen = torch.from_numpy(of_word >= 0)
        groups = torch.from_numpy(of_word[of_word >= 0])
        sums = torch.zeros(len(states), first, states.shape[-1]).index_add_(1, groups, states[:, chosen])
        counts = torch.bincount(groups, minlength=first).clamp(min=1)
        out[:, np.concatenate(rows)] = (sums / counts[:, None]).half().numpy()
    out.flush()
    return out


def extraction_rows(folder: Path, model: str, counts: Sequence[int], *, threads: int, repeats: int) -> Iterator[Row]:
    """Made sentences to a committed store, plan included; the models are loaded before."""
    transformers = import_module("transformers")
    encoder = load_encoder(model, device="cpu", compute_dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    plain = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    for count in counts:
        sentences = made_sentences(count)
        store, file = folder / "extracted.zarr", folder / "script.npy"

        def ours(number: int, sentences: list[list[str]] = sentences, store: Path = store) -> None:
            shutil.rmtree(store, ignore_errors=True)
            extract(plan(sentences, model=encoder, store=store, progress=False), store, progress=False)

        lengths = np.array([len(ids) for ids in tokenizer(sentences, is_split_into_words=True)["input_ids"]])
        n_layers = plain.config.num_hidden_layers + 1
        flops = encoder.forward_flops(lengths, layers=range(n_layers))
        cases: dict[str, Any] = {
            "ours": ours,
            "script: sorted, token budget, memory map": lambda number, some=sentences, file=file: good_script(
                some, tokenizer, plain, file
            ),
        }
        if flops is not None:
            cases["sgemm"] = products(flops)
        times = interleaved(cases, repeats=repeats, rest=REST if threads > 1 else 0.0)
        more: dict[str, Any] = {"limit_name": "sgemm", "targets": {"to_rival": 1.0}, "threads": threads}
        what = f"extract {count:,} sentences, {n_layers} layers"
        yield row_of(what, times, ours="ours", limit="sgemm" if flops is not None else None, **more)
        shutil.rmtree(store, ignore_errors=True)
        file.unlink(missing_ok=True)
