"""The command that finds what lies nearest to a word, an occurrence or a word in a new sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_out, width, write_table

SHOWN_QUERIES = 3


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore neighbors ewt.zarr bank --layer 6 -k 5"
    app.command("neighbors", cls=Command, epilog=example)(neighbors)


def neighbors(
    source: Annotated[str, typer.Argument(metavar="STORE", help="A store, or a file of word vectors.")],
    word: Annotated[str | None, typer.Argument(metavar="[WORD]", help="The word, as written in the corpus.")] = None,
    layer: Annotated[
        int | None, typer.Option("--layer", "-l", metavar="N", help="The layer; the last if not given.")
    ] = None,
    count: Annotated[int, typer.Option("-k", metavar="N", help="How many neighbours of each query.")] = 10,
    row: Annotated[
        int | None, typer.Option(metavar="N", help="Ask about the occurrence in row N of the store.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Ask about a word in a new sentence, by [brackets] or WORD.")
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask about every word of a text file, one a line, or vector of a .npy file."),
    ] = None,
    queries: Annotated[
        int, typer.Option(metavar="N", help="Ask about the first N occurrences of a word; 0: all of them.")
    ] = SHOWN_QUERIES,
    mean: Annotated[bool, typer.Option("--mean", help="Ask about the mean of a word's occurrences.")] = False,
    metric: Annotated[
        Literal["cosine", "ip", "l2"], typer.Option(metavar="NAME", help="cosine, ip (inner product) or l2 (distance).")
    ] = "cosine",
    center: Annotated[bool, typer.Option("--center", help="Take the layer's mean away first.")] = False,
    components: Annotated[
        int, typer.Option(metavar="N", help="Take the layer's first N principal components away too.")
    ] = 0,
    label: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Find only occurrences with this label.")
    ] = None,
    other_words: Annotated[bool, typer.Option("--other-words", help="Leave the word's own occurrences out.")] = False,
    other_sentences: Annotated[
        bool, typer.Option("--other-sentences", help="Leave the words of the same sentence out.")
    ] = False,
    index: Annotated[
        str | None, typer.Option(metavar="NAME", help="Search this index of the store: see embstore index.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --text: where the store's model is now.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "cpu",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find the nearest neighbours of a word in context.

    Answers are exact, but for --index. In a file of word vectors the neighbours are words.
    """
    require_out(out)
    if queries < 0:
        raise InvalidValueError(f"--queries {queries} is not allowed: give 0 or more")
    space: dict[str, Any] = {"k": count, "metric": metric, "center": center, "components": components}
    if batch is not None and (word is not None or row is not None or text is not None):
        raise InvalidValueError(f"--batch {batch} says what is asked about: leave WORD, --row and --text out")
    words, vectors = _read_batch(batch) if batch is not None else (None if word is None else [word], None)
    if not _is_store(source):
        if row is not None or text is not None or mean or layer is not None or label or other_words or other_sentences:
            raise InvalidValueError(f"{source} holds word vectors: ask by WORD, -k, --metric, --center or --components")
        table = es.neighbors(es.vectors.read_word_vectors(source), words, vectors=vectors, **space)
        _show(table, out, as_json)
        return
    store = es.open(source)
    chosen, occurrence, more = None, None, ""
    if vectors is None:
        chosen, occurrence, more = _asked(store, words, row, text, mean, queries)
    elif mean:
        raise InvalidValueError("--mean is of words of the store: give a text file of words")
    table = es.neighbors(
        store,
        chosen,
        occurrence=occurrence,
        vectors=vectors,
        text=text,
        model=model,
        layer=layer,
        labels=_labels(label or []),
        pool="mean" if mean else "each",
        same_word=not other_words,
        same_sentence=not other_sentences,
        index=index,
        device=device,
        **space,
    )
    _show(table, out, as_json, store=store, more=more, text=text, numbered=vectors is not None)


def _read_batch(path: Path) -> tuple[list[str] | None, Any]:
    """The words of a text file, or the vectors of a .npy file."""
    import numpy as np

    if not path.is_file():
        raise InvalidValueError(f"--batch {path} is no file: give words, one a line, or an array as .npy")
    if path.suffix == ".npy":
        try:
            return None, np.load(path, allow_pickle=False)
        except (ValueError, OSError):
            raise InvalidValueError(f"--batch {path} holds no array of numbers: write it with numpy.save") from None
    try:
        words = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise InvalidValueError(f"--batch {path} is not UTF-8 text: give words, one a line") from None
    if not words:
        raise InvalidValueError(f"--batch {path} has no word: give words, one a line")
    return list(dict.fromkeys(words)), None


def _is_store(source: str) -> bool:
    from embstore.store.storage.location import place_of

    path = place_of(source)
    return not isinstance(path, Path) or path.suffix in (".zarr", ".h5", ".hdf5") or path.is_dir()


def _asked(
    store: es.Store, words: list[str] | None, row: int | None, text: str | None, mean: bool, queries: int
) -> tuple[str | list[str] | None, list[int] | None, str]:
    """The words or the occurrences to ask about, and what is said of those left out."""
    if words is None and row is None and text is None:
        raise InvalidValueError("nothing is asked about: give a WORD, --row, --text or --batch")
    if row is not None and (words is not None or text is not None):
        raise InvalidValueError(f"--row {row} says what is asked about: leave WORD and --text out")
    if row is not None:
        return None, [row], ""
    if text is not None:
        if mean:
            raise InvalidValueError("--mean is of a word of the store: leave --text or --mean out")
        return None if words is None else words[0], None, ""
    assert words is not None
    if mean:
        return words, None, ""
    found = [store.select(words=word).rows.tolist() for word in words]
    chosen = [number for rows in found for number in rows[: queries or len(rows)]]
    more = sum(map(len, found)) - len(chosen)
    named = words[0] if len(words) == 1 else "these words"
    return None, chosen, f"{more:,} more occurrences of {named}: see --queries" if more else ""


def _labels(given: list[str]) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    for pair in given:
        column, sign, value = pair.partition("=")
        if not (column and sign and value):
            raise InvalidValueError(f"--label {pair} is not COLUMN=VALUE, such as upos=NOUN")
        labels.setdefault(column, []).append(value)
    return labels


def _show(
    table: Any,
    out: Path | None,
    as_json: bool,
    *,
    store: es.Store | None = None,
    more: str = "",
    text: str | None = None,
    numbered: bool = False,
) -> None:
    if out is not None:
        write_table(table, out)
    if as_json:
        print_json(table.to_dicts())
        return
    for part in table.partition_by("query", maintain_order=True):
        rows = part.to_dicts()
        if store is None:
            shown = [{"word": row["word"], "score": _score(row)} for row in rows]
            print_table(shown, title=str(rows[0]["query"]), right=("score",))
        else:
            query = rows[0]["query"]
            asked = text or (f"vector {query}" if numbered else _of(store, query))
            _print_concordance(rows, title=f"layer {rows[0]['layer']}, {asked}")
        print()
    if more:
        print(f"... {more}")


def _of(store: es.Store, query: int | str) -> str:
    """What was asked about: a word, or the occurrence of a row."""
    if isinstance(query, str):
        return f"{query}, the mean of its occurrences"
    from embstore.analysis.neighbors.occurrences import marked

    return f"row {query:,}: {marked(store.select(rows=[query]).contexts())[0]}"


def _print_concordance(rows: list[dict[str, Any]], *, title: str) -> None:
    from embstore_cli.concordance import concordance

    scores = [_score(row) for row in rows]
    plain = [{name: row[name] for name in row if name not in _OWN} for row in rows]
    lines = concordance(plain, width=width() - 2 - max(map(len, scores)))
    shown = [{"score": score, **line} for score, line in zip(scores, lines, strict=True)]
    print_table(shown, title=title, right=("score", "row", "left context"), wrap=False)


_OWN = ("query", "rank", "score", "marked", "store", "layer")


def _score(row: dict[str, Any]) -> str:
    return f"{row['score']:.3f}"
