"""How well a sample predicts what storing, reading and computing a corpus again take, and what a virtual store keeps.

python benchmarks/breakeven.py --corpus en_ewt-ud-train.conllu --model MODEL \\
    --out benchmarks/results/breakeven.json
"""

from __future__ import annotations

import math
import os
import random
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from measure import Target, parser_of, table, targets_table, write_json
from transformers import AutoTokenizer, BertConfig, BertModel

import embstore as es
from embstore.extraction import breakeven
from embstore.extraction.estimate import BreakEven
from embstore.store.layout import SITES

WITHIN = 1.2  # the larger of two figures over the smaller
KEPT = 0.002  # of the bytes of the vectors
BERT_BASE_NBYTES = 13 * 768 * 2
WHAT = {"words/s": "words/s computed again", "passes": "passes until storing is faster"}
SHARE = 4  # a sample has every fourth sentence of the run
VIRTUAL = 6000  # sentences whose virtual store is weighed
KINDS = ("plan", "sample", "run")


@dataclass(frozen=True)
class Case:
    """What is stored of `sentences` drawn from the corpus: enough that the disk is measured and not its noise."""

    model: str
    sentences: int
    options: es.ExtractionOptions


@dataclass(frozen=True)
class Ratios:
    """What was predicted over what the run of the same round took, by round."""

    rounds: list[float]

    @property
    def apart(self) -> float:
        """The larger over the smaller in the middle one."""
        middle = statistics.median(self.rounds)
        return max(middle, 1 / middle) if middle else math.inf

    def row(self) -> list[Any]:
        """Return the middle, the least, the most, and how many rounds are too far apart."""
        far = sum(not 1 / WITHIN <= ratio <= WITHIN for ratio in self.rounds)
        return [statistics.median(self.rounds), min(self.rounds), max(self.rounds), f"{far} of {len(self.rounds)}"]


def measured(case: Case, some: list[Any], kind: str, folder: str) -> BreakEven:
    """Return what a plan or a sample of some sentences says, or what all of them take in one store."""
    held: dict[str, Any] = {"model": case.model, "options": case.options}
    os.sync()  # what others have written is not flushed in this measurement
    if kind == "plan":
        found = es.plan(some, **held, store=Path(folder) / "x.zarr", progress=False).estimate.break_even
        if found is None:
            raise SystemExit(f"a plan of {len(some)} sentences measures nothing: give a larger --share")
        return found
    with patch.object(breakeven, "PARTS", 1 if kind == "run" else breakeven.PARTS):
        return breakeven.bench_breakeven(some[:: 1 if kind == "run" else SHARE], **held, folder=folder)


def round_of(case: Case, some: list[Any], number: int, folder: str) -> dict[str, float]:
    """Return the figures of each kind, measured one right after the other, in another order each round."""
    found: dict[str, float] = {}
    for kind in (KINDS, KINDS[::-1])[number % 2]:
        one = measured(case, some, kind, folder)
        found |= {f"{kind} words/s": one.n_rows / one.compute_seconds, f"{kind} passes": one.passes or math.inf}
    return found


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
    parser = parser_of(__doc__)
    for name in ("corpus", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the sentences of each case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="on the disk that is measured")
    given = parser.parse_args()
    narrow = str(narrow_model(given.model, Path(given.folder or tempfile.gettempdir()) / "narrow-bert"))
    cases = {
        "all layers": Case(given.model, 1200, es.ExtractionOptions()),
        "one layer, float32": Case(given.model, 1200, es.ExtractionOptions(layers="last", dtype="float32")),
        "two sites, a narrow model": Case(narrow, 9600, es.ExtractionOptions(sites=SITES[:2])),
    }
    corpus = list(es.open_corpus(given.corpus))
    random.Random(0).shuffle(corpus)  # the first sentences of a corpus are of one kind, and longer or shorter
    folder = given.folder or tempfile.gettempdir()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for number in range(given.rounds):
        for name, case in cases.items():
            some = corpus[: max(8, int(case.sentences * given.share))]
            found[name].append(round_of(case, some, number, folder))
    medians = {name: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
               for name, rounds in found.items()}  # fmt: skip
    print(table(["case", *medians["all layers"]], [[name, *each.values()] for name, each in medians.items()]))
    ratios = {f"{name}: {WHAT[what]}, {kind} against run":
              Ratios([each[f"{kind} {what}"] / each[f"run {what}"] for each in rounds])
              for name, rounds in found.items() for what in WHAT for kind in KINDS[:2]}  # fmt: skip
    print(table(["ratio", "middle", "least", "most", "apart"], [[name, *each.row()] for name, each in ratios.items()]))
    targets = [Target(name, each.apart, WITHIN, False) for name, each in ratios.items()]
    info = es.load_encoder(given.model).info
    own = (info.num_hidden_layers + 1) * info.hidden_size * 2
    kept, kept_of = {}, corpus[:VIRTUAL]
    for text, sentences in (("plain text", [each.words for each in kept_of]), ("the corpus with its labels", kept_of)):
        with tempfile.TemporaryDirectory() as folder:
            kept[text] = kept_nbytes(sentences, given.model, Path(folder))
        for name, nbytes in ((info.name, own), ("a model of BERT-base's shape", BERT_BASE_NBYTES)):
            what = f"share of the bytes that a virtual store of {text} and {name} keeps"
            targets.append(Target(what, kept[text] / nbytes, KEPT, False))
    print(targets_table(targets))
    sentences = {name: int(case.sentences * given.share) for name, case in cases.items()}
    settings = {"sentences": sentences, "sampled": f"one of {SHARE}", "rounds": given.rounds}
    by_round = {name: each.rounds for name, each in ratios.items()}
    held = {
        "settings": settings,
        "medians": medians,
        "ratios": by_round,
        "kept_nbytes_a_row": kept,
    }
    write_json(given.out, {"benchmark": "breakeven", **held, "targets": targets})


if __name__ == "__main__":
    main()
