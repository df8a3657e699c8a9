"""Kovaleva et al. 2019, end to end: patterns of attention, what fine-tuning changes, and which heads a task needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import torch

from embstore.analysis import attention_similarity
from embstore.analysis.attention.annotated import has_trees
from embstore.analysis.attention.measure import attention
from embstore.config import config
from embstore.corpus import Corpus, Sentence, open_corpus
from embstore.errors import InvalidValueError
from embstore.models.checkpoint import open_checkpoint
from embstore.models.transformer.heads import find_heads
from embstore_studies.finetuning.data import LabeledText, find_splits, label_names, labels_of, read_items
from embstore_studies.finetuning.finetune import FineTuned, finetune
from embstore_studies.finetuning.network import load_trainable
from embstore_studies.finetuning.settings import TASKS
from embstore_studies.heads.measure import disable_heads, head_importance, prune_heads
from embstore_studies.kovaleva2019.published import CITATION
from embstore_studies.kovaleva2019.report import Scores, draw, sections
from embstore_studies.kovaleva2019.settings import Kovaleva2019
from embstore_studies.study import LOG, Given, StudyResult, StudyRun, digest_of

STATISTICS = ("shares", "patterns", "relations")


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Kovaleva2019]):
    """One run of the study. `files`: train and dev by task."""

    corpus: Path
    name: str
    model: str
    files: Mapping[str, Mapping[str, Path]]

    @cached_property
    def origin(self) -> dict[str, Any]:
        """What the tables of attention are made from, besides the model."""
        return {"corpus": digest_of(self.corpus), "sentences": self.settings.n_sentences, "seed": self.settings.seed}

    @property
    def options(self) -> dict[str, Any]:
        return {"device": self.device, "progress": self.folder.bars}


def run(given: Given[Kovaleva2019], data: Path) -> StudyResult:
    """Run the study on a file in CoNLL-U, see `embstore_studies.reproduce`."""
    settings = given.settings
    ((name, model),) = given.models.items()
    files = check_data(settings, data)
    n_layers, n_heads = check_model(model)
    passes = n_heads * (n_layers + 1) // 2 + 2 + 9 * (len(settings.seeds) + 1)
    study = Run.of(given, corpus=data, name=name, model=model, files=files)
    LOG.info(
        f"cost of a task: fine-tuning, and about {passes} passes over {settings.n_sentences or 'all'} sentences of dev"
    )
    tuned = {task: tune(study, task) for task in settings.tuning}
    weights = next(iter(tuned.values())).record["weights"]
    maps = [measured(study, "pretrained", model, weights)]
    maps += [measured(study, task, each.path, each.record) for task, each in tuned.items()]
    tables = {task: tables_of(study, task, each) for task, each in tuned.items()}
    frames = {"attention": pl.concat(maps)} | {
        name: pl.concat(own[name].with_columns(task=pl.lit(task)) for task, own in tables.items())
        for name in ("similarity", "disabled", "importance", "pruned")
    }
    study.notes.extend((*unlearned(files, tuned), *notes(settings)))
    scores = Scores(name, n_layers, n_heads, tuple(settings.tuning), frames)
    return study.result(
        "Attention heads before and after fine-tuning, after Kovaleva et al. 2019",
        f"{name}. {settings.describe()}",
        frames=frames,
        sections=sections(scores),
        figures=draw(scores, study.out / "figures"),
        methods=methods(study, tuned),
        citation=CITATION,
    )


def check_data(settings: Kovaleva2019, data: Path) -> dict[str, dict[str, Path]]:
    """Read every file once; raises before any model is loaded."""
    if problem := has_trees(open_corpus(data)):
        raise InvalidValueError(f"{data} {problem}: kovaleva2019 needs a file in CoNLL-U")
    found = {}
    for task, source in settings.tuning.items():
        found[task] = find_splits(source)
        items = {split: read_items(TASKS[task], path) for split, path in found[task].items()}
        label_names(found[task], items)
    return found


def check_model(model: str) -> tuple[int, int]:
    """Return layers and heads; raises ModelError for a model that cannot be fine-tuned or whose heads are not found."""
    trainable = load_trainable(open_checkpoint(model, revision=None), model, ("a", "b"))
    network = trainable.network
    network.config.use_cache = False
    with torch.no_grad():
        sites = find_heads(network, network.base_model, {"input_ids": trainable.probe}, name=Path(model).name)
    return sites.tap.num_hidden_layers, sites.n_heads


def tune(run: Run, task: str) -> FineTuned:
    def make() -> FineTuned:
        out = run.folder.path / "models" / task
        settings = run.settings.finetuning()
        return finetune(
            run.settings.tuning[task], task=task, model=run.model, out=out, settings=settings, **run.options
        )

    return run.folder.step(f"fine-tune {task}", make)


def measured(run: Run, name: str, model: str | Path, weights: Any) -> pl.DataFrame:
    """Return shares, patterns and relations of every head, in the pretrained model or after a task."""

    def make() -> pl.DataFrame:
        with config(**run.options):
            return attention(run.corpus, model=model, statistics=STATISTICS, **run.settings.sample).frame

    frame = run.folder.table(f"attention {name}", {**run.origin, "model": weights}, make)
    return frame.with_columns(model=pl.lit(name))


def tables_of(run: Run, task: str, tuned: FineTuned) -> dict[str, pl.DataFrame]:
    """Return what the heads of a fine-tuned model do, as steps.

    `similarity`: the cosine of each head's attention before and after, on sentences of dev. `disabled`, `importance`
    and `pruned`: see `disable_heads`, `head_importance` and `prune_heads`; heads are ranked on train.
    """
    settings, files = run.settings, run.files[task]
    scoring = {"model": tuned.path, **settings.scoring, **run.options}
    made_from = {"tuned": tuned.record, "settings": settings.scoring, "how": settings.how, "seeds": settings.seeds}
    found: dict[str, pl.DataFrame] = {}

    def compare() -> pl.DataFrame:
        corpus = dev_sentences(task, files["dev"])
        with config(**run.options):
            return attention_similarity(corpus, model_a=run.model, model_b=tuned.path, **settings.sample)

    for name, make in {
        "similarity": compare,
        "disabled": lambda: disable_heads(files["dev"], how=settings.how, **scoring),
        "importance": lambda: head_importance(files["train"], **scoring),
        "pruned": lambda: prune_heads(files["dev"], importance=found["importance"], seeds=settings.seeds, **scoring),
    }.items():
        found[name] = run.folder.table(f"{name} {task}", made_from, make)
    return found


def dev_sentences(task: str, path: Path) -> Corpus:
    """Return the sentences of labeled data; those of a pair one by one, split at spaces."""
    items = read_items(TASKS[task], path)
    words = ([text.split() for text in each.texts] if isinstance(each, LabeledText) else [each.words] for each in items)
    return open_corpus([Sentence(each) for own in words for each in own])


def unlearned(files: Mapping[str, Mapping[str, Path]], tuned: Mapping[str, FineTuned]) -> list[str]:
    """Return a note for each task whose fine-tuned model is not better than always the most frequent label of dev."""
    found = []
    for task, each in tuned.items():
        items = read_items(TASKS[task], files[task]["dev"])
        labels = Counter(label for item in items for label in labels_of(item))
        most = max(labels.values()) / labels.total()
        best = max(row["dev"]["accuracy"] for row in each.record["epochs"])
        if best <= most:
            found.append(
                f"{task}: the accuracy on dev, {best:.3f}, is not above the share of the most frequent label, "
                f"{most:.3f}: fine-tuning has learned nothing, effects mean nothing; change the tuning settings."
            )
    return found


def notes(settings: Kovaleva2019) -> tuple[str, ...]:
    """Return what a reader must know."""
    found = [
        "Patterns: by an explicit rule (docs/how-to/attention.md). The paper's classifier was trained on maps labeled "
        "by hand, which are not public, so its shares are not ours.",
        "The paper's tasks are of GLUE with BERT-base; its numbers are printed for orientation, without a difference.",
        "Intervals are over sentences of dev and hold for all heads and layers of a task together; they do not cover "
        "other fine-tuning runs. The epoch of fine-tuning was chosen on dev too.",
        "Heads are ranked on train, pruned with their output set to zero, without training in between. The relative "
        "importance of Voita et al. 2019 (layer-wise relevance propagation) is not computed.",
        "The features of the paper's Figure 5 and its frame-semantic relations need annotation that is not public; "
        "dependency relations are given instead.",
    ]
    if "paraphrase" in settings.tuning:
        found.append("Cosines of attention of pairs are of each sentence alone.")
    return tuple(found)


def methods(run: Run, tuned: Mapping[str, FineTuned]) -> str:
    record = next(iter(tuned.values())).record
    software = ", ".join(f"{name} {version}" for name, version in record["software"].items())
    corpora = "; ".join(
        f"{task} on {files['train'].name}, scored on {files['dev'].name} (SHA-256 {digest_of(files['dev'])[:12]})"
        for task, files in run.files.items()
    )
    return (
        f"{run.name} (weights SHA-256 {record['weights'][:12]}) was fine-tuned for {corpora}. Attention was measured "
        f"on {run.corpus.name} (SHA-256 {digest_of(run.corpus)[:12]}). {run.settings.describe()} Software: {software}."
    )
