"""Fine-tuning in Zhao et al. 2020: how it changes the vectors, by layer, and the attention."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from embstore.models import FineTuned, FineTuneSettings, attention_similarity, finetune
from embstore.studies.zhao2020.probing import Run, apply_pretrained, extract_one, probe_stores

METRIC = {"pos": "accuracy", "ner": "f1", "classify": "accuracy", "paraphrase": "accuracy"}


def tune_all(run: Run) -> dict[str, FineTuned]:
    """Fine-tune the model on every task that has data."""
    return {task: tune(run, task, data) for task, data in run.settings.tuning.items()}


def tune(run: Run, task: str, data: str | Path, *, window: int | None = None) -> FineTuned:
    """Fine-tune the model on one task; `window` limits its attention."""
    settings = run.settings
    name = task if window is None else f"{task}-a{window}"
    rate: dict[str, Any] = {} if settings.tuning_rate is None else {"learning_rate": settings.tuning_rate}
    chosen = FineTuneSettings(
        epochs=settings.tuning_epochs,
        batch_size=settings.tuning_batch_size,
        n_examples=settings.tuning_sentences,
        attention_window=window,
        seed=settings.seed,
        **rate,
    )

    def make() -> FineTuned:
        out = run.folder.path / "models" / name
        return finetune(
            data,
            task=task,
            model=run.model,
            out=out,
            settings=chosen,
            device=run.device,
            progress=run.folder.bars,
        )

    return run.folder.step(f"fine-tune {name}", make)


def dev_scores(tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Return the dev score of each task at its best epoch: the paper's Table 3."""
    return pl.concat([best_epoch(each, task).with_columns(pl.lit(task).alias("task")) for task, each in tuned.items()])


def pos_by_window(run: Run) -> pl.DataFrame:
    """Return the dev accuracy of part-of-speech tagging by attention window: the paper's Table 7."""
    frames = []
    for window in run.settings.attention_windows:
        tuned = tune(run, "pos", run.settings.tuning["pos"], window=window)
        frames.append(best_epoch(tuned, "pos").with_columns(pl.lit(window, pl.Int64).alias("window")))
    return pl.concat(frames) if frames else pl.DataFrame()


def best_epoch(tuned: FineTuned, task: str) -> pl.DataFrame:
    """Return the dev score of a task at its best epoch."""
    chosen = pl.col("best") & (pl.col("split") == "dev") & (pl.col("metric") == METRIC[task])
    return tuned.frame.filter(chosen).select("epoch", "split", "metric", "value")


def probe_tuned(run: Run, tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Score (a) the pretrained model's probes and (b) new probes on each fine-tuned model: the paper's Figure 6."""
    frames = []
    for task, each in tuned.items():
        store = extract_one(run, f"tuned-{task}", each.path)
        frames.append(apply_pretrained(run, task, store).with_columns(pl.lit("a").alias("setup")))
        frames.append(probe_stores(run, f"tuned-{task}", {task: store}).with_columns(pl.lit("b").alias("setup")))
    return pl.concat(frames, how="diagonal").rename({"store": "model"})


def compare_attention(run: Run, tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Return the cosine of the attention before and after fine-tuning by layer and head: the paper's Figure 7."""
    count = run.settings.similarity_sentences
    frames = []
    for task, each in tuned.items():

        def make(path: Path = each.path) -> pl.DataFrame:
            return attention_similarity(
                run.open_corpus(),
                model_a=run.model,
                model_b=path,
                n_sentences=count,
                seed=run.settings.seed,
                device=run.device,
                progress=run.folder.bars,
            )

        made_from = {"model": run.model, "tuned": each.record, "sentences": count}
        frame = run.folder.table(f"attention-{task}", made_from, make)
        frames.append(frame.with_columns(pl.lit(task).alias("task")))
    return pl.concat(frames)
