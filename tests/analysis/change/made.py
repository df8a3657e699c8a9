"""Two stores of chosen vectors in which some words change, and loops over pairs as oracles."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np

from embstore.store import Labels, Store, Strings
from tests.analysis.word_store import Written, write_rows, write_words

HIDDEN = 12
YEARS = ["1900", "1910", "1920", "1930", "1940"]


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


def with_years(
    folder: Path, *, seed: int = 0, change: int = 2, n_periods: int = 4, layers: tuple[int, ...] = (2,)
) -> Store:
    """`a` is elsewhere in the last layer from period `change` on, `b` is not; each period has 25 of both."""
    random = np.random.default_rng(seed)
    n_rows = 50 * n_periods
    types = np.arange(n_rows) % 2
    codes = (np.arange(n_rows) // 50).astype(np.int32)
    vectors = random.normal(size=(len(layers), n_rows, 8)) + 3 * np.eye(8)[0]
    vectors[-1, (types == 0) & (codes >= change)] += 4 * np.eye(8)[1]
    labels = {"year": Labels(codes, Strings.of(YEARS[:n_periods]))}
    options = {"layers": layers, "labels": labels, "sentence_words": 1}
    return write_rows(folder / "years.zarr", ["a", "b"], types, vectors, **options).store  # type: ignore[arg-type]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0


def mean_cosine_of_pairs(vectors: np.ndarray) -> float:
    n = len(vectors)
    return float(np.mean([cosine(vectors[i], vectors[j]) for i, j in product(range(n), repeat=2) if i != j]))


def measures_by_pairs(old: np.ndarray, new: np.ndarray, centers: np.ndarray) -> dict[str, float]:
    """All measures by loops over pairs of occurrences."""
    apd = float(np.mean([1 - cosine(one, other) for one, other in product(old, new)]))
    within = mean_cosine_of_pairs(old), mean_cosine_of_pairs(new)
    prototypes = cosine(old.mean(0), new.mean(0))
    return {
        "apd": apd,
        "apd_excess": apd - ((1 - within[0]) + (1 - within[1])) / 2,
        "prt": 1 - prototypes,
        "inverse_prt": 1 / prototypes if prototypes > 0 else float("nan"),
        "prt_centered": 1 - cosine(old.mean(0) - centers[0], new.mean(0) - centers[1]),
        "selfsim_old": within[0],
        "selfsim_new": within[1],
        "selfsim_change": within[1] - within[0],
    }
