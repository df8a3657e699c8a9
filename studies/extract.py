"""The steps that extract the vectors of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import embstore as es
from embstore import ExtractionOptions
from embstore.corpus import Corpus, Sentence
from embstore.models import Encoder, load_encoder, model_kind, save_untrained
from embstore.store import Store
from embstore_studies.study import LOG, StudyRun


def extract_step(
    run: StudyRun[Any],
    name: str,
    corpus: Corpus | Iterable[Sentence],
    *,
    model: str | Path | Encoder | None = None,
    options: ExtractionOptions | None = None,
    file: str | None = None,
) -> Store:
    """Extract the vectors of a corpus into stores/`file`.zarr, by default with the `name` of the step.

    Without a `model` the name is that of one of the run.
    """
    folder = run.folder
    path = folder.path / "stores" / f"{file or name}.zarr"
    model = run.models[name] if model is None else model
    with es.config(device=run.device):
        encoder = load_encoder(model) if isinstance(model, str) else model

    def make() -> Store:
        is_new = not path.exists()
        planned = es.plan(corpus, model=encoder, options=options, store=path, calibrate=is_new)
        if is_new:
            cost = dict(planned.estimate.lines())
            LOG.info(f"{planned.layout.n_rows:,} vectors a layer, {cost['on disk']}, time {cost['time']}")
        return es.extract(planned, path)

    with es.config(device=run.device, progress=folder.bars):
        return folder.step(f"extract {name}", make)


def untrained_step(run: StudyRun[Any], name: str) -> str | None:
    """Save a model with random weights and return its folder; None, with a note, if it is not a transformer."""
    model, seed = run.models[name], run.settings.seed
    if model_kind(model) != "transformer":
        run.notes.append(f"{name}: no baseline with random weights, which only transformers have")
        return None
    path = run.folder.path / "models" / f"{name}-untrained-{seed}"
    if not path.is_dir():
        run.folder.step(f"random weights of {name}", partial(save_untrained, model, path, seed=seed))
    return str(path)


def with_untrained(run: StudyRun[Any], name: str, extract_one: Callable[[str, str, str], Store]) -> dict[str, Store]:
    """Extract one model, "trained" and, if the study has it, "untrained": first and last layer with random weights.

    `extract_one`: given a name, the model and the layers.
    """
    stores = {"trained": extract_one(name, run.models[name], "all")}
    folder = untrained_step(run, name) if run.settings.untrained else None
    if folder is not None:
        ends = f"0,{stores['trained'].layers[-1]}"
        stores["untrained"] = extract_one(f"{name}-untrained", folder, ends)
    return stores
