"""Train a sparse autoencoder (top-k) on the vectors of a layer, read from a store in shuffled batches.

python examples/sparse_autoencoder.py STORE.zarr [LAYER] [EPOCHS]

On 211,600 subwords of novels and web text (layer 8 of SmolLM2-135M, contexts of 128, 1,700 sinks left out) three epochs
explain 86 % of the variance of a batch of training with 8 of 2,304 features a vector. Batches shuffled over all rows
take no more memory than those over 25,000 do (174 MB with PyTorch; 317 MB in training); beside it the system may cache
the store's file.
"""

import sys

import torch

import embstore as es

K = 8  # features of a vector


def main(path: str, layer: int = -1, epochs: int = 5) -> tuple[float, float]:
    torch.manual_seed(0)
    rows = es.open(path).select(layers=layer, sinks=False)  # the loss would be that of the sinks alone
    batches = rows.to_torch(batch_size=256, shuffle=True, dtype=torch.float32)
    sample = next(iter(batches)).vectors
    size = sample.shape[1]
    encoder, decoder = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)
    decoder.weight.data = torch.nn.functional.normalize(encoder.weight.data.T, dim=0).contiguous()
    decoder.bias.data = sample.mean(0)

    def encoded(vectors: torch.Tensor) -> torch.Tensor:
        values, places = torch.relu(encoder(vectors - decoder.bias)).topk(K)
        return torch.zeros(len(vectors), 4 * size).scatter(1, places, values)

    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for epoch in range(epochs):
        batches.set_epoch(epoch)  # another order in each epoch
        for batch in batches:
            vectors = batch.vectors
            loss = (decoder(encoded(vectors)) - vectors).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    features = encoded(sample)
    explained = 1 - ((decoder(features) - sample).square().sum() / (sample - sample.mean(0)).square().sum()).item()
    l0 = (features > 0).sum(1).float().mean().item()
    print(f"{explained:.1%} of the variance explained, {l0:.1f} of {4 * size} features a vector (L0)")
    return explained, l0


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
