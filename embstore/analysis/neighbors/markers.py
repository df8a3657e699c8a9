"""Words that mark groups of contexts: what a cluster or a region has more of than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.store import Store

CONTEXT = 5  # words on each side
LEAST_COUNT, CHANCE = 2, 0.05  # of a marking word; the share of chance among the marking words


def marking(counts: ArrayLike, *, count: int) -> list[list[int]]:
    """Return the items that mark each group, the best first, given how often each group has each: [group, item].

    Those that the group has significantly more of than the others, by the log-likelihood ratio G^2 (Dunning 1993) at a
    false discovery rate of .05 (Benjamini & Hochberg 1995), in the order of class-based tf-idf (Grootendorst 2022),
    sqrt(tf) * log(1 + A / f): `tf` is the share of the item in the group, `f` its count in all groups, and `A` the mean
    size of a group. Function words, which all groups have, are low.
    """
    from scipy.stats import chi2, false_discovery_control

    table = np.asarray(counts, np.float64)
    sizes, whole = table.sum(1, keepdims=True), table.sum(0)
    total = max(float(whole.sum()), 1.0)
    share = table / np.maximum(sizes, 1)
    expected = sizes * whole / total
    rest = (total - sizes) * whole / total
    g = 2 * (_entropy(table, expected) + _entropy(whole - table, rest))
    scores = np.sqrt(share) * np.log1p(total / max(len(table), 1) / np.maximum(whole, 1))
    tested = np.where(whole >= LEAST_COUNT, chi2.sf(g, 1), 1.0)
    rate = false_discovery_control(tested, axis=1) * ((whole >= LEAST_COUNT).mean() if table.size else 1)
    scores[(rate > CHANCE) | (table <= expected) | (table < LEAST_COUNT)] = 0
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return [[each for each in row.tolist() if own[each] > 0] for row, own in zip(order, scores, strict=True)]


def _entropy(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio = np.divide(observed, expected, out=np.ones_like(observed), where=(observed > 0) & (expected > 0))
    return np.asarray(observed * np.log(ratio))


def marker_words(
    contexts: Sequence[tuple[str, ...]], groups: Sequence[int], n_groups: int, *, count: int
) -> list[list[str]]:
    """Return the words that mark each group of contexts, as `marking`; equal contexts of a group count once.

    A context has a word or has it not, however often; words without a letter are left out. Groups of -1 are none.
    """
    pairs = {(group, context) for group, context in zip(groups, contexts, strict=True) if group >= 0}
    numbers: dict[str, int] = {}
    places = [
        (group, numbers.setdefault(word, len(numbers)))
        for group, context in sorted(pairs)
        for word in sorted(set(context))
        if any(map(str.isalpha, word))
    ]
    if n_groups < 2 or not places:
        return [[] for _ in range(n_groups)]
    own, items = np.array(places).T
    counts = np.bincount(own * len(numbers) + items, minlength=n_groups * len(numbers)).reshape(n_groups, -1)
    names = list(numbers)
    return [[names[each] for each in found] for found in marking(counts, count=count)]


def contexts(store: Store, rows: ArrayLike) -> Iterator[tuple[str, ...]]:
    """Yield the words within five of each occurrence, without it and without their case."""
    index, text = store.index, store.index.text
    places = np.asarray(rows)
    columns = (index.sentence[places].tolist(), index.position[places].tolist(), index.type[places].tolist())
    for sentence, position, number in zip(*columns, strict=True):
        words, piece = range(*text.word_indptr[sentence : sentence + 2].tolist()), text.pieces[sentence]
        start, stop = max(0, position), max(0, position + 1 + index.words[number].count(" "))
        near = (*words[max(0, start - CONTEXT) : start], *words[stop : stop + CONTEXT])
        yield tuple([piece[text.word_start[word] : text.word_stop[word]].casefold() for word in near])


def distinct_contexts(
    store: Store, rows: NDArray[np.int64], most: int | None, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return rows of which no two have the same context of five words on each side, ascending: `most` random ones."""
    seen: set[tuple[str, ...]] = set()
    found: list[int] = []
    order = np.sort(rows) if most is None else random.permutation(rows)
    for row, context in zip(order.tolist(), contexts(store, order), strict=True):
        if context not in seen:
            seen.add(context)
            found.append(row)
            if len(found) == most:
                break
    return np.sort(np.array(found, np.int64))
