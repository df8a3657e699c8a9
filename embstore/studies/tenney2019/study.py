"""Tenney et al. 2019, end to end: in which layers of a model each task of the NLP pipeline is solved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embstore.progress import Progress
from embstore.studies.study import StudyFolder, StudyResult
from embstore.studies.tenney2019 import probing
from embstore.studies.tenney2019.report import Scores, draw, sections
from embstore.studies.tenney2019.settings import Tenney2019
from embstore.studies.tenney2019.traces import draw_traces


def run_tenney2019(
    settings: Tenney2019, data: Path, *, models: Mapping[str, str], out: Path, device: str, progress: Progress
) -> StudyResult:
    """Run the study and leave stores, tables, figures and the report in `out`; the same call resumes.

    `data` is a folder of tasks. See `embstore.studies.reproduce`.
    """
    tasks = probing.find_tasks(data, settings.tasks)
    probing.check_models(models)
    run = probing.Run(StudyFolder(out, progress), models, tasks, settings, device)
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
