"""Append documents to a store: they are extracted into a complete store in its folder, which is then listed there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from embstore.corpus import Keep
from embstore.errors import (
    AppendedTwiceWarning,
    InvalidValueError,
    MissingRowsError,
    StoreMismatchError,
    UnfinishedStoreWarning,
    quoted,
)
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.plan import Plan
from embstore.extraction.resume import require_same_options
from embstore.store import Metadata, Store, open_store
from embstore.store.backend import exists, is_hdf5, no_store, open_reader
from embstore.store.layout import RESIDUAL
from embstore.store.opening import part_path, write_list
from embstore.store.source import FileSource
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.storage.lock import StoreLock
from embstore.store.zarr.format import APPENDED, NODE


def options_of(path: str | Path | ObjectPath) -> ExtractionOptions:
    """Return the options with which documents are appended to a store: those that it was made with.

    Raises InvalidValueError for a store that cannot grow, StoreNotFoundError, MissingRowsError for an unfinished one.
    """
    return stored_options(_growing(path).metadata)


def stored_options(metadata: Metadata) -> ExtractionOptions:
    """Return the options that a store was made with."""
    known: dict[str, Any] = dict(metadata.extraction)
    keep = known.pop("keep", None) or {}
    if not isinstance(known.get("context", ""), str):
        known.pop("max_length", None)  # it follows from the size of the blocks
    known |= {"layers": metadata.layers, "sites": tuple(metadata.sites) or (RESIDUAL,), "dtype": metadata.dtype}
    try:
        words = keep.get("words")
        known["keep"] = Keep(**{**keep, "words": None if words is None else frozenset(words)})
    except (TypeError, AttributeError):
        raise InvalidValueError(f"extraction.keep of a store is {quoted(keep)}, which is no choice of words") from None
    names = [each.name for each in fields(ExtractionOptions) if each.name in known]
    return ExtractionOptions(**{name: known[name] for name in names})


def append(plan: Plan, path: str | Path | ObjectPath, run: Callable[[Path, bool], object], *, repair: bool) -> Store:
    """Extract the corpus of a plan into a new part of the store at `path`; see `extract`.

    `run(part, repair)` extracts into the store `part`. A part that was begun is completed first.
    """
    store = _growing(path)
    assert isinstance(store.path, Path)
    whole = store.path.parent.parent
    if store.path.parent.name == APPENDED and exists(whole / NODE):
        raise InvalidValueError(f"{store.path} was appended to {whole}: append to that store")
    require_same_options(plan.metadata, store.metadata, path=store.path)
    with StoreLock(store.path):
        store = _growing(path)  # another process may have appended
        assert isinstance(store.path, Path)
        sha256 = plan.metadata.corpus["sha256"]
        same = [each.path for each in store.source.members() if each.metadata.corpus.get("sha256") == sha256]
        if same and not (repair and same[0] != store.path):
            hint = "" if not repair else ": repair it without append"
            message = f"{plan.metadata.corpus['name']} is in {same[0]} already, nothing is appended{hint}"
            warnings.warn(message, AppendedTwiceWarning, stacklevel=3)
            return open_store(path)
        members = store.source.members()
        if len(members) == 1:  # without a list, nobody could tell parts that are lost from one that is begun
            write_list(store.path, members)
        part = same[0] if same else part_path(store.path, len(members))
        assert isinstance(part, Path)
        try:
            run(part, repair)
        except StoreMismatchError as error:
            raise StoreMismatchError(
                f"{part} was begun with another corpus or other options, and is not finished: repeat the command that "
                f"began it first, or remove it ({error})"
            ) from error
        if not same:
            write_list(store.path, [*members, FileSource(open_reader(part))])
    return open_store(path)


def _growing(path: str | Path | ObjectPath) -> Store:
    """Open a store that documents can be appended to."""
    location = parse_location(path)
    if isinstance(location, ObjectPath) or is_hdf5(location):
        advice = "extract a second store and open both as a collection (es.open([...]))"
        raise InvalidValueError(f"{location} cannot grow: only a .zarr on a disk can; {advice}")
    if not exists(location):
        raise no_store(location)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedStoreWarning)
        store = open_store(location)
    if not store.finished:
        raise MissingRowsError(f"{location} is not finished: complete it by the command that began it, then append")
    return store
