"""The model that made a store: where its files are now, and whether they are the same."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embstore.arguments import checked
from embstore.errors import EmbstoreError, ModelError
from embstore.models.names import absolute_name, locate, split_begin
from embstore.store import Store
from embstore.store.storage.files import make_folders, regular_file, replacing
from embstore.store.virtual.recomputed import default_folder

if TYPE_CHECKING:
    from embstore.models.encoder import Encoder

MODEL = "EMBSTORE_MODEL"  # where the model of a store is, if it is not found
HINT = f"give its folder or name by --model (model= in Python) or in {MODEL}"
_used: dict[tuple[str, object], str] = {}  # by path and weights of a store: where its model was when it was checked


@checked
def find_model(store: Store, model: str | Path | None = None) -> str:
    """Return the name of the encoder of a store with the path of its files. Raises ModelError where it is not found.

    That is `model` if it is given, else where this process used it for the store, else `EMBSTORE_MODEL`, else where
    this machine last used it, else its name in the working directory or next to the store.
    """
    info, folders = store.metadata.model, [Path(".")]
    if isinstance(store.path, Path):
        folders.append(store.path.absolute().parent)
    name, revision, before = str(info["name"]), info.get("revision"), ""
    if model is not None:
        return split_begin(name)[0] + split_begin(model)[1]
    with suppress(EmbstoreError, KeyError):
        return locate(_used[str(store.path), info.get("weights_sha256")], revision, folders=["/"])
    if place := os.environ.get(MODEL):
        return split_begin(name)[0] + split_begin(place)[1]
    with suppress(EmbstoreError, OSError, ValueError):  # for NUL, of a damaged file
        remembered = os.fsdecode(regular_file(_memory(name, info.get("weights_sha256", ""))).read_bytes())
        before = f", no longer at {remembered}"
        return locate(remembered, revision, folders=["/"])
    with suppress(EmbstoreError, OSError):
        return locate(name, revision, folders=folders)
    raise ModelError(f"the model {name!r} that made {store.path} is not found{before}: {HINT}")


def require_same_model(store: Store, encoder: Encoder, place: str) -> None:
    """Raise ModelError if an encoder is not the one that made a store; else remember where it is."""
    model = store.metadata.model
    for part in ("weights", "config", "tokenizer"):
        if getattr(encoder.info, f"{part}_sha256") != model.get(f"{part}_sha256"):
            what = "another configuration" if part == "config" else f"other {part}"
            raise ModelError(f"{place} has {what} than the model {model['name']!r} that made {store.path}: {HINT}")
    _used[str(store.path), model.get("weights_sha256")] = absolute_name(place)
    remember(encoder)


def remember(encoder: Encoder) -> None:
    """Remember on this machine where the files of an encoder are, by the digest of its weights, if that is possible."""
    if not encoder.source:
        return
    file, place = _memory(encoder.info.name, encoder.info.weights_sha256), absolute_name(encoder.source)
    with suppress(EmbstoreError, OSError):
        if not file.is_file() or file.read_bytes() != os.fsencode(place):
            make_folders(file.parent)
            with replacing(file) as partial:
                partial.write_bytes(os.fsencode(place))


def _memory(name: str, digest: str) -> Path:
    kind, colon, _ = name.rpartition(":")  # subwords:MODEL has the weights of MODEL
    return default_folder() / "models" / (digest + colon.replace(":", "-") + kind.replace(":", "-"))
