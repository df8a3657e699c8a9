"""Tenney et al. 2019: in which layers of a model each task of the NLP pipeline is solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

import embstore as es
from embstore import plot
from embstore.probes import summary
from embstore_studies.study import (
    TASKS,
    Distinct,
    Row,
    Run,
    Section,
    StudyResult,
    StudySettings,
    Task,
    decimals,
    methods,
    read_tasks,
    student,
)

# What the paper states of BERT-large on OntoNotes and others, layers counted as in embstore. The order is that of
# section 4, earliest first, by both metrics; of the accuracy of POS at layer 0, on dev, section 4.1 names no model.
ORDER = ("pos", "constituents", "dependencies", "semantic-roles", "coreference")
N_LAYERS = 24
POS_AT_LAYER_0 = 0.89
HIGHEST_WEIGHTS = (9, 20)  # the layers where mixing weights are concentrated, of many tasks (section 4)
HIGHEST_GAINS = (1, 7)  # the layers of the highest differential scores, of many tasks (section 4)
# Figure 1: expected layer and center of gravity. They are in the drawing alone; these are the numbers that
# github.com/ml5885/model_internal_sleuthing (plots/plot_figure1_paper_comparison.py, commit 9161c0c) reads from it.
FIGURE1 = {
    "pos": {"expected_layer": 3.39, "center_of_gravity": 11.68},
    "constituents": {"expected_layer": 3.79, "center_of_gravity": 13.06},
    "dependencies": {"expected_layer": 5.69, "center_of_gravity": 13.75},
    "entities": {"expected_layer": 4.64, "center_of_gravity": 13.16},
    "semantic-roles": {"expected_layer": 6.54, "center_of_gravity": 13.63},
    "coreference": {"expected_layer": 9.47, "center_of_gravity": 15.80},
    "protoroles": {"expected_layer": 9.93, "center_of_gravity": 12.72},
    "relations": {"expected_layer": 9.40, "center_of_gravity": 12.83},
}
WHERE = {"center_of_gravity": "center of gravity", "expected_layer": "expected layer"}
LEAST_SEEDS = 3  # for a spread over seeds


@dataclass(frozen=True, kw_only=True)
class Tenney2019(StudySettings):
    about: ClassVar[str] = "in which layers the tasks of the NLP pipeline are solved"
    data: ClassVar[str] = "a folder with a folder per task, each with train.jsonl, dev.jsonl and perhaps test.jsonl"
    citation: ClassVar[str] = """@inproceedings{tenney-etal-2019-bert,
  title = {{BERT} Rediscovers the Classical {NLP} Pipeline},
  author = {Tenney, Ian and Das, Dipanjan and Pavlick, Ellie},
  booktitle = {Proceedings of the 57th Annual Meeting of the Association for Computational Linguistics},
  year = {2019}, pages = {4593--4601}, doi = {10.18653/v1/P19-1452}
}
"""

    tasks: tuple[str, ...] = ()
    n_sentences: int | None = 300
    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 1e-3
    hidden_size: int = 256
    seeds: tuple[int, ...] = (0, 1, 2)
    layers: str = "all"
    untrained: bool = True
    resamples: int = 1000

    def probe(self, *, trained: bool = True) -> es.probes.EdgeProbe:
        """Return edge probes as the study trains them, not fitted yet; those of random weights have one seed."""
        return es.probes.EdgeProbe(
            hidden_size=self.hidden_size,
            seeds=self.seeds if trained else self.seeds[:1],
            training=es.probes.Training(
                epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, patience=3
            ),
        )


def run(run: Run[Tenney2019], data: Path) -> StudyResult:
    """Run the study on a folder of tasks, see `reproduce`."""
    settings, models = run.settings, run.models
    tasks = read_tasks(data, settings.tasks, settings.n_sentences, settings.seed)
    settings.probe()
    run.begin()

    def extract(name: str, model: str, layers: str) -> es.Store:
        file = f"{name}-subwords-{settings.n_sentences or 'all'}-{settings.seed}"
        options = es.ExtractionOptions(layers=layers, unit="subword")
        splits = [sentences for task in tasks.values() for sentences in task.splits.values()]
        corpus = Distinct(lambda: (each.words for each in chain.from_iterable(splits)))
        return run.extract(name, corpus, model=model, options=options, file=file)

    stores = {name: run.with_untrained(name, settings.untrained, extract, settings.layers) for name in models}
    frame = pl.concat(
        probe_task(run, store, model, encoder, name, task).select(
            pl.lit(model).alias("model"), pl.lit(encoder).alias("encoder"), pl.all()
        )
        for model, encoders in stores.items()
        for encoder, store in encoders.items()
        for name, task in tasks.items()
    )
    trained = {name: encoders["trained"] for name, encoders in stores.items()}
    scores = Scores(list(models), tuple(tasks), frame)
    sections: list[Section] = []
    for model in models:
        suffix = f" ({model})" if len(models) > 1 else ""
        tables = (tasks_table, order_table, layers_table)
        sections += [table(scores, model, suffix) for table in tables]
    sections.append(depth_table(scores))
    count, seeds = settings.n_sentences, ", ".join(map(str, settings.seeds))
    sample = "all sentences" if count is None else f"at most {count:,} sentences of each split"
    return run.result(
        "The NLP pipeline after Tenney et al. 2019",
        f"{run.names}. Size: {sample} of each of {len(tasks)} tasks (the paper: all), one row per subword, "
        f"probes of {settings.hidden_size} units (256), at most {settings.epochs} epochs, seeds {seeds}, "
        f"seed {settings.seed}.",
        frames={"scores": frame},
        sections=sections,
        figures=run.save_figures(figures_of(scores)),
        methods=methods(trained),
    )


def probe_task(run: Run[Tenney2019], store: es.Store, model: str, encoder: str, name: str, task: Task) -> pl.DataFrame:
    """Train, score and save the probes of one task on one store, or return the stored scores."""
    trained = encoder == "trained"
    step = name if trained else f"{name}-{encoder}"
    probe = run.settings.probe(trained=trained)

    def make() -> tuple[pl.DataFrame, Sequence[str]]:
        probe.fit(store, task.splits["train"], task.splits["dev"], name=name)
        held = {split: sentences for split, sentences in task.splits.items() if split != "train"}
        result = probe.score(held, resamples=run.settings.resamples)
        return result.frame, result.notes if trained else ()

    made_from = {
        "store": store.digest,
        "task": task.digests,
        "sample": [run.settings.n_sentences, run.settings.seed],
        "probe": repr(probe),
        "resamples": run.settings.resamples,
    }
    return run.table(f"{model}-{step}", made_from, make)


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one run: `frame` of model, encoder and the columns of `ProbeResult`."""

    models: Sequence[str]
    tasks: Sequence[str]
    frame: pl.DataFrame

    def means(self, model: str, *, encoder: str = "trained") -> pl.DataFrame:
        """Return means over the seeds."""
        return summary(self.frame.filter(model=model, encoder=encoder).drop("model", "encoder"))

    @cached_property
    def trained(self) -> dict[tuple[str, str], TaskScores]:
        """The scores of the trained model by model and task."""
        means = {model: self.means(model) for model in self.models}
        return {(model, task): TaskScores(means[model], task) for model in self.models for task in self.tasks}


class TaskScores:
    """The means of one task over the seeds, looked up by metric."""

    def __init__(self, means: pl.DataFrame, task: str) -> None:
        frame = means.filter(task=task)
        self.split = "test" if "test" in frame["split"] else "dev"
        self._rows = {(row["split"], row["metric"], row["layer"]): row for row in frame.to_dicts()}
        self.layers = sorted(layer for _, metric, layer in self._rows if metric == "mixing")

    def row(self, metric: str, layer: int | None = None, *, split: str | None = None) -> Row:
        """Return the row of a metric, that of train if only train has it; empty if there is none."""
        chosen = split or self.split
        return self._rows.get((chosen, metric, layer)) or self._rows.get(("train", metric, layer)) or {}

    def value(self, metric: str, layer: int | None = None, *, split: str | None = None) -> float | None:
        value: float | None = self.row(metric, layer, split=split).get("value")
        return value

    def shares(self) -> list[float | None]:
        """Return differential scores by their sum, as in Figure 2; None without a sum above 0."""
        scores = [self.value("differential", layer) for layer in self.layers]
        total = sum(each for each in scores if each is not None)
        return [None if each is None or total <= 0 else each / total for each in scores]


def title_of(task: str) -> str:
    """Return the name of a task in the paper's figures."""
    return TASKS.get(task, task)


def interval(row: Row) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over seeds by Student's t, wider if that over sentences reaches further.

    None for fewer than LEAST_SEEDS seeds, whose spread is not known.
    """
    value, deviation, count = row["value"], row.get("deviation"), row.get("seeds", 0)
    if deviation is None or count < LEAST_SEEDS:
        return None
    spread = student(deviation, count)
    ends = [value - spread, value + spread, *(row[name] for name in ("low", "high") if row.get(name) is not None)]
    return min(ends), max(ends)


def shown(row: Row, places: int = 3) -> str:
    """Format a value with its deviation over the seeds and its interval: over sentences, or else of the mean."""
    value, deviation, low = row.get("value"), row.get("deviation"), row.get("low")
    if value is None:
        return "not determined" if row.get("item") else ""
    text = f"{value:.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")
    ends = interval(row) if low is None else (low, row["high"])
    return text if ends is None else f"{text} [{ends[0]:.{places}f}, {ends[1]:.{places}f}]"


def tasks_table(scores: Scores, model: str, suffix: str) -> Section:
    untrained = scores.means(model, encoder="untrained")
    rows = []
    for task in scores.tasks:
        own, random = scores.trained[model, task], TaskScores(untrained, task)
        first, last = own.layers[0], own.layers[-1]
        row: Row = {
            "task": title_of(task),
            "targets": own.row("majority_f1").get("count"),
            "majority": decimals(own.value("majority_f1")),
            "P(0)": shown(own.row("f1", first)),
            "P(L)": shown(own.row("f1", last)),
            "dev": " → ".join(decimals(own.value("f1", layer, split="dev")) for layer in (first, last)),
        }
        if random.layers:
            row["random weights"] = decimals(random.value("f1", random.layers[-1]))
        row["P(0), paper"] = f"{decimals(POS_AT_LAYER_0)} (which model is not said)" if task == "pos" else ""
        for metric, name in WHERE.items():
            value, paper = own.value(metric), FIGURE1.get(task, {}).get(metric)
            row[name] = shown(own.row(metric), 2)
            difference = "" if value is None or paper is None or last != N_LAYERS else f" ({value - paper:+.2f})"
            row[f"{name}, paper"] = "" if paper is None else f"{paper:.2f}{difference}"
        row["K(s)"] = decimals(own.value("mixing_kl"))
        row["K(Δ)"] = decimals(own.value("differential_kl"))
        rows.append(row)
    note = (
        "Micro F1 of P(0) and P(L) and expected layer on test; ±: deviation over the seeds; in brackets 95 % intervals "
        "over sentences, and of centers of gravity that of the mean over the seeds by Student's t. dev: F1 of P(0) and "
        "P(L) on dev, which early stopping uses too. Majority: the best constant answer. Random weights: P(L) on an "
        f"untrained network. Paper: BERT-large ({N_LAYERS} layers) on OntoNotes and others, dev; what is "
        "empty is in the drawing alone. Only a model of as many layers has a difference, in parentheses. An expected "
        "layer is not determined if it or its interval is not within the layers: the notes say why."
    )
    return Section(f"Figure 1. Tasks by metric{suffix}", note, rows)


def depth_table(scores: Scores) -> Section:
    rows = []
    for task in scores.tasks:
        row: Row = {"task": title_of(task)}
        for model in scores.models:
            own = scores.trained[model, task]
            first, last = own.layers[0], own.layers[-1]
            row[f"{model}: P(0) → P(L)"] = " → ".join(decimals(own.value("f1", layer)) for layer in (first, last))
            for metric, name in WHERE.items():
                value = own.value(metric)
                row[f"{model}: {name}"] = "" if value is None or not last else f"{value / last:.2f}"
        for metric, name in WHERE.items():
            value = FIGURE1.get(task, {}).get(metric)
            row[f"paper: {name}"] = "" if value is None else f"{value / N_LAYERS:.2f}"
        rows.append(row)
    note = (
        "Centers of gravity and expected layers as shares of a model's depth, which makes models of different depth "
        "comparable: in the paper tasks concentrate at the same share of BERT-base and BERT-large. Paper: BERT-large. "
        "The texts and annotations differ, so no difference is given."
    )
    return Section("Figure A.2. Tasks by depth, models side by side", note, rows)


def order_table(scores: Scores, model: str, suffix: str) -> Section:
    known = [title_of(task) for task in ORDER if task in scores.tasks]
    rows = [{"by": "the paper, both", "order": " < ".join(known), "in its order": "", "distinct": ""}]
    for metric, name in WHERE.items():
        found = {task: scores.trained[model, task].row(metric) for task in scores.tasks}
        values = {task: row["value"] for task, row in found.items() if row.get("value") is not None}
        ordered = sorted(values, key=values.__getitem__)
        pairs = [pair for pair in combinations(ORDER, 2) if set(pair) <= set(ordered)]
        right = sum(ordered.index(first) < ordered.index(second) for first, second in pairs)
        ends = {task: each for task in ordered if (each := interval(found[task])) is not None}
        both = [(ends[a], ends[b]) for a, b in pairs if a in ends and b in ends]
        distinct = sum(one[1] < two[0] or two[1] < one[0] for one, two in both)
        has_spread = len(ends) == len(ordered)
        rows.append(
            {
                "by": name,
                "order": " < ".join(f"{title_of(task)} {found[task]['value']:.2f}" for task in ordered),
                "in its order": f"{right} of {len(pairs)} pairs",
                "distinct": f"{distinct} of {len(pairs)}" if has_spread else f"not known: under {LEAST_SEEDS} seeds",
            }
        )
    note = (
        "Lowest first. In its order: of the pairs of tasks that the paper orders. Distinct: pairs whose intervals "
        "(95 % of the mean over seeds by Student's t, and for expected layers over sentences where that is wider) "
        f"do not overlap; this takes {LEAST_SEEDS} seeds or more. A seed is the initial weights, the dropout "
        "and the order of the sentences."
    )
    return Section(f"The order of tasks{suffix}", note, rows)


def layers_table(scores: Scores, model: str, suffix: str) -> Section:
    kinds = {
        "f1": "F1 of P(l)",
        "mixing": "mixing weight",
        "differential": "differential (F1)",
        "share": "differential, share of the sum",
    }
    rows: list[Row] = []
    for task in scores.tasks:
        own = scores.trained[model, task]
        for metric, name in kinds.items():
            values = own.shares() if metric == "share" else [own.value(metric, layer) for layer in own.layers]
            by_layer = dict(zip(own.layers, values, strict=True))
            known = [(value, layer) for layer, value in by_layer.items() if value is not None]
            row: Row = {"task": title_of(task), "": name}
            row |= {str(layer): decimals(value) for layer, value in by_layer.items()}
            rows.append(row | {"highest": f"{max(known)[1]} of {own.layers[-1]}" if known else ""})
    (low, high), (first, last) = HIGHEST_WEIGHTS, HIGHEST_GAINS
    note = (
        "Columns are layers; highest: the layer of the greatest value. The paper, of BERT-large and most tasks: mixing "
        f"weights are highest in layers {low}-{high} of {N_LAYERS}, differentials in layers {first}-{last}."
    )
    return Section(f"Figure 2. By layer{suffix}", note, rows)


def figures_of(scores: Scores) -> dict[str, tuple[str, Any]]:
    """Draw every figure, with its title by the name of its file."""
    named = {model: scores.means(model).with_columns(pl.col("task").replace(TASKS)) for model in scores.models}
    first = next(iter(named.values()))
    figures = {
        "figure1.png": ("Figure 1. Summary", plot.edge_summary(first)),
        "figure2.png": ("Figure 2. By layer", plot.edge_layers(first)),
    }
    if len(named) > 1:
        figures["figureA2.png"] = ("Figure A.2. Summary by model", plot.edge_summary(named))
        figures["figureA3.png"] = ("Figure A.3. By layer and model", plot.edge_layers(named))
    return figures
