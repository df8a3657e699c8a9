"""The effect of disabling heads and layers, the importance of heads by gradient, and pruning in that order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.devices import choose_device, torch_threads
from embstore.errors import InvalidValueError, check_choice, check_columns, check_whole
from embstore.models.transformer.heads import HOW, Head, How
from embstore.progress import Progress, reporting
from embstore_studies.heads.network import HeadNetwork, Heads
from embstore_studies.heads.scores import effects, resampled, score

TENTHS = 10


@checked
def disable_heads(
    data: str | Path,
    *,
    model: str | Path,
    how: How = "uniform",
    n_sentences: int | None = None,
    resamples: int = 1000,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = None,
) -> pl.DataFrame:
    """Measure the effect of disabling each head, and all heads of each layer, on the score of a fine-tuned model.

    `data`: labeled data in the format of the model's task, such as its dev file. `model`: the folder that `finetune`
    has written. `how`: "uniform" sets the weights of a head to a constant, 1/L in a sentence of L subwords (special
    ones included; of a causal model, 1/n over the n positions that it may attend to), as in Kovaleva et al. 2019
    (section 4.6); "zero" sets the output of a head to 0, as in Michel et al. 2019. `n_sentences`: how many are chosen
    at random; None: all. `resamples`: of the sentences, for the intervals.

    Returns a frame `layer, head, metric, value, effect, low, high, clear, count`. The first row, without a layer, is
    the whole model; a row without a head is a layer without all of its heads. `value`: the score; `effect`: less that
    of the whole model; `low`, `high`: a 95 % interval of the effect, by a paired bootstrap over sentences, that holds
    for all rows together; `clear`: whether it excludes 0. An effect that is not clear may be noise. `count`: labels.

    Raises InvalidValueError for a model that was not fine-tuned, CorpusError for data that cannot be read, ModelError
    for a model whose heads are not found.
    """
    _check_sizes(n_sentences, resamples, seed)
    check_choice("how", how, HOW)
    with torch_threads(threads), reporting(progress, unit="sentences", label="heads") as report:
        network = HeadNetwork(model, choose_device(device))
        sentences = network.read(data, n_sentences=n_sentences, seed=seed)
        disabled: dict[tuple[int | None, int | None], Heads] = {(None, None): ()}
        disabled |= {head: [head] for head in network.heads}
        disabled |= {(layer, None): [head for head in network.heads if head[0] == layer] for layer in network.layers}
        counts = network.counts(sentences, list(disabled.values()), how, report)
    variants = pl.DataFrame(list(disabled), {"layer": pl.Int64, "head": pl.Int64}, orient="row")
    return _frame(variants, counts, network.tuned.task.metric, sentences.n_labels, resamples, seed)


@checked
def head_importance(
    data: str | Path,
    *,
    model: str | Path,
    n_sentences: int | None = None,
    resamples: int = 1000,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = None,
) -> pl.DataFrame:
    """Measure the importance of each head of a fine-tuned model by the gradient of its loss (Michel et al. 2019).

    I_h = E_x |Att_h(x)^T dL(x)/dAtt_h(x)|, the mean over sentences x of the absolute derivative of the loss by a weight
    of 1 that the head's output is multiplied by; divided by the l2 norm of its layer. It says how the loss changes with
    a small change of the head, not whether the model is worse without it: see `disable_heads`.

    `data`: labeled data such as the train file; the other arguments are those of `disable_heads`. Returns a frame
    `layer, head, value, low, high, raw, count`: the normalised importance with a 95 % interval by a bootstrap over
    sentences, the mean before it was normalised, and the number of sentences. Raises what `disable_heads` does.
    """
    _check_sizes(n_sentences, resamples, seed)
    with torch_threads(threads), reporting(progress, unit="sentences", label="importance") as report:
        network = HeadNetwork(model, choose_device(device))
        sentences = network.read(data, n_sentences=n_sentences, seed=seed)
        found = network.gradients(sentences, report)
    raw = found.mean(0)
    low = high = np.full_like(raw, np.nan)
    n = len(found)
    if resamples and n > 1:  # else every sample would be that sentence
        parts = [np.tensordot(drawn, found, 1) / n for drawn in resampled(n, resamples, seed)]
        low, high = np.quantile(_normalised(np.concatenate(parts)), [0.025, 0.975], axis=0)
    columns = {"value": _normalised(raw), "low": low, "high": high, "raw": raw}
    layers, heads = zip(*network.heads, strict=True)
    return pl.DataFrame(
        {"layer": layers, "head": heads, **{name: values.ravel() for name, values in columns.items()}}
    ).with_columns(pl.col("low", "high").fill_nan(None), count=pl.lit(len(found), pl.Int64))


@checked
def prune_heads(
    data: str | Path,
    *,
    model: str | Path,
    importance: pl.DataFrame,
    how: How = "zero",
    seeds: Sequence[int] = (0, 1, 2),
    n_sentences: int | None = None,
    resamples: int = 1000,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = None,
) -> pl.DataFrame:
    """Disable more and more heads of a fine-tuned model, the least important first, and score what remains.

    As in section 4 of Michel et al. 2019: heads of all layers in the order of `importance`, the frame of
    `head_importance` (columns layer, head and value), at every tenth of the heads; without training in between. Each
    of `seeds` gives a random order to compare with. The other arguments are those of `disable_heads`.

    Returns a frame `order, seed, share, n_disabled, metric, value, effect, low, high, clear, count`: `order` is
    "importance" or "random", `share` goes from 0 to 1, and the others are as in `disable_heads`. Raises what that does,
    and InvalidValueError for an importance that does not have every head of the model once.
    """
    _check_sizes(n_sentences, resamples, seed)
    check_choice("how", how, HOW)
    for each in seeds:
        check_whole("seed", each, 0, 2**32 - 1)
    check_columns(importance, ("layer", "head", "value"), "the importance of heads")
    with torch_threads(threads), reporting(progress, unit="sentences", label="pruning") as report:
        network = HeadNetwork(model, choose_device(device))
        ranked = [(layer, head) for layer, head in importance.sort("value").select("layer", "head").iter_rows()]
        if sorted(ranked) != list(network.heads):
            raise InvalidValueError(
                f"the importance must have each of {len(network.heads)} heads of {network.tuned.name!r} once, it has "
                f"{len(ranked)} rows: give what head_importance returns for this model"
            )
        sentences = network.read(data, n_sentences=n_sentences, seed=seed)
        orders: list[tuple[str, int | None, list[Head]]] = [("importance", None, ranked)]
        for each in seeds:
            shuffled = np.random.default_rng(each).permutation(np.array(network.heads)).tolist()
            orders.append(("random", each, [(layer, head) for layer, head in shuffled]))
        n_heads = len(network.heads)
        sizes = [round(n_heads * tenth / TENTHS) for tenth in range(TENTHS + 1)]
        disabled: list[Heads] = [()]  # the whole model, with which the others are compared
        rows: list[tuple[Any, ...]] = [(None, None, None, None)]
        for order, of_order, heads in orders:
            for size in sizes:
                disabled.append(heads[:size])
                rows.append((order, of_order, size / n_heads, size))
        counts = network.counts(sentences, disabled, how, report)
    schema = {"order": pl.String, "seed": pl.Int64, "share": pl.Float64, "n_disabled": pl.Int64}
    variants = pl.DataFrame(rows, schema, orient="row")
    return _frame(variants, counts, network.tuned.task.metric, sentences.n_labels, resamples, seed)[1:]


def _check_sizes(n_sentences: int | None, resamples: int, seed: int) -> None:
    if n_sentences is not None:
        check_whole("sentences", n_sentences, 1)
    check_whole("resamples", resamples, 0)
    check_whole("seed", seed, 0, 2**32 - 1)


def _normalised(importance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide importances [..., layers, heads] by the l2 norm of each layer."""
    norms = np.sqrt((importance**2).sum(-1, keepdims=True))
    result: NDArray[np.float64] = importance / np.maximum(norms, 1e-30)
    return result


def _frame(
    variants: pl.DataFrame, counts: NDArray[np.int64], metric: str, n_labels: int, resamples: int, seed: int
) -> pl.DataFrame:
    """Add the score of each variant, and its effect next to the first one."""
    effect, low, high = effects(counts, resamples=resamples, seed=seed)
    return variants.with_columns(
        metric=pl.lit(metric),
        value=score(counts.sum(1)),
        effect=effect,
        low=pl.Series(low).fill_nan(None),
        high=pl.Series(high).fill_nan(None),
        clear=(low > 0) | (high < 0),
        count=pl.lit(n_labels, pl.Int64),
    )
