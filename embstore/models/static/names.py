"""Names of encoders without context: what they are made from, and how words without a vector are treated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from embstore.errors import InvalidValueError, ModelError

Missing = Literal["random", "drop"]
Kind = Literal["vectors", "random", "subwords"]
BAG = "bag:"
OPTIONS: dict[Kind, tuple[str, ...]] = {"vectors": ("missing", "seed"), "random": ("seed",), "subwords": ()}
VECTOR_SUFFIXES = (".txt", ".vec", ".bin", ".npy", ".kv", ".model", ".wordvectors", ".gz", ".zst")
MODEL_SUFFIXES = (".safetensors", ".json", ".hdf5", ".h5", ".pt", ".pth", ".onnx", ".ckpt", ".msgpack", ".gguf")


@dataclass(frozen=True)
class StaticName:
    """`kind` and `target`: vectors and a file, random and the dimensions, subwords and a model.

    `bag`: every word gets the mean over its sentence. `missing`: what becomes of words without a vector; `seed`:
    of the vectors that are drawn. `plain`: a path alone, which might have been meant for a model's folder.
    """

    kind: Kind
    target: str
    bag: bool = False
    missing: Missing = "random"
    seed: int = 0
    plain: bool = False


def parse_static_name(model: str | Path) -> StaticName | None:
    """Read the name of an encoder without context; None where it is another model's.

    Raises InvalidValueError for options that are not known, ModelError for a bag of a model that has context.
    """
    name = str(model)
    bag = name.startswith(BAG)
    rest = name.removeprefix(BAG)
    kind, colon, target = rest.partition(":")
    if colon and kind in OPTIONS:
        return _with_options(kind, target, name=name, bag=bag)
    path, _, _ = _split(rest, "vectors")
    file = Path(path)
    if file.is_file() and file.suffix not in MODEL_SUFFIXES:
        return _with_options("vectors", rest, name=name, bag=bag, plain=True)
    if not file.exists() and file.suffix in VECTOR_SUFFIXES:
        raise ModelError(f"there is no file of word vectors {path!r}: give a file, or the folder or name of a model")
    if bag:
        raise ModelError(
            f"{rest!r} cannot be made a bag of: write bag:subwords:MODEL, bag:vectors:FILE or bag:random:DIMENSIONS"
        )
    return None


def _with_options(kind: Kind, rest: str, *, name: str, bag: bool, plain: bool = False) -> StaticName:
    target, options, unknown = _split(rest, kind)
    if unknown or (kind == "random" and not re.fullmatch("[0-9]{1,9}", target)) or not target:
        raise InvalidValueError(f"model {name!r} cannot be read: write {_usage(kind)}")
    seed, missing = options.get("seed", "0"), options.get("missing", "random")
    if not re.fullmatch("[0-9]{1,18}", seed):
        raise InvalidValueError(f"model {name!r}: seed {seed!r} is not allowed: give a whole number, 0 or more")
    if missing not in get_args(Missing):
        raise InvalidValueError(f"model {name!r}: missing {missing!r} is not allowed: choose random or drop")
    return StaticName(kind, target, bag=bag, missing=cast(Missing, missing), seed=int(seed), plain=plain)


def _split(rest: str, kind: Kind) -> tuple[str, dict[str, str], bool]:
    """Split what follows the last "?" off, unless the whole is a file; also says whether that makes no sense."""
    target, mark, given = rest.rpartition("?")
    if not mark or (kind != "random" and Path(rest).exists()):
        return rest, {}, False
    pairs = [part.partition("=")[::2] for part in given.split("&")]
    options = dict(pairs)
    return target, options, len(options) < len(pairs) or not set(options) <= set(OPTIONS[kind])


def _usage(kind: Kind) -> str:
    return {
        "vectors": "vectors:FILE, with ?missing=random, ?missing=drop or ?seed=N after it (several joined by &)",
        "random": "random:DIMENSIONS, such as random:300 or random:300?seed=1",
        "subwords": "subwords:MODEL, the folder or name of a model",
    }[kind]
