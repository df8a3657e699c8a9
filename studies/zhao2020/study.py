"""Zhao et al. 2020, end to end: semantic classes by representation, layer and context, before and after fine-tuning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

import embstore as es
from embstore.corpus import open_corpus, read_word_classes
from embstore.errors import CorpusError, InvalidValueError
from embstore.probes import WordSplit, split_words
from embstore.probes.classes.examples import ClassExamples, ExampleOptions
from embstore.probes.splits import SPLITS
from embstore.vectors import read_vectors
from embstore_studies.finetuning.data import find_splits, label_names, read_items
from embstore_studies.finetuning.settings import check_task
from embstore_studies.study import LOG, Given, StudyResult, methods
from embstore_studies.zhao2020.examples import examine
from embstore_studies.zhao2020.figures import draw
from embstore_studies.zhao2020.pairs import separated
from embstore_studies.zhao2020.probing import probe_contexts, probe_types, probe_windows
from embstore_studies.zhao2020.published import CITATION
from embstore_studies.zhao2020.report import Scores, sections
from embstore_studies.zhao2020.settings import Zhao2020
from embstore_studies.zhao2020.stores import LABEL, Run, Stores, extract_all
from embstore_studies.zhao2020.tuned import best_epoch, compare_attention, pos_by_window, probe_tuned, tune


def run(given: Given[Zhao2020], corpus: Path) -> StudyResult:
    """Run the study on a corpus in Wiki-PSE markup, see `embstore_studies.reproduce`."""
    settings = given.settings
    (model,) = given.models.values()
    words = read_words(settings, corpus)
    check_corpus(corpus, words)
    found = check_files(settings)
    with es.config(device=given.device):
        encoder = es.load_encoder(model)
    check_passages(settings, encoder.info.max_subwords)
    LOG.info(cost(settings, words))
    study = Run.of(given, corpus=corpus, model=model, words=words, notes=found)
    stores = extract_all(study, encoder)
    frames = {"counts": count_examples(study, stores), "types": probe_types(study, stores)}
    frames["contexts"], whole = separated(probe_contexts(study, stores))
    frames["windows"], narrow = separated(probe_windows(study, stores))
    scores = Scores(settings, stores.full.layers[-1], frames)
    frames["pairs"] = pl.concat([whole.with_columns(pl.lit("all").alias("context")), narrow], how="diagonal")
    frames |= examine(study, stores, frames["pairs"], scores.best_layer)
    if settings.tuning:
        tuned = {task: tune(study, task, data) for task, data in settings.tuning.items()}
        scored = {task: best_epoch(each, task) for task, each in tuned.items()}
        frames["tuning"] = pl.concat(frame.with_columns(task=pl.lit(task)) for task, frame in scored.items())
        frames["finetuned"] = probe_tuned(study, tuned)
        frames["attention"] = compare_attention(study, tuned)
    if "pos" in settings.tuning:
        frames["pos_windows"] = pos_by_window(study)
    return study.result(
        "Semantic-class probing after Zhao et al. 2020",
        f"Model {Path(model).name}, {scores.n_layers} layers. {settings.describe()}",
        frames=frames,
        sections=sections(scores),
        figures=draw(scores, study.out / "figures"),
        methods=methods({model: stores.full}),
        citation=CITATION,
    )


def read_words(settings: Zhao2020, corpus: Path) -> WordSplit:
    """Read the lists of words, draw from them, and split them; dev words are taken from the train words."""
    lists = []
    for name, path in (("train", settings.train), ("test", settings.test)):
        neighbor = corpus.parent / f"{name}.tsv"
        if path is None and not neighbor.is_file():
            raise InvalidValueError(f"there is no {name}.tsv next to {corpus}: give a list of {name} words")
        listed = read_word_classes(neighbor if path is None else path)
        drawn = np.random.default_rng(settings.seed).permutation(len(listed))[: settings.n_words].tolist()
        forms = sorted(listed)
        lists.append({forms[number]: listed[forms[number]] for number in drawn})
    return split_words(*lists, seed=settings.seed)


def check_corpus(path: Path, words: WordSplit) -> None:
    """Raise CorpusError if the words of a split have no labelled occurrence; reads as far as there is one of each."""
    missing = set(SPLITS)
    for sentence in open_corpus(path, format="pse"):
        stops = dict(sentence.targets)
        for place, label in enumerate(sentence.labels[LABEL]):
            if label is not None:
                form = " ".join(sentence.words[place : stops.get(place, place + 1)])
                missing -= {split for split in missing if label in words.of(split).get(form, ())}
        if not missing:
            return
    raise CorpusError(f"{path}: no {min(missing)} word occurs with one of its classes: give other lists of words")


def check_files(settings: Zhao2020) -> list[str]:
    """Read the vectors and the data of fine-tuning, so that none is refused after hours of extraction.

    Returns notes: labels of dev that train does not have, which count as errors.
    """
    for file in settings.vectors.values():
        read_vectors(file)
    notes = []
    for task, data in settings.tuning.items():
        files = find_splits(data)
        chosen = check_task(task, settings.finetuning())
        items = {split: read_items(chosen, path) for split, path in files.items()}
        _, unknown = label_names(files, {split: items[split] for split in ("train", "dev")})
        if unknown:
            some = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            notes.append(f"{task}: {len(unknown)} labels of dev are not in train and count as errors: {some}")
    return notes


def check_passages(settings: Zhao2020, longest: int | None) -> None:
    """Raise InvalidValueError for passages that the model would cut."""
    size = settings.passage_subwords
    if size is not None and longest is not None and size > longest:
        raise InvalidValueError(f"passage_subwords {size} is more than the model accepts: give {longest} or less")


def cost(settings: Zhao2020, words: WordSplit) -> str:
    """Return one line on what the study will run; each extraction logs its own time."""
    n_tuned = len(settings.tuning)
    n_passes = len(settings.context_windows) + (settings.passage_subwords is not None) + n_tuned
    windows = sum(window is not None for window in settings.attention_windows) if "pos" in settings.tuning else 0
    n_words = sum(len(words.of(split)) for split in SPLITS)
    return (
        f"{settings.describe()} To run: {n_passes} passes of the model over the sentences of {n_words:,} words, "
        f"{n_tuned + windows} fine-tunings, probes of {n_passes} stores of all layers"
    )


def count_examples(run: Run, stores: Stores) -> pl.DataFrame:
    """Count words, word-class pairs and contexts of each split and class: the paper's Tables 2 and 8."""
    options = ExampleOptions(LABEL, "context", run.settings.max_contexts, run.settings.seed)
    examples = ClassExamples(stores.full.select(layers=0), run.words, options)
    classes, unfit = examples.classes()
    if unfit:
        run.notes.append(f"{len(unfit)} classes of fewer than two train words have no probe: {', '.join(unfit)}")
    rows = []
    for split in SPLITS:
        part = examples.of(split, classes)
        rows.append((split, "", len(part.words), len(part.contexts), int(part.contexts.sum())))
        for number, name in enumerate(classes):
            own = part.gold[:, number]
            rows.append((split, name, len(set(part.word[own].tolist())), int(own.sum()), int(part.contexts[own].sum())))
    return pl.DataFrame(rows, schema=["split", "class", "words", "pairs", "contexts"], orient="row")
