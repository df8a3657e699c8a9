"""Liu et al. 2019: linear probes of every layer and which layers transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

import embstore as es
from embstore import plot
from embstore.corpus import EdgeSentence, EdgeTarget, derived_edges
from embstore.errors import InvalidValueError
from embstore.probes import summary
from embstore_studies.study import (
    SPLITS,
    TASKS,
    Distinct,
    Row,
    Run,
    Section,
    StudyResult,
    StudySettings,
    Task,
    decimals,
    digest_of,
    draw,
    draw_line,
    methods,
    read_tasks,
    student,
    task_folders,
    treebank_files,
)

# What Rogers et al. 2020 state of the paper in section 5.2. Its numbers are in figures and tables that are not at hand,
# and are left out. The probes and their training are those of the authors' code:
# nelson-liu/contextual-repr-analysis (commit 1ba69cf).
MIDDLE = "Middle layers of transformers perform best and are the most transferable (Liu et al.; BERT and others)"
POS = "Parts of speech are read best from middle layers (Liu et al.; BERT base and large)"
PROBED = ("upos", "arcs", "dependencies")
LEAST_TASKS = 3  # for an interval over tasks
NAMES = {**TASKS, "upos": "POS (UD)", "arcs": "Arcs"}


@dataclass(frozen=True, kw_only=True)
class Liu2019(StudySettings):
    about: ClassVar[str] = "linear probes of every layer on all tasks, which layers transfer"
    data: ClassVar[str] = "a folder with a folder per task (as for tenney2019), a treebank in CoNLL-U, or both"
    citation: ClassVar[str] = """@inproceedings{liu-etal-2019-linguistic,
  title = {Linguistic Knowledge and Transferability of Contextual Representations},
  author = {Liu, Nelson F. and Gardner, Matt and Belinkov, Yonatan and Peters, Matthew E. and Smith, Noah A.},
  booktitle = {Proceedings of NAACL-HLT 2019},
  year = {2019}, pages = {1073--1094}, doi = {10.18653/v1/N19-1112}
}
@article{rogers-etal-2020-primer,
  title = {A Primer in {BERT}ology: What We Know About How {BERT} Works},
  author = {Rogers, Anna and Kovaleva, Olga and Rumshisky, Anna},
  journal = {Transactions of the Association for Computational Linguistics},
  year = {2020}, doi = {10.1162/tacl_a_00349}
}
"""

    tasks: tuple[str, ...] = ()
    n_sentences: int | None = 500
    epochs: int = 50
    batch_size: int = 16
    learning_rate: float = 5e-3
    seeds: tuple[int, ...] = (0, 1, 2)
    untrained: bool = True
    resamples: int = 1000

    def probe(self, *, trained: bool = True) -> es.probes.EdgeProbe:
        """Return linear probes as the study trains them, not fitted yet; those of random weights have one seed."""
        training = es.probes.Training(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, patience=3
        )
        return es.probes.EdgeProbe(kind="linear", seeds=self.seeds if trained else self.seeds[:1], training=training)


def load_tasks(settings: Liu2019, data: Path) -> dict[str, Task]:
    """Read and draw all tasks. Raises InvalidValueError, CorpusError."""
    folders = task_folders(data)
    derived = [name for name in PROBED if name not in folders] if any(data.glob("*.conllu")) else []
    if not folders and not derived:
        raise InvalidValueError(
            f"{data} has no folder of a task with train.jsonl and no treebank, train, dev and test in CoNLL-U: give one"
        )
    for name in settings.tasks:
        if name not in (*folders, *derived):
            raise InvalidValueError(f"there is no task {name!r}: choose {', '.join((*folders, *derived))}")
    chosen = settings.tasks or (*folders, *derived)
    tasks: dict[str, Task] = {}
    count, seed = settings.n_sentences, settings.seed
    if in_folder := [name for name in folders if name in chosen]:
        for name, task in read_tasks(data, in_folder, None, seed).items():
            splits = {split: draw(with_targets(held), count, seed) for split, held in task.splits.items()}
            tasks[name] = Task(splits, task.digests)
    if derived := [name for name in derived if name in chosen]:
        files = treebank_files(data)
        digests = {split: digest_of(path) for split, path in files.items()}
        for name in derived:
            splits = derived_splits(name, files)
            tasks[name] = Task({split: draw(held, count, seed) for split, held in splits.items()}, digests)
    return tasks


def with_targets(sentences: list[EdgeSentence]) -> list[EdgeSentence]:
    return [each for each in sentences if each.targets]


def arcs(path: Path) -> list[EdgeSentence]:
    """Return for each word with a head an edge "arc" with it, and "none" with another word drawn at random."""
    draws, sentences = np.random.default_rng(0), []
    for sentence in derived_edges(path, "dependencies"):
        targets = []
        for word, head in ((target.span1, target.span2) for target in sentence.targets):
            others = [other.span1 for other in sentence.targets if other.span1 not in (word, head)]
            if word != head and others:
                other = others[draws.integers(len(others))]
                targets += [EdgeTarget(word, head, ("arc",)), EdgeTarget(word, other, ("none",))]
        sentences.append(EdgeSentence(sentence.words, targets))
    return sentences


def derived_splits(name: str, files: Mapping[str, Path]) -> dict[str, list[EdgeSentence]]:
    """Derive a task from a treebank."""
    read = arcs if name == "arcs" else lambda path: derived_edges(path, name)
    splits = {split: with_targets(read(files[split])) for split in SPLITS}
    for split, sentences in splits.items():
        if not sentences:
            raise InvalidValueError(f"{files[split]} has no sentence for the task {name}: choose other tasks")
    return splits


def run(run: Run[Liu2019], data: Path) -> StudyResult:
    """Run the study on a folder of tasks or a treebank, see `reproduce`."""
    settings, tasks = run.settings, load_tasks(run.settings, data)
    settings.probe()
    run.begin()
    corpus = Distinct(lambda: (e.words for task in tasks.values() for e in chain.from_iterable(task.splits.values())))
    count = settings.n_sentences
    sample = "all sentences" if count is None else f"at most {count:,} sentences of each split"
    chosen = f"-{'-'.join(tasks)}" if settings.tasks else ""

    def extract(name: str, model: str, layers: str) -> es.Store:
        options = es.ExtractionOptions(layers=layers, pooling="last")
        file = f"{name}-{count or 'all'}-{settings.seed}{chosen}"
        return run.extract(name, corpus, model=model, options=options, file=file)

    stores = {name: run.with_untrained(name, settings.untrained, extract) for name in run.models}
    frame = pl.concat(
        probe_task(run, store, model, encoder, name, task).select(
            pl.lit(model).alias("model"), pl.lit(encoder).alias("encoder"), pl.all()
        )
        for model, encoders in stores.items()
        for encoder, store in encoders.items()
        for name, task in tasks.items()
    )
    scores = Scores(list(run.models), tuple(tasks), frame)
    sections: list[Section] = []
    for model in run.models:
        suffix = f" ({model})" if len(run.models) > 1 else ""
        tables = (tasks_table, transfer_table, findings)
        sections += [table(scores, model, suffix) for table in tables]
    return run.result(
        "Linear probes and transferability by layer, after Liu et al. 2019",
        f"{run.names}. Size: {sample} (all) of each of {len(tasks)} tasks, {sum(1 for _ in corpus):,} different ones, "
        f"words as their last subword; at most {settings.epochs} epochs (50) in batches of {settings.batch_size} (80) "
        f"at learning rate {settings.learning_rate:g} (0.001), patience 3 (3), seeds "
        f"{', '.join(map(str, settings.seeds))}.",
        frames={"scores": frame},
        sections=sections,
        figures=run.save_figures(figures_of(scores)),
        methods=methods({name: encoders["trained"] for name, encoders in stores.items()}),
    )


def probe_task(run: Run[Liu2019], store: es.Store, model: str, encoder: str, name: str, task: Task) -> pl.DataFrame:
    """Train and score the linear probes of one task on one store, or return the stored scores."""
    trained = encoder == "trained"
    step = f"{model}-{name}" + ("" if trained else f"-{encoder}")
    probe = run.settings.probe(trained=trained)

    def make() -> tuple[pl.DataFrame, Sequence[str]]:
        probe.fit(store, task.splits["train"], task.splits["dev"], name=name)
        splits = {split: held for split, held in task.splits.items() if split != "train"}
        result = probe.score(splits, resamples=run.settings.resamples)
        notes = [note for note in result.notes if "the expected layer" not in note]
        return result.frame, notes if trained else ()

    made_from = {
        "store": store.digest,
        "task": task.digests,
        "sample": [run.settings.n_sentences, run.settings.seed],
        "probe": repr(probe),
        "resamples": run.settings.resamples,
    }
    return run.table(step, made_from, make)


@dataclass(frozen=True, eq=False)
class Curve:
    """A score by layer, float64 [layers], with the ends of its 95 % intervals; `dev`: the score on dev."""

    layers: tuple[int, ...]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    dev: NDArray[np.float64]

    @property
    def best(self) -> int:
        """The place of the layer with the highest dev score, so that its test score is not chosen."""
        return int(self.dev.argmax())

    def shown(self, place: int) -> str:
        return f"{self.value[place]:.3f}{bracketed(self.low[place], self.high[place])}"

    def cells(self) -> Row:
        return {str(layer): decimals(float(value)) for layer, value in zip(self.layers, self.value, strict=True)}

    def compared(self, lower: int, higher: int) -> str:
        """Return whether one layer scores lower than another."""
        if self.high[lower] < self.low[higher]:
            return "holds"
        return "does not hold" if self.low[lower] > self.high[higher] else "not determined"


def bracketed(low: float | None, high: float | None, form: str = ".3f") -> str:
    """Return an interval in brackets; nothing for one that is null or NaN, as that of a single sentence."""
    return f" [{low:{form}}, {high:{form}}]" if low == low and low is not None else ""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one run: `frame` of model, encoder and the columns of `ProbeResult`."""

    models: Sequence[str]
    tasks: Sequence[str]
    frame: pl.DataFrame

    @cached_property
    def means(self) -> dict[tuple[str, str], pl.DataFrame]:
        """Means over the seeds by model and encoder."""
        parts = self.frame.partition_by("model", "encoder", as_dict=True, include_key=False)
        return {(str(model), str(encoder)): summary(part) for (model, encoder), part in parts.items()}

    def rows(self, model: str, task: str, metric: str, *, encoder: str = "trained") -> pl.DataFrame:
        """Return the rows of a metric of one task on test, or on dev if there is no test; empty if there are none."""
        frame = self.means.get((model, encoder))
        if frame is None:
            return pl.DataFrame(schema={"value": pl.Float64})
        rows = frame.filter(task=task, metric=metric)
        return rows.filter(split="test" if "test" in rows["split"] else "dev")

    def curve(self, model: str, task: str) -> Curve | None:
        """Return a score by layer, on test or else on dev; None if there is none."""
        rows = self.means[model, "trained"].filter(task=task, metric="layer_f1", item="").sort("layer")
        chosen = rows.filter(split="test" if "test" in rows["split"] else "dev")
        if not len(chosen):
            return None
        value, low, high = (chosen[name].to_numpy() for name in ("value", "low", "high"))
        return Curve(tuple(chosen["layer"]), value, low, high, rows.filter(split="dev")["value"].to_numpy())

    def curves(self, model: str) -> list[Curve]:
        return [curve for task in self.tasks if (curve := self.curve(model, task)) is not None]


class Transfer:
    """How the layers of one model rank over tasks: `scores` float64 [tasks, layers], `best` the place of a layer."""

    def __init__(self, scores: Scores, model: str) -> None:
        curves = scores.curves(model)
        self.layers = curves[0].layers
        self.scores = np.array([each.value for each in curves])
        self.dev = np.array([each.dev for each in curves])
        self.normalized = normalized(self.scores)
        self.best = int(normalized(self.dev).mean(0).argmax())  # on dev
        self.gaps = self.scores - self.scores[:, [self.best]]

    @property
    def ranks(self) -> NDArray[np.float64]:
        """The rank of each layer in each task, 1 the best; equal scores share theirs."""
        above = (self.scores[:, None, :] > self.scores[:, :, None]).sum(2)
        equal = (self.scores[:, None, :] == self.scores[:, :, None]).sum(2)
        return np.asarray(above + (equal + 1) / 2)


def normalized(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scores of each task from 0, its worst layer, to 1, its best."""
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return np.asarray((scores - low) / np.where(high > low, high - low, 1))


def over_tasks(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the ends [2, layers] of the 95 % intervals of means over tasks, by Student's t; None for a few tasks.

    `values`: [tasks, layers]. Each task has its own test sentences and trainings, whose noise is in its spread.
    """
    if len(values) < LEAST_TASKS:
        return None
    spread = student(values.std(0, ddof=1), len(values))
    return np.stack([values.mean(0) - spread, values.mean(0) + spread])


def title_of(task: str) -> str:
    return NAMES.get(task, task)


def tasks_table(scores: Scores, model: str, suffix: str) -> Section:
    rows: list[Row] = []
    for task, curve in zip(scores.tasks, scores.curves(model), strict=True):
        majority = scores.rows(model, task, "majority_f1")
        mix, last = scores.rows(model, task, "f1").sort("layer"), len(curve.layers) - 1
        row: Row = {"task": title_of(task), "targets": majority["count"][0], "majority": decimals(majority["value"][0])}
        row |= curve.cells()
        row["best layer"] = curve.layers[curve.best]
        row["its score"] = curve.shown(curve.best)
        row["mix"] = f"{mix['value'][last]:.3f}{bracketed(mix['low'][last], mix['high'][last])}"
        random = scores.rows(model, task, "f1", encoder="untrained")
        if len(random):
            row["random weights"] = decimals(random.sort("layer")["value"][-1])
        rows.append(row)
    note = (
        "Accuracy on test where each target has one label, else micro F1, of a linear probe of each layer; layer 0 has "
        "no context. Best layer: by dev; in brackets the 95 % interval of its score over resampled sentences. Mix: a "
        "learned scalar mix of all layers. Random weights: a mix of the first and last layer of an untrained network. "
        "Majority: the best constant answer."
    )
    return Section(f"Linear probes by layer{suffix}", note, rows)


def transfer_table(scores: Scores, model: str, suffix: str) -> Section:
    transfer = Transfer(scores, model)
    ranks, gaps = transfer.ranks, transfer.gaps
    interval = over_tasks(gaps)
    rows: list[Row] = []
    for at, layer in enumerate(transfer.layers):
        row: Row = {"layer": layer, "mean score": decimals(float(transfer.scores[:, at].mean()))}
        row["normalized"] = f"{transfer.normalized[:, at].mean():.2f}"
        row["mean rank"] = f"{ranks[:, at].mean():.1f}"
        row["highest in"] = int((ranks[:, at] < 2).sum())
        gap = f"{gaps[:, at].mean():+.3f}" + (
            "" if interval is None else bracketed(interval[0][at], interval[1][at], "+.3f")
        )
        row[f"less layer {transfer.layers[transfer.best]}"] = "best on dev" if at == transfer.best else gap
        rows.append(row)
    brackets = f"95 % intervals over {len(transfer.scores)} tasks by Student's t"
    if interval is None:
        brackets = f"nothing, as {LEAST_TASKS} tasks are needed"
    note = (
        "Figure 5 of the survey (Rogers et al. 2020, after Liu et al.) as numbers. Normalized: from 0, the worst layer "
        "of a task, to 1, its best, on average over tasks; rank 1 is the best layer; highest in: the number of tasks. "
        "The last column is the difference of scores from the layer that is best on dev; a layer whose "
        "interval includes 0 is not distinct from it. In brackets: "
        f"{brackets}; they are of tasks like these, and tasks over the same sentences are not independent."
    )
    return Section(f"Transferability of layers{suffix}", note, rows)


def findings(scores: Scores, model: str, suffix: str) -> Section:
    stated: list[tuple[str, str, str]] = [(MIDDLE, *middle_finding(Transfer(scores, model)))]
    for task in ("pos", "upos"):
        curve = scores.curve(model, task) if task in scores.tasks else None
        if curve is not None:
            best, last = curve.best, len(curve.layers) - 1
            here = f"{title_of(task)}: layer {curve.layers[best]} of {curve.layers[last]}, {curve.shown(best)}"
            ends = {curve.compared(end, best) for end in (0, last) if end != best}
            holds = "holds" if ends == {"holds"} and best not in (0, last) else "not determined"
            if best in (0, last) and ends == {"holds"}:
                holds = "does not hold"
            stated.append((POS, here, holds))
    note = (
        "Stated: by Rogers et al. 2020, section 5.2. Holds, or does not: the intervals do not overlap, or the interval "
        "of the difference leaves out 0; otherwise it is not determined. Middle layers are best: layer 0 and the last "
        "are both lower than the best."
    )
    rows = [{"stated": claim, "here": here, "verdict": holds} for claim, here, holds in stated]
    return Section(f"What of the papers holds here{suffix}", note, rows)


def middle_finding(transfer: Transfer) -> tuple[str, str]:
    """Return what is found of the layers that transfer, and the verdict."""
    best, last, interval = transfer.best, len(transfer.layers) - 1, over_tasks(transfer.gaps)
    here = f"layer {transfer.layers[best]} of {transfer.layers[last]} is best on dev, over {len(transfer.scores)} tasks"
    if interval is None:
        return here, f"not determined: {LEAST_TASKS} tasks are needed"
    is_lower = interval[1] < 0
    close = [str(layer) for at, layer in enumerate(transfer.layers) if at != best and not is_lower[at]]
    here += f"; not distinct from it: {', '.join(close)}" if close else "; all others are lower"
    if best in (0, last):
        return here, "not determined" if close else "does not hold"
    return here, "holds" if is_lower[0] and is_lower[last] else "not determined"


def figures_of(scores: Scores) -> dict[str, tuple[str, Any]]:
    """Draw every figure, with its title by the name of its file."""
    return {
        "layers.png": ("Linear probes by layer", curves_figure(scores)),
        "transfer.png": ("Scores of each layer, by task", transfer_figure(scores)),
    }


def curves_figure(scores: Scores) -> Any:
    """Draw scores by layer with their intervals, a panel for each task and a color for each model."""
    figure, axes = plot.panels(len(scores.tasks), height=2.0)
    for task, axis in zip(scores.tasks, axes, strict=True):
        for number, model in enumerate(scores.models):
            if (curve := scores.curve(model, task)) is not None:
                draw_line(axis, curve.layers, curve.value, curve.low, curve.high, number=number, label=model)
        plot.style(axis, title=title_of(task), x="layer", y="score (test)")
    plot.add_legend(figure, axes)
    return figure


def transfer_figure(scores: Scores) -> Any:
    """Draw the normalized scores of layers (rows) and tasks (columns), darker where higher, with the scores."""
    transfers = {model: Transfer(scores, model) for model in scores.models}
    height = max(len(transfer.layers) for transfer in transfers.values())
    figure, axes = plot.panels(len(transfers), columns=2, height=0.2 * height + 1.5)
    for axis, (model, transfer) in zip(axes, transfers.items(), strict=True):
        shades, best = transfer.normalized, transfer.dev.argmax(1)
        image = axis.imshow(shades.T, cmap="Blues", vmin=0, vmax=1, origin="lower", aspect="auto")
        for (task, at), value in np.ndenumerate(transfer.scores):
            look = {"color": "white" if shades[task, at] > 0.6 else "black"}
            look["weight"] = "bold" if at == best[task] else "normal"
            axis.text(task, at, f"{value:.2f}", ha="center", va="center", fontsize=6, **look)
        plot.style(axis, title=model, y="layer")
        axis.grid(False)
        axis.set_xticks(range(len(scores.tasks)), [title_of(task) for task in scores.tasks], rotation=45, ha="right")
        axis.set_yticks(range(len(transfer.layers)), [str(layer) for layer in transfer.layers])
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("0: worst layer, 1: best", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.supxlabel("bold: the best layer by dev", fontsize=8)
    return figure
