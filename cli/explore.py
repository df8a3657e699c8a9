"""The commands that show stores in a browser, and on a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError, MissingPackageError
from embstore_cli.output import require_file

PASSWORD = "EMBSTORE_PASSWORD"
MIN_PASSWORD = 8


def explore(
    stores: opt.StorePaths,
    *,
    host: Annotated[str, opt.option("ADDRESS", "Listen on this address; 0.0.0.0: all of the machine's.")] = "127.0.0.1",
    port: Annotated[int, opt.option("N", "The port; 0 for a free one.", min=0, max=65535)] = 0,
    model: Annotated[str | None, opt.option("MODEL", "Where the stores' model is now.")] = None,
    probes: Annotated[
        str | None,
        opt.option("DIR", "A folder of saved probes and tables of scores, by default `probes` next to the store."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    password: Annotated[
        bool, typer.Option("--password", help=f"Ask browsers for a password, that of {PASSWORD} or the one typed here.")
    ] = False,
) -> None:
    """Look at stores in the browser.

    Runs until Ctrl-C. Only those who have the URL that is printed can read the stores, and nobody can change them.
    """
    try:
        from embstore_explorer import serve
    except ImportError as error:
        raise MissingPackageError('this needs starlette and uvicorn: pip install "embstore[explore]"') from error
    typed = None
    if password:
        typed = os.environ.get(PASSWORD)
        if typed is None:
            typed = typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
        if len(typed) < MIN_PASSWORD:
            raise InvalidValueError(f"the password has {len(typed)} characters: give {MIN_PASSWORD} or more")
    if probes is not None and not os.path.isdir(probes):
        raise InvalidValueError(f"no folder of probes at {probes}: give an existing one")
    serve(stores, host=host, port=port, browser=browser, password=typed, model=model, probes=probes)


def report(
    store: opt.StorePath,
    *,
    out: Annotated[Path, opt.option("FILE.html", "The page to write.", "--out", "-o")] = Path("report.html"),
    sections: Annotated[
        str, opt.option("LIST", "all, or some of contents, geometry, words, senses, similarity, probes.")
    ] = "all",
    seed: Annotated[int, opt.option("N", "Seed of samples, intervals, clusters and probes.", min=0)] = 0,
) -> None:
    """Describe a store and its vectors on one HTML page.

    What it holds, geometry by layer, the most and least contextual words, senses of ambiguous words with sentences,
    similarity of layers, and probes of its labels; each with its method, numbers, limits and the Python that
    computes the same. Stores of more than 250,000 rows are sampled.
    """
    require_file(out, "--out", (".html", ".htm"))
    chosen = None if sections.strip() == "all" else [each.strip() for each in sections.split(",")]
    from embstore_explorer import report as write

    made = write(es.open(store), sections=chosen, seed=seed)
    made.save(out)
    print(f"{made}\n\n{out}")
