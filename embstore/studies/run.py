"""`reproduce`: run the study of a paper from extraction to report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embstore.arguments import checked
from embstore.errors import InvalidValueError
from embstore.progress import Progress
from embstore.studies.settings import STUDIES, Ethayarajh2019, Hewitt2019, Settings, Zhao2020
from embstore.studies.study import StudyResult


@checked
def reproduce(
    study: str | Settings,
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
        "zhao2020" (semantic classes), "tenney2019" (the NLP pipeline), "ethayarajh2019" (geometry) or "hewitt2019"
        (syntax trees), or the settings of one: `Zhao2020(...)`, `Tenney2019.small()` and so on.
    data:
        For zhao2020 a corpus in Wiki-PSE markup; for tenney2019 a folder with a folder per task, each with train.jsonl,
        dev.jsonl and, if there is one, test.jsonl; for ethayarajh2019 any corpus (the paper: STS 2012-2016);
        for hewitt2019 a folder with train, dev and test of a treebank in CoNLL-U.
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
    named = model if isinstance(model, Mapping) else {Path(model).name or str(model): model}
    models = {str(key): str(value) for key, value in named.items()}
    if not models:
        raise InvalidValueError("there is no model: name one or more")
    if isinstance(settings, Zhao2020):
        from embstore.studies.zhao2020.study import run_zhao2020

        if len(models) > 1:
            raise InvalidValueError(f"zhao2020 takes one model, not {len(models)}: {', '.join(models)}")
        only = next(iter(models.values()))
        return run_zhao2020(settings, Path(data), model=only, out=Path(out), device=device, progress=progress)
    if isinstance(settings, Ethayarajh2019):
        from embstore.studies.ethayarajh2019.study import run_ethayarajh2019

        return run_ethayarajh2019(settings, Path(data), models=models, out=Path(out), device=device, progress=progress)
    if isinstance(settings, Hewitt2019):
        from embstore.studies.hewitt2019.study import run_hewitt2019

        return run_hewitt2019(settings, Path(data), models=models, out=Path(out), device=device, progress=progress)
    from embstore.studies.tenney2019.study import run_tenney2019

    return run_tenney2019(settings, Path(data), models=models, out=Path(out), device=device, progress=progress)
