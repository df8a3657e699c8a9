"""Ethayarajh 2019, end to end: how contextual the vectors of a model are, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import polars as pl

from embstore.analysis import extreme_words, summarize_geometry
from embstore.analysis.geometry.measure import geometry
from embstore.analysis.static import static_vectors
from embstore.config import config
from embstore.corpus import Corpus, open_corpus
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store
from embstore.vectors import WordVectors, read_vectors
from embstore_studies.ethayarajh2019.published import CITATION
from embstore_studies.ethayarajh2019.report import ENDS, Scores, draw, sections
from embstore_studies.ethayarajh2019.settings import Ethayarajh2019
from embstore_studies.evaluation.evaluate import evaluate, read_benchmarks
from embstore_studies.evaluation.lexicon import Benchmark
from embstore_studies.extract import extract_step
from embstore_studies.study import Given, StudyResult, StudyRun, digest_of, methods


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Ethayarajh2019]):
    """One run of the study, with all its inputs read and checked."""

    corpus: Corpus
    vectors: Mapping[str, WordVectors]
    benchmarks: tuple[Benchmark, ...]


def run(given: Given[Ethayarajh2019], data: Path) -> StudyResult:
    """Run the study on a corpus, see `embstore_studies.reproduce`."""
    settings = given.settings
    for name in given.models:
        if name in settings.vectors:
            raise InvalidValueError(f"{name!r} is both a model and a file of word vectors: rename one")
    vectors = {name: read_vectors(path) for name, path in settings.vectors.items()}
    benchmarks = () if settings.benchmarks is None else read_benchmarks(settings.benchmarks)
    run = Run.of(given, corpus=open_corpus(data), vectors=vectors, benchmarks=benchmarks)
    stores = {name: extract_step(run, name, run.corpus) for name in run.models}
    measured = [measure(run, name, store) for name, store in stores.items()]
    frames = {table: pl.concat([each[table] for each in measured]) for table in ("geometry", "words")}
    if not benchmarks:
        run.notes.append("no benchmarks are given, so Table 1 is left out: --set benchmarks=FOLDER")
    else:
        frames |= evaluate_all(run, stores)
    scores = Scores(settings, {name: store.metadata for name, store in stores.items()}, frames)
    return run.result(
        "How contextual are the vectors? After Ethayarajh 2019",
        f"{', '.join(run.models)}. {settings.describe()}",
        frames=frames,
        sections=sections(scores),
        figures=draw(scores, run.out / "figures"),
        methods=methods(stores),
        citation=CITATION,
    )


def words_of(store: Store) -> Selection:
    """Select all words; punctuation is left out, as in the authors' code."""
    return store.select(where=r"regexp_like(word, '\w')")


def measure(run: Run, name: str, store: Store) -> dict[str, pl.DataFrame]:
    """Return the `geometry` of a model by layer, and `words`, the most and least context-specific of each layer."""
    settings = run.settings
    made_from = {"store": store.digest, "geometry": settings.measuring, "resamples": settings.resamples}
    with config(device=run.device, progress=run.folder.bars):
        table = run.folder.table(f"{name}-geometry", made_from, lambda: geometry(words_of(store), **settings.measuring))
    summary = run.folder.table(
        f"{name}-summary",
        made_from,
        lambda: summarize_geometry(table, resamples=settings.resamples, seed=settings.seed),
    )
    words = [extreme_words(table, layers=layer, count=settings.n_words) for layer in store.layers]
    selfsim = table.filter((pl.col("metric").cast(pl.String) == "selfsim") & (pl.col("item") != ""))
    means = selfsim.group_by("item").agg(
        pl.lit("all").alias("end"),
        pl.lit(None, pl.Int64).alias("layer"),
        pl.col("value").mean(),
        pl.col("count").first(),
    )
    ranked = means.sort("value", "item")
    found = {"geometry": summary, "words": pl.concat([*words, ranked], how="diagonal").select(ENDS)}
    return {table: frame.select(pl.lit(name).alias("model"), pl.all()) for table, frame in found.items()}


def evaluate_all(run: Run, stores: Mapping[str, Store]) -> dict[str, pl.DataFrame]:
    """Score the first principal components of some layers of each model, and the given word vectors.

    Returns the scores on all words of each, "evaluation", and on the words that all of them have, "shared".
    """
    settings, folder = run.settings, Path(run.settings.benchmarks or "")
    layers = {name: settings.evaluated(store.layers) for name, store in stores.items()}
    made_from = {
        "stores": {name: [store.digest, layers[name]] for name, store in stores.items()},
        "vectors": {name: digest_of(Path(path)) for name, path in settings.vectors.items()},
        "benchmarks": {path.name: digest_of(path) for path in (folder, *sorted(folder.rglob("*"))) if path.is_file()},
        "min_contexts": settings.min_contexts,
        "seed": settings.seed,
    }

    @cache
    def systems() -> dict[str, WordVectors]:
        with config(device=run.device, progress=run.folder.bars):
            vectors = {
                f"{name}, layer {layer}": static_vectors(
                    words_of(store), layers=layer, min_contexts=settings.min_contexts
                )
                for name, store in stores.items()
                for layer in layers[name]
            }
        return vectors | dict(run.vectors)

    def scores(shared: bool) -> pl.DataFrame:
        return evaluate(
            systems(), run.benchmarks, shared_vocabulary=shared, seed=settings.seed, progress=run.folder.bars
        )

    return {
        "evaluation": run.folder.table("evaluation", made_from, partial(scores, False)),
        "shared": run.folder.table("shared", made_from, partial(scores, True)),
    }
