"""What class, edge and structural probes have in common: settings, the fitted state, saving and a short repr."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar

import torch

from embstore.devices import choose_device
from embstore.errors import InvalidValueError
from embstore.probes.reading import Layers
from embstore.probes.saved import SavedProbe, write_probe
from embstore.probes.training import Training
from embstore.sizes import parse_nbytes

T = TypeVar("T")
NOT_SAVED = ("device", "memory")  # settings of the machine, not of the probes


@dataclass(kw_only=True, eq=False)
class Probe:
    """Settings that all probes share; a subclass adds its own and implements fit and score.

    layers: those that probes are trained for, all by default; -1 or "last" is the last. seeds: of the initial weights;
    the probes of all seeds are trained together. seed: of everything else that is random (samples, order of the
    examples, control labels, bootstrap). training: see `Training`. device: "auto", "cpu", "cuda" ... memory: bytes
    that training may take, such as "4GiB"; if not all probes fit, some are trained after the others.
    """

    name: ClassVar[str]  # as saved probes have it
    layers: Layers = None
    seeds: Sequence[int] = (0,)
    seed: int = 0
    training: Training = field(default_factory=Training)
    device: str = "auto"
    memory: int | str = "4GiB"

    def __post_init__(self) -> None:
        self.seeds = tuple(self.seeds)
        for each in (*self.seeds, self.seed):
            if each < 0:
                raise InvalidValueError(f"seed {each} is not allowed: give 0 or more")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InvalidValueError(f"seeds must be one or more, each once, not {list(self.seeds)}")
        self.memory = parse_nbytes(self.memory, name="memory")

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor that define the probes, as JSON values."""
        held = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        held["training"] = asdict(self.training)
        return {name: _as_json(value) for name, value in held.items() if name not in NOT_SAVED}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted probes to a folder, atomically; it replaces saved probes at the same path.

        `embstore.probes.load` reads it. Raises InvalidValueError if the probes are not fitted or something else is at
        the path, StorageError.
        """
        write_probe(path, self._saved())

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Rebuild a probe from its `settings`."""
        return cls(**{**settings, "training": Training(**settings["training"])})

    def _saved(self) -> SavedProbe:
        raise NotImplementedError

    def _device(self) -> torch.device:
        return choose_device(self.device)

    def _require_fitted(self, fitted: T | None) -> T:
        if fitted is None:
            raise InvalidValueError(f"this {type(self).__name__} is not fitted: call fit first")
        return fitted


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | range) else value
