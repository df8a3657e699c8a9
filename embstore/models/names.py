"""Names of models: which kind of encoder each means, and where its files are; nothing is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from embstore.errors import InvalidValueError, ModelError, quoted

LONGEST_NAME, LONGEST_PATH = 255, 4095  # what a file system allows
USAGE = {
    "vectors": "vectors:FILE, a file of word vectors",
    "random": "random:DIMENSIONS, such as random:300",
    "subwords": "subwords:MODEL, the folder or name of a model",
}
BEGINS = {"always": "bos:", "none": "nobos:"}  # with and without a first special token; else as the tokenizer does
VECTOR_SUFFIXES = (".txt", ".vec", ".bin", ".kv", ".model", ".wordvectors", ".gz", ".zst")
MODEL_SUFFIXES = (".safetensors", ".json", ".hdf5", ".h5", ".pt", ".pth", ".onnx", ".ckpt", ".msgpack", ".gguf")


def require_name(model: object) -> str:
    """Return the name or path of a model as text; raises InvalidValueError for anything else."""
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InvalidValueError(f"the model is {quoted(model)}: give the name of a model or the path of its folder")
    try:
        longest = max(map(len, os.fsencode(name).split(b"/")))
    except UnicodeEncodeError:
        longest = LONGEST_NAME + 1
    if longest > LONGEST_NAME or len(name) > LONGEST_PATH:
        raise ModelError(f"there is no model {quoted(name)}: no file or model of the hub has such a name")
    return name


def static_kind(model: str | Path) -> tuple[str, str] | None:
    """Return the kind of an encoder without context, and the file, number or model that it is made from.

    None for the name of a model with context. Raises ModelError for a file that does not exist.
    """
    name = require_name(model)
    kind, colon, target = name.partition(":")
    if colon and kind in USAGE:
        if not target or (kind == "random" and not re.fullmatch("[0-9]{1,9}", target)):
            raise InvalidValueError(f"model {name!r} cannot be read: write {USAGE[kind]}")
        return kind, target
    path = Path(name)
    if not path.exists() and path.suffix in VECTOR_SUFFIXES:
        raise ModelError(f"there is no vector file {name!r}: give a file, or the folder or name of a model")
    return ("vectors", name) if path.is_file() and path.suffix not in MODEL_SUFFIXES else None


def split_begin(model: str | Path) -> tuple[str, str]:
    """Return the "bos:" or "nobos:" before the name of a model ("" for none), and the name."""
    name = require_name(model)
    head = next((head for head in BEGINS.values() if name.startswith(head)), "")
    return head, name.removeprefix(head)


def with_begin(model: object, begin: str) -> str:
    """Return the name of a model whose contexts begin as the option says."""
    if not isinstance(model, str | Path):
        raise InvalidValueError(f"begin {begin!r} is for the name of a model: load the encoder as {BEGINS[begin]}NAME")
    return BEGINS[begin] + split_begin(model)[1]


def absolute_name(model: str) -> str:
    """Return the name of an encoder with an absolute path, so that it means the same in another working directory."""
    head, path = _path_in(model)
    return model if path is None else head + os.path.abspath(os.path.expanduser(path))


def public_name(model: str) -> str:
    """Return the name of an encoder without the folders in which its files are, to be shown and stored."""
    head, path = _path_in(model)
    return model if path is None else head + os.path.basename(os.path.abspath(os.path.expanduser(path)))


def locate(model: str, revision: str | None, *, folders: Iterable[str | Path]) -> str:
    """Return the name of an encoder with the path of its files, from its public name.

    `revision`: of a model of the hub, which has no path. `folders`: where files are looked for. Raises
    InvalidValueError if they are in none.
    """
    head = _path_in(model)[0]
    if revision is not None or head.endswith("random:"):
        return model
    for folder in folders:
        name = head + str(Path(folder) / model.removeprefix(head))
        if _path_in(name)[1] is not None:
            return name
    raise InvalidValueError(f"the model {model!r} is not in this folder: give the location of that model")


def _path_in(model: str) -> tuple[str, str | None]:
    """Split a name into its prefix and the path of existing files, None if there are none."""
    # bag_encoder names its encoders so
    match = re.match(r"(?:bag:)?(?:vectors:|subwords:|random:|bos:|nobos:)?", model)
    head = match[0] if match is not None else ""
    path = model[len(head) :]
    exists = path and not head.endswith("random:") and os.path.exists(os.path.expanduser(path))
    return head, path if exists else None
