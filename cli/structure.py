"""The command that trains structural probes: syntax trees in the geometry of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.options import (
    TRAINING,
    AsJson,
    Checkpoints,
    Config,
    Device,
    Layers,
    Out,
    Plot,
    Save,
    Seeds,
    Sentences,
    StorePaths,
    layers_of,
    read_settings,
    seeds_of,
    set_option,
    training_of,
)
from embstore_cli.output import create_folder, deliver, print_notes, print_table, require_files, with_deviation
from embstore_cli.probes import open_stores, save_folders

if TYPE_CHECKING:
    import polars as pl

NAMES = {"uuas": "UUAS", "dspr": "DSpr", "root_accuracy": "root", "nspr": "NSpr"}
SETTINGS = {**TRAINING, "rank": int | None}


def structure(
    stores: StorePaths,
    train: Annotated[Path, typer.Option(metavar="CONLLU", help="Training sentences with gold trees.")],
    dev: Annotated[Path, typer.Option(metavar="CONLLU", help="Sentences for early stopping.")],
    test: Annotated[Path, typer.Option(metavar="CONLLU", help="Test sentences.")],
    task: Annotated[
        Literal["distance", "depth", "both"], typer.Option(metavar="TASK", help="distance, depth or both.")
    ] = "both",
    layers: Layers = "all",
    sentences: Sentences = 0,
    seeds: Seeds = "0",
    sentence: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="With --plot: draw the trees of test sentence N (from 0) instead."),
    ] = None,
    save: Save = None,
    checkpoints: Checkpoints = None,
    device: Device = "auto",
    config: Config = None,
    settings: Annotated[list[str] | None, set_option(SETTINGS)] = None,
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Read syntax trees from vectors, layer by layer.

    Trains a linear map for each layer under which squared distances are those of words in the tree, and another for
    their depths (Hewitt & Manning 2019). Scores edges (UUAS), distances (DSpr), roots and depths (NSpr), next to
    the order of the words as a baseline. Sentences are found in the stores by their words.
    """
    require_files(out, plot)
    chosen = read_settings(settings, SETTINGS, config)
    if sentence is not None and (plot is None or task == "depth"):
        raise InvalidValueError(f"--sentence {sentence} draws distances: give --plot FILE, and --task distance or both")
    options: dict[str, Any] = {"tasks": ("distance", "depth") if task == "both" else (task,)}
    options |= {"layers": layers_of(layers), "seeds": seeds_of(seeds), "sentences": sentences or None}
    options |= {"device": device, **training_of(chosen)}
    es.StructuralProbe(**options)  # checks the settings before a file is read
    trees = {name: es.corpus.read_trees(path) for name, path in (("train", train), ("dev", dev), ("test", test))}
    if sentence is not None and sentence >= len(trees["test"]):
        raise InvalidValueError(f"there is no test sentence {sentence}: give --sentence 0 to {len(trees['test']) - 1}")
    opened = open_stores(stores)
    folders = save_folders(save, opened)
    folder = None if checkpoints is None else create_folder(checkpoints, option="--checkpoints")
    probes, results = [], []
    for name, store in opened.items():
        checkpoint = None if folder is None else folder / f"{name}.pt"
        probe = es.StructuralProbe(**options).fit(store, trees["train"], trees["dev"], checkpoint=checkpoint)
        if name in folders:
            probe.save(folders[name])
        results.append(probe.score({split: trees[split] for split in ("dev", "test")}, name=name))
        probes.append(probe)
    result = es.probes.ProbeResult.concat(results)
    if plot is not None and sentence is None:
        es.plot.save(es.plot.structure_figure(result.summary()), plot)
    elif plot is not None and sentence is not None:
        es.plot.save(es.plot.tree_figure(probes[0].predict(trees["test"][sentence])), plot)
    print_notes(result.notes)
    if deliver(result.frame, out=out, as_json=as_json):
        title = f"structural probes of rank {probes[0].fitted.shape.rank}"
        print_table(_by_layer(result.summary(), has_several=len(probes) > 1), title=title)


def _by_layer(summary: pl.DataFrame, *, has_several: bool) -> list[dict[str, Any]]:
    """Return a row for each store and layer, a column for each metric of the last split; the baselines last."""
    last = summary.filter(summary["split"] == summary["split"][-1]).sort("layer", nulls_last=True, maintain_order=True)
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    for row in last.to_dicts():
        layer = "linear order" if row["layer"] is None else str(row["layer"])
        first = ({"store": row["store"].removesuffix(": linear order")} if has_several else {}) | {"layer": layer}
        shown = rows.setdefault((row["store"], row["layer"]), first)
        shown[f"{row['split']} {NAMES[row['metric']]}"] = with_deviation(row)
    return list(rows.values())
