"""The shorthand in which stores and the command line name encoders that are no plain model; it loads nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from embstore.errors import InvalidValueError, ModelError, quoted

Kind = Literal["vectors", "random", "subwords"]
Missing = Literal["random", "drop"]

LONGEST_NAME, LONGEST_PATH = 255, 4095
BAG, VLLM = "bag:", "vllm:"
OPTIONS: dict[str, tuple[str, ...]] = {
    "vectors": ("missing", "seed"),
    "random": ("seed",),
    "subwords": (),
    "vllm": ("tensor_parallel_size", "gpu_memory_utilization"),
}
USAGE = {
    "vectors": "vectors:FILE, with ?missing=random, ?missing=drop or ?seed=N after it (several joined by &)",
    "random": "random:DIMENSIONS, such as random:300 or random:300?seed=1",
    "subwords": "subwords:MODEL, the folder or name of a model",
    "vllm": "vllm:MODEL, with ?tensor_parallel_size=N or ?gpu_memory_utilization=0.8 after it (or both, joined by &)",
}
VECTOR_SUFFIXES = (".txt", ".vec", ".bin", ".npy", ".kv", ".model", ".wordvectors", ".gz", ".zst")
MODEL_SUFFIXES = (".safetensors", ".json", ".hdf5", ".h5", ".pt", ".pth", ".onnx", ".ckpt", ".msgpack", ".gguf")


@dataclass(frozen=True)
class Shorthand:
    """A parsed name: the kind of encoder, the file, number of dimensions or model that it is made from, and options.

    `bare`: a path without a kind, which may have been meant as the folder of a model.
    """

    kind: Kind
    target: str
    bag: bool
    missing: Missing
    seed: int
    bare: bool


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


def is_shorthand(model: str | Path) -> bool:
    """Return whether a name is that of an encoder without context; see `encoder_from_shorthand`."""
    return parse_shorthand(model) is not None


def parse_shorthand(model: str | Path) -> Shorthand | None:
    """Parse a name; returns None for the name of a model with context.

    Raises InvalidValueError for unknown options, ModelError for a file that does not exist or a bag of a model with
    context.
    """
    name = require_name(model)
    rest = name.removeprefix(BAG)
    kind, colon, target = rest.partition(":")
    bare = not (colon and kind in OPTIONS)
    if kind + colon == VLLM:
        if rest != name:
            raise ModelError(f"there is no bag of {rest!r}, which has context")
        return None
    if bare:
        path = rest if Path(rest).exists() else rest.rpartition("?")[0] or rest
        if not Path(path).exists() and Path(path).suffix in VECTOR_SUFFIXES:
            raise ModelError(f"there is no vector file {path!r}: give a file, or the folder or name of a model")
        if not Path(path).is_file() or Path(path).suffix in MODEL_SUFFIXES:
            if rest != name:
                raise ModelError(
                    f"there is no bag of {rest!r}: write bag:subwords:MODEL, bag:vectors:FILE or bag:random:DIMENSIONS"
                )
            return None
        kind, target = "vectors", rest
    target, given = _split_options(kind, target, name)
    seed, missing = given.get("seed", "0"), given.get("missing", "random")
    if not re.fullmatch("[0-9]{1,18}", seed):
        raise InvalidValueError(f"model {name!r}: seed {seed!r} is not allowed: give a whole number, 0 or more")
    if missing not in ("random", "drop"):
        raise InvalidValueError(f"model {name!r}: missing {missing!r} is not allowed: choose random or drop")
    return Shorthand(cast(Kind, kind), target, rest != name, cast(Missing, missing), int(seed), bare)


def parse_vllm(model: str | Path) -> tuple[str, dict[str, str]] | None:
    """Return the model and the options of a name that begins with "vllm:"; None for any other name.

    Raises InvalidValueError for options that are not known.
    """
    name = require_name(model)
    return _split_options("vllm", name.removeprefix(VLLM), name) if name.startswith(VLLM) else None


def _split_options(kind: str, rest: str, name: str) -> tuple[str, dict[str, str]]:
    """Split the options after the last "?" off, unless the whole is a file."""
    target, mark, text = rest.rpartition("?")
    pairs = [part.partition("=")[::2] for part in text.split("&")] if mark else []
    if not mark or (kind != "random" and Path(rest).exists()):
        target, pairs = rest, []
    given = dict(pairs)
    unknown = len(given) < len(pairs) or not set(given) <= set(OPTIONS[kind])
    if unknown or not target or (kind == "random" and not re.fullmatch("[0-9]{1,9}", target)):
        raise InvalidValueError(f"model {name!r} cannot be read: write {USAGE[kind]}")
    return target, given


def absolute_shorthand(model: str) -> str:
    """Return the name of an encoder with absolute paths, so that it means the same in another working directory."""
    head, path, tail = _path_in(model)
    return model if path is None else head + os.path.abspath(os.path.expanduser(path)) + tail


def public_name(model: str) -> str:
    """Return the name of an encoder without the folders in which its files are, to be shown and stored."""
    head, path, tail = _path_in(model)
    return model if path is None else head + os.path.basename(os.path.abspath(os.path.expanduser(path))) + tail


def locate(model: str, revision: str | None, *, folders: Iterable[str | Path]) -> str:
    """Return the name of an encoder with the path of its files, from its public name.

    `revision`: of a model of the hub, which has no path. `folders`: where files are looked for. Raises
    InvalidValueError if they are in none.
    """
    head = _path_in(model)[0]
    if revision is not None or head.endswith("random:"):
        return model
    for folder in folders:
        found = head + str(Path(folder) / model.removeprefix(head))
        if _path_in(found)[1] is not None:
            return found
    raise InvalidValueError(f"the model {model!r} is not in this folder: give the location of that model")


def _path_in(model: str) -> tuple[str, str | None, str]:
    """Split a name into its kind, the path of existing files, None if there are none, and its options."""
    match = re.match(r"(?:bag:)?(?:vectors:|subwords:|random:|vllm:)?", model)
    head = match[0] if match is not None else ""
    rest = model[len(head) :]
    path, mark, options = rest.rpartition("?")
    for target, tail in ((rest, ""), (path, mark + options)):
        if target and not head.endswith("random:") and os.path.exists(os.path.expanduser(target)):
            return head, target, tail
    return head, None, ""
