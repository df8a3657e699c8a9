"""Where the time of an extraction goes, by processor time of one thread, each part next to its own limit.

python benchmarks/extract_parts.py --model MODEL_DIR --corpus novel.txt --sentences 2000
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from measure import Row, parser_of, show_rows, write_json
from torch import nn

import embstore as es
from embstore.extraction import estimate
from embstore.extraction.cast import Cast
from embstore.extraction.worker import Worker
from embstore.models.batched import BatchedEncoder
from embstore.models.running import LayerPooling
from embstore.models.transformer import varlen
from embstore.models.transformer.layers import LayerTap, PackedLinear

LINEAR, ATTENTION, NORM = "linear layers, GELU in them", "attention", "layer norms"
FORWARD = "rest of the forward pass: residual sums, embeddings, Python"
POOL, CAST, WRITE = "pooling", "check, cast, and copy into the shard", "checksum and write, in its thread"
CHECK, CALIBRATION, REST = (
    "the plan's self-check",
    "the plan's calibration",
    "the rest: text, index, opening and closing",
)
PARTS: tuple[tuple[Any, str, str], ...] = (
    (BatchedEncoder, "self_check", CHECK),
    (estimate, "calibrated_rate", CALIBRATION),
    (PackedLinear, "forward", LINEAR),
    (nn.Linear, "forward", LINEAR),
    (varlen, "_compiled", ATTENTION),
    (nn.LayerNorm, "forward", NORM),
    (LayerTap, "run", FORWARD),
    (LayerPooling, "__init__", POOL),
    (LayerPooling, "receive", POOL),
    (Cast, "check", CAST),
    (Cast, "into", CAST),
    (Worker, "_write", WRITE),
)
PRODUCTS = 5  # of each shape and round
WHOLE = (CHECK, CALIBRATION)  # with all that they call


class Clock:
    """Adds up the processor time of parts, each without the parts that it calls."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running = threading.local()

    def part(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return the function with its time counted."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            stack = self._running.__dict__.setdefault("parts", [])
            if stack and stack[-1] in WHOLE:
                return function(*args, **kwargs)
            stack.append(name)
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.thread_time() - start
                stack.pop()
                self.seconds[name] += taken
                if stack:
                    self.seconds[stack[-1]] -= taken

        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, part in PARTS:
                stack.enter_context(patch.object(owner, name, self.part(getattr(owner, name), part)))
            yield


def extracted(sentences: list[list[str]], encoder: Any, store: Path) -> tuple[dict[str, float], es.Plan]:
    """Plan and extract; returns the processor time of each part."""
    shutil.rmtree(store, ignore_errors=True)
    clock, start = Clock(), time.process_time()
    with clock.running():
        made = es.plan(sentences, model=encoder, store=store, progress=False)
        es.extract(made, store, progress=False)
    total = time.process_time() - start
    return {**clock.seconds, REST: total - sum(clock.seconds.values())}, made


def processor(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def limits(made: es.Plan, lengths: Any, folder: Path) -> dict[str, tuple[float, str]]:
    """Return the least time of the parts on this machine now, and what that is."""
    encoder, layout = made.encoder, made.layout
    hidden, layers = layout.hidden_size, len(layout.layers) - 1
    positions, inner = int(lengths.sum()), encoder.network.model.config.intermediate_size
    copied, taken, operations = torch.empty(2048, hidden), 0.0, 0
    for k, n, times in ((hidden, hidden, 4), (hidden, inner, 1), (inner, hidden, 1)):
        left, right, out = torch.randn(2048, k), torch.randn(k, n), torch.empty(2048, n)
        product = partial(torch.mm, left, right, out=out)
        product()
        taken += sum(processor(product) for _ in range(PRODUCTS * times))
        operations += PRODUCTS * times * k * n
    sgemm = taken / (2 * 2048 * operations)  # seconds for an operation
    source = torch.randn(2048, hidden)
    copy = processor(lambda: [copied.copy_(source) for _ in range(20)]) / (20 * source.nbytes)
    linear = 2.0 * positions * layers * operations / PRODUCTS
    attention = 4.0 * hidden * layers * float((lengths.astype(float) ** 2).sum())
    row = hidden * source.element_size()
    stored = np.zeros(layout.n_rows * made.metadata.row_nbytes, np.uint8)
    written = processor(lambda: stored.tofile(folder / "written"))
    return {
        LINEAR: (linear * sgemm, "sgemm"),
        ATTENTION: (attention * sgemm, "sgemm, without softmax"),
        NORM: ((2 * layers + 1) * positions * row * copy, "a copy of its input"),
        FORWARD: ((2 * layers + 3) * positions * row * copy, "a copy for each sum and embedding"),
        POOL: ((layers + 1) * layout.n_rows * row * copy, "a copy of the vectors"),
        CAST: ((layers + 1) * layout.n_rows * row * copy, "a copy of the vectors"),
        WRITE: (written, "writing as many bytes"),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="folder of a BERT-like Hugging Face model")
    parser.add_argument("--corpus", required=True, help="a corpus in any format that embstore reads")
    parser.add_argument("--sentences", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    encoder = es.load_encoder(arguments.model, device="cpu", compute_dtype="float32")
    rows = []
    with tempfile.TemporaryDirectory(prefix="embstore-bench-") as folder:
        for count in arguments.sentences:
            some = [list(sentence.words) for sentence in islice(es.open_corpus(arguments.corpus), count)]
            lengths = np.diff(encoder.tokenize(some).sentence_bounds) + encoder.n_specials
            spent, least = [], []
            for _ in range(arguments.repeats):
                parts, made = extracted(some, encoder, Path(folder) / "store.zarr")
                spent.append(parts)
                least.append(limits(made, lengths, Path(folder)))
            rows += list(rows_of(f"{len(some):,} sentences", spent, least))
        held = show_rows(rows)
    write_json(arguments.out, {"benchmark": "extract_parts", "rows": held})


def rows_of(text: str, spent: list[dict[str, float]], least: list[dict[str, tuple[float, str]]]) -> Iterator[Row]:
    """Yield the whole and its parts, the largest first, with their shares."""
    total = median(sum(parts.values()) for parts in spent)
    sgemm = median(sum(part[name][0] for name in (LINEAR, ATTENTION)) for part in least)
    targets = {"to_limit": 1 / 0.85}
    yield Row(f"{text}: plan and extraction", total, {}, sgemm, "sgemm", clock="processor", targets=targets)
    middle = {name: median(parts.get(name, 0.0) for parts in spent) for name in spent[0]}
    for name, seconds in sorted(middle.items(), key=lambda each: -each[1]):
        limit = median(part[name][0] for part in least) if name in least[0] else None
        what = f"{text}: {name}: {100 * seconds / total:.1f} %"
        yield Row(what, seconds, {}, limit, least[0][name][1] if limit else "", clock="processor")


if __name__ == "__main__":
    main()
