"""Two stores of chosen vectors in which some words change, and loops over pairs as oracles."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np

from tests.analysis.word_store import Written, write_words

HIDDEN = 12


def write_sides(
    folder: Path,
    *,
    n_words: int = 8,
    n_changed: int = 2,
    count: int = 30,
    strength: float = 4.0,
    shift: float = 0.0,
    layers: tuple[int, ...] = (2,),
    seed: int = 0,
    dtype: str = "float32",
) -> tuple[Written, Written]:
    """Words `w0`, `w1`, ... on two sides: half of the new occurrences of the first `n_changed` are elsewhere.

    `shift`: how far all vectors of the new side are moved together.
    """
    random = np.random.default_rng(seed)
    base, moved = random.normal(size=(2, n_words, HIDDEN))
    base *= np.sqrt(HIDDEN) / np.linalg.norm(base, axis=1, keepdims=True)
    moved -= np.einsum("ij,ij->i", moved, base)[:, None] * base / HIDDEN  # at a right angle to the other uses
    moved *= np.sqrt(HIDDEN) / np.linalg.norm(moved, axis=1, keepdims=True)
    common = random.normal(size=HIDDEN)
    written = []
    for side in range(2):
        words = []
        for number in range(n_words):
            n_rows = count + 2 * number + 5 * side
            vectors = 2 * base[number] + random.normal(size=(len(layers), n_rows, HIDDEN))
            if side and number < n_changed:
                vectors[:, : n_rows // 2] += strength * moved[number]
            words.append((f"w{number}", vectors + side * shift * common))
        options = {"layers": layers, "seed": seed + side, "dtype": dtype}
        written.append(write_words(folder / f"side{side}.zarr", words, **options))  # type: ignore[arg-type]
    return written[0], written[1]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0


def distances_by_pairs(old: np.ndarray, new: np.ndarray) -> dict[str, float]:
    """Both distances by loops over pairs of occurrences."""
    apd = float(np.mean([1 - cosine(one, other) for one, other in product(old, new)]))
    return {"apd": apd, "prt": 1 - cosine(old.mean(0), new.mean(0))}
