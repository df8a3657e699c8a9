"""Class probes trained one by one with plain torch, one edge probe target by target, and scores counted by loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embstore.probes.classes.bank import Output, ProbeBank, Shape, blocks_of, initial_weights, logits_of
from embstore.probes.training import Schedule

Weights = dict[str, torch.Tensor]
Spans = Sequence[tuple[int, int]]


def logits_of_bank(bank: ProbeBank, vectors: np.ndarray) -> np.ndarray:
    """Logits [layer, seed, output, n] of trained class probes for vectors [layer, n, width]; above 0 means yes."""
    columns = torch.from_numpy(np.concatenate([vectors, np.ones((*vectors.shape[:2], 1))], 2).astype(np.float32))
    blocks = blocks_of(bank.weights, batch_size=max(1, vectors.shape[1]))
    return logits_of(blocks, columns, bank.shape.n_probes).view(*bank.shape.sizes, -1).numpy()


def standardised(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Vectors less the mean of the train vectors, by their deviations."""
    mean, deviation = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    return [((each - mean) / deviation).astype(np.float32) for each in (train, *others)]


def begun(kind: str, width: int, units: int, layer: int, seed: int, output: Output, *, odds: float) -> torch.nn.Module:
    """A module with the weights that the probe of this layer, seed and output begins with; `odds`: its bias."""
    shape = Shape(kind, (layer,), (seed,), (output,), width, units)
    weights = {name: tensor[0, 0] for name, tensor in initial_weights(shape).items()}
    first = torch.nn.Linear(width, units or 1)
    columns = weights["weight"][None] if kind == "linear" else weights["hidden"]
    with torch.no_grad():
        first.weight.copy_(columns[:, :-1])
        first.bias.copy_(columns[:, -1])
        if kind == "linear":
            first.bias.fill_(odds)
            return first
        second = torch.nn.Linear(units, 1)
        second.weight.copy_(weights["output"][None])
        second.bias.fill_(odds)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


def train_alone(
    module: torch.nn.Module,
    train: tuple[np.ndarray, np.ndarray],
    dev: tuple[np.ndarray, np.ndarray] | None,
    training: Schedule,
    seed: int,
) -> int:
    """Train with autograd and torch's own Adam over the batches of `training`; returns the epoch of the weights."""
    criterion = torch.nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(module.parameters(), lr=training.learning_rate)
    vectors, targets = torch.from_numpy(train[0]), torch.from_numpy(train[1]).float()
    best, best_epoch, waited, state = np.inf, 0, 0, None
    for epoch in range(1, training.epochs + 1):
        order = np.random.default_rng((0, seed, epoch)).permutation(len(targets))
        for start in range(0, len(order), training.batch_size):
            places = order[start : start + training.batch_size]
            optimizer.zero_grad()
            criterion(module(vectors[places])[:, 0], targets[places]).backward()
            optimizer.step()
        if dev is None or not training.patience:
            best_epoch = epoch
            continue
        with torch.no_grad():
            yes, gold = module(torch.from_numpy(dev[0]))[:, 0].double().sigmoid(), torch.from_numpy(dev[1]).double()
            loss = float(1 - 2 * (yes * gold).sum() / (yes.sum() + gold.sum()))
        if loss < best - 3e-3:
            best, best_epoch, waited = loss, epoch, 0
            state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        else:
            waited += 1
        if waited >= training.patience:
            break
    if state is not None:
        module.load_state_dict(state)
    return best_epoch


def rule_of_half(
    said: list[dict[str, bool]], words: list[str], own: list[str], classes: list[str]
) -> tuple[dict[str, float], dict[str, dict[str, int]]]:
    """Micro F1 and the like, and the counts by class, of what each classifier says of each context.

    For each word-class pair and each classifier the contexts of the pair are gone through one by one.
    """
    counts = {name: {"tp": 0, "fp": 0, "fn": 0} for name in classes}
    contexts = {"tp": 0, "fp": 0, "fn": 0}
    for word, name in sorted(set(zip(words, own, strict=True))):
        mine = [place for place in range(len(words)) if words[place] == word and own[place] == name]
        for classifier in classes:
            right = 0
            for place in mine:
                correct = said[place][classifier] == (classifier == name)
                right += correct
                if said[place][classifier]:
                    contexts["tp" if correct else "fp"] += 1
                elif not correct:
                    contexts["fn"] += 1
            decided_right = right >= len(mine) / 2
            if classifier == name:
                counts[classifier]["tp" if decided_right else "fn"] += 1
            elif not decided_right:
                counts[classifier]["fp"] += 1
    total = {key: sum(each[key] for each in counts.values()) for key in ("tp", "fp", "fn")}
    scores = {"f1": f1(total), "contexts_f1": f1(contexts)}
    return scores, counts


def f1(counts: dict[str, int]) -> float:
    precision = counts["tp"] / (counts["tp"] + counts["fp"]) if counts["tp"] + counts["fp"] else 0.0
    recall = counts["tp"] / (counts["tp"] + counts["fn"]) if counts["tp"] + counts["fn"] else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def logits_of_one(weights: Weights, layers: list[int], vectors: torch.Tensor, spans: Sequence[Spans]) -> torch.Tensor:
    """Logits [targets, labels] of one probe that mixes `layers`, for vectors [layer, n, width] of all words."""
    share = torch.softmax(weights["mix"][layers], 0)
    words = weights["scale"] * sum(s * vectors[layer] for s, layer in zip(share, layers, strict=True))
    out = []
    for target in spans:
        if "hidden" not in weights:  # a linear probe
            means = [words[start:stop].mean(0) for start, stop in target]
            read = torch.cat(means if len(means) == 1 else [*means, means[0] * means[1]])
            out.append(weights["output"] @ read + weights["output_bias"])
            continue
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
