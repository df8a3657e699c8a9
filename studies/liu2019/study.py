"""Liu et al. 2019, end to end: linear probes of every layer, which layers transfer, and the order of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore import ExtractionOptions
from embstore.corpus import EdgeSentence
from embstore.probes import EdgeProbe, ProbeResult
from embstore.probes.edges.scores import interval
from embstore.store import Store
from embstore_studies.extract import extract_step, with_untrained
from embstore_studies.liu2019.published import CITATION
from embstore_studies.liu2019.report import Scores, draw, sections
from embstore_studies.liu2019.settings import Liu2019
from embstore_studies.liu2019.tasks import ELEMENTS, ORDER_TASKS, POSITIONS, Sentences, Task, load_tasks
from embstore_studies.study import LOG, Given, StudyResult, StudyRun, methods, write_text

SECONDS = 0.005  # of a processor: a task, seed, layer and number of the vectors


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Liu2019]):
    """One run of the study."""

    tasks: Mapping[str, Task]


def run(given: Given[Liu2019], data: Path) -> StudyResult:
    """Run the study on a folder of tasks or a treebank, see `embstore_studies.reproduce`."""
    models, tasks = given.models, load_tasks(given.settings, data)
    run = Run.of(given, tasks=tasks)
    scale = run.settings.describe(len(tasks), sum(1 for _ in Sentences(tasks)))
    LOG.info(scale)
    stores = {name: with_untrained(run, name, partial(extract_one, run)) for name in models}
    log_cost(run, stores)
    frame = pl.concat(
        probe_task(run, store, model, encoder, task).select(
            pl.lit(model).alias("model"), pl.lit(encoder).alias("encoder"), pl.all()
        )
        for model, encoders in stores.items()
        for encoder, store in encoders.items()
        for task in tasks
    )
    scores = Scores(models, tuple(tasks), frame)
    return run.result(
        "Linear probes and transferability by layer, after Liu et al. 2019",
        f"{run.names}. {scale}",
        frames={"scores": frame},
        sections=sections(scores),
        figures=draw(scores, run.out / "figures"),
        methods=methods({name: encoders["trained"] for name, encoders in stores.items()}),
        citation=CITATION,
    )


def extract_one(run: Run, name: str, model: str, layers: str) -> Store:
    settings = run.settings
    chosen = f"-{'-'.join(run.tasks)}" if settings.tasks else ""
    return extract_step(
        run,
        name,
        Sentences(run.tasks),
        model=model,
        options=ExtractionOptions(layers=layers, pooling="last"),
        file=f"{name}-{settings.n_sentences or 'all'}-{settings.seed}{chosen}",
    )


def log_cost(run: Run, stores: Mapping[str, Mapping[str, Store]]) -> None:
    """Log what the probes will cost, before the first is trained."""
    numbers = sum(
        len(store.layers) * store.hidden_size * (len(run.settings.seeds) if encoder == "trained" else 1)
        for encoders in stores.values()
        for encoder, store in encoders.items()
    )
    minutes = SECONDS * numbers * len(run.tasks) / 60
    LOG.info(f"linear probes of {len(run.tasks)} tasks: about {minutes:.0f} min of one processor")


def probe_task(run: Run, store: Store, model: str, encoder: str, name: str) -> pl.DataFrame:
    """Train and score the linear probes of one task on one store, or return the stored scores."""
    task, trained = run.tasks[name], encoder == "trained"
    step = f"{model}-{name}" + ("" if trained else f"-{encoder}")
    probe = run.settings.probe(trained=trained)
    made_from = {
        "store": store.digest,
        "task": dict(task.digests),
        "sample": [run.settings.n_sentences, run.settings.seed],
        "probe": repr(probe),
        "resamples": run.settings.resamples,
    }
    notes = run.folder.path / "tables" / f"{step}.notes"

    def make() -> pl.DataFrame:
        checkpoint = run.folder.path / "probes" / f"{step}.checkpoint"
        train, dev = task.splits["train"], task.splits["dev"]
        probe.fit(store, train, dev, name=name, checkpoint=checkpoint)
        splits = {split: found for split, found in task.splits.items() if split != "train"}
        result = probe.score(splits, resamples=run.settings.resamples)
        if name in ORDER_TASKS:
            labels = POSITIONS if name == "index" else ELEMENTS[name][:1]
            rows = [row for split in splits for row in sentence_rows(run, probe, splits[split], split, labels)]
            found = ProbeResult.of(rows, store=store.path.stem, task=name)
            result = ProbeResult.concat([result, found])
        write_text(notes, "\n".join(note for note in result.notes if "the expected layer" not in note))
        for each in checkpoint.parent.glob(f"{step}*.checkpoint"):
            each.unlink()
        return result.frame

    frame = run.folder.table(step, made_from, make, needs=notes)
    if trained:
        run.notes.extend(notes.read_text(encoding="utf-8").splitlines())
    return frame


def sentence_rows(
    run: Run, probe: EdgeProbe, sentences: Sequence[EdgeSentence], split: str, labels: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the shares of sentences whose likeliest word for a label is the right one, by layer; then their mean."""
    found = {seed: found_words(probe, sentences, labels, seed) for seed in probe.fitted_.grid.seeds}
    draws = np.random.default_rng((run.settings.seed, len(sentences)))
    count = next(iter(found.values())).shape[2]
    weights = draws.multinomial(count, np.full(count, 1 / count), run.settings.resamples) / count
    chosen = {label: [place] for place, label in enumerate(labels)}
    if len(labels) > 1:
        chosen[""] = list(range(len(labels)))
    for item, places in chosen.items():
        right = {seed: values[places].mean(0) for seed, values in found.items()}
        resampled = weights @ np.mean(list(right.values()), 0).T
        for number, layer in enumerate(probe.fitted_.grid.layers):
            low, high = interval(resampled[:, number]) if count > 1 else (None, None)
            row = {"split": split, "metric": "sentence_accuracy", "item": item, "layer": layer, "count": count}
            for seed, values in right.items():
                yield {**row, "seed": seed, "value": float(values[number].mean()), "low": low, "high": high}


def found_words(
    probe: EdgeProbe, sentences: Sequence[EdgeSentence], labels: Sequence[str], seed: int
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
