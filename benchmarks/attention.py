"""What the statistics of attention cost, in forward passes over the same batches, and how the memory grows.

python benchmarks/attention.py en_ewt-ud-train.conllu --model MODEL_DIR --out benchmarks/results/attention.json
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import Target, anonymous_nbytes, machine, table, targets_table, write_json

import embstore as es
from embstore.analysis.attention.measure import Pass, Reader
from embstore.analysis.attention.statistic import STATISTICS
from embstore.models.transformer.attention import load_attention_model

FORWARD, NONE, ALL = "forward pass (sdpa)", "maps, no statistic", "all statistics"
LIMIT = 1.3  # forward passes


def cases_of(network: Any) -> dict[str, Callable[..., None]]:
    """Each takes a batch: a forward pass, and passes with no statistic, with each one, and with all together."""
    names = [name for name, kind in STATISTICS.items() if kind.needs != "mentions"]
    chosen = {NONE: [], **{name: [name] for name in names}, ALL: names}
    layer = network.info.num_hidden_layers

    @torch.inference_mode()
    def forward(tokens: Any, batch: Any, inputs: Any) -> None:
        network.network.fast_tap.run(inputs, (layer,), lambda number, state: None)

    cases: dict[str, Callable[..., None]] = {FORWARD: forward}
    for case, members in chosen.items():
        measured = Pass(network, [STATISTICS[name]() for name in members], layers=None, heads=None)

        def run(tokens: Any, batch: Any, inputs: Any, measured: Pass = measured) -> None:
            for name in ("valid", "members", "means", "kinds", "edges"):
                tokens.__dict__.pop(name, None)  # made again by each case that needs it
            measured.add(tokens, batch, inputs, packed=False)

        cases[case] = run
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    network = load_attention_model(given.model, device=torch.device("cpu"))
    corpus = es.open_corpus(given.corpus)
    reader = Reader(corpus, network, n_sentences=given.sentences, needs=("trees",))
    cases = cases_of(network)
    seconds: dict[str, float] = defaultdict(float)
    memory, reading, began = [], 0.0, time.process_time()
    for number, drawn in enumerate(reader.batches(2048, "padded")):
        reading += time.process_time() - began
        names = list(cases)
        for name in names[number % len(names) :] + names[: number % len(names)]:  # a slow minute affects all cases
            began = time.process_time()
            cases[name](*drawn)
            seconds[name] += time.process_time() - began
        memory.append(anonymous_nbytes())
        began = time.process_time()
    rows = [(name, taken, taken / seconds[FORWARD]) for name, taken in seconds.items()]
    rows.append(("reading, tokenizing and arranging", reading, reading / seconds[FORWARD]))
    print(f"{reader.n_done:,} sentences, {reader.n_subwords:,} subwords, {given.threads} thread(s), processor time")
    print(table(["case", "seconds", "forward passes"], rows))
    tenth = max(1, len(memory) // 10)
    growth = max(memory) / max(memory[:tenth])
    targets = [
        Target("all statistics together, in forward passes", seconds[ALL] / seconds[FORWARD], LIMIT, at_least=False),
        Target("memory after the corpus, of that after a tenth of it", growth, 1.1, at_least=False),
    ]
    print(targets_table(targets))
    result = {
        "machine": machine(),
        "model": network.info.name,
        "corpus": corpus.name,
        "n_sentences": reader.n_done,
        "n_subwords": reader.n_subwords,
        "threads": given.threads,
        "processor_seconds": {**seconds, "reading": reading},
        "forward_passes": {name: ratio for name, _, ratio in rows},
        "memory_nbytes": {"after_a_tenth": max(memory[:tenth]), "largest": max(memory)},
        "targets": [target.as_json() for target in targets],
    }
    write_json(given.out, result)


if __name__ == "__main__":
    main()
