"""The bank of probes on a GPU: its share of the rate of matrix products, compared with a loop over probes.

python benchmarks/gpu/bank.py --out benchmarks/results/h100-bank.json
The vectors are drawn at random; nothing but embstore and torch is needed. With --device cpu it runs anywhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from bank import loop, needed, products_rate, shape_of, train_seconds
from measure import Target, interleaved, parser_of, table, targets_table, timed, write_json

from embstore.probes.classes.bank import Shape
from embstore.probes.classes.examples import ArrayExamples, LabelledExamples
from embstore.probes.training import Schedule


@cache
def normals(device: str, count: int, width: int, layer: int, seed: int) -> NDArray[np.float32]:
    """Normal numbers, drawn on the device, since a CPU would take most of the time for them."""
    generator = torch.Generator(device).manual_seed(seed + layer)
    return torch.randn(count, width, device=device, generator=generator).cpu().numpy()


def drawn(arguments: argparse.Namespace, count: int) -> LabelledExamples:
    """Random vectors of random classes."""
    rng = np.random.default_rng(arguments.seed)
    layers = {
        layer: normals(arguments.device, count, arguments.width, layer, arguments.seed)
        for layer in range(arguments.layers)
    }
    kind = rng.integers(0, arguments.classes, count)
    return LabelledExamples(ArrayExamples(layers), kind, np.eye(arguments.classes, dtype=bool))


def looped(arguments: argparse.Namespace, shape: Shape, data: LabelledExamples, training: Schedule) -> float:
    """Seconds of the loop over a few probes of one layer, scaled to the number of all probes."""
    held = np.empty((1, len(data), arguments.width), np.float32)
    data.examples.read(np.arange(len(data)), [0], held)
    few = LabelledExamples(data.examples, data.group, data.targets[:, : arguments.looped])
    call = partial(loop, shape.kind, arguments.hidden, few, {0: held[0]}, training, arguments.device)

    def waited() -> None:
        call()
        if arguments.device != "cpu":
            torch.cuda.synchronize()

    return timed(waited) * arguments.layers * arguments.classes / few.targets.shape[1]


def measured(arguments: argparse.Namespace, kind: str, tf32: bool) -> dict[str, Any]:
    """Measure `steps` steps of a bank (twice as many less as many), matrix products of the same kind, and the loop."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    names = tuple(f"class {number}" for number in range(arguments.classes))
    shape = shape_of(kind, names, tuple(range(arguments.layers)), arguments.width, arguments.hidden)
    training = Schedule(epochs=1, batch_size=arguments.batch)
    once, twice = (drawn(arguments, steps * arguments.batch) for steps in (arguments.steps, 2 * arguments.steps))
    size = arguments.square
    cases: dict[str, Callable[[int], float]] = {
        "products": lambda _: 2 * size**3 / products_rate(arguments.device, size),
        "once": lambda _: train_seconds(shape, once, training, arguments.device),
        "twice": lambda _: train_seconds(shape, twice, training, arguments.device),
        "loop": lambda _: looped(arguments, shape, once, training),
    }
    times = interleaved(cases, repeats=arguments.repeats, warm=1, tell=True)
    seconds = median(more - less for less, more in zip(times["once"].seconds, times["twice"].seconds, strict=True))
    rate, products = needed(shape, len(once)) / seconds, 2 * size**3 / times["products"].median
    return {
        "kind": kind,
        "tf32": tf32,
        "probes": len(shape.layers) * shape.n_probes,
        "step_s": seconds / arguments.steps,
        "flops_per_second": rate,
        "products_per_second": products,
        "share": rate / products,
        "loop_over_bank": times["loop"].median / seconds,
        "peak_nbytes": torch.cuda.max_memory_allocated() if arguments.device != "cpu" else 0,
    }


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--classes", type=int, default=34)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--looped", type=int, default=4, help="probes that the loop trains; the others take as long")
    parser.add_argument("--square", type=int, default=8192, help="rows and columns of the products")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    precisions = (False,) if arguments.device == "cpu" else (False, True)
    found = [measured(arguments, kind, tf32) for kind in ("linear", "mlp") for tf32 in precisions]
    rows = [
        (f"{each['kind']}, {'TF32' if each['tf32'] else 'float32'}", 1e3 * each["step_s"],
         each["flops_per_second"] / 1e12, each["products_per_second"] / 1e12, each["share"], each["loop_over_bank"])
        for each in found
    ]  # fmt: skip
    head = [f"{found[0]['probes']} probes", "ms a step", "TFLOP/s", "products", "share", "loop over bank"]
    print(table(head, rows) + "\n")
    targets = [
        Target(f"{each['kind']}{', TF32' if each['tf32'] else ''}: loop, of the time of the bank",
               each["loop_over_bank"], 10, True)
        for each in found
    ]  # fmt: skip
    targets += [Target("mlp: share of the rate of products", each["share"], 0.6, True)
                for each in found if each["kind"] == "mlp" and not each["tf32"]]  # fmt: skip
    print(targets_table(targets))
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    write_json(
        arguments.out,
        {
            "benchmark": "bank on a GPU",
            "settings": settings,
            "found": found,
            "targets": targets,
        },
    )


if __name__ == "__main__":
    main()
