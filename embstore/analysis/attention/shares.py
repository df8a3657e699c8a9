"""Where attention goes: to kinds of subwords, how spread out, and in which of five patterns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.attention.maps import Maps, Statistic, Values

NEIGHBORS = {"self": 0, "previous": -1, "next": 1}
PATTERNS = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
BLOCK = PATTERNS.index("block")
SHARE, LEAST = 0.5, 0.2  # of attention beyond chance: of a pattern, and of each part of a mixed one


class Shares(Statistic):
    """The mean share of a subword's attention that goes to some subwords (Clark et al. 2019, section 3.1 and 3.2).

    Of all subwords, special ones included: to itself, the previous and the next one (0 where there is none), to the
    special ones in front of the sentence (`cls`: [CLS], or BOS; without any `first`, the first subword, to which most
    decoders attend most) and after it (`sep`: [SEP]), to punctuation (words without a letter or digit) and to periods
    and commas, as the paper has it. `sep_to_sep` and `other_to_sep` are the shares of [SEP] to itself and of all others
    to [SEP].
    """

    name = "shares"

    def update(self, maps: Maps) -> None:
        tokens, middle = maps.tokens, maps.tokens.n_positions - 1
        offsets = maps.offsets.sum(0, dtype=np.float64)
        for name, offset in NEIGHBORS.items():
            column = middle + offset
            self.add(name, maps.layer, offsets[:, column] if 0 <= column < offsets.shape[1] else 0 * offsets[:, middle])
        for name, mask in tokens.kinds.items():
            self.add(name, maps.layer, np.einsum("shl,sl->h", maps.columns, mask, optimize=True))
        self.add("queries", maps.layer, tokens.lengths.sum())
        if tokens.n_after:
            rows, places = (torch.from_numpy(each).to(tokens.device) for each in np.nonzero(tokens.kinds["sep"]))
            seps = torch.from_numpy(tokens.kinds["sep"]).to(tokens.device)
            to_sep = maps.values[rows, :, places] * seps[rows][:, None]  # [subwords, heads, keys]
            self.add("sep_to_sep", maps.layer, to_sep.sum((0, 2)))
            self.add("sep_queries", maps.layer, len(rows))

    def results(self) -> Iterator[Values]:
        queries = self.sums["queries"][:, None]
        left_out = {
            "cls": not self.shape.n_before,
            "first": self.shape.n_before > 0,
            "sep": not self.shape.n_after,
            "next": self.shape.causal,
        }
        for name in (*NEIGHBORS, "cls", "first", "sep", "punctuation", "period_comma"):
            if not left_out.get(name):
                yield Values("share", name, self.sums[name] / queries, count=queries[0, 0])
        if self.shape.n_after:
            own, n_sep = self.sums["sep_to_sep"], self.sums["sep_queries"][:, None]
            yield Values("share", "sep_to_sep", own / n_sep, count=n_sep[0, 0])
            rest = queries - n_sep
            yield Values("share", "other_to_sep", (self.sums["sep"] - own) / rest, count=rest[0, 0])


class Entropy(Statistic):
    """The mean entropy of a subword's attention in nats, and that of [CLS] alone (Clark et al. 2019, section 3.3)."""

    name = "entropy"

    def update(self, maps: Maps) -> None:
        self.add("all", maps.layer, maps.entropies.sum((0, 2), dtype=np.float64))
        self.add("cls", maps.layer, maps.entropies[:, :, 0].sum(0, dtype=np.float64))
        self.add("queries", maps.layer, maps.tokens.lengths.sum())
        self.add("sentences", maps.layer, len(maps.tokens.lengths))

    def results(self) -> Iterator[Values]:
        queries, sentences = self.sums["queries"][:, None], self.sums["sentences"][:, None]
        yield Values("entropy", "all", self.sums["all"] / queries, count=queries[0, 0])
        if self.shape.n_before:
            yield Values("entropy", "cls", self.sums["cls"] / sentences, count=sentences[0, 0])


class Patterns(Statistic):
    """The share of a head's maps that has each of the patterns of Kovaleva et al. 2019, by an explicit rule.

    The paper trained a classifier on maps that the authors labelled by hand; their labels are not public, so these
    shares can be compared with theirs in kind only. Here, with V the share of attention to the two positions that
    receive most (the vertical lines of a map), D that of each position to itself and its two neighbors (its diagonal)
    and B, of two sentences read together, that of each position to its own sentence, v = (V - V0) / (1 - V0) is the
    part beyond what equal attention to all positions gives, V0, and d and b likewise (0 where V0 is 1, as in the
    shortest sentences). A map is

    - `vertical+diagonal` if v + d >= .5 and both are at least .2,
    - else `vertical` if v >= .5, else `diagonal` if d >= .5, else `block` if b >= .5,
    - else `heterogeneous`.

    [CLS] and the special subwords between the sentences are of the first, those at the end of the second. Single
    sentences have no blocks: a corpus without pairs (format "pairs", or `sentence_pair`) has no row `block`.
    """

    name = "patterns"

    def update(self, maps: Maps) -> None:
        tokens, lengths = maps.tokens, maps.tokens.lengths
        length = tokens.n_positions
        most = np.partition(maps.columns, max(0, length - 2))[:, :, -2:].sum(-1) / lengths[:, None]
        near = maps.offsets[:, :, max(0, length - 2) : length + 1].sum(-1) / lengths[:, None]
        expected_most, expected_near = self._chance(lengths)
        vertical, diagonal = _beyond(most, expected_most), _beyond(near, expected_near)
        own = self._own(maps) if tokens.pairs.any() else np.zeros_like(vertical)
        mixed = (vertical + diagonal >= SHARE) & (np.minimum(vertical, diagonal) >= LEAST)
        pattern = np.select([mixed, vertical >= SHARE, diagonal >= SHARE, own >= SHARE], [2, 0, 1, BLOCK], BLOCK + 1)
        self.add("maps", maps.layer, np.eye(len(PATTERNS))[pattern].sum(0))
        self.add("sentences", maps.layer, len(lengths))
        self.add("pairs", maps.layer, tokens.pairs.any(1).sum())

    def results(self) -> Iterator[Values]:
        sentences = self.sums["sentences"][:, None]
        for index, name in enumerate(PATTERNS):
            if index != BLOCK or self.sums["pairs"].any():
                yield Values("pattern", name, self.sums["maps"][:, :, index] / sentences, count=sentences[0, 0])

    def _own(self, maps: Maps) -> NDArray[np.float64]:
        """Return the part of attention to a position's own sentence beyond chance, [sentences, heads]."""
        tokens = maps.tokens
        first = tokens.first
        to_first = torch.einsum("shqk,sk->shq", maps.values, first.float())
        own = torch.where(first[:, None], to_first, (maps.values.sum(-1) - to_first)).sum(-1).cpu().numpy()
        chance = []
        for length, stop in zip(tokens.lengths.tolist(), tokens.pairs[:, 1].tolist(), strict=True):
            rest = length - (stop or length)
            if self.shape.causal:
                within = length - rest + (np.arange(1, rest + 1) / np.arange(length - rest + 1, length + 1)).sum()
            else:
                within = ((length - rest) ** 2 + rest**2) / length
            chance.append(within / length)
        return _beyond(own / tokens.lengths[:, None], np.array(chance))

    def _chance(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the expected V and D of each sentence if all positions that may be attended to are so equally."""
        distinct, inverse = np.unique(lengths, return_inverse=True)
        values = []
        for length in distinct.tolist():
            equal = np.tri(length) if self.shape.causal else np.ones((length, length))
            equal /= equal.sum(1, keepdims=True)
            columns = np.sort(equal.mean(0))[-2:].sum()
            values.append((columns, sum(np.diagonal(equal, offset).sum() for offset in (-1, 0, 1)) / length))
        vertical, diagonal = np.array(values)[inverse].T
        return vertical, diagonal


def _beyond(share: NDArray[np.floating], chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the part of shares [sentences, heads] beyond those expected of a sentence; 0 where these are all."""
    rest = 1 - chance[:, None]
    return np.where(rest > 1e-6, (share - chance[:, None]) / np.where(rest > 1e-6, rest, 1), 0)
