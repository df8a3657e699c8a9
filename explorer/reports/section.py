"""The parts of a report, before they become HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

import embstore as es
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store

MAX_ROWS = 250_000  # rows whose geometry is measured; larger stores are sampled by sentence
FEW_ROWS = 10_000  # rows of analyses that compare pairs
METRICS = ("selfsim", "intrasim", "anisotropy")
MIN_CONTEXTS = 5


@dataclass(frozen=True)
class Table:
    """A table with what it shows."""

    frame: pl.DataFrame
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure as the text of an SVG element."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Sentences:
    """Sentences with a word marked: (left, word, right) of each."""

    heading: str
    parts: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Section:
    """A section of a report.

    `finding`: what it shows, in a sentence or two. `method`: how. `call`: Python that computes `frames`, given `store`.
    `problem`: why there is nothing to show; the other parts are then empty.
    """

    name: str
    title: str
    finding: str = ""
    method: str = ""
    call: str = ""
    blocks: Sequence[Table | Picture | Sentences] = ()
    caveats: Sequence[str] = ()
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Source:
    """What sections are computed from: the written rows of a store, all or a sample, and a smaller sample of rows.

    `data_code`, `few_code`: Python that makes `data` and `few`.
    """

    store: Store
    seed: int

    @cached_property
    def _sinks(self) -> dict[str, Any]:
        """Leave attention sinks out, beside which all else is one point, if there are any."""
        return {"sinks": False} if self.store.describe().get("sinks") else {}

    @cached_property
    def data(self) -> Selection:
        selection = self.store.select(**self._sinks)
        if self._n_sentences is not None:
            drawn = np.random.default_rng(self.seed).permutation(len(self.store.index.text))[: self._n_sentences]
            selection = self.store.select(rows=np.isin(self.store.index.sentence, drawn), **self._sinks)
        return selection if self.store.finished else selection.written()

    @cached_property
    def few(self) -> Selection:
        if len(self.data) <= FEW_ROWS:
            return self.data
        rows = np.sort(np.random.default_rng(self.seed).choice(self.data.rows, FEW_ROWS, replace=False))
        return self.store.select(rows=rows)

    @property
    def _n_sentences(self) -> int | None:
        """The sentences of the sample; None: all."""
        if self.store.n_rows <= MAX_ROWS:
            return None
        return max(1, len(self.store.index.text) * MAX_ROWS // self.store.n_rows)

    @property
    def data_code(self) -> str:
        committed, sinks = "" if self.store.finished else ".written()", ", sinks=False" if self._sinks else ""
        if self._n_sentences is None:
            return f"data = store.select({sinks[2:]}){committed}"
        return (
            f"drawn = np.random.default_rng({self.seed}).permutation(len(store.index.text))[:{self._n_sentences}]\n"
            f"data = store.select(rows=np.isin(store.index.sentence, drawn){sinks}){committed}"
        )

    @property
    def few_code(self) -> str:
        if self.few is self.data:
            return f"{self.data_code}\nfew = data"
        draw = f"np.random.default_rng({self.seed}).choice(data.rows, {FEW_ROWS}, replace=False)"
        return f"{self.data_code}\nfew = store.select(rows=np.sort({draw}))"

    @property
    def sampled(self) -> list[str]:
        """The caveat that a sample was measured, if one was."""
        how = ", attention sinks left out" if self._sinks else ""
        how += "" if self._n_sentences is None else f", in {self._n_sentences:,} random sentences"
        said = f"Measured on {len(self.data):,} of {self.store.n_rows:,} rows{how}."
        return [said] if len(self.data) < self.store.n_rows else []

    @property
    def sampled_few(self) -> list[str]:
        few = [f"Measured on {len(self.few):,} random rows of {self.store.n_rows:,}."]
        return self.sampled if self.few is self.data else few

    @cached_property
    def _measured(self) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
        """The table of geometry, its metrics, and why the others do not apply."""
        reasons: list[str] = []
        for left_out in ((), ("intrasim",), ("selfsim",), ("selfsim", "intrasim")):
            metrics = tuple(metric for metric in METRICS if metric not in left_out)
            try:
                table = es.geometry(
                    self.data, metrics=metrics, min_contexts=MIN_CONTEXTS, words_only=True, seed=self.seed
                )
            except InvalidValueError as error:
                reasons.append(str(error))
            else:
                return table, metrics, list(dict.fromkeys(reasons))
        raise InvalidValueError(reasons[-1])

    @property
    def geometry(self) -> pl.DataFrame:
        """The table of geometry, by layer, word and sentence, of the metrics that apply to the store."""
        return self._measured[0]

    @property
    def left_out(self) -> list[str]:
        """The caveats that metrics are left out."""
        return [f"Left out: {reason}." for reason in self._measured[2]]

    @property
    def geometry_code(self) -> str:
        arguments = f"metrics={self._measured[1]!r}, min_contexts={MIN_CONTEXTS}, words_only=True, seed={self.seed}"
        return f"{self.data_code}\ntable = es.geometry(data, {arguments})"

    @property
    def some_layers(self) -> tuple[int, ...]:
        """The first layer with context, the middle one and the last, as far as they are stored."""
        layers = [layer for layer in self.store.layers if layer] or list(self.store.layers)
        return tuple(sorted({layers[0], layers[len(layers) // 2], layers[-1]}))
