"""The command that shows stores in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import embstore_cli.options as opt
from embstore.errors import InvalidValueError, MissingPackageError

PASSWORD = "EMBSTORE_PASSWORD"
MIN_PASSWORD = 8
HOST = "127.0.0.1"


def explore(
    stores: opt.StorePaths,
    *,
    host: Annotated[str, opt.option("ADDRESS", "Listen on this address; 0.0.0.0: on all of this machine.")] = HOST,
    port: Annotated[int, opt.option("N", "The port; 0 for a free one.", min=0, max=65535)] = 0,
    model: Annotated[str | None, opt.option("MODEL", "Where the stores' model is now, for new sentences.")] = None,
    probes: Annotated[
        str | None,
        opt.option("DIR", "A folder of saved probes and tables of scores, by default `probes` next to the store."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    password: Annotated[
        bool, typer.Option("--password", help=f"Ask browsers for a password, that of {PASSWORD} or the one typed here.")
    ] = False,
    static: Annotated[
        Path | None, opt.option("OUT", "Write a folder instead, which any web host shows without embstore.")
    ] = None,
    store_url: Annotated[
        str | None,
        opt.option(
            "URL", "With --static: where the page will find the store; by default where it is now, seen from OUT."
        ),
    ] = None,
    maps: Annotated[
        bool | None,
        typer.Option(
            "--maps/--no-maps",
            help="With --static: write what draws maps of frequent words; by default if it is less than 1 GiB.",
        ),
    ] = None,
) -> None:
    """Look at stores in the browser.

    Runs until Ctrl-C. Only those who have the URL that is printed can read the stores, and nobody can change them.
    """
    opt.exclude("static", but=("store_url", "maps"))
    opt.require("static", "store_url", "maps")
    if static is not None:
        _write_static(stores, static, store_url, maps)
        return
    try:
        from embstore.explorer import serve
    except ImportError as error:
        raise MissingPackageError('this needs starlette and uvicorn: pip install "embstore[explore]"') from error
    typed = _password() if password else None
    serve(stores, host=host, port=port, browser=browser, password=typed, model=model, probes=probes)


def _write_static(stores: list[str], out: Path, store_url: str | None, maps: bool | None) -> None:
    from embstore.explorer import write_static

    path = write_static(stores, out, store_url=store_url, maps=maps)
    nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    of_maps = sum(file.stat().st_size for file in path.glob("maps/*/*"))
    parts = f"{of_maps / 2**20:,.1f} MiB of them maps of words" if of_maps else "without maps of words: see --maps"
    print(f"{path}: {nbytes / 2**20:,.1f} MiB, {parts}; copy it to a web host, and the store to its place")


def _password() -> str:
    given = os.environ.get(PASSWORD)
    if given is None:
        given = typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    if len(given) < MIN_PASSWORD:
        raise InvalidValueError(f"the password has {len(given)} characters: give {MIN_PASSWORD} or more")
    return given
