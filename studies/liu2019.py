"""Liu et al. 2019: linear probes of every layer and which layers transfer; Lin et al. 2019: the order of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

import embstore as es
from embstore import plot
from embstore.corpus import EdgeSentence, derived_edges
from embstore.errors import InvalidValueError
from embstore.probes import ProbeResult, summary
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
    add_legend,
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

# What Rogers et al. 2020 state of both papers in section 5.2. The numbers of both are in figures and tables that are
# not at hand, and are left out. The probes, their training and the tasks are those of the authors' code:
# nelson-liu/contextual-repr-analysis (commit 1ba69cf) and yongjie-lin/bert-opensesame (commit 4b4d369).
MIDDLE = "Middle layers of transformers perform best and are the most transferable (Liu et al.; BERT and others)"
POS = "Parts of speech are read best from middle layers (Liu et al.; BERT base and large)"
ORDER = "Knowledge of linear word order decreases, around layer 4 of BERT-base's 12 (Lin et al.)"
HIERARCHY = "Knowledge of the hierarchy of sentences (main auxiliary, subject) increases with it (Lin et al.)"
PROBED = ("upos", "arcs", "dependencies")
# Of tasks of word order: the labels to find in a sentence. Generalisation: of sentences where the first word of the
# labels is another one, so that its place among them does not tell which it is.
ELEMENTS = {"main-auxiliary": ("main", "auxiliary"), "subject": ("subject", "noun")}
POSITIONS = tuple(str(number) for number in range(1, 10))  # as derived_edges labels them
ORDER_TASKS = ("index", *ELEMENTS)
GENERALISATION = "generalisation"
INDEXED = range(10, 31)  # the words of a sentence of the task index, as in the code of Lin et al.
LEAST_TASKS = 3  # for an interval over tasks
NAMES = {**TASKS, "upos": "POS (UD)", "arcs": "Arcs", "index": "index", "main-auxiliary": "main auxiliary"}
SPLIT_NAMES = {"test": "first of its kind", GENERALISATION: "not the first"}
Line = tuple[str, str, str | None, str]  # task, metric, split, item


@dataclass(frozen=True, kw_only=True)
class Liu2019(StudySettings):
    """Settings of the study: what linear probes read from each layer, and which layers serve most tasks.

    tasks: some of those in the folder and of those that a treebank has (upos, arcs, dependencies; index,
    main-auxiliary, subject), all by default. treebank: a folder with train, dev and test in CoNLL-U, if `data` is not
    one. n_sentences: of each split of each task at most, drawn by their texts, so that tasks over the same sentences
    draw the same ones; None for all. epochs, batch_size, learning_rate, patience, seeds: of the probes. untrained: also
    the model with random weights, as a baseline. resamples: of test sentences, for intervals.
    """

    about: ClassVar[str] = "linear probes of every layer on all tasks, which layers transfer, the order of words"
    data: ClassVar[str] = "a folder with a folder per task (as for tenney2019), or a treebank's in CoNLL-U"
    citation: ClassVar[str] = """@inproceedings{liu-etal-2019-linguistic,
  title = {Linguistic Knowledge and Transferability of Contextual Representations},
  author = {Liu, Nelson F. and Gardner, Matt and Belinkov, Yonatan and Peters, Matthew E. and Smith, Noah A.},
  booktitle = {Proceedings of NAACL-HLT 2019},
  year = {2019}, pages = {1073--1094}, doi = {10.18653/v1/N19-1112}
}
@inproceedings{lin-etal-2019-open,
  title = {Open Sesame: Getting Inside {BERT}'s Linguistic Knowledge},
  author = {Lin, Yongjie and Tan, Yi Chern and Frank, Robert},
  booktitle = {Proceedings of the 2019 ACL Workshop BlackboxNLP: Analyzing and Interpreting Neural Networks for NLP},
  year = {2019}, doi = {10.18653/v1/W19-4825}
}
@article{rogers-etal-2020-primer,
  title = {A Primer in {BERT}ology: What We Know About How {BERT} Works},
  author = {Rogers, Anna and Kovaleva, Olga and Rumshisky, Anna},
  journal = {Transactions of the Association for Computational Linguistics},
  year = {2020}, doi = {10.1162/tacl_a_00349}
}
"""
    least: ClassVar[dict[str, int]] = {"n_sentences": 1, "resamples": 1, "seeds": 0}

    tasks: tuple[str, ...] = ()
    treebank: str | Path | None = None
    n_sentences: int | None = 500
    epochs: int = 50
    batch_size: int = 16
    learning_rate: float = 5e-3
    patience: int = 3
    seeds: tuple[int, ...] = (0, 1, 2)
    untrained: bool = True
    resamples: int = 1000

    def probe(self, *, trained: bool = True) -> es.EdgeProbe:
        """Return linear probes as the study trains them, not fitted yet; those of random weights have one seed."""
        training = es.probes.Training(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, patience=self.patience
        )
        return es.EdgeProbe(kind="linear", seeds=self.seeds if trained else self.seeds[:1], training=training)


def load_tasks(settings: Liu2019, data: Path) -> dict[str, Task]:
    """Read and draw all tasks, those of word order last. Raises InvalidValueError, CorpusError."""
    folders = task_folders(data)
    treebank = settings.treebank or (data if any(data.glob("*.conllu")) else None)
    if not folders and treebank is None:
        raise InvalidValueError(
            f"{data} has no folder of a task with train.jsonl and no treebank, train, dev and test in CoNLL-U: give one"
        )
    derived = [] if treebank is None else [name for name in (*PROBED, *ORDER_TASKS) if name not in folders]
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
        files = treebank_files(Path(treebank or data))
        digests = {split: digest_of(path) for split, path in files.items()}
        for name in derived:
            splits = derived_splits(name, files)
            tasks[name] = Task({split: draw(held, count, seed) for split, held in splits.items()}, digests)
    return tasks


def with_targets(sentences: list[EdgeSentence]) -> list[EdgeSentence]:
    return [each for each in sentences if each.targets]


def derived_splits(name: str, files: Mapping[str, Path]) -> dict[str, list[EdgeSentence]]:
    """Derive a task from a treebank."""
    splits = {split: with_targets(derived_edges(files[split], name)) for split in SPLITS}
    if name == "index":
        splits = {split: [each for each in held if len(each.targets) in INDEXED] for split, held in splits.items()}
    if name in ELEMENTS:
        not_first = [each for held in splits.values() for each in held if not is_first(name, each)]
        splits = {split: [each for each in held if is_first(name, each)] for split, held in splits.items()}
        if not_first:
            splits[GENERALISATION] = not_first
    for split, sentences in splits.items():
        if not sentences:
            raise InvalidValueError(f"{files[split]} has no sentence for the task {name}: choose other tasks")
    return splits


def is_first(name: str, sentence: EdgeSentence) -> bool:
    """Return whether the element to find is the first word of its kind: the first auxiliary, or the first noun."""
    label, _ = ELEMENTS[name]
    return next(target.labels[0] for target in sentence.targets if target.labels[0] in ELEMENTS[name]) == label


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
        if scores.probed:
            sections += [tasks_table(scores, model, suffix), transfer_table(scores, model, suffix)]
        if set(tasks) & set(ORDER_TASKS):
            sections.append(order_table(scores, model, suffix))
        sections.append(findings(scores, model, suffix))
    return run.result(
        "Linear probes and transferability by layer, after Liu et al. 2019",
        f"{run.names}. Size: {sample} (all) of each of {len(tasks)} tasks, {sum(1 for _ in corpus):,} different ones, "
        f"words as their last subword; at most {settings.epochs} epochs (50) in batches of {settings.batch_size} (80) "
        f"at learning rate {settings.learning_rate:g} (0.001), patience {settings.patience} (3), seeds "
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
        checkpoint = run.out / "probes" / f"{step}.checkpoint"
        probe.fit(store, task.splits["train"], task.splits["dev"], name=name, checkpoint=checkpoint)
        splits = {split: held for split, held in task.splits.items() if split != "train"}
        result = probe.score(splits, resamples=run.settings.resamples)
        if name in ORDER_TASKS:
            labels = POSITIONS if name == "index" else ELEMENTS[name][:1]
            rows = [row for split in splits for row in sentence_rows(run, probe, splits[split], split, labels)]
            columns = {"store": store.path.stem, "task": name}
            frame = pl.DataFrame([{**columns, **row} for row in rows], infer_schema_length=None)
            own: Any = {column: dtype for column, dtype in result.frame.schema.items() if column in frame.columns}
            whole = pl.concat([result.frame, frame.cast(own)], how="diagonal")
            result = ProbeResult(whole, result.notes)
        for each in checkpoint.parent.glob(f"{step}*.checkpoint"):
            each.unlink()
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


def sentence_rows(
    run: Run[Liu2019], probe: es.EdgeProbe, sentences: Sequence[EdgeSentence], split: str, labels: Sequence[str]
) -> Iterator[Row]:
    """Yield the shares of sentences whose likeliest word for a label is the right one, by layer; then their mean."""
    right = {seed: right_words(probe, sentences, labels, seed) for seed in probe.fitted_.grid.seeds}
    draws = np.random.default_rng((run.settings.seed, len(sentences)))
    count = next(iter(right.values())).shape[2]
    weights = draws.multinomial(count, np.full(count, 1 / count), run.settings.resamples) / count
    items = {label: [place] for place, label in enumerate(labels)}
    if len(labels) > 1:
        items[""] = list(range(len(labels)))
    for item, places in items.items():
        by_seed = {seed: values[places].mean(0) for seed, values in right.items()}
        resampled = weights @ np.mean(list(by_seed.values()), 0).T
        for number, layer in enumerate(probe.fitted_.grid.layers):
            low, high = np.quantile(resampled[:, number], [0.025, 0.975]).tolist() if count > 1 else (None, None)
            row = {"split": split, "metric": "sentence_accuracy", "item": item, "layer": layer, "count": count}
            for seed, values in by_seed.items():
                yield {**row, "seed": seed, "value": float(values[number].mean()), "low": low, "high": high}


def right_words(
    probe: es.EdgeProbe, sentences: Sequence[EdgeSentence], labels: Sequence[str], seed: int
) -> NDArray[np.float64]:
    """Return whether the word of each sentence with the highest score for a label has it, [labels, layers, sentences].

    A sentence whose word has no row counts as wrong.
    """
    joined = probe.join(sentences)
    known = probe.fitted_.labels.labels
    scores = probe.predict(sentences, seed=seed, layerwise=True)
    first = joined.split.first.tolist()
    right = np.zeros((len(labels), len(scores), len(first) - 1))
    for place, label in enumerate(labels):
        has_label = np.array([label in target.labels for target in joined.targets])
        for number, (start, stop) in enumerate(pairwise(first)):
            best = scores[:, start:stop, known.index(label)].argmax(1)
            right[place, :, number] = has_label[start:stop][best]
    return right


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

    @property
    def probed(self) -> list[str]:
        """The tasks of the transfer table, all but those of word order."""
        return [task for task in self.tasks if task not in ORDER_TASKS]

    def rows(self, model: str, task: str, metric: str, *, encoder: str = "trained") -> pl.DataFrame:
        """Return the rows of a metric of one task on test, or on dev if there is no test; empty if there are none."""
        frame = self.means.get((model, encoder))
        if frame is None:
            return pl.DataFrame(schema={"value": pl.Float64})
        rows = frame.filter(task=task, metric=metric)
        return rows.filter(split="test" if "test" in rows["split"] else "dev")

    def curve(
        self, model: str, task: str, metric: str = "layer_f1", *, split: str | None = None, item: str = ""
    ) -> Curve | None:
        """Return a score by layer, on test or else on dev; None if there is none."""
        rows = self.means[model, "trained"].filter(task=task, metric=metric, item=item).sort("layer")
        chosen = rows.filter(split=split or ("test" if "test" in rows["split"] else "dev"))
        if not len(chosen):
            return None
        value, low, high = (chosen[name].to_numpy() for name in ("value", "low", "high"))
        return Curve(tuple(chosen["layer"]), value, low, high, rows.filter(split="dev")["value"].to_numpy())

    def curves(self, model: str) -> list[Curve]:
        return [curve for task in self.probed if (curve := self.curve(model, task)) is not None]


class Transfer:
    """How the layers of one model rank over tasks: `scores` float64 [tasks, layers], `best` the place of a layer."""

    def __init__(self, scores: Scores, model: str) -> None:
        curves = scores.curves(model)
        self.layers = curves[0].layers
        self.scores = np.array([each.value for each in curves])
        self.dev = np.array([each.dev for each in curves])
        self.normalized = normalized(self.scores)
        self.best = int(normalized(self.dev).mean(0).argmax())  # on dev
        self.gaps = self.normalized - self.normalized[:, [self.best]]

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
    for task, curve in zip(scores.probed, scores.curves(model), strict=True):
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
    interval, gap_interval = over_tasks(transfer.normalized), over_tasks(gaps)

    def with_ends(value: float, ends: NDArray[np.float64] | None, at: int, form: str) -> str:
        return f"{value:{form}}" + ("" if ends is None else bracketed(ends[0][at], ends[1][at], ".2f"))

    rows: list[Row] = []
    for at, layer in enumerate(transfer.layers):
        row: Row = {"layer": layer, "mean score": decimals(float(transfer.scores[:, at].mean()))}
        row["normalized"] = with_ends(transfer.normalized[:, at].mean(), interval, at, ".2f")
        row["mean rank"] = f"{ranks[:, at].mean():.1f}"
        row["highest in"] = int((ranks[:, at] < 2).sum())
        gap = with_ends(gaps[:, at].mean(), gap_interval, at, "+.2f")
        row[f"less layer {transfer.layers[transfer.best]}"] = "best on dev" if at == transfer.best else gap
        rows.append(row)
    brackets = f"95 % intervals over {len(transfer.scores)} tasks by Student's t"
    if interval is None:
        brackets = f"nothing, as {LEAST_TASKS} tasks are needed"
    note = (
        "Figure 5 of the survey (Rogers et al. 2020, after Liu et al.) as numbers. Normalized: from 0, the worst layer "
        "of a task, to 1, its best, on average over tasks; rank 1 is the best layer; highest in: the number of tasks. "
        "The last column is the difference of normalized scores from the layer that is best on dev; a layer whose "
        "interval includes 0 is not distinct from it. In brackets: "
        f"{brackets}; they are of tasks like these, and tasks over the same sentences are not independent."
    )
    return Section(f"Transferability of layers{suffix}", note, rows)


def order_curves(scores: Scores, model: str) -> dict[str, tuple[str, str, Curve]]:
    """Return the scores of word order by their names in the report, each with its task and split."""
    lines = [("index", "test", "", "index, mean of positions")]
    lines += [("index", "test", position, f"index {position}") for position in POSITIONS]
    lines += [
        (task, split, label, f"{title_of(task)}, {name}")
        for task, (label, _) in ELEMENTS.items()
        for split, name in SPLIT_NAMES.items()
    ]
    curves: dict[str, tuple[str, str, Curve]] = {}
    for task, split, item, name in lines:
        curve = scores.curve(model, task, "sentence_accuracy", split=split, item=item) if task in scores.tasks else None
        if curve is not None:
            if split == GENERALISATION:  # what dev has, without such sentences, does not choose among layers
                curve = replace(curve, dev=curve.value)
            curves[name] = (task, split, curve)
    return curves


def order_table(scores: Scores, model: str, suffix: str) -> Section:
    rows: list[Row] = []
    for name, (task, split, curve) in order_curves(scores, model).items():
        counted = scores.means[model, "trained"].filter(task=task, split=split, metric="sentence_accuracy")
        row: Row = {"word": name, "sentences": counted["count"][0], **curve.cells()}
        row["best layer"] = f"{curve.layers[curve.best]}: {curve.shown(curve.best)}"
        random = scores.means.get((model, "untrained"), counted.clear()).filter(
            task=task, split=split, metric="sentence_accuracy", layer=curve.layers[-1]
        )
        if len(random) and name not in (f"index {position}" for position in POSITIONS):
            row["random weights"] = decimals(random["value"][-1])
        rows.append(row)
    note = (
        "After Lin et al. 2019: the share of sentences in which the word with the highest score is the right one. "
        "Index: the first to ninth word of sentences of 10 to 30 words. Main auxiliary and subject noun: probes are "
        "trained on sentences in which it is the first auxiliary or noun, so that its place alone tells it; it is "
        "not the first in the rows that say so (sentences of all splits, none of them trained on), where the first one "
        "is always wrong. Best layer: by dev; of the latter by these sentences themselves, so that its score is a "
        "little too high. Random weights: the last layer of an untrained network. "
        "Sentences of a treebank, where the paper has generated ones: no numbers are compared."
    )
    return Section(f"Linear order and hierarchy{suffix}", note, rows)


def findings(scores: Scores, model: str, suffix: str) -> Section:
    stated: list[tuple[str, str, str]] = []
    if scores.probed:
        stated.append((MIDDLE, *middle_finding(Transfer(scores, model))))
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
    curves = order_curves(scores, model)
    if "index, mean of positions" in curves:
        curve = curves["index, mean of positions"][2]
        drops = np.diff(curve.value)
        place, top = int(drops.argmin()), int(curve.value[:2].argmax())
        here = f"{curve.shown(top)} at layer {curve.layers[top]}, {curve.shown(-1)} at layer {curve.layers[-1]}; "
        here += f"falls most from layer {curve.layers[place]} to {curve.layers[place + 1]} ({drops[place]:+.3f})"
        stated.append((ORDER, here, curve.compared(-1, top)))
    for task in ELEMENTS:
        name = f"{title_of(task)}, {SPLIT_NAMES[GENERALISATION]}"
        if name in curves:
            curve = curves[name][2]
            middle = len(curve.layers) // 2
            here = f"{name}: {curve.shown(0)} at layer 0, {curve.shown(middle)} at layer {curve.layers[middle]}"
            stated.append((HIERARCHY, here, curve.compared(0, middle)))
    note = (
        "Stated: by Rogers et al. 2020, section 5.2. Holds, or does not: the intervals do not overlap, or the interval "
        "of the difference leaves out 0; otherwise it is not determined. Middle layers are best: layer 0 and the last "
        "are both lower than the best. Hierarchy: layer 0 and the one in the middle."
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
    figures: dict[str, tuple[str, Any]] = {}
    if scores.probed:
        own: dict[str, list[Line]] = {title_of(task): [(task, "layer_f1", None, "")] for task in scores.probed}
        figures["layers.png"] = ("Linear probes by layer", curves_figure(scores, own, "score (test)"))
        figures["transfer.png"] = ("Scores of each layer, by task", transfer_figure(scores))
    order: dict[str, list[Line]] = {}
    if "index" in scores.tasks:
        order[title_of("index")] = [("index", "sentence_accuracy", "test", "")]
    for task, (element, _) in ELEMENTS.items():
        if task in scores.tasks:
            order[title_of(task)] = [(task, "sentence_accuracy", split, element) for split in SPLIT_NAMES]
    if order:
        figures["order.png"] = ("Linear order and hierarchy", curves_figure(scores, order, "share of sentences"))
    return figures


def curves_figure(scores: Scores, lines_of: Mapping[str, Sequence[Line]], y: str) -> Any:
    """Draw scores by layer with their intervals, a panel for each name and a color for each model."""
    figure, axes = plot.subplots(1, len(lines_of), figsize=(3.0 * len(lines_of) + 0.4, 3.2))
    for (name, lines), axis in zip(lines_of.items(), axes[0], strict=True):
        for number, model in enumerate(scores.models):
            for (task, metric, split, item), dash in zip(lines, ("-", "--"), strict=False):
                curve = scores.curve(model, task, metric, split=split, item=item)
                if curve is not None:
                    label = model if len(lines) == 1 else f"{model}, {SPLIT_NAMES[str(split)]}"
                    values = (curve.value, curve.low, curve.high)
                    draw_line(axis, curve.layers, *values, number=number, label=label, dash=dash)
        plot.style(axis, title=name, x="layer", y=y)
    add_legend(figure, axes)
    return figure


def transfer_figure(scores: Scores) -> Any:
    """Draw the normalized scores of layers (rows) and tasks (columns), darker where higher, with the scores."""
    transfers = {model: Transfer(scores, model) for model in scores.models}
    height = max(len(transfer.layers) for transfer in transfers.values())
    size = ((0.62 * len(scores.probed) + 1.2) * len(transfers) + 0.6, 0.36 * height + 1.6)
    figure, axes = plot.subplots(1, len(transfers), figsize=size)
    for axis, (model, transfer) in zip(axes[0], transfers.items(), strict=True):
        shades, best = transfer.normalized, transfer.dev.argmax(1)
        image = axis.imshow(shades.T, cmap="Blues", vmin=0, vmax=1, origin="lower", aspect="auto")
        for (task, at), value in np.ndenumerate(transfer.scores):
            look = {"color": "white" if shades[task, at] > 0.6 else "black"}
            look["weight"] = "bold" if at == best[task] else "normal"
            axis.text(task, at, f"{value:.2f}", ha="center", va="center", fontsize=7, **look)
        axis.set_xticks(range(len(scores.probed)), [title_of(task) for task in scores.probed], rotation=45, ha="right")
        axis.set_yticks(range(len(transfer.layers)), [str(layer) for layer in transfer.layers])
        axis.set_title(model, fontsize=11)
        axis.set_ylabel("layer", fontsize=9)
    figure.colorbar(image, ax=axes, label="from the worst layer of a task (0) to its best (1)")
    figure.supxlabel("bold: the best layer by dev", fontsize=8)
    return figure
