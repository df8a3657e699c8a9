"""The geometry of contextual vectors layer by layer: the measures of Ethayarajh 2019 over a store, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.geometry.cosine import Cosines, Groups, mean_cosine, sentence_groups, word_groups
from embstore.analysis.geometry.moments import Moments
from embstore.analysis.geometry.spectra import explained_shares, sample_mev
from embstore.analysis.scan import (
    MIN_PARTS,
    Counter,
    Reducer,
    Reduction,
    Statistics,
    part_spans,
    reduce_parts,
    rows_of,
    selected,
)
from embstore.analysis.word_batches import MEMORY, compute_per_word
from embstore.analysis.words import eligible_types, rows_of_words
from embstore.devices import thread_count
from embstore.errors import InvalidValueError
from embstore.progress import Progress, reporting
from embstore.sizes import parse_nbytes
from embstore.store import Selection, Store

PAPER_METRICS = ("selfsim", "intrasim", "mev", "anisotropy")
LAYER_METRICS = ("mean_norm", "participation_ratio", "effective_rank", "top_component")
METRICS = (*PAPER_METRICS, *LAYER_METRICS)
COSINE_METRICS = frozenset({"selfsim", "intrasim", "anisotropy"})
BASELINES = ("exact", "sample")
PART_TIMES = 16  # a part has at least this many times the rows of the word sums that it makes
SCHEMA: dict[str, Any] = {
    "layer": pl.Int64,
    "metric": pl.Enum(METRICS),
    "item": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "baseline": pl.Float64,
    "adjusted": pl.Float64,
}


def geometry(
    data: Store | Selection,
    *,
    metrics: str | Sequence[str] = PAPER_METRICS,
    layers: int | str | Sequence[int] | None = None,
    min_contexts: int = 5,
    centered: bool = False,
    baseline: str = "exact",
    sample: int = 1000,
    seed: int = 0,
    precision: str = "float32",
    device: str = "auto",
    threads: int | None = None,
    memory: int | str | None = None,
    block_rows: int | None = None,
    executor: Executor | None = None,
    progress: Progress = None,
) -> pl.DataFrame:
    """Measure how contextual the vectors of each layer are: `layer, metric, item, value, count, baseline, adjusted`.

    `selfsim` and `mev` have a row for each word that occurs in `min_contexts` different sentences or more (`item`: the
    word; `count`: its occurrences), `intrasim` a row for each sentence of two words or more (`item`: its row in the
    store; `count`: its words). Each also has a row for the layer (empty `item`): the mean over words or sentences.
    `anisotropy` (the mean cosine of two occurrences), `mean_norm`, `participation_ratio`, `effective_rank` and
    `top_component` have one row per layer. `adjusted` is value minus baseline, which is the anisotropy for `selfsim`
    and `intrasim`, and the MEV of all occurrences for `mev`.

    `baseline`: "exact" over all selected occurrences, or "sample" as in the paper: over `sample` of them, drawn with
    `seed`. `centered`: subtract the mean before MEV, for words and baseline alike. `memory`: bytes or a text such as
    "4GiB" (default 1 GiB); with less, words are processed in several passes. `device`: where products of vectors are
    computed; cosines are always computed on the CPU. `executor`: compute in its workers, each within `memory` and with
    one thread; the table is the same to the bit on processors of one kind. `progress(done, total)` counts vectors.

    Raises InvalidValueError, MissingRowsError for rows not yet written, NonFiniteError, ExecutorError.
    """
    if baseline not in BASELINES:
        raise InvalidValueError(f"unknown baseline {baseline!r}; allowed are {', '.join(BASELINES)}")
    nbytes = MEMORY if memory is None else parse_nbytes(memory, name="memory")
    inputs = _Inputs.of(selected(data, layers), _checked_metrics(metrics), min_contexts)
    if baseline == "sample":
        inputs.sample = _draw(inputs.selection, sample, seed)
    passes = _passes(inputs, nbytes)
    n_read = sum(len(each.selection.rows) for each in passes)
    n_read += int(inputs.word_counts.sum()) if "mev" in inputs.metrics else 0
    run = _Run(precision, device, threads, nbytes, block_rows, executor, centered)
    total = n_read * len(inputs.selection.layers)
    with reporting(progress, total=total, unit="vectors", label="geometry") as report:
        count = Counter(report)
        found: Statistics = {layer: {} for layer in inputs.selection.layers}
        for each in passes:
            for layer, statistics in run.reduce(each, count.add).items():
                _add(found[layer], statistics)
        if "mev" in inputs.metrics:
            before = count.done
            shares = run.explained_shares(inputs, lambda done: report(before + done))
            for layer, values in zip(inputs.selection.layers, shares, strict=True):
                found[layer]["mev"] = values
    return pl.concat([frame for layer in found for frame in _frames(inputs, layer, found[layer], centered=centered)])


def _checked_metrics(metrics: str | Sequence[str]) -> tuple[str, ...]:
    chosen = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for metric in chosen:
        if metric not in METRICS:
            raise InvalidValueError(f"unknown metric {metric!r}; allowed are {', '.join(METRICS)}")
    if not chosen:
        raise InvalidValueError(f"no metric is chosen: name one or more of {', '.join(METRICS)}")
    return tuple(metric for metric in METRICS if metric in chosen)


def _draw(selection: Selection, sample: int, seed: int) -> NDArray[np.int64]:
    """Draw the rows of the sampled baseline."""
    if sample < 2:
        raise InvalidValueError(f"sample {sample} is not allowed: give 2 or more")
    n_drawn = min(sample, len(selection.rows))
    chosen = np.random.default_rng(seed).choice(len(selection.rows), n_drawn, replace=False)
    return np.asarray(selection.rows[np.sort(chosen)])


@dataclass
class _Inputs:
    """What is measured: the selection in the order of sentences, the metrics, and the words and sentences in it.

    `types`: the words of selfsim and mev, and `word_counts` their occurrences. `sentences`: those of intrasim.
    `sample`: the rows of the sampled baseline, None for the exact one.
    """

    selection: Selection
    metrics: tuple[str, ...]
    types: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    word_counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sentences: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sentence_groups: Groups | None = None
    sample: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, selection: Selection, metrics: tuple[str, ...], min_contexts: int) -> _Inputs:
        """Find the words and sentences; raises InvalidValueError if there are none for a metric."""
        store, index = selection.store, selection.store.index
        sentence = np.asarray(index.sentence[selection.rows])
        if (np.diff(sentence) < 0).any():
            in_order = selection.rows[np.argsort(sentence, kind="stable")]
            selection = rows_of(store, in_order, selection.layers)
        inputs = cls(selection, metrics)
        if {"selfsim", "mev"} & set(metrics):
            inputs.types = eligible_types(selection, min_contexts)
            if not len(inputs.types):
                raise InvalidValueError(
                    f"no selected word of {store.path} occurs in {min_contexts} different sentences or more: "
                    "allow fewer (min contexts)"
                )
            inputs.word_counts = np.bincount(index.type[selection.rows], minlength=len(index.words))[inputs.types]
        if "selfsim" in metrics and not (inputs.word_counts > 1).any():
            raise InvalidValueError(
                f"no selected word of {store.path} has two occurrences, which self-similarity needs: "
                "choose other words or metrics"
            )
        if "intrasim" in metrics:
            inputs.sentences, inputs.sentence_groups = sentence_groups(index, selection.rows)
            if not len(inputs.sentences):
                raise InvalidValueError(
                    f"no sentence of {store.path} has two selected words, which intra-sentence similarity needs: "
                    "choose more words or other metrics"
                )
        return inputs


@dataclass(frozen=True)
class _Pass:
    """One pass over the vectors of a selection, with sums for `n_words` words that take `sums_nbytes` per state."""

    selection: Selection
    reducers: dict[str, Reducer[Any]]
    n_words: int = 0


def _passes(inputs: _Inputs, memory: int) -> list[_Pass]:
    """Plan the passes: one for everything that reads all vectors, further ones for word sums that exceed the memory."""
    selection, metrics = inputs.selection, set(inputs.metrics)
    index = selection.store.index
    chunk_size = max(1, memory // 12 // (8 * selection.store.hidden_size))
    chunks = [inputs.types[start : start + chunk_size] for start in range(0, len(inputs.types), chunk_size)]
    separate = chunks if "selfsim" in metrics and len(chunks) > 1 else []
    reducers: dict[str, Reducer[Any]] = {}
    words = None
    if "selfsim" in metrics and not separate:
        words = word_groups(index, selection.rows, inputs.types)
    if words is not None or "intrasim" in metrics or (inputs.sample is None and COSINE_METRICS & metrics):
        reducers["cosines"] = Cosines(words=words, sentences=inputs.sentence_groups)
    if set(LAYER_METRICS) & metrics or ("mev" in metrics and inputs.sample is None):
        reducers["moments"] = Moments()
    passes = [_Pass(selection, reducers, 0 if words is None else len(words.sizes))] if reducers else []
    for types in separate:
        mask = np.zeros(len(index.words), bool)
        mask[types] = True
        chunk = rows_of(selection.store, selection.rows[mask[index.type[selection.rows]]], selection.layers)
        passes.append(_Pass(chunk, {"selfsim": Cosines(words=word_groups(index, chunk.rows, types))}, len(types)))
    return passes


@dataclass(frozen=True)
class _Run:
    """How the passes are computed; the arguments of `geometry` with the same names."""

    precision: str
    device: str
    threads: int | None
    memory: int
    block_rows: int | None
    executor: Executor | None
    centered: bool

    def reduce(self, each: _Pass, advance: Callable[[int], object]) -> Statistics:
        """Run a pass in parts that are large compared with their word sums, with as many states as fit the memory."""
        device = self.device if self.executor is None else "cpu"
        reduction = Reduction(
            each.selection, each.reducers, precision=self.precision, device=device, block_rows=self.block_rows
        )
        n_rows, hidden_size = len(each.selection.rows), each.selection.store.hidden_size
        n_parts, n_threads, max_pending = None, thread_count(self.threads), None
        if each.n_words:
            n_states = max(1, self.memory // (3 * 8 * hidden_size * each.n_words) - 2)
            n_parts = max(MIN_PARTS, n_rows // (PART_TIMES * each.n_words))
            n_threads, max_pending = min(n_threads, n_states), n_states
        return reduce_parts(
            reduction,
            part_spans(n_rows, reduction.block_rows, hidden_size, n_parts),
            threads=n_threads,
            executor=self.executor,
            device=self.device,
            advance=advance,
            max_pending=max_pending,
        )

    def explained_shares(self, inputs: _Inputs, progress: Callable[[int], object]) -> Iterator[NDArray[np.float64]]:
        """Yield the maximum explainable variance of the words of each layer."""
        return compute_per_word(
            partial(explained_shares, centered=self.centered),
            inputs.selection.store,
            inputs.selection.layers,
            rows_of_words(inputs.selection, inputs.types),
            precision=self.precision,
            device=self.device,
            memory=max(1, self.memory // 2),
            executor=self.executor,
            progress=progress,
        )


def _add(found: dict[str, Any], statistics: dict[str, Any]) -> None:
    """Add the statistics of a pass to those of its layer; self-similarities are appended to those of earlier words."""
    if "selfsim" in statistics:
        known = found.get("selfsim", np.empty(0))
        found["selfsim"] = np.concatenate([known, statistics["selfsim"].selfsim])
        return
    if "cosines" in statistics:
        cosines = statistics["cosines"]
        found |= {"intrasim": cosines.intrasim, "anisotropy": cosines.anisotropy}
        if len(cosines.selfsim):
            found["selfsim"] = cosines.selfsim
    if "moments" in statistics:
        found["moments"] = statistics["moments"]


def _frames(inputs: _Inputs, layer: int, found: dict[str, Any], *, centered: bool) -> Iterator[pl.DataFrame]:
    """Yield the rows of each metric at a layer."""
    selection, metrics = inputs.selection, inputs.metrics
    words = selection.store.index.words
    anisotropy = found.get("anisotropy")
    if inputs.sample is not None and COSINE_METRICS & set(metrics):
        anisotropy = _sample_anisotropy(selection.store.gather(inputs.sample, layer))
    forms = pl.Series([words[int(number)] for number in inputs.types], dtype=pl.String)
    if "selfsim" in metrics:
        several = inputs.word_counts > 1
        yield _frame(
            "selfsim", layer, forms.filter(several), inputs.word_counts[several], found["selfsim"][several], anisotropy
        )
    if "intrasim" in metrics and inputs.sentence_groups is not None:
        items = pl.Series(inputs.sentences).cast(pl.String)
        yield _frame("intrasim", layer, items, inputs.sentence_groups.sizes, found["intrasim"], anisotropy)
    if "mev" in metrics:
        if inputs.sample is None:
            baseline = found["moments"].mev(centered=centered)
        else:
            baseline = sample_mev(selection.store.gather(inputs.sample, layer), centered=centered)
        yield _frame("mev", layer, forms, inputs.word_counts, found["mev"], baseline)
    n_rows = len(selection.rows)
    if "anisotropy" in metrics:
        yield _layer_frame("anisotropy", layer, n_rows if inputs.sample is None else len(inputs.sample), anisotropy)
    for metric in LAYER_METRICS:
        if metric in metrics:
            yield _layer_frame(metric, layer, n_rows, getattr(found["moments"], metric))


def _sample_anisotropy(stored: NDArray[Any]) -> float:
    """The mean cosine of all pairs of vectors [n, feature], in float64."""
    vectors = stored.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    total = (vectors / np.where(lengths > 0, lengths, 1)[:, None]).sum(0)
    return float(mean_cosine(total @ total, (lengths > 0).sum(), len(vectors)))


def _frame(
    metric: str,
    layer: int,
    items: pl.Series,
    counts: NDArray[np.int64],
    values: NDArray[np.float64],
    baseline: float | None,
) -> pl.DataFrame:
    """The rows of a metric at a layer, its mean first."""
    known = values[~np.isnan(values)]
    mean = float(known.mean()) if len(known) else float("nan")
    columns = {
        "item": pl.concat([pl.Series([""]), items.alias("")]),
        "value": np.insert(values, 0, mean),
        "count": np.insert(counts, 0, len(known)),
    }
    return _completed(metric, layer, pl.DataFrame(columns), baseline)


def _layer_frame(metric: str, layer: int, count: int, value: float | None) -> pl.DataFrame:
    return _completed(metric, layer, pl.DataFrame({"item": [""], "value": [value], "count": [count]}), None)


def _completed(metric: str, layer: int, frame: pl.DataFrame, baseline: float | None) -> pl.DataFrame:
    columns = frame.with_columns(
        pl.col("value").fill_nan(None),
        metric=pl.lit(metric),
        layer=pl.lit(layer),
        baseline=pl.lit(baseline, pl.Float64).fill_nan(None),
    ).with_columns(adjusted=pl.col("value") - pl.col("baseline"))
    return columns.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
