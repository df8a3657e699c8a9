"""Hewitt & Manning 2019: syntax trees in the geometry of each layer, and what the probes could memorise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

import embstore as es
from embstore import plot
from embstore.corpus import EdgeSentence, Tree, derived_edges, read_trees
from embstore.errors import InvalidValueError
from embstore.probes import EdgeProbe, ProbeResult, StructuralProbe, Training, code_length, load, summary
from embstore_studies.study import (
    SPLITS,
    Distinct,
    Row,
    Run,
    Section,
    StudyResult,
    StudySettings,
    decimals,
    digest_of,
    draw,
    draw_line,
    methods,
    treebank_files,
)

# UUAS and DSpr by maximum rank, of BERTBASE7 (layer 8 as embstore counts) on the Penn Treebank with Stanford
# Dependencies: the numbers of the paper's figure of ranks, as the first author's script has them
# (github.com/john-hewitt/control-tasks, scripts/codalab/make_emnlp19_pos_graph.py, commit 29a0682).
BY_RANK = {
    1: (0.266, 0.55),
    2: (0.389, 0.63),
    4: (0.509, 0.71),
    8: (0.659, 0.77),
    16: (0.742, 0.81),
    32: (0.780, 0.83),
    64: (0.795, 0.84),
    128: (0.799, 0.85),
    256: (0.797, 0.85),
    512: (0.797, 0.85),
}
METRICS = {"uuas": "UUAS", "dspr": "DSpr", "root_accuracy": "root", "nspr": "NSpr"}
TASK_METRICS = {
    "layer_f1": "F1",
    "layer_control_f1": "control F1",
    "layer_selectivity": "selectivity",
    "compression": "compression",
    "control_compression": "control compression",
}
RANK = 128  # of the probes of all layers, or the width of the vectors: more brings nothing in the paper
TASK_SENTENCES = 300  # of each split of the tasks, whose code lengths take long
KEYS = ("model", "encoder", "rank", "baseline", "layer", "split", "metric")


@dataclass(frozen=True, kw_only=True)
class Hewitt2019(StudySettings):
    about: ClassVar[str] = "syntax trees by layer and rank, selectivity, code lengths"
    data: ClassVar[str] = "a folder with train, dev and test of a treebank in CoNLL-U"
    citation: ClassVar[str] = """@inproceedings{hewitt-manning-2019-structural,
  title = {A Structural Probe for Finding Syntax in Word Representations},
  author = {Hewitt, John and Manning, Christopher D.},
  booktitle = {Proceedings of NAACL-HLT 2019},
  year = {2019}, pages = {4129--4138}, doi = {10.18653/v1/N19-1419}
}
"""

    n_sentences: int | None = 3000
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    seeds: tuple[int, ...] = (0,)
    epochs: int | None = None
    tasks: tuple[str, ...] = ("upos", "dependencies")
    layers: str = "all"
    untrained: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for task in self.tasks:
            if task not in ("upos", "pos", "dependencies"):
                raise InvalidValueError(f"unknown task {task!r}: choose upos, pos or dependencies")

    def probe(self, **changes: Any) -> StructuralProbe:
        """Return structural probes as the study trains them, not fitted yet."""
        return StructuralProbe(**{"seeds": self.seeds, "training": Training(epochs=self.epochs), **changes})


@dataclass(frozen=True)
class Treebank:
    """The drawn sentences of a treebank: `files` by split, and the places of at most `count` sentences of each."""

    files: Mapping[str, Path]
    count: int | None
    seed: int

    def drawn(self, split: str, sentences: list[Any]) -> list[Any]:
        """Return the sentences of a split that take part, the same ones for trees and tasks."""
        draws = np.random.default_rng((self.seed, SPLITS.index(split)))
        return [sentences[number] for number in sorted(draws.permutation(len(sentences))[: self.count].tolist())]

    @cached_property
    def trees(self) -> dict[str, list[Tree]]:
        """The gold trees by split."""
        return {split: self.drawn(split, read_trees(path)) for split, path in self.files.items()}

    def edges(self, task: str) -> dict[str, list[EdgeSentence]]:
        """Return the targets of a task by split. Raises InvalidValueError for a split without any."""
        edges = {split: self.drawn(split, derived_edges(path, task)) for split, path in self.files.items()}
        for split, sentences in edges.items():
            if not any(each.targets for each in sentences):
                raise InvalidValueError(f"{self.files[split]} has no target of the task {task}: choose other tasks")
        return edges

    @cached_property
    def digests(self) -> dict[str, str]:
        return {split: digest_of(path) for split, path in self.files.items()}

    @property
    def corpus(self) -> Distinct:
        """All drawn sentences."""
        return Distinct(lambda: (each.words for each in chain.from_iterable(self.edges("dependencies").values())))


def run(run: Run[Hewitt2019], data: Path) -> StudyResult:
    """Run the study on the folder of a treebank, see `reproduce`."""
    settings = run.settings
    bank = Treebank(treebank_files(data), settings.n_sentences, settings.seed)
    for task in ("dependencies", *settings.tasks):
        bank.edges(task)
    run.begin()
    stores = {name: extract_one(run, bank, name, model) for name, model in run.models.items()}
    best: dict[str, int] = {}
    parts: list[pl.DataFrame] = []
    for name, store in stores.items():
        path, rank = run.out / "probes" / name, min(RANK, store.hidden_size)
        frame = scored(run, bank, f"{name}-structure", store, settings.probe(), path=path)
        saved = load(path)
        assert isinstance(saved, StructuralProbe)
        best[name] = layer = saved.best_layer()
        parts.append(labelled(frame, name, "trained", rank))
        for each in settings.ranks:
            if each > store.hidden_size:
                run.notes.append(f"{name}: rank {each} is left out, as its vectors have {store.hidden_size} numbers.")
            elif each != rank:
                probe = settings.probe(layers=[layer], rank=each)
                frame = scored(run, bank, f"{name}-rank-{each}", store, probe)
                parts.append(labelled(frame, name, "trained", each))
        if settings.untrained and (folder := run.untrained(name)) is not None:
            random = extract_one(run, bank, f"{name}-untrained", folder)
            frame = scored(run, bank, f"{name}-untrained", random, settings.probe(layers=[layer]))
            parts.append(labelled(frame, name, "untrained", rank))
    frames = {"structure": pl.concat(parts)}
    if settings.tasks:
        frames["tasks"] = pl.concat(
            probe_task(run, bank, name, store, task) for name, store in stores.items() for task in settings.tasks
        )
    scores = Scores(best, frames["structure"])
    sections = [table1(scores)]
    for model in best:
        sections += [by_layer(scores, model), by_rank(scores, model)]
        sections += [task_table(frames["tasks"], model, task) for task in settings.tasks]
    sizes = ", ".join(f"{len(each):,} {split}" for split, each in bank.trees.items())
    seeds = ", ".join(map(str, settings.seeds))
    return run.result(
        "Syntax in the geometry of vectors, after Hewitt & Manning 2019",
        f"{', '.join(run.models)}. Sentences: {sizes} (the paper: all of the Penn Treebank's); seeds {seeds}; samples "
        f"by seed {settings.seed}.",
        frames=frames,
        sections=sections,
        figures=run.save_figures(
            {
                "layers.png": ("Trees in vectors, by layer", layer_figure(scores)),
                "ranks.png": ("Trees in vectors, by rank of the probe", rank_figure(scores)),
            }
        ),
        methods=methods(stores),
    )


def extract_one(run: Run[Hewitt2019], bank: Treebank, name: str, model: str) -> es.Store:
    file = f"{name}-{run.settings.n_sentences or 'all'}-{run.settings.seed}"
    options = es.ExtractionOptions(layers=run.settings.layers)
    return run.extract(name, bank.corpus, model=model, options=options, file=file)


def scored(
    run: Run[Hewitt2019],
    bank: Treebank,
    name: str,
    store: es.Store,
    probe: StructuralProbe,
    *,
    path: Path | None = None,
) -> pl.DataFrame:
    """Fit and score structural probes as a step called `name`; saves them to `path`."""

    def make() -> pl.DataFrame:
        probe.fit(store, bank.trees["train"], bank.trees["dev"])
        result = probe.score({split: bank.trees[split] for split in ("dev", "test")}, name="")
        if path is not None:
            probe.save(path)
        return result.frame

    made_from = {"store": store.digest, "treebank": bank.digests, "probe": repr(probe)}
    return run.table(name, made_from, make, needs=path)


def labelled(frame: pl.DataFrame, model: str, encoder: str, rank: int) -> pl.DataFrame:
    """Name the model, the encoder (trained or untrained) and the rank of the probes; `baseline` is the word order."""
    own = {"model": pl.lit(model), "encoder": pl.lit(encoder), "rank": pl.lit(rank, pl.Int64)}
    return frame.select(**own, baseline=pl.col("store") != "").hstack(frame.drop("store"))


def probe_task(run: Run[Hewitt2019], bank: Treebank, name: str, store: es.Store, task: str) -> pl.DataFrame:
    """Train linear probes of a task and of its control task, and measure the code lengths of both."""
    settings = run.settings
    training = Training(epochs=settings.epochs)
    probe = EdgeProbe(kind="linear", control=True, seeds=settings.seeds, training=training)
    edges = {split: draw(held, TASK_SENTENCES, settings.seeds[0]) for split, held in bank.edges(task).items()}

    def make() -> pl.DataFrame:
        fitted = probe.fit(store, edges["train"], edges["dev"], name=task)
        code = code_length(store, edges["train"], edges["dev"], probe=probe, name=task)
        return ProbeResult.concat([fitted.score({"test": edges["test"]}), code]).frame

    made_from = {"store": store.digest, "treebank": bank.digests, "task": task, "probe": repr(probe)}
    return run.table(f"{name}-{task}", made_from, make).with_columns(model=pl.lit(name)).drop("store")


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of structural probes, and the best layer of each model by the dev loss of its distance probes."""

    best: Mapping[str, int]
    frame: pl.DataFrame

    def of(self, model: str, **where: Any) -> pl.DataFrame:
        """Return test scores as means over the seeds with their deviation."""
        rows = self.frame.filter(model=model, split="test", **where)
        return rows.group_by(*KEYS, maintain_order=True).agg(
            pl.col("value").mean(), pl.col("value").std().alias("deviation"), pl.col("count").first()
        )

    def full_rank(self, model: str) -> int:
        """Return the rank of the probes of all layers."""
        several = self.frame.filter(pl.col("layer") != self.best[model], model=model, encoder="trained")
        rows = several if len(several) else self.frame.filter(model=model)
        return int(rows["rank"][0])


def cells(rows: pl.DataFrame) -> Row:
    """The four scores of one probe, with their deviation over the seeds if there are several."""
    by_metric = {row["metric"]: row for row in rows.to_dicts()}
    shown: Row = {}
    for metric, name in METRICS.items():
        row = by_metric.get(metric, {})
        deviation = row.get("deviation")
        shown[name] = decimals(row.get("value")) + ("" if deviation is None else f" ± {deviation:.3f}")
    return shown


def table1(scores: Scores) -> Section:
    rows: list[Row] = []
    for model, layer in scores.best.items():
        trained = scores.of(model, encoder="trained", rank=scores.full_rank(model))
        random = scores.of(model, encoder="untrained", baseline=False)
        rows.append({"vectors": f"{model}: linear order", **cells(trained.filter(pl.col("baseline")))})
        own = trained.filter(~pl.col("baseline"))
        rows.append({"vectors": f"{model}, layer 0", **cells(own.filter(layer=0))})
        if len(random):
            rows.append({"vectors": f"{model}, layer {layer}, random weights", **cells(random)})
        rows.append({"vectors": f"{model}, layer {layer} (best)", **cells(own.filter(layer=layer))})
    return Section("Table 1. Trees in vectors", "Test. Best: of least dev loss.", rows)


def by_layer(scores: Scores, model: str) -> Section:
    frame = scores.of(model, encoder="trained", rank=scores.full_rank(model), baseline=False)
    rows = [{"layer": layer, **cells(frame.filter(layer=layer))} for layer in frame["layer"].unique().sort()]
    return Section(f"By layer ({model})", f"Test; probes of rank {scores.full_rank(model)}.", rows)


def by_rank(scores: Scores, model: str) -> Section:
    frame = scores.of(model, encoder="trained", layer=scores.best[model], baseline=False)
    rows = []
    for rank in frame["rank"].unique().sort():
        uuas, dspr = BY_RANK.get(rank, (None, None))
        paper = {"UUAS, paper": decimals(uuas), "DSpr, paper": decimals(dspr)}
        rows.append({"rank": rank, **cells(frame.filter(rank=rank)), **paper})
    note = (
        "Test. Paper: BERTBASE7 (BERT-base-cased, layer 8 here) on the Penn Treebank with Stanford Dependencies; other "
        "treebanks and annotations have other scores, so no difference is given."
    )
    return Section(f"By rank, layer {scores.best[model]} ({model})", note, rows)


def task_table(frame: pl.DataFrame, model: str, task: str) -> Section:
    means = summary(frame.filter(model=model, task=task).with_columns(store=pl.lit(model)))
    means = means.filter(pl.col("metric").is_in(list(TASK_METRICS)) & (pl.col("split") != "dev"))
    rows: list[Row] = []
    for layer in means["layer"].unique().sort():
        values = {row["metric"]: row["value"] for row in means.filter(layer=layer).to_dicts()}
        rows.append({"layer": layer, **{name: decimals(values.get(metric)) for metric, name in TASK_METRICS.items()}})
    note = (
        "Linear probes of each layer alone: F1 on test, that of the control task, whose labels are drawn by form "
        "(Hewitt & Liang 2019), and their difference; compression of the train labels by the online code: the length "
        "of the uniform code divided by its own (Voita & Titov 2020)."
    )
    return Section(f"Selectivity and code length: {task} ({model})", note, rows)


def layer_figure(scores: Scores) -> Any:
    """Draw all scores by layer, also of random weights."""

    def parts() -> Iterator[pl.DataFrame]:
        for model in scores.best:
            rank = scores.full_rank(model)
            yield scores.of(model, encoder="trained", rank=rank).with_columns(store=pl.lit(model))
            random = scores.of(model, encoder="untrained", rank=rank, baseline=False)
            yield random.with_columns(store=pl.lit(f"{model}, random weights"))

    return plot.structure_figure(pl.concat(parts()))


def rank_figure(scores: Scores) -> Any:
    """Draw UUAS and DSpr of the best layer of each model by the rank of the probe."""
    figure, axes = plot.panels(2, height=2.6)
    ranks = sorted({*scores.frame["rank"]})
    both = {"uuas": ("edges found (UUAS)", "share of gold edges"), "dspr": ("distances (DSpr)", "Spearman correlation")}
    for place, (axis, (metric, (title, label))) in enumerate(zip(axes, both.items(), strict=True)):
        for number, (model, layer) in enumerate(scores.best.items()):
            frame = scores.of(model, encoder="trained", layer=layer, metric=metric).sort("rank")
            draw_line(axis, frame["rank"], frame["value"], number=number, label=f"{model}, layer {layer}")
        known = [rank for rank in ranks if rank in BY_RANK]
        look = {"color": "#777777", "linestyle": "--", "label": "the paper's BERTBASE7 (Penn Treebank)"}
        axis.plot(known, [BY_RANK[rank][place] for rank in known], **look)
        plot.style(axis, title=title, x="rank of the probe", y=f"{label} (test)")
        axis.set_xscale("log", base=2)
        axis.set_xticks(ranks, [str(rank) for rank in ranks], rotation=45)
        axis.minorticks_off()
    plot.add_legend(figure, axes)
    return figure
