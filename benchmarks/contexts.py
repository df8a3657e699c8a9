"""Documents as blocks of 512 subwords, in one run: embstore and a plain script with overlapping windows.

python benchmarks/contexts.py novel.txt --model MODEL_DIR --sentences 1000 --repeats 3
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers

import embstore as es
from embstore.corpus import Document, Sentence
from embstore.extraction.worker import Timings

BLOCKS, SENTENCES, PLAIN = "embstore, blocks", "embstore, sentences", "plain script, stride"
SIZE, MIN_LEFT, BATCH = 512, 64, 8


@dataclass
class Setting:
    """What every case works on; `folder` is thrown away at the end."""

    sentences: list[Sentence]
    encoder: Any
    tokenizer: Any
    model: Any
    folder: Path
    n_subwords: int
    subwords: dict[str, int] = field(default_factory=dict)


def run_blocks(setting: Setting, number: int) -> float:
    return _extract(setting, BLOCKS, es.ExtractionOptions(context=SIZE, min_left=MIN_LEFT))


def run_sentences(setting: Setting, number: int) -> float:
    return _extract(setting, SENTENCES, es.ExtractionOptions())


def _extract(setting: Setting, name: str, options: es.ExtractionOptions) -> float:
    place = setting.folder / "x.zarr"
    shutil.rmtree(place, ignore_errors=True)
    start = time.process_time()
    plan = es.plan(setting.sentences, model=setting.encoder, options=options, calibrate=False, progress=False)
    timings = Timings()
    es.extract(plan, place, timings=timings, progress=False)
    setting.subwords[name] = timings.n_subwords
    return time.process_time() - start


@torch.inference_mode()
def run_plain(setting: Setting, number: int) -> float:
    """Blocks of 512 by `return_overflowing_tokens`; a word has its vector of the block where it is best placed."""
    start = time.process_time()
    words = [word for sentence in setting.sentences for word in sentence.words]
    given = setting.tokenizer(
        words,
        is_split_into_words=True,
        truncation=True,
        max_length=SIZE,
        stride=round(2 * MIN_LEFT * setting.n_subwords / len(words)),  # as many words on each side
        return_overflowing_tokens=True,
        padding=True,
        return_tensors="pt",
    )
    best = np.full(len(words), -1)
    n_layers, size = setting.model.config.num_hidden_layers + 1, setting.model.config.hidden_size
    found = np.zeros((n_layers, len(words), size), np.float16)
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in given]
    setting.subwords[PLAIN] = 0
    for first in range(0, len(given["input_ids"]), BATCH):
        batch = {name: given[name][first : first + BATCH] for name in names}
        setting.subwords[PLAIN] += int(batch["attention_mask"].sum())
        states = torch.stack(setting.model(**batch, output_hidden_states=True).hidden_states)
        for block in range(states.shape[1]):
            owners = np.array([-1 if one is None else one for one in given.word_ids(first + block)])
            inside = np.unique(owners[owners >= 0])
            sums = torch.zeros(n_layers, len(inside), size)
            place = np.searchsorted(inside, owners[owners >= 0])
            sums.index_add_(1, torch.from_numpy(place), states[:, block, owners >= 0])
            means = (sums / torch.from_numpy(np.bincount(place))[:, None]).half().numpy()
            edge = np.minimum(np.arange(len(inside)), np.arange(len(inside))[::-1])
            better = edge > best[inside]
            best[inside[better]] = edge[better]
            found[:, inside[better]] = means[:, better]
    np.save(setting.folder / "x.npy", found)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", help="a text; its sentences make one document")
    parser.add_argument("--model", required=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    encoder, document = es.load_encoder(given.model, device="cpu"), Document()
    read = islice(es.open_corpus(given.corpus), given.sentences)
    sentences = [replace(sentence, document=document) for sentence in read]
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            sentences,
            encoder,
            transformers.AutoTokenizer.from_pretrained(given.model, add_prefix_space=True),
            transformers.AutoModel.from_pretrained(given.model).eval(),
            Path(folder),
            len(encoder.tokenize([sentence.words for sentence in sentences]).ids),
        )
        cases = {BLOCKS: run_blocks, SENTENCES: run_sentences, PLAIN: run_plain}
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(given.repeats):
            for name, run in cases.items():
                taken[name].append(run(setting, number))
        for name, seconds in taken.items():
            ratio = median(one / ours for one, ours in zip(seconds, taken[BLOCKS], strict=True))
            subwords = setting.subwords[name]
            rate = f"{subwords:,} subwords, {subwords / median(seconds):,.0f}/s"
            print(f"{name}: {median(seconds):.2f} s, {rate}; {ratio:.2f} of blocks")
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
