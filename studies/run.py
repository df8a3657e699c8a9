"""`reproduce`: run the study of a paper from extraction to report."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from embstore.arguments import checked
from embstore.config import config
from embstore.errors import InvalidValueError
from embstore.progress import Progress
from embstore_studies.registry import STUDIES
from embstore_studies.settings import StudySettings
from embstore_studies.study import Given, StudyResult


@checked
def reproduce(
    study: str | StudySettings,
    data: str | Path,
    *,
    model: str | Path | Mapping[str, str | Path],
    out: str | Path,
    device: str = "auto",
    progress: Progress = None,
) -> StudyResult:
    """Reproduce the study of a paper with your model and data.

    Leaves stores, tables, figures and `report.md` in the folder `out`; the same call resumes.

    Parameters
    ----------
    study:
        A name among `embstore_studies.STUDIES`, such as "tenney2019", or the settings of a study: `Zhao2020(...)`,
        `Zhao2020.small()` and so on, whose `about` says what it studies.
    data:
        What the `data` of the study's settings says.
    model:
        A model folder or the name of a model of the Hugging Face hub. All studies but zhao2020 also take several by
        name, which their figures compare.
    device:
        That of the model and the probes.
    progress:
        None or True: the steps show bars; False: they do not; a function receives the number of steps done.

    Raises
    ------
    EmbstoreError
        For all that cannot be used, in one line, before the first extraction: settings, every input file, models.
    """
    if isinstance(study, str) and study not in STUDIES:
        raise InvalidValueError(f"unknown study {study!r}: choose {', '.join(STUDIES)}")
    settings = STUDIES[study]() if isinstance(study, str) else study
    (name,) = (name for name, kind in STUDIES.items() if isinstance(settings, kind))
    named = model if isinstance(model, Mapping) else {Path(model).name or str(model): model}
    models = {str(key): str(value) for key, value in named.items()}
    if not models:
        raise InvalidValueError("there is no model: name one or more")
    if settings.takes_one_model and len(models) > 1:
        raise InvalidValueError(f"{name} takes one model, not {len(models)}: {', '.join(models)}")
    module = import_module(f"embstore_studies.{name}.study")
    with config(device=device, progress=None if callable(progress) else progress):
        result: StudyResult = module.run(Given(settings, models, Path(out), device, progress), Path(data))
    return result
