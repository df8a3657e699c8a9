"""The command line: one typer application, each command a call of one public function."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import typer

from embstore import __version__
from embstore.errors import EmbstoreError, UnfinishedStoreWarning
from embstore_cli import bench, demo, extract, store

app = typer.Typer(
    name="embstore",
    help="Extract the hidden states of a language model once; ask anything of them after.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"embstore {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


demo.add_to(app)
extract.add_to(app)
store.add_to(app)
bench.add_to(app)


def run() -> None:
    """Run the application: errors as one line on standard error, exit status 2 for bad input, 1 for a failure."""
    debug = os.environ.get("EMBSTORE_DEBUG") == "1"
    warnings.showwarning = _show_warning
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except EmbstoreError as error:
        _fail(str(error), error.exit_status, debug)
    except KeyboardInterrupt:
        _fail("interrupted; the same command again goes on where this one ended", 130, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _fail("out of memory: choose a smaller batch, fewer layers or a smaller dtype", 1, debug)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}", 1, debug)
    except Exception as error:
        if hasattr(error, "format_message"):
            _fail_usage(error)
        _fail(f"{type(error).__name__}: {error} (EMBSTORE_DEBUG=1 shows where)", 1, debug)


def _fail_usage(error: Any) -> None:
    """Say in one line what the parser of the command line found wrong."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        sys.exit(2)
    command = "embstore" if context is None else context.command_path
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    print(f"embstore: {' '.join(message.split())}; see {command} --help", file=sys.stderr)
    sys.exit(2)


def _fail(message: str, status: int, debug: bool) -> None:
    if debug:
        raise
    print("embstore: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def _show_warning(message: Warning | str, category: type[Warning], *args: object) -> None:
    if issubclass(category, UnfinishedStoreWarning) or os.environ.get("EMBSTORE_DEBUG") == "1":
        print(f"embstore: {message}", file=sys.stderr)
