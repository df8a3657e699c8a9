"""Intervals hold as often as they say: by definition, and by simulation from known truths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest, norm, t

from embstore.analysis.change import Units
from embstore.intervals import exact, expanded, reach, worth
from embstore.probes.edges.scores import EdgeCounts, ProbeGrid, SplitCounts
from embstore_studies.heads import effects
from embstore_studies.study import ratio, share

Floats = np.ndarray


def test_expanded_percentiles_are_those_of_student_for_a_bootstrap_of_the_normal() -> None:
    """The percentiles of a normal of the deviation that a bootstrap of n values has give the ends of Student's t."""
    for n in (5, 12, 400):
        drawn = norm.ppf((np.arange(1_000_000) + 0.5) / 1_000_000, scale=np.sqrt((n - 1) / n / n))
        reach = t.ppf(0.975, n - 1) / np.sqrt(n)
        assert expanded(np.append(drawn, np.nan), n) == pytest.approx((-reach, reach), rel=2e-3)


def test_exact_intervals_are_those_of_a_binomial_of_as_many_answers_as_sentences_are_worth() -> None:
    for k, n in ((0, 9), (7, 20), (9, 9)):
        right = np.arange(n) < k
        ends = binomtest(k, n).proportion_ci(0.95, "exact")
        assert exact(right, np.ones(n)) == pytest.approx((ends.low, ends.high))
        if 0 < k < n:
            assert exact(3 * right, np.full(n, 3)) == pytest.approx((ends.low, ends.high)), (
                "threefold answers count once"
            )


def share_of(hits: Callable[[np.random.Generator], bool], tries: int = 400) -> float:
    random = np.random.default_rng(0)
    return float(np.mean([hits(random) for _ in range(tries)]))


def test_units_of_unequal_size_are_worth_less() -> None:
    assert worth(np.full(7, 3.0)) == pytest.approx(7)
    assert worth(np.array([90, 5, 5])) == pytest.approx(100**2 / (90**2 + 2 * 5**2))
    ends = expanded(np.linspace(0, 1, 1001), 3.5)
    assert ends[0] < expanded(np.linspace(0, 1, 1001), 9)[0]  # type: ignore[operator]
    values = np.random.default_rng(0).normal(size=12)
    assert reach(values) == pytest.approx(t.interval(0.95, 11, scale=values.std(ddof=1) / np.sqrt(12))[1])
    assert np.isnan(reach(values[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("sentences", [5, 10, 30, 100])
@pytest.mark.parametrize("accuracy", [0.3, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("alike", [0.1, 0.3, 0.6])
def test_answers_of_a_sentence_that_are_alike_are_covered(accuracy: float, sentences: int, alike: float) -> None:
    """Without the error of the factor, and where few sentences are wrong, they hold in .66 to .9 of cases."""
    shape = np.array([accuracy, 1 - accuracy]) * (1 - alike) / alike

    def hits(random: np.random.Generator) -> bool:
        size = random.geometric(0.1, sentences)
        low, high = exact(random.binomial(size, random.beta(*shape, sentences)), size)
        return bool(low <= accuracy <= high)

    assert share_of(hits, 500) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("words", [10, 30, 100])
@pytest.mark.parametrize("accuracy", [0.6, 0.9, 0.98])
def test_scores_of_words_of_very_unequal_frequency_are_covered(accuracy: float, words: int) -> None:
    """As if all words were alike in size, a gain holds in .9 and an accuracy near 1 in .78 to .88 of cases."""
    missed, stated = Counter[str](), Counter[str]()
    shape = np.array([accuracy, 1 - accuracy]) * 4
    random = np.random.default_rng(0)
    for _ in range(400):
        counts = np.minimum(1 + 2 * random.pareto(1, words), 500).astype(int)
        right, other = random.binomial(counts, [random.beta(*shape, words), random.beta(4, 4, words)])
        options = {"resamples": 300, "seed": int(random.integers(2**31))}
        for name, true, (_, low, high) in (
            ("share", accuracy, share(right, counts)),
            ("gain", accuracy - 0.5, ratio(right - other, counts, **options)),
        ):
            if low is not None and high is not None:
                stated[name] += 1
                missed[name] += not low <= true <= high
    assert set(stated) == {"share", "gain"}
    assert all(missed[name] <= 0.1 * count for name, count in stated.items()), (missed, stated)


@pytest.mark.slow
@pytest.mark.parametrize("sentences", [10, 20, 60])
@pytest.mark.parametrize("accuracy", [0.6, 0.97, 0.995])
def test_scores_near_one_are_covered(accuracy: float, sentences: int) -> None:
    """Percentiles of resampled sentences hold in .30 of 10 sentences at .995: mostly nothing is wrong in them."""
    spread = np.array([-0.5, 0.5]) * min(accuracy, 1 - accuracy)  # of easy and hard sentences

    def hits(random: np.random.Generator) -> bool:
        size = 1 + random.poisson(6, sentences)
        low, high = exact(random.binomial(size, accuracy + random.choice(spread, sentences)), size)
        return bool(low <= accuracy <= high)

    assert share_of(hits) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("share", "least"), [((0.6, 0.75, 0.8), 0.85), ((0.97, 0.98, 0.985), 0.89)])
@pytest.mark.parametrize("sentences", [10, 20, 60])
def test_what_layers_add_is_covered(share: tuple[float, ...], least: float, sentences: int) -> None:
    """Gains and the expected layer of P(0), P(1) and P(2), whose answers to a target are alike, where they are stated.

    Of 10 sentences at .98 resamples hold a gain in .59 of cases and an expected layer in .18: mostly nothing differs.
    """
    gains = np.diff(share)
    true = {1: gains[0], 2: gains[1], None: (gains[0] + 2 * gains[1]) / gains.sum()}
    spread, missed, stated = min(0.15, 0.5 * (1 - share[-1])), Counter[str](), Counter[str]()
    random = np.random.default_rng(0)
    for _ in range(300):
        size = 1 + random.poisson(6, sentences)
        eased = random.choice([-spread, spread], sentences)
        drawn = [random.random(count) for count in size]
        right = np.array(
            [[(each < one + more).sum() for each, more in zip(drawn, eased, strict=True)] for one in share]
        )
        counts = EdgeCounts(right, np.tile(size, (3, 1)), size)
        for row in SplitCounts(counts, counts).rows(ProbeGrid((0, 1, 2), (0,), False), n_resamples=400, seed=0):
            if (kind := row["metric"]) in ("differential", "expected_layer") and row.get("low") is not None:
                stated[kind] += 1
                missed[kind] += not row["low"] <= true[row["layer"]] <= row["high"]
    assert all(missed[kind] <= (1 - least) * count + 2 for kind, count in stated.items()), (missed, stated)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("n", [10, 30])
@pytest.mark.parametrize("noise", [1, 2])
def test_change_is_covered_also_where_there_is_none(n: int, shift: float, noise: int) -> None:
    """Plain percentiles of the distance of prototypes never hold for a word that does not change.

    Moved by twice the bias of the resamples they hold in .05 of cases of 10 occurrences with twice the noise.
    """
    base, change = np.random.default_rng(1).normal(size=(2, 50))
    new = base + shift * change
    true = {"prt": 1 - base @ new / np.linalg.norm(base) / np.linalg.norm(new)}

    def hits(random: np.random.Generator) -> bool:
        vectors = np.concatenate([mean + noise * random.normal(size=(n, 50)) for mean in (base, new)])
        units = Units.of(vectors, np.arange(2 * n) >= n, np.arange(2 * n), None)
        low, high = units.intervals(300, random).get("prt", (0.0, 2.0))
        return bool(low <= true["prt"] + 1e-12 <= high + 2e-12)

    assert share_of(hits, 200) >= 0.88


@pytest.mark.slow
def test_ratios_of_documents_are_covered() -> None:
    def hits(random: np.random.Generator) -> bool:
        weights = 1 + random.poisson(3, 12)
        _, low, high = ratio(random.binomial(weights, 0.7), weights, resamples=500, seed=int(random.integers(2**31)))
        return low is None or high is None or bool(low <= 0.7 <= high)

    assert share_of(hits) >= 0.9
    assert ratio(np.ones(20), np.ones(20), resamples=9, seed=0) == (1.0, None, None), "nothing varies"


def heads(random: np.random.Generator, gain: Floats, loss: Floats, *, n: int, labels: int, burst: int) -> np.ndarray:
    """Counts of sentences without one head after the other; a changed sentence changes up to `burst` labels."""
    size = 1 + random.poisson(labels, n) if labels else np.ones(n, int)
    base = random.binomial(size, 0.9)
    counts = [base]
    for more, less in zip(gain, loss, strict=True):
        touched = random.random((2, n)) < 1 / burst
        gained = random.binomial(size - base, touched[0] * min(1, 10 * burst * more))
        counts.append(base + gained - random.binomial(base, touched[1] * min(1, burst * less)))
    return np.stack([np.stack([right, size, size], 1) for right in counts])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 0.0005, 0.005, 0.03])
@pytest.mark.parametrize(("n", "labels", "burst"), [(60, 0, 1), (300, 0, 1), (60, 12, 10), (300, 12, 1), (300, 12, 10)])
def test_effects_of_all_heads_are_covered_together(n: int, labels: int, burst: int, scale: float) -> None:
    """A simultaneous bootstrap holds in .67 to .92 of cases, and says 0 to 0 of a head that changes nothing here."""
    gain, loss = scale * np.random.default_rng(1).random((2, 24))
    whole = heads(np.random.default_rng(2), gain, loss, n=200_000, labels=labels, burst=burst).sum(1)
    true = whole[:, 0] / whole[:, 1] - whole[0, 0] / whole[0, 1]

    def hits(random: np.random.Generator) -> bool:
        effect, low, high = effects(heads(random, gain, loss, n=n, labels=labels, burst=burst))
        assert (low[1:] < effect[1:]).all()
        assert (effect[1:] < high[1:]).all()
        return bool(((low <= true) & (true <= high)).all())

    assert share_of(hits, 200) >= 0.94


def test_effects_shrink_with_the_sample_and_equal_heads_are_never_certain() -> None:
    counts = np.random.default_rng(0).integers(0, 5, (1, 40, 3)).repeat(3, 0)
    counts[..., 1:] = 5
    effect, low, high = effects(counts)
    assert not effect.any()
    assert (low[1:] == -high[1:]).all()
    wide, narrow = high[1], effects(counts.repeat(4, 1))[2][1]
    assert 0 < 3 * narrow < wide < 0.1


def test_entities_that_are_said_too_much_are_losses() -> None:
    counts = np.zeros((3, 200, 3), int) + 2
    counts[1, :40, 2] += 1  # an entity too much in forty sentences, so that the F1 is 800 of 840
    effect, low, high = effects(counts)
    assert effect.tolist() == pytest.approx([0, 800 / 840 - 1, 0])
    lost = binomtest(20, 420).proportion_ci(1 - 0.05 / 2, "exact")  # an F1 loses half a label by each
    assert low[1] - effect[1] == pytest.approx(-np.hypot(lost.high - 20 / 420, 0), rel=1e-6)
    assert high[1] < 0 < high[2]
