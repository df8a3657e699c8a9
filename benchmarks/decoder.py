"""Extract all layers of a text from a decoder, in blocks of 512 subwords and by sentences: embstore, and good scripts.

    python benchmarks/decoder.py --model "$DECODER" --text novel.txt --out benchmarks/results/decoder.json

Every run of blocks is a process of its own, timed from the load of the model to the last byte; imports are left out.
embstore runs twice: with an empty cache, so that it checks and calibrates the model, and again. The script runs two
blocks at a time and writes one memory map of float16. Sentences are planned and extracted by a loaded model; their
script sorts them by length. The limit is float32 products with as many operations.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from extract import GOOD, TOLERANCE, needed_flops
from measure import Row, in_fresh_process, measure, memory_nbytes, parser_of, products, write_result
from rivals import block_script, sentence_script

import embstore as es

BLOCK = 512
ASKED = 0.9  # of the script's time


def ours(model: str, text: Path, out: Path) -> dict[str, Any]:
    """Extract in this process: seconds of the whole and of its plan, and the peak of memory."""
    shutil.rmtree(out, ignore_errors=True)
    options = es.ExtractionOptions(unit="subword", context=BLOCK, layers="all")
    began = time.perf_counter()
    encoder = es.load_encoder(model)
    loaded = time.perf_counter()
    plan = es.plan(text, model=encoder, options=options, store=out)
    planned = time.perf_counter()
    es.extract(plan, out)
    return {"seconds": time.perf_counter() - began, "load": loaded - began, "plan": planned - loaded}


def good(model: str, text: Path, out: Path) -> dict[str, Any]:
    began = time.perf_counter()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    plain = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    loaded = time.perf_counter()
    block_script(text.read_text(encoding="utf-8"), tokenizer, plain, out, block=BLOCK)
    return {"seconds": time.perf_counter() - began, "load": loaded - began, "plan": 0.0}


def compare(store: Path, file: Path) -> None:
    """Raise AssertionError unless both have the same vectors, layer by layer."""
    opened, theirs = es.open(store), np.load(file, mmap_mode="r")
    assert opened.n_rows == theirs.shape[1], (opened.n_rows, theirs.shape)
    for layer in opened.layers:
        mine, other = opened.vectors(layers=layer).astype(np.float32), theirs[layer].astype(np.float32)
        assert np.abs(mine - other).max() <= TOLERANCE * np.abs(other).max(), f"the vectors of layer {layer} differ"


def beginning(text: str, model: str, n_subwords: int) -> str:
    """Return the text up to the end of its n-th subword."""
    offsets = transformers.AutoTokenizer.from_pretrained(model)(text, return_offsets_mapping=True)["offset_mapping"]
    return text[: offsets[min(n_subwords, len(offsets)) - 1][1]]


def sentence_row(sentences: list[str], model: str, folder: Path, *, repeats: int) -> Row:
    """Measure sentences of running text; the vectors of both are compared first."""
    encoder, tokenizer = es.load_encoder(model), transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    plain = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    options = es.ExtractionOptions(unit="subword", layers="all")
    store, file = folder / "sentences.zarr", folder / "sentences.npy"

    def ours(number: int) -> None:
        shutil.rmtree(store, ignore_errors=True)
        corpus = es.open_corpus(sentences, split="lines")
        es.extract(es.plan(corpus, model=encoder, options=options, store=store), store)

    def good(number: int) -> None:
        sentence_script(sentences, tokenizer, plain, file)

    ours(0)
    good(0)
    compare(store, file)
    limit = products(needed_flops(plain.config, np.array([len(ids) for ids in tokenizer(sentences)["input_ids"]])))
    what = f"plan and extract {len(sentences)} sentences of text, all layers"
    return measure(what, {"ours": ours, GOOD: good, "limit": limit}, repeats=repeats, limit="sgemm", target=1.0, warm=0)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="folder of a decoder of Hugging Face")
    parser.add_argument("--text", required=True, help="a text file")
    parser.add_argument("--subwords", type=int, default=8 * BLOCK, help="how many of the text are run")
    parser.add_argument("--sentences", type=int, nargs="+", default=[40, 150])
    parser.add_argument("--run", choices=["ours", "good"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        _ = es.load_encoder, es.plan, es.extract, transformers.AutoTokenizer, transformers.PreTrainedModel  # imports
        with es.config(progress=False):
            done = globals()[arguments.run](arguments.model, Path(arguments.text), Path(arguments.tmp))
        print(json.dumps({**done, "peak_nbytes": memory_nbytes()}))
        return
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        print_rows(arguments, Path(folder))


def print_rows(arguments: argparse.Namespace, folder: Path) -> None:
    text, cache = folder / "text.txt", folder / "cache"
    whole = Path(arguments.text).read_text(encoding="utf-8")
    lines = [" ".join(part.text[part.start : part.stop].split()) for part in es.open_corpus(arguments.text)]
    text.write_text(beginning(whole, arguments.model, arguments.subwords), encoding="utf-8")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    outs = {"ours": folder / "ours.zarr", "good": folder / "script.npy"}
    runs: dict[str, list[dict[str, Any]]] = {"first": [], "ours": [], "good": []}

    def run(name: str, kind: str) -> float:
        done = in_fresh_process(__file__, "--model", arguments.model, "--text", str(text),
                                "--tmp", str(outs[kind]), "--run", kind)  # fmt: skip
        runs[name].append(done)
        return float(done["seconds"])

    def first(number: int) -> float:
        shutil.rmtree(cache, ignore_errors=True)
        return run("first", "ours")

    run("ours", "ours")
    run("good", "good")
    compare(outs["ours"], outs["good"])
    n_subwords = es.open(outs["ours"]).n_rows
    lengths = np.diff(np.append(np.arange(0, n_subwords, BLOCK), n_subwords))
    limit = products(needed_flops(transformers.AutoConfig.from_pretrained(arguments.model), lengths))
    what = f"load, plan and extract {n_subwords:,} subwords in blocks of {BLOCK}, all layers"
    for each in runs.values():
        each.clear()
    rows = [
        measure(
            f"{what}, {name}",
            {"ours": case, GOOD: lambda number: run("good", "good"), "limit": limit},
            repeats=min(arguments.repeats, 5),
            limit="sgemm",
            target=ASKED,
            warm=0,
        )
        for name, case in (("again", lambda number: run("ours", "ours")), ("with an empty cache", first))
    ]
    with es.config(progress=False):
        for count in arguments.sentences:
            rows.append(sentence_row(lines[:count], arguments.model, folder, repeats=min(arguments.repeats, 5)))
    figures = {name: {key: median(one[key] for one in each) for key in each[0]} for name, each in runs.items()}
    for name, own in figures.items():
        share = own["plan"] / own["seconds"]
        print(f"{name}: load {own['load']:.2f} s, plan {own['plan']:.2f} s ({share:.2f} of all), "
              f"peak {own['peak_nbytes'] / 1e6:,.0f} MB")  # fmt: skip
    write_result(arguments.out, rows, runs=figures, text=Path(arguments.text).name)


if __name__ == "__main__":
    main()
