"""Whether a store was made by the plan at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from embstore.errors import StoreMismatchError
from embstore.store import Metadata

# Names may differ between machines; the hashes beside them may not.
FREE = {"model.name", "model.revision", "corpus.name"}


def require_same_recipe(planned: Metadata, stored: Metadata, *, path: str) -> None:
    """Raise StoreMismatchError, naming the first difference, where the store is another plan's."""
    for key, now, then in differences(planned, stored):
        if key in FREE:
            continue
        raise StoreMismatchError(
            f"{path} was made with {key} {then!r}, this plan has {now!r}: "
            "give the same options again, or another path for the store"
        )


def differences(planned: Metadata, stored: Metadata) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, planned, stored) of all that decides the rows of a store."""
    for part in ("corpus", "model", "extraction"):
        yield from _unequal(part, getattr(planned, part), getattr(stored, part))
    for part in ("dtype", "layers", "hidden_size", "n_rows", "partition_rows", "format_version"):
        now, then = getattr(planned, part), getattr(stored, part)
        if now != then:
            yield part, now, then


def _unequal(name: str, now: Any, then: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        for key in (*now, *(key for key in then if key not in now)):
            yield from _unequal(f"{name}.{key}", now.get(key), then.get(key))
    elif now != then:
        yield name, now, then
