"""The stores that are explored, each with what queries keep for the next one, in memory and in the user's cache."""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from embstore.errors import InvalidValueError, StorageError, quoted
from embstore.store import Selection, Store, open_store
from embstore.store.storage.files import replacing

KEPT = 64  # results by store
MAX_CONDITION = 2000  # characters


class Explored:
    """An open store. `address`: what it was opened by. `name`: a short one, different from those of other stores."""

    def __init__(self, store: Store, *, address: str | None = None, name: str | None = None) -> None:
        self.store = store
        self.address = str(store.path) if address is None else address
        self.name = name or Path(str(store.path)).stem
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, Lock] = {}
        self._lock = Lock()

    @cached_property
    def digest(self) -> str:
        """What changes whenever the vectors do; names the files of the cache."""
        return self.store.digest

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` returned the first time; others who ask for it meanwhile wait. The last 64 are kept."""
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
            finally:
                with self._lock:
                    self._locks.pop(key, None)
            with self._lock:
                self._kept[key] = value
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return value

    def saved(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned the first time, a value that JSON can hold, kept in the user's cache."""
        return self.once(name, lambda: self._read_or_make(self.cache_path(f"{name}.json"), make))

    def _read_or_make(self, path: Path, make: Callable[[], Any]) -> Any:
        with suppress(OSError, ValueError):
            return json.loads(path.read_bytes())
        value = make()
        with suppress(OSError, StorageError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                partial.write_text(json.dumps(value), "utf-8")
        return value

    def cache_path(self, name: str) -> Path:
        """Return the path of a file in the user's cache that belongs to the vectors of this store."""
        return user_cache() / "explorer" / f"{self.digest[:32]}-{name}"

    def select(
        self, *, word: str | None = None, where: str | None = None, rows: Sequence[int] | None = None
    ) -> Selection:
        """Select occurrences of a word, by row, or by a condition, ascending; all that is given must be true.

        `where`: a condition on the other selected rows of `Selection.table` in SQL, such as "upos = 'NOUN' and
        position < 3", which `polars.sql_expr` reads. Raises InvalidValueError.
        """
        chosen = self.store.select(words=word, rows=None if rows is None else sorted(set(rows)))
        if where is None:
            return chosen
        import polars as pl

        condition = self._condition(where)
        columns = sorted({"occurrence", *condition.meta.root_names()})
        try:
            found = chosen.table(columns=columns).filter(condition)["occurrence"].to_numpy()
        except pl.exceptions.PolarsError as error:
            raise InvalidValueError(f"where {quoted(where)} cannot be used: {_first_line(error)}") from None
        return self.store.select(rows=found)

    def _condition(self, where: str) -> Any:
        import polars as pl

        if len(where) > MAX_CONDITION:
            raise InvalidValueError(f"where has {len(where):,} characters: give {MAX_CONDITION:,} at most")
        try:
            return pl.sql_expr(where)
        except pl.exceptions.PolarsError as error:
            raise InvalidValueError(f"where {quoted(where)} is not a condition: {_first_line(error)}") from None

    def python(self, *lines: str) -> str:
        """Return a program of these lines about `store`, with what they need."""
        imports = ["import embstore as es", *(["import polars as pl"] if any("pl." in line for line in lines) else [])]
        return "\n".join([*imports, "", f"store = es.open({self.address!r})", *lines])

    @property
    def can_encode(self) -> bool:
        """Whether new sentences can be encoded by the model of the store, as far as is known."""
        return self.store.metadata.extraction["unit"] == "word"

    @cached_property
    def probes(self) -> dict[str, str]:
        """The kinds of the saved probes of the store, by name."""
        return {}


def explored(given: Sequence[str | os.PathLike[str] | Store]) -> list[Explored]:
    """Open stores, or take open ones, and give each a name of its own: the end of its path, or more of it."""
    opened = [each if isinstance(each, Store) else open_store(each) for each in given]
    if not opened:
        raise InvalidValueError("no store is given: give one or more")
    addresses = [str(each.path if isinstance(each, Store) else each) for each in given]
    stems = [Path(str(store.path)).stem for store in opened]
    names = [stem if stems.count(stem) == 1 else address for stem, address in zip(stems, addresses, strict=True)]
    return [
        Explored(store, address=address, name=name)
        for store, address, name in zip(opened, addresses, names, strict=True)
    ]


def user_cache() -> Path:
    """Return the folder of embstore in the user's cache."""
    home = Path.home()
    default = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or default) / "embstore"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
