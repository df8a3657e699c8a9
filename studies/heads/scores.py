"""Scores of a fine-tuned model from counts of each sentence, and intervals of their differences over sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embstore_studies.finetuning.examples import NO_LABEL
from embstore_studies.finetuning.training import entities

CHUNK = 100  # resamples at a time
CONFIDENCE = 0.95


def sentence_counts(
    metric: str, names: Sequence[str], gold: NDArray[np.int64], predicted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return what each sentence adds to a score: int64 [sentences, 3], how many are right, gold and predicted.

    `gold`, `predicted`: numbers of labels [sentences, positions]; only positions with a gold label count. They are
    words or sentences for the accuracy, entities of BIO labels for the F1.
    """
    mask = gold != NO_LABEL
    if metric == "accuracy":
        right, total = ((gold == predicted) & mask).sum(1), mask.sum(1)
        return np.stack([right, total, total], 1)
    found = [
        [entities([names[number] for number in row[chosen]]) for row, chosen in zip(numbers, mask, strict=True)]
        for numbers in (gold, predicted)
    ]
    return np.array([[len(one & two), len(one), len(two)] for one, two in zip(*found, strict=True)])


def score(counts: NDArray[np.number]) -> NDArray[np.float64]:
    """Return accuracies, or micro F1, of summed counts [..., 3]; 0 where nothing is gold or predicted."""
    total = counts[..., 1] + counts[..., 2]
    result: NDArray[np.float64] = 2 * counts[..., 0] / np.maximum(total, 1)
    return result


def resampled(n_sentences: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often each sentence is drawn in some bootstrap samples: float64 [samples, sentences]."""
    draws = np.random.default_rng(seed)
    share = np.full(n_sentences, 1 / n_sentences)
    for start in range(0, resamples, CHUNK):
        yield draws.multinomial(n_sentences, share, size=min(CHUNK, resamples - start)).astype(np.float64)


def effects(
    counts: NDArray[np.int64], *, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the effect of each variant on the score with simultaneous 95 % intervals.

    `counts`: int64 [variants, sentences, 3]; the first variant is the whole model, with which the others are compared.
    The intervals are from a paired bootstrap over sentences: effect - c s and effect + c s, where s is the deviation
    over the samples and c the .95 quantile of the largest |effect of the sample - effect| / s of all variants. So in
    95 % of cases all intervals hold together, however many heads are compared. They are NaN without samples, of a
    single sentence, and where an effect other than 0 is the same in all samples.
    """
    n_variants, n_sentences, _ = counts.shape
    values = score(counts.sum(1))
    effect = values - values[0]
    if not resamples or n_sentences < 2:
        return effect, effect * np.nan, effect * np.nan
    flat = counts.transpose(1, 0, 2).reshape(n_sentences, -1).astype(np.float64)
    parts = [score((drawn @ flat).reshape(-1, n_variants, 3)) for drawn in resampled(n_sentences, resamples, seed)]
    sampled = np.concatenate(parts)
    deviations = sampled - sampled[:, :1] - effect
    spread = deviations.std(0)
    varies = spread > 1e-12
    ratio = np.abs(deviations[:, varies]) / spread[varies]
    widest = float(np.quantile(ratio.max(1), CONFIDENCE)) if varies.any() else 0.0
    reach = np.where(varies | (effect == 0), widest * spread, np.nan)
    return effect, effect - reach, effect + reach
