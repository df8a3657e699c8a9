"""Clark et al. 2019, end to end: where the attention of heads goes, and whether it follows syntax and coreference."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from embstore.analysis import HeadDistances
from embstore.analysis.attention.annotated import has_mentions, has_trees
from embstore.analysis.attention.measure import attention
from embstore.config import config
from embstore.corpus import Corpus, open_corpus
from embstore.errors import InvalidValueError, ModelError
from embstore.extraction.encoder_spec import software_versions
from embstore.models import model_kind
from embstore.models.checkpoint import open_checkpoint, sha256_of
from embstore.probes.edges.tasks import split_files
from embstore_studies.attention_importance import attention_importance
from embstore_studies.clark2019.published import CITATION
from embstore_studies.clark2019.report import draw, sections
from embstore_studies.clark2019.settings import Clark2019
from embstore_studies.study import LOG, Given, StudyResult, StudyRun, digest_of

STATISTICS = ("shares", "entropy", "distance", "relations", "trees")
TIMED = 64  # sentences, for the time that the study will take


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Clark2019]):
    """One run of the study. `weights`: the SHA-256 of each model."""

    treebank: Corpus
    mentions: Corpus | None
    weights: dict[str, str] = field(default_factory=dict)

    def measured(self, name: str, what: str, corpus: Corpus, **options: Any) -> pl.DataFrame:
        """Return the frame of `attention` of a model over a corpus, as a step."""
        settings = self.settings
        own = {"n_sentences": settings.n_sentences, "seed": settings.seed, **options}

        def make() -> pl.DataFrame:
            with config(device=self.device, progress=self.folder.bars):
                made = attention(corpus, model=self.models[name], **own)
            return made.frame.with_columns(sentences=pl.lit(made.n_sentences), subwords=pl.lit(made.n_subwords))

        made_from = {"corpus": _digests(corpus), "weights": self.weights[name], "every": settings.every}
        made_from |= {"n_sentences": settings.n_sentences, "seed": settings.seed}
        return self.folder.table(f"{name}-{what}", made_from, make)


def run(given: Given[Clark2019], data: Path) -> StudyResult:
    """Run the study on a treebank in CoNLL-U, see `embstore_studies.reproduce`."""
    settings, models = given.settings, given.models
    treebank = open_treebank(data)
    mentions = None if settings.coreference is None else open_mentions(Path(settings.coreference))
    for name, model in models.items():
        if model_kind(model) != "transformer":
            raise ModelError(f"{name}: {model!r} has no attention: give a transformer")
    run = Run.of(given, treebank=treebank, mentions=mentions)
    for name in models:
        log_cost(run, name)
    frames: dict[str, list[pl.DataFrame]] = {"attention": [], "coreference": [], "importance": []}
    for name in models:
        statistics = [*STATISTICS, HeadDistances(every=settings.every)]
        found = run.measured(name, "attention", treebank, statistics=statistics)
        frames["attention"].append(_named(name, found))
        if mentions is not None:
            found = run.measured(name, "coreference", mentions, statistics=["coreference"])
            frames["coreference"].append(_named(name, found))
        if settings.importance_sentences:
            frames["importance"] += importance(run, name)
    whole = {key: pl.concat(parts) for key, parts in frames.items() if parts}
    run.notes.extend(notes(run))
    return run.result(
        "What the attention heads of a model attend to, after Clark et al. 2019",
        scale(run, whole["attention"]),
        frames=whole,
        sections=sections(whole),
        figures=draw(whole, run.out / "figures"),
        methods=methods(run),
        citation=CITATION,
    )


def open_treebank(data: Path) -> Corpus:
    """Open a CoNLL-U file, or the dev file of a folder. Raises InvalidValueError for one without trees."""
    if data.is_dir():
        files = sorted(path for path in data.glob("*.conllu") if "dev" in path.stem)
        if len(files) != 1:
            raise InvalidValueError(f"{data} has {len(files)} files *dev*.conllu: give one CoNLL-U file")
        data = files[0]
    corpus = open_corpus(data)
    if problem := has_trees(corpus):
        raise InvalidValueError(f"{data} {problem}")
    for _ in corpus:  # every line is read before the first model is
        pass
    return corpus


def open_mentions(data: Path) -> Corpus:
    """Open a file of coreferent spans, or dev.jsonl of a folder. Raises InvalidValueError for one without mentions."""
    path = split_files(data).get("dev") if data.is_dir() else data
    if path is None:
        raise InvalidValueError(f"coreference: {data} has no dev.jsonl: give a file of edge probing targets")
    corpus = open_corpus(path, format="edge")
    if problem := has_mentions(corpus):
        raise InvalidValueError(f"coreference: {path} {problem}")
    return corpus


def log_cost(run: Run, name: str) -> None:
    """Log what a model will take, from a few sentences; a model without attention weights is refused here."""
    run.weights[name] = sha256_of(open_checkpoint(run.models[name], revision=None).files)
    sample = [list(sentence.words) for sentence in islice(run.treebank, TIMED)]
    n_sentences = sum(1 for _ in run.treebank)
    n_sentences = min(n_sentences, run.settings.n_sentences or n_sentences)
    began: list[float] = []
    with config(device=run.device, progress=lambda done, total: began.append(time.perf_counter())):
        attention(sample, model=run.models[name], batch_subwords=512)
    took = (began[-1] - began[0]) * n_sentences / len(sample)
    LOG.info(f"{name}: {n_sentences:,} sentences, about {took:,.0f} s")


def importance(run: Run, name: str) -> list[pl.DataFrame]:
    """Return the importance of attention as a step; nothing for a model without a language modeling head."""
    count, seed = run.settings.importance_sentences, run.settings.seed

    def make() -> pl.DataFrame:
        return attention_importance(
            run.treebank,
            model=run.models[name],
            n_sentences=count,
            seed=seed,
            device=run.device,
            progress=run.folder.bars,
        )

    made_from = {"corpus": _digests(run.treebank), "weights": run.weights[name], "n_sentences": count, "seed": seed}
    try:
        return [_named(name, run.folder.table(f"{name}-importance", made_from, make))]
    except ModelError:
        run.notes.append(f"{name} has no language modeling head with its mask: there is no importance of [SEP].")
        return []


def _named(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.lit(name).alias("model"), pl.all())


def _digests(corpus: Corpus) -> list[str]:
    return [digest_of(path) for path in corpus.paths]


def scale(run: Run, frame: pl.DataFrame) -> str:
    """Return one line on the size of the study."""
    sentences, subwords = (int(frame[name].max()) for name in ("sentences", "subwords"))  # type: ignore[arg-type]
    return (
        f"{', '.join(run.models)}. {sentences:,} sentences of {run.treebank.name}, {subwords:,} subwords (the paper: "
        "1,000 segments of two paragraphs of Wikipedia; the Wall Street Journal with Stanford Dependencies for Table "
        f"1); heads compared on one sentence in {run.settings.every}; seed {run.settings.seed}."
    )


def notes(run: Run) -> list[str]:
    """Return what a reader must know."""
    own = [
        "Layers count from 1 and heads from 0; the paper's head 8-10 is 8.9 here.",
        "Inputs are single sentences: the paper's segments are two paragraphs with a [SEP] after each, so that more of "
        "their attention can go to [SEP].",
        "The attention-based probes of the paper's Table 3 are not part of this study.",
    ]
    if run.mentions is None:
        own.append("No coreference data was given (--set coreference=FILE): there is no Table 2.")
    return own


def methods(run: Run) -> str:
    """Return a paragraph for a paper's methods."""
    models = "; ".join(f"{name} (weights SHA-256 {sha[:12]})" for name, sha in run.weights.items())
    corpora = [run.treebank, *([] if run.mentions is None else [run.mentions])]
    data = "; ".join(f"{corpus.name} (SHA-256 {_digests(corpus)[0][:12]})" for corpus in corpora)
    software = ", ".join(f"{name} {version}" for name, version in software_versions().items())
    return f"Attention maps in float32 of {models} over {data}. Software: {software}."
