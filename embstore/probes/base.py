"""What class, edge and structural probes have in common: settings, the fitted state, and saving."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, check_type, check_whole, quoted
from embstore.probes.reading import MAX_SEED, check_path, require_distinct, store_of
from embstore.probes.saved import is_saved, write_tensors
from embstore.probes.training import Schedule, Trained, Training
from embstore.sizes import parse_nbytes
from embstore.store import Selection, Store
from embstore.store.layout import Layers
from embstore.store.metadata import canonical

NOT_SAVED = ("device", "memory")  # settings of the machine, not of the probes
WHAT_MAKES_VECTORS = ("pooling", "context_window", "attention_window", "max_length")


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitted:
    """What probes have learned: the weights `trained`; `store`: what made the vectors that they were fitted on.

    `data`: what they were fitted on, None if they were loaded. `notes`: what was left out or sampled, a line each.
    """

    trained: Trained
    store: Mapping[str, Any]
    data: Store | Selection | None = None
    notes: tuple[str, ...] = ()


F = TypeVar("F", bound=Fitted)


@dataclass(kw_only=True, eq=False)
class Probe(ABC, Generic[F]):
    """Settings that all probes share; a subclass adds its own and implements fit and score.

    layers: those that probes are trained for, all by default; -1 or "last" is the last. seeds: of the initial weights,
    and of dropout and the order of the sentences of edge probes. seed: of everything else that is random (samples,
    order of the examples, control labels, bootstrap). training: see `Training`. device: "auto", "cpu", "cuda" ...
    memory: bytes that training may take, such as "4GiB"; if not all probes fit, some are trained after the others.
    """

    name: ClassVar[str]  # as saved probes have it
    defaults: ClassVar[Schedule]  # of the training
    dev_data: ClassVar[str]  # what early stopping needs, as errors name it
    layers: Layers = None
    seeds: Sequence[int] = (0,)
    seed: int = 0
    training: Training = field(default_factory=Training)
    device: str = "auto"
    memory: int | str = "4GiB"
    _fitted: F | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.seeds, Iterable) or isinstance(self.seeds, str | bytes):
            raise InvalidValueError(f"seeds {quoted(self.seeds)} are not allowed: give a list of whole numbers")
        self.seeds = tuple(check_whole("seed", each, 0, MAX_SEED) for each in self.seeds)
        require_distinct("seeds", self.seeds)
        self.seed = check_whole("seed", self.seed, 0, MAX_SEED)
        check_type("training", self.training, Training, "a Training")
        check_type("device", self.device, str, "a text such as auto")
        for each in fields(self):
            if each.type == "bool":
                check_type(each.name, getattr(self, each.name), bool, "True or False")
        self.memory = parse_nbytes(self.memory, name="memory")
        self._schedule()

    def _schedule(self, *, has_dev: bool = True) -> Schedule:
        """The settings of a training, with all defaults filled in.

        Raises InvalidValueError for early stopping without dev data.
        """
        given = {name: value for name, value in asdict(self.training).items() if value is not None}
        where: dict[str, Any] = {"device": choose_device(self.device, float64=True), "memory": self.memory}
        schedule = replace(self.defaults, **given, seed=self.seed, **where)
        if schedule.patience and not has_dev:
            raise InvalidValueError(f"patience {schedule.patience} needs dev {self.dev_data}: give some, or patience 0")
        return schedule

    @property
    def fitted(self) -> F:
        """What the probes have learned; raises InvalidValueError before `fit`."""
        if self._fitted is None:
            raise InvalidValueError(f"this {type(self).__name__} is not fitted: call fit first")
        return self._fitted

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor that define the probes, as JSON values."""
        held = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        held["training"] = asdict(self.training)
        return {
            name: list(value) if isinstance(value, tuple | range) else value
            for name, value in held.items()
            if name not in NOT_SAVED
        }

    def _capped_notes(self, what: str, capped: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return a note of the probes that the last epoch stopped; `what`: the store or task."""
        if not capped.any():
            return ()
        return (
            f"{what}: the last epoch ({self._schedule().epochs}) ended the training of {capped.sum():,} of "
            f"{len(capped):,} probes before early stopping did: they have not converged, give more epochs",
        )

    def _changed_notes(self, what: str, data: Store | Selection | None) -> tuple[str, ...]:
        """Return a note where the vectors of `data` were made otherwise than those of `fit`: by another model or so."""
        if data is None:
            return ()
        store = store_of(data)
        changed = _differences(self.fitted.store, made_by(store))
        if not changed:
            return ()
        return (f"{what}: the probes were fitted on vectors made otherwise than those of {store.path}: {changed}",)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted probes to a file, atomically; it replaces saved probes at the same path.

        `embstore.probes.load` reads it. Raises InvalidValueError if the probes are not fitted or something else is at
        the path, StorageError.
        """
        learned, tensors = self._saved()
        file = check_path("path", path)
        require_free(file)
        document = {"probe": self.name, "settings": self.settings, "fitted": learned, "store": dict(self.fitted.store)}
        write_tensors(file, document, tensors)

    @classmethod
    def _loaded(cls, document: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Self:
        """Rebuild fitted probes from what was saved; `load` reports errors of unexpected contents as damage."""
        settings = document["settings"]
        probe = cls(**{**settings, "training": Training(**settings["training"])})
        probe._fitted = probe._restored(document["fitted"], tensors, document["store"])
        return probe

    @abstractmethod
    def _saved(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return what was learned besides the weights, as JSON values, and the tensors."""

    @abstractmethod
    def _restored(self, learned: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], store: Mapping[str, Any]) -> F:
        """Return the fitted state that `_saved` describes."""


def fitting_store(
    data: Store | Selection | None, layers: Sequence[int], width: int, *, what: str = "the probes"
) -> Store:
    """Return the store to predict on; raises InvalidValueError for none, or one that does not fit the probes.

    `what`: how the message names the probes.
    """
    if data is None:
        raise InvalidValueError("loaded probes have no store: give data")
    store = store_of(data)
    if store.hidden_size != width:
        raise InvalidValueError(
            f"{store.path} has vectors of {store.hidden_size} numbers, {what} were trained on {width}: give a "
            "store of the same width"
        )
    missing = [layer for layer in layers if layer not in store.layers]
    if missing:
        raise InvalidValueError(
            f"{store.path} has no layer {', '.join(map(str, missing))}, which {what} read: choose layers among "
            f"{', '.join(map(str, store.layers))}"
        )
    return store


def require_free(path: str | os.PathLike[str]) -> None:
    """Raise InvalidValueError where saving would overwrite anything but saved probes."""
    file = check_path("path", path)
    if file.exists() and not is_saved(file):
        raise InvalidValueError(f"{file} exists and is not a file of saved probes: give another name")
    if file.parent.exists() and not file.parent.is_dir():
        raise InvalidValueError(f"{file} is in no folder, as {file.parent} is a file: give another name")


def made_by(store: Store) -> dict[str, Any]:
    """Return what made the store that probes were fitted on: model, corpus, extraction, its site and its digest."""
    made = {
        "digest": store.digest,
        "site": store.layout.site,
        "model": dict(store.metadata.model),
        "corpus": dict(store.metadata.corpus),
        "extraction": dict(store.metadata.extraction),
    }
    return dict(json.loads(canonical(made)))


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Describe how the vectors of two stores were made differently: by another model, or with other options."""
    parts = []
    first, second = one["model"], other["model"]
    weights = "weights_sha256"
    same = first[weights] == second[weights] if weights in first and weights in second else first == second
    if not same:
        parts.append(f"{first.get('name')} (now {second.get('name')})")
    options = [("site", one.get("site", other["site"]), other["site"])]  # older files of probes do not say it
    options += [(name, one["extraction"].get(name), other["extraction"].get(name)) for name in WHAT_MAKES_VECTORS]
    return ", ".join([*parts, *(f"{name} {before} (now {now})" for name, before, now in options if before != now)])
