"""What a plain numpy loop finds: one sentence at a time, its maps as transformers gives them, no batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from embstore.corpus import Tree

Key = tuple[str, str]


def maps_of(model: Any, tokenizer: Any, words: Sequence[str]) -> tuple[NDArray[np.float64], list[int | None]]:
    """Return the maps of a sentence, [layer, head, query, key], and the word of each subword, None for white space."""
    text = " ".join(words)
    inputs = tokenizer(text, return_tensors="pt", padding=False, truncation=False, return_offsets_mapping=True)
    places = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    owners = [text[:end].count(" ") if text[start:end].strip() else None for start, end in places]
    return torch.cat(maps).double().numpy(), owners


def load(folder: Path) -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval(), tokenizer


def between_words(maps: NDArray[np.float64], owners: list[int | None]) -> tuple[NDArray[np.float64], list[int]]:
    """Return [layer, head, word, word], and the words: sums over the subwords of the second, means of the first."""
    words = sorted({owner for owner in owners if owner is not None})
    out = np.zeros((*maps.shape[:2], len(words), len(words)))
    for row, one in enumerate(words):
        for column, other in enumerate(words):
            froms = [place for place, owner in enumerate(owners) if owner == one]
            tos = [place for place, owner in enumerate(owners) if owner == other]
            out[:, :, row, column] = maps[:, :, froms][:, :, :, tos].sum(-1).mean(-1)
    return out, words


def arborescence(weights: NDArray[np.float64], root: int) -> dict[int, int]:
    """Return the head of each word but the root; `weights` [dependant, head]."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(weights)))
    for dependant in range(len(weights)):
        for head in range(len(weights)):
            if head != dependant != root:
                graph.add_edge(head, dependant, weight=float(weights[dependant, head]))
    return {dependant: head for head, dependant in networkx.maximum_spanning_arborescence(graph).edges}


class Plain:
    """Sums of all statistics, sentence by sentence; `values` returns {(metric, item): [layer, head]}."""

    def __init__(self, folder: Path, *, specials: tuple[int, int], causal: bool) -> None:
        self.model, self.tokenizer = load(folder)
        self.before, self.after = specials
        self.causal = causal
        self.sums: dict[Key, Any] = defaultdict(float)
        self.counts: Counter[Key] = Counter()
        self.offsets: dict[str, Counter[int]] = defaultdict(Counter)

    def add(self, words: Sequence[str], tree: Tree | None) -> None:
        maps, owners = maps_of(self.model, self.tokenizer, words)
        n = maps.shape[-1]
        for query in range(n):
            for name, key in (("self", query), ("previous", query - 1), ("next", query + 1)):
                self._count("share", name, maps[:, :, query, key] if 0 <= key < n else 0 * maps[:, :, 0, 0])
            kinds = {"cls": range(self.before), "first": range(1), "sep": range(n - self.after, n)}
            kinds["punctuation"] = [
                place
                for place, owner in enumerate(owners)
                if owner is not None and not any(c.isalnum() for c in words[owner])
            ]
            kinds["period_comma"] = [
                place for place, owner in enumerate(owners) if owner is not None and words[owner] in ".,"
            ]
            for name, keys in kinds.items():
                self._count("share", name, maps[:, :, query, list(keys)].sum(-1))
            to_sep = maps[:, :, query, list(kinds["sep"])].sum(-1)
            self._count("share", "sep_to_sep" if query in kinds["sep"] else "other_to_sep", to_sep)
            entropy = -np.where(
                maps[:, :, query] > 0, maps[:, :, query] * np.log(np.maximum(maps[:, :, query], 1e-300)), 0
            )
            self._count("entropy", "all", entropy.sum(-1))
            if query == 0:
                self._count("entropy", "cls", entropy.sum(-1))
        self._patterns(maps)
        if tree is not None:
            self._syntax(maps, owners, tree)

    def _count(self, metric: str, item: str, value: Any) -> None:
        self.sums[metric, item] = self.sums[metric, item] + value
        self.counts[metric, item] += 1

    def _patterns(self, maps: NDArray[np.float64]) -> None:
        n = maps.shape[-1]
        equal = np.ones((n, n))
        if self.causal:
            equal = np.tril(equal)
        equal /= equal.sum(1, keepdims=True)

        def parts(map_: NDArray[np.float64]) -> tuple[float, float]:
            columns = sorted(map_.mean(0))
            near = sum(map_[i, j] for i in range(n) for j in range(n) if abs(i - j) <= 1) / n
            return sum(columns[-2:]), near

        chance = parts(equal)
        for name in ("vertical", "diagonal", "vertical+diagonal", "heterogeneous"):
            self._count("pattern", name, np.zeros(maps.shape[:2]))
        for layer, head in np.ndindex(maps.shape[:2]):
            pairs = zip(parts(maps[layer, head]), chance, strict=True)
            v, d = ((part - base) / (1 - base) if base < 1 - 1e-6 else 0 for part, base in pairs)
            if v + d >= 0.5 and v >= 0.2 and d >= 0.2:
                name = "vertical+diagonal"
            else:
                name = "vertical" if v >= 0.5 else "diagonal" if d >= 0.5 else "heterogeneous"
            self.sums["pattern", name][layer, head] += 1

    def _syntax(self, maps: NDArray[np.float64], owners: list[int | None], tree: Tree) -> None:
        attention, words = between_words(maps, owners)
        numbers = {word: number for number, word in enumerate(words)}
        edges = [
            (numbers[word], numbers[int(head)], tree.relations[word], bool(tree.punctuation[word]))
            for word, head in enumerate(tree.heads)
            if head >= 0 and word in numbers and int(head) in numbers
        ]
        others = attention.copy()
        others[:, :, range(len(words)), range(len(words))] = -1
        best = np.where(others.max(-1) > 0, others.argmax(-1), -1)
        for dependant, head, relation, _ in edges:
            self.offsets[relation][head - dependant] += 1
            for item in (relation, *(["all"] if relation != "punct" else [])):
                self._count("relation_to_head", item, best[:, :, dependant] == head)
                self._count("relation_to_dependant", item, best[:, :, head] == dependant)
        if tree.root not in numbers:
            return
        scored = [(dependant, head) for dependant, head, _, is_mark in edges if not is_mark]
        for layer, head_number in np.ndindex(attention.shape[:2]):
            weights = attention[layer, head_number]
            found = arborescence(weights + weights.T if self.causal else weights, numbers[tree.root])
            pairs = {frozenset(pair) for pair in found.items()}
            hits = sum(frozenset(edge) in pairs for edge in scored)
            self.sums["uuas", ""] = self.sums["uuas", ""] + hits * np.eye(maps.shape[0] * maps.shape[1])[
                layer * maps.shape[1] + head_number
            ].reshape(maps.shape[:2])
        self.counts["uuas", ""] += len(scored)
        self.sums["right", ""] += sum(abs(one - other) == 1 for one, other in scored)
        self.sums["random", ""] += len(scored) * 2 / len(words)

    def values(self) -> dict[Key, NDArray[np.float64]]:
        return {key: np.asarray(value / self.counts[key]) for key, value in self.sums.items() if self.counts[key]}
