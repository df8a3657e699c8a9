"""Options that several commands share, and how what is typed becomes values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.config import Config as Config


def option(metavar: str, text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option: the name of its value, its help, and its flags (by default that of the argument).

    `panel`: the heading on the help page under which it is listed.
    """
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def argument(metavar: str, text: str) -> Any:
    """Return a positional argument with its name and its help."""
    return typer.Argument(metavar=metavar, help=text)


STORE = "NAME.zarr, NAME.h5, s3://BUCKET/NAME.zarr, gs://, az://, https://; NAME.json or a glob of several stores."

StorePath = Annotated[str, argument("STORE", STORE)]
StorePaths = Annotated[list[str], argument("STORE", "One or more stores.")]
Word = Annotated[str, argument("WORD", "The word or phrase, as written in the corpus.")]
Model = Annotated[str, option("MODEL", "A model of Hugging Face: its name, or its folder.", "--model", "-m")]
Layers = Annotated[str, option("LIST", "all, last, or numbers such as -1,0,3,6-12.", "--layers", "-l")]
Layer = Annotated[str, option("LAYER", "The layer: a number, or last.", "--layers", "-l")]
K = Annotated[int, option("N", "Number of nearest neighbors.", "--k", "-k", min=1)]
Metric = Annotated[
    Literal["cosine", "ip", "l2"], option("NAME", "cosine similarity, ip (inner product) or l2 (Euclidean distance).")
]
Centered = Annotated[bool, typer.Option("--centered", help="Subtract the layer's mean first.")]
MinContexts = Annotated[int, option("N", "Only words that occur in N different sentences or more.", min=1)]
Where = Annotated[str | None, option("SQL", "Only occurrences for which this is true, such as \"upos = 'VERB'\".")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print everything, not a summary.")]
Out = Annotated[Path | None, option("FILE", "Also write the table to FILE.{csv,parquet,json}.", "--out")]
Plot = Annotated[Path | None, option("FILE", "Draw a figure to FILE.{png,svg,pdf}.", "--plot")]
ConfigFile = Annotated[
    Path | None,
    option("FILE.toml", "Settings of this command; --write-config prints all of them with their defaults.", "--config"),
]


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


def open_stores(paths: list[str]) -> dict[str, es.Store]:
    """Open stores by the names of their file and site; with a number where two have the same."""
    es.store.require_distinct(paths)
    named: dict[str, es.Store] = {}
    for path in paths:
        store = es.open(path)
        site = store.source.layout.site
        name = store.path.stem + ("" if site == "residual" else f"#{site}")
        named[f"{name} ({len(named) + 1})" if name in named else name] = store
    return named
