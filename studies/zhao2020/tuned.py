"""The model after fine-tuning: Tables 3 and 7, Figures 6 and 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from embstore.analysis import attention_similarity
from embstore.config import config
from embstore.corpus.sentence import PAIR
from embstore_studies.finetuning.data import LabeledText, find_splits, read_items
from embstore_studies.finetuning.finetune import FineTuned, finetune
from embstore_studies.finetuning.settings import check_task
from embstore_studies.zhao2020.probing import apply_pretrained, probe_stores
from embstore_studies.zhao2020.stores import Run, extract_one

METRIC = {"pos": "accuracy", "ner": "f1", "classify": "accuracy", "paraphrase": "accuracy"}


def tune(run: Run, task: str, data: str | Path, *, window: int | None = None) -> FineTuned:
    """Fine-tune the model on one task; `window` limits its attention."""
    name = task if window is None else f"{task}-a{window}"

    def make() -> FineTuned:
        out = run.folder.path / "models" / name
        return finetune(
            data,
            task=task,
            model=run.model,
            out=out,
            settings=run.settings.finetuning(window),
            device=run.device,
            progress=run.folder.bars,
        )

    return run.folder.step(f"fine-tune {name}", make)


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
        store = extract_one(run, f"tuned-{task}", each.path, tested=False)
        frames.append(apply_pretrained(run, task, store).with_columns(pl.lit("a").alias("setup")))
        renewed = probe_stores(run, f"tuned-{task}", {task: store}, splits=("dev",))
        frames.append(renewed.with_columns(pl.lit("b").alias("setup")))
    return pl.concat(frames, how="diagonal").rename({"store": "model"})


def compare_attention(run: Run, tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Return the cosine of the attention before and after fine-tuning, on the dev set of the task: Figure 7."""
    count = run.settings.similarity_sentences
    frames = []
    for task, each in tuned.items():

        def make(task: str = task, path: Path = each.path) -> pl.DataFrame:
            sentences = dev_sentences(run, task)
            with config(device=run.device, progress=run.folder.bars):
                return attention_similarity(
                    sentences, model_a=run.model, model_b=path, n_sentences=count, seed=run.settings.seed
                )

        # the record has the hashes of the data and of the model's weights
        frame = run.folder.table(f"attention-{task}", {"tuned": each.record, "dev sentences": count}, make)
        frames.append(frame.with_columns(pl.lit(task).alias("task")))
    return pl.concat(frames)


def dev_sentences(run: Run, task: str) -> list[Sequence[str]]:
    """Return the words of the dev sentences of a task; between two sentences of a pair is the mark of a pair."""
    path = find_splits(run.settings.tuning[task])["dev"]
    found: list[Sequence[str]] = []
    for item in read_items(check_task(task, run.settings.finetuning()), path):
        if isinstance(item, LabeledText):
            first, *others = (text.split() for text in item.texts)
            found.append([*first, *(word for other in others for word in (PAIR, *other))])
        else:
            found.append(item.words)
    return found
