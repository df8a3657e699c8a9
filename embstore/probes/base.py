"""What class, edge and structural probes have in common: settings, the fitted state, and saving."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NoReturn, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.arguments import Range, checked
from embstore.config import settings
from embstore.devices import choose_device
from embstore.errors import InvalidValueError, quoted
from embstore.probes.saved import is_saved, write_tensors
from embstore.probes.training import Schedule, Trained, Training
from embstore.store import Selection, Store
from embstore.store.layout import Layers, resolve_layers
from embstore.store.metadata import canonical

WHAT_MAKES_VECTORS = ("pooling", "context_window", "attention_window", "max_length")
Seed = Annotated[int, Range(0)]


class NotFittedError(InvalidValueError, AttributeError):
    """Probes are used before `fit`; an AttributeError, so that hasattr says whether they are fitted."""


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

    As in scikit-learn, the constructor keeps its arguments as they are, `get_params` and `set_params` read and change
    them, `fit` returns the probe itself, and what it has learned is `fitted_`. The device, the memory that training may
    take and the progress bar are those of `embstore.config`; if not all probes fit, some are trained after the others.
    `fit`, `score` and `predict` raise MissingRowsError and NonFiniteError for vectors that cannot be read.

    Parameters
    ----------
    layers : layers
        Those that probes are trained for, all by default; -1 or "last" is the last.
    seeds : int or sequence of int
        Of the initial weights and of the order of the examples, of edge probes also of dropout. All else that is random
        (samples, control labels, bootstrap) is drawn with the first.
    training : Training
        How they are trained; None takes the defaults.
    """

    name: ClassVar[str]  # as saved probes have it
    defaults: ClassVar[Schedule]  # of the training
    dev_data: ClassVar[str]  # what early stopping needs, as errors name it
    layers: Layers = None
    seeds: Seed | Sequence[Seed] = 0
    training: Training | None = None
    fitted_: F = field(init=False, repr=False)

    def __getattr__(self, name: str) -> NoReturn:
        if name.endswith("_") and not name.startswith("_"):  # what is learned, as scikit-learn names it
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first")
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor; `deep` is of scikit-learn, and has no effect."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; returns the probe itself. Raises InvalidValueError."""
        known = self.get_params()
        for name in params:
            if name not in known:
                raise InvalidValueError(f"unknown setting {quoted(name)}; allowed are {', '.join(known)}")
        for name, value in type(self)(**{**known, **params}).get_params().items():  # which checks them
            setattr(self, name, value)
        return self

    @property
    def _seeds(self) -> tuple[int, ...]:
        seeds = (self.seeds,) if isinstance(self.seeds, int | np.integer) else tuple(self.seeds)
        require_distinct("seeds", seeds)
        return tuple(map(int, seeds))

    def _schedule(self, *, has_dev: bool = True) -> Schedule:
        """The settings of a training with all defaults; raises InvalidValueError for early stopping without dev."""
        given = {name: value for name, value in asdict(self.training or Training()).items() if value is not None}
        now = settings()
        where: dict[str, Any] = {"device": choose_device(now.device, float64=True), "memory": now.nbytes}
        schedule = replace(self.defaults, **given, **where)
        if schedule.patience and not has_dev:
            raise InvalidValueError(f"patience {schedule.patience} needs dev {self.dev_data}: give some, or patience 0")
        return schedule

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
        changed = "" if data is None else _differences(self.fitted_.store, made_by(store_of(data)))
        if data is None or not changed:
            return ()
        path = store_of(data).path
        return (f"{what}: the probes were fitted on vectors made otherwise than those of {path}: {changed}",)

    @checked
    def save(self, path: str | Path) -> None:
        """Write the fitted probes to a file, atomically; it replaces saved probes at the same path.

        `embstore.probes.load` reads it. Raises InvalidValueError if the probes are not fitted or something else is at
        the path, StorageError.
        """
        learned, tensors = self._saved()
        require_free(path)
        document = {
            "probe": self.name,
            "settings": self.get_params() | {"training": asdict(self.training or Training())},
            "fitted": learned,
            "store": dict(self.fitted_.store),
        }
        write_tensors(Path(path), json.loads(json.dumps(document, default=list)), tensors)

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


def require_free(path: str | Path) -> None:
    """Raise InvalidValueError where saving would overwrite anything but saved probes."""
    file = Path(path)
    if file.exists() and not is_saved(file):
        raise InvalidValueError(f"{file} exists and is not a file of saved probes: give another name")
    if file.parent.exists() and not file.parent.is_dir():
        raise InvalidValueError(f"{file} is in no folder, as {file.parent} is a file: give another name")


def require_distinct(what: str, values: Sequence[object]) -> None:
    """Raise InvalidValueError for no values, or one that is given twice."""
    if not values or len(set(values)) < len(values):
        raise InvalidValueError(f"{what} must be one or more, each once, not {quoted(list(values))}")


def layers_of(data: Store | Selection, layers: Layers) -> tuple[int, ...]:
    """Return the layers of a store or selection that are meant, ascending; see `Probe`.

    Raises InvalidValueError for a layer that is not stored.
    """
    return resolve_layers(layers, tuple(sorted(data.layers)), ascending=True)


def store_of(data: Store | Selection) -> Store:
    """Return the store of what probes read."""
    return data if isinstance(data, Store) else data.store


def made_by(store: Store) -> dict[str, Any]:
    """Return what made the store that probes were fitted on: model, corpus, extraction, its site and its digest."""
    made = {
        "digest": store.digest,
        "site": store.source.layout.site,
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
    options = [("site", one["site"], other["site"])]
    options += [(name, one["extraction"].get(name), other["extraction"].get(name)) for name in WHAT_MAKES_VECTORS]
    return ", ".join([*parts, *(f"{name} {before} (now {now})" for name, before, now in options if before != now)])
