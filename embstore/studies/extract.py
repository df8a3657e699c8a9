"""The steps that extract the vectors of a study."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from embstore.corpus import Corpus, Sentence
from embstore.extraction import ExtractionOptions
from embstore.extraction.extract import extract
from embstore.extraction.plan import plan
from embstore.models import Encoder, encoder_from_shorthand, model_kind, save_untrained
from embstore.store import Store
from embstore.studies.study import LOG, StudyFolder


def extract_step(
    folder: StudyFolder,
    name: str,
    corpus: Corpus | Iterable[Sentence],
    *,
    model: str | Path | Encoder,
    device: str,
    options: ExtractionOptions | None = None,
    file: str | None = None,
) -> Store:
    """Extract the vectors of a corpus into stores/`file`.zarr, by default with the `name` of the step."""
    path = folder.path / "stores" / f"{file or name}.zarr"
    encoder = encoder_from_shorthand(model, device=device) if isinstance(model, str) else model

    def make() -> Store:
        is_new = not path.exists()
        planned = plan(
            corpus, model=encoder, options=options, device=device, store=path, calibrate=is_new, progress=folder.bars
        )
        if is_new:
            cost = dict(planned.estimate.lines())
            LOG.info(f"{planned.layout.n_rows:,} vectors a layer, {cost['on disk']}, time {cost['time']}")
        return extract(planned, path, progress=folder.bars)

    return folder.step(f"extract {name}", make)


def untrained_step(folder: StudyFolder, name: str, model: str, *, seed: int) -> str | None:
    """Save the model with random weights and return its folder; None if it is not a transformer."""
    if model_kind(model) != "transformer":
        return None
    path = folder.path / "models" / f"{name}-untrained-{seed}"
    if not path.is_dir():
        folder.step(f"random weights of {name}", partial(save_untrained, model, path, seed=seed))
    return str(path)
