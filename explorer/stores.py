"""The stores that are explored, each with what queries keep for the next one, in memory and in the user's cache."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InputError, InvalidValueError, ModelError, quoted
from embstore.store import Selection, Store, open_store

if TYPE_CHECKING:
    from embstore.models import Encoder

TABLE = "table"
NUMBER = re.compile(r"-?[0-9]{1,9}", re.ASCII)  # of a layer
MAX_HEADER = 2**24
KEPT, KEPT_NBYTES = 64, 2**30  # results by store, and bytes of their arrays and of the row numbers asked for


class Explored:
    """A store that the explorer shows.

    `address`: what it was opened by. `name`: a short one, different from those of other stores. `takes_model`: whether
    whoever asks may say where its model is.
    """

    def __init__(
        self,
        store: Store,
        *,
        address: str | None = None,
        name: str | None = None,
        model: str | None = None,
        probes: str | os.PathLike[str] | None = None,
        takes_model: bool = True,
    ) -> None:
        self.store = store
        self.takes_model = takes_model
        self._model = model
        self._probes = probes
        self._cannot_encode: str | None = None
        self.encoding = Lock()  # the encoder is used by one thread at a time
        self.address = str(store.path) if address is None else address
        self.name = name or Path(str(store.path)).stem
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def sinkless(self, chosen: Selection) -> Selection:
        """Return a selection without attention sinks, beside which all else is one point; itself where none else is."""
        if not self.once("sinks", lambda: self.store.describe().get("sinks")):
            return chosen
        return self.store.select(rows=chosen.rows, layers=chosen.layers, sinks=False) or chosen

    def again(self) -> Explored:
        """Open what is now at the address of the store."""
        return Explored(
            open_store(self.address).site(self.store.source.layout.site),
            address=self.address,
            name=self.name,
            model=self._model,
            probes=self._probes,
            takes_model=self.takes_model,
        )

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` returned the first time; others who ask for it meanwhile wait. The last ones are kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            own = self._locks.setdefault(key, Lock())
        with own:
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
            try:
                value = make()
                with self._lock:
                    self._kept[key] = value
                    while len(self._kept) > KEPT or (len(self._kept) > 1 and self._kept_nbytes > KEPT_NBYTES):
                        self._kept.popitem(last=False)
                return value
            finally:
                with self._lock:
                    self._locks.pop(key, None)

    @property
    def _kept_nbytes(self) -> int:
        numbers = sum(len(part) for key in self._kept if isinstance(key, tuple) for part in key if type(part) is tuple)
        return 36 * numbers + sum(getattr(value, "nbytes", 0) for value in self._kept.values())  # of an int in a tuple

    def saved(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned the first time, a value that JSON can hold, kept in the user's cache."""
        path = user_cache() / "explorer" / f"{self.store.digest[:32]}-{name}.json"

        def read() -> Any:
            with suppress(OSError, ValueError):
                return json.loads(path.read_bytes())
            value = make()
            with suppress(OSError):
                write_file(path, json.dumps(value).encode())
            return value

        return self.once(name, read)

    def select(
        self, *, word: str | None = None, where: str | None = None, rows: Sequence[int] | None = None
    ) -> Selection:
        """Select occurrences of a word, by row, or by a condition in SQL, ascending; all that is given must be true."""
        return self.store.select(words=word, rows=None if rows is None else sorted(set(rows)), where=where)

    def python(self, *lines: str) -> str:
        """Return a program of these lines about `store`, with what they need."""
        known = {"np.": "import numpy as np", "pl.": "import polars as pl"}
        imports = [text for name, text in known.items() if any(name in line for line in lines)]
        return "\n".join(["import embstore as es", *imports, "", f"store = es.open({self.address!r})", *lines])

    @property
    def can_encode(self) -> bool:
        """Whether new sentences can be encoded by the model of the store: as far as is known before it is loaded."""
        return self.store.metadata.extraction["unit"] == "word" and self.missing_model is None

    @property
    def missing_model(self) -> str | None:
        """Why the model of the store cannot be used: as far as is known before it is loaded."""
        if self._cannot_encode is None:
            try:
                self.model_location()
            except ModelError as error:
                return str(error)
        return self._cannot_encode

    def encoder(self) -> Encoder:
        """Load the model of the store, once. Raises ModelError, also when it is asked for again."""
        if self._cannot_encode is not None:
            raise ModelError(self._cannot_encode)
        from embstore.analysis import encoder_of

        try:
            found: Encoder = self.once("encoder", lambda: encoder_of(self.store, self.model_location()))
            return found
        except (InputError, OSError) as error:
            self._cannot_encode = str(error)
            raise ModelError(self._cannot_encode) from error

    def use_model(self, place: str) -> None:
        """Use the model of a folder or name from now on, if it made the store.

        Raises InvalidValueError where nobody who asks may name one, ModelError.
        """
        from embstore.analysis import encoder_of

        if not self.takes_model:
            raise InvalidValueError("other machines reach this explorer: give the model by `embstore explore --model`")
        with self.encoding:  # one model is loaded at a time
            encoder = encoder_of(self.store, place)
        with self._lock:
            self._model, self._cannot_encode, self._kept["encoder"] = place, None, encoder

    def model_location(self) -> str:
        """Return where the model of the store is. Raises ModelError where its files are in no known place."""
        from embstore.models import find_model

        return find_model(self.store, self._model)

    @cached_property
    def probes(self) -> dict[str, SavedFile]:
        """The saved probes of the store, by the stem of their file."""
        return {name: each for name, each in self._probe_files.items() if each.kind != TABLE}

    @cached_property
    def results(self) -> dict[str, SavedFile]:
        """The tables of probes' scores, by the stem of their file."""
        return {name: each for name, each in self._probe_files.items() if each.kind == TABLE}

    @cached_property
    def _probe_files(self) -> dict[str, SavedFile]:
        if self._probes is not None:
            return probe_files(Path(self._probes))
        return probe_files(self.store.path.parent / "probes") if isinstance(self.store.path, Path) else {}


@dataclass(frozen=True)
class SavedFile:
    """A file of saved probes, of the kind `class`, `edge` or `structural`, or a table of scores, of the kind TABLE."""

    path: Path
    kind: str


def probe_files(path: Path) -> dict[str, SavedFile]:
    """Return the saved probes and the tables of scores in a folder, or of one file, by name; nothing is loaded."""
    found = {}
    for each in sorted(path.iterdir()) if path.is_dir() else [path]:
        kind = TABLE if each.suffix in (".csv", ".parquet", ".json") else _kind_of_probe(each)
        if kind is not None:
            found[each.stem if each.stem not in found else each.name] = SavedFile(each, kind)
    return found


def _kind_of_probe(path: Path) -> str | None:
    """Return the kind of saved probes, from the first bytes of their file; None for any other file."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            nbytes = int.from_bytes(file.read(8), "little")
            metadata = json.loads(file.read(min(nbytes, MAX_HEADER)))["__metadata__"]
        return str(json.loads(metadata["embstore"])["probe"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def explored(
    given: Sequence[str | os.PathLike[str] | Store],
    *,
    model: str | None = None,
    probes: str | os.PathLike[str] | None = None,
    takes_model: bool = True,
) -> list[Explored]:
    """Open stores, or take open ones, and give each a name of its own: the end of its path, or more of it.

    `model`: where their model is now. `takes_model`: as of `Explored`. `probes`: a folder of saved probes and tables of
    their scores, or a file; "probes" next to each store by default.
    """
    opened = [each if isinstance(each, Store) else open_store(each) for each in given]
    if not opened:
        raise InvalidValueError("no store is given: give one or more")
    addresses = [str(each.path if isinstance(each, Store) else each) for each in given]
    stems = [Path(str(store.path)).stem for store in opened]
    names = [stem if stems.count(stem) == 1 else address for stem, address in zip(stems, addresses, strict=True)]
    made = [
        Explored(store, address=address, name=name, model=model, probes=probes, takes_model=takes_model)
        for store, address, name in zip(opened, addresses, names, strict=True)
    ]
    for one in made:
        if model is not None and one.store.metadata.virtual:
            with suppress(ModelError):  # of another store of these; who needs it is told
                one.encoder()  # checks where it is, and remembers it for the vectors that are computed again
    return made


def layer_of(store: Store, layer: int | str) -> int:
    """Return the number of a layer that is given by number or name. Raises InvalidValueError."""
    layers = store.select(rows=[], layers=int(layer) if NUMBER.fullmatch(str(layer)) else layer).layers
    if len(layers) != 1:
        raise InvalidValueError(f"layer {quoted(layer)} is not one layer: give a number, or last")
    return layers[0]


def unit_rows(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors [n, feature] at unit length; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def write_file(path: Path, data: bytes) -> None:
    """Write a file as a whole, by a rename, and the folder that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def user_cache() -> Path:
    """Return the folder of embstore in the user's cache."""
    home = Path.home()
    default = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or default) / "embstore"
