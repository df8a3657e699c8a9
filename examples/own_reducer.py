"""A figure of one's own in the same single pass: which features of a layer lie farthest from zero (outlier dimensions).

python examples/own_reducer.py STORE.zarr
"""

import sys

import torch

import embstore as es


class FeatureMeans:
    """The mean of every feature, from sums that blocks, threads and machines can add up in any order."""

    def init(self, scope: es.analysis.Scope) -> torch.Tensor:
        return torch.zeros(scope.hidden_size, dtype=torch.float64, device=scope.device)

    def update(self, state: torch.Tensor, batch: es.analysis.Batch) -> torch.Tensor:
        return state + batch.vectors.sum(0)

    def merge(self, state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return state + other

    def finish(self, state: torch.Tensor, scope: es.analysis.Scope) -> torch.Tensor:
        return state / len(scope.selection.rows)


def main(path: str) -> None:
    for layer, found in es.reduce(es.open(path), {"means": FeatureMeans()}).items():
        farthest = found["means"].abs().topk(3).indices
        told = ", ".join(f"{place} ({found['means'][place]:+.2f})" for place in farthest.tolist())
        print(f"layer {layer}: features farthest from zero on average: {told}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
