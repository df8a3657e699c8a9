"""Tenney et al. 2019, end to end: in which layers of a model each task of the NLP pipeline is solved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

import embstore.probes as probes
from embstore import ExtractionOptions, plot
from embstore.probes import EdgeProbe
from embstore.probes.edges.tasks import Sample
from embstore.store import Store
from embstore.store.metadata import canonical
from embstore_studies.extract import extract_step, with_untrained
from embstore_studies.study import Given, StudyResult, StudyRun, digest_of, methods, write_text
from embstore_studies.tasks import Files, Sentences, find_tasks
from embstore_studies.tenney2019.published import CITATION
from embstore_studies.tenney2019.report import Scores, draw, sections
from embstore_studies.tenney2019.settings import Tenney2019
from embstore_studies.tenney2019.trace_figure import trace_figure
from embstore_studies.tenney2019.traces import SentenceTrace, Traces, ambiguous_sentences, decision_reversals, trace

MAX_WORDS = 30  # longer sentences are drawn last
MAX_ANNOTATIONS = 8  # of one sentence


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Tenney2019]):
    """One run of the study. `tasks`: the files of each split by task."""

    tasks: Mapping[str, Files]


def run(given: Given[Tenney2019], data: Path) -> StudyResult:
    """Run the study on a folder of tasks, see `embstore_studies.reproduce`."""
    settings, models = given.settings, given.models
    tasks = find_tasks(data, settings.tasks, Sample(settings.n_sentences, settings.seed))
    run = Run.of(given, tasks=tasks)
    stores = {name: with_untrained(run, name, partial(extract_one, run)) for name in models}
    probed = {
        (model, encoder, task): probe_task(run, store, model, encoder, task)
        for model, encoders in stores.items()
        for encoder, store in encoders.items()
        for task in tasks
    }
    frame = pl.concat(
        own.select(pl.lit(model).alias("model"), pl.lit(encoder).alias("encoder"), pl.all())
        for (model, encoder, _), (own, _) in probed.items()
    )
    saved = {model: {task: probed[model, "trained", task][1] for task in tasks} for model in models}
    first = next(iter(models))
    traces = draw_traces(run, stores[first]["trained"], saved[first])
    reversals = {model: count_reversals(run, model, stores[model]["trained"], saved[model]) for model in models}
    scores = Scores(settings, models, tuple(tasks), frame, reversals)
    return run.result(
        "The NLP pipeline after Tenney et al. 2019",
        f"{run.names}. {settings.describe(len(tasks))}",
        frames={"scores": frame},
        sections=sections(scores),
        figures=draw(scores, run.out / "figures") | dict.fromkeys(traces, "Figure 3. A trace"),
        methods=methods({name: encoders["trained"] for name, encoders in stores.items()}),
        citation=CITATION,
    )


def extract_one(run: Run, name: str, model: str, layers: str) -> Store:
    settings = run.settings
    return extract_step(
        run,
        name,
        Sentences(run.tasks, Sample(settings.n_sentences, settings.seed)),
        model=model,
        options=ExtractionOptions(layers=layers, unit=settings.unit),
        file=f"{name}-{settings.unit}s-{settings.n_sentences or 'all'}-{settings.seed}",
    )


def probe_task(run: Run, store: Store, model: str, encoder: str, task: str) -> tuple[pl.DataFrame, Path]:
    """Train and score the probes of one task on one store; returns their scores and where they are saved."""
    folder, files, trained = run.folder, run.tasks[task], encoder == "trained"
    name = f"{model}-{task}" + ("" if trained else f"-{encoder}")
    probe = run.settings.probe(trained=trained)
    made_from = {
        "store": store.digest,
        "task": {split: digest_of(path) for split, path in files.items()},
        "probe": repr(probe),
        "resamples": run.settings.resamples,
    }
    path = folder.path / "probes" / f"{name}-{hashlib.sha256(canonical(made_from)).hexdigest()[:12]}"
    notes = folder.path / "tables" / f"{name}.notes"

    def make() -> pl.DataFrame:
        checkpoint = path.with_name(f"{path.name}.checkpoint")
        probe.fit(store, files["train"], files["dev"], name=task, checkpoint=checkpoint)
        test = {split: files[split] for split in ("dev", "test") if split in files}
        result = probe.score(test, resamples=run.settings.resamples)
        probe.save(path)
        write_text(notes, "\n".join(result.notes))
        for each in path.parent.glob(f"{path.name}*.checkpoint"):
            each.unlink()
        return result.frame

    frame = folder.table(name, made_from, make, needs=path)
    if trained and notes.exists():
        run.notes.extend(notes.read_text(encoding="utf-8").splitlines())
    return frame, path


def traced(run: Run, store: Store, saved: Mapping[str, Path], seed: int) -> Traces:
    """Follow the dev targets of all tasks through the saved probes of a seed, whose folders are in `saved`."""
    tasks = []
    for task, path in saved.items():
        probe = probes.load(path)
        assert isinstance(probe, EdgeProbe)
        tasks.append((probe, run.tasks[task]["dev"]))
    return trace(store, tasks, split="dev", seed=seed)


def count_reversals(run: Run, model: str, store: Store, saved: Mapping[str, Path]) -> pl.DataFrame:
    """Count by task and layer the decisions that change there, and those that differ between the first two seeds."""
    seeds = run.settings.seeds[:2]
    made_from = {"probes": {task: path.name for task, path in saved.items()}}
    name = f"{model}-reversals"
    return run.folder.table(
        name, made_from, lambda: decision_reversals(*(traced(run, store, saved, seed) for seed in seeds))
    )


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
        traces = traced(run, store, saved, settings.seeds[0])
        frame = ambiguous_sentences(traces)
        for name, number in zip(names, rank(frame, traces), strict=False):
            plot.save(trace_figure(shorten(traces.sentences[number])), folder.path / "figures" / name)
        return frame

    folder.table("ambiguous", {"probes": {task: path.name for task, path in saved.items()}, "names": names}, make)
    return tuple(name for name in names if (folder.path / "figures" / name).exists())


def rank(frame: pl.DataFrame, traces: Traces) -> list[int]:
    """Order sentences for drawing: short ones, of several tasks, whose answers change between layers, come first."""
    if not len(frame):
        return []
    lengths = pl.Series([len(traces.sentences[number].words) for number in frame["sentence"].to_list()], dtype=pl.Int64)
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
