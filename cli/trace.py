"""`embstore probe trace`: what probes of each layer hold of single sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.output import AsJson, Out, print_json, print_table, require_figure, require_out, write_table
from embstore_cli.progress import progress_bar
from embstore_cli.task_files import find_targets

if TYPE_CHECKING:
    from embstore.probes import EdgeProbe, SentenceTrace, Traces

EXAMPLE = "Example: embstore probe trace gum.zarr probes --targets edge-probing --sentence 12 --plot trace.png"
SHOWN = 20  # ambiguous sentences listed unless told otherwise
LONGEST = 60  # letters of a listed sentence


def trace(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store of the sentences.")],
    probes: Annotated[
        list[Path],
        typer.Argument(metavar="PROBES", help="Edge probes that were saved, or folders of such: one or more tasks."),
    ],
    targets: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH",
            help="Targets of the tasks: folders, a folder of such folders, files, or corpora (.conllu, .conll).",
        ),
    ],
    split: Annotated[str, typer.Option(metavar="NAME", help="The file of a folder: train, dev or test.")] = "dev",
    sentence: Annotated[
        str | None,
        typer.Option(metavar="TEXT|N", help="Trace this sentence: its text, words that only it has, or its number."),
    ] = None,
    ambiguous: Annotated[
        int | None, typer.Option(metavar="N", min=1, help=f"List N ambiguous sentences at most (default: {SHOWN}).")
    ] = None,
    limit: Annotated[
        float, typer.Option(metavar="P", help="An edge is ambiguous where the average over P(0) to P(L) is at most P.")
    ] = 0.7,
    rule: Annotated[
        Literal["right", "highest"],
        typer.Option(metavar="RULE", help="right: the average of the right label; highest: that of the likeliest."),
    ] = "right",
    every: Annotated[
        bool, typer.Option("--all", help="Show all edges of the sentence, not only ambiguous ones.")
    ] = False,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the probes; the first that they have.")] = None,
    sentences: Annotated[
        int, typer.Option(metavar="N", min=0, help="Sentences of each task at most, drawn by their texts; 0: all.")
    ] = 0,
    repair: Annotated[
        bool, typer.Option("--repair", help="Entities: an I-x that goes on with no span begins one.")
    ] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the sentence (or the first listed) to FILE.{png,svg,pdf}."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Follow what probes of layers 0 to l hold of a sentence, for l from 0 to L.

    Without --sentence: the ambiguous sentences of the split, those with more than one ambiguous edge. With it: the
    probabilities of the right and of the best wrong label of its edges (Tenney et al. 2019, section 4.1).
    """
    require_out(out)
    require_figure(plot, option="--plot")
    if sentence is not None and ambiguous is not None:
        raise InvalidValueError("--sentence and --ambiguous are both given: choose a sentence, or have them listed")
    from embstore.probes import ambiguous_sentences
    from embstore.probes import trace as trace_edges

    held = _loaded(probes, device)
    opened = es.open(store)
    asked = find_targets(targets, [each.fitted.labels.name for each in held], split=split, repair=repair)
    with progress_bar("trace", total=None, unit="targets") as advance:
        traces = trace_edges(
            opened,
            list(zip(held, asked, strict=True)),
            split=split,
            seed=seed,
            sentences=sentences or None,
            progress=advance,
        )
    for note in traces.notes:
        typer.echo(f"embstore: {note}", err=True)
    listed = ambiguous_sentences(traces, limit=limit, rule=rule)
    if sentence is None:
        frame = listed.head(ambiguous or SHOWN)
        first = listed["sentence"].to_list()[:1]
        title = f"{len(listed)} of {len(traces.sentences)} sentences have more than one edge of {limit:g} or less"
    else:
        first = [traces.find(int(sentence) if sentence.isdecimal() else sentence)]
        chosen = _chosen(traces, first[0], limit, rule, every=every)
        frame = chosen.frame
        title = f"sentence {chosen.number}: {' '.join(chosen.words)}"
    if out is not None:
        write_table(frame, out)
    if plot is not None:
        _draw(traces, first, limit, rule, plot, every=every)
    if as_json:
        print_json(frame.to_dicts())
    elif sentence is None:
        print_table([row | {"text": _short(row["text"])} for row in frame.to_dicts()], title=title)
    else:
        print_table(_rows(chosen), title=title)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3].rstrip()}..."


def _loaded(folders: list[Path], device: str) -> list[EdgeProbe]:
    from embstore.probes import EdgeProbe, load

    found = []
    for folder in folders:
        inside = sorted(path.parent for path in folder.glob("*/probe.json"))
        for path in [folder] if (folder / "probe.json").exists() or not inside else inside:
            probe = load(path)
            if not isinstance(probe, EdgeProbe):
                raise InvalidValueError(f"{path} has {probe.name} probes: give edge probes")
            probe.device = device
            found.append(probe)
    return found


def _chosen(
    traces: Traces, number: int, limit: float, rule: Literal["right", "highest"], *, every: bool
) -> SentenceTrace:
    """The trace of a sentence with what is to be shown of it."""
    whole = traces.trace(number)
    doubted = whole.ambiguous(limit, rule)
    if every or not doubted.annotations:
        return whole
    return doubted


def _draw(
    traces: Traces, first: list[int], limit: float, rule: Literal["right", "highest"], plot: Path, *, every: bool
) -> None:
    if not first:
        raise InvalidValueError(f"no sentence has more than one edge of {limit:g} or less to draw: give --sentence")
    es.plot.save(es.plot.trace_figure(_chosen(traces, first[0], limit, rule, every=every)), plot)


def _rows(trace: SentenceTrace) -> list[dict[str, Any]]:
    """Two rows an edge: the right label, and the best wrong one."""
    rows = []
    for each in trace.annotations:
        spans = [" ".join(trace.words[slice(*span)]) for span in (each.span1, each.span2) if span is not None]
        told = {"span": " -> ".join(spans), "task": each.task}
        for kind, label, values in (
            ("right", each.right, each.right_probability),
            ("wrong", each.wrong, each.wrong_probability),
        ):
            if label is not None:
                columns = {str(layer): f"{value:.2f}" for layer, value in zip(trace.layers, values, strict=True)}
                rows.append({**told, "": kind, "label": label, **columns, "mean": f"{values.mean():.2f}"})
                told = dict.fromkeys(told, "")
    return rows
