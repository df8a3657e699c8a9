"""Figure 3 of Tenney et al. 2019: dev sentences that leave the probes in doubt, traced through the layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from embstore import plot
from embstore.probes import EdgeProbe, SentenceTrace, Traces, ambiguous_sentences, load
from embstore.probes import trace as trace_edges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embstore.store import Store
    from embstore.studies.tenney2019.probing import Setting

LONGEST = 30  # words of a sentence that is drawn
MOST = 8  # annotations that are drawn of one


def traced(setting: Setting, store: Store, probes: Mapping[str, Path]) -> tuple[str, ...]:
    """Draw the sentences most in doubt; the files in figures/. Which others there are is left in tables/ambiguous.

    `probes`: the folder of each task's, all of one model. Sentences that several tasks label come first.
    """
    study, scale = setting.study, setting.scale
    if not scale.traces:
        return ()
    names = [f"figure3-{number}.png" for number in range(1, scale.traces + 1)]

    def make() -> pl.DataFrame:
        for name in names:
            (study.folder / "figures" / name).unlink(missing_ok=True)
        held = []
        for task, folder in probes.items():
            probe = load(folder)
            assert isinstance(probe, EdgeProbe)
            probe.device = setting.device
            held.append((probe, setting.tasks[task]["dev"]))
        traces = trace_edges(store, held, split="dev", sentences=scale.sentences, sample_seed=scale.seed)
        frame = ambiguous_sentences(traces)
        for name, number in zip(names, drawn(frame, traces), strict=False):
            plot.save(plot.trace_figure(shortened(traces.trace(number))), study.folder / "figures" / name)
        return frame

    made_from = {"probes": {task: folder.name for task, folder in probes.items()}, "traces": scale.traces}
    study.table("ambiguous", made_from, make)
    return tuple(name for name in names if (study.folder / "figures" / name).exists())


def drawn(frame: pl.DataFrame, traces: Traces) -> list[int]:
    """The sentences in the order in which they are worth drawing: short ones of several tasks that turn, first."""
    if not len(frame):
        return []
    lengths = pl.Series([len(traces.sentences[number]) for number in frame["sentence"].to_list()], dtype=pl.Int64)
    tasks = frame["tasks"].str.count_matches(", ") + 1
    ranked = frame.with_columns(short=lengths <= LONGEST, several=tasks.clip(1, 3))
    order = ranked.sort("short", "several", "turned", descending=True, maintain_order=True)
    return order["sentence"].to_list()


def shortened(trace: SentenceTrace) -> SentenceTrace:
    """The annotations that are in doubt, at most MOST: those that turn from one label to the other first."""

    def turns(place: int) -> bool:
        each = doubted[place]
        ahead = each.right_probability > each.wrong_probability
        return bool(ahead[0] != ahead[-1])

    doubted = trace.ambiguous().annotations
    chosen = sorted(sorted(range(len(doubted)), key=lambda place: not turns(place))[:MOST])
    return SentenceTrace(trace.number, trace.words, trace.layers, tuple(doubted[place] for place in chosen))
