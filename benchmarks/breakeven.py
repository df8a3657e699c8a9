"""How well a sample predicts what storing, reading and computing a corpus again take, and what a virtual store keeps.

python benchmarks/breakeven.py --corpus en_ewt-ud-train.conllu --model MODEL \\
    --out benchmarks/results/breakeven.json
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from measure import Target, machine, table, targets_table, write_json
from transformers import AutoTokenizer, BertConfig, BertModel

import embstore as es
from embstore.store.layout import SITES

WITHIN = 1.2  # the larger of two figures over the smaller
KEPT = 0.002  # of the bytes of the vectors
BERT_BASE_NBYTES = 13 * 768 * 2
WHAT = {"words/s": "words/s computed again", "passes": "passes until storing is faster"}
PLANNED = 6000  # sentences of the corpus that is planned, of which a plan times a hundredth
SHARE = 4  # a sample has every fourth sentence of the run


@dataclass(frozen=True)
class Case:
    """What is stored of the first `sentences` of the corpus: enough that the disk is measured and not its noise."""

    model: str
    sentences: int
    options: es.ExtractionOptions


def apart(one: float, other: float) -> float:
    return max(one, other) / min(one, other)


def kept_nbytes(corpus: Iterable[Any], model: str, folder: Path) -> float:
    """The bytes a row of a virtual store of a corpus, without its zarr.json files."""
    made = es.plan(corpus, model=model, options=es.ExtractionOptions(layers=[0]), calibrate=False, progress=False)
    store = es.extract(made, folder / "virtual.zarr", virtual=True, progress=False)
    files = (file for file in Path(str(store.path)).rglob("*") if file.is_file() and file.name != "zarr.json")
    return sum(file.stat().st_size for file in files) / store.n_rows


def narrow_model(like: str, folder: Path) -> Path:
    """A model of random weights that costs little for each byte that it makes, with the tokenizer of another."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(like)
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256, "num_hidden_layers": 4}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the sentences of each case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="on the disk that is measured")
    parser.add_argument("--out")
    given = parser.parse_args()
    narrow = str(narrow_model(given.model, Path(given.folder or tempfile.gettempdir()) / "narrow-bert"))
    cases = {
        "all layers": Case(given.model, 1200, es.ExtractionOptions()),
        "one layer, float32": Case(given.model, 1200, es.ExtractionOptions(layers="last", dtype="float32")),
        "two sites, a narrow model": Case(narrow, 9600, es.ExtractionOptions(sites=SITES[:2])),
    }
    corpus = list(islice(es.open_corpus(given.corpus), PLANNED))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for number in range(given.rounds):
        for name, case in cases.items():
            some = corpus[: max(8, int(case.sentences * given.share))]
            held = {"model": case.model, "options": case.options}
            place = Path(given.folder or tempfile.gettempdir()) / "x.zarr"
            planned = es.plan(corpus, **held, store=place, progress=False).estimate.break_even
            assert planned is not None
            measured = {"plan": planned}
            for kind, every in (("sample", SHARE), ("run", 1))[:: -1 if number % 2 else 1]:
                os.sync()  # what others have written is not flushed in this measurement
                measured[kind] = es.extraction.bench_breakeven(
                    some[::every], **held, sentences=len(some), folder=given.folder
                )
            rates = {f"{kind} words/s": each.n_rows / each.compute_seconds for kind, each in measured.items()}
            passes = {f"{kind} passes": each.passes or math.inf for kind, each in measured.items()}
            found[name].append({**rates, **passes})
    medians = {name: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
               for name, rounds in found.items()}  # fmt: skip
    print(table(["case", *medians["all layers"]], [[name, *each.values()] for name, each in medians.items()]))
    targets = []
    for name, each in medians.items():
        for what in ("words/s", "passes"):
            for kind in ("sample", "plan"):
                ratio = apart(each[f"{kind} {what}"], each[f"run {what}"])
                targets.append(Target(f"{name}: {WHAT[what]}, {kind} against run", ratio, WITHIN, False))
    info = es.load_encoder(given.model).info
    own = (info.num_hidden_layers + 1) * info.hidden_size * 2
    kept = {}
    for text, sentences in (("plain text", [each.words for each in corpus]), ("the corpus with its labels", corpus)):
        with tempfile.TemporaryDirectory() as folder:
            kept[text] = kept_nbytes(sentences, given.model, Path(folder))
        for name, nbytes in ((info.name, own), ("a model of BERT-base's shape", BERT_BASE_NBYTES)):
            what = f"share of the bytes that a virtual store of {text} and {name} keeps"
            targets.append(Target(what, kept[text] / nbytes, KEPT, False))
    print(targets_table(targets))
    sentences = {name: int(case.sentences * given.share) for name, case in cases.items()}
    settings = {"sentences": sentences, "sampled": f"one of {SHARE}", "rounds": given.rounds}
    held = {"machine": machine(), "settings": settings, "medians": medians, "kept_nbytes_a_row": kept}
    write_json(given.out, {"benchmark": "breakeven", **held, "targets": [target.as_json() for target in targets]})


if __name__ == "__main__":
    main()
