"""Peters et al. 2018: which earlier mention is most similar to a pronoun, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import polars as pl

from embstore import plot
from embstore.corpus import EdgeSentence, Sentence, read_edges
from embstore.corpus.sentence import distinct_sentences
from embstore.errors import InvalidValueError
from embstore.probes.edges.tasks import Sample, split_files
from embstore.store import Store
from embstore_studies.extract import extract_step
from embstore_studies.peters2018.published import CITATION
from embstore_studies.peters2018.report import Scores, layer_figure, sections
from embstore_studies.peters2018.settings import Peters2018
from embstore_studies.pronouns import PRONOUNS, Pronoun, find_pronouns, resolve_pronouns
from embstore_studies.study import LOG, Given, StudyResult, StudyRun, methods

NOTES = (
    "The text of the paper was not at hand. Choices made here: mentions are those that the data names, in the sentence "
    "of the pronoun; a span is the mean of its words.",
    "Pronouns are those of the third person with an earlier antecedent in their sentence; as the data has no gender or "
    "number, no candidate is ruled out.",
)


Run = StudyRun[Peters2018]


@dataclass(frozen=True)
class Spans:
    """The sentences of the data with their pronouns; nothing depends on the order of the files."""

    sentences: Sequence[EdgeSentence]
    pronouns: Sequence[Pronoun]

    @cached_property
    def digest(self) -> str:
        """A hash of the sentences and pronouns."""
        return blake2b(repr((self.sentences, self.pronouns)).encode(), digest_size=6).hexdigest()

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
    """Read coreference; raises InvalidValueError, CorpusError."""
    coreference = [sentence for path in split_files(data / "coreference").values() for sentence in read_edges(path)]
    if not coreference:
        raise InvalidValueError(f"{data} has no coreference/train.jsonl: give a folder with that of edge probing files")
    with_pronouns = {pronoun.sentence for pronoun in find_pronouns(coreference)}
    sentences = Sample(settings.n_sentences, settings.seed).draw([coreference[number] for number in with_pronouns])
    sentences.sort(key=lambda sentence: " ".join(sentence.words))
    pronouns = find_pronouns(sentences)
    if not any(pronoun.is_ambiguous for pronoun in pronouns):
        raise InvalidValueError(
            f"{data / 'coreference'}: no pronoun has a right and a wrong earlier mention: give more"
        )
    return Spans(sentences, pronouns)


def run(given: Given[Peters2018], data: Path) -> StudyResult:
    """Run the study on a folder with the task coreference, see `reproduce`."""
    settings, spans = given.settings, read_spans(data, given.settings)
    run = Run.of(given)
    stores = {name: extract_step(run, name, spans, file=f"{name}-{spans.digest}") for name in run.models}
    LOG.info(f"{len(spans.pronouns):,} pronouns")
    scores = Scores(settings, spans.pronouns, pl.concat([resolve(run, spans, *each) for each in stores.items()]))
    run.notes.extend(NOTES)
    plot.save(layer_figure(scores), run.out / "figures" / "layers.png")
    return run.result(
        "Similarities without training, after Peters et al. 2018",
        f"{', '.join(run.models)}. {len(spans.pronouns):,} pronouns; resamples {settings.resamples:,}, seed "
        f"{settings.seed}.",
        frames={"pronouns": scores.frame},
        sections=sections(scores, spans.marked),
        figures={"layers.png": "Antecedents of pronouns by layer"},
        methods=methods(stores),
        citation=CITATION,
    )


def resolve(run: Run, spans: Spans, name: str, store: Store) -> pl.DataFrame:
    """Return the choice of each pronoun by layer, with and without the mean of all spans."""

    def make() -> pl.DataFrame:
        frame = pl.concat(
            resolve_pronouns(store, spans.sentences, spans.pronouns, centered=centered).with_columns(centered=centered)
            for centered in (False, True)
        )
        number = frame["pronoun"].to_numpy()
        flags = {"ambiguous": [each.is_ambiguous for each in spans.pronouns]}
        flags["after_pronoun"] = [spans.has_earlier_pronoun(each) for each in spans.pronouns]
        return frame.with_columns(
            pl.Series("document", spans.documents(frame["sentence"])),
            *(pl.Series(key, np.array(each)[number]) for key, each in flags.items()),
            model=pl.lit(name),
        )

    return run.folder.table(f"{name}-pronouns", {"store": store.digest, "spans": spans.digest}, make)
