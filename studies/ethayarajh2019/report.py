"""The tables and figures of Ethayarajh 2019, next to the published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import polars as pl

from embstore import plot
from embstore.store.metadata import Metadata
from embstore_studies.ethayarajh2019.published import LAYERS
from embstore_studies.ethayarajh2019.settings import Ethayarajh2019
from embstore_studies.evaluation.evaluate import paper_table1, table1
from embstore_studies.study import Row, Section, decimals

METRICS = {
    "anisotropy": "Figure 1. Anisotropy",
    "selfsim": "Figure 2. Self-similarity, adjusted",
    "intrasim": "Figure 3. Intra-sentence similarity, adjusted",
    "mev": "Figure 4. Maximum explainable variance, adjusted",
}
ENDS = ("layer", "end", "item", "value", "count")
STOPWORDS = ("the", "of", "to")  # named in section 4.2 as among the most context-specific words
MEV_BOUND = 0.05
MIN_ITEMS = 30  # of a benchmark, for a score to be shown
MIN_COVERAGE = 0.9  # of a benchmark's items, for a score to be compared with the paper's
# The published models: substring of the architecture, blocks, hidden size.
PAPER_MODELS = {"BERT-base-cased": ("Bert", 12, 768), "GPT-2": ("GPT2", 12, 768), "ELMo": ("ELMo", 2, 1024)}


@dataclass(frozen=True, eq=False)
class Scores:
    """The frames of one run of the study: `geometry` and `words` by model, and, with benchmarks, those of Table 1."""

    settings: Ethayarajh2019
    models: Mapping[str, Metadata]
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
        found = {}
        for name, metadata in self.models.items():
            fields = metadata.model
            for paper, (architecture, n_layers, size) in PAPER_MODELS.items():
                same = fields["num_hidden_layers"] == n_layers and fields["hidden_size"] == size
                is_cased = "uncased" not in fields["name"].lower()
                if same and is_cased and fields["architecture"].startswith(architecture):
                    found[name] = paper
        return found


def sections(scores: Scores) -> list[Section]:
    """Return every table of the study, model after model."""
    found = [findings(scores)]
    found += [by_layer(scores, model) for model in scores.models]
    found.append(published_layers())
    found += [words(scores, model) for model in scores.models]
    if "evaluation" in scores.frames:
        found += [static(scores), shared(scores)]
    return found


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
        f"brackets 95 % bootstrap intervals over words or sentences. {same}"
    )
    return Section(f"Figures 1-4 by layer ({model})", note, rows)


def published_layers() -> Section:
    rows = []
    for model, frame in published_frames().items():
        for metric, title in METRICS.items():
            values = {row["layer"]: row["shown"] for row in frame.filter(metric=metric).to_dicts()}
            layers = range(len(LAYERS["GPT-2"]["anisotropy"]))
            row: Row = {"model": model, "": title.split(". ")[1]}
            rows.append(row | {str(layer): decimals(values.get(layer)) for layer in layers})
    note = (
        "Means over the words in the result files that the author published; columns are layers. The explainable "
        "variance is not comparable: that code centres the vectors of a word but not those of its baseline."
    )
    return Section("The paper's figures in numbers", note, rows)


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


def benchmark_scores(frame: pl.DataFrame) -> tuple[list[Row], list[Row]]:
    """Return the scores and the coverages as in Table 1, without scores of fewer than MIN_ITEMS items."""
    known = frame.with_columns(value=pl.when(pl.col("count") >= MIN_ITEMS).then("value"))
    return table1(known).to_dicts(), table1(known, of="coverage").to_dicts()


def static(scores: Scores) -> Section:
    """Table 1 on all words of each system, each row of the paper below ours of the same model and layer."""
    paper = {row["system"]: row for row in paper_table1().to_dicts()}
    rows: list[Row] = []
    for row, coverage in zip(*benchmark_scores(scores.frames["evaluation"]), strict=True):
        names = [name for name in row if name != "system"]
        covered = {name: f" ({coverage[name]:.0%})" if row[name] is not None else "" for name in names}
        shown = {name: decimals(row[name]) + covered[name] for name in names}
        rows.append({"system": row["system"], **shown})
        known = paper.pop(paper_system(scores, row["system"]), None)
        if known:
            whole = [name for name in names if (coverage[name] or 0) >= MIN_COVERAGE and known.get(name) is not None]
            differences = {name: f"{row[name] - known[name]:+.3f}" for name in whole if row[name] is not None}
            rows += [{"system": f"paper: {known['system']}", **_numbers(known)}]
            rows += [{"system": "difference", **differences}] if differences else []
    rows += [{"system": f"paper: {row['system']}", **_numbers(row)} for row in paper.values()]
    note = (
        "First principal components of the words of a layer, not centred. Spearman's rho, accuracy or purity on the "
        f"items whose words are known; in brackets their share. Of fewer than {MIN_ITEMS} items no score is shown, and "
        f"below a share of {MIN_COVERAGE:.0%} no difference from the paper."
    )
    return Section("Table 1. Static vectors on word benchmarks", note, rows)


def paper_system(scores: Scores, system: str) -> str:
    """Return the name that a system has in the paper's Table 1; empty if it has none."""
    model, sign, layer = system.rpartition(", layer ")
    if not sign:
        return next((name for name in ("GloVe", "FastText") if name.lower() in system.lower()), "")
    paper = scores.paper_models.get(model, "")
    return f"{paper.removesuffix('-base-cased')}, Layer {layer}" if paper else ""


def shared(scores: Scores) -> Section:
    rows = [{"system": row["system"], **_numbers(row)} for row in benchmark_scores(scores.frames["shared"])[0]]
    counts = table1(scores.frames["shared"], of="count").row(0, named=True)
    rows.append({"system": "items", **{name: f"{value:,}" for name, value in counts.items() if name != "system"}})
    note = f"Every system has all of these words, so that rows are comparable. At least {MIN_ITEMS} items."
    return Section("Table 1 on shared words", note, rows)


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
            **static_findings(scores, model),
        }.items():
            verdicts.setdefault(claim, {"the paper": claim})[model] = f"{holds}: {found}"
    note = (
        "Layer 0 has no context; only self-similarity is compared with it. Not determined: the 95 % intervals overlap, "
        "or there is too little data. All of it is read off one sample of text."
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


def static_findings(scores: Scores, model: str) -> dict[str, tuple[str, str]]:
    """Compare static vectors on the shared words: lower layers with upper ones, and with the given vectors."""
    if "shared" not in scores.frames:
        return {}
    scores_of = {row.pop("system"): row for row in benchmark_scores(scores.frames["shared"])[0]}
    layers = [system for system in scores_of if system.rpartition(", layer ")[0] == model]
    rivals = {} if len(layers) == 1 else {"static vectors of a low layer beat those of the last": layers[-1]}
    for system in scores_of:
        if system in scores.settings.vectors:
            rivals[f"static vectors of a low layer beat {system}"] = system
    low_layer = scores_of[layers[0]]
    findings = {}
    for claim, rival in rivals.items():
        pairs = [(low_layer[name], score) for name, score in scores_of[rival].items()]
        pairs = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        wins = sum(ours > theirs for ours, theirs in pairs)
        verdict = "yes" if 2 * wins > len(pairs) else "no"
        findings[claim] = (f"on {wins} of {len(pairs)} benchmarks", verdict if pairs else "not determined")
    return findings


def draw(scores: Scores, folder: Path) -> dict[str, str]:
    """Write Figures 1-4, the author's means dashed; returns titles by file name."""
    frames = {model: scores.summary(model).drop("shown") for model in scores.models}
    theirs = {f"{model} (paper)": frame.drop("shown") for model, frame in published_frames().items()}
    titles = {}
    for number, (metric, title) in enumerate(METRICS.items(), 1):
        name = f"figure{number}.png"
        drawn = {model: frame.filter(metric=metric) for model, frame in frames.items()}
        if metric == "mev":  # theirs are of another measure
            figure = plot.geometry_figure(drawn)
        else:
            figure = plot.geometry_figure(
                drawn, published={model: frame.filter(metric=metric) for model, frame in theirs.items()}
            )
        plot.save(figure, folder / name)
        titles[name] = title
    return titles
