"""The host's milliseconds for a batch of 65,536 positions of BERT-base on a GPU, measured on a machine without one.

    python benchmarks/host.py --before ../earlier/.venv/bin/python --out benchmarks/results/host.json

`es.extract` prepares batches as for a GPU, and nothing is computed: its tensors are on torch's device "meta", where
they have a shape and no values. What a GPU is sent is copied once, as into pinned memory; copying back and writing,
which other threads do without Python, are left out. "launches" is the time of a short batch of a model with as many
blocks and few features on the CPU, and what launches of CUDA take longer.

`--before` is the Python of an earlier checkout, which takes turns with this one. Shares are of a forward pass on paper
(`forward_milliseconds`). One thread prepares and launches, another one reads text. They share the interpreter's lock,
so "both threads" is the sum: what a batch must take on the GPU, for the host not to be what is waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from made import SHAPES, made_sentences, made_words, save_model
from measure import parser_of, write_result

BATCH = 65536  # positions: the largest batch that a GPU is given
SENTENCES = 10_500  # of 20 words: four batches
BERT = SHAPES["BERT-base"]
NARROW = {**BERT, "hidden_size": 48, "intermediate_size": 64}
LAUNCHED = 1e-3  # seconds that 250 launches of CUDA take longer than operators over few numbers on a CPU, about
ROUNDS, LAUNCHES = 5, 200  # in a process, after one that fills caches
STORED = {"one layer": [12], "all layers": list(range(13))}
MAIN = ("batches", "inputs", "kept positions", "plan of gather", "launches", "plan of cast", "rest")
FLOPS, NBYTES = (600e12, 400e12), 3e12  # of an H100 a second: float16 products, at best and often; its memory


def forward_milliseconds() -> tuple[float, float]:
    """Return the least and the most that the forward pass of a batch takes on an H100, on paper.

    Operations of the linear layers over the rate of products, and the bytes of what is done between them (bias, norms,
    sums, GELU, attention without its products) over the rate of the memory: 22 times the hidden states a block.
    """
    blocks, size, inner = (BERT[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    flops = 2.0 * BATCH * blocks * (4 * size * size + 2 * size * inner)
    between = 22 * 2.0 * BATCH * size * blocks / NBYTES
    low, high = (1000 * (flops / rate + between) for rate in FLOPS)
    return low, high


class Clock:
    """Seconds of this thread on a processor by stage, without those of stages inside of it."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inside, self._since = ["rest"], time.thread_time()

    def note(self) -> None:
        """Count the time since the last note for the present stage."""
        now = time.thread_time()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.note()
        self._inside.append(name)
        try:
            yield
        finally:
            self.note()
            self._inside.pop()

    def watch(self, owner: Any, name: str, stage: str) -> None:
        """Count the calls of a function as a stage, if the owner has it: earlier checkouts have others."""
        call = getattr(owner, name, None)

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.stage(stage):
                return call(*args, **kwargs)

        if call is not None:
            setattr(owner, name, watched)

    def each(self, items: Iterable[Any], stage: str) -> Iterator[Any]:
        """Yield items, and count what makes them as a stage."""
        iterator, end = iter(items), object()
        while True:
            with self.stage(stage):
                item = next(iterator, end)
            if item is end:
                return
            yield item


class MeasuredError(Exception):
    """Ends an extraction that has been measured."""


def launches(encoder: Any, layers: list[int]) -> float:
    """Return the seconds of a batch of one sentence, and of launching its operators on a GPU."""
    from embstore.corpus import Sentence
    from embstore.models.batched import word_spans
    from embstore.models.transformer import varlen

    def attend(module: Any, query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        return query.transpose(1, 2).clone(), None

    transformers.AttentionInterface.register(varlen.NAME, attend)  # the kernel of CUDA, as one operator
    encoder.drop_fast_layers()
    encoder.use_batching("varlen")
    tokenized = encoder.tokenize([Sentence(["a", "bababababa"])]).tokenized
    spans = word_spans(tokenized, None)

    def once() -> None:
        list(encoder.encode(tokenized, spans, layers=layers, pooling="mean", batch_subwords=512, on_device=True))

    once()
    clock = Clock()
    for _ in range(LAUNCHES):
        with clock.stage("launches"):
            once()
    transformers.AttentionInterface.register(varlen.NAME, varlen.attend)
    return clock.seconds["launches"] / LAUNCHES + LAUNCHED


def pretend(encoder: Any) -> None:
    """Let an encoder take "meta" for a GPU, whose model and pooling are launched in no time."""
    from embstore.models import batched, running

    device, network = torch.device("meta"), encoder.network
    pinned = torch.empty(2**24, dtype=torch.uint8)

    def to_device(array: Any, _: torch.device) -> torch.Tensor:
        tensor = torch.from_numpy(array.ravel())
        pinned[: tensor.nbytes].copy_(tensor.view(torch.uint8))
        return torch.empty(array.shape, dtype=tensor.dtype, device=device)

    for name, module in list(sys.modules.items()):
        if name.startswith("embstore.") and hasattr(module, "to_device"):
            module.to_device = to_device
    batched.BatchedEncoder.casts_on_device = property(lambda self: True)
    running.LayerPooling.vectors = lambda self: [one[:, : len(self.order)] for one in self._gathered.values()]
    object.__setattr__(network.tap, "run", lambda *_: None)
    for owner in (encoder, network, network.inputs):
        object.__setattr__(owner, "device", device)
        object.__setattr__(owner, "dtype", torch.float16)


def measured(folder: Path, layers: list[int]) -> dict[str, float]:
    """Return the milliseconds of each stage for a batch, and how many words it has."""
    import embstore as es
    from embstore.extraction import cast, worker
    from embstore.models import batched, running

    torch.set_num_threads(1)
    clock, positions, rounds = Clock(), [], []
    figures = {"launches": 1000 * launches(es.load_encoder(folder / "narrow"), layers)}
    encoder = es.load_encoder(folder / "BERT")
    options = es.ExtractionOptions(layers=layers, batch_subwords=BATCH)
    plan = es.plan(made_sentences(SENTENCES, made_words(60_000)), model=encoder, options=options, calibrate=False)
    init, make_batches = worker.Worker.__init__, batched.make_batches

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        pretend(encoder)
        init(self, *args, **kwargs)

    def run(self: Any, tasks: Iterable[Any]) -> None:
        tasks = list(tasks)

        def once() -> None:
            self._ring.restart()
            for full in self._encoded(iter(tasks)):
                full.group.leave(full.partition)

        def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for batch in clock.each(make_batches(*args, **kwargs), "batches"):
                positions.append(batch.positions)
                yield batch

        batched.make_batches = counted
        once()
        scale = 1000 * BATCH / sum(positions)
        figures["words"] = plan.survey.n_words * BATCH / sum(positions)
        for owner, name, stage in (
            (batched, "sentences_with_spans", "batches"),
            (type(encoder.network.inputs), "batch", "inputs"),
            (running.SpanWork, "kept_positions", "kept positions"),
            (running.SpanWork, "spans_of", "plan of gather"),
            (running.LayerPooling, "__init__", "plan of gather"),
            (cast.Cast, "into", "plan of cast"),
        ):
            clock.watch(owner, name, stage)
        worker.prefetched = lambda items: clock.each(items, "text")
        for _ in range(ROUNDS):
            clock.restart()
            once()
            clock.note()
            rounds.append(clock.seconds)
        figures.update(
            {stage: scale * min(one[stage] for one in rounds) for stage in (*MAIN, "text") if stage != "launches"}
        )
        raise MeasuredError

    worker.Worker.__init__, worker.Worker.run = make, run
    try:
        es.extract(plan, folder / f"{os.getpid()}.zarr")
    except MeasuredError:
        return figures
    raise AssertionError("no worker ran")


def medians(processes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each stage over processes, and the sums of both threads."""
    figures = {name: median(one[name] for one in processes) for name in processes[0]}
    main = sum(figures[stage] for stage in MAIN)
    return {**figures, "main thread": main, "both threads": main + figures["text"]}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--before", help="the Python of an earlier checkout")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(Path(arguments.tmp), STORED[arguments.one])))
        return
    pythons = {**({"before": arguments.before} if arguments.before else {}), "now": sys.executable}
    low, high = forward_milliseconds()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        save_model(Path(folder) / "BERT", made_words(60_000), **BERT)
        save_model(Path(folder) / "narrow", made_words(60_000), **NARROW)
        for stored in STORED:
            ran: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
            for _ in range(arguments.repeats):
                for name, python in pythons.items():
                    command = [python, __file__, "--one", stored, "--tmp", folder]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    ran[name].append(json.loads(done.stdout.splitlines()[-1]))
            result[stored] = {name: medians(processes) for name, processes in ran.items()}
            for name, figures in result[stored].items():
                print(f"{stored}, {name}:", ", ".join(f"{stage} {value:.1f}" for stage, value in figures.items()))
                for threads in ("main thread", "both threads"):
                    print(f"  {threads}: {figures[threads] / high:.2f} to {figures[threads] / low:.2f} of the pass")
    write_result(arguments.out, [], milliseconds=result, forward_milliseconds=[low, high], batch=BATCH)


if __name__ == "__main__":
    main()
