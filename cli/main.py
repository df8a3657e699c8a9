"""The command line: one typer application, each command a call of one public function."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from embstore import __version__
from embstore.errors import EmbstoreError, EmbstoreWarning
from embstore_cli import (
    bench,
    demo,
    evaluate,
    extract,
    finetune,
    geometry,
    index,
    neighbors,
    probe,
    recipe,
    senses,
    static,
    store,
    vectors,
)


class Interrupted(Exception):
    """Ctrl-C or a signal to end, past the reach of typer, which would turn it into a bare exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Terminated(KeyboardInterrupt):
    """A signal to end, so that temporary files and locks are removed as after Ctrl-C."""


class Application(TyperGroup):
    """The commands, in the order in which they are mostly used."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            status = 128 + (signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT)
            raise Interrupted(str(error) or "interrupted", status) from None


app = typer.Typer(
    name="embstore",
    cls=Application,
    help="Extract the hidden states of a language model once; ask anything of them after.",
    epilog="embstore COMMAND --help says more of each.",
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
geometry.add_to(app)
neighbors.add_to(app)
static.add_to(app)
vectors.add_to(app)
senses.add_to(app)
probe.add_to(app)
recipe.add_to(app)
index.add_to(app)
evaluate.add_to(app)
finetune.add_to(app)
bench.add_to(app)


def run() -> None:
    """Run the application: errors as one line on standard error, exit status 2 for bad input, 1 for a failure."""
    debug = os.environ.get("EMBSTORE_DEBUG") == "1"
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(prog_name="embstore", standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(status)
    except EmbstoreError as error:
        _fail(str(error), error.exit_status, debug)
    except (Interrupted, KeyboardInterrupt) as error:
        _fail(str(error) or "interrupted", getattr(error, "status", 130), debug)
    except BrokenPipeError:
        _end_quietly()
    except MemoryError:
        _fail("out of memory: choose a smaller batch, fewer layers or a smaller dtype", 1, debug)
    except OSError as error:
        _fail(f"{error.filename or 'the output'}: {error.strerror or error}", 1, debug)
    except Exception as error:
        if hasattr(error, "format_message"):
            _fail_usage(error)
        _fail(f"{type(error).__name__}: {error} (EMBSTORE_DEBUG=1 shows where)", 1, debug)


def _terminate(number: int, frame: object) -> NoReturn:
    raise _Terminated("ended by a signal")


def _end_quietly() -> NoReturn:
    """End without a word where nobody reads the output; what is left in the buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


def _fail_usage(error: Any) -> NoReturn:
    """Say in one line what the parser of the command line found wrong."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        sys.exit(2)
    command = "embstore" if context is None else context.command_path
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    refused = getattr(error.__cause__, "errors", None)
    if refused is not None:
        message = message.replace("Invalid value for", f"Invalid value {refused()[0]['input']!r} for")
    print(f"embstore: {' '.join(message.split())}; see {command} --help", file=sys.stderr)
    sys.exit(2)


def _fail(message: str, status: int, debug: bool) -> NoReturn:
    if debug:
        raise
    print("embstore: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Say in one line what embstore warns of; what other packages warn of is theirs."""
    if issubclass(category, EmbstoreWarning) or os.environ.get("EMBSTORE_DEBUG") == "1":
        print(f"embstore: {message}", file=sys.stderr)
