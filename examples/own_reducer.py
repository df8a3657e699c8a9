"""A statistic of your own in one pass over a store: the features with the largest mean (outlier dimensions).

python examples/own_reducer.py STORE.zarr
"""

import sys

import torch

import embstore as es


class FeatureMeans:
    """The mean of every feature, from sums that blocks, threads and workers add up in any order."""

    def init(self, scope: es.analysis.Scope) -> torch.Tensor:
        return torch.zeros(scope.hidden_size, dtype=torch.float64, device=scope.device)

    def update(self, state: torch.Tensor, batch: es.analysis.Batch) -> torch.Tensor:
        return state + batch.vectors.sum(0)

    def merge(self, state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return state + other

    def finish(self, state: torch.Tensor, scope: es.analysis.Scope) -> torch.Tensor:
        return state / scope.n_rows


def main(path: str) -> None:
    for layer, results in es.reduce(es.open(path), {"means": FeatureMeans()}).items():
        means = results["means"]
        largest = means.abs().topk(3).indices.tolist()
        described = ", ".join(f"{feature} ({means[feature]:+.2f})" for feature in largest)
        print(f"layer {layer}: features with the largest mean: {described}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
