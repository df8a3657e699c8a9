"""Geometry side by side, in one run: a bare scan, one pass of embstore, a script in torch, pairs, SVDs.

The script has the layer in memory as one array, and computes the same from sums.

python benchmarks/geometry.py STORE --repeats 5 --out benchmarks/results/geometry.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Row, interleaved, parser_of, show_rows, write_json
from numpy.typing import NDArray

import embstore as es
from embstore.analysis.geometry.spectra import maximum_explainable_variance
from embstore.analysis.words import rows_of_words
from embstore.bench.cases import GEOMETRY, in_each_round, scanned
from embstore.bench.measure import row_of, spent
from embstore.bench.rivals import cosines_in_torch


def layers_rows(store: es.Store, repeats: int) -> Iterator[Row]:
    """The three cosines of all layers, with all threads and with one."""

    def scan(number: int) -> None:
        for layer in store.layers:
            scanned(store, layer)

    measure = partial(in_each_round, es.geometry, store, metrics=GEOMETRY, progress=False)
    threads = torch.get_num_threads()
    times = interleaved({"limit": scan, "ours": measure(), "one": measure(threads=1)}, repeats=repeats)
    what = f"three cosines of {len(store.layers)} layers"
    more: dict[str, Any] = {"limit_name": "bare scan"}
    one = times.pop("one")
    yield row_of(what, times, threads=threads, targets={"to_limit": 2.5}, **more)
    yield row_of(what, {**times, "ours": one}, targets={"to_limit": 3.5}, **more)


def layer_rows(store: es.Store, layer: int, repeats: int) -> Iterator[Row]:
    """The three cosines of one layer, compared with a script that has it in memory."""
    vectors, index = store.gather(np.arange(store.n_rows), layer), store.index
    cases = {
        "ours": in_each_round(es.geometry, store, metrics=GEOMETRY, layers=layer, progress=False),
        "torch, normalize and index_add": in_each_round(cosines_in_torch, vectors, index.type, index.sentence),
    }
    times = interleaved(cases, repeats=repeats)
    yield row_of("three cosines of a layer", times, threads=torch.get_num_threads(), targets={"to_rival": 1})


def self_similarity_by_pairs(vectors: NDArray[Any]) -> float:
    """A word's mean cosine pair by pair, as `contextual` computes it."""
    similarities = []
    for one in range(len(vectors)):
        for other in range(one + 1, len(vectors)):
            first, second = vectors[one], vectors[other]
            similarities.append(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
    return float(np.mean(similarities))


def word_rows(store: es.Store, layer: int, repeats: int, pair_words: int, seed: int) -> Iterator[Row]:
    """Self-similarity and MEV of all words of a layer, compared with a loop over pairs and an SVD a word.

    The loop runs over `pair_words` words, and its time is scaled to the pairs of all. Raises RuntimeError where it
    finds other values.
    """
    types = es.analysis.eligible_types(store)
    words = rows_of_words(store, types)

    def float32_of(place: int) -> NDArray[np.float32]:
        return store.gather(words.of(place), layer).astype(np.float32)

    def each(call: Callable[[NDArray[np.float32]], object], number: int) -> None:
        for place in range(len(types)):
            call(float32_of(place))

    frame = es.geometry(store, metrics="selfsim", layers=layer)
    values = dict(zip(frame["item"], frame["value"], strict=True))
    n_pairs = words.counts * (words.counts - 1) // 2
    drawn = np.random.default_rng(seed).permutation(len(types))[:pair_words]

    def pairs(number: int) -> Any:
        found: list[float] = []
        time = spent(lambda: found.extend(self_similarity_by_pairs(float32_of(place)) for place in drawn.tolist()))
        own = [values[store.index.words[int(types[place])]] for place in drawn]
        if not np.allclose(found, own, rtol=0, atol=1e-5):
            raise RuntimeError("the loop over pairs finds other self-similarities")
        return time.scaled(n_pairs.sum() / n_pairs[drawn].sum())

    ours = in_each_round(es.geometry, store, metrics="selfsim", layers=layer, progress=False)
    times = interleaved({"ours": ours, f"pairs, scaled from {len(drawn)} words": pairs}, repeats=1)
    threads = torch.get_num_threads()
    yield row_of(f"self-similarity of {len(types):,} words", times, threads=threads, targets={"to_rival": 0.01})
    mev = in_each_round(maximum_explainable_variance, store, layer=layer, types=types)
    svd = partial(partial, each)
    cases = {"ours": mev, "numpy svd a word": svd(partial(np.linalg.svd, full_matrices=False))}
    cases["numpy svd a word, values alone"] = svd(partial(np.linalg.svd, full_matrices=False, compute_uv=False))
    yield row_of(f"MEV of {len(types):,} words", interleaved(cases, repeats=repeats), threads=threads)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("store", help="a finished store of 200,000 rows or more")
    parser.add_argument("--layer", type=int, help="whose words are decomposed; the last if not given")
    parser.add_argument("--pair-words", type=int, default=200, help="words that the loop over pairs does")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    store = es.open(arguments.store)
    layer, repeats = store.layers[-1] if arguments.layer is None else arguments.layer, arguments.repeats
    size = {"rows": store.n_rows, "layers": len(store.layers), "nbytes": store.n_rows * store.layout.row_nbytes}
    print(f"{size}, {store.dtype}, words and scripts of layer {layer}\n")
    held = show_rows(layers_rows(store, repeats)) + show_rows(layer_rows(store, layer, repeats))
    held += show_rows(word_rows(store, layer, max(1, repeats // 2), arguments.pair_words, arguments.seed))
    write_json(arguments.out, {"benchmark": "geometry", "store": size, "rows": held})


if __name__ == "__main__":
    main()
