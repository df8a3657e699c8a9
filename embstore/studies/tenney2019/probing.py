"""The probing of Tenney et al. 2019: one store a model for the sentences of all tasks, and cumulative probes a task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from embstore.corpus.sentence import Sentence
from embstore.errors import InvalidValueError
from embstore.extraction.extract import extract
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.plan import plan
from embstore.models import encoder_from_shorthand, model_kind, save_untrained
from embstore.probes import EdgeProbe, Training, read_edges, split_file
from embstore.probes.edges.tasks import SPLITS, Sample
from embstore.store import Store
from embstore.store.metadata import canonical
from embstore.studies.steps import Study
from embstore.studies.tenney2019 import published

if TYPE_CHECKING:
    from embstore.studies.tenney2019.study import Scale

ENCODERS = ("trained", "untrained")
Files = Mapping[str, Path]


@dataclass(frozen=True)
class Setting:
    """What every step of the study is given: `tasks` are the files of each split by task."""

    study: Study
    models: Mapping[str, str]
    tasks: Mapping[str, Files]
    scale: Scale
    device: str
    notes: list[str] = field(default_factory=list)

    @property
    def sample(self) -> str:
        """What of the corpus and its rows a store holds, as part of its name."""
        return f"{self.scale.unit}s-{self.scale.sentences or 'all'}-{self.scale.seed}"


def find_tasks(folder: Path, tasks: Sequence[str] | None) -> dict[str, Files]:
    """The files of each task in a folder of tasks: the paper's in its order, then others by name."""
    if not folder.is_dir():
        raise InvalidValueError(
            f"{folder} is no folder: give one that holds a folder a task, with train.jsonl and so on"
        )
    found: dict[str, Files] = {}
    for each in sorted(folder.iterdir()):
        files = {split: path for split in SPLITS if (path := split_file(each, split)) is not None}
        if "train" in files:
            found[each.name] = files
    if not found:
        raise InvalidValueError(
            f"{folder} holds no task: give a folder of folders, each with train.jsonl and dev.jsonl"
        )
    for name in tasks or ():
        if name not in found:
            raise InvalidValueError(f"there is no task {name!r} in {folder}: it has {', '.join(found)}")
    chosen = [name for name in (*published.TASKS, *found) if name in found and name in (tasks or found)]
    for name in dict.fromkeys(chosen):
        if "dev" not in found[name]:
            raise InvalidValueError(f"{folder / name} has no dev.jsonl: probes stop by it")
    return {name: found[name] for name in dict.fromkeys(chosen)}


@dataclass(frozen=True)
class Sentences:
    """The sentences that the splits of some tasks have, or a sample of each split; each text once."""

    tasks: Mapping[str, Files]
    count: int | None
    seed: int

    def __iter__(self) -> Iterator[Sentence]:
        seen: set[bytes] = set()
        for files in self.tasks.values():
            for path in files.values():
                for sentence in Sample(self.count, self.seed).draw(read_edges(path)):
                    key = hashlib.blake2b(" ".join(sentence.words).encode(), digest_size=16).digest()
                    if key not in seen:
                        seen.add(key)
                        yield Sentence(sentence.words)


def require_models(models: Mapping[str, str]) -> None:
    """Raise ModelError for a folder that lacks what a transformer needs, before another model's hours have passed."""
    for model in models.values():
        model_kind(model)


def extracted(setting: Setting, name: str) -> dict[str, Store]:
    """The stores of one model by encoder: as it was trained, and with random weights where it has such."""
    stores = {"trained": _store(setting, name, setting.models[name], layers="all")}
    if not setting.scale.untrained:
        return stores
    model = setting.models[name]
    if model_kind(model) != "transformer":
        setting.notes.append(f"{name}: no baseline of random weights: they are drawn for transformers alone")
        return stores
    folder = setting.study.folder / "models" / f"{name}-untrained-{setting.scale.seed}"
    if not folder.is_dir():
        setting.study.timed(f"draw {name}", partial(save_untrained, model, folder, seed=setting.scale.seed))
    ends = f"0,{stores['trained'].layers[-1]}"
    return {**stores, "untrained": _store(setting, f"{name}-untrained", str(folder), layers=ends)}


def _store(setting: Setting, name: str, model: str, *, layers: str) -> Store:
    path = setting.study.store(f"{name}-{setting.sample}")
    scale = setting.scale

    def make() -> Store:
        planned = plan(
            Sentences(setting.tasks, scale.sentences, scale.seed),
            model=encoder_from_shorthand(model, device=setting.device),
            options=ExtractionOptions(layers=layers, unit=scale.unit),
            device=setting.device,
            store=path,
            calibrate=False,
        )
        return extract(planned, path)

    return setting.study.timed(f"extract {name}", make)


@dataclass(frozen=True)
class Probed:
    """One task over one store: the frame of its scores, and the folder with its probes."""

    frame: pl.DataFrame
    probes: Path


def probed(setting: Setting, stores: Mapping[str, Mapping[str, Store]]) -> dict[tuple[str, str, str], Probed]:
    """Train the probes of every model, encoder and task."""
    found = {}
    for model, held in stores.items():
        for encoder, store in held.items():
            for task in setting.tasks:
                found[model, encoder, task] = _probed(setting, store, model, encoder, task)
    return found


def scores(found: Mapping[tuple[str, str, str], Probed]) -> pl.DataFrame:
    """All frames as one, with columns for model and encoder."""
    return pl.concat(
        each.frame.select(pl.lit(model).alias("model"), pl.lit(encoder).alias("encoder"), pl.all())
        for (model, encoder, _), each in found.items()
    )


def _probed(setting: Setting, store: Store, model: str, encoder: str, task: str) -> Probed:
    scale, study, files = setting.scale, setting.study, setting.tasks[task]
    trained = encoder == "trained"
    name = f"{model}-{task}" + ("" if trained else f"-{encoder}")
    probe = EdgeProbe(
        seeds=scale.seeds if trained else scale.seeds[:1],
        seed=scale.seed,
        sentences=scale.sentences,
        layerwise=scale.layerwise and trained,
        control=scale.control and trained,
        projection=scale.hidden_size,
        hidden_size=scale.hidden_size,
        training=Training(scale.epochs, scale.batch_size, scale.learning_rate, scale.patience or 0),
        device=setting.device,
    )
    settings = {**probe.settings, "resamples": scale.resamples}
    made_from = {"store": store.digest, "task": {split: _digest(path) for split, path in files.items()}, **settings}
    folder = study.folder / "probes" / f"{name}-{hashlib.sha256(canonical(made_from)).hexdigest()[:12]}"
    checkpoint = folder.with_suffix(".pt")
    told = study.folder / "tables" / f"{name}.notes"

    def make() -> pl.DataFrame:
        probe.fit(store, files["train"], files.get("dev"), name=task, checkpoint=checkpoint, progress=False)
        scored = {split: path for split, path in files.items() if split != "train"}
        result = probe.score(scored, resamples=scale.resamples)
        probe.save(folder)
        told.write_text("\n".join(result.notes), encoding="utf-8")
        for each in folder.parent.glob(f"{folder.name}*.pt"):  # what an interruption would have gone on from
            each.unlink()
        return result.frame

    frame = study.table(name, made_from, make, beside=folder)
    if trained and told.exists():
        setting.notes.extend(told.read_text(encoding="utf-8").splitlines())
    return Probed(frame, folder)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
