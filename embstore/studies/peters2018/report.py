"""The tables and figures of the study of Peters et al. 2018, with intervals over documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore import plot
from embstore.analysis import LabelledOccurrences, sentence_similarity
from embstore.analysis.spans import POOLINGS, Phrase, Pronoun, SpanVectors
from embstore.plot.drawing import add_legend, draw_line
from embstore.spacing import split_words
from embstore.store import Store
from embstore.studies.peters2018.published import CLAIMS
from embstore.studies.peters2018.settings import Peters2018
from embstore.studies.study import Row, Section, decimals

MAIN = {"pronouns": "mean", "phrases": "ends"}  # the pooling of figures and examples
BASELINES = {"recent": "most recent", "first": "first", "chance": "random"}
MIN_DOCUMENTS = 2  # for an interval
MAX_DRAWN, MAX_LABELS, MAX_WORDS = 400, 6, 16
Shown = Callable[..., str]


@dataclass(frozen=True, eq=False)
class Scores:
    """`frames`: the choices of `pronouns` and `phrases`, by model, layer and pooling."""

    settings: Peters2018
    pronouns: Sequence[Pronoun]
    phrases: Sequence[Phrase]
    frames: Mapping[str, pl.DataFrame]

    @property
    def models(self) -> list[str]:
        return self.frames["pronouns"]["model"].unique(maintain_order=True).to_list()

    def of(self, part: str, **where: Any) -> pl.DataFrame:
        """Return the choices of ambiguous pronouns, or of phrases."""
        frame = self.frames[part].filter(**where)
        return frame.filter("ambiguous") if part == "pronouns" else frame

    def main(self, part: str, model: str) -> pl.DataFrame:
        """Return the choices of figures and examples: by one pooling of vectors that are not centered."""
        frame = self.of(part, model=model, pooling=MAIN[part])
        return frame.filter(~pl.col("centered")) if part == "pronouns" else frame

    def layers(self, part: str, model: str) -> list[int]:
        return self.frames[part].filter(model=model)["layer"].unique().sort().to_list()

    def mean(self, frame: pl.DataFrame, value: str | pl.Expr) -> tuple[float, float | None, float | None]:
        """Return the mean of a column and its 95 % interval, by resampling documents."""
        name = pl.col(value) if isinstance(value, str) else value
        sums = frame.group_by("document").agg(name.sum().alias("sum"), pl.len()).sort("document")
        total, count = sums["sum"].to_numpy(), sums["len"].to_numpy()
        mean = float(total.sum() / count.sum())
        if len(sums) < MIN_DOCUMENTS:
            return mean, None, None
        draws = np.random.default_rng(self.settings.seed)
        drawn = draws.integers(len(sums), size=(self.settings.resamples, len(sums)))
        low, high = np.quantile(total[drawn].sum(1) / count[drawn].sum(1), [0.025, 0.975])
        return mean, float(low), float(high)


def _shown(found: tuple[float, float | None, float | None]) -> str:
    mean, low, high = found
    return decimals(mean) + (" (interval not determined)" if low is None else f" [{low:.3f}, {high:.3f}]")


def sections(scores: Scores, marked: Shown) -> list[Section]:
    """Return every table of the study."""
    found = [claims(scores)]
    for model in scores.models:
        found += [pronouns(scores, model, centered) for centered in (False, True)]
        found += [examples(scores, model, marked)] if scores.settings.examples else []
        if scores.phrases:
            found += [phrases(scores, model), neighbours(scores, model, marked)]
    return found


def claims(scores: Scores) -> Section:
    """What the abstract states, and whether it holds for each model: the upper half of the layers less the lower."""
    rows: list[Row] = []
    for part, claim in CLAIMS.items():
        if part not in scores.frames:
            continue
        row: Row = {"the paper": claim, "compared": part}
        for model in scores.models:
            layers = [layer for layer in scores.layers(part, model) if layer > 0]
            half = len(layers) // 2
            if not half:
                row[model] = "not determined: fewer than two layers with context"
                continue
            frame = scores.main(part, model)
            upper = frame.filter(pl.col("layer").is_in(layers[-half:]))
            lower = frame.filter(pl.col("layer").is_in(layers[:half]))
            signed = pl.concat([upper, lower.with_columns(value=-pl.col("value"))])  # its mean is half the difference
            difference = tuple(None if end is None else 2 * end for end in scores.mean(signed, "value"))
            row[model] = f"{_shown(difference)}: {_verdict(difference, part == 'pronouns')}"  # type: ignore[arg-type]
        rows.append(row)
    note = (
        "The accuracy of the upper half of the layers with context less that of the lower half, with its 95 % interval "
        "over documents. The abstract gives an order and no number; no published number is shown."
    )
    return Section("What the paper states", note, rows)


def _verdict(difference: tuple[Any, ...], expected_up: bool) -> str:
    _, low, high = difference
    if low is None or low <= 0 <= high:
        return "not determined"
    return "yes" if (low > 0) == expected_up else "no"


def pronouns(scores: Scores, model: str, centered: bool) -> Section:
    rows: list[Row] = []
    frame = scores.of("pronouns", model=model, centered=centered)
    for layer in scores.layers("pronouns", model):
        own = frame.filter(layer=layer)
        row: Row = {"layer": layer}
        for pooling in POOLINGS:
            row[pooling] = _shown(scores.mean(own.filter(pooling=pooling), "value"))
        main = own.filter(pooling=MAIN["pronouns"])
        row[f"{MAIN['pronouns']}, above most recent"] = _shown(scores.mean(main, pl.col("value") - pl.col("recent")))
        nouns = main.filter(~pl.col("after_pronoun"))
        row[f"{MAIN['pronouns']}, no earlier pronoun ({len(nouns):,})"] = (
            _shown(scores.mean(nouns, "value")) if len(nouns) else ""
        )
        rows.append(row)
    one = frame.filter(layer=frame["layer"][0], pooling="mean")
    baselines = ", ".join(f"{name} {_shown(scores.mean(one, key))}" for key, name in BASELINES.items())
    alone = len(scores.pronouns) - len(one)
    note = (
        f"The share of {len(one):,} pronouns in {one['document'].n_unique():,} documents whose nearest earlier mention "
        f"by cosine corefers; {alone:,} more have right mentions alone and are not counted. The candidate that is: "
        f"{baselines}. A candidate may be the same pronoun, found by its form alone even without context; the last "
        "column is of pronouns without an earlier one. In brackets 95 % bootstrap intervals over documents."
    )
    title = "Antecedents of pronouns" + (", the mean of all spans subtracted" if centered else "")
    return Section(f"{title} ({model})", note, rows)


def examples(scores: Scores, model: str, marked: Shown) -> Section:
    """Pronouns that the best layer resolves and layer 0 does not, those of the shortest sentences."""
    frame = scores.main("pronouns", model)
    means = frame.group_by("layer").agg(pl.col("value").mean()).sort(["value", "layer"], descending=[True, False])
    best, first = means["layer"][0], scores.layers("pronouns", model)[0]
    pair = frame.filter(layer=best).join(frame.filter(layer=first), on="pronoun", suffix="_first")
    gained = pair.filter((pl.col("value") == 1) & (pl.col("value_first") == 0))["pronoun"].to_list()
    lost = pair.filter((pl.col("value") == 0) & (pl.col("value_first") == 1))["pronoun"].to_list()
    texts = []
    for number in gained:
        pronoun = scores.pronouns[number]
        antecedents = [span for span, right in zip(pronoun.candidates, pronoun.right, strict=True) if right]
        texts.append(marked(pronoun.sentence, pronoun.span, antecedents[-1]))
    rows = [{"pronoun and antecedent": text} for text in sorted(texts, key=lambda text: (len(text), text))]
    note = (
        f"{len(gained):,} pronouns are right in layer {best} alone of the two, {len(lost):,} in layer {first} alone. "
        "The shortest sentences of the former, with the last antecedent."
    )
    return Section(
        f"Resolved in layer {best} and not in layer {first} ({model})", note, rows[: scores.settings.examples]
    )


def phrases(scores: Scores, model: str) -> Section:
    rows: list[Row] = []
    for layer in scores.layers("phrases", model):
        frame = scores.of("phrases", model=model, layer=layer)
        cells = {pooling: _shown(scores.mean(frame.filter(pooling=pooling), "value")) for pooling in POOLINGS}
        by_label = frame.filter(pooling=MAIN["phrases"]).group_by("label").agg(pl.col("value").mean())
        mean = by_label.select(pl.col("value").mean()).item()
        rows.append({"layer": layer, **cells, f"{MAIN['phrases']}, mean over labels": decimals(mean)})
    counts = np.array(list(Counter(each.label for each in scores.phrases).values())) / len(scores.phrases)
    note = (
        f"The share of {len(scores.phrases):,} phrases whose nearest phrase of other words in another sentence has the "
        f"same of {len(counts)} labels; most frequent label {counts.max():.3f}, a random phrase "
        f"{np.square(counts).sum():.3f}. Vectors as in the table of pronouns; nearest by cosine."
    )
    return Section(f"Nearest phrases ({model})", note, rows)


def neighbours(scores: Scores, model: str, marked: Shown) -> Section:
    """The nearest phrases of some short phrases in the first, a middle and the last layer."""
    layers = _chosen(scores.layers("phrases", model))
    frame = scores.main("phrases", model).filter(pl.col("layer").is_in(layers))

    def text(number: int) -> str:
        start, stop = scores.phrases[number].span
        words = marked(scores.phrases[number].sentence).split(" ")[start:stop]
        return f"{' '.join(words[:MAX_WORDS])} ({scores.phrases[number].label})"

    short = [n for n, each in enumerate(scores.phrases) if 2 <= each.span[1] - each.span[0] <= 4]
    step = max(1, len(short) // max(1, scores.settings.examples))
    rows: list[Row] = []
    for number in short[::step][: scores.settings.examples]:
        nearest = dict(frame.filter(phrase=number).select("layer", "nearest").iter_rows())
        rows.append({"phrase": text(number), **{f"layer {layer}": text(nearest[layer]) for layer in layers}})
    return Section(f"Phrases and their nearest ({model})", "", rows)


def _chosen(layers: Sequence[int]) -> list[int]:
    return sorted({layers[0], layers[len(layers) // 2], layers[-1]})


def draw(
    scores: Scores, stores: Mapping[str, Store], vectors: Mapping[str, SpanVectors], folder: Path
) -> dict[str, str]:
    """Write the figures; returns titles by file name."""
    plot.save(layer_figure(scores), folder / "layers.png")
    titles = {"layers.png": "Antecedents of pronouns and nearest phrases by layer"}
    for name, store in stores.items():
        layers = _chosen(store.layers)
        if scores.phrases:
            by_label = phrase_map(scores, vectors[name], layers)
            figure = plot.sense_map([by_label], layers=layers, title="Phrases by label")
            plot.save(figure, folder / f"{name}-phrases.png")
            titles[f"{name}-phrases.png"] = f"Phrases by label ({name})"
        lengths = np.array([len(split_words(text)) for text in store.index.texts])
        sentence = int(np.abs(lengths - MAX_WORDS).argmin())
        similarity = sentence_similarity(store, sentence=sentence, layers=layers)
        plot.save(plot.heat_map(similarity), folder / f"{name}-similarity.png")
        titles[f"{name}-similarity.png"] = f"Similarity of the words of a sentence ({name})"
    return titles


def phrase_map(scores: Scores, vectors: SpanVectors, layers: Sequence[int]) -> LabelledOccurrences:
    """The phrases of the most frequent labels, a sample if there are many."""
    labels = np.array([each.label for each in scores.phrases])
    common = [name for name, _ in sorted(Counter(labels.tolist()).items(), key=lambda each: (-each[1], each[0]))]
    rows: NDArray[np.int64] = np.flatnonzero(np.isin(labels, common[:MAX_LABELS]))
    rows = np.sort(np.random.default_rng(scores.settings.seed).permutation(rows)[:MAX_DRAWN])
    by_layer = np.stack([vectors.at(layer, pooling=MAIN["phrases"])[rows] for layer in layers])
    return LabelledOccurrences("phrases", tuple(layers), by_layer.astype(np.float32), labels[rows].tolist(), rows)


def layer_figure(scores: Scores) -> Any:
    """Draw the accuracy of pronouns and phrases by layer, a line a model, with baselines."""
    parts = [part for part in ("pronouns", "phrases") if part in scores.frames]
    figure, axes = plot.subplots(1, len(parts), figsize=(4.8 * len(parts), 3.6))
    titles = {"pronouns": "Antecedents of pronouns", "phrases": "Label of the nearest phrase"}
    for part, axis in zip(parts, axes[0], strict=True):
        for number, model in enumerate(scores.models):
            frame = scores.main(part, model)
            means = [(layer, *scores.mean(frame.filter(layer=layer), "value")) for layer in scores.layers(part, model)]
            rows = pl.DataFrame(means, schema=["layer", "value", "low", "high"], orient="row")
            draw_line(axis, rows, number=number, label=model, columns=("value", "low", "high"))
        if part == "pronouns":
            baselines = scores.main(part, scores.models[0])
            for line, (column, name) in zip(("--", "-.", ":"), BASELINES.items(), strict=True):
                axis.axhline(baselines[column].mean(), color="#555555", linestyle=line, linewidth=1, label=name)
        else:
            share = max(Counter(phrase.label for phrase in scores.phrases).values()) / len(scores.phrases)
            axis.axhline(share, color="#999999", linewidth=1, label="most frequent label")
        plot.style(axis, title=f"{titles[part]} ({MAIN[part]})", x="layer", y="accuracy")
    add_legend(figure, axes)
    return figure
