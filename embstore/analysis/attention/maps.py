"""Attention maps of a batch, of subwords and of words, and what a statistic of them is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.attention.annotated import Annotated, Mention
from embstore.corpus.sentence import PAIR
from embstore.models.batching import Batch
from embstore.models.encoder import Split
from embstore.models.transformer.tokens import Specials

TINY = 1e-38  # p log p is 0 where p is 0
STOPS = frozenset(".,")


@dataclass(frozen=True)
class Shape:
    """What a statistic is of: layers from 1, heads from 0; `causal`: positions attend only to earlier ones.

    `n_before`, `n_after`: special subwords around each sentence.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    causal: bool
    n_before: int
    n_after: int


class Tokens:
    """The sentences of a batch as the model sees them: subwords, and the words that they belong to.

    `lengths`: int64 [n], positions, special ones included. Words without a subword, or with one beyond the model's
    limit, do not count as words; words may share a subword.
    `n_words`: int64 [n]. `bounds`: int64 [n, words, 2], the positions where words begin and end. `pairs`: int64 [n, 2],
    of two sentences that the model reads together the positions where the special subwords between them begin and end;
    0 for a single sentence.
    """

    def __init__(
        self,
        sentences: Sequence[Annotated],
        split: Split,
        batch: Batch,
        lengths: NDArray[np.int64],
        specials: Specials,
        device: torch.device,
    ) -> None:
        self.n_before, self.n_after, self.device = len(specials.prefix), len(specials.suffix), device
        self.sentences = [sentences[index] for index in batch.sentences]
        self.lengths = lengths[batch.sentences] + specials.count
        self.n_positions = int(self.lengths.max())
        self.pairs = np.zeros((len(self.sentences), 2), np.int64)
        bounds = []
        self.present: list[NDArray[np.int64]] = []  # of each sentence the forms that count as words
        for row, index in enumerate(batch.sentences.tolist()):
            forms, words = split.indptr[index] + self.sentences[row].bounds, self.sentences[row].sentence.words
            starts = split.first[forms[:-1]] - split.bounds[index]
            stops = split.last[forms[1:] - 1] - split.bounds[index]
            mask = (stops > starts) & (stops <= lengths[index])
            if PAIR in words:
                between = words.index(PAIR)
                if mask[between]:
                    self.pairs[row] = self.n_before + starts[between], self.n_before + stops[between]
                mask[between] = False
            self.present.append(np.flatnonzero(mask))
            bounds.append(self.n_before + np.stack([starts[mask], stops[mask]], axis=1))
        self.n_words = np.array([len(forms) for forms in self.present], np.int64)
        self.bounds = np.zeros((len(bounds), max(1, int(self.n_words.max(initial=0))), 2), np.int64)
        for row, each in enumerate(bounds):
            self.bounds[row, : len(each)] = each

    @cached_property
    def valid(self) -> torch.Tensor:
        """Bool [n, positions], False for padding."""
        return self._tensor(np.arange(self.n_positions) < self.lengths[:, None])

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        """Whether a position belongs to a word, bool [n, positions, words]."""
        positions = np.arange(self.n_positions)[:, None]
        return (positions >= self.bounds[:, None, :, 0]) & (positions < self.bounds[:, None, :, 1])

    @cached_property
    def members(self) -> torch.Tensor:
        """Float [n, positions, words], 1 where a position belongs to a word."""
        return self._tensor(self._inside.astype(np.float32))

    @cached_property
    def means(self) -> torch.Tensor:
        """Float [n, words, positions], the share of each of its subwords in a word."""
        return (self.members / self.members.sum(1, keepdim=True).clamp_min(1)).transpose(1, 2).contiguous()

    @cached_property
    def kinds(self) -> dict[str, NDArray[np.bool_]]:
        """Kinds of subwords, each bool [n, positions]; one that words share is punctuation if they all are."""
        positions, lengths = np.arange(self.n_positions), self.lengths[:, None]
        shape = len(self.sentences), self.n_positions
        before = np.broadcast_to(positions < self.n_before, shape)
        after = (positions >= lengths - self.n_after) & (positions < lengths)
        after |= (positions >= self.pairs[:, :1]) & (positions < self.pairs[:, 1:])
        others = np.ones((2, *self.bounds.shape[:2]), np.bool_)  # words that are no mark, and no stop
        for row, (sentence, forms) in enumerate(zip(self.sentences, self.present, strict=True)):
            spelled = sentence.forms
            others[0, row, : len(forms)] = [any(map(str.isalnum, spelled[form])) for form in forms]
            others[1, row, : len(forms)] = [spelled[form] not in STOPS for form in forms]
        some = self._inside.any(2)
        marks, stops = (np.asarray(some & ~(self._inside & other[:, None]).any(2)) for other in others)
        first = np.broadcast_to(positions == 0, shape)
        return {"cls": before, "first": first, "sep": after, "punctuation": marks, "period_comma": stops}

    @cached_property
    def first(self) -> torch.Tensor:
        """Bool [n, positions]: of a single sentence, or of the first of a pair with the special subwords around it."""
        ends = np.where(self.pairs[:, 1], self.pairs[:, 1], self.n_positions)
        return self._tensor(np.arange(self.n_positions) < ends[:, None])

    @cached_property
    def edges(self) -> Edges:
        """The edges of the dependency trees between words of the batch."""
        return Edges.of(self)

    @cached_property
    def mentions(self) -> list[tuple[int, Mention]]:
        """The mentions that have an antecedent, with their row, in numbers of words."""
        found = []
        for row, sentence in enumerate(self.sentences):
            numbers = {form: number for number, form in enumerate(self.present[row].tolist())}
            for mention in sentence.mentions:
                antecedents = frozenset(numbers[word] for word in mention.antecedents if word in numbers)
                if mention.word in numbers and antecedents:
                    guesses = {name: numbers.get(word, -1) for name, word in mention.guesses.items()}
                    found.append((row, Mention(numbers[mention.word], antecedents, guesses)))
        return found

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


@dataclass(frozen=True)
class Edges:
    """The edges of dependency trees, sorted by relation: rows of the batch, dependants and heads as numbers of words.

    `relations`: the distinct relations; `starts`: where the edges of each begin. `roots`: int64 [sentences], the word
    at the root, -1 where it is not among the words.
    """

    row: NDArray[np.int64]
    dependant: NDArray[np.int64]
    head: NDArray[np.int64]
    punctuation: NDArray[np.bool_]
    relations: list[str]
    starts: NDArray[np.int64]
    roots: NDArray[np.int64]

    @classmethod
    def of(cls, tokens: Tokens) -> Edges:
        none = np.zeros(0, np.int64)
        columns: list[tuple[NDArray[Any], ...]] = [(none, none, none, none.astype(np.bool_))]
        roots = np.full(len(tokens.sentences), -1, np.int64)
        names: list[str] = []
        for row, (sentence, forms) in enumerate(zip(tokens.sentences, tokens.present, strict=True)):
            tree = sentence.tree
            if tree is None or not len(forms):
                continue
            numbers = np.full(len(tree) + 1, -1, np.int64)  # the last is that of the head -1
            numbers[forms] = np.arange(len(forms))
            heads = numbers[tree.heads[forms]]
            roots[row] = numbers[tree.root]
            mask = heads >= 0
            dependants = np.flatnonzero(mask)
            columns.append((np.full(len(dependants), row), dependants, heads[mask], tree.punctuation[forms][mask]))
            names += [tree.relations[form] for form in forms[mask].tolist()]
        relations, codes = np.unique(np.array(names, str), return_inverse=True)
        order = np.argsort(codes, kind="stable")
        rows, dependants, heads, marks = (np.concatenate(each)[order] for each in zip(*columns, strict=True))
        starts = np.searchsorted(codes[order], np.arange(len(relations)))
        return cls(rows, dependants, heads, marks, relations.tolist(), starts, roots)


class Maps:
    """The attention maps of one layer for a batch of sentences.

    `values`: float32 [sentences, heads, queries, keys]; rows of queries that are padding are 0. `layer`: its index
    among the layers of the pass, which ascend. `last`: whether it is the last of them.
    """

    def __init__(self, values: torch.Tensor, tokens: Tokens, *, layer: int, last: bool) -> None:
        self.values, self.tokens, self.layer, self.last = values, tokens, layer, last

    @cached_property
    def _read(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """The entropies, columns and offsets."""
        entropies, columns, offsets = (each.cpu().numpy() for each in read_maps(self.values))
        return entropies, columns, offsets

    @property
    def entropies(self) -> NDArray[np.float32]:
        """The entropy of each query's attention, in nats: float32 [sentences, heads, queries]; 0 for padding."""
        return self._read[0]

    @property
    def columns(self) -> NDArray[np.float32]:
        """The attention that each position receives from all: float32 [sentences, heads, positions]."""
        return self._read[1]

    @property
    def offsets(self) -> NDArray[np.float32]:
        """The attention that goes o positions on, at positions - 1 + o: float32 [sentences, heads, 2 positions - 1]."""
        return self._read[2]

    @cached_property
    def words(self) -> NDArray[np.float32]:
        """The attention of words to words: float32 [sentences, words, heads, words], from a word to a word.

        As in Clark et al. 2019 (section 4.1): that to a word is the sum over its subwords, that from a word the mean.
        """
        n, n_heads, length, _ = self.values.shape
        n_words = self.tokens.members.shape[-1]
        to_words = torch.bmm(self.values.reshape(n, n_heads * length, length), self.tokens.members)
        by_query = to_words.view(n, n_heads, length, n_words).transpose(1, 2).reshape(n, length, n_heads * n_words)
        words = torch.bmm(self.tokens.means, by_query).view(n, n_words, n_heads, n_words)
        return np.asarray(words.cpu().numpy())

    @cached_property
    def most_attended(self) -> NDArray[np.int64]:
        """The other word that each word attends to most: int64 [sentences, words, heads], -1 if it attends to none."""
        others, numbers = self.words.copy(), np.arange(self.words.shape[1])
        others[:, numbers, :, numbers] = 0
        return np.where(others.max(3) > 0, others.argmax(3), -1)


def read_maps(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the entropies, columns and offsets of maps [sentences, heads, queries, keys]."""
    n, n_heads, length, _ = values.shape
    entropies = -torch.linalg.vecdot(values.clamp_min(TINY).log_(), values)
    # With the queries in reverse order in rows of 2 x length, read as rows that are one shorter, row i is shifted by i:
    # the columns are offsets, from 1 - length.
    skewed = torch.nn.functional.pad(values.flip(-2), (0, length)).flatten(2)[:, :, : length * (2 * length - 1)]
    return entropies, values.sum(-2), skewed.reshape(n, n_heads, length, 2 * length - 1).sum(2)


@dataclass(frozen=True)
class Values:
    """Values of all heads for the table of results, or one value of the corpus alone.

    `values`: float64 [layers, heads], or a number. `item`: of what, such as a relation; `offset`: a distance in
    positions. `baseline`: the value that needs no model. `count`: of how many, an array like `values` or a number.
    """

    metric: str
    item: str
    values: NDArray[np.float64] | float
    count: float
    offset: int | None = None
    baseline: float | None = None


class Statistic(ABC):
    """Sums over the attention maps of a corpus, from which values of each head are made at the end.

    A subclass adds to `sums` in `update`, which is called for each layer of each batch, and yields its values in
    `results`. The memory must not grow with the corpus. `needs`:
    the annotation without which there is nothing to count. `attention` takes objects of your own classes::

        class Strongest(es.analysis.Statistic):
            name = "strongest"

            def update(self, maps):
                self.add("largest", maps.layer, maps.values.amax(-1).sum((0, 2)))
                self.add("queries", maps.layer, maps.tokens.lengths.sum())

            def results(self):
                queries = self.sums["queries"]
                yield es.analysis.Values("strongest", "", self.sums["largest"] / queries[:, None], count=queries[0])
    """

    name: ClassVar[str] = ""
    needs: ClassVar[Literal["trees", "mentions"] | None] = None
    shape: Shape

    def __init__(self) -> None:
        self.sums: dict[str, NDArray[np.float64]] = {}

    def begin(self, shape: Shape) -> None:
        """Begin a pass over a corpus: forget what was summed before."""
        self.shape, self.sums = shape, {}

    @abstractmethod
    def update(self, maps: Maps) -> None:
        """Add the maps of one layer of a batch."""

    @abstractmethod
    def results(self) -> Iterator[Values]:
        """Yield the values of the whole corpus."""

    def add(self, key: str, layer: int, values: Any) -> None:
        """Add values of one shape in all calls to the sum of that name and layer, `sums[key][layer]`."""
        values = np.asarray(values.cpu() if hasattr(values, "cpu") else values, np.float64)
        if key not in self.sums:
            self.sums[key] = np.zeros((len(self.shape.layers), *values.shape))
        self.sums[key][layer] += values
