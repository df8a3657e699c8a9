"""Wiedemann et al. 2019: the sense of a word by its nearest train occurrences, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

import embstore as es
from embstore import plot
from embstore.analysis import knn_labels
from embstore.corpus import Sentence, open_corpus
from embstore.errors import InvalidValueError
from embstore_studies.study import (
    LOG,
    Row,
    Run,
    Section,
    StudyResult,
    StudySettings,
    decimals,
    draw_line,
    methods,
    ratio,
    share,
    with_interval,
)

# F1 as Papers with Code lists it for arXiv:1909.10430, in percent there. Section 3 of the paper has the rule
# k' = min(k, the examples of the rarest train sense of the word).
SCORES = {
    ("SensEval-2 lexical sample", "kNN-BERT"): 0.7652,
    ("SensEval-3 lexical sample", "kNN-BERT"): 0.8012,
    ("SemEval-2007 task 7", "kNN-BERT"): 0.8120,
    ("SemEval-2007 task 7", "kNN-BERT + POS, trained on WNGT"): 0.8532,
    ("SemEval-2007 task 17", "kNN-BERT"): 0.6094,
    ("SemEval-2007 task 17", "kNN-BERT + POS, trained on SemCor"): 0.6317,
}
NOTES = (
    "A word is its lower-case form in Wiki-PSE markup, not its lemma and part of speech.",
    "The mean of the last layers, the interval over words and the credit that equal votes share are choices made here.",
)
SUPERSENSES = "The senses are {count} lexicographer classes of WordNet (noun.act, verb.motion, ...), not its synsets."
TRAIN, TEST = "train", "test"
TEST_SHARE = 0.2  # of the sentences
LAST = 4  # layers that are averaged, as often for BERT
KEYS = ("model", "k", "layer")


@dataclass(frozen=True, kw_only=True)
class Wiedemann2019(StudySettings):
    about: ClassVar[str] = "word senses by the nearest neighbours, by layer and number of neighbours"
    data: ClassVar[str] = "a corpus in Wiki-PSE markup"
    citation: ClassVar[str] = """@inproceedings{wiedemann-etal-2019-bert,
  title = {Does {BERT} Make Any Sense? Interpretable Word Sense Disambiguation with Contextualized Embeddings},
  author = {Wiedemann, Gregor and Remus, Steffen and Chawla, Avi and Biemann, Chris},
  booktitle = {Proceedings of the 15th Conference on Natural Language Processing (KONVENS)},
  year = {2019}, note = {arXiv:1909.10430}
}
"""

    n_sentences: int | None = 10000
    ks: tuple[int, ...] = (1, 3, 5, 7, 10)
    resamples: int = 1000


@dataclass(frozen=True)
class SenseCorpus:
    """Sentences with the label columns `sense`, `target` (which word it is) and `split` at each word with a sense."""

    sentences: Sequence[Sentence]

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row for each word with a sense: `split, target, sense`."""
        rows = [
            (sentence.labels["split"][place], sentence.labels["target"][place], sense)
            for sentence in self.sentences
            for place, sense in enumerate(sentence.labels["sense"])
            if sense is not None
        ]
        return pl.DataFrame(rows, schema=dict.fromkeys(("split", "target", "sense"), pl.String), orient="row")

    @cached_property
    def ambiguous(self) -> list[str]:
        """The words of test that have two senses or more in train."""
        train, test = (self.table.filter(split=split) for split in (TRAIN, TEST))
        several = train.group_by("target").agg(pl.col("sense").n_unique()).filter(pl.col("sense") > 1)
        return test.join(several, on="target", how="semi")["target"].unique().sort().to_list()

    @cached_property
    def digest(self) -> str:
        """A hash of all sentences and their labels, whatever their order."""
        lines = sorted(repr((list(each.words), dict(each.labels))) for each in self.sentences)
        return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    def usable_ks(self, source: Path, ks: Sequence[int]) -> list[int]:
        """Return the ks that are no more than the train examples of the most frequent ambiguous word.

        Raises InvalidValueError for an empty train or test part, no ambiguous word, or no such k.
        """
        table = self.table
        if not len(table):
            raise InvalidValueError(f"{source} has no word with a sense: mark senses as @word@-class")
        for split in (TRAIN, TEST):
            if not len(table.filter(split=split)):
                raise InvalidValueError(f"the {split} part of {source} is empty: draw more sentences")
        if not self.ambiguous:
            raise InvalidValueError(f"no test word of {source} has two senses in train: draw more sentences")
        counts = table.filter(pl.col("target").is_in(self.ambiguous), split=TRAIN).group_by("target").len()
        most = max(counts["len"])
        if min(ks) > most:
            raise InvalidValueError(
                f"ks: {min(ks)} is more than the {most} train examples of any ambiguous word: give less"
            )
        return [k for k in ks if k <= most]


def read_senses(path: Path, *, n_sentences: int | None, seed: int) -> SenseCorpus:
    """Read a corpus in Wiki-PSE markup and split its sentences. Raises CorpusError with file and line."""

    def place(seed: int, sentence: Sentence) -> float:
        """A number in [0, 1) that depends on the seed and the text alone."""
        text = f"{seed} {' '.join(sentence.words)}"
        return int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) / 2**48

    def labelled(sentence: Sentence) -> Sentence:
        """Label each target with its form, in lower case, and the part that its sentence is in."""
        forms = [word.lower() for word in sentence.words]
        for start, stop in sentence.targets:
            forms[start] = " ".join(forms[start:stop])
        split = TEST if place(seed + 1, sentence) < TEST_SHARE else TRAIN
        senses = sentence.labels["class"]
        columns = {
            "sense": list(senses),
            "target": [form if sense else None for sense, form in zip(senses, forms, strict=True)],
            "split": [split if sense else None for sense in senses],
        }
        return replace(sentence, labels=columns)

    sentences = [each for each in open_corpus(path, format="pse") if any(each.labels["class"])]
    return SenseCorpus([labelled(each) for each in sorted(sentences, key=lambda each: place(seed, each))[:n_sentences]])


def run(run: Run[Wiedemann2019], data: Path) -> StudyResult:
    """Run the study on a corpus in Wiki-PSE markup, see `reproduce`."""
    settings = run.settings
    senses = read_senses(data, n_sentences=settings.n_sentences, seed=settings.seed)
    ks = tuple(senses.usable_ks(data, settings.ks))
    if ks != settings.ks:
        large = ", ".join(str(k) for k in settings.ks if k not in ks)
        run.notes.append(f"k = {large} is left out: no ambiguous word has as many train examples.")
        run.settings = settings = replace(settings, ks=ks)
    run.begin()
    options = es.ExtractionOptions(layers="all", keep=es.corpus.Keep(where="sense IS NOT NULL"))
    file = senses.digest[:12]
    stores = {name: run.extract(name, senses, options=options, file=f"{name}-{file}") for name in run.models}
    parts = [disambiguate(run, senses, name, store).with_columns(model=pl.lit(name)) for name, store in stores.items()]
    words = pl.concat(parts)
    scores = by_layer(settings, words)
    run.notes += NOTES
    if all(name.startswith(("noun.", "verb.")) for name in senses.table["sense"].unique()):
        run.notes.append(SUPERSENSES.format(count=senses.table["sense"].n_unique()))
    sections = [kinds(settings, senses, scores), *(layers_table(settings, scores, model) for model in run.models)]
    sections += [by_k(settings, scores), published()]
    return run.result(
        "Word senses by nearest neighbours, after Wiedemann et al. 2019",
        f"{', '.join(run.models)}. {len(senses.sentences):,} sentences; resamples {settings.resamples:,}, seed "
        f"{settings.seed}.",
        frames={"words": words, "layers": scores},
        sections=sections,
        figures=run.save_figures({"layers.png": ("Accuracy by layer", layer_figure(settings, scores))}),
        methods=methods(stores),
    )


def disambiguate(run: Run[Wiedemann2019], senses: SenseCorpus, name: str, store: es.Store) -> pl.DataFrame:
    """Return the scores of each ambiguous word by layer (null: the mean of the last ones) and k.

    Words of one sense in train need no search: that sense is predicted.
    """
    settings = run.settings

    def make() -> pl.DataFrame:
        chosen = {split: {"split": split, "target": senses.ambiguous} for split in (TRAIN, TEST)}
        train = store.select(labels=chosen[TRAIN])
        LOG.info(f"{len(senses.ambiguous):,} ambiguous words, {len(train):,} train occurrences")
        parts = []
        for layers, averaged in ((store.layers, False), (store.layers[-LAST:], True)):
            labels = knn_labels(
                store.select(labels=chosen[TEST], layers=list(layers)),
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
                    parts.append(labels.by_word(layers=layer, k=k).sort("word").with_columns(**own))
        return pl.concat(parts)

    made_from = {"store": store.digest, "ks": settings.ks, "last": LAST, "capped": True}
    return run.table(f"{name}-senses", made_from, make)


def by_layer(settings: Wiedemann2019, words: pl.DataFrame) -> pl.DataFrame:
    """Return scores by model, k and layer; `accuracy_low, accuracy_high` and so on are 95 % intervals over words.

    Micro scores are over occurrences, macro ones the mean over words.
    """
    rows = []
    for key, part in words.partition_by(KEYS, as_dict=True, maintain_order=True).items():
        counts = part["count"].to_numpy()
        columns = {name: part[name].to_numpy() for name in ("accuracy", "baseline", "chance", "f1")}
        columns["gain"] = columns["accuracy"] - columns["baseline"]
        row: Row = {**dict(zip(KEYS, key, strict=True)), "n_words": len(part), "count": int(counts.sum())}
        for name, values in columns.items():
            weights = np.ones(len(part)) if name == "f1" else counts
            row[name], row[f"{name}_low"], row[f"{name}_high"] = (
                ratio(values * weights, weights, resamples=settings.resamples, seed=settings.seed)
                if name in ("f1", "gain")
                else share(values * weights, weights)
            )
        rows.append(row)
    return pl.DataFrame(rows, schema_overrides={"layer": pl.Int64}, infer_schema_length=None)


def rows_at(scores: pl.DataFrame, model: str, k: int) -> list[Row]:
    """Return the scores by layer, the mean of the last layers at the end."""
    return scores.filter(model=model, k=k).sort("layer", nulls_last=True).to_dicts()


def between(row: Row, name: str) -> str:
    return with_interval((row[name], row[f"{name}_low"], row[f"{name}_high"]))


def layer_name(row: Row) -> str:
    return f"mean of the last {LAST}" if row["layer"] is None else str(row["layer"])


def kinds(settings: Wiedemann2019, senses: SenseCorpus, scores: pl.DataFrame) -> Section:
    """Which test occurrences are ambiguous at all, and what every occurrence together scores."""
    train, test = (senses.table.filter(split=split) for split in (TRAIN, TEST))
    known = train.group_by("target").agg(pl.col("sense").unique().alias("known"))
    one = test.join(known.filter(pl.col("known").list.len() == 1), on="target")
    unseen = test.join(train, on="target", how="anti")
    counts = train.group_by("sense").len()
    most = counts.filter(pl.col("len") == pl.col("len").max())["sense"].to_list()
    back_off = float(unseen["sense"].is_in(most).mean()) / len(most) if len(unseen) else None  # type: ignore[arg-type]
    k = settings.ks[0]
    rows: list[Row] = []
    for model in scores["model"].unique(maintain_order=True):
        best = max(rows_at(scores, model, k), key=lambda row: row["accuracy"])
        of_one = one.select(pl.col("known").list.contains(pl.col("sense")).mean()).item()
        parts = {"two senses or more": (best["count"], best["accuracy"]), "one sense": (len(one), of_one)}
        parts["no example (back-off)"] = len(unseen), back_off
        total = sum(count for count, _ in parts.values())
        parts["all"] = total, sum(count * (accuracy or 0) for count, accuracy in parts.values()) / total
        name = f"{model}, {layer_name(best)}"
        for part, (count, accuracy) in parts.items():
            rows.append({"model, layer": name, "train": part, "occurrences": count, "accuracy": decimals(accuracy)})
    note = (
        f"Test occurrences by the senses that train has of their word; k = {k}, at the layer of highest accuracy on "
        "test. Back-off: the most frequent sense of all of train. All other tables are of words with two "
        "senses or more in train, since a word of one sense needs no vector."
    )
    return Section("What is ambiguous", note, rows)


def layers_table(settings: Wiedemann2019, scores: pl.DataFrame, model: str) -> Section:
    rows = rows_at(scores, model, settings.ks[0])
    table = [
        {
            "layer": layer_name(row),
            "accuracy": between(row, "accuracy"),
            "macro F1": between(row, "f1"),
            "above most frequent sense": between(row, "gain"),
        }
        for row in rows
    ]
    first = rows[0]
    note = (
        f"k = {settings.ks[0]}; {first['count']:,} test occurrences of {first['n_words']:,} words. Accuracy (micro F1) "
        f"over occurrences; most frequent train sense of the word {between(first, 'baseline')}, a train sense at "
        f"random {between(first, 'chance')}. Macro F1: the mean over words of the mean F1 of their senses. In brackets "
        "95 % intervals over words. An interval above 0 in the last column: better than the most frequent "
        "sense."
    )
    return Section(f"By layer ({model})", note, table)


def by_k(settings: Wiedemann2019, scores: pl.DataFrame) -> Section:
    rows: list[Row] = []
    for model in scores["model"].unique(maintain_order=True):
        for k in settings.ks:
            row = rows_at(scores, model, k)[-1]
            rows.append({"model": model, "k": k, "accuracy": between(row, "accuracy"), "macro F1": between(row, "f1")})
    note = (
        f"The mean of the last {LAST} layers. The paper lets no more neighbours vote than the rarest "
        "train sense of the word has examples, so that frequent senses do not always win."
    )
    return Section("By number of neighbours", note, rows)


def published() -> Section:
    rows = [{"data": data, "system": system, "F1": f"{value:.4f}"} for (data, system), value in SCORES.items()]
    note = (
        "As Papers with Code lists them for the paper; of other data and WordNet's senses, so no difference is given. "
        "The tables of the paper itself were not at hand."
    )
    return Section("Published", note, rows)


def layer_figure(settings: Wiedemann2019, scores: pl.DataFrame) -> Any:
    """Draw accuracy and macro F1 by layer, a line a model, with the most frequent sense and chance."""
    figure, axes = plot.panels(2, height=2.8)
    k = settings.ks[0]
    for axis, name, title in zip(axes, ("accuracy", "f1"), ("accuracy", "macro F1"), strict=True):
        for number, model in enumerate(scores["model"].unique(maintain_order=True)):
            part = scores.filter(pl.col("layer").is_not_null(), model=model, k=k).sort("layer")
            ends = part[f"{name}_low"], part[f"{name}_high"]
            draw_line(axis, part["layer"], part[name], *ends, number=number, label=model)
        if name == "accuracy":
            first = scores.filter(k=k).row(0, named=True)
            for key, dash, label in (("baseline", "--", "most frequent sense"), ("chance", ":", "a train sense")):
                axis.axhline(first[key], color="#555555", linestyle=dash, linewidth=1, label=label)
        plot.style(axis, title=f"Words with two senses or more, k = {k}", x="layer", y=title)
    plot.add_legend(figure, axes)
    return figure
