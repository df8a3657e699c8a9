"""Commands over a store: info, verify, lookup, export, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.output import AsJson, Out, print_json, print_table, require_out, write_table
from embstore_cli.progress import progress_bar

StorePath = Annotated[Path, typer.Argument(help="A store: NAME.zarr or NAME.h5.")]


def add_to(app: typer.Typer) -> None:
    app.command("info")(info)
    app.command("verify")(verify)
    app.command("lookup")(lookup)
    app.command("export")(export)
    app.command("import")(import_)


def info(store: StorePath, as_json: AsJson = False) -> None:
    """Say what a store holds and what made it."""
    opened = es.open(store)
    described = opened.describe()
    if as_json:
        print_json(described)
    else:
        width = max(map(len, described))
        for name, value in described.items():
            print(f"{name:<{width}}  {_told(value)}")


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def verify(store: StorePath, as_json: AsJson = False) -> None:
    """Check every byte of a store against its checksums; exit status 1 where one is wrong."""
    with progress_bar("verify", total=None, unit="B") as advance:
        report = es.verify(store, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        for fault in report.faults:
            print(fault)
        print(report.summary())
    if not report.ok:
        raise typer.Exit(1)


def lookup(
    store: StorePath,
    word: Annotated[str, typer.Argument(help="The word, as written in the corpus.")],
    most: Annotated[int, typer.Option("--most", "-n", help="How many occurrences to print.")] = 20,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Show a word's occurrences in their sentences."""
    require_out(out)
    if most < 1:
        raise InvalidValueError(f"--most {most} is not allowed: give 1 or more")
    contexts = es.open(store).select(words=word).contexts()
    if out is not None:
        write_table(contexts, out)
    if as_json:
        print_json(contexts.to_dicts())
        return
    rows = contexts.head(most).to_dicts()
    for row in rows:
        row["text"] = _marked(row["text"], row["position"], len(row["word"].split(" ")))
    print_table(rows, title=f"{word}: {len(contexts):,} occurrences")
    if len(contexts) > most:
        print(f"... {len(contexts) - most:,} more; --most says how many to print")


def _marked(text: str, position: int, words: int, *, around: int = 8) -> str:
    """The word between brackets, with a few words of its sentence on each side."""
    split = text.split(" ")
    left, right = split[:position], split[position + words :]
    before = ("... " if len(left) > around else "") + " ".join(left[-around:])
    after = " ".join(right[:around]) + (" ..." if len(right) > around else "")
    return f"{before} [{' '.join(split[position : position + words])}] {after}".strip()


def export(
    store: StorePath,
    out: Annotated[Path, typer.Argument(help="The store to write: NAME.zarr or NAME.h5.")],
    layers: Annotated[str | None, typer.Option(help="Only these layers, such as 0,6-12.")] = None,
    words: Annotated[
        Path | None, typer.Option(help="Only the words of this file (one a line).", metavar="FILE")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16, bfloat16 or int8; as stored by default.")] = None,
) -> None:
    """Copy a store, whole or in part, between Zarr and HDF5."""
    from embstore.corpus import read_word_list

    chosen = None if words is None else sorted(read_word_list(words))
    with progress_bar("export", total=None, unit="rows") as advance:
        written = es.export(store, out, layers=layers, words=chosen, dtype=dtype, progress=advance)
    print(f"{out} holds {written.rows:,} occurrences in {len(written.layers)} layers, all committed")


def import_(
    source: Annotated[Path, typer.Argument(help="An HDF5 file of NeuroX or AllenNLP (a dataset a sentence).")],
    store: Annotated[Path, typer.Argument(help="The store to write: NAME.zarr or NAME.h5.")],
    corpus: Annotated[str | None, typer.Option(help="The sentences, where the file does not hold them.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float16 (default), float32, bfloat16 or int8.")] = None,
) -> None:
    """Make a store of hidden states that another tool extracted."""
    with progress_bar("import", total=None, unit="sentences") as advance:
        written = es.import_hdf5(source, store, corpus=corpus, dtype=dtype, progress=advance)
    print(f"{store} holds {written.rows:,} occurrences in {len(written.layers)} layers, all committed")
