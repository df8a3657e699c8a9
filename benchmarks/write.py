"""Write the vectors of a model that takes no time, next to memory maps and plain files.

    python benchmarks/write.py --rows 100000 --out benchmarks/results/write.json

7 layers of 384 features in float16, made before. All end when the disk has every byte (fsync); a store has its index
and checksums too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from made import N_TYPES, SENTENCE_WORDS
from measure import Case, measure, parser_of, timed, write_result

import embstore as es

LAYERS, FEATURES = 7, 384


def write_store(path: Path, parts: list[np.ndarray[Any, Any]], sentences: list[list[str]]) -> None:
    es.store.write_arrays(path, sentences, parts, model="random", dtype="float16")


def write_map(path: Path, parts: list[np.ndarray[Any, Any]], sentences: list[list[str]]) -> None:
    """One array [layer, row, feature] of a good script."""
    shape = LAYERS, sum(part.shape[1] for part in parts), FEATURES
    stored, row = np.lib.format.open_memmap(path, "w+", np.float16, shape), 0
    for part in parts:
        stored[:, row : row + part.shape[1]] = part
        row += part.shape[1]
    stored.flush()


def write_file(path: Path, parts: list[np.ndarray[Any, Any]], sentences: list[list[str]]) -> None:
    """The bytes in order."""
    with path.open("wb") as file:
        for part in parts:
            file.write(memoryview(part).cast("B"))
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    draw = np.random.default_rng(0)
    types = np.split(draw.zipf(1.1, arguments.rows) % N_TYPES, range(SENTENCE_WORDS, arguments.rows, SENTENCE_WORDS))
    sentences = [[f"w{word}" for word in part] for part in types]
    made = draw.standard_normal((LAYERS, SENTENCE_WORDS, FEATURES), np.float32).astype(np.float16)
    parts = [np.ascontiguousarray(made[:, : len(part)]) for part in types]
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as name, es.config(progress=False):
        path = Path(name) / "written.zarr"

        def case(write: Callable[..., None], number: int) -> float:
            seconds = timed(lambda: write(path, parts, sentences))
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            os.sync()  # what is deleted takes time too
            return seconds

        cases: dict[str, Case] = {"ours": partial(case, write_store), "np.memmap, flushed": partial(case, write_map)}
        cases["limit"] = partial(case, write_file)
        row = measure("write 7 layers x 384", cases, repeats=arguments.repeats, limit="as many bytes in one file",
                      target=1.0)  # fmt: skip
    nbytes = 2 * LAYERS * FEATURES * arguments.rows
    print(f"{nbytes / row.ours / 1e6:,.0f} MB/s")
    write_result(arguments.out, [row], nbytes=nbytes)


if __name__ == "__main__":
    main()
