"""How well a sample predicts what storing, reading and computing a corpus again take, and what a virtual store keeps.

python benchmarks/breakeven.py --corpus en_ewt-ud-dev.conllu --model MODEL --decoder DECODER \\
    --out benchmarks/results/breakeven.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from measure import Target, machine, table, targets_table, write_json

import embstore as es

WITHIN = 1.2  # the larger of two figures over the smaller
KEPT = 0.002  # of the bytes of the vectors
BERT_BASE_NBYTES = 13 * 768 * 2


def apart(one: float, other: float) -> float:
    return max(one, other) / min(one, other)


def kept_nbytes(corpus: str, model: str, folder: Path) -> float:
    """The bytes a row of a virtual store of a corpus, without its zarr.json files."""
    made = es.plan(corpus, model=model, options=es.ExtractionOptions(layers=[0]), calibrate=False, progress=False)
    store = es.extract(made, folder / "virtual.zarr", virtual=True, progress=False)
    files = (file for file in Path(str(store.path)).rglob("*") if file.is_file() and file.name != "zarr.json")
    return sum(file.stat().st_size for file in files) / store.n_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "model", "decoder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--sample", type=int, default=500)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    given = parser.parse_args()
    cases = {
        "all layers": (given.model, "all"),
        "one layer": (given.model, "last"),
        "a small decoder": (given.decoder, "all"),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(given.rounds):
        for name, (model, layers) in cases.items():
            options = es.ExtractionOptions(layers=layers)
            planned = es.plan(given.corpus, model=model, options=options, progress=False).estimate.break_even
            assert planned is not None
            sample, real = (
                es.extraction.bench_breakeven(given.corpus, model=model, options=options, sentences=sentences)
                for sentences in (given.sample, given.sentences)
            )
            rates = {key: each.n_rows / each.compute_seconds for key, each in
                     {"planned": planned, "sample": sample, "real": real}.items()}  # fmt: skip
            passes = {f"{key} passes": each.passes or 0.0 for key, each in (("sample", sample), ("real", real))}
            found[name].append({**rates, **passes})
    medians = {name: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
               for name, rounds in found.items()}  # fmt: skip
    print(table(["case", *medians["all layers"]], [[name, *each.values()] for name, each in medians.items()]))
    targets = []
    for name, each in medians.items():
        for key, what in (("sample", "a sample"), ("planned", "the plan")):
            ratio = apart(each[key], each["real"])
            targets.append(Target(f"{name}: words/s computed again, {what} against the run", ratio, WITHIN, False))
        ratio = apart(each["sample passes"], each["real passes"])
        targets.append(Target(f"{name}: passes until storing is faster, sample against run", ratio, WITHIN, False))
    with tempfile.TemporaryDirectory() as folder:
        kept = kept_nbytes(given.corpus, given.model, Path(folder))
    info = es.load_encoder(given.model).info
    own = (info.num_hidden_layers + 1) * info.hidden_size * 2
    for name, nbytes in ((info.name, own), ("a model of BERT-base's shape", BERT_BASE_NBYTES)):
        targets.append(Target(f"share of the bytes that a virtual store of {name} keeps", kept / nbytes, KEPT, False))
    print(targets_table(targets))
    settings = {"sample": given.sample, "sentences": given.sentences, "rounds": given.rounds}
    held = {"machine": machine(), "settings": settings, "medians": medians, "kept_nbytes_a_row": kept}
    write_json(given.out, {"benchmark": "breakeven", **held, "targets": [target.as_json() for target in targets]})


if __name__ == "__main__":
    main()
