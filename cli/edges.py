"""Commands that train edge probes: labelled spans, and the code lengths of their labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import embstore as es
import embstore_cli.options as opt
from embstore.errors import CorpusNotFoundError, InvalidValueError
from embstore_cli.output import Drawing, print_notes, print_table, with_deviation
from embstore_cli.probes import TRAINING, Control, Probing, Save, save_files

if TYPE_CHECKING:
    import polars as pl

    Edges = Path | list[es.corpus.EdgeSentence]

EDGES = opt.Config(lambda: [es.probes.Training, es.probes.EdgeProbe], *TRAINING, "hidden_size", "layerwise")
MDL = opt.Config(lambda: [es.probes.Training, es.probes.EdgeProbe, es.probes.code_length], *TRAINING, "hidden_size")

Tasks = Annotated[
    list[Path],
    opt.argument("TASK", "Folders with train.jsonl, dev.jsonl and test.jsonl, or with corpora (.conllu, .conll)."),
]


@dataclass(frozen=True)
class EdgeProbing(Probing):
    """The options of edge probes and of code lengths."""

    task: Annotated[
        list[str] | None,
        opt.option("NAME", "Of a corpus: pos (xpos), upos, dependencies or entities; repeatable.", "--task"),
    ] = None
    kind: Annotated[
        Literal["mlp", "linear"], opt.option("KIND", "mlp, the edge probe; linear, one matrix over the mean of a span.")
    ] = "mlp"
    control: Control = False

    def arguments(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"kind": self.kind, "control": self.control, **super().arguments(settings)}


def edges(
    store: opt.StorePath,
    tasks: Tasks,
    *,
    probing: EdgeProbing,
    save: Save = None,
    settings: Annotated[dict[str, Any], EDGES],
    output: Drawing,
) -> None:
    """Read labelled spans from mixes of the layers.

    Edge probing of Tenney et al. 2019, where P(l) is the probe of a mix of layers 0 to l: F1 of P(0) to P(L), what each
    layer adds, the mixing weights of P(L), their center of gravity and the expected layer, with 95 % intervals over
    sentences. The setting layerwise also trains a probe of each layer alone.
    """
    options = probing.arguments(settings)
    es.probes.EdgeProbe(**options)  # checks the settings before a store is read
    files = _find_tasks(tasks, derive=probing.task or ())
    saved = save_files(save, files)
    opened = es.open(store)
    results = []
    for name, splits in files.items():
        fitted = es.probes.EdgeProbe(**options).fit(opened, splits["train"], splits.get("dev"), name=name)
        if name in saved:
            fitted.save(saved[name])
        targets = {split: edges for split, edges in splits.items() if split != "train"}
        results.append(fitted.score(targets))
    result = es.probes.ProbeResult.concat(results)
    output.draw(lambda: es.plot.edge_layers(result.summary()))
    print_notes(result.notes)
    if output.deliver(result.frame):
        print_table(_by_task(result.summary()), title="edge probes: P(0) sees layer 0, P(L) mixes all; 95 % intervals")
        print()
        alone = ", and of each layer alone" if "layer_f1" in result.frame["metric"] else ""
        print_table(_by_layer(result.summary()), title=f"F1 of P(l) by layer{alone}")


def _scored(summary: pl.DataFrame) -> str:
    """Return the split to show: test if it was scored, else the first one but train."""
    splits = summary["split"].unique(maintain_order=True).to_list()
    return next((split for split in ("test", *splits) if split in splits and split != "train"), "")


def _by_task(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each task."""
    rows = []
    for (task,), part in summary.partition_by("task", as_dict=True, maintain_order=True).items():
        scores = {(row["split"], row["metric"], row["layer"]): row for row in part.to_dicts()}
        layers = sorted({layer for _, metric, layer in scores if metric == "mixing"})
        split = _scored(part)
        columns = {
            "majority": (split, "majority_f1", None),
            "F1 P(0)": (split, "f1", layers[0]),
            "F1 P(L)": (split, "f1", layers[-1]),
            "selectivity P(L)": (split, "selectivity", layers[-1]),
            "center of gravity": ("train", "center_of_gravity", None),
            "expected layer": (split, "expected_layer", None),
        }
        shown = {}
        for name, row in ((name, scores[key]) for name, key in columns.items() if key in scores):
            value = with_deviation(row)
            shown[name] = value if row["low"] is None else f"{value} [{row['low']:.3f}, {row['high']:.3f}]"
        if scores.get((split, "expected_layer", None), {}).get("item"):
            shown["expected layer"] = "not determined"
        rows.append({"task": task, "labels": scores.get(columns["majority"], {}).get("count")} | shown)
    return rows


def _by_layer(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each layer, with columns for each task."""
    rows: dict[int, dict[str, Any]] = {}
    has_several = summary["task"].n_unique() > 1
    for (task,), part in summary.partition_by("task", as_dict=True, maintain_order=True).items():
        split = _scored(part)
        prefix = f"{task} " if has_several else ""
        names = {"f1": f"{prefix}{split} F1", "selectivity": f"{prefix}selectivity", "layer_f1": f"{prefix}alone"}
        names |= {"layer_selectivity": f"{prefix}its selectivity", "mixing": f"{prefix}s"}
        for row in part.to_dicts():
            if row["metric"] in names and row["split"] in (split, "train"):
                shown = rows.setdefault(row["layer"], {"layer": str(row["layer"])})
                shown[names[row["metric"]]] = with_deviation(row)
    return [rows[layer] for layer in sorted(rows)]


def mdl(
    store: opt.StorePath,
    tasks: Tasks,
    *,
    probing: EdgeProbing,
    settings: Annotated[dict[str, Any], MDL],
    output: Drawing,
) -> None:
    """Measure how many bits labels take, given a layer.

    Online coding of Voita & Titov 2020: labels are sent block after block, each coded by a probe trained on those
    before. Compression is the length of the uniform code divided by it, next to the code of the label frequencies.
    """
    base = es.probes.EdgeProbe(**probing.arguments(settings))
    files = _find_tasks(tasks, derive=probing.task or ())
    opened = es.open(store)
    result = es.probes.ProbeResult.concat(
        es.probes.code_length(opened, splits["train"], splits.get("dev"), probe=base, name=name)
        for name, splits in files.items()
    )
    summary = result.summary()
    output.draw(lambda: es.plot.code_lengths(summary))
    print_notes(result.notes)
    if output.deliver(result.frame):
        title = "code lengths in kbit, and how many times shorter than the uniform code"
        print_table(_codes(summary), title=title)


def _codes(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each layer and for each code without vectors, with two columns for each code."""
    rows: dict[Any, dict[str, Any]] = {}
    has_several = summary["task"].n_unique() > 1
    for row in summary.sort("layer", nulls_last=True, maintain_order=True).to_dicts():
        code, _, what = row["metric"].rpartition("_")
        kind = {"uniform": "uniform", "frequency": "label frequencies"}.get(code, row["layer"])
        control = "control" if code == "control" else ""
        unit = "kbit" if what == "length" else "times"
        name = " ".join(filter(None, (row["task"] if has_several else "", control, unit)))
        shown = rows.setdefault(kind, {"layer": str(kind)})
        if what != "length" or row["deviation"] is None:
            shown[name] = round(row["value"] / (1000 if what == "length" else 1), 3)
        else:
            shown[name] = f"{row['value'] / 1000:.3f}±{row['deviation'] / 1000:.3f}"
    return list(rows.values())


def _find_tasks(paths: Sequence[Path], *, derive: Sequence[str] = ()) -> dict[str, dict[str, Edges]]:
    """Return the targets of each task by split; `derive`: the tasks of corpora, needed if a corpus contains several."""
    tasks: dict[str, dict[str, Edges]] = {}
    for path in paths:
        if not path.is_dir():
            raise CorpusNotFoundError(f"no targets at {path}: give an existing folder")
        files = es.probes.split_files(path) or _corpora(path)
        if "train" not in files:
            raise InvalidValueError(f"{path} has no train.jsonl: give folders of a task")
        derivable = es.corpus.derivable_tasks(files["train"])
        if unknown := [task for task in derive if task not in derivable]:
            choice = f"choose {' or '.join(derivable)}" if derivable else "it has targets itself, leave --task out"
            raise InvalidValueError(f"{files['train']} does not contain the task {unknown[0]!r}: {choice}")
        if len(derivable) > 1 and not derive:
            several = f"{', '.join(derivable[:-1])} or {derivable[-1]}"
            raise InvalidValueError(f"{files['train']} contains several tasks: give --task {several}")
        for task in derive or derivable or (None,):
            name = path.absolute().name if task is None else task
            if name in tasks:
                raise InvalidValueError(f"two tasks are called {name}: give each once")
            tasks[name] = {
                split: file if task is None else es.corpus.derived_edges(file, task) for split, file in files.items()
            }
    return tasks


def _corpora(folder: Path) -> dict[str, Path]:
    """Return the corpora of a folder by split: those with train, dev or test in their names."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        named = re.search(r"(?<![a-z])(train|dev|test)(?![a-z])", path.name.lower())
        if named is None or not path.is_file() or not es.corpus.derivable_tasks(path):
            continue
        if named[1] in files:
            raise InvalidValueError(
                f"{folder} has two files of {named[1]}, {files[named[1]].name} and {path.name}: keep one"
            )
        files[named[1]] = path
    return files
