"""Peters et al. 2018: which earlier mention is most similar to a pronoun, by layer, without training.

The abstract alone was at hand: it states an order and no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

import embstore as es
from embstore import plot
from embstore.corpus import EdgeSentence, read_edges
from embstore.errors import InvalidValueError
from embstore.probes import split_files
from embstore_studies.study import (
    LOG,
    Distinct,
    Interval,
    Row,
    Run,
    Section,
    StudyResult,
    StudySettings,
    draw,
    draw_line,
    methods,
    ratio,
    share,
    verdict,
    with_interval,
)

CLAIM = "longer range semantics such as coreference at the upper layers"
NOTES = (
    "The text of the paper was not at hand. Choices made here: mentions are those that the data names, in the sentence "
    "of the pronoun; a span is the mean of its words.",
    "Pronouns are those of the third person with an earlier antecedent in their sentence; as the data has no gender or "
    "number, no candidate is ruled out.",
)
BASELINES = {"recent": "most recent", "first": "first", "chance": "random"}
Span = tuple[int, int]
SAME = "1"  # the label of two spans that corefer
TIE = 1e-9  # cosines that differ by less are equal up to rounding
# Of the third person, whose antecedent is a mention and not who speaks or is spoken to.
PRONOUNS = frozenset(
    "he him his himself she her hers herself it its itself they them their theirs themselves".split()  # noqa: SIM905
)


@dataclass(frozen=True, kw_only=True)
class Peters2018(StudySettings):
    about: ClassVar[str] = "antecedents of pronouns by similarity alone, without training"
    data: ClassVar[str] = "a folder with a folder of edge probing files for coreference"
    citation: ClassVar[str] = """@inproceedings{peters-etal-2018-dissecting,
  title = {Dissecting Contextual Word Embeddings: Architecture and Representation},
  author = {Peters, Matthew E. and Neumann, Mark and Zettlemoyer, Luke and Yih, Wen-tau},
  booktitle = {Proceedings of EMNLP 2018},
  year = {2018}, pages = {1499--1509}, doi = {10.18653/v1/D18-1179}
}
"""

    n_sentences: int | None = 1500
    resamples: int = 1000


@dataclass(frozen=True)
class Pronoun:
    """A pronoun with an antecedent in its sentence, whose number is `sentence`.

    `candidates`: the earlier mentions, in order of their ends; `right`: which of them corefer with it.
    """

    sentence: int
    span: Span
    candidates: tuple[Span, ...]
    right: tuple[bool, ...]


def find_pronouns(sentences: Sequence[EdgeSentence]) -> list[Pronoun]:
    """Find the pronouns that have an antecedent, in sentences whose pairs of spans are labelled 1 if they corefer.

    Mentions are the spans of the pairs. Candidates are mentions that end before the pronoun begins. Coreference is
    transitive: two mentions corefer if labelled pairs connect them.
    """
    pronouns = []
    for number, sentence in enumerate(sentences):
        known = {span: {span} for target in sentence.targets for span in (target.span1, target.span2) if span}
        for target in sentence.targets:
            if target.span2 is not None and SAME in target.labels:
                together = known[target.span1] | known[target.span2]
                known |= dict.fromkeys(together, together)
        for span in sorted(known):
            start, stop = span
            if stop != start + 1 or sentence.words[start].lower() not in PRONOUNS:
                continue
            earlier = sorted((other for other in known if other[1] <= start), key=lambda each: (each[1], each[0]))
            right = tuple(other in known[span] for other in earlier)
            if any(right):
                pronouns.append(Pronoun(number, span, tuple(earlier), right))
    return pronouns


def resolve_pronouns(
    store: es.Store, sentences: Sequence[EdgeSentence], pronouns: Sequence[Pronoun], *, centered: bool = False
) -> pl.DataFrame:
    """Choose the antecedent of each pronoun: the candidate whose vector has the highest cosine with its own.

    Columns, one row a layer and pronoun: `layer, pronoun` (its number), `sentence, n_candidates, value`, 1 if the
    choice corefers and a share of 1 if equal candidates include right ones, and the same for the nearest candidate
    (`recent`), the `first` one and a random one (`chance`). A span is the mean of its words. `centered`: subtract the
    mean of all spans.
    """
    index = store.index
    first = {text: int(start) for text, start in zip(index.text, index.indptr[:-1], strict=True)}
    sizes = np.array([len(each.candidates) for each in pronouns])
    ends = [
        first[" ".join(sentences[each.sentence].words)] + np.array(span)
        for each in pronouns
        for span in (each.span, *each.candidates)
    ]
    rows, place = np.unique(np.concatenate([np.arange(*span) for span in ends]), return_inverse=True)
    lengths = np.array([stop - start for start, stop in ends])
    own = np.cumsum(sizes + 1) - sizes - 1
    is_candidate = np.ones(len(ends), bool)
    is_candidate[own] = False
    right = np.concatenate([each.right for each in pronouns])
    starts = np.cumsum(sizes) - sizes
    baselines = {
        "recent": right[starts + sizes - 1].astype(float),
        "first": right[starts].astype(float),
        "chance": np.add.reduceat(right.astype(float), starts) / sizes,
    }
    frames = []
    for layer in store.layers:
        of_words = store.select(rows=rows, layers=layer).vectors(dtype="float64")[place]
        vectors = np.add.reduceat(of_words, np.cumsum(lengths) - lengths) / lengths[:, None]
        unit = _unit(vectors - vectors.mean(0) if centered else vectors)
        cosine = (unit[is_candidate] * np.repeat(unit[own], sizes, axis=0)).sum(1)
        best = cosine >= np.repeat(np.maximum.reduceat(cosine, starts), sizes) - TIE
        value = np.add.reduceat((best & right).astype(float), starts) / np.add.reduceat(best.astype(float), starts)
        columns: dict[str, Any] = {
            "layer": np.full(len(pronouns), layer),
            "pronoun": np.arange(len(pronouns)),
            "sentence": [each.sentence for each in pronouns],
            "n_candidates": sizes,
            "value": value,
        }
        frames.append(pl.DataFrame(columns | baselines))
    return pl.concat(frames)


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


@dataclass(frozen=True)
class Spans:
    """The sentences of the data with their pronouns; nothing depends on the order of the files."""

    sentences: Sequence[EdgeSentence]
    pronouns: Sequence[Pronoun]

    @property
    def digest(self) -> str:
        """A hash of the sentences and pronouns."""
        return blake2b(repr((self.sentences, self.pronouns)).encode(), digest_size=6).hexdigest()

    def has_earlier_pronoun(self, pronoun: Pronoun) -> bool:
        """Return whether a candidate is a pronoun itself, which may be found by its form."""
        words = self.sentences[pronoun.sentence].words
        return any(stop == start + 1 and words[start].lower() in PRONOUNS for start, stop in pronoun.candidates)


def read_spans(data: Path, settings: Peters2018) -> Spans:
    """Read coreference; raises InvalidValueError, CorpusError."""
    coreference = [sentence for path in split_files(data / "coreference").values() for sentence in read_edges(path)]
    if not coreference:
        raise InvalidValueError(f"{data} has no coreference/train.jsonl: give a folder with that of edge probing files")
    with_pronouns = {pronoun.sentence for pronoun in find_pronouns(coreference)}
    sentences = draw([coreference[number] for number in with_pronouns], settings.n_sentences, settings.seed)
    sentences.sort(key=lambda sentence: " ".join(sentence.words))
    pronouns = find_pronouns(sentences)
    if all(all(pronoun.right) for pronoun in pronouns):
        raise InvalidValueError(
            f"{data / 'coreference'}: no pronoun has a right and a wrong earlier mention: give more"
        )
    return Spans(sentences, pronouns)


def run(run: Run[Peters2018], data: Path) -> StudyResult:
    """Run the study on a folder with the task coreference, see `reproduce`."""
    settings, spans = run.settings, read_spans(data, run.settings)
    run.begin()
    corpus = Distinct(lambda: (each.words for each in spans.sentences))
    stores = {name: run.extract(name, corpus, file=f"{name}-{spans.digest}") for name in run.models}
    LOG.info(f"{len(spans.pronouns):,} pronouns")
    frame = pl.concat([resolve(run, spans, *each) for each in stores.items()])
    run.notes += NOTES
    sections = [Section("What the paper states", CLAIM_NOTE, [claim(settings, frame)])]
    for model in run.models:
        sections.append(accuracy(settings, frame.filter(model=model), model))
    return run.result(
        "Similarities without training, after Peters et al. 2018",
        f"{', '.join(run.models)}. {len(spans.pronouns):,} pronouns; resamples {settings.resamples:,}, seed "
        f"{settings.seed}.",
        frames={"pronouns": frame},
        sections=sections,
        figures=run.save_figures({"layers.png": ("Antecedents of pronouns by layer", layer_figure(settings, frame))}),
        methods=methods(stores),
    )


def resolve(run: Run[Peters2018], spans: Spans, name: str, store: es.Store) -> pl.DataFrame:
    """Return the choice of each pronoun by layer, with and without the mean of all spans."""

    def make() -> pl.DataFrame:
        frame = pl.concat(
            resolve_pronouns(store, spans.sentences, spans.pronouns, centered=centered).with_columns(centered=centered)
            for centered in (False, True)
        )
        number = frame["pronoun"].to_numpy()
        documents = [spans.sentences[at].document or f"sentence {at}" for at in frame["sentence"].to_list()]
        flags = {"ambiguous": [not all(each.right) for each in spans.pronouns]}
        flags["after_pronoun"] = [spans.has_earlier_pronoun(each) for each in spans.pronouns]
        return frame.with_columns(
            pl.Series("document", documents),
            *(pl.Series(key, np.array(each)[number]) for key, each in flags.items()),
            model=pl.lit(name),
        )

    return run.table(f"{name}-pronouns", {"store": store.digest, "spans": spans.digest}, make)


def mean(settings: Peters2018, frame: pl.DataFrame, value: str | pl.Expr) -> Interval:
    """Return the mean of a column and its 95 % interval over documents; by resampling them unless it is a share."""
    name = pl.col(value) if isinstance(value, str) else value
    sums = frame.group_by("document").agg(name.sum().alias("sum"), pl.len()).sort("document")
    of = sums["sum"].to_numpy(), sums["len"].to_numpy()
    return share(*of) if isinstance(value, str) else ratio(*of, resamples=settings.resamples, seed=settings.seed)


CLAIM_NOTE = (
    "The accuracy of the upper half of the layers with context less that of the lower half, with its 95 % interval "
    "over documents. The abstract gives an order and no number; no published number is shown."
)


def claim(settings: Peters2018, frame: pl.DataFrame) -> Row:
    """What the abstract states, and whether it holds for each model: the upper half of the layers less the lower."""
    row: Row = {"the paper": CLAIM}
    for (model,), part in frame.filter("ambiguous", ~pl.col("centered")).group_by("model", maintain_order=True):
        layers = [layer for layer in part["layer"].unique().sort() if layer > 0]
        half = len(layers) // 2
        if not half:
            row[str(model)] = "not determined: fewer than two layers with context"
            continue
        upper = part.filter(pl.col("layer").is_in(layers[-half:]))
        lower = part.filter(pl.col("layer").is_in(layers[:half]))
        signed = pl.concat([upper, lower.with_columns(value=-pl.col("value"))])  # its mean is half the difference
        interval = mean(settings, signed, 2 * pl.col("value"))
        row[str(model)] = f"{with_interval(interval)}: {verdict(*interval[1:])}"
    return row


def accuracy(settings: Peters2018, frame: pl.DataFrame, model: str) -> Section:
    """The share of pronouns that are resolved, by layer."""
    rows: list[Row] = []
    plain, centered = (frame.filter("ambiguous", centered=each) for each in (False, True))

    def shown(part: pl.DataFrame, value: str | pl.Expr = "value") -> str:
        return with_interval(mean(settings, part, value)) if len(part) else ""

    for layer in plain["layer"].unique().sort():
        own = plain.filter(layer=layer)
        nouns = own.filter(~pl.col("after_pronoun"))
        row = {
            "layer": layer,
            "accuracy": shown(own),
            "mean of all spans subtracted": shown(centered.filter(layer=layer)),
            "above most recent": shown(own, pl.col("value") - pl.col("recent")),
            f"no earlier pronoun ({len(nouns):,})": shown(nouns),
        }
        rows.append(row)
    one = plain.filter(layer=plain["layer"][0])
    baselines = ", ".join(f"{name} {shown(one, key)}" for key, name in BASELINES.items())
    alone = frame["pronoun"].n_unique() - len(one)
    note = (
        f"The share of {len(one):,} pronouns in {one['document'].n_unique():,} documents whose nearest earlier mention "
        f"by cosine corefers; {alone:,} more have right mentions alone and are not counted. The candidate that is: "
        f"{baselines}. A candidate may be the same pronoun, found by its form alone even without context; the last "
        "column is of pronouns without an earlier one. In brackets 95 % intervals over documents."
    )
    return Section(f"Antecedents of pronouns ({model})", note, rows)


def layer_figure(settings: Peters2018, frame: pl.DataFrame) -> Any:
    """Draw the accuracy by layer, a line a model, with baselines."""
    figure, (axis,) = plot.panels(1, height=3.0)
    plain = frame.filter("ambiguous", ~pl.col("centered"))
    for number, ((model,), part) in enumerate(plain.group_by("model", maintain_order=True)):
        layers = part["layer"].unique().sort()
        value, low, high = zip(*(mean(settings, part.filter(layer=layer), "value") for layer in layers), strict=True)
        draw_line(axis, layers, value, low, high, number=number, label=str(model))
    one = plain.filter(model=plain["model"][0], layer=plain["layer"][0])
    for (key, name), dash in zip(BASELINES.items(), ("--", "-.", ":"), strict=True):
        axis.axhline(one[key].mean(), color="#555555", linestyle=dash, linewidth=1, label=name)
    plot.style(axis, title="Antecedents of pronouns", x="layer", y="accuracy")
    plot.add_legend(figure, [axis])
    return figure
