"""Ethayarajh 2019: how contextual the vectors of a model are, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

import embstore as es
from embstore import plot
from embstore.analysis import extreme_words, summarize_geometry
from embstore.errors import CorpusError, quoted
from embstore_studies.study import Row, Run, Section, StudyResult, StudySettings, decimals, digest_of, methods

# Means by layer, from layer 0, of the result files that the author published (kawine/contextual, commit c10c992);
# None: not published.
# fmt: off
LAYERS: dict[str, dict[str, tuple[float | None, ...]]] = {
    "BERT-base-cased": {
        "anisotropy": (0.105, 0.168, 0.219, 0.245, 0.327, 0.377, 0.42, 0.398, 0.399, 0.484, 0.561, 0.675, 0.477),
        "intrasim": (0.435, 0.522, 0.57, 0.59, 0.642, 0.695, 0.726, 0.711, 0.72, 0.771, 0.82, 0.87, 0.776),
        "selfsim": (0.9544, 0.921, 0.871, 0.8232, 0.7984, 0.7814, 0.7653, 0.7439, 0.7314,
                    0.7535, 0.7815, 0.8386, 0.7548),
        "mev": (None, 0.0096, 0.015, 0.0199, 0.0226, 0.0244, 0.0251, 0.0281, 0.0286, 0.0256, 0.0229, 0.0256, 0.0395),
        "mev_baseline": (0.039, 0.025, 0.017, 0.012, 0.014, 0.012, 0.012, 0.01, 0.012, 0.015, 0.022, 0.04, 0.009),
    },
    "GPT-2": {
        "anisotropy": (0.611, 0.644, 0.597, 0.614, 0.587, 0.573, 0.578, 0.582, 0.595, 0.617, 0.667, 0.758, 0.978),
        "intrasim": (0.808, 0.825, 0.583, 0.549, 0.537, 0.559, 0.586, 0.614, 0.635, 0.658, 0.693, 0.768, 0.99),
        "selfsim": (0.917, 0.9205, 0.8996, 0.908, 0.8839, 0.8649, 0.8495, 0.842, 0.8382,
                    0.8397, 0.8517, 0.8867, 0.9854),
        "mev": (None, 0.1601, 0.2863, 0.3022, 0.3006, 0.3003, 0.2974, 0.2985, 0.3016, 0.3082, 0.3079, 0.3512, 0.7131),
        "mev_baseline": (0.062, 0.298, 0.969, 0.998, 0.998, 0.997, 0.997, 0.996, 0.995, 0.994, 0.992, 0.985, 0.829),
    },
    "ELMo": {
        "anisotropy": (0.008, 0.157, 0.136),
        "intrasim": (0.318, 0.582, 0.621),
        "selfsim": (1.0, 0.7442, 0.6415),
        "mev": (None, 0.0328, 0.0387),
        "mev_baseline": (0.087, 0.003, 0.004),
    },
}
# fmt: on
# Table 1 as printed, its columns of word similarity, and patterns of the names of their files.
TABLE1_COLUMNS = {"SimLex999": r"simlex", "MEN": r"\bmen\b", "WS353": r"\bws-?353(?!-(sim|rel))", "RW": r"\brw\b"}
TABLE1: dict[str, tuple[float, ...]] = {
    "GloVe": (0.194, 0.216, 0.339, 0.127),
    "FastText": (0.239, 0.239, 0.432, 0.176),
    "ELMo, Layer 1": (0.276, 0.167, 0.317, 0.148),
    "ELMo, Layer 2": (0.215, 0.151, 0.272, 0.133),
    "BERT, Layer 1": (0.315, 0.200, 0.394, 0.208),
    "BERT, Layer 2": (0.320, 0.166, 0.383, 0.188),
    "BERT, Layer 11": (0.221, 0.076, 0.319, 0.135),
    "BERT, Layer 12": (0.233, 0.082, 0.325, 0.144),
    "GPT-2, Layer 1": (0.174, 0.012, 0.176, 0.183),
    "GPT-2, Layer 2": (0.135, 0.036, 0.171, 0.180),
    "GPT-2, Layer 11": (0.126, 0.034, 0.165, 0.182),
    "GPT-2, Layer 12": (0.140, -0.009, 0.113, 0.163),
}
METRICS = {
    "anisotropy": "Figure 1. Anisotropy",
    "selfsim": "Figure 2. Self-similarity, adjusted",
    "intrasim": "Figure 3. Intra-sentence similarity, adjusted",
    "mev": "Figure 4. Maximum explainable variance, adjusted",
}
BASELINE = 1000  # random vectors of a layer, as in the paper
SINKLESS = "-no-sinks"  # of a causal model, whose first word in a sentence may be an attention sink
N_WORDS = 10  # listed at each end of a layer
ENDS = ("layer", "end", "item", "value", "count")
STOPWORDS = ("the", "of", "to")  # named in section 4.2 as among the most context-specific words
MEV_BOUND = 0.05  # of the paper: what one vector explains of a word's variance at most
MIN_ITEMS = 30  # of a benchmark, for a score to be shown
MIN_COVERAGE = 0.9  # of a benchmark's items, for a score to be compared with the paper's
# The published models: substring of the architecture, blocks, hidden size.
PAPER_MODELS = {"BERT-base-cased": ("Bert", 12, 768), "GPT-2": ("GPT2", 12, 768), "ELMo": ("ELMo", 2, 1024)}


@dataclass(frozen=True, kw_only=True)
class Ethayarajh2019(StudySettings):
    about: ClassVar[str] = "how contextual the vectors of each layer are"
    data: ClassVar[str] = "any corpus (the paper: STS 2012-2016)"
    citation: ClassVar[str] = """@inproceedings{ethayarajh-2019-contextual,
  title = {How Contextual are Contextualized Word Representations? Comparing the Geometry of {BERT}, {ELM}o, and {GPT}-2
           Embeddings},
  author = {Ethayarajh, Kawin},
  booktitle = {Proceedings of EMNLP-IJCNLP 2019},
  year = {2019}, pages = {55--65}, doi = {10.18653/v1/D19-1006}
}
"""

    min_contexts: int = 5
    layers: str = "all"
    benchmarks: str | Path | None = None
    resamples: int = 1000


def run(run: Run[Ethayarajh2019], data: Path) -> StudyResult:
    """Run the study on a corpus, see `reproduce`."""
    settings = run.settings
    benchmarks = {} if settings.benchmarks is None else read_benchmarks(Path(settings.benchmarks))
    corpus = es.open_corpus(data)
    run.begin()
    options = es.ExtractionOptions(layers=settings.layers)
    stores = {name: run.extract(name, corpus, options=options) for name in run.models}
    views = {name: view for of, store in stores.items() for name, view in views_of(of, store).items()}
    measured = [measure(run, name, view) for name, view in views.items()]
    frames = {table: pl.concat([each[table] for each in measured]) for table in ("geometry", "words")}
    if not benchmarks:
        run.notes.append("no benchmarks are given (the setting benchmarks), so Table 1 is left out")
    else:
        frames["evaluation"] = evaluate(run, views, benchmarks)
    scores = Scores(settings, {name: view.store.metadata for name, view in views.items()}, frames)
    sections = [findings(scores), *(by_layer(scores, model) for model in views)]
    sections += [words(scores, model) for model in views]
    if "evaluation" in frames:
        sections.append(static(scores))
    return run.result(
        "How contextual are the vectors? After Ethayarajh 2019",
        f"{', '.join(run.models)}. Words of {settings.min_contexts} different sentences or more, without punctuation; "
        f"baselines over {BASELINE:,} sampled vectors (the paper: 5; 1,000); "
        f"intervals from {settings.resamples:,} bootstrap samples; "
        f"seed {settings.seed}.",
        frames=frames,
        sections=sections,
        figures=run.save_figures(figures_of(scores)),
        methods=methods(stores),
    )


def views_of(model: str, store: es.Store) -> dict[str, es.store.Selection]:
    """Return all words by the name of the model, and without attention sinks by another name if there are any.

    Punctuation is left out, as in the authors' code.
    """
    words = [word for word in store.index.words if re.search(r"\w", word)]
    every = {model: store.select(words=words), f"{model}{SINKLESS}": store.select(words=words, sinks=False)}
    return {name: view for name, view in every.items() if name == model or len(view) < len(every[model])}


def measure(run: Run[Ethayarajh2019], name: str, view: es.store.Selection) -> dict[str, pl.DataFrame]:
    """Return the `geometry` of a model by layer, and `words`, the most and least context-specific of each layer."""
    settings = run.settings
    options: dict[str, Any] = {
        "min_contexts": settings.min_contexts,
        "baseline": BASELINE,
        "seed": settings.seed,
    }
    made_from = {"store": view.store.digest, "geometry": options, "resamples": settings.resamples}
    table = run.table(f"{name}-geometry", made_from, lambda: es.geometry(view, **options))
    summary = run.table(
        f"{name}-summary",
        made_from,
        lambda: summarize_geometry(table, resamples=settings.resamples, seed=settings.seed),
    )
    words = [extreme_words(table, layers=layer, count=N_WORDS) for layer in view.layers]
    selfsim = table.filter((pl.col("metric").cast(pl.String) == "selfsim") & (pl.col("item") != ""))
    means = selfsim.group_by("item").agg(pl.col("value").mean(), pl.col("count").first())
    ranked = means.sort("value", "item").with_columns(end=pl.lit("all"), layer=pl.lit(None, pl.Int64))
    frames = {"geometry": summary, "words": pl.concat([*words, ranked], how="diagonal").select(ENDS)}
    return {table: frame.select(pl.lit(name).alias("model"), pl.all()) for table, frame in frames.items()}


def evaluated(layers: Sequence[int]) -> tuple[int, ...]:
    """Return the layers of a model in Table 1: the first and last two with context."""
    inner = tuple(layer for layer in layers if layer > 0) or tuple(layers)
    return tuple(dict.fromkeys((*inner[:2], *inner[-2:])))


@dataclass(frozen=True)
class Benchmark:
    """Pairs of words and their ratings; `digest`: of their file."""

    pairs: Sequence[Sequence[str]]
    ratings: Sequence[float]
    digest: str


def read_benchmarks(folder: Path) -> dict[str, Benchmark]:
    """Read the files of word pairs in a folder by name. Raises CorpusError, with the line."""
    benchmarks = {}
    for path in sorted(each for each in folder.glob("*") if each.suffix in (".txt", ".tsv", ".csv")):
        pairs, ratings = [], []
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CorpusError(f"{path} cannot be read: {error}") from None
        for number, line in enumerate(filter(str.strip, lines), 1):
            fields = [field.strip() for field in line.split("\t" if "\t" in line else "," if "," in line else None)]
            try:
                rating = float(fields[2])
            except (ValueError, IndexError):
                if number == 1:  # a heading
                    continue
                raise CorpusError(f"{path}: {quoted(line)}: give two words and their rating") from None
            pairs.append(fields[:2])
            ratings.append(rating)
        if not pairs or not np.isfinite(ratings).all():
            raise CorpusError(
                f"{path}: no pair, or a rating that is not finite: give two words and their rating a line"
            )
        benchmarks[path.stem] = Benchmark(pairs, ratings, digest_of(path))
    if not benchmarks:
        raise CorpusError(f"{folder} has no benchmark: give a folder of .txt, .tsv or .csv files of word pairs")
    return benchmarks


def evaluate(
    run: Run[Ethayarajh2019], views: Mapping[str, es.store.Selection], benchmarks: Mapping[str, Benchmark]
) -> pl.DataFrame:
    """Score the first principal components of some layers of each model on word similarity.

    Columns: `system, benchmark, value`, which is Spearman's rho of the cosines of the pairs whose words have a vector
    and their ratings, `count` of these, and `coverage`, their share.
    """
    settings = run.settings
    layers = {name: evaluated(view.layers) for name, view in views.items()}
    made_from = {
        "stores": {name: [view.store.digest, layers[name]] for name, view in views.items()},
        "benchmarks": {name: each.digest for name, each in benchmarks.items()},
        "min_contexts": settings.min_contexts,
    }

    def make() -> pl.DataFrame:
        scored: list[Row] = []
        for name, view in views.items():
            for layer in layers[name]:
                static: Any = es.static_vectors(view, layers=layer, min_contexts=settings.min_contexts)
                for benchmark, each in benchmarks.items():
                    of = {"system": f"{name}, layer {layer}", "benchmark": benchmark}
                    scored.append(of | similarity(static, each))
        schema = {"value": pl.Float64, "count": pl.Int64, "coverage": pl.Float64}
        return pl.DataFrame(scored, schema_overrides=schema, infer_schema_length=None)

    return run.table("evaluation", made_from, make)


def similarity(vectors: Any, benchmark: Benchmark) -> Row:
    """Score word vectors on pairs; a word is looked up as written, then in lower case."""
    rows_of: dict[str, int | None] = {}
    for word in chain.from_iterable(benchmark.pairs):
        as_written = vectors.row_of(word)
        rows_of[word] = vectors.row_of(word.lower()) if as_written is None else as_written
    known = [at for at, pair in enumerate(benchmark.pairs) if all(rows_of[word] is not None for word in pair)]
    row: Row = {"value": None, "count": len(known), "coverage": len(known) / len(benchmark.pairs)}
    if len(known) > 1:
        of_pairs = [[rows_of[word] for word in benchmark.pairs[at]] for at in known]
        left, right = vectors.vectors[np.array(of_pairs)].astype(np.float64).transpose(1, 0, 2)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        cosines = (left * right).sum(1) / np.where(lengths > 0, lengths, 1)
        frame = pl.DataFrame({"cosine": cosines.round(12), "rating": [benchmark.ratings[at] for at in known]})
        rho = frame.select(pl.corr("cosine", "rating", method="spearman")).item()
        row["value"] = None if np.isnan(rho) else rho
    return row


@dataclass(frozen=True, eq=False)
class Scores:
    """The frames of one run of the study: `geometry` and `words` by model, and, with benchmarks, those of Table 1."""

    settings: Ethayarajh2019
    models: Mapping[str, Any]
    frames: Mapping[str, pl.DataFrame]

    def summary(self, model: str) -> pl.DataFrame:
        """Return the means of a model by metric and layer; `shown` is what the paper draws."""
        frame = self.frames["geometry"].filter(model=model).with_columns(pl.col("metric").cast(pl.String))
        return frame.with_columns(shown=pl.coalesce("adjusted", "value"))

    def layers(self, model: str, metric: str) -> list[Row]:
        """Return the rows of one metric by layer."""
        return self.summary(model).filter(metric=metric).sort("layer").to_dicts()

    @cached_property
    def paper_models(self) -> dict[str, str]:
        """The published model of the same architecture and size by model, as far as there is one."""
        same = {}
        for name, metadata in self.models.items():
            fields = metadata.model
            for paper, (architecture, n_layers, size) in PAPER_MODELS.items():
                is_cased = "uncased" not in fields["name"].lower()
                is_same = (fields["num_hidden_layers"], fields["hidden_size"]) == (n_layers, size)
                if is_cased and is_same and fields["architecture"].startswith(architecture):
                    same[name] = paper
        return same


def published_frames() -> dict[str, pl.DataFrame]:
    """Return the author's means as `geometry_figure` draws them: adjusted by subtraction of the baseline."""
    frames = {}
    for model, means in LAYERS.items():
        rows: list[Row] = []
        for layer, baseline in enumerate(means["anisotropy"]):
            rows.append({"metric": "anisotropy", "layer": layer, "value": baseline})
            for metric, under in (("selfsim", baseline), ("intrasim", baseline), ("mev", means["mev_baseline"][layer])):
                value = means[metric][layer]
                if value is not None and under is not None:
                    rows.append({"metric": metric, "layer": layer, "value": value, "adjusted": value - under})
        frames[model] = pl.DataFrame(rows).with_columns(shown=pl.coalesce("adjusted", "value"))
    return frames


def by_layer(scores: Scores, model: str) -> Section:
    """The means by layer, next to those of the author for the same architecture."""
    paper = scores.paper_models.get(model)
    theirs = published_frames().get(paper or "")
    rows: list[Row] = []
    for layer in scores.models[model].layers:
        row: Row = {"layer": layer}
        for metric, title in METRICS.items():
            ours = next(each for each in scores.layers(model, metric) if each["layer"] == layer)
            name = title.split(". ")[1]
            row[name] = decimals(ours["shown"])
            if ours["adjusted_low"] is not None:
                row[name] += f" [{ours['adjusted_low']:.3f}, {ours['adjusted_high']:.3f}]"
            if theirs is not None:
                values = theirs.filter(metric=metric, layer=layer)["shown"].to_list()
                row[f"paper, {metric}"] = decimals(values[0]) if values else ""
                row[f"difference, {metric}"] = f"{ours['shown'] - values[0]:+.3f}" if values else ""
        rows.append(row)
    same = f"Paper: the author's means of {paper}." if paper else "The paper has no model of this size."
    note = (
        "Adjusted: value minus baseline, the anisotropy or, for the explainable variance, that of random vectors. In "
        f"brackets 95 % intervals over words or sentences and the vectors of the baseline. {same}"
    )
    return Section(f"Figures 1-4 by layer ({model})", note, rows)


def words(scores: Scores, model: str) -> Section:
    frame = scores.frames["words"].filter(model=model)
    rows: list[Row] = []
    for layer in scores.models[model].layers:
        ends = {}
        for end in ("most", "least"):
            part = frame.filter(layer=layer, end=end)
            ends[end] = ", ".join(f"{item} {value:.2f}" for item, value in part.select("item", "value").iter_rows())
        rows.append({"layer": layer, "most context-specific": ends["most"], "least": ends["least"]})
    note = "Self-similarity, not adjusted: the lowest first for the most context-specific words."
    return Section(f"Most and least context-specific words ({model})", note, rows)


def table1(frame: pl.DataFrame, of: str) -> list[Row]:
    """Arrange scores as the paper's Table 1, its benchmarks under its names and in its order, then the others."""
    names = frame["benchmark"].unique(maintain_order=True).to_list()
    renamed = {
        name: next((column for column, pattern in TABLE1_COLUMNS.items() if re.search(pattern, name, re.I)), name)
        for name in names
    }
    wide = frame.with_columns(pl.col("benchmark").replace(renamed)).pivot("benchmark", index="system", values=of)
    order = sorted(wide.columns[1:], key=[*TABLE1_COLUMNS, *wide.columns].index)
    return wide.select("system", *order).to_dicts()


def static(scores: Scores) -> Section:
    """Table 1, each row of the paper below ours of the same model and layer."""
    paper: dict[str, Row] = {
        system: {"system": system, **dict(zip(TABLE1_COLUMNS, values, strict=True))}
        for system, values in TABLE1.items()
    }
    rows: list[Row] = []
    frame = scores.frames["evaluation"]
    values = table1(frame.with_columns(value=pl.when(pl.col("count") >= MIN_ITEMS).then("value")), "value")
    for row, coverage in zip(values, table1(frame, "coverage"), strict=True):
        names = [name for name in row if name != "system" and row[name] is not None]
        rows.append({**row, **{name: f"{row[name]:.3f} ({coverage[name]:.0%})" for name in names}})
        known = paper.pop(paper_system(scores, row["system"]), None)
        if known:
            whole = [name for name in names if coverage[name] >= MIN_COVERAGE and name in known]
            rows += [{"system": f"paper: {known['system']}", **_numbers(known)}]
            rows += [{"system": "difference", **{name: f"{row[name] - known[name]:+.3f}" for name in whole}}]
    rows += [{"system": f"paper: {row['system']}", **_numbers(row)} for row in paper.values()]
    note = (
        "First principal components of the words of a layer, not centred. Spearman's rho of the pairs whose words are "
        f"known; in brackets their share. Of fewer than {MIN_ITEMS} pairs no score is shown, and below a share of "
        f"{MIN_COVERAGE:.0%} no difference from the paper."
    )
    return Section("Table 1. Static vectors on word similarity", note, rows)


def paper_system(scores: Scores, system: str) -> str:
    """Return the name that a system has in the paper's Table 1; empty if it has none."""
    model, _, layer = system.rpartition(", layer ")
    paper = scores.paper_models.get(model, "")
    return f"{paper.removesuffix('-base-cased')}, Layer {layer}" if paper else ""


def _numbers(row: Mapping[str, Any]) -> Row:
    return {name: decimals(value) for name, value in row.items() if name != "system"}


def findings(scores: Scores) -> Section:
    """What the paper states, and whether it holds for each model."""
    verdicts: dict[str, Row] = {}
    for model in scores.models:
        for claim, (found, holds) in {
            "no layer with context is isotropic (anisotropy above .05)": isotropy(scores, model),
            "anisotropy is greater in upper layers": rises(scores.layers(model, "anisotropy")),
            "words are more context-specific in upper layers": falls(scores.layers(model, "selfsim")),
            f"{', '.join(STOPWORDS)} are among the most context-specific words": stopwords(scores, model),
            "words of a sentence: more alike in upper layers (ELMo), less (BERT), as random ones (GPT-2)": alike(
                scores.layers(model, "intrasim")
            ),
            "less than 5 % of a word's variance is explained by one vector": explained(scores.layers(model, "mev")),
        }.items():
            verdicts.setdefault(claim, {"the paper": claim})[model] = f"{holds}: {found}"
    note = (
        "Layer 0 has no context; only self-similarity is compared with it. Not determined: the 95 % intervals overlap, "
        "or there is too little data. Anisotropy and ranks of words have no interval: there yes and no compare values. "
        "All of it is read off one sample of text."
    )
    return Section("What holds", note, list(verdicts.values()))


def _contextual(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["layer"] > 0] or list(rows)


def _span(rows: Sequence[Row]) -> str:
    return f"{rows[0]['shown']:.3f} at layer {rows[0]['layer']}, {rows[-1]['shown']:.3f} at layer {rows[-1]['layer']}"


def _ends(row: Row) -> tuple[float, float]:
    """The ends of an interval; without one, as of a single word, nothing is excluded."""
    low, high = row["adjusted_low"], row["adjusted_high"]
    return (-inf, inf) if low is None or high is None else (low, high)


def isotropy(scores: Scores, model: str) -> tuple[str, str]:
    rows = _contextual(scores.layers(model, "anisotropy"))
    least = min(rows, key=lambda row: row["shown"])
    return f"least {least['shown']:.3f}, at layer {least['layer']}", "yes" if least["shown"] > MEV_BOUND else "no"


def rises(rows: Sequence[Row]) -> tuple[str, str]:
    """Compare the mean of the upper half of the layers with that of the lower half; one value a layer, no interval."""
    rows = _contextual(rows)
    if len(rows) < 2:
        return "one layer with context", "not determined"
    half = len(rows) // 2
    lower = sum(row["shown"] for row in rows[:half]) / half
    upper = sum(row["shown"] for row in rows[-half:]) / half
    return f"{lower:.3f} in the lower half, {upper:.3f} in the upper", "yes" if upper > lower else "no"


def falls(rows: Sequence[Row]) -> tuple[str, str]:
    (first_low, first_high), (low, high) = _ends(rows[0]), _ends(rows[-1])
    if high < first_low:
        return _span(rows), "yes"
    return _span(rows), "no" if low > first_high else "not determined"


def stopwords(scores: Scores, model: str) -> tuple[str, str]:
    """Where the paper's examples are in the ranking of all words by mean self-similarity over the layers."""
    ranked = scores.frames["words"].filter(model=model, end="all")["item"].to_list()
    places = {word: ranked.index(word) / len(ranked) for word in STOPWORDS if word in ranked}
    if not places:
        return "none of them occurs often enough", "not determined"
    found = ", ".join(f"{word} in the lowest {share:.1%}" for word, share in places.items())
    return f"{found} of {len(ranked):,} words", "yes" if max(places.values()) < 0.2 else "no"


def alike(rows: Sequence[Row]) -> tuple[str, str]:
    rows = _contextual(rows)
    (first_low, first_high), (low, high) = _ends(rows[0]), _ends(rows[-1])
    if low > first_high:
        return _span(rows), "as in ELMo"
    if high < first_low:
        return _span(rows), "as in BERT" if low > MEV_BOUND else "as in GPT-2"
    return _span(rows), "not determined"


def explained(rows: Sequence[Row]) -> tuple[str, str]:
    most = max(_contextual(rows), key=lambda row: row["shown"])
    found = f"at most {most['shown']:.3f}, at layer {most['layer']}"
    low, high = _ends(most)
    if high < MEV_BOUND:
        return found, "yes"
    return found, "no" if low > MEV_BOUND else "not determined"


def figures_of(scores: Scores) -> dict[str, tuple[str, Any]]:
    """Draw Figures 1-4, the author's means dashed, with their titles by the names of their files."""
    frames = {model: scores.summary(model).drop("shown") for model in scores.models}
    theirs = {f"{model} (paper)": frame.drop("shown") for model, frame in published_frames().items()}
    figures = {}
    for number, (metric, title) in enumerate(METRICS.items(), 1):
        drawn = {model: frame.filter(metric=metric) for model, frame in frames.items()}
        published = {model: frame.filter(metric=metric) for model, frame in theirs.items()}
        options = {} if metric == "mev" else {"published": published}  # theirs is of another measure
        figures[f"figure{number}.png"] = (title, plot.geometry_figure(drawn, **options))
    return figures
