"""Kovaleva et al. 2019: patterns of attention, what fine-tuning changes, and which heads a task needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

import embstore as es
from embstore import plot
from embstore.analysis import attention_similarity
from embstore.corpus import read_trees
from embstore.errors import InvalidValueError
from embstore_studies.finetuning import (
    TASKS,
    FineTuned,
    FineTuneSettings,
    find_splits,
    finetune,
    label_names,
    read_items,
)
from embstore_studies.heads import disable_heads
from embstore_studies.study import Row, Run, Section, StudyResult, StudySettings, decimals, digest_of

# Kovaleva et al. 2019, section 4.6 (page 8), BERT-base fine-tuned on GLUE: absolute changes of the score, as later
# texts quote them; numbers of figures alone are left out.
DISABLING = (
    ("largest gain by a single head", "STS-B, the least of all tasks", "+0.001"),
    ("largest gain by a single head", "MRPC, the most of all tasks", "+0.012"),
    ("without the first layer's heads", "RTE", "+0.032"),
    ("without a layer's heads", "QNLI and MNLI, the largest drop", "-0.002"),
)
# Rogers et al. 2020, sections 5.1 and 6.3, on Kovaleva et al. 2019 (BERT-base fine-tuned on GLUE).
HETEROGENEOUS = "less than half of the maps"
CHANGED = "the last two layers"
STATISTICS = ("shares", "patterns")
NOTES = (
    "Patterns: by an explicit rule (docs/how-to/attention.md). The paper's classifier was trained on maps labeled "
    "by hand, which are not public, so its shares are not ours.",
    "The paper's tasks are of GLUE with BERT-base; its numbers are printed for orientation, without a difference.",
    "Intervals are over sentences of dev and hold for all heads and layers of a task together; they do not cover "
    "other fine-tuning runs. The epoch of fine-tuning was chosen on dev too.",
    "The features of the paper's Figure 5 and its frame-semantic relations need annotation that is not public.",
)


@dataclass(frozen=True, kw_only=True)
class Kovaleva2019(StudySettings):
    about: ClassVar[str] = "patterns of attention before and after fine-tuning, disabled heads and layers"
    data: ClassVar[str] = "a file in CoNLL-U on which attention is measured"
    takes_one_model: ClassVar[bool] = True
    citation: ClassVar[str] = """@inproceedings{kovaleva-etal-2019-revealing,
  title = {Revealing the Dark Secrets of {BERT}},
  author = {Kovaleva, Olga and Romanov, Alexey and Rogers, Anna and Rumshisky, Anna},
  booktitle = {Proceedings of EMNLP-IJCNLP 2019},
  year = {2019}, eprint = {1908.08593}
}
"""

    tuning: Mapping[str, str | Path] = field(default_factory=dict)
    n_sentences: int | None = 300
    tuning_epochs: int = 1
    tuning_sentences: int | None = 1500
    tuning_rate: float = 2e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tuning or set(self.tuning) - set(TASKS):
            raise InvalidValueError(
                f"tuning {dict(self.tuning)} is not allowed: kovaleva2019 needs data for tasks of {', '.join(TASKS)}"
            )
        self.finetuning()

    def finetuning(self) -> FineTuneSettings:
        """Return the settings of fine-tuning."""
        return FineTuneSettings(
            epochs=self.tuning_epochs,
            batch_size=16,
            learning_rate=self.tuning_rate,
            n_examples=self.tuning_sentences,
            seed=self.seed,
        )


def run(run: Run[Kovaleva2019], data: Path) -> StudyResult:
    """Run the study on a file in CoNLL-U, see `reproduce`."""
    settings = run.settings
    ((name, model),) = run.models.items()
    read_trees(data)
    files = {task: find_splits(source) for task, source in settings.tuning.items()}
    items = {task: {s: read_items(task, path) for s, path in splits.items()} for task, splits in files.items()}
    for task, splits in items.items():
        label_names(files[task]["train"], splits["train"], splits["dev"])
    run.begin()
    tuned = {task: tune(run, task, model) for task in settings.tuning}
    weights = next(iter(tuned.values())).record["weights"]
    maps = [measure(run, "pretrained", data, model, weights)]
    maps += [measure(run, task, data, str(each.path), each.record) for task, each in tuned.items()]
    tables: dict[str, list[pl.DataFrame]] = {}
    for task, each in tuned.items():
        for table, frame in tables_of(run, task, model, each, files[task]).items():
            tables.setdefault(table, []).append(frame.with_columns(task=pl.lit(task)))
    frames = {"attention": pl.concat(maps)} | {table: pl.concat(parts) for table, parts in tables.items()}
    for task, each in tuned.items():
        labels = Counter(label for item in items[task]["dev"] for label in item.labels if label is not None)
        most, best = max(labels.values()) / labels.total(), max(row["dev"]["accuracy"] for row in each.record["epochs"])
        if best <= most:
            run.notes.append(
                f"{task}: the accuracy on dev, {best:.3f}, is not above the share of the most frequent label, "
                f"{most:.3f}: fine-tuning has learned nothing, effects mean nothing; change the tuning settings."
            )
    run.notes += NOTES
    if "paraphrase" in settings.tuning:
        run.notes.append("Cosines of attention of pairs are of each sentence alone.")
    scores = Scores(name, tuple(settings.tuning), frames)
    sections = [patterns(scores), changes(scores)]
    for task in scores.tasks:
        sections += [layers(scores, task), heads(scores, task)]
    sentences, examples = (
        "all" if count is None else f"{count:,}" for count in (settings.n_sentences, settings.tuning_sentences)
    )
    scale = (
        f"Fine-tuned on {examples} sentences, {settings.tuning_epochs} epoch(s) at {settings.tuning_rate:g}; attention "
        f"and scores on {sentences} sentences; disabled heads attend uniformly; seed {settings.seed}."
    )
    corpora = "; ".join(
        f"{task} on {splits['train'].name}, scored on {splits['dev'].name} (SHA-256 {digest_of(splits['dev'])[:12]})"
        for task, splits in files.items()
    )
    software = ", ".join(f"{package} {number}" for package, number in tuned[task].record["software"].items())
    return run.result(
        "Attention heads before and after fine-tuning, after Kovaleva et al. 2019",
        f"{name}. {scale}",
        frames=frames,
        sections=[*sections, paper()],
        figures=run.save_figures(figures_of(scores)),
        methods=f"{name} (weights SHA-256 {weights[:12]}) was fine-tuned for {corpora}. Attention was measured on "
        f"{data.name} (SHA-256 {digest_of(data)[:12]}). {scale} Software: {software}.",
    )


def tune(run: Run[Kovaleva2019], task: str, model: str) -> FineTuned:
    out, source = run.out / "models" / task, run.settings.tuning[task]
    settings = run.settings.finetuning()
    return run.step(f"fine-tune {task}", lambda: finetune(source, task=task, model=model, out=out, settings=settings))


def measure(run: Run[Kovaleva2019], name: str, corpus: Path, model: str, weights: Any) -> pl.DataFrame:
    """Return shares and patterns of every head, in the pretrained model or after a task."""
    sample = {"n_sentences": run.settings.n_sentences, "seed": run.settings.seed}
    made_from = {"corpus": digest_of(corpus), **sample, "model": weights}
    frame = run.table(
        f"attention {name}",
        made_from,
        lambda: es.attention(corpus, model=model, statistics=STATISTICS, **sample).frame,  # type: ignore[arg-type]
    )
    return frame.with_columns(model=pl.lit(name))


def tables_of(
    run: Run[Kovaleva2019], task: str, model: str, tuned: FineTuned, files: Mapping[str, Path]
) -> dict[str, pl.DataFrame]:
    """Return what the heads of a fine-tuned model do, as steps.

    `similarity`: the cosine of each head's attention before and after, on sentences of dev, those of a pair one by one.
    `disabled`: see `disable_heads`.
    """
    settings, tables = run.settings, dict[str, pl.DataFrame]()
    sample: dict[str, Any] = {"n_sentences": settings.n_sentences, "seed": settings.seed}
    made_from = {"tuned": tuned.record, **sample}
    is_text = TASKS[task].n_sentences > 0
    items = read_items(task, files["dev"])
    sentences = [words for item in items for words in (map(str.split, item.texts) if is_text else [list(item.texts)])]
    for name, make in {
        "similarity": lambda: attention_similarity(sentences, model_a=model, model_b=tuned.path, **sample),
        "disabled": lambda: disable_heads(files["dev"], model=tuned.path, **sample),
    }.items():
        tables[name] = run.table(f"{name} {task}", made_from, make)
    return tables


@dataclass(frozen=True, eq=False)
class Scores:
    """The frames of one run: `attention` with a column model (pretrained or a task), the others with a column task."""

    model: str
    tasks: tuple[str, ...]
    frames: Mapping[str, pl.DataFrame]

    def of(self, table: str, task: str) -> pl.DataFrame:
        """Return the rows of a task."""
        return self.frames[table].filter(pl.col("task") == task)


def patterns(scores: Scores) -> Section:
    frame = scores.frames["attention"].filter(pl.col("metric") == "pattern", pl.col("layer").is_not_null())
    rows: list[Row] = []
    for model in ("pretrained", *scores.tasks):
        part = frame.filter(pl.col("model") == model)
        for layer in (None, *sorted(part["layer"].unique())):
            own = part if layer is None else part.filter(pl.col("layer") == layer)
            means = own.group_by("item", maintain_order=True).agg(pl.col("value").mean())
            cells = {item: decimals(value) for item, value in means.iter_rows()}
            rows.append({"model": model, "layer": "all" if layer is None else str(layer), **cells})
    rows.append({"model": "paper: fine-tuned on GLUE", "layer": "all", "heterogeneous": HETEROGENEOUS})
    note = (
        "Shares of maps of each pattern, means over heads, by an explicit rule; theirs is a classifier trained on maps "
        "labeled by hand (the statement is that of Rogers et al. 2020, section 5.1)."
    )
    return Section("Patterns of attention maps", note, rows)


def changes(scores: Scores) -> Section:
    rows: list[Row] = []
    for task in scores.tasks:
        means = scores.of("similarity", task).group_by("layer").agg(pl.col("value").mean()).sort("layer")
        lowest = means.sort("value")["layer"][:2].sort().to_list()
        cells = {f"layer {layer}": decimals(value) for layer, value in means.select("layer", "value").iter_rows()}
        rows.append({"task": task, **cells, "changed most": ", ".join(map(str, lowest))})
    rows.append({"task": "paper", "changed most": CHANGED})
    note = "Cosine of attention weights before and after fine-tuning on sentences of dev, means over heads."
    return Section("Attention before and after fine-tuning", note, rows)


def layers(scores: Scores, task: str) -> Section:
    frame = scores.of("disabled", task)
    whole = frame.row(0, named=True)
    rows: list[Row] = [{"without": "nothing", whole["metric"]: decimals(whole["value"])}]
    for row in frame.filter(pl.col("head").is_null(), pl.col("layer").is_not_null()).to_dicts():
        rows.append(
            {"without": f"the heads of layer {row['layer']}", whole["metric"]: decimals(row["value"]), **_effect(row)}
        )
    return Section(f"Disabled layers: {task}", f"Dev, {whole['count']:,} labels; MLPs remain.", rows)


def heads(scores: Scores, task: str) -> Section:
    frame = scores.of("disabled", task).filter(pl.col("head").is_not_null()).sort("effect")
    clear = frame.filter(pl.col("clear"))
    n_worse, n_better = clear.filter(pl.col("effect") < 0).height, clear.filter(pl.col("effect") > 0).height
    chosen = pl.concat([frame[:3], frame[-3:]]).unique(["layer", "head"], maintain_order=True)
    rows = [{"without head": f"{row['layer']}.{row['head']}", **_effect(row)} for row in chosen.to_dicts()]
    mean = sum(frame["effect"]) / frame.height
    note = (
        f"The extremes of {frame.height} heads. Clear effects: {n_worse} heads without which the score falls, "
        f"{n_better} without which it rises; the mean of all is {mean:+.4f}. The others may be noise."
    )
    return Section(f"Disabled heads: {task}", note, rows)


def _effect(row: Row) -> Row:
    interval, clear = f"{row['low']:+.4f} to {row['high']:+.4f}", "yes" if row["clear"] else "no"
    return {"change": f"{row['effect']:+.4f}", "95 %, all together": interval, "clear": clear}


def paper() -> Section:
    rows = [{"what": what, "task": task, "change": change} for what, task, change in DISABLING]
    note = (
        "Kovaleva et al. 2019, section 4.6, BERT-base on GLUE; without intervals. Of its figures nothing is read off."
    )
    return Section("Disabled heads and layers in the paper", note, rows)


def figures_of(scores: Scores) -> dict[str, tuple[str, Any]]:
    """Draw the figures, with their titles by the names of their files."""
    figures: dict[str, tuple[str, Any]] = {}
    for model in ("pretrained", *scores.tasks):
        maps = scores.frames["attention"].filter(model=model, metric="pattern")
        title = f"Patterns of attention maps by layer: {model}"
        figures[f"patterns-{model}.png"] = (title, plot.attention_figure(maps, title=model))
    for task in scores.tasks:
        title = f"Attention before and after fine-tuning for {task}"
        figures[f"similarity-{task}.png"] = (title, plot.attention_heatmap(scores.of("similarity", task), title=title))
        figures[f"heads-{task}.png"] = (f"Disabled heads: {task}", heads_figure(scores, task))
    return figures


def heads_figure(scores: Scores, task: str) -> Any:
    """Draw the effects of disabled heads."""
    figure, (axis,) = plot.panels(1, height=2.4)
    disabled = scores.of("disabled", task).filter(pl.col("head").is_not_null())
    reach = float(disabled["effect"].abs().max() or 0) or 1.0  # type: ignore[arg-type]
    grid = disabled.pivot("head", index="layer", values="effect").sort("layer").drop("layer").to_numpy()
    extent = (-0.5, grid.shape[1] - 0.5, 0.5, len(grid) + 0.5)
    look = {"origin": "lower", "aspect": "auto", "cmap": "RdBu", "vmin": -reach, "vmax": reach, "zorder": 1}
    figure.colorbar(axis.imshow(grid, extent=extent, **look), ax=axis).ax.tick_params(labelsize=7)
    plot.style(axis, title=f"{scores.model}, {task}: score without a head minus with it", x="head", y="layer")
    axis.yaxis.get_major_locator().set_params(integer=True)
    return figure
