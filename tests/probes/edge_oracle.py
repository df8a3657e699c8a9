"""One edge probe in plain torch, target by target, and the F1 of answers by loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Weights = dict[str, torch.Tensor]
Spans = Sequence[tuple[int, int]]


def logits_of_one(weights: Weights, layers: list[int], vectors: torch.Tensor, spans: Sequence[Spans]) -> torch.Tensor:
    """Logits [targets, labels] of one probe that mixes `layers`, for vectors [layer, n, width] of all words."""
    share = torch.softmax(weights["mix"][layers], 0)
    words = weights["scale"] * sum(s * vectors[layer] for s, layer in zip(share, layers, strict=True))
    out = []
    for target in spans:
        pooled = []
        for number, (start, stop) in enumerate(target, 1):
            inside = words[start:stop] @ weights[f"projection{number}"].T + weights[f"projection{number}_bias"]
            attention = torch.softmax(inside @ weights[f"attention{number}"], 0)
            pooled.append(attention @ inside)
        hidden = torch.tanh(weights["hidden"] @ torch.cat(pooled) + weights["hidden_bias"])
        normed = (hidden - hidden.mean()) / torch.sqrt(hidden.var(unbiased=False) + 1e-5)
        out.append(weights["output"] @ (normed * weights["norm"] + weights["norm_bias"]) + weights["output_bias"])
    return torch.stack(out)


def loss_of_one(logits: torch.Tensor, gold: torch.Tensor) -> torch.Tensor:
    right = torch.sigmoid(logits)
    return -(gold * right.log() + (1 - gold) * (1 - right).log()).mean()


def f1_of(answers: Sequence[set[str]], gold: Sequence[set[str]]) -> float:
    right = sum(len(said & wanted) for said, wanted in zip(answers, gold, strict=True))
    wrong = sum(len(said - wanted) for said, wanted in zip(answers, gold, strict=True))
    missed = sum(len(wanted - said) for said, wanted in zip(answers, gold, strict=True))
    return 2 * right / (2 * right + wrong + missed)
