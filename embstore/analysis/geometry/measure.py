"""The geometry of contextual vectors, layer by layer: Ethayarajh 2019 over a store, as one tidy table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.geometry.cosines import FusedCosines
from embstore.analysis.geometry.moments import LayerMoments, Moments
from embstore.analysis.geometry.spectra import explained_shares, sample_mev
from embstore.analysis.groups import Grouping
from embstore.analysis.parts import FEWEST, LayerParts
from embstore.analysis.scan import Reducer, selected
from embstore.analysis.similarity.cosine_similarity import (
    Anisotropy,
    IntraSentenceSimilarity,
    SelfSimilarity,
    mean_cosine,
)
from embstore.analysis.steps import WordsStep, results_of
from embstore.analysis.words import eligible_types, rows_of_words
from embstore.devices import choose_device
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store

PAPER_METRICS = ("selfsim", "intrasim", "mev", "anisotropy")
LAYER_METRICS = ("mean_norm", "participation_ratio", "effective_rank", "top_component")
METRICS = (*PAPER_METRICS, *LAYER_METRICS)
BASELINES = ("exact", "sample")
DEFAULT_MEMORY = 2**30
PART_TIMES = 16  # a part has so many times the occurrences of the words whose sums it makes
SCHEMA: dict[str, Any] = {
    "metric": pl.Enum(METRICS),
    "layer": pl.Int64,
    "item": pl.String,
    "count": pl.Int64,
    "value": pl.Float64,
    "baseline": pl.Float64,
    "adjusted": pl.Float64,
}


def geometry(
    source: Store | Selection,
    *,
    metrics: str | Sequence[str] = PAPER_METRICS,
    layers: int | Sequence[int] | None = None,
    min_contexts: int = 5,
    centered: bool = False,
    baseline: str = "exact",
    sample: int = 1000,
    seed: int = 0,
    precision: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    memory: int | None = None,
    block_rows: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> pl.DataFrame:
    """Measure the geometry of each layer: `metric, layer, item, count, value, baseline, adjusted`, one value a row.

    `selfsim` and `mev` have a row a word of `min_contexts` different sentences or more (item: the word; count: its
    occurrences), `intrasim` a row a sentence of two words or more (item: its row in the store; count: its words);
    each has besides a row a layer (item empty), the mean over words or sentences. `anisotropy` (the mean cosine of
    two occurrences), `mean_norm`, `participation_ratio`, `effective_rank` and `top_component` are of a layer alone.
    `adjusted` is value less baseline: the anisotropy for selfsim and intrasim, the MEV of all occurrences for mev.

    `baseline`: "exact" over all occurrences selected, or "sample", the paper's: `sample` of them, drawn with `seed`.
    `centered`: whether MEV is that of vectors less their mean, for words and baseline alike. `memory`: bytes to
    work in (1 GiB); with less, words are done in several passes. `executor`: who does the parts, each worker within
    `memory` and with one thread, and `threads` are those of one process; the table is the same to the bit (on
    processors of one kind). `progress`: is told what is done, and of how much.

    Raises InvalidValueError, MissingRowsError for rows not yet written, NonFiniteError, ExecutorError.
    """
    wanted = _checked_metrics(metrics)
    if baseline not in BASELINES:
        raise InvalidValueError(f"unknown baseline {baseline!r}; allowed are {', '.join(BASELINES)}")
    if memory is not None and memory < 1:
        raise InvalidValueError(f"memory {memory} is not allowed: give 1 byte or more")
    selection = selected(source, layers)
    study = _Study(
        selection=selection,
        metrics=wanted,
        types=eligible_types(selection, min_contexts) if {"selfsim", "mev"} & set(wanted) else np.empty(0, np.int64),
        min_contexts=min_contexts,
        centered=centered,
        sample=_drawn(selection, sample, seed) if baseline == "sample" else None,
        computing={"precision": precision, "device": device, "threads": threads, "block_rows": block_rows},
        memory=memory or DEFAULT_MEMORY,
        progress=progress or (lambda done, total: None),
        executor=executor,
    )
    return pl.concat(list(study.frames()))


def _checked_metrics(metrics: str | Sequence[str]) -> tuple[str, ...]:
    chosen = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for metric in chosen:
        if metric not in METRICS:
            raise InvalidValueError(f"unknown metric {metric!r}; allowed are {', '.join(METRICS)}")
    if not chosen:
        raise InvalidValueError(f"no metric is chosen: name one or more of {', '.join(METRICS)}")
    return tuple(metric for metric in METRICS if metric in chosen)


def _drawn(selection: Selection, sample: int, seed: int) -> NDArray[np.int64]:
    if sample < 2:
        raise InvalidValueError(f"sample {sample} is not allowed: give 2 or more")
    count = min(sample, len(selection.rows))
    chosen = np.random.default_rng(seed).choice(len(selection.rows), count, replace=False)
    return np.asarray(selection.rows[np.sort(chosen)])


@dataclass
class _Study:
    """One call of `geometry`: what is asked, and what the passes over the store have found so far."""

    selection: Selection
    metrics: tuple[str, ...]
    types: NDArray[np.int64]
    min_contexts: int
    centered: bool
    sample: NDArray[np.int64] | None
    computing: dict[str, Any]
    memory: int
    progress: Callable[[int, int], object]
    executor: Executor | None = None

    def frames(self) -> Iterator[pl.DataFrame]:
        if {"selfsim", "mev"} & set(self.metrics):
            self._require_words()
        passes = self._passes()
        explained = self._explained()
        results: Iterator[Any] = results_of(
            [*passes, *explained],
            self.selection.store,
            executor=self.executor,
            progress=lambda done: self.progress(min(done, self._total), self._total),
        )
        found: dict[int, dict[str, Any]] = {layer: {} for layer in self.selection.layers}
        for figures in [next(results) for _ in passes]:
            self._add(found, figures)
        for layer, mev in zip(self.selection.layers if explained else (), results, strict=True):
            found[layer]["mev"] = mev
        for layer, each in found.items():
            yield from self._layer_frames(layer, each)

    @staticmethod
    def _add(found: dict[int, dict[str, Any]], figures: dict[int, dict[str, Any]]) -> None:
        """Add the figures of a pass; those of words to the words of the passes before."""
        for layer, each in figures.items():
            if "cosines" in each:
                each |= vars(each.pop("cosines"))
            known = found[layer]
            if "selfsim" in known:
                known["selfsim"] = np.concatenate([known["selfsim"], each["selfsim"]])
            else:
                found[layer] = each | known

    def _layer_frames(self, layer: int, found: dict[str, Any]) -> Iterator[pl.DataFrame]:
        cosine = self._cosine(layer, found) if {"selfsim", "intrasim", "anisotropy"} & set(self.metrics) else None
        if "selfsim" in self.metrics:
            yield self._word_frame("selfsim", layer, found["selfsim"], cosine)
        if "intrasim" in self.metrics:
            items, grouping = self._sentences
            yield _frame("intrasim", layer, items, grouping.sizes, found["intrasim"], cosine)
        if "mev" in self.metrics:
            yield self._word_frame("mev", layer, found["mev"], self._mev_baseline(layer, found))
        count = len(self.selection.rows)
        if "anisotropy" in self.metrics:
            assert cosine is not None
            yield _layer_frame("anisotropy", layer, count if self.sample is None else len(self.sample), cosine)
        for metric in LAYER_METRICS:
            if metric in self.metrics:
                yield _layer_frame(metric, layer, count, getattr(found["moments"], metric))

    def _require_words(self) -> None:
        if not len(self.types):
            raise InvalidValueError(
                f"no word that is selected of {self.selection.store.path} occurs in {self.min_contexts} different "
                "sentences or more: ask for fewer (min contexts)"
            )
        if "selfsim" in self.metrics and not (self._word_counts > 1).any():
            raise InvalidValueError(
                f"no word that is selected of {self.selection.store.path} has two occurrences, which self-similarity "
                "needs: choose other words or metrics"
            )

    @cached_property
    def _word_counts(self) -> NDArray[np.int64]:
        index = self.selection.store.index
        counts = np.bincount(index.type[self.selection.rows], minlength=len(index.words))
        return np.asarray(counts[self.types])

    @cached_property
    def _sentences(self) -> tuple[pl.Series, Grouping]:
        """The sentences of which two or more words are selected, and each occurrence's among them."""
        sentence = np.asarray(self.selection.store.index.sentence[self.selection.rows])
        known, inverse, counts = np.unique(sentence, return_inverse=True, return_counts=True)
        numbers = np.where(counts > 1, np.cumsum(counts > 1) - 1, -1)
        if not (counts > 1).any():
            raise InvalidValueError(
                f"no sentence of {self.selection.store.path} has two words that are selected, which intra-sentence "
                "similarity needs: choose more words or other metrics"
            )
        items = pl.Series(known[counts > 1]).cast(pl.String)
        return items, Grouping(numbers[inverse], int((counts > 1).sum()))

    @cached_property
    def _word_chunks(self) -> list[NDArray[np.int64]]:
        """The types, in as many parts as their sums need to fit the memory."""
        size = max(1, self.memory // 12 // (8 * self.selection.store.hidden_size))
        return [self.types[start : start + size] for start in range(0, len(self.types), size)]

    @cached_property
    def _total(self) -> int:
        """Occurrences times layers that will be read, about."""
        one = len(self.selection.rows) * len(self.selection.layers)
        words = int(self._word_counts.sum()) * len(self.selection.layers) if len(self.types) else 0
        more = words if "selfsim" in self.metrics and len(self._word_chunks) > 1 else 0
        return one + more + (words if "mev" in self.metrics else 0)

    def _passes(self) -> list[LayerParts]:
        """One pass for all that needs every occurrence, the words' sums among them where they fit the memory."""
        apart = self._word_chunks if "selfsim" in self.metrics and len(self._word_chunks) > 1 else []
        reducers = self._cosines(
            words=self._words(self.selection, self.types) if "selfsim" in self.metrics and not apart else None,
            sentences=self._sentences[1] if "intrasim" in self.metrics else None,
            all_pairs=self.sample is None and bool({"selfsim", "intrasim", "anisotropy"} & set(self.metrics)),
        )
        if set(LAYER_METRICS) & set(self.metrics) or ("mev" in self.metrics and self.sample is None):
            reducers["moments"] = Moments()
        passes = [self._pass(self.selection, reducers, 0 if apart else len(self.types))] if reducers else []
        for types in apart:
            chunk = self._rows_of(types)
            passes.append(self._pass(chunk, self._cosines(words=self._words(chunk, types)), len(types)))
        return passes

    def _pass(self, selection: Selection, reducers: dict[str, Reducer[Any]], words: int) -> LayerParts:
        """A pass whose parts are large beside the words' sums that each makes, in threads whose sums fit the memory."""
        sizes: dict[str, Any] = {}
        if words:
            states = self.memory // (3 * 8 * self.selection.store.hidden_size * words)
            sizes["max_threads"] = max(1, states - 2)
            sizes["parts"] = max(FEWEST, len(selection.rows) // (PART_TIMES * words))
        return LayerParts(selection, reducers, local=self.executor is None, **sizes, **self.computing)

    def _cosines(
        self, *, words: Grouping | None = None, sentences: Grouping | None = None, all_pairs: bool = False
    ) -> dict[str, Reducer[Any]]:
        """What finds the cosines asked for: in one reading where the processor can, else each by itself."""
        if words is None and sentences is None and not all_pairs:
            return {}
        local = self.executor is None and self.computing["device"]
        cpu = (choose_device(local).type if local else self.computing["device"].partition(":")[0]) in ("cpu", "auto")
        fused = self.computing["precision"] == "float32" and cpu
        if fused and (sentences is None or sentences.contiguous):
            return {"cosines": FusedCosines(words=words, sentences=sentences)}
        reducers: dict[str, Reducer[Any]] = {"anisotropy": Anisotropy()} if all_pairs else {}
        if words is not None:
            reducers["selfsim"] = SelfSimilarity(words)
        if sentences is not None:
            reducers["intrasim"] = IntraSentenceSimilarity(sentences)
        return reducers

    def _rows_of(self, types: NDArray[np.int64]) -> Selection:
        rows = self.selection.rows
        chosen = np.zeros(len(self.selection.store.index.words), bool)
        chosen[types] = True
        own = rows[chosen[self.selection.store.index.type[rows]]]
        return Selection(self.selection.store, layers=self.selection.layers, rows=own)

    def _words(self, selection: Selection, types: NDArray[np.int64]) -> Grouping:
        places = np.full(len(selection.store.index.words), -1)
        places[types] = np.arange(len(types))
        return Grouping(places[selection.store.index.type[selection.rows]], len(types))

    def _cosine(self, layer: int, found: dict[str, Any]) -> float:
        if self.sample is None:
            return float(found["anisotropy"])
        vectors = torch.from_numpy(self.selection.store.gather(self.sample, layer).astype(np.float64))
        lengths = torch.linalg.vector_norm(vectors, dim=1)
        units = vectors / torch.where(lengths > 0, lengths, 1)[:, None]
        return float(mean_cosine(units.sum(0), (lengths > 0).sum().double(), torch.tensor(float(len(vectors)))))

    def _explained(self) -> list[WordsStep]:
        if "mev" not in self.metrics:
            return []
        words = rows_of_words(self.selection, self.types)
        computing = {name: self.computing[name] for name in ("precision", "device")}
        computing |= {"memory": max(1, self.memory // 2), "local": self.executor is None}
        return [
            explained_shares(self.selection, layer, words, centered=self.centered, **computing)
            for layer in self.selection.layers
        ]

    def _mev_baseline(self, layer: int, found: dict[str, Any]) -> float:
        if self.sample is not None:
            return sample_mev(self.selection.store.gather(self.sample, layer), centered=self.centered)
        moments: LayerMoments = found["moments"]
        return moments.mev(centered=self.centered)

    def _word_frame(self, metric: str, layer: int, values: NDArray[np.float64], baseline: float | None) -> pl.DataFrame:
        enough = self._word_counts > 1 if metric == "selfsim" else np.ones(len(self.types), bool)
        return _frame(metric, layer, self._forms.filter(enough), self._word_counts[enough], values[enough], baseline)

    @cached_property
    def _forms(self) -> pl.Series:
        words = self.selection.store.index.words
        return pl.Series([words[int(number)] for number in self.types], dtype=pl.String)


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
        "count": np.insert(counts, 0, len(known)),
        "value": np.insert(values, 0, mean),
    }
    return _completed(metric, layer, pl.DataFrame(columns), baseline)


def _layer_frame(metric: str, layer: int, count: int, value: float) -> pl.DataFrame:
    return _completed(metric, layer, pl.DataFrame({"item": [""], "count": [count], "value": [value]}), None)


def _completed(metric: str, layer: int, frame: pl.DataFrame, baseline: float | None) -> pl.DataFrame:
    value = pl.col("value").fill_nan(None)
    columns = frame.with_columns(
        value,
        metric=pl.lit(metric),
        layer=pl.lit(layer),
        baseline=pl.lit(baseline, pl.Float64).fill_nan(None),
    ).with_columns(adjusted=pl.col("value") - pl.col("baseline"))
    return columns.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
