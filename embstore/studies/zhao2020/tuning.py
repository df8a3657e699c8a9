"""Fine-tuning in Zhao et al. 2020: what it changes in the vectors, by layer, and in the attention."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from embstore.corpus import open_corpus
from embstore.models import FineTuned, FineTuneSettings, attention_similarity, finetune
from embstore.studies.zhao2020.probing import (
    LABEL,
    Setting,
    Stores,
    extracted_once,
    load_pretrained,
    pretrained_probes,
    probed_again,
)

METRIC = {"pos": "accuracy", "ner": "f1", "classify": "accuracy", "paraphrase": "accuracy"}


def tuned_models(setting: Setting, data: Mapping[str, str | Path]) -> dict[str, FineTuned]:
    """Fine-tune the model on every task whose data is given."""
    return {task: _tuned(setting, task, folder) for task, folder in data.items()}


def _tuned(setting: Setting, task: str, data: str | Path, *, window: int | None = None) -> FineTuned:
    scale = setting.scale
    name = task if window is None else f"{task}-a{window}"
    options: dict[str, Any] = {} if scale.tuning_rate is None else {"learning_rate": scale.tuning_rate}
    return setting.study.timed(
        f"fine-tune {name}",
        lambda: finetune(
            data,
            task=task,
            model=setting.model,
            out=setting.study.folder / "models" / name,
            settings=FineTuneSettings(
                epochs=scale.tuning_epochs,
                batch_size=scale.tuning_batch_size,
                n_examples=scale.tuning_sentences,
                attention_window=window,
                seed=scale.seed,
                **options,
            ),
            device=setting.device,
        ),
    )


def scores(setting: Setting, tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Table 3: the dev score of each task at its best epoch."""
    return pl.concat([_best(each, task).with_columns(pl.lit(task).alias("task")) for task, each in tuned.items()])


def pos_by_window(setting: Setting, data: str | Path) -> pl.DataFrame:
    """Table 7: POS accuracy on dev by the window of attention, None for all."""
    frames = []
    for window in setting.scale.attention_windows:
        tuned = _tuned(setting, "pos", data, window=window)
        frames.append(_best(tuned, "pos").with_columns(pl.lit(window, pl.Int64).alias("window")))
    return pl.concat(frames) if frames else pl.DataFrame()


def _best(tuned: FineTuned, task: str) -> pl.DataFrame:
    chosen = pl.col("best") & (pl.col("split") == "dev") & (pl.col("metric") == METRIC[task])
    return tuned.frame.filter(chosen).select("epoch", "split", "metric", "value")


def probed(setting: Setting, tuned: Mapping[str, FineTuned], stores: Stores) -> pl.DataFrame:
    """Figure 6: scores of (a) the pretrained model's probes, (b) new ones, on each fine-tuned model's vectors."""
    frames = []
    for task, each in tuned.items():
        store = extracted_once(setting, f"tuned-{task}", each.path)
        frames.append(_applied(setting, task, store).with_columns(pl.lit("a").alias("setup")))
        frames.append(probed_again(setting, task, store).with_columns(pl.lit("b").alias("setup")))
    return pl.concat(frames, how="diagonal").rename({"store": "model"})


def _applied(setting: Setting, task: str, store: Any) -> pl.DataFrame:
    probe = load_pretrained(setting)

    def make() -> pl.DataFrame:
        result = probe.score(data=store, splits=("dev", "test"), name=task)
        return result.summary().with_columns(pl.lit("own").alias("vocabulary"))

    document = json.loads((pretrained_probes(setting) / "probe.json").read_text())
    made_from = {"store": store.metadata.fingerprint, "probes": document, "label": LABEL}
    return setting.study.table(f"applied-{task}", made_from, make)


def attention(setting: Setting, tuned: Mapping[str, FineTuned], data: Mapping[str, str | Path]) -> pl.DataFrame:
    """Figure 7: cosine of the attention before and after fine-tuning, by layer and head, on sentences of the corpus."""
    scale = setting.scale
    frames = []
    for task, each in tuned.items():

        def make(path: Path = each.path) -> pl.DataFrame:
            return attention_similarity(
                open_corpus(setting.corpus, format="pse"),
                model_a=setting.model,
                model_b=path,
                n_sentences=scale.similarity_sentences,
                seed=scale.seed,
                device=setting.device,
            )

        made_from = {"model": setting.model, "tuned": each.record, "sentences": scale.similarity_sentences}
        frame = setting.study.table(f"attention-{task}", made_from, make)
        frames.append(frame.with_columns(pl.lit(task).alias("task")))
    return pl.concat(frames)
