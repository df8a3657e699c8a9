"""The command that trains word vectors on a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from embstore.errors import InvalidValueError
from embstore_cli.extract import Columns, Corpus, Encoding, Format, Normalize, Split
from embstore_cli.help import Command
from embstore_cli.output import AsJson, print_json
from embstore_cli.progress import progress_bar

Form = Literal["auto", "text", "glove", "binary", "npy"]
TRAINING = "Training"


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore train-vectors corpus.pse skipgram.txt --size 300 --window 5"
    app.command("train-vectors", cls=Command, epilog=example)(train_vectors)


def train_vectors(
    corpus: Corpus,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: .txt, .vec, .bin or .npy.")],
    size: Annotated[int, typer.Option(metavar="N", rich_help_panel=TRAINING, help="Numbers of a vector.")] = 300,
    window: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=TRAINING, help="Words seen on either side, at most.")
    ] = 5,
    min_count: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=TRAINING, help="Only words that occur N times or more.")
    ] = 5,
    negative: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=TRAINING, help="Words drawn against each pair.")
    ] = 5,
    epochs: Annotated[int, typer.Option(metavar="N", rich_help_panel=TRAINING, help="Passes over the corpus.")] = 5,
    sample: Annotated[
        float,
        typer.Option(
            metavar="SHARE", rich_help_panel=TRAINING, help="Thin out words above this share of the text; 0 none."
        ),
    ] = 1e-3,
    seed: Annotated[int, typer.Option(metavar="N", rich_help_panel=TRAINING, help="Seed of all that is drawn.")] = 0,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=TRAINING, help="Threads; only one gives the same vectors for the same seed."
        ),
    ] = 1,
    phrases: Annotated[
        bool,
        typer.Option(
            "--phrases/--no-phrases",
            rich_help_panel=TRAINING,
            help="Make a target of several words one word, joined by _.",
        ),
    ] = True,
    file_format: Annotated[
        Form,
        typer.Option(
            "--out-format",
            metavar="NAME",
            help="text or binary (word2vec), glove or npy; by default as OUT ends: .bin, .npy, else text.",
        ),
    ] = "auto",
    format: Format = None,
    split: Split = None,
    normalize: Normalize = None,
    columns: Columns = None,
    encoding: Encoding = None,
    as_json: AsJson = False,
) -> None:
    """Train skip-gram word vectors on a corpus.

    With negative sampling, by gensim. A store of them: embstore extract CORPUS STORE --model OUT.
    """
    _require_place(out, file_format)
    from embstore.corpus import open_corpus
    from embstore.vectors import training, write_word_vectors

    given = {"format": format, "split": split, "normalize": normalize, "columns": columns, "encoding": encoding}
    opened = open_corpus(corpus, **{name: value for name, value in given.items() if value is not None})
    with progress_bar("train", total=None, unit="sentences") as advance:
        read = 0

        def count(sentences: int) -> None:
            nonlocal read
            read += sentences
            advance(read)

        vectors = training.train_vectors(
            opened,
            size=size,
            window=window,
            min_count=min_count,
            negative=negative,
            epochs=epochs,
            sample=sample,
            seed=seed,
            workers=workers,
            phrases=phrases,
            progress=count,
        )
    write_word_vectors(vectors, out, format=file_format)
    if as_json:
        print_json({"corpus": opened.name, "out": str(out), "words": len(vectors), "dimensions": vectors.dimensions})
    else:
        words = "1 word" if len(vectors) == 1 else f"{len(vectors):,} words"
        print(f"{out} holds the skip-gram vectors of {words}, {vectors.dimensions} numbers each")


def _require_place(out: Path, form: Form) -> None:
    """Refuse a path that cannot be written before anything is trained for it."""
    if out.is_dir():
        raise InvalidValueError(f"{out} is a folder: give the name of a file")
    if not out.absolute().parent.is_dir():
        raise InvalidValueError(f"cannot write {out}: there is no folder {out.parent}")
    if out.suffix in (".gz", ".zst", ".zarr", ".h5"):
        raise InvalidValueError(f"{out}: word vectors are written as .txt, .vec, .bin or .npy: choose another name")
    if form == "npy" and out.suffix != ".npy":
        raise InvalidValueError(f"{out}: the format npy needs a name that ends in .npy")
