"""How well each layer separates the senses of a word, by two reducers: is an occurrence nearest to its own sense?

python examples/sense_separability.py STORE.zarr LABEL

For each layer the share of occurrences that are closest, by cosine, to the centroid of their own label among the labels
of the word, itself left out; an occurrence as close to two centroids counts half. Labels of one occurrence, and words
of one label, are left out. The second number is the share of each word's most frequent label.
"""

import sys

import numpy as np
import torch

import embstore as es

TIE = 1e-12  # cosines that differ by less are equal up to rounding


class Sum:
    """A reducer that adds up a function of batches, into `shape` numbers."""

    def __init__(self, shape, add):
        self.shape, self.add = shape, add

    def init(self, scope):
        return torch.zeros(self.shape, dtype=torch.float64)

    def update(self, state, batch):
        vectors = batch.vectors.double() * batch.inverse_norms[:, None]
        return self.add(state, vectors.cpu(), batch.positions)

    def merge(self, state, other):
        return state + other

    def finish(self, state, scope):
        return state


def separability(store: es.Store, label: str) -> dict[int, tuple[float, float]]:
    """The mean over words of the share that is right, and of the share of the most frequent label, for each layer."""
    codes = store.index.labels[label].codes
    both = np.stack([store.index.type[:], codes])
    pairs, sense, counts = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    good = (pairs[1] >= 0) & (counts > 1)
    good &= np.bincount(pairs[0][good], minlength=len(store.index.words))[pairs[0]] > 1
    rows = np.flatnonzero(good[sense])
    types, word = np.unique(pairs[0][good], return_inverse=True)  # of each sense its word
    sense, sizes, word = (np.cumsum(good) - 1)[sense[rows]], torch.from_numpy(counts[good]), torch.from_numpy(word)
    results = {}
    for layer in store.layers:
        some = store.select(rows=rows, layers=layer)

        def add_sums(state, vectors, at):
            return state.index_add_(0, torch.from_numpy(sense[at]), vectors)

        sums = es.reduce(some, {"sums": Sum((len(word), store.hidden_size), add_sums)}, precision="float64")[layer][
            "sums"
        ]

        def add_right(state, vectors, at, sums=sums):
            own = torch.from_numpy(sense[at])
            cosines = vectors @ torch.nn.functional.normalize(sums).T
            without = torch.nn.functional.normalize(sums[own] - vectors)
            score = (without * vectors).sum(1)
            cosines[torch.arange(len(own)), own] = score
            others = cosines.masked_fill(word[None] != word[own][:, None], -2) - score[:, None]
            right = torch.where(others.amax(1) > TIE, 0, 1 / (others.abs() <= TIE).sum(1).double())
            return state.index_add_(0, word[own], right)

        right = es.reduce(some, {"right": Sum(len(types), add_right)}, precision="float64")[layer]["right"]
        total = torch.bincount(word, sizes.double())
        most = torch.stack([sizes[word == number].max() for number in range(len(types))])
        results[layer] = float((right / total).mean()), float((most / total).mean())
        print(f"layer {layer}: {results[layer][0]:.3f} closest to their own {label}, baseline {results[layer][1]:.3f}")
    return results


if __name__ == "__main__":
    separability(es.open(sys.argv[1]), sys.argv[2]) if len(sys.argv) == 3 else sys.exit(__doc__)
