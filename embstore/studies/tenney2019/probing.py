"""The probing of Tenney et al. 2019: one store per model for the sentences of all tasks, and edge probes per task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import polars as pl

from embstore.corpus import Sentence, read_edges
from embstore.errors import InvalidValueError
from embstore.extraction import ExtractionOptions
from embstore.models import encoder_from_shorthand, model_kind, save_untrained
from embstore.probes import EdgeProbe, Training
from embstore.probes.edges.tasks import Sample, split_file
from embstore.store import Store
from embstore.store.metadata import canonical
from embstore.studies.study import StudyFolder, extract_step, write_text
from embstore.studies.tenney2019.settings import TASKS, Tenney2019

Files = Mapping[str, Path]
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Run:
    """One run of the study. `tasks`: the files of each split by task; `notes` collects what a reader must know."""

    folder: StudyFolder
    models: Mapping[str, str]
    tasks: Mapping[str, Files]
    settings: Tenney2019
    device: str
    notes: list[str] = field(default_factory=list)

    def probe(self, *, trained: bool) -> EdgeProbe:
        """Return edge probes as the study trains them, not fitted yet; those of random weights have one seed."""
        settings = self.settings
        return EdgeProbe(
            seeds=settings.seeds if trained else settings.seeds[:1],
            seed=settings.seed,
            sentences=settings.sentences,
            layerwise=settings.layerwise and trained,
            control=settings.control and trained,
            projection=settings.hidden_size,
            hidden_size=settings.hidden_size,
            device=self.device,
            training=Training(
                epochs=settings.epochs,
                batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                patience=settings.patience,
            ),
        )


def find_tasks(folder: Path, tasks: Sequence[str] | None) -> dict[str, Files]:
    """Return the files of each task in a folder of tasks: those of the paper in its order, then others by name."""
    if not folder.is_dir():
        raise InvalidValueError(f"{folder} is not a folder: give one with a folder per task")
    found: dict[str, Files] = {}
    for each in sorted(folder.iterdir()):
        files: Files = {split: path for split in SPLITS if (path := split_file(each, split)) is not None}
        if "train" in files:
            found[each.name] = files
    if not found:
        raise InvalidValueError(f"{folder} has no task: give a folder of folders, each with train.jsonl and dev.jsonl")
    for name in tasks or ():
        if name not in found:
            raise InvalidValueError(f"there is no task {name!r} in {folder}: it has {', '.join(found)}")
    order = dict.fromkeys((*TASKS, *found))
    chosen: dict[str, Files] = {name: found[name] for name in order if name in found and name in (tasks or found)}
    for name, files in chosen.items():
        if "dev" not in files:
            raise InvalidValueError(f"{folder / name} has no dev.jsonl, which early stopping needs")
    return chosen


@dataclass(frozen=True)
class Sentences:
    """The sentences of all splits of some tasks, or a sample of each split; each text once."""

    tasks: Mapping[str, Files]
    sample: Sample

    def __iter__(self) -> Iterator[Sentence]:
        seen: set[bytes] = set()
        for files in self.tasks.values():
            for path in files.values():
                for sentence in self.sample.draw(list(read_edges(path))):
                    key = hashlib.blake2b(" ".join(sentence.words).encode(), digest_size=16).digest()
                    if key not in seen:
                        seen.add(key)
                        yield Sentence(sentence.words)


def check_models(models: Mapping[str, str]) -> None:
    """Raise ModelError for a model that cannot be loaded, before the first model has run for hours."""
    for model in models.values():
        model_kind(model)


def extract_all(run: Run, name: str) -> dict[str, Store]:
    """Extract one model, "trained" and, for a transformer, "untrained" with random weights."""
    model = run.models[name]
    stores = {"trained": extract_one(run, name, model, layers="all")}
    if not run.settings.untrained:
        return stores
    if model_kind(model) != "transformer":
        run.notes.append(f"{name}: no baseline with random weights, which only transformers have")
        return stores
    folder = run.folder.path / "models" / f"{name}-untrained-{run.settings.seed}"
    if not folder.is_dir():
        run.folder.step(f"random weights of {name}", partial(save_untrained, model, folder, seed=run.settings.seed))
    ends = f"0,{stores['trained'].layers[-1]}"
    return {**stores, "untrained": extract_one(run, f"{name}-untrained", str(folder), layers=ends)}


def extract_one(run: Run, name: str, model: str, *, layers: str) -> Store:
    settings = run.settings
    store: Store = extract_step(
        run.folder,
        f"extract {name}",
        f"{name}-{settings.unit}s-{settings.sentences or 'all'}-{settings.seed}",
        Sentences(run.tasks, Sample(settings.sentences, settings.seed)),
        model=encoder_from_shorthand(model, device=run.device),
        options=ExtractionOptions(layers=layers, unit=settings.unit),
        device=run.device,
    )
    return store


@dataclass(frozen=True)
class Probed:
    """The probes of one task on one store: their scores, and the folder that they are saved in."""

    frame: pl.DataFrame
    path: Path


def probe_all(run: Run, stores: Mapping[str, Mapping[str, Store]]) -> dict[tuple[str, str, str], Probed]:
    """Train the probes of every model, encoder ("trained" or "untrained") and task."""
    return {
        (model, encoder, task): probe_task(run, store, model, encoder, task)
        for model, encoders in stores.items()
        for encoder, store in encoders.items()
        for task in run.tasks
    }


def scores(probed: Mapping[tuple[str, str, str], Probed]) -> pl.DataFrame:
    """Return all scores as one frame, with columns for model and encoder."""
    return pl.concat(
        each.frame.select(pl.lit(model).alias("model"), pl.lit(encoder).alias("encoder"), pl.all())
        for (model, encoder, _), each in probed.items()
    )


def probe_task(run: Run, store: Store, model: str, encoder: str, task: str) -> Probed:
    """Train and score the probes of one task on one store, or return the stored scores."""
    folder, files, trained = run.folder, run.tasks[task], encoder == "trained"
    name = f"{model}-{task}" + ("" if trained else f"-{encoder}")
    probe = run.probe(trained=trained)
    made_from = {
        "store": store.digest,
        "task": {split: digest_of(path) for split, path in files.items()},
        "probe": probe.settings,
        "resamples": run.settings.resamples,
    }
    path = folder.path / "probes" / f"{name}-{hashlib.sha256(canonical(made_from)).hexdigest()[:12]}"
    notes = folder.path / "tables" / f"{name}.notes"

    def make() -> pl.DataFrame:
        checkpoint = path.with_suffix(".pt")
        probe.fit(store, files["train"], files["dev"], name=task, checkpoint=checkpoint, progress=folder.bars)
        test = {split: files[split] for split in ("dev", "test") if split in files}
        result = probe.score(test, resamples=run.settings.resamples)
        probe.save(path)
        write_text(notes, "\n".join(result.notes))
        for each in path.parent.glob(f"{path.name}*.pt"):
            each.unlink()
        return result.frame

    frame = folder.table(name, made_from, make, needs=path)
    if trained and notes.exists():
        run.notes.extend(notes.read_text(encoding="utf-8").splitlines())
    return Probed(frame, path)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
