"""Hewitt & Manning 2019, end to end: syntax trees in the geometry of each layer, and what the probes could memorise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from embstore import plot
from embstore.corpus import EdgeSentence, Sentence, Tree, derived_edges, read_trees
from embstore.corpus.sentence import distinct_sentences
from embstore.errors import InvalidValueError
from embstore.probes import EdgeProbe, ProbeResult, StructuralProbe, code_length, load
from embstore.probes.edges.tasks import Sample, check_task
from embstore.probes.splits import SPLITS
from embstore.store import Store
from embstore_studies.extract import extract_step, untrained_step
from embstore_studies.hewitt2019.published import CITATION
from embstore_studies.hewitt2019.report import Scores, draw, sections
from embstore_studies.hewitt2019.settings import Hewitt2019
from embstore_studies.hewitt2019.tree_figure import tree_figure
from embstore_studies.study import Given, StudyResult, StudyRun, digest_of, methods
from embstore_studies.tasks import treebank_files

MAX_DRAWN_WORDS = 15  # of a sentence whose tree is drawn


@dataclass(frozen=True)
class Treebank:
    """The drawn sentences of a treebank: `files` by split, and the places of at most `count` sentences of each."""

    files: Mapping[str, Path]
    count: int | None
    seed: int

    def drawn(self, split: str, n_sentences: int) -> list[int]:
        """Return which sentences of a split take part, the same ones for trees and tasks."""
        draws = np.random.default_rng((self.seed, SPLITS.index(split)))
        return sorted(draws.permutation(n_sentences)[: self.count].tolist())

    @cached_property
    def trees(self) -> dict[str, list[Tree]]:
        """The gold trees by split."""
        all_trees = {split: read_trees(path) for split, path in self.files.items()}
        return {
            split: [trees[number] for number in self.drawn(split, len(trees))] for split, trees in all_trees.items()
        }

    def edges(self, task: str) -> dict[str, list[EdgeSentence]]:
        """Return the targets of a task by split."""
        all_edges = {split: derived_edges(path, task) for split, path in self.files.items()}
        return {
            split: [edges[number] for number in self.drawn(split, len(edges))] for split, edges in all_edges.items()
        }

    def __iter__(self) -> Iterator[Sentence]:
        return distinct_sentences(each.words for each in chain.from_iterable(self.edges("dependencies").values()))


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Hewitt2019]):
    """One run of the study."""

    treebank: Treebank

    @cached_property
    def digests(self) -> dict[str, str]:
        return {split: digest_of(path) for split, path in self.treebank.files.items()}


def run(given: Given[Hewitt2019], data: Path) -> StudyResult:
    """Run the study on a folder with a treebank in CoNLL-U, see `embstore_studies.reproduce`."""
    settings, models = given.settings, given.models
    treebank = Treebank(treebank_files(data), settings.n_sentences, settings.seed)
    assert treebank.trees  # every file is read before the first model is
    for task in settings.tasks:
        check_task(treebank.edges(task), name=task, sample=Sample(settings.task_sentences, settings.seed))
    run = Run.of(given, treebank=treebank)
    stores = {name: extract_one(run, name, model) for name, model in models.items()}
    best: dict[str, int] = {}
    parts: list[pl.DataFrame] = []
    drawn: dict[str, str] = {}
    for name, store in stores.items():
        frame, probes = probe_structure(run, name, store)
        saved = load(probes)
        assert isinstance(saved, StructuralProbe)
        best[name] = saved.best_layer()
        parts += [frame, *probe_ranks(run, name, store, best[name]), *probe_untrained(run, name, best[name])]
        drawn |= draw_trees(run, name, store, saved)
    frames = {"structure": pl.concat(parts)}
    if settings.tasks:
        tasks = (probe_task(run, name, store, task) for name, store in stores.items() for task in settings.tasks)
        frames["tasks"] = pl.concat(tasks)
    scores = Scores(settings, best, frames)
    return run.result(
        "Syntax in the geometry of vectors, after Hewitt & Manning 2019",
        f"{', '.join(models)}. {settings.describe({split: len(each) for split, each in treebank.trees.items()})}",
        frames=frames,
        sections=sections(scores),
        figures=draw(scores, run.out / "figures") | drawn,
        methods=methods(stores),
        citation=CITATION,
    )


def extract_one(run: Run, name: str, model: str) -> Store:
    file = f"{name}-{run.settings.n_sentences or 'all'}-{run.settings.seed}"
    return extract_step(run, name, run.treebank, model=model, file=file)


def scored(run: Run, name: str, store: Store, probe: StructuralProbe, *, path: Path | None = None) -> pl.DataFrame:
    """Fit and score structural probes as a step called `name`; saves them to `path`."""

    def make() -> pl.DataFrame:
        trees = run.treebank.trees
        checkpoint = run.folder.path / "probes" / f"{name}.checkpoint"
        probe.fit(store, trees["train"], trees["dev"], checkpoint=checkpoint)
        result = probe.score({split: trees[split] for split in ("dev", "test")}, name="")
        if path is not None:
            probe.save(path)
        checkpoint.unlink(missing_ok=True)
        return result.frame

    made_from = {"store": store.digest, "treebank": run.digests, "probe": repr(probe)}
    return run.folder.table(name, made_from, make, needs=path)


def labelled(frame: pl.DataFrame, model: str, encoder: str, rank: int) -> pl.DataFrame:
    """Name the model, the encoder (trained or untrained) and the rank of the probes; `baseline` is the word order."""
    own = {"model": pl.lit(model), "encoder": pl.lit(encoder), "rank": pl.lit(rank, pl.Int64)}
    return frame.select(**own, baseline=pl.col("store") != "").hstack(frame.drop("store"))


def probe_structure(run: Run, name: str, store: Store) -> tuple[pl.DataFrame, Path]:
    """Train distance and depth probes of every layer; returns their scores and where they are saved."""
    probe = run.settings.probe()
    path = run.folder.path / "probes" / name
    frame = scored(run, f"{name}-structure", store, probe, path=path)
    return labelled(frame, name, "trained", run.settings.rank_of(store.hidden_size)), path


def probe_ranks(run: Run, name: str, store: Store, layer: int) -> Iterator[pl.DataFrame]:
    """Train the probes of the best layer with each rank."""
    for rank in run.settings.ranks:
        if rank <= store.hidden_size and rank != run.settings.rank_of(store.hidden_size):
            probe = run.settings.probe(layers=[layer], rank=rank)
            yield labelled(scored(run, f"{name}-rank-{rank}", store, probe), name, "trained", rank)


def probe_untrained(run: Run, name: str, layer: int) -> Iterator[pl.DataFrame]:
    """Train the probes of the same layer of the model with random weights."""
    folder = untrained_step(run, name) if run.settings.untrained else None
    if folder is None:
        return
    store = extract_one(run, f"{name}-untrained", folder)
    probe = run.settings.probe(layers=[layer])
    rank = run.settings.rank_of(store.hidden_size)
    yield labelled(scored(run, f"{name}-untrained", store, probe), name, "untrained", rank)


def probe_task(run: Run, name: str, store: Store, task: str) -> pl.DataFrame:
    """Train linear probes of a task and of its control task, and measure the code lengths of both."""
    settings = run.settings
    probe = EdgeProbe(
        kind="linear",
        control=True,
        n_sentences=settings.task_sentences,
        seeds=settings.seeds,
    )
    edges = run.treebank.edges(task)

    def make() -> pl.DataFrame:
        fitted = probe.fit(store, edges["train"], edges["dev"], name=task)
        code = code_length(store, edges["train"], edges["dev"], probe=probe, name=task)
        return ProbeResult.concat([fitted.score({"test": edges["test"]}), code]).frame

    made_from = {"store": store.digest, "treebank": run.digests, "task": task, "probe": repr(probe)}
    frame = run.folder.table(f"{name}-{task}", made_from, make)
    return frame.with_columns(model=pl.lit(name)).drop("store")


def draw_trees(run: Run, name: str, store: Store, probe: StructuralProbe) -> dict[str, str]:
    """Draw the trees of short test sentences that the probe of the best layer recovers; returns titles by file name."""
    short = [tree for tree in run.treebank.trees["test"] if MAX_DRAWN_WORDS // 2 < len(tree) <= MAX_DRAWN_WORDS]
    drawn = {}
    for number, tree in enumerate(short[: run.settings.trees], 1):
        file = f"{name}-tree-{number}.png"
        try:
            recovered = probe.predict(tree, data=store)
        except InvalidValueError:  # a word of it has no row
            continue
        plot.save(tree_figure(recovered), run.folder.path / "figures" / file)
        drawn[file] = f"A tree ({name})"
    return drawn
