"""What the statistics of attention cost, in forward passes over the same batches, and how the memory grows.

The memory is the largest that is this process's own during a pass over some sentences, and over the same ten times,
each in a process of its own whose allocator returns large buffers to the system. Both read chunks of the same
sentences, so that what is sorted together, and the shapes that torch keeps code for, are the same.

python benchmarks/attention.py en_ewt-ud-train.conllu --model MODEL_DIR --out benchmarks/results/attention.json
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measure import Target, anonymous_nbytes, in_fresh_process, parser_of, table, targets_table, write_json

import embstore as es
from embstore.analysis.attention import measure
from embstore.analysis.attention.measure import Pass, Reader
from embstore.analysis.attention.statistic import STATISTICS
from embstore.models.transformer.attention import load_attention_model

FORWARD, NONE, ALL = "forward pass (sdpa)", "maps, no statistic", "all statistics"
LIMIT = 1.2  # forward passes


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
            for name in ("valid", "members", "means", "kinds", "first", "edges"):
                tokens.__dict__.pop(name, None)  # made again by each case that needs it
            measured.add(tokens, batch, inputs, packed=False)

        cases[case] = run
    return cases


TRIMMED = {"MALLOC_MMAP_THRESHOLD_": "524288", "MALLOC_TRIM_THRESHOLD_": "1048576", "OMP_NUM_THREADS": "1"}


def sentences_of(corpus: Path, count: int) -> str:
    """Return the first sentences of a CoNLL-U file."""
    return "".join(part + "\n\n" for part in corpus.read_text("utf-8").split("\n\n")[:count])


def memory_of(corpus: Path, model: Path, chunk: int) -> int:
    """Measure all statistics over a corpus; returns the largest memory of this process's own after any batch."""
    found, measure.CHUNK = [0], chunk

    def note(done: int, total: int | None) -> None:
        found.append(anonymous_nbytes())

    es.attention(corpus, model=model, threads=1, progress=note, device="cpu")
    return max(found)


def growth_of(corpus: Path, model: Path, count: int) -> dict[str, int]:
    """Measure the memory over `count` sentences and over the same ten times, each in a new process."""
    text = sentences_of(corpus, count)
    found = {}
    with TemporaryDirectory() as folder:
        for times in (1, 10):
            path = Path(folder) / f"{times}.conllu"
            path.write_text(text * times, "utf-8")
            options = ["--model", str(model), "--memory", "--growth", str(count)]
            found[f"{times * count:,} sentences"] = in_fresh_process(__file__, str(path), *options, environment=TRIMMED)
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--growth", type=int, default=500, help="sentences, for the memory of ten times more")
    parser.add_argument("--memory", action="store_true", help="print the memory of one pass and nothing else")
    given = parser.parse_args()
    if given.memory:
        print(memory_of(given.corpus, given.model, given.growth))
        return
    torch.set_num_threads(given.threads)
    network = load_attention_model(given.model, device=torch.device("cpu"))
    corpus = es.open_corpus(given.corpus)
    reader = Reader(corpus, network, n_sentences=given.sentences, needs=("trees",))
    cases = cases_of(network)
    seconds: dict[str, float] = defaultdict(float)
    reading, began = 0.0, time.process_time()
    for number, drawn in enumerate(reader.batches(2048, "padded")):
        reading += time.process_time() - began
        names = list(cases)
        for name in names[number % len(names) :] + names[: number % len(names)]:  # a slow minute affects all cases
            began = time.process_time()
            cases[name](*drawn)
            seconds[name] += time.process_time() - began
        began = time.process_time()
    rows = [(name, taken, taken / seconds[FORWARD]) for name, taken in seconds.items()]
    rows.append(("reading, tokenizing and arranging", reading, reading / seconds[FORWARD]))
    print(f"{reader.n_done:,} sentences, {reader.n_subwords:,} subwords, {given.threads} thread(s), processor time")
    print(table(["case", "seconds", "forward passes"], rows))
    memory = growth_of(given.corpus, given.model, given.growth)
    few, many = memory.values()
    targets = [
        Target("all statistics together, in forward passes", seconds[ALL] / seconds[FORWARD], LIMIT, at_least=False),
        Target("own memory of ten times as many sentences, of that of one", many / few, 1.05, at_least=False),
    ]
    print(targets_table(targets))
    result = {
        "benchmark": "attention",
        "model": network.info.name,
        "corpus": corpus.name,
        "n_sentences": reader.n_done,
        "n_subwords": reader.n_subwords,
        "threads": given.threads,
        "processor_seconds": {**seconds, "reading": reading},
        "forward_passes": {name: ratio for name, _, ratio in rows},
        "memory_nbytes": memory,
        "targets": targets,
    }
    write_json(given.out, result)


if __name__ == "__main__":
    main()
