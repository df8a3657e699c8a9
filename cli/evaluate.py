"""The command that holds word vectors against word benchmarks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_out, width, write_table
from embstore_cli.progress import progress_bar

if TYPE_CHECKING:
    import polars as pl

    from embstore.vectors import WordVectors

COMPRESSED = (".gz", ".zst")


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore evaluate bert1.txt glove.txt --benchmarks word-benchmarks --shared-vocabulary"
    app.command("evaluate", cls=Command, epilog=example)(evaluate)


def evaluate(
    vectors: Annotated[
        list[Path], typer.Argument(metavar="VECTORS", help="Word vectors: word2vec text or binary, GloVe, .npy.")
    ],
    benchmarks: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the benchmarks.")],
    oov: Annotated[
        Literal["skip", "mean"],
        typer.Option(help="Leave items with unknown words out, or let the mean vector stand in."),
    ] = "skip",
    shared_vocabulary: Annotated[
        bool, typer.Option("--shared-vocabulary", help="Keep only the words that all have in common.")
    ] = False,
    lowercase: Annotated[bool, typer.Option(help="Look words up in lower case too.")] = True,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Read the first N words of each file only.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The seed of the clusterings.")] = 0,
    paper: Annotated[bool, typer.Option("--paper", help="Print Table 1 of Ethayarajh 2019 beside.")] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score static word vectors on word benchmarks.

    Prints systems by benchmarks, with the share of the items whose words all have a vector: Spearman's rho for
    similarity and relations, the accuracy of 3CosAdd for analogies, cluster purity for categories. --out and
    --json hold every score, by section too.
    """
    require_out(out)
    from embstore import vectors as word_vectors

    names = _names(vectors)
    found = word_vectors.read_benchmarks(benchmarks)
    with progress_bar("read", total=len(vectors), unit="files") as advance:
        systems: dict[str, WordVectors] = {}
        for done, (name, path) in enumerate(zip(names, vectors, strict=True), 1):
            systems[name] = word_vectors.read_vectors(path, limit=limit)
            advance(done)
    with progress_bar("evaluate", total=None, unit="benchmarks") as advance:
        frame = word_vectors.evaluate(
            systems,
            found,
            oov=oov,
            lowercase=lowercase,
            shared_vocabulary=shared_vocabulary,
            seed=seed,
            progress=advance,
        )
    if out is not None:
        write_table(frame, out)
    if as_json:
        print_json(
            {
                "systems": [
                    {"name": name, "path": str(path), "words": len(table), "dimensions": table.dimensions}
                    for (name, table), path in zip(systems.items(), vectors, strict=True)
                ],
                "benchmarks": str(benchmarks),
                "oov": oov,
                "lowercase": lowercase,
                "shared_vocabulary": shared_vocabulary,
                "seed": seed,
                "scores": frame.to_dicts(),
            }
        )
        return
    _print(frame)
    if paper:
        rows, columns = _scores(word_vectors.paper_table1()), list(word_vectors.TABLE1_COLUMNS)
        _print_rows(rows, columns, title="Ethayarajh 2019, Table 1, as printed")


def _names(paths: list[Path]) -> list[str]:
    """The stem of each file, after its folder's name where two have the same."""
    stems = [Path(path.stem).stem if path.suffix in COMPRESSED else path.stem for path in paths]
    counts = Counter(stems)
    names = [
        stem if counts[stem] == 1 else f"{path.absolute().parent.name}/{path.name}"
        for stem, path in zip(stems, paths, strict=True)
    ]
    if len(set(names)) < len(names):
        name = Counter(names).most_common(1)[0][0]
        raise InvalidValueError(f"two files of vectors are called {name}: systems go by their files' names, rename one")
    return names


def _print(frame: pl.DataFrame) -> None:
    """Print the paper's benchmarks, then the others, each with the coverage: once where all systems have the same."""
    from embstore.vectors import TABLE1_COLUMNS, table1

    scores = _scores(table1(frame))
    coverage = [
        {name: value if name == "system" else f"{value:.0%}" for name, value in row.items()}
        for row in table1(frame, of="coverage").to_dicts()
    ]
    if len({tuple(row.values())[1:] for row in coverage}) == 1:
        rows = [*scores, {**coverage[0], "system": "coverage"}]
    else:
        covered = ({**row, "system": "  coverage"} for row in coverage)
        rows = [row for pair in zip(scores, covered, strict=True) for row in pair]
    columns = list(rows[0])[1:]
    papers = [name for name in columns if name in TABLE1_COLUMNS]
    others = [name for name in columns if name not in TABLE1_COLUMNS]
    for part in (papers, others):
        if part:
            _print_rows(rows, part)


def _scores(table: pl.DataFrame) -> list[dict[str, str]]:
    return [
        {name: value if name == "system" else _score(value) for name, value in row.items()} for row in table.to_dicts()
    ]


def _score(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _print_rows(rows: list[dict[str, str]], columns: list[str], title: str | None = None) -> None:
    """Print columns of a table, in parts where they do not stand side by side."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in ("system", *columns)}
    while columns:
        used, part = widths["system"], 0
        while part < len(columns) and (not part or used + 2 + widths[columns[part]] <= width()):
            used += 2 + widths[columns[part]]
            part += 1
        shown = [{name: row[name] for name in ("system", *columns[:part])} for row in rows]
        print_table(shown, title=title, right=columns[:part], wrap=False)
        print()
        columns, title = columns[part:], None
