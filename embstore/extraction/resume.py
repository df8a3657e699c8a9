"""Whether an existing store was made by the plan at hand; what can be checked without a model is checked first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus
from embstore.errors import StoreDamagedError, StoreFormatError, StoreMismatchError
from embstore.extraction.options import ExtractionOptions, model_layers
from embstore.store import Metadata
from embstore.store.backend import exists, open_reader, require_writable
from embstore.store.collection import COMPUTED, FREE, SAME
from embstore.store.layout import RESIDUAL
from embstore.store.storage.location import ObjectPath

# Names may differ between machines; the hashes next to them may not.
IGNORED = {"model.name", "model.revision", "corpus.name"}


def require_same_plan(planned: Metadata, stored: Metadata, *, path: Path | ObjectPath) -> None:
    """Raise StoreMismatchError, naming the first difference, if the store was made by another plan."""
    facts = ("dtype", "layers", "sites", "hidden_size", "n_rows", "partition_rows", "format_version")
    for part in ("corpus", "model", "extraction", *facts):
        _require_equal(part, getattr(planned, part), getattr(stored, part), path)


def require_same_options(planned: Metadata, stored: Metadata, *, path: Path | ObjectPath) -> None:
    """Raise StoreMismatchError, naming the first difference, for a plan whose vectors are of another kind or choice."""
    for part, free in {**FREE, "extraction": COMPUTED}.items():
        now, then = (
            {key: value for key, value in getattr(each, part).items() if key not in free} for each in (planned, stored)
        )
        _require_equal(part, now, then, path)
    for part in SAME:
        _require_equal(part, getattr(planned, part), getattr(stored, part), path)


def _require_equal(name: str, planned: Any, stored: Any, path: Path | ObjectPath) -> None:
    """Raise StoreMismatchError for the first value that differs; `name`: its key, dotted."""
    if isinstance(planned, Mapping) and isinstance(stored, Mapping):
        for key in (*planned, *(key for key in stored if key not in planned)):
            _require_equal(f"{name}.{key}", planned.get(key), stored.get(key), path)
    elif planned != stored and name not in IGNORED:
        advice = "give the same corpus and options again, another path, or remove the store"
        raise StoreMismatchError(f"{path} was made with {name} {stored!r}, this plan has {planned!r}: {advice}")


def check_store(path: Path | ObjectPath, corpus: Corpus, options: ExtractionOptions) -> None:
    """Refuse a path that no store can have, and a store of another corpus or of other options, without a model.

    Raises InvalidValueError and StoreMismatchError. A damaged store passes, since it may be repaired.
    """
    require_writable(path)
    if not exists(path):
        return
    with suppress(StoreDamagedError, StoreFormatError):
        metadata = open_reader(path).metadata
        if "static" in metadata.extraction:
            return  # its rows are words, which only the plan knows
        then, now = dict(metadata.extraction), options.as_json()
        for name in ("max_length", "batch_subwords"):  # those of the store, unless given
            now[name] = now[name] or then.get(name)
        if now["tokenize"] == "text":  # unless the model reads words alone, which the plan knows
            now["tokenize"] = then.get("tokenize")
        left_out = {each.name: None for each in fields(ExtractionOptions) if each.name in then}
        _require_equal("extraction", {**then, **left_out, **now}, then, path)
        if (depth := metadata.model.get("num_hidden_layers")) is not None:
            _require_equal("layers", model_layers(options.layers, depth), metadata.layers, path)
        _require_equal("dtype", options.dtype, metadata.dtype, path)
        _require_equal("sites", options.sites, tuple(metadata.sites) or (RESIDUAL,), path)
        for name in ("format", "options"):
            _require_equal(f"corpus.{name}", getattr(corpus, name), metadata.corpus.get(name), path)
