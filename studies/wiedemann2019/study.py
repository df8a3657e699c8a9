"""Wiedemann et al. 2019, end to end: the sense of a word by its nearest train occurrences, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from embstore import ExtractionOptions, plot
from embstore.analysis import knn_labels
from embstore.corpus.keep import Keep
from embstore.store import Store
from embstore_studies.extract import extract_step
from embstore_studies.study import LOG, Given, StudyResult, StudyRun, methods
from embstore_studies.wiedemann2019.published import CITATION
from embstore_studies.wiedemann2019.report import Scores, layer_figure, sections
from embstore_studies.wiedemann2019.senses import SenseCorpus, read_senses
from embstore_studies.wiedemann2019.settings import Wiedemann2019

NOTES = (
    "A word is its lower-case form in Wiki-PSE markup, not its lemma and part of speech.",
    "The mean of the last layers, the interval over words and the credit that equal votes share are choices made here.",
)
SUPERSENSES = "The senses are {count} lexicographer classes of WordNet (noun.act, verb.motion, ...), not its synsets."


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Wiedemann2019]):
    """One run of the study."""

    senses: SenseCorpus


def run(given: Given[Wiedemann2019], data: Path) -> StudyResult:
    """Run the study on a corpus in Wiki-PSE markup or a folder of CoarseWSD-20, see `embstore_studies.reproduce`."""
    settings = given.settings
    options = {"n_sentences": settings.n_sentences, "test_share": settings.test_share, "seed": settings.seed}
    senses = read_senses(data, **options)  # type: ignore[arg-type]
    senses.require_both(data, max(settings.ks))
    run = Run.of(given, senses=senses)
    stores = {name: extract_one(run, name) for name in run.models}
    parts = [disambiguate(run, name, store).with_columns(model=pl.lit(name)) for name, store in stores.items()]
    scores = Scores(settings, senses.table, pl.concat(parts))
    run.notes.extend(NOTES)
    if senses.has_supersenses:
        run.notes.append(SUPERSENSES.format(count=senses.table["sense"].n_unique()))
    plot.save(layer_figure(scores), run.out / "figures" / "layers.png")
    return run.result(
        "Word senses by nearest neighbours, after Wiedemann et al. 2019",
        f"{', '.join(run.models)}. {len(senses.sentences):,} sentences; resamples {settings.resamples:,}, seed "
        f"{settings.seed}.",
        frames={"words": scores.words, "layers": scores.by_layer},
        sections=sections(scores),
        figures={"layers.png": "Accuracy by layer"},
        methods=methods(stores),
        citation=CITATION,
    )


def extract_one(run: Run, name: str) -> Store:
    options = ExtractionOptions(layers="all", keep=Keep(labelled="sense"))
    file = f"{name}-{run.senses.digest[:12]}"
    return extract_step(run, name, run.senses, options=options, file=file)


def disambiguate(run: Run, name: str, store: Store) -> pl.DataFrame:
    """Return the scores of each ambiguous word by layer (null: the mean of the last ones) and k.

    Words of one sense in train need no search: that sense is predicted.
    """
    settings = run.settings
    made_from = {"store": store.digest, "ks": settings.ks, "last": settings.last, "capped": True}

    def make() -> pl.DataFrame:
        chosen = {split: {"split": split, "target": run.senses.ambiguous} for split in ("train", "test")}
        train = store.select(labels=chosen["train"])
        together = store.layers[-settings.last :]
        n_words, n_searches = len(run.senses.ambiguous), len(store.layers) + 1
        LOG.info(f"{n_words:,} ambiguous words, {len(train):,} train occurrences, {n_searches} searches of each word")
        parts = []
        for layers, averaged in ((store.layers, False), (together, True)):
            found = knn_labels(
                store.select(labels=chosen["test"], layers=list(layers)),
                label="sense",
                word="target",
                train=train,
                k=settings.ks,
                capped=True,
                averaged=averaged,
            )
            for layer in (None,) if averaged else layers:
                for k in settings.ks:
                    own = {"layer": pl.lit(layer, pl.Int64), "k": pl.lit(k, pl.Int64)}
                    parts.append(found.by_word(layers=layer, k=k).sort("word").with_columns(**own))
        return pl.concat(parts)

    return run.folder.table(f"{name}-senses", made_from, make)
