"""Train a sparse autoencoder (top-k) on the vectors of a layer, read from a store in shuffled batches.

python examples/sparse_autoencoder.py STORE.zarr [LAYER] [EPOCHS]
"""

import sys

import torch

import embstore as es

K = 8  # features of a vector


class SparseAutoencoder(torch.nn.Module):
    def __init__(self, mean: torch.Tensor, n_features: int) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(len(mean), n_features)
        self.decoder = torch.nn.Linear(n_features, len(mean))
        self.decoder.weight.data = torch.nn.functional.normalize(self.encoder.weight.data.T, dim=0).contiguous()
        self.decoder.bias.data = mean.clone()

    def forward(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.relu(self.encoder(vectors - self.decoder.bias)).topk(K)
        features = torch.zeros(len(vectors), self.encoder.out_features).scatter(1, places, values)
        return self.decoder(features), features


def main(path: str, layer: int = -1, epochs: int = 5) -> tuple[float, float]:
    torch.manual_seed(0)
    batches = es.open(path).select(layers=layer).to_torch(batch_size=256, shuffle=True, dtype=torch.float32)
    sample = next(iter(batches)).vectors[:, 0]
    model = SparseAutoencoder(sample.mean(0), 4 * sample.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        batches.set_epoch(epoch)  # another order in each epoch
        for batch in batches:
            vectors = batch.vectors[:, 0]
            loss = (model(vectors)[0] - vectors).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        found, features = model(sample)
    explained = 1 - float((found - sample).square().sum() / (sample - sample.mean(0)).square().sum())
    l0 = float((features > 0).sum(1).float().mean())
    print(f"{explained:.1%} of the variance explained, {l0:.1f} of {features.shape[1]} features a vector (L0)")
    return explained, l0


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
