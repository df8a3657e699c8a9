"""Zhao et al. 2020, end to end: semantic classes by representation, layer and context, before and after fine-tuning."""

from __future__ import annotations

from pathlib import Path

from embstore.corpus import read_word_classes
from embstore.errors import InvalidValueError
from embstore.probes import WordSplit, split_words
from embstore.progress import Progress
from embstore.studies.study import StudyFolder, StudyResult
from embstore.studies.zhao2020 import probing, tuning
from embstore.studies.zhao2020.figures import draw
from embstore.studies.zhao2020.report import Scores, sections
from embstore.studies.zhao2020.settings import Zhao2020


def run_zhao2020(
    settings: Zhao2020, corpus: Path, *, model: str, out: Path, device: str, progress: Progress
) -> StudyResult:
    """Run the study and leave stores, tables, figures and the report in `out`; the same call resumes.

    `corpus` is in Wiki-PSE markup. See `embstore.studies.reproduce`.
    """
    words = read_words(settings, corpus)
    run = probing.Run(StudyFolder(out, progress), corpus, model, words, settings, device)
    stores = probing.extract_all(run)
    frames = {
        "counts": probing.count_examples(run, stores),
        "types": probing.probe_types(run, stores),
        "contexts": probing.probe_contexts(run, stores),
        "windows": probing.probe_windows(run, stores),
    }
    if settings.tuning:
        tuned = tuning.tune_all(run)
        frames["tuning"] = tuning.dev_scores(tuned)
        frames["finetuned"] = tuning.probe_tuned(run, tuned)
        frames["attention"] = tuning.compare_attention(run, tuned)
    if "pos" in settings.tuning:
        frames["pos_windows"] = tuning.pos_by_window(run)
    scores = Scores(settings, stores.full.layers[-1], frames)
    result = StudyResult(
        title="Semantic-class probing after Zhao et al. 2020",
        folder=out,
        scale=f"Model {model}, {scores.n_layers} layers. {settings.describe()}",
        frames=frames,
        sections=sections(scores),
        figures=draw(scores, out / "figures"),
        notes=tuple(dict.fromkeys(run.notes)),
        seconds=run.folder.seconds,
    )
    result.save()
    return result


def read_words(settings: Zhao2020, corpus: Path) -> WordSplit:
    """Read the lists of words and split them; dev words are taken from the train words."""
    lists = []
    for name, path in (("train", settings.train), ("test", settings.test)):
        neighbor = corpus.parent / f"{name}.tsv"
        if path is None and not neighbor.is_file():
            raise InvalidValueError(f"there is no {name}.tsv next to {corpus}: give a list of {name} words")
        lists.append(read_word_classes(neighbor if path is None else path))
    return split_words(*lists, seed=settings.seed)
