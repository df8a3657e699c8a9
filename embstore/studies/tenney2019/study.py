"""Tenney et al. 2019, end to end: in which layers of a model each task of the NLP pipeline is solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

import embstore.probes as probes
from embstore import plot
from embstore.probes import EdgeProbe, SentenceTrace, Traces, ambiguous_sentences, trace
from embstore.progress import Progress
from embstore.store import Store
from embstore.studies.study import StudyFolder, StudyResult
from embstore.studies.tenney2019 import probing
from embstore.studies.tenney2019.probing import Run
from embstore.studies.tenney2019.report import Scores, draw, sections
from embstore.studies.tenney2019.settings import Tenney2019

MAX_WORDS = 30  # longer sentences are drawn last
MAX_ANNOTATIONS = 8  # of one sentence


def run_tenney2019(
    settings: Tenney2019, data: Path, *, models: Mapping[str, str], out: Path, device: str, progress: Progress
) -> StudyResult:
    """Run the study and leave stores, tables, figures and the report in `out`; the same call resumes.

    `data` is a folder of tasks. See `embstore.studies.reproduce`.
    """
    tasks = probing.find_tasks(data, settings.tasks)
    probing.check_models(models)
    run = Run(StudyFolder(out, progress), models, tasks, settings, device)
    stores = {name: probing.extract_all(run, name) for name in models}
    probed = probing.probe_all(run, stores)
    first = next(iter(models))
    saved = {task: probed[first, "trained", task].path for task in tasks}
    traces = draw_traces(run, stores[first]["trained"], saved)
    scores = Scores(settings, models, tuple(tasks), probing.scores(probed))
    named = ", ".join(f"{name} ({model})" if name != model else name for name, model in models.items())
    result = StudyResult(
        title="The NLP pipeline after Tenney et al. 2019",
        folder=out,
        scale=f"{named}. {settings.describe(len(tasks))}",
        frames={"scores": scores.frame},
        sections=sections(scores),
        figures=draw(scores, out / "figures") | dict.fromkeys(traces, "Figure 3. A trace"),
        notes=tuple(dict.fromkeys(run.notes)),
        seconds=run.folder.seconds,
    )
    result.save()
    return result


def draw_traces(run: Run, store: Store, saved: Mapping[str, Path]) -> tuple[str, ...]:
    """Draw Figure 3, the most ambiguous sentences; returns the files in figures/. tables/ambiguous lists all of them.

    `saved`: the folder of each task's probes, all of one model. Sentences that several tasks label come first.
    """
    folder, settings = run.folder, run.settings
    if not settings.traces:
        return ()
    names = [f"figure3-{number}.png" for number in range(1, settings.traces + 1)]

    def make() -> pl.DataFrame:
        for name in names:
            (folder.path / "figures" / name).unlink(missing_ok=True)
        tasks = []
        for task, path in saved.items():
            probe = probes.load(path)
            assert isinstance(probe, EdgeProbe)
            probe.device = run.device
            tasks.append((probe, run.tasks[task]["dev"]))
        traces = trace(
            store,
            tasks,
            split="dev",
            sentences=settings.sentences,
            sample_seed=settings.seed,
            progress=folder.bars,
        )
        frame = ambiguous_sentences(traces)
        for name, number in zip(names, rank(frame, traces), strict=False):
            plot.save(plot.trace_figure(shorten(traces.trace(number))), folder.path / "figures" / name)
        return frame

    folder.table("ambiguous", {"probes": {task: path.name for task, path in saved.items()}, "names": names}, make)
    return tuple(name for name in names if (folder.path / "figures" / name).exists())


def rank(frame: pl.DataFrame, traces: Traces) -> list[int]:
    """Order sentences for drawing: short ones, of several tasks, whose answers change between layers, come first."""
    if not len(frame):
        return []
    lengths = pl.Series([len(traces.sentences[number]) for number in frame["sentence"].to_list()], dtype=pl.Int64)
    tasks = frame["tasks"].str.count_matches(", ") + 1
    ranked = frame.with_columns(short=lengths <= MAX_WORDS, several=tasks.clip(1, 3))
    order = ranked.sort("short", "several", "turned", descending=True, maintain_order=True)
    return order["sentence"].to_list()


def shorten(whole: SentenceTrace) -> SentenceTrace:
    """Return at most MAX_ANNOTATIONS ambiguous annotations, those that change from one label to the other first."""
    ambiguous = whole.ambiguous()

    def turns(place: int) -> bool:
        each = ambiguous.annotations[place]
        ahead = each.right_probability > each.wrong_probability
        return bool(ahead[0] != ahead[-1])

    places = range(len(ambiguous.annotations))
    chosen = sorted(sorted(places, key=lambda place: not turns(place))[:MAX_ANNOTATIONS])
    return replace(ambiguous, annotations=tuple(ambiguous.annotations[place] for place in chosen))
