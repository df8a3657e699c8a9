"""Geometry side by side, in one run: a bare scan, one pass of embstore, scripts in torch and numpy, pairs, SVDs.

The scripts have the layer in memory as one array, and compute the same from sums.

python benchmarks/geometry.py STORE --repeats 5 --out benchmarks/results/geometry.json
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import Target, interleaved, machine, paired_ratios, table, targets_table, timed, write_json
from numpy.typing import NDArray

import embstore as es
from embstore.analysis.geometry.spectra import maximum_explainable_variance
from embstore.analysis.words import WordRows, rows_of_words

SCAN, PASS, TOUCH = "bare scan", "selfsim + intrasim + anisotropy", "scan + float32 + norms"
ONE, LAYER, TORCH, NUMPY = "the same, one thread", "one pass of the layer", "torch index_add", "numpy reduceat"
MEV, SVD, SVD_VECTORS = "MEV", "numpy svd a word, values alone", "numpy svd a word"
PASS_METRICS = ("selfsim", "intrasim", "anisotropy")


@dataclass
class Bench:
    store: es.Store
    types: NDArray[np.int64]
    words: WordRows
    layer: int
    pair_words: int

    def __post_init__(self) -> None:
        """Copy the layer to memory for the scripts."""
        self.vectors = self.store.gather(np.arange(self.store.n_rows), self.layer)
        index = self.store.index
        self.type, self.sentence = (np.array(codes, np.int64) for codes in (index.type, index.sentence))

    def scan(self, number: int) -> float:
        return timed(self._scan)

    def _scan(self) -> None:
        for layer in self.store.layers:
            for _ in self.store.scan(layer):
                pass

    def one_pass(self, number: int) -> float:
        return timed(partial(es.geometry, self.store, metrics=PASS_METRICS))

    def one_thread(self, number: int) -> float:
        return timed(partial(es.geometry, self.store, metrics=PASS_METRICS, threads=1))

    def one_layer(self, number: int) -> float:
        return timed(partial(es.geometry, self.store, metrics=PASS_METRICS, layers=self.layer))

    def script(self, number: int, *, sums: Any) -> float:
        return timed(partial(cosines_of, self, sums))

    def touch(self, number: int) -> float:
        """The least that any figure of cosines needs: the values as float32, and their lengths."""
        return timed(partial(es.reduce, self.store, {"nothing": Nothing()}))

    def mev(self, number: int) -> float:
        return timed(partial(maximum_explainable_variance, self.store, layer=self.layer, types=self.types))

    def svd(self, number: int, *, vectors: bool) -> float:
        return timed(partial(self._svd, vectors=vectors))

    def _svd(self, *, vectors: bool) -> None:
        for place in range(len(self.types)):
            held = self.store.gather(self.words.of(place), self.layer).astype(np.float32)
            np.linalg.svd(held, full_matrices=False, compute_uv=vectors)


class Nothing:
    """A reducer that keeps nothing: what remains is the engine, as reducers written in torch find it."""

    def init(self, scope: es.analysis.Scope) -> None:
        return None

    def update(self, state: None, batch: es.analysis.Batch) -> None:
        batch.require_finite()

    def merge(self, state: None, other: None) -> None:
        return None

    def finish(self, state: None, scope: es.analysis.Scope) -> None:
        return None


def sums_in_torch(vectors: NDArray[Any], groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float32]:
    """The sum of the vectors of each group, by index_add_."""
    sums = torch.zeros(n_groups, vectors.shape[1])
    return sums.index_add_(0, torch.from_numpy(groups), torch.from_numpy(vectors)).numpy()


def sums_in_numpy(vectors: NDArray[Any], groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float32]:
    """The sum of the vectors of each group, which has one or more, by a sort and reduceat."""
    ascending = bool((groups[1:] >= groups[:-1]).all())
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(n_groups))
    return np.add.reduceat(vectors if ascending else vectors[order], starts, axis=0)


SCRIPTS = {TORCH: sums_in_torch, NUMPY: sums_in_numpy}


def cosines_of(bench: Bench, sums: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Self-similarity of all words, intra-sentence similarity and anisotropy, from a layer in memory as one array."""
    if sums is sums_in_torch:
        held = torch.from_numpy(bench.vectors).float()
        vectors, units = held.numpy(), torch.nn.functional.normalize(held).numpy()
    else:
        vectors = bench.vectors.astype(np.float32)
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    counts, sizes = np.bincount(bench.type).astype(np.float64), np.bincount(bench.sentence)
    words = sums(units, bench.type, len(counts))
    own, own_units = (sums(each, bench.sentence, len(sizes)) for each in (vectors, units))
    with np.errstate(invalid="ignore", divide="ignore"):
        selfsim = (np.square(words).sum(1, dtype=np.float64) - counts) / (counts * (counts - 1))
    intrasim = (own * own_units).sum(1) / np.linalg.norm(own, axis=1) / sizes
    total, n_rows = own_units.sum(0, dtype=np.float64), len(units)
    return selfsim, intrasim, float((total @ total - n_rows) / (n_rows * (n_rows - 1.0)))


def differences(bench: Bench) -> dict[str, float]:
    """The largest difference between each script and ours, over all words, sentences and the layer."""
    frame = es.geometry(bench.store, metrics=PASS_METRICS, layers=bench.layer)
    ours = {metric: frame.filter(metric=metric)["value"].to_numpy() for metric in PASS_METRICS}
    found = {}
    for name, sums in SCRIPTS.items():
        selfsim, intrasim, anisotropy = cosines_of(bench, sums)
        several = intrasim[np.bincount(bench.sentence) > 1]
        theirs = {"selfsim": selfsim[bench.types], "intrasim": several}
        each = [np.abs(values - ours[metric][1:]).max() for metric, values in theirs.items()]
        found[name] = float(max(*each, abs(anisotropy - ours["anisotropy"][0])))
    return found


def self_similarity_by_pairs(vectors: NDArray[Any]) -> float:
    """A word's mean cosine pair by pair, as `contextual` computes it."""
    similarities = []
    for one in range(len(vectors)):
        for other in range(one + 1, len(vectors)):
            first, second = vectors[one], vectors[other]
            similarities.append(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
    return float(np.mean(similarities))


def pairs(bench: Bench, *, seed: int) -> dict[str, Any]:
    """Time the loop over pairs on some words and hold its results against ours."""
    drawn = np.random.default_rng(seed).permutation(len(bench.types))[: bench.pair_words]
    ours = es.geometry(bench.store, metrics="selfsim", layers=bench.layer)
    values = dict(zip(ours["item"], ours["value"], strict=True))
    number, difference = 0, 0.0
    started = time.perf_counter()
    for place in drawn.tolist():
        vectors = bench.store.gather(bench.words.of(place), bench.layer).astype(np.float32)
        value = self_similarity_by_pairs(vectors)
        word = bench.store.index.words[int(bench.types[place])]
        difference = max(difference, abs(value - values[word]))
        number += len(vectors) * (len(vectors) - 1) // 2
    seconds = time.perf_counter() - started
    every = int((bench.words.counts * (bench.words.counts - 1) // 2).sum())
    return {
        "words": len(drawn),
        "pairs": number,
        "pairs_per_second": number / seconds,
        "all_pairs_of_a_layer": every,
        "projected_layer_s": every / number * seconds,
        "largest_difference": difference,
    }


def prepared(arguments: argparse.Namespace) -> Bench:
    store = es.open(arguments.store)
    types = es.analysis.eligible_types(store, 5)
    layer = store.layers[-1] if arguments.layer is None else arguments.layer
    return Bench(store, types, rows_of_words(store, types), layer, arguments.pair_words)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="a finished store of 200,000 rows or more")
    parser.add_argument("--layer", type=int, help="whose words are decomposed; the last if not given")
    parser.add_argument("--pair-words", type=int, default=200, help="words that the loop over pairs does")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    described = machine()
    bench = prepared(arguments)
    nbytes = bench.store.n_rows * bench.store.layout.row_nbytes
    print(
        f"{bench.store.n_rows:,} rows x {len(bench.store.layers)} layers x {bench.store.hidden_size} "
        f"{bench.store.dtype} ({nbytes / 1e9:.2f} GB), {len(bench.types):,} words of 5 or more contexts with "
        f"{len(bench.words.rows):,} occurrences, {torch.get_num_threads()} threads\n"
    )
    whole = interleaved(
        {SCAN: bench.scan, TOUCH: bench.touch, PASS: bench.one_pass, ONE: bench.one_thread}, repeats=arguments.repeats
    )
    scripts = {name: partial(bench.script, sums=sums) for name, sums in SCRIPTS.items()}
    layer = interleaved({LAYER: bench.one_layer, **scripts}, repeats=arguments.repeats)
    differ = differences(bench)
    words = interleaved(
        {MEV: bench.mev, SVD: partial(bench.svd, vectors=False), SVD_VECTORS: partial(bench.svd, vectors=True)},
        repeats=max(1, arguments.repeats // 2),
    )
    looped = pairs(bench, seed=arguments.seed)
    each = whole[PASS].median / len(bench.store.layers)
    ratios = {
        "pass_over_scan": median(paired_ratios(whole[PASS], whole[SCAN])),
        "one_thread_over_scan": median(paired_ratios(whole[ONE], whole[SCAN])),
        "torch_over_layer": median(paired_ratios(layer[TORCH], layer[LAYER])),
        "numpy_over_layer": median(paired_ratios(layer[NUMPY], layer[LAYER])),
        "touch_over_scan": median(paired_ratios(whole[TOUCH], whole[SCAN])),
        "pairs_over_pass": looped["projected_layer_s"] / each,
        "svd_over_mev": median(paired_ratios(words[SVD_VECTORS], words[MEV])),
        "svd_values_over_mev": median(paired_ratios(words[SVD], words[MEV])),
    }
    rows = [(name, times.median, nbytes / times.median / 1e9) for name, times in whole.items()]
    print(table(["all layers", "seconds", "GB/s"], rows) + "\n")
    of_layer = [(name, times.median) for name, times in (layer | words).items()]
    print(table([f"layer {bench.layer}", "seconds"], of_layer) + "\n")
    print("".join(f"largest difference from {name}: {value:.1e}\n" for name, value in differ.items()))
    print(
        f"loop over pairs: {looped['pairs_per_second']:,.0f} pairs/s on {looped['words']} words; all "
        f"{looped['all_pairs_of_a_layer']:,} pairs of a layer would take {looped['projected_layer_s']:,.0f} s, ours "
        f"{each:.3f} s; largest difference {looped['largest_difference']:.1e}\n"
    )
    targets = [
        Target("one pass, times the bare scan", ratios["pass_over_scan"], 2.5, False),
        Target("one pass in one thread, times the bare scan", ratios["one_thread_over_scan"], 3.5, False),
        Target("one pass of a layer, speed relative to torch", ratios["torch_over_layer"], 1, True),
        Target("one pass of a layer, speed relative to numpy", ratios["numpy_over_layer"], 1, True),
        Target("speed relative to the loop over pairs", ratios["pairs_over_pass"], 100, True),
        Target("MEV, speed relative to numpy.linalg.svd a word", ratios["svd_over_mev"], 10, True),
    ]
    print(targets_table(targets))
    write_json(
        arguments.out,
        {
            "benchmark": "geometry",
            "machine": described,
            "store": {"rows": bench.store.n_rows, "layers": len(bench.store.layers), "nbytes": nbytes},
            "words": {"count": len(bench.types), "occurrences": len(bench.words.rows)},
            "cases": {name: times.as_json() for name, times in (whole | layer | words).items()},
            "largest_differences": differ,
            "pairs": looped,
            "ratios": ratios,
            "targets": [target.as_json() for target in targets],
        },
    )


if __name__ == "__main__":
    main()
