"""What class, edge and structural probes have in common: settings, the fitted state, and saving.

Saved probes are a folder with metadata as JSON and the weights as safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, SavedProbesError, SavedProbesNotFoundError
from embstore.probes.reading import Layers, require_distinct, store_of
from embstore.probes.training import Training
from embstore.sizes import parse_nbytes
from embstore.store import Selection, Store
from embstore.store.metadata import canonical, document_crc32c
from embstore.store.storage.files import crc32c_of_file, fsync, fsync_tree, remove, storing, write_file

T = TypeVar("T")
F = TypeVar("F")  # what a probe learns
NOT_SAVED = ("device", "memory")  # settings of the machine, not of the probes
FORMAT_VERSION = 1
METADATA, WEIGHTS = "probe.json", "weights.safetensors"


@dataclass(frozen=True)
class SavedProbe:
    """What is saved of a fitted probe.

    `probe`: its kind, such as `edge`. `settings`: the arguments of its constructor. `fitted`: what it learned besides
    its weights, such as its labels. `store`: what made the vectors, see `made_by`. `tensors`: weights, and `epochs`
    and `dev_loss` of each probe.
    """

    probe: str
    settings: Mapping[str, Any]
    fitted: Mapping[str, Any]
    store: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor; raises ValueError if it has another shape or dtype than the metadata promises."""
        found = self.tensors[name]
        if found.shape != shape or found.dtype != dtype:
            raise ValueError(f"{name} of {WEIGHTS} does not fit {METADATA}")
        return found


@dataclass(kw_only=True, eq=False)
class Probe(Generic[F]):
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
    _fitted: F | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.seeds = tuple(self.seeds)
        for each in (*self.seeds, self.seed):
            if each < 0:
                raise InvalidValueError(f"seed {each} is not allowed: give 0 or more")
        require_distinct("seeds", self.seeds)
        self.memory = parse_nbytes(self.memory, name="memory")

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


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | range) else value


def fitting_store(data: Store | Selection | None, layers: Sequence[int], width: int) -> Store:
    """Return the store to predict on; raises InvalidValueError for none, or one that does not fit the probes."""
    if data is None:
        raise InvalidValueError("loaded probes have no store: give data")
    store = store_of(data)
    if store.hidden_size != width:
        raise InvalidValueError(
            f"{store.path} has vectors of {store.hidden_size} numbers, the probes were trained on {width}: give a "
            "store of the same width"
        )
    missing = [layer for layer in layers if layer not in store.layers]
    if missing:
        raise InvalidValueError(
            f"{store.path} has no layer {', '.join(map(str, missing))}, of which there are probes: choose layers among "
            f"{', '.join(map(str, store.layers))}"
        )
    return store


def require_free(path: str | os.PathLike[str]) -> None:
    """Raise InvalidValueError where saving would overwrite anything but saved probes."""
    folder = Path(path)
    is_saved = (folder / METADATA).is_file()
    if folder.exists() and not is_saved and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidValueError(f"{folder} exists and is not a folder of saved probes: give another folder")


def write_probe(path: str | os.PathLike[str], saved: SavedProbe) -> None:
    """Write a folder of saved probes atomically; it replaces saved probes at the same path.

    Raises InvalidValueError where something else is at the path, StorageError.
    """
    folder = Path(path)
    require_free(folder)
    new, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("new", "old"))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in saved.tensors.items()}
    with storing(folder):
        remove(new)
        new.mkdir(parents=True)
        write_file(new / WEIGHTS, [save(tensors)])
        document: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "probe": saved.probe,
            "settings": dict(saved.settings),
            "fitted": dict(saved.fitted),
            "store": dict(saved.store),
            "files": {WEIGHTS: _checksum(new / WEIGHTS)},
            "software": {name: version(name) for name in ("embstore", "torch")},
        }
        document["crc32c"] = document_crc32c(document)
        text = json.dumps(dict(sorted(document.items())), indent=1, ensure_ascii=False, allow_nan=False)
        write_file(new / METADATA, [f"{text}\n".encode()])
        fsync_tree(new)
        remove(old)
        if folder.exists():
            os.rename(folder, old)  # the old probes are removed only after the new ones are in place
        os.rename(new, folder)
        fsync(folder.absolute().parent)
        remove(old)


def read_probe(path: str | os.PathLike[str], build: Callable[[SavedProbe], T]) -> T:
    """Read a folder of saved probes, check it, and return what `build` makes of it.

    Raises SavedProbesNotFoundError, SavedProbesError (damaged, or written by a newer version). Errors that `build`
    raises for unexpected contents (ValueError, KeyError ...) count as damage.
    """
    folder = Path(path)
    if not (folder / METADATA).is_file():
        raise SavedProbesNotFoundError(f"{folder} has no saved probes: there is no {METADATA} in it")
    try:
        fields = json.loads((folder / METADATA).read_bytes())
        if fields["format_version"] > FORMAT_VERSION:
            raise SavedProbesError(
                f"the probes {folder} have format {fields['format_version']}, this version reads formats up to "
                f"{FORMAT_VERSION}: upgrade embstore"
            )
        if document_crc32c(fields) != fields.get("crc32c"):
            raise ValueError(f"the checksum of {METADATA} differs")
        if fields["files"][WEIGHTS] != _checksum(folder / WEIGHTS):
            raise ValueError(f"the checksum of {WEIGHTS} differs")
        tensors = load_file(folder / WEIGHTS)
        return build(SavedProbe(fields["probe"], fields["settings"], fields["fitted"], fields["store"], tensors))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        if isinstance(error, SavedProbesError):
            raise
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise SavedProbesError(f"the probes {folder} are damaged ({reason}): train them again") from None


def made_by(store: Store) -> dict[str, Any]:
    """Return what made the store that probes were fitted on: model, corpus, extraction, and its digest."""
    made = {
        "digest": store.digest,
        "model": dict(store.metadata.model),
        "corpus": dict(store.metadata.corpus),
        "extraction": dict(store.metadata.extraction),
    }
    return dict(json.loads(canonical(made)))


def _checksum(path: Path) -> dict[str, int]:
    crc, nbytes = crc32c_of_file(path)
    return {"nbytes": nbytes, "crc32c": crc}
