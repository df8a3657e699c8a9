"""The command that shows stores in a browser."""

from __future__ import annotations

import os
from typing import Annotated

import typer

import embstore_cli.options as opt
from embstore.errors import InvalidValueError, MissingPackageError

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
