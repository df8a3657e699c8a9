"""Commands over a store: info, verify, lookup, export, import."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_figure, require_out, width, write_table
from embstore_cli.progress import progress_bar

if TYPE_CHECKING:
    import polars as pl

    from embstore.store import Report

StorePath = Annotated[
    str,
    typer.Argument(metavar="STORE", help="A store: NAME.zarr, NAME.h5, s3://BUCKET/NAME.zarr, gs://, az://, https://."),
]
LOOKED_UP = 20


def add_to(app: typer.Typer) -> None:
    app.command("info", cls=Command)(info)
    app.command("verify", cls=Command)(verify)
    app.command("lookup", cls=Command, epilog="Example: embstore lookup ewt.zarr bank")(lookup)
    app.command("export", cls=Command, epilog="Example: embstore export ewt.zarr ewt.h5 --layers 0,12")(export)
    app.command("import", cls=Command)(import_)


def info(store: StorePath, as_json: AsJson = False) -> None:
    """Say what a store holds and what made it."""
    opened = es.open(store)
    described = opened.describe()
    if as_json:
        print_json(described)
        return
    described["nbytes"] = f"{described['nbytes'] / 2**20:,.1f} MiB of vectors"
    width = max(map(len, described))
    for name, value in described.items():
        print(f"{name:<{width}}  {_told(value) or 'none'}")


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def verify(store: StorePath, as_json: AsJson = False) -> None:
    """Check every byte of a store against its checksums.

    Names each fault and its partition, and ends with status 1 where there is one; `embstore extract --repair`
    mends them.
    """
    with progress_bar("verify", total=None, unit="B") as advance:
        report = es.verify(store, progress=advance)
    if as_json:
        print_json(
            {
                "path": str(report.path),
                "ok": report.ok,
                "n_partitions": report.n_partitions,
                "missing": list(report.missing),
                "checked_nbytes": report.checked_nbytes,
                "faults": [asdict(fault) for fault in report.faults],
            }
        )
    else:
        for fault in report.faults:
            print(fault)
        print(_summary(report))
    if not report.ok:
        raise typer.Exit(1)


def _summary(report: Report) -> str:
    checked = f"{report.checked_nbytes:,} bytes of {report.path} checked"
    missing = (
        f"; {len(report.missing)} of {report.n_partitions} partitions are not written yet" if report.missing else ""
    )
    if report.ok:
        return f"{checked}: all as written{missing}"
    faults = "1 fault" if len(report.faults) == 1 else f"{len(report.faults)} faults"
    return f"{checked}: {faults}{missing}; the `embstore extract` command that made it, with --repair, mends it"


def lookup(
    store: StorePath,
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word or phrase, as written in the corpus.")],
    most: Annotated[
        int | None,
        typer.Option("--most", "-n", metavar="N", help=f"Print N occurrences at most ({LOOKED_UP}; with --json, all)."),
    ] = None,
    heatmap: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw how similar the words of the first occurrence's sentence are to each other at each layer, to a "
            ".png, .svg or .pdf.",
        ),
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --heatmap: take the sentence of the occurrence in row N of the store."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Show a word's occurrences in their sentences."""
    require_out(out)
    require_figure(heatmap, option="--heatmap")
    if most is not None and most < 1:
        raise InvalidValueError(f"--most {most} is not allowed: give 1 or more")
    if row is not None and heatmap is None:
        raise InvalidValueError(f"--row {row} says which sentence is drawn: give --heatmap FILE too")
    opened = es.open(store)
    contexts = opened.select(words=word).contexts()
    if out is not None:
        write_table(contexts, out)
    if heatmap is not None:
        _draw(opened, contexts, word, row, heatmap)
    if as_json:
        print_json(contexts.head(len(contexts) if most is None else most).to_dicts())
        return
    from embstore_cli.concordance import concordance

    shown = contexts.head(most or LOOKED_UP)
    occurrences = "1 occurrence" if len(contexts) == 1 else f"{len(contexts):,} occurrences"
    print_table(
        concordance(shown.to_dicts(), width=width()),
        title=f"{word}: {occurrences}",
        right=("row", "left context"),
        wrap=False,
    )
    if len(contexts) > len(shown):
        print(f"... {len(contexts) - len(shown):,} more: see --most")


def _draw(store: es.Store, contexts: pl.DataFrame, word: str, row: int | None, path: Path) -> None:
    """Write the heat map of the sentence of one of a word's occurrences."""
    from embstore.analysis.similarity.sentence import sentence_similarity

    rows = contexts["occurrence"].to_list()
    if row is not None and row not in rows:
        raise InvalidValueError(f"--row {row} is no occurrence of {word!r}: choose one of the rows that are printed")
    place = 0 if row is None else rows.index(row)
    similarity = sentence_similarity(store, contexts["sentence"].to_list()[place])
    text: str = contexts["text"].to_list()[place]
    es.plot.save(es.plot.heat_map(similarity, title=text if len(text) <= 80 else text[:79] + "…"), path)


def export(
    store: StorePath,
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The store to write: NAME.zarr, NAME.h5 or s3://BUCKET/NAME.zarr.")
    ],
    layers: Annotated[str | None, typer.Option(help="Only these layers: last, or numbers such as 0,6-12.")] = None,
    words: Annotated[
        Path | None, typer.Option(help="Only the words of this file (one a line).", metavar="FILE")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16, bfloat16 or int8; as stored by default.")] = None,
    check: Annotated[bool, typer.Option(help="Hold what is read against its checksums first.")] = True,
) -> None:
    """Copy a store or a part of it: Zarr or HDF5, disk or bucket.

    What is not converted is copied bit for bit. The same command goes on where an interrupted one ended.
    """
    from embstore.corpus import read_word_list

    chosen = None if words is None else read_word_list(words)
    with progress_bar("export", total=None, unit="rows") as advance:
        written = es.export(store, out, layers=layers, words=chosen, dtype=dtype, check=check, progress=advance)
    print(_written(written))


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="An HDF5 file of NeuroX or AllenNLP (a dataset a sentence).")
    ],
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The store to write: NAME.zarr, NAME.h5 or s3://BUCKET/NAME.zarr.")
    ],
    corpus: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The text it was made of, where FILE does not hold the sentences."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Only these of its layers, counted from 0, such as 0,6-12.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float16 (default), float32, bfloat16 or int8.")] = None,
) -> None:
    """Make a store of what NeuroX or AllenNLP extracted."""
    sentences = None if corpus is None else (sentence.words for sentence in es.open_corpus(corpus))
    with progress_bar("import", total=None, unit="rows") as advance:
        written = es.store.import_hdf5(source, store, corpus=sentences, layers=layers, dtype=dtype, progress=advance)
    print(_written(written))


def _written(store: es.Store) -> str:
    layers = "1 layer" if len(store.layers) == 1 else f"{len(store.layers)} layers"
    return f"{store.path} holds {store.n_rows:,} occurrences in {layers} ({store.dtype})"
