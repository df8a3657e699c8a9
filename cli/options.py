"""Options that several commands share, and how what is typed becomes values."""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

import embstore as es
from embstore.errors import InvalidValueError

SETTINGS: set[str] = set()  # the keys that --set takes in any command
GIVEN: dict[str, str] = {}  # the options and settings that the command line gives, by their Python names


def option(metavar: str, text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option: the name of its value, its help, and its flags (by default that of the argument).

    `panel`: the heading on the help page under which it is listed.
    """
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def argument(metavar: str, text: str) -> Any:
    """Return a positional argument with its name and its help."""
    return typer.Argument(metavar=metavar, help=text)


STORE = (
    "NAME.zarr, NAME.h5, s3://BUCKET/NAME.zarr, gs://, az://, https://, hf://; NAME.json or a glob of several stores."
)

StorePath = Annotated[str, argument("STORE", STORE)]
StorePaths = Annotated[list[str], argument("STORE", "One or more stores.")]
NewStore = Annotated[str, argument("STORE", "The store to write: NAME.zarr, NAME.h5 or s3://BUCKET/NAME.zarr.")]
Word = Annotated[str, argument("WORD", "The word or phrase, as written in the corpus.")]
Model = Annotated[str, option("MODEL", "A model of Hugging Face: its name, or its folder.", "--model", "-m")]
Device = Annotated[str, option("NAME", "auto, cpu, cuda or cuda:N.")]
Layer = Annotated[str, option("N", "The layer: a number, or -1 or last for the last one stored.", "--layer", "-l")]
Layers = Annotated[str, option("LIST", "all, last, or numbers such as 0,3,6-12; -1 is the last layer.")]
K = Annotated[int, option("N", "Number of nearest neighbors.", "--k", "-k", min=1)]
Metric = Annotated[
    Literal["cosine", "ip", "l2"], option("NAME", "cosine similarity, ip (inner product) or l2 (Euclidean distance).")
]
Centered = Annotated[bool, typer.Option("--centered", help="Subtract the layer's mean first.")]
Components = Annotated[int, option("N", "Also remove the first N principal components of the layer.", min=0)]
MinContexts = Annotated[int, option("N", "Only words that occur in N different sentences or more.", min=1)]
Seeds = Annotated[str, option("LIST", "Seeds of the initial weights, such as 0 or 1,2,3.")]
Sentences = Annotated[int, option("N", "Use N sentences of each split, drawn at random; 0: all.", min=0)]
Control = Annotated[
    bool, typer.Option("--control", help="Also train on the control task: random labels, the same for the same word.")
]
Save = Annotated[Path | None, option("PATH", "Save the probe in this file; several: one file each in this folder.")]
Checkpoints = Annotated[Path | None, option("DIR", "Save a checkpoint after every epoch there, and resume from it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[Path | None, option("FILE", "Also write the table to FILE.{csv,parquet,json}.", "--out")]
Plot = Annotated[Path | None, option("FILE", "Draw a figure to FILE.{png,svg,pdf}.", "--plot")]
Title = Annotated[str | None, option("TEXT", "With --plot: the title of the figure.", "--title")]
Size = Annotated[str | None, option("WxH", "With --plot: width and height in inches, such as 6x4.", "--size")]
Style = Annotated[
    Literal["paper", "talk"] | None, option("NAME", "With --plot: paper (one column) or talk (a slide).", "--style")
]
Config = Annotated[Path | None, option("FILE.toml", "Read the settings that --set takes from a file.", "--config")]


TRAINING = {
    "epochs": int,
    "batch_size": int,
    "learning_rate": float,
    "patience": int,
    "seed": int,
    "memory": str,
}


@dataclass(frozen=True)
class Probing:
    """The options that all commands which train probes have."""

    layers: Layers = "all"
    seeds: Seeds = "0"
    device: Device = "auto"
    config: Config = None

    def arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a probe: these options and `settings`, with those of `Training` together in one."""
        names = ("epochs", "batch_size", "learning_rate", "patience")
        training = es.Training(**{name: value for name, value in settings.items() if name in names})
        others = {name: value for name, value in settings.items() if name not in names}
        layers, seeds = layers_of(self.layers), seeds_of(self.seeds)
        return {"layers": layers, "seeds": seeds, "device": self.device, "training": training, **others}


def set_option(keys: Mapping[str, Any]) -> Any:
    """Return the option `--set KEY=VALUE` of a command, repeatable; `keys` maps each key to its type."""
    SETTINGS.update(keys)
    return option("KEY=VALUE", f"Other settings, repeatable: {', '.join(keys)}.", "--set")


def read_settings(given: list[str] | None, keys: Mapping[str, Any], config: Path | None = None) -> dict[str, Any]:
    """Return the settings of a TOML file and of `--set`, which comes first, each checked against its type.

    Raises InvalidValueError, which lists the keys that are allowed.
    """
    settings: dict[str, Any] = {}
    for key, value in (_read_config(config) if config is not None else {}).items():
        settings[key] = _checked(key, value, keys, f"--config {config}: ")
        GIVEN[key] = f"--config {config}: {key}"
    for pair in given or []:
        key, sign, text = pair.partition("=")
        if not sign or not text:
            raise InvalidValueError(f"--set {pair} is not KEY=VALUE: the keys are {', '.join(keys)}")
        key = key.strip().replace("-", "_")
        settings[key] = _checked(key, text if keys.get(key) is str else _parsed(text), keys, "--set ")
        GIVEN[key] = f"--set {pair}"
    return settings


def refuse(why: str, *names: str) -> None:
    """Raise InvalidValueError for the first of these options and settings that the command line gives, if any.

    `why`: where it has no effect, and what to do. Settings are known once they are read.
    """
    for name in names:
        if name in GIVEN:
            raise InvalidValueError(f"{GIVEN[name]} has no effect {why}")


def exclude(name: str, *others: str, but: Collection[str] = ()) -> None:
    """Refuse what has no effect where this option is given: `others`, or all options but these."""
    if name in GIVEN:
        others = others or tuple(each for each in GIVEN if each not in (name, *but))
        refuse(f"with {GIVEN[name]}: leave one of them out", *others)


def require(needed: str, *names: str) -> None:
    """Refuse what has no effect unless this option is given."""
    if needed not in GIVEN:
        refuse(f"without --{needed.replace('_', '-')}: give that too", *names)


def _read_config(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidValueError(f"--config {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise InvalidValueError(f"--config {path} is not TOML: {error}") from None


def _parsed(text: str) -> Any:
    """Return a value as TOML reads it; None for none and full, a list for values joined by commas, else the text."""
    if text.strip().lower() in ("none", "full"):
        return None
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # TOMLDecodeError, or a number of more digits than Python reads
        return [_parsed(part) for part in text.split(",")] if "," in text else text


def _checked(key: str, value: Any, keys: Mapping[str, Any], where: str) -> Any:
    if key not in keys:
        raise InvalidValueError(f"{where}{key} is not a setting of this command: choose {', '.join(keys)}")
    try:
        return _converted(value, keys[key])
    except ValueError:
        raise InvalidValueError(f"{where}{key}={value} is not allowed: give {_described(keys[key])}") from None


def _converted(value: Any, kind: Any) -> Any:
    """Return a value as its type has it. Raises ValueError for a value of another type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        return _converted(value, next(part for part in parts if part is not type(None)))
    if origin is Literal and value in parts:
        return value
    if origin is tuple and value is not None:
        return tuple(_converted(each, parts[0]) for each in (value if isinstance(value, list) else [value]))
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind in (bool, str) and type(value) is kind:
        return value
    if kind is int and type(value) is int and 0 <= value < 2**63:
        return value
    raise ValueError


def _described(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if part is type(None) else _described(part) for part in parts)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin is tuple:
        return f"{_described(parts[0])}, or several joined by commas"
    names = {
        int: "a whole number of 0 or more within 64 bits",
        float: "a number",
        bool: "true or false",
        Path: "a path",
    }
    return names.get(kind, "text")


def size_of(text: str | None) -> tuple[float, float] | None:
    """Return the width and the height of `--size`, such as 6x4, in inches."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?x[0-9]{1,3}(\.[0-9]{1,3})?", text.strip()):
        raise InvalidValueError(f"--size {text!r} is not allowed: give width and height in inches, such as 6x4")
    width, height = map(float, text.split("x"))
    return width, height


def layer_of(text: str, stored: Sequence[int] = ()) -> int:
    """Return the number of a layer of `--layer`; -1 and last are the last of `stored`, if that is given."""
    if not re.fullmatch(r"last|-?[0-9]{1,9}", text.strip()):
        raise InvalidValueError(f"--layer {text!r} is not a layer: give a number, -1 or last")
    number = -1 if text.strip() == "last" else int(text)
    return stored[number] if number < 0 and -number <= len(stored) else number


def layers_of(text: str) -> str | None:
    """Return the layers of `--layers`, such as 0,3,6-12, last or -1, which every function takes; None for all."""
    if text.strip() == "all":
        return None
    for part in text.split(","):
        found = re.fullmatch(r"last|-?[0-9]{1,9}|([0-9]{1,9})-([0-9]{1,9})", part.strip())
        if found is None or (found[1] and int(found[1]) > int(found[2])):
            raise InvalidValueError(f"--layers {text!r} is not a list of layers: give all, last, or such as 0,3,6-12")
    return text


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds of `--seeds`, numbers joined by commas."""
    if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", text.replace(" ", "")):
        raise InvalidValueError(f"--seeds {text!r} is not allowed: give numbers, such as 0 or 1,2,3")
    return tuple(int(each) for each in text.split(","))


def read_words(path: Path, *, option: str) -> dict[str, Any]:
    """Return the words of a file, one a line, or as Wiki-PSE lists them with their classes: word -> classes.

    Raises InvalidValueError, naming the option, for a file that does not exist.
    """
    if not path.is_file():
        raise InvalidValueError(f"{option} {path}: there is no such file; give a list of words, one a line")
    return dict(es.corpus.read_word_classes(path, optional=True))


def encoder_of(model: str, device: str = "auto", compute_dtype: str = "auto") -> Any:
    """Return the encoder that a shorthand such as random:300 names; the name of any other model as it is."""
    if not es.models.is_shorthand(model):
        return model
    return es.models.encoder_from_shorthand(model, device=device, compute_dtype=compute_dtype)


def executor_of(cluster: str | None, workers: int | None, devices: str | None = None) -> Any:
    """Return the executor of `--cluster`, `--workers` and `--devices`; None for this process alone."""
    if workers is not None and workers < 1:
        raise InvalidValueError(f"--workers {workers} is not allowed: give 1 or more")
    if cluster is not None and devices is not None:
        raise InvalidValueError("--devices and --cluster exclude each other: give one of them")
    if cluster is None and workers is None and devices is None:
        return None
    from embstore.executors import Processes, RayExecutor

    if cluster is None:
        return Processes(workers, devices=None if devices is None else devices.split(","))
    kind, colon, address = cluster.partition(":")
    if kind != "ray" or (colon and not address):
        raise InvalidValueError(f"--cluster {cluster!r} is not known: give ray, or ray:HOST:PORT of its head")
    return RayExecutor(address or None, n_workers=workers)
