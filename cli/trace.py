"""The command that traces what edge probes of each layer predict for single sentences."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Literal

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Drawing, print_notes, print_table
from embstore_cli.task_files import find_targets

SHOWN = 20  # ambiguous sentences listed by default
MAX_TEXT = 60  # characters of a listed sentence
SETTINGS = {
    "limit": float,
    "rule": Literal["right", "highest"],
    "seed": int,
    "n_sentences": int,
    "repair": bool,
    "all": bool,
}

SavedProbes = Annotated[list[Path], opt.argument("PROBES", "Saved edge probes, or folders of them: one or more tasks.")]
Targets = Annotated[
    list[Path],
    opt.option("PATH", "Targets of the tasks: folders, a folder of such folders, files, or corpora (.conllu, .conll)."),
]
Sentence = Annotated[
    str | None, opt.option("TEXT|N", "Trace this sentence: its text, words that only it has, or its number.")
]


def trace(
    store: opt.StorePath,
    probes: SavedProbes,
    *,
    targets: Targets,
    split: Annotated[str, opt.option("NAME", "The file of a folder: train, dev or test.")] = "dev",
    sentence: Sentence = None,
    most: Annotated[
        int | None, opt.option("N", f"List N ambiguous sentences ({SHOWN}).", "--most", "-n", min=1)
    ] = None,
    device: opt.Device = "auto",
    settings: Annotated[dict[str, Any], opt.Config(lambda: SETTINGS)],
    output: Drawing,
) -> None:
    """Follow the predictions for a sentence by layer.

    Without --sentence: the ambiguous sentences of the split, those with more than one ambiguous edge. With it: the
    probabilities of the right and of the best wrong label of its edges (Tenney et al. 2019, section 4.1). An edge is
    ambiguous if the mean probability over P(0) to P(L) is at most --set limit=0.7: that of the right label, or with
    --set rule=highest of the likeliest one. --set all=true shows all edges of a sentence.
    """
    chosen = settings
    limits: dict[str, Any] = {"limit": chosen.get("limit", 0.7), "rule": chosen.get("rule", "right")}
    loaded = _loaded(probes, device)
    opened = es.open(store)
    names = [probe.fitted.labels.name for probe in loaded]
    edges = find_targets(targets, names, split=split, repair=chosen.get("repair", False))
    sample: dict[str, Any] = {"seed": chosen.get("seed"), "n_sentences": chosen.get("n_sentences") or None}
    traces = es.probes.trace(opened, list(zip(loaded, edges, strict=True)), split=split, **sample)
    print_notes(traces.notes)

    def shown(number: int) -> es.probes.SentenceTrace:
        """Return the trace of a sentence: of its ambiguous edges, or of all if there are none or all are wanted."""
        whole = traces.trace(number)
        ambiguous = whole.ambiguous(**limits)
        return whole if chosen.get("all", False) or not ambiguous.annotations else ambiguous

    if sentence is not None:
        one = shown(traces.find(int(sentence) if sentence.isdecimal() else sentence))
        output.draw(lambda: es.plot.trace_figure(one))
        if output.deliver(one.frame):
            print_table(_rows(one), title=f"sentence {one.number}: {' '.join(one.words)}")
        return
    listed = es.probes.ambiguous_sentences(traces, **limits)
    limit = f"{limits['limit']:g}"
    if output.plot is not None and listed.is_empty():
        raise InvalidValueError(
            f"no sentence to draw has two ambiguous edges, of probability {limit} or less: choose one by --sentence"
        )
    output.draw(lambda: es.plot.trace_figure(shown(listed["sentence"].to_list()[0])))
    if output.deliver(listed.head(most or SHOWN)):
        title = f"{len(listed):,} of {len(traces.sentences):,} sentences have more than one edge of {limit} or less"
        rows = listed.head(most or SHOWN).to_dicts()
        print_table([row | {"text": shorten(row["text"], MAX_TEXT, placeholder="...")} for row in rows], title=title)


def _loaded(paths: list[Path], device: str) -> list[es.EdgeProbe]:
    """Load the edge probes in files, or in all files of folders."""
    found = []
    for path in paths:
        for file in sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]:
            probe = es.probes.load(file)
            if not isinstance(probe, es.EdgeProbe):
                raise InvalidValueError(f"{file} has {probe.name} probes: give edge probes")
            probe.device = device
            found.append(probe)
    return found


def _rows(trace: es.probes.SentenceTrace) -> list[dict[str, Any]]:
    """Return two rows for each edge: the right label, and the best wrong one."""
    rows = []
    for each in trace.annotations:
        spans = [" ".join(trace.words[slice(*span)]) for span in (each.span1, each.span2) if span is not None]
        first = {"span": " -> ".join(spans), "task": each.task}
        for kind, label, values in (
            ("right", each.right, each.right_probability),
            ("wrong", each.wrong, each.wrong_probability),
        ):
            if label is not None:
                columns = {str(layer): f"{value:.2f}" for layer, value in zip(trace.layers, values, strict=True)}
                rows.append({**first, "": kind, "label": label, **columns, "mean": f"{values.mean():.2f}"})
                first = dict.fromkeys(first, "")
    return rows
