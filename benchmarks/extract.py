"""Extract all layers of some sentences: embstore, and the script that a competent engineer writes.

    python benchmarks/extract.py --model "$MODEL" --corpus novel.txt --out benchmarks/results/extract.json

embstore's time is that of `es.plan` and `es.extract`, self-check, checksums and fsync included; the script sorts the
sentences by length, fills batches of 2,048 subwords, pools by one sum over an index and writes one memory map. The
limit is the time of float32 products of matrices with as many operations as the subwords need, padding left out.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from made import made_sentences, made_words
from measure import Row, measure, parser_of, products, write_result
from rivals import InOpenVino, good_script, is_installed

import embstore as es

GOOD = "the good script"
TOLERANCE = 2e-3  # of the largest value: float16 rounds to 1e-3


def extract_row(sentences: list[list[str]], model: str, folder: Path, *, repeats: int) -> Row:
    """Measure one size; the vectors of both are compared first."""
    encoder = es.load_encoder(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    plain = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    store, file = folder / "extracted.zarr", folder / "script.npy"

    def ours(number: int) -> None:
        shutil.rmtree(store, ignore_errors=True)
        es.extract(es.plan(sentences, model=encoder, store=store), store)

    def good(number: int, model: Any = plain) -> None:
        good_script(sentences, tokenizer, model, file)

    ours(0)
    good(0)
    compare(store, file)
    encoded = tokenizer(sentences, is_split_into_words=True, truncation=True, max_length=512)
    lengths = np.array([len(ids) for ids in encoded["input_ids"]])
    cases: dict[str, Any] = {"ours": ours, GOOD: good, "limit": products(needed_flops(plain.config, lengths))}
    if is_installed("openvino"):
        cases[f"{GOOD}, OpenVINO"] = partial(good, model=InOpenVino(plain))
    what = f"plan and extract {len(sentences):,} sentences, all layers"
    return measure(what, cases, repeats=repeats, limit="sgemm", target=1.0, warm=0)


def compare(store: Path, file: Path) -> None:
    """Raise AssertionError unless both have the same vectors."""
    ours, theirs = es.open(store).select().vectors(), np.load(file, mmap_mode="r")
    scale = np.abs(theirs).max().astype(np.float32)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert np.abs(ours.astype(np.float32) - theirs).max() <= TOLERANCE * scale, "the vectors differ"


def needed_flops(config: Any, lengths: Any) -> float:
    """Flops of the linear layers and of attention for sentences of these lengths in subwords, special ones included."""
    hidden, inner, keys = config.hidden_size, config.intermediate_size, getattr(config, "num_key_value_heads", None)
    attention = 4 if keys is None else 2 + 2 * keys / config.num_attention_heads
    linear = lengths.sum() * 2.0 * (attention * hidden * hidden + (2 if keys is None else 3) * hidden * inner)
    return float(config.num_hidden_layers * (linear + 4.0 * hidden * (lengths.astype(float) ** 2).sum()))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="folder of a BERT-like Hugging Face model")
    parser.add_argument("--corpus", help="a corpus in any format that embstore reads (default: made-up sentences)")
    parser.add_argument("--sentences", type=int, nargs="+", default=[200, 2000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder, es.config(progress=False):
        rows = []
        for count in arguments.sentences:
            if arguments.corpus:
                sentences = [list(one.words) for one in islice(es.open_corpus(arguments.corpus), count)]
            else:
                sentences = made_sentences(count, made_words(2000))
            rows.append(extract_row(sentences, arguments.model, Path(folder), repeats=min(arguments.repeats, 5)))
    write_result(arguments.out, rows, corpus=Path(arguments.corpus or "made").name)


if __name__ == "__main__":
    main()
