"""`reproduce`: run the study of a paper from extraction to report."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from embstore.errors import InvalidValueError
from embstore_studies.clark2019 import Clark2019
from embstore_studies.ethayarajh2019 import Ethayarajh2019
from embstore_studies.hewitt2019 import Hewitt2019
from embstore_studies.kovaleva2019 import Kovaleva2019
from embstore_studies.liu2019 import Liu2019
from embstore_studies.peters2018 import Peters2018
from embstore_studies.study import Run, StudyResult, StudySettings
from embstore_studies.tenney2019 import Tenney2019
from embstore_studies.wiedemann2019 import Wiedemann2019
from embstore_studies.zhao2020 import Zhao2020

# A new study is a file with settings and a function `run`, and a line here.
STUDIES: dict[str, type[StudySettings]] = {
    "zhao2020": Zhao2020,
    "ethayarajh2019": Ethayarajh2019,
    "tenney2019": Tenney2019,
    "hewitt2019": Hewitt2019,
    "kovaleva2019": Kovaleva2019,
    "peters2018": Peters2018,
    "wiedemann2019": Wiedemann2019,
    "clark2019": Clark2019,
    "liu2019": Liu2019,
}


def reproduce(
    study: str | StudySettings, data: str | Path, *, model: str | Path | Mapping[str, str | Path], out: str | Path
) -> StudyResult:
    """Reproduce the study of a paper with your model and data; the same call resumes.

    Parameters
    ----------
    study
        A name among `STUDIES`, such as "tenney2019", or the settings of a study: `Zhao2020(...)`, `Zhao2020.small()`
        and so on, whose `about` says what it studies.
    data
        What the `data` of the study's settings says.
    model
        A model folder or the name of a model of the Hugging Face hub. All studies but zhao2020 and kovaleva2019 also
        take several by name, which their figures compare.
    out
        The folder of stores, tables, figures and `report.md`.

    Returns
    -------
    StudyResult
        The frames of all scores, and the tables of the report.

    Raises
    ------
    EmbstoreError
        For all that cannot be used, in one line, before the first extraction: settings, input files, models.
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
    module: Any = import_module(f"embstore_studies.{name}")
    result: StudyResult = module.run(Run(settings=settings, models=models, out=Path(out)), Path(data))
    return result
