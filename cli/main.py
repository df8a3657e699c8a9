"""The command `embstore`: one application, each command a call of a public function."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Annotated, Any, NoReturn, TextIO

import typer

import embstore
from embstore.errors import EmbstoreError, EmbstoreWarning, InvalidValueError, missing_package, visible
from embstore_cli.commands import Commands, Entry, Group
from embstore_cli.options import option

OPENMP_WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}  # of GNU's OpenMP, in tries; of LLVM's, in ms
MAX_WORD = 200  # characters of a word in a message
START, STORES, MEASURES, PROBES, MODELS = "Start here", "Stores", "Analysis", "Probes and studies", "Models"
_signals: list[int] = []  # that have come: DuckDB and Polars turn the exception of one into an error of theirs


class Visible:
    """Standard output on which a corpus cannot steer the terminal: what is written passes `visible`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, raised like Ctrl-C so that temporary files and locks are removed."""

    status = 128 + signal.SIGTERM


class Application(Group):
    """All commands, in the order in which they are mostly used."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.commands: Any = Commands(COMMANDS)


def _group(name: str, text: str, heading: str, commands: Mapping[str, tuple[str, str]]) -> Group:
    """A group of commands by name: the function and the example of each."""
    group = Group(name=name, help=text, no_args_is_help=True, rich_markup_mode=None, rich_help_panel=heading)
    group.commands = Commands(Entry(each, function, "Commands", text) for each, (function, text) in commands.items())
    return group


_PROBE = {
    "classes": ("probes.classes", "probe classes semcor.zarr --train train.tsv --test test.tsv --plot layers.png"),
    "edges": ("edges.edges", "probe edges gum.zarr edge-probing/pos edge-probing/entities"),
    "mdl": ("edges.mdl", "probe mdl gum.zarr edge-probing/entities --control --plot bits.png"),
    "rows": ("probes.rows", "probe rows reviews.zarr --label sentiment --split part --plot layers.png"),
    "structure": (
        "probes.structure",
        "probe structure ewt.zarr --train train.conllu --dev dev.conllu --test test.conllu",
    ),
}
COMMANDS = (
    Entry("demo", "demo.demo", START, "demo --out demo-out"),
    Entry("extract", "extract.extract", START, "extract ewt.conllu ewt.zarr -m bert-base-uncased --layers 0,6,-1"),
    Entry("explore", "explore.explore", START, "explore ewt.zarr"),
    Entry("report", "explore.report", START, "report ewt.zarr -o report.html"),
    Entry("info", "store.info", STORES, "info ewt.zarr"),
    Entry("verify", "store.verify", STORES, "verify ewt.zarr"),
    Entry("lookup", "store.lookup", STORES, "lookup ewt.zarr bank"),
    Entry("export", "store.export", STORES, "export ewt.zarr ewt.h5 --layers 0,12"),
    Entry("thin", "store.thin", STORES, "thin ewt.zarr"),
    Entry("label", "store.label", STORES, "label ewt.zarr tags.parquet --on sentence,position"),
    Entry("geometry", "geometry.geometry", MEASURES, "geometry bert.zarr gpt2.zarr --plot geometry.png"),
    Entry("cka", "geometry.cka", MEASURES, "cka bert.zarr finetuned.zarr --plot cka.png"),
    Entry(
        "attention", "attention.attention", MEASURES, "attention dev.conllu -m bert-base-uncased --plot attention.png"
    ),
    Entry("neighbors", "neighbors.neighbors", MEASURES, "neighbors ewt.zarr bank --layers 6 -k 5"),
    Entry("sql", "sql.sql", MEASURES, 'sql ewt.zarr "select word, count from types order by count desc limit 5"'),
    Entry("senses", "neighbors.senses", MEASURES, "senses semcor.zarr bank --layers 6 --label class --plot bank.png"),
    Entry("index", "neighbors.index", MEASURES, "index ewt.zarr --layers 6 --kind ivf"),
    Entry("static", "store.static", MEASURES, "static ewt.zarr ewt-pc1.txt --layers 1 --min-contexts 5"),
    Entry("lens", "models.lens", MEASURES, "lens gpt2.zarr --layers 0,6,last --out lens.parquet"),
    Entry("generate", "models.generate", MODELS, "generate prompts.txt made.jsonl --model gpt2"),
    _group("probe", "Train probes on stored vectors.", PROBES, _PROBE),
    Entry("reproduce", "reproduce.reproduce", PROBES, "reproduce zhao2020 corpus.txt -m bert-base-uncased --out study"),
)

GLOBAL = {"device": "cpu", "threads": "4", "memory": "8GiB"}  # the options of `embstore` itself, with an example
OUT_OF_MEMORY = "out of memory: free some, or raise the limit of this process; fewer layers or words need less"
SIGNS_OF_LITTLE_MEMORY = r"failed to map segment|annot allocate memory|bad_alloc|out of memory"  # of other packages

app = typer.Typer(
    name="embstore",
    cls=Application,
    help="Extract hidden states of language models once, store them, and query them.",
    epilog="embstore COMMAND --help describes a command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _main(
    ctx: typer.Context,
    device: Annotated[str | None, option("NAME", "auto, cpu, cuda, cuda:N, mps or xpu.")] = None,
    threads: Annotated[int | None, option("N", "CPU threads (OMP_NUM_THREADS, or one a core).")] = None,
    memory: Annotated[str | None, option("SIZE", "What one computation may hold in memory (4GiB).")] = None,
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    typed = {"device": device, "threads": threads, "memory": memory}
    ctx.with_resource(embstore.config(**{name: value for name, value in typed.items() if value is not None}))


def run() -> None:
    """Run the application: errors as one line on standard error, exit status 2 for bad input, 1 for a failure."""
    # Idle threads of OpenMP spin for milliseconds by default, which slows processes that share cores down.
    if not {"OMP_WAIT_POLICY", *OPENMP_WAITING} & set(os.environ):
        os.environ.update(OPENMP_WAITING)  # before torch reads it
    debug = os.environ.get("EMBSTORE_DEBUG") == "1"
    warnings.showwarning = _show_warning
    _signals.clear()
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    # A standard stream that the caller has closed becomes the null device: a store's file would get its number.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        with redirect_stdout(Visible(sys.stdout)):
            status = _invoke()
            sys.stdout.flush()
        sys.exit(status)
    except EmbstoreError as error:
        _fail(str(error), error.exit_status, debug)
    except ModuleNotFoundError as error:
        _fail(str(missing_package(error)), 2, debug)
    except KeyboardInterrupt as error:
        _fail(str(error) or "interrupted", getattr(error, "status", 128 + signal.SIGINT), debug)
    except BrokenPipeError:  # nobody reads the output: the rest of the buffer is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if _signals:
            _fail("interrupted by a signal", 128 + _signals[-1], debug)
        if hasattr(error, "format_message"):
            _fail_usage(error)
        if isinstance(error, MemoryError) or re.search(SIGNS_OF_LITTLE_MEMORY, str(error)):
            _fail(OUT_OF_MEMORY, 1, debug)
        if isinstance(error, OSError):
            status = 2 if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR) else 1
            _fail(f"{error.filename or 'the output'}: {error.strerror or error}", status, debug)
        _fail(f"{type(error).__name__}: {error} (set EMBSTORE_DEBUG=1 for the traceback)", 1, debug)


def _invoke() -> int:
    """Run the command and return its exit status, without typer's own `main`, which swallows Ctrl-C."""
    if "--version" in sys.argv[1:2]:
        print(f"embstore {embstore.__version__}")
        return 0
    try:
        os.getcwd()  # oneMKL, which torch loads, would end the process
    except FileNotFoundError:
        raise InvalidValueError("the working directory was deleted: change to another one (cd)") from None
    command = typer.main.get_command(app)
    try:
        with command.make_context("embstore", sys.argv[1:]) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _stop(number: int, frame: object) -> NoReturn:
    _signals.append(number)
    raise _Terminated("terminated by a signal") if number == signal.SIGTERM else KeyboardInterrupt


def _fail_usage(error: Any) -> NoReturn:
    """Print in one line what is wrong with the arguments, and exit."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        sys.exit(2)
    command = "embstore" if context is None else context.command_path
    message = error.format_message().rstrip(".")
    unknown = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    config = getattr(getattr(context, "command", None), "config", None)
    if unknown in GLOBAL:
        message = f"--{unknown} goes before the command: embstore --{unknown} {GLOBAL[unknown]} {command[9:]} ..."
    elif config is not None and any(unknown in config.settings(choice) for choice in config.choices()):
        message = f"--{unknown.replace('_', '-')} is a setting: write {unknown} = VALUE (text in quotes) for --config"
    print(f"embstore: {_shortened(message)}; see {command} --help", file=sys.stderr)
    sys.exit(2)


def _fail(message: str, status: int, debug: bool) -> NoReturn:
    if debug:
        raise
    print("embstore: " + _shortened(message), file=sys.stderr)
    sys.exit(status)


def _shortened(message: str) -> str:
    """Return a message in one line, with long words cut: what was typed may be a whole file."""
    line = " ".join(visible(message).split())
    return re.sub(rf"\S{{{MAX_WORD},}}", lambda found: f"{found[0][: MAX_WORD // 2]}...", line)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning of embstore in one line; warnings of other packages are hidden."""
    if issubclass(category, EmbstoreWarning) or os.environ.get("EMBSTORE_DEBUG") == "1":
        print(visible(f"embstore: {message}"), file=sys.stderr)
