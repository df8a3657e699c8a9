"""The tables of Zhao et al. 2020 as they are read: rows for print, a report in Markdown, and the figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import polars as pl

from embstore.studies.report import Row, Shown, decimals, seconds_table
from embstore.studies.zhao2020 import published

if TYPE_CHECKING:
    from embstore.studies.zhao2020.study import Zhao2020

COUNTERPART = {"skip-gram": "PSE"}  # ours by the paper's name


def tables(result: Zhao2020) -> list[Shown]:
    """Every table of the study; scores are micro F1 over word-class decisions where nothing else is said."""
    shown = [_counts(result), *_types(result), _contexts(result), _selectivity(result)]
    if len(result.windows):
        shown.append(_windows(result))
    if result.tuning is not None:
        shown.append(_tuning(result.tuning))
    if result.pos_windows is not None and len(result.pos_windows):
        shown.append(_pos(result.pos_windows))
    if result.finetuned is not None:
        shown.append(_finetuned(result))
    return shown


def scale_line(result: Zhao2020) -> str:
    """What the study was scaled to, beside the paper's."""
    scale = result.scale
    units = f" of {scale.hidden_size} units (1,024)" if scale.kind == "mlp" else ""
    return (
        f"Scale, in brackets the paper's: at most {scale.max_contexts} contexts a word-class pair (100), {scale.kind} "
        f"probes (mlp){units}, at most {scale.epochs} epochs (400) in batches of {scale.batch_size} at "
        f"{scale.learning_rate:g} (0.001), {len(scale.seeds)} seed(s); fine-tuning on "
        f"{'all' if scale.tuning_sentences is None else f'{scale.tuning_sentences:,}'} sentences (all), "
        f"{scale.tuning_epochs} epochs (5), rate {scale.tuning_rate or 5e-5:g} (5e-05)."
    )


def f1(frame: pl.DataFrame, **where: Any) -> pl.DataFrame:
    """The rows of micro F1 that fit."""
    chosen = pl.col("metric") == "f1"
    for name, value in where.items():
        chosen = chosen & (pl.col(name) == value)
    return frame.filter(chosen)


def _counts(result: Zhao2020) -> Shown:
    rows = result.counts.filter(pl.col("class") == "").drop("class").to_dicts()
    classes = result.counts["class"].n_unique() - 1
    return Shown("Table 2. Words, word-class pairs and contexts", f"{classes} classes.", rows)


def _value(frame: pl.DataFrame, split: str) -> str | None:
    row = frame.filter(pl.col("split") == split)
    if not len(row):
        return None
    value, deviation = row["value"][0], row["deviation"][0]
    text = "" if value is None else f"{value:.3f}"
    return text if deviation is None else f"{text} ± {deviation:.3f}"


def _score_rows(
    result: Zhao2020, frame: pl.DataFrame, layered: str, table: dict[str, Any], theirs: dict[str, Any]
) -> list[Row]:
    """A row a representation and layer, dev and test, and the published figures of the same name."""
    rows = []
    same_depth = result.num_hidden_layers == published.NUM_HIDDEN_LAYERS
    for (name, layer), group in f1(frame, task="class").group_by("store", "layer", maintain_order=True):
        known: dict[str, float] = table.get(COUNTERPART.get(str(name), str(name)), {})
        if name == layered and same_depth and isinstance(layer, int) and layer > 0:
            known = {split: values[layer - 1] for split, values in theirs.items()}
        rows.append(
            {
                "representation": name if name != layered else f"{name}, layer {layer}",
                "dev": _value(group, "dev"),
                "test": _value(group, "test"),
                "paper dev": decimals(known.get("dev")),
                "paper test": decimals(known.get("test")),
            }
        )
    return rows


PAPER = (
    "Paper: BERT-base-uncased on Wiki-PSE, its layers beside ours only where the model has as many. Layer 0 is the "
    "embeddings; layer l, the output of block l, is the paper's layer l - 1."
)


def _types(result: Zhao2020) -> Iterable[Shown]:
    for (vocabulary,), frame in result.types.group_by("vocabulary", maintain_order=True):
        rows = _score_rows(result, frame, "AVG", published.UNCONTEXTUAL, dict(published.AVERAGED))
        among = "" if vocabulary == "own" else f" on the words of {vocabulary} alone"
        yield Shown(f"Table 5. One vector a word{among}", PAPER, rows)


def _contexts(result: Zhao2020) -> Shown:
    rows = _score_rows(result, result.contexts, "BERT", published.BAGS, dict(published.CONTEXTUAL))
    return Shown("Table 6. A vector a context", PAPER, rows)


def _selectivity(result: Zhao2020) -> Shown:
    rows = []
    for (name, layer), group in result.contexts.group_by("store", "layer", maintain_order=True):
        test = group.filter((pl.col("split") == "test") & (pl.col("item") == ""))
        values = {(task, metric): value for task, metric, value in test.select("task", "metric", "value").iter_rows()}
        rows.append(
            {
                "representation": f"{name}, layer {layer}" if name == "BERT" else name,
                "class": decimals(values.get(("class", "f1"))),
                "control": decimals(values.get(("control", "f1"))),
                "selectivity": decimals(values.get(("class", "selectivity"))),
                "contexts F1": decimals(values.get(("class", "contexts_f1"))),
            }
        )
    return Shown(
        "Control task: classes drawn by word (test)", "Selectivity: the class task's F1 less the control's.", rows
    )


def by_window(result: Zhao2020) -> pl.DataFrame:
    """Dev F1 by representation, layer and window, the whole sentence (null) among them."""
    whole = result.contexts.filter(pl.col("store").is_in(["BERT", "P-BERT"])).with_columns(
        pl.lit(None, pl.Int64).alias("window")
    )
    frame = pl.concat([result.windows, whole], how="diagonal")
    return f1(frame, split="dev", task="class").select("store", "layer", "window", "value", "deviation")


def _windows(result: Zhao2020) -> Shown:
    frame = by_window(result)
    rows = []
    for (name, layer), group in frame.group_by("store", "layer", maintain_order=True):
        values = dict(group.select("window", "value").iter_rows())
        row: Row = {"representation": f"{name}, layer {layer}" if name == "BERT" else name}
        for window in result.scale.context_windows:
            row["all" if window is None else str(window)] = decimals(values.get(window))
        rows.append(row)
    return Shown("Figure 5. Words of context on each side (dev)", "The input is truncated to so many words.", rows)


def _tuning(frame: pl.DataFrame) -> Shown:
    rows = [
        {"task": task, "metric": metric, "dev": decimals(value), "paper dev": decimals(published.FINETUNED[task])}
        for task, metric, value in frame.select("task", "metric", "value").iter_rows()
    ]
    return Shown("Table 3. Fine-tuning", "Paper: BERT-base-uncased, on other data.", rows)


def _pos(frame: pl.DataFrame) -> Shown:
    rows = [
        {
            "window": "all" if window is None else str(window),
            "dev": decimals(value),
            "paper dev": decimals(published.POS_BY_WINDOW.get(window)),
        }
        for window, value in frame.select("window", "value").iter_rows()
    ]
    return Shown("Table 7. POS accuracy by attention window", "Words that a word attends to on each side.", rows)


def _finetuned(result: Zhao2020) -> Shown:
    assert result.finetuned is not None
    rows = []
    before = f1(result.contexts, split="dev", task="class", store="BERT")
    for layer, value in before.select("layer", "value").iter_rows():
        row: Row = {"layer": layer, "pretrained": decimals(value)}
        after = f1(result.finetuned, split="dev", task="class", layer=layer)
        for task, setup, score in after.select("model", "setup", "value").iter_rows():
            row[f"{task} ({setup})"] = decimals(score)
        rows.append(row)
    note = "(a) the probes of the pretrained model, (b) new probes, on the vectors of the fine-tuned one."
    return Shown("Figure 6. Before and after fine-tuning (dev)", note, rows)


def write_report(result: Zhao2020) -> None:
    """Leave report.md, with every table and figure, in the study's folder."""
    from embstore.studies.zhao2020.figures import draw

    figures = draw(result)
    lines = [
        "# Semantic-class probing after Zhao et al. 2020",
        "",
        f"Model {result.model}, {result.num_hidden_layers} layers. {scale_line(result)}",
        "",
    ]
    for table in tables(result):
        lines += table.markdown()
    lines += ["## Figures", ""]
    lines += [f"![{title}](figures/{name})\n" for name, title in figures.items()]
    if result.notes:
        lines += ["## Notes", "", *(f"- {note}" for note in dict.fromkeys(result.notes)), ""]
    lines += seconds_table(dict(result.seconds)).markdown()
    (result.folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
