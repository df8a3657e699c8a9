"""Peters et al. 2018: which earlier mention is most similar to a pronoun, and which phrase to a phrase, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import polars as pl

from embstore.analysis.spans import (
    POOLINGS,
    PRONOUNS,
    Phrase,
    Pronoun,
    SpanVectors,
    find_pronouns,
    nearest_phrases,
    resolve_pronouns,
)
from embstore.corpus import EdgeSentence, Sentence, read_edges
from embstore.corpus.sentence import distinct_sentences
from embstore.errors import InvalidValueError
from embstore.probes.edges.tasks import Sample, split_files
from embstore.store import Store
from embstore.studies.extract import extract_step
from embstore.studies.peters2018.published import CITATION
from embstore.studies.peters2018.report import Scores, draw, sections
from embstore.studies.peters2018.settings import Peters2018
from embstore.studies.study import LOG, Given, StudyResult, StudyRun, methods

NOTES = (
    "The text of the paper was not at hand. Choices made here: mentions are those that the data names, in the sentence "
    "of the pronoun; a span is the mean of its words, its last word, or the mean of both ends.",
    "Pronouns are those of the third person with an earlier antecedent in their sentence; as the data has no gender or "
    "number, no candidate is ruled out.",
)


Run = StudyRun[Peters2018]


@dataclass(frozen=True)
class Spans:
    """The sentences of the data with their pronouns and phrases; nothing depends on the order of the files."""

    sentences: Sequence[EdgeSentence]
    pronouns: Sequence[Pronoun]
    phrases: Sequence[Phrase]

    @cached_property
    def digest(self) -> str:
        """A hash of the sentences, pronouns and phrases."""
        return blake2b(repr((self.sentences, self.pronouns, self.phrases)).encode(), digest_size=6).hexdigest()

    def __iter__(self) -> Iterator[Sentence]:
        return distinct_sentences(each.words for each in self.sentences)

    def documents(self, numbers: pl.Series) -> list[str]:
        """Return the document of each sentence by its number; a sentence without one is a document."""
        return [self.sentences[number].document or f"sentence {number}" for number in numbers.to_list()]

    def has_earlier_pronoun(self, pronoun: Pronoun) -> bool:
        """Return whether a candidate is a pronoun itself, which may be found by its form."""
        words = self.sentences[pronoun.sentence].words
        return any(stop == start + 1 and words[start].lower() in PRONOUNS for start, stop in pronoun.candidates)

    def marked(self, number: int, *spans: tuple[int, int]) -> str:
        """Return a sentence with spans in brackets."""
        words = list(self.sentences[number].words)
        for start, stop in spans:
            words[start] = f"[{words[start]}"
            words[stop - 1] += "]"
        return " ".join(words)


def read_spans(data: Path, settings: Peters2018) -> Spans:
    """Read coreference and constituents; raises InvalidValueError, CorpusError."""
    coreference = _sentences(data / "coreference")
    if not coreference:
        raise InvalidValueError(f"{data} has no coreference/train.jsonl: give a folder with that of edge probing files")
    sample = Sample(settings.sentences, settings.seed)
    with_pronouns = {pronoun.sentence for pronoun in find_pronouns(coreference)}
    sentences = sample.draw([coreference[number] for number in with_pronouns])
    sentences.sort(key=lambda sentence: " ".join(sentence.words))
    pronouns = find_pronouns(sentences)
    if not any(pronoun.is_ambiguous for pronoun in pronouns):
        raise InvalidValueError(
            f"{data / 'coreference'}: no pronoun has a right and a wrong earlier mention: give more"
        )
    parsed = [(" ".join(each.words), each) for each in sample.draw(_sentences(data / "constituents"))]
    spans = {(text, target.span1, target.labels[0]) for text, sentence in parsed for target in sentence.targets}
    shuffled = sorted(spans, key=lambda span: blake2b(f"{settings.seed} {span}".encode(), digest_size=8).digest())
    chosen = sorted(shuffled[: settings.phrases])
    numbers = {text: number for number, text in enumerate(sorted({text for text, *_ in chosen}), len(sentences))}
    phrases = [Phrase(numbers[text], span, label) for text, span, label in chosen]
    by_text = dict(parsed)
    return Spans((*sentences, *(by_text[text] for text in numbers)), pronouns, phrases)


def _sentences(task: Path) -> list[EdgeSentence]:
    return [sentence for path in split_files(task).values() for sentence in read_edges(path)]


def run(given: Given[Peters2018], data: Path) -> StudyResult:
    """Run the study on a folder with the tasks coreference and perhaps constituents, see `reproduce`."""
    settings, spans = given.settings, read_spans(data, given.settings)
    run = Run.of(given)
    stores = {name: extract_step(run, name, spans, file=f"{name}-{spans.digest}") for name in run.models}
    LOG.info(f"{len(spans.pronouns):,} pronouns, {len(spans.phrases):,} phrases")
    frames = {"pronouns": pl.concat([resolve(run, spans, name, store) for name, store in stores.items()])}
    if spans.phrases:
        frames["phrases"] = pl.concat([compare(run, spans, name, store) for name, store in stores.items()])
    run.notes.extend((*NOTES, *(() if spans.phrases else ("The data has no constituents, so phrases are left out.",))))
    scores = Scores(settings, spans.pronouns, spans.phrases, frames)
    return run.result(
        "Similarities without training, after Peters et al. 2018",
        f"{', '.join(run.models)}. {len(spans.pronouns):,} pronouns, {len(spans.phrases):,} phrases; resamples "
        f"{settings.resamples:,}, seed {settings.seed}.",
        frames=frames,
        sections=sections(scores, spans.marked),
        figures=draw(
            scores, stores, {name: vectors(spans, store) for name, store in stores.items()}, run.out / "figures"
        ),
        methods=methods(stores),
        citation=CITATION,
    )


def vectors(spans: Spans, store: Store) -> SpanVectors:
    """The vectors of the phrases."""
    return SpanVectors(store, spans.sentences, [(each.sentence, each.span) for each in spans.phrases])


def resolve(run: Run, spans: Spans, name: str, store: Store) -> pl.DataFrame:
    """Return the choice of each pronoun by layer, pooling and with or without the mean."""

    def make() -> pl.DataFrame:
        parts = []
        for centered in (False, True):
            for pooling in POOLINGS:
                options = {"pooling": pooling, "centered": centered}
                frame = resolve_pronouns(store, spans.sentences, spans.pronouns, **options)  # type: ignore[arg-type]
                parts.append(frame.with_columns(pooling=pl.lit(pooling), centered=pl.lit(centered)))
        frame = pl.concat(parts)
        number = frame["pronoun"].to_numpy()
        flags = {"ambiguous": [each.is_ambiguous for each in spans.pronouns]}
        flags["after_pronoun"] = [spans.has_earlier_pronoun(each) for each in spans.pronouns]
        return frame.with_columns(
            pl.Series("document", spans.documents(frame["sentence"])),
            *(pl.Series(key, np.array(each)[number]) for key, each in flags.items()),
            model=pl.lit(name),
        )

    return run.folder.table(f"{name}-pronouns", {"store": store.digest, "spans": spans.digest}, make)


def compare(run: Run, spans: Spans, name: str, store: Store) -> pl.DataFrame:
    """Return the nearest phrase of each phrase by layer and pooling."""

    def make() -> pl.DataFrame:
        parts = [
            nearest_phrases(store, spans.sentences, spans.phrases, pooling=pooling).with_columns(
                pooling=pl.lit(pooling)
            )
            for pooling in POOLINGS
        ]
        frame = pl.concat(parts)
        return frame.with_columns(pl.Series("document", spans.documents(frame["sentence"])), model=pl.lit(name))

    return run.folder.table(f"{name}-phrases", {"store": store.digest, "spans": spans.digest}, make)
