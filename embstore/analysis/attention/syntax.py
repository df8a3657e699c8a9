"""Attention compared with annotation: the relations of dependency trees, whole trees, and coreference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.attention.maps import Maps, Shape, Statistic, Values

REACH = 32  # words between dependant and head that the baseline considers
PUNCT = "punct"
ALL = "all"  # relations but that of punctuation
RULES = ("nearest", "head_match", "string_match")  # that guess an antecedent without a model
TO_HEAD, TO_DEPENDANT = "relation_to_head", "relation_to_dependant"


class Relations(Statistic):
    """How often a word attends most to the word at the other end of a relation (Clark et al. 2019, section 4.2).

    `relation_to_head`: the share of dependants whose most attended other word is their head; `relation_to_dependant`:
    of heads, whose most attended other word is the dependant. The baseline predicts the word at the fixed offset that
    is most often right for the relation; `offset` is that. Relations are those of the trees, with subtypes; `all` is
    all of them but `punct`. Special subwords are not words. A word that attends to no other word counts as wrong.
    """

    name = "relations"
    needs = "trees"

    def begin(self, shape: Shape) -> None:
        """Begin a pass over a corpus."""
        super().begin(shape)
        self._waiting: list[NDArray[np.int64]] = []

    def update(self, maps: Maps) -> None:
        edges = maps.tokens.edges
        if not len(edges.row):
            return
        best = maps.most_attended
        hits = np.stack(
            [
                best[edges.row, edges.dependant] == edges.head[:, None],
                best[edges.row, edges.head] == edges.dependant[:, None],
            ]
        )
        self._waiting.append(np.add.reduceat(hits.astype(np.int64), edges.starts, axis=1))
        if maps.last:
            whole = np.stack(self._waiting).astype(np.float64)  # [layers, directions, relations, heads]
            self._waiting = []
            for number, name in enumerate(edges.relations):
                key, sums = f"hits {name}", whole[:, :, number]
                self.sums[key] = self.sums[key] + sums if key in self.sums else sums
        if maps.layer == 0:
            offsets = np.clip(edges.head - edges.dependant, -REACH - 1, REACH + 1) + REACH + 1
            stops = np.append(edges.starts[1:], len(offsets))
            for name, start, stop in zip(edges.relations, edges.starts, stops, strict=True):
                self.add(f"offset {name}", 0, np.bincount(offsets[start:stop], minlength=2 * REACH + 3))

    def results(self) -> Iterator[Values]:
        names = sorted(key.removeprefix("offset ") for key in self.sums if key.startswith("offset "))
        groups = {ALL: [name for name in names if name != PUNCT], **{name: [name] for name in names}}
        for item, members in groups.items():
            if not members:
                continue
            offsets = sum(self.sums[f"offset {name}"][0] for name in members)
            count = offsets.sum()
            common = int(offsets[1:-1].argmax())  # the first and the last are those beyond reach
            baseline, offset = offsets[1 + common] / count, common - REACH
            hits = sum(self.sums[f"hits {name}"] for name in members) / count
            for direction, (metric, sign) in enumerate(((TO_HEAD, 1), (TO_DEPENDANT, -1))):
                values = hits[:, direction]
                yield Values(metric, item, values, count=count, offset=sign * offset, baseline=float(baseline))


class Trees(Statistic):
    """Dependency trees from the attention of each head, and how many of their edges are right (Htut et al. 2019).

    The tree is the maximum spanning arborescence from the root of the annotated tree, which is given; the weight of an
    edge is the attention of the dependant to the head; in a decoder, where a word cannot attend to later ones, that of
    the later of the two to the earlier. `uuas` is the share of annotated edges that it has, whatever
    their direction; edges of punctuation marks are not counted. The baseline attaches every word to the one before it;
    the row `random`, without a head, is the expected share of a random tree, all trees being equally likely.
    """

    name = "trees"
    needs = "trees"

    def update(self, maps: Maps) -> None:
        tokens, edges = maps.tokens, maps.tokens.edges
        scored = ~edges.punctuation & (edges.roots >= 0)[edges.row]
        row, dependant, head = edges.row[scored], edges.dependant[scored], edges.head[scored]
        trees = np.full(maps.words.shape[:3], -1)  # [sentences, words, heads]
        weights = maps.words + maps.words.transpose(0, 3, 2, 1) if self.shape.causal else maps.words
        for sentence, (n_words, root) in enumerate(zip(tokens.n_words.tolist(), edges.roots.tolist(), strict=True)):
            if root >= 0:
                graphs = weights[sentence, :n_words, :, :n_words].transpose(1, 0, 2)
                trees[sentence, :n_words] = arborescences(graphs, root).T
        hits = (trees[row, dependant] == head[:, None]) | (trees[row, head] == dependant[:, None])
        self.add("hits", maps.layer, hits.sum(0))
        if maps.layer == 0:
            self.add("edges", 0, len(row))
            self.add("next", 0, (np.abs(head - dependant) == 1).sum())
            self.add("random", 0, (2 / tokens.n_words[row]).sum())

    def results(self) -> Iterator[Values]:
        count, branching, random = (float(self.sums[name][0]) for name in ("edges", "next", "random"))
        if count:
            yield Values("uuas", "", self.sums["hits"] / count, count=count, baseline=branching / count)
            yield Values("uuas", "random", random / count, count=count)


def arborescences(weights: NDArray[np.floating], root: int) -> NDArray[np.int64]:
    """Return the head of each node in the maximum spanning arborescence from a root, -1 of the root: [graph, n].

    `weights` [graph, n, n]: that of the edge from head u to dependant v is at [v, u]. By Chu and Liu's and Edmonds'
    algorithm: that of ufal.chu_liu_edmonds where it is installed (it has no wheel for Python 3.13), else the same in
    numpy, which takes twenty times as long.
    """
    try:
        from ufal.chu_liu_edmonds import chu_liu_edmonds
    except ImportError:
        return np.array([plain_arborescence(graph, root) for graph in weights])
    order = np.append(root, np.delete(np.arange(weights.shape[1]), root))  # the library takes the first one as the root
    ordered = np.ascontiguousarray(weights[:, order[:, None], order], np.float64)
    heads = np.full(weights.shape[:2], -1)
    heads[:, order[1:]] = order[np.array([chu_liu_edmonds(graph)[0][1:] for graph in ordered], np.int64)]
    return heads


def plain_arborescence(weights: NDArray[np.floating], root: int) -> NDArray[np.int64]:
    """One arborescence in numpy: each node takes its best head, and a cycle is contracted to one node."""
    weights = weights.astype(np.float64)
    np.fill_diagonal(weights, -np.inf)
    weights[root] = -np.inf
    heads: NDArray[np.int64] = weights.argmax(1)
    heads[root] = -1
    cycle = np.array(_cycle_of(heads.tolist()), np.int64)
    if not len(cycle):
        return heads
    rest = np.delete(np.arange(len(heads)), cycle)
    entering = (weights[cycle] - weights[cycle, heads[cycle]][:, None])[:, rest]
    leaving = weights[np.ix_(rest, cycle)]
    contracted = np.block([[weights[np.ix_(rest, rest)], leaving.max(1)[:, None]], [entering.max(0), -np.inf]])
    found = plain_arborescence(contracted, int(np.searchsorted(rest, root)))
    of_rest = np.append(rest, -1)[found[:-1]]  # the last is that of the root, and of heads in the cycle, set below
    in_cycle = found[:-1] == len(rest)
    of_rest[in_cycle] = cycle[leaving.argmax(1)[in_cycle]]
    heads[rest] = of_rest
    heads[cycle[entering[:, found[-1]].argmax()]] = rest[found[-1]]
    return heads


def _cycle_of(heads: list[int]) -> list[int]:
    """The nodes of a cycle of heads; empty without one."""
    seen: dict[int, int] = {-1: -1}  # node -> the walk in which it was first met
    for start in range(len(heads)):
        node = start
        while node not in seen:
            seen[node] = start
            node = heads[node]
        if node >= 0 and seen[node] == start:
            cycle = [node]
            while heads[cycle[-1]] != node:
                cycle.append(heads[cycle[-1]])
            return cycle
    return []


class Coreference(Statistic):
    """How often a mention attends most to an earlier mention of the same (Clark et al. 2019, section 4.3).

    The share of mentions with an antecedent whose head word attends to no other word more than to the head word of an
    antecedent. The data has no trees, so the head word of a mention is taken to be its last word. The baseline chooses
    the nearest earlier mention. Rows without a head are of rules: `head_match`, the nearest earlier mention with the
    same head word (none: wrong), and `string_match`, the nearest that is spelled the same, else that with the same head
    word, else the nearest. The paper's rules also compare number, gender and person, which the data does not have.
    """

    name = "coreference"
    needs = "mentions"

    def update(self, maps: Maps) -> None:
        mentions = maps.tokens.mentions
        if not mentions:
            return
        best = maps.most_attended
        for row, mention in mentions:
            self.add("hits", maps.layer, np.isin(best[row, mention.word], list(mention.antecedents)))
        if maps.layer == 0:
            self.add("mentions", 0, len(mentions))
            for name in RULES:
                self.add(name, 0, sum(mention.guesses[name] in mention.antecedents for _, mention in mentions))

    def results(self) -> Iterator[Values]:
        if "mentions" in self.sums:
            count = float(self.sums["mentions"][0])
            shares = {name: float(self.sums[name][0]) / count for name in RULES}
            yield Values("coreference", "", self.sums["hits"] / count, count=count, baseline=shares["nearest"])
            for name in RULES[1:]:
                yield Values("coreference", name, shares[name], count=count)
