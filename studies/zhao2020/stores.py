"""The stores of the study: every representation of the words, extracted once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import embstore as es
from embstore import ExtractionOptions
from embstore.corpus import Corpus, Document, Keep, Sentence, open_corpus
from embstore.extraction import extract_windows, plan_windows
from embstore.models import Encoder, bag_encoder, random_encoder, subword_encoder, vector_encoder
from embstore.probes import WordSplit
from embstore.store import Store
from embstore.vectors import write_vectors
from embstore_studies.extract import extract_step
from embstore_studies.skipgram import train_vectors
from embstore_studies.study import StudyRun
from embstore_studies.zhao2020.settings import Zhao2020

LABEL = "class"


@dataclass(frozen=True, kw_only=True)
class Run(StudyRun[Zhao2020]):
    """One run of the study. `words`: those that are probed."""

    corpus: Path
    model: str
    words: WordSplit

    def open_corpus(self) -> Corpus:
        return open_corpus(self.corpus, format="pse")


@dataclass(frozen=True)
class Stores:
    """The stores of the study.

    `bert` and `bags` by context: a context window, None for the whole sentence, or "passage"; the whole sentence has
    all words, the others those of train and dev. `other_bags` and `words`: other vectors by name. `vocabularies`: the
    words of tables that do not have all words; their stores hold rows of these alone. `subwords`: the model's own
    table.
    """

    bert: Mapping[int | str | None, Store]
    bags: Mapping[int | str | None, Store]
    other_bags: Mapping[str, Store]
    words: Mapping[str, Store]
    vocabularies: Mapping[str, frozenset[str]]
    subwords: Encoder

    @property
    def full(self) -> Store:
        """The model's vectors of whole sentences."""
        return self.bert[None]


def extract_all(run: Run, model: Encoder) -> Stores:
    """Extract every representation of the study that is not stored yet."""
    settings = run.settings
    skipgram = train_skipgram(run)
    random = random_encoder(settings.skipgram_size, seed=settings.seed)
    with es.config(device=run.device):
        subwords = subword_encoder(run.model)
    trained = vector_encoder(skipgram, missing="random", seed=settings.seed)
    words = {
        "Rand": extract_one(run, "rand", random),
        "BERTw": extract_one(run, "bertw", subwords),
        "skip-gram": extract_one(run, "skip-gram", trained),
    }
    other_bags = {
        "P-Rand": extract_one(run, "p-rand", bag_encoder(random)),
        "P-skip-gram": extract_one(run, "p-skip-gram", bag_encoder(trained)),
    }
    vocabularies = {}
    for name, file in settings.vectors.items():
        words[name] = extract_one(run, f"words-{name}", vector_encoder(file, missing="drop", seed=settings.seed))
        complete = vector_encoder(file, missing="random", seed=settings.seed)
        other_bags[f"P-{name}"] = extract_one(run, f"p-words-{name}", bag_encoder(complete))
        vocabularies[name] = frozenset(words[name].index.words)
    bert = extract_contexts(run, "bert", model)
    bags = extract_contexts(run, "p-bert", bag_encoder(subwords))
    return Stores(bert, bags, other_bags, words, vocabularies, subwords)


def train_skipgram(run: Run) -> Path:
    """Train skip-gram vectors on the corpus, the paper's PSE, and return their file."""
    training = run.settings.skipgram()
    path = run.folder.path / "models" / f"skip-gram-{training.size}-{training.epochs}-{training.seed}.bin"

    def make() -> None:
        write_vectors(train_vectors(run.open_corpus(), training=training, progress=run.folder.bars), path)

    if not path.exists():
        run.folder.step("skip-gram vectors of the corpus", make)
    return path


def extract_contexts(run: Run, name: str, model: Encoder) -> dict[int | str | None, Store]:
    """Extract one representation by context: the whole sentence, windows of words, and passages."""
    stores: dict[int | str | None, Store] = {None: extract_one(run, name, model, file=f"{name}-full")}
    if any(window is not None for window in run.settings.context_windows):
        stores.update(extract_windowed(run, name, model).items())
    if run.settings.passage_subwords is not None:
        options = replace(kept(run, tested=False), context=run.settings.passage_subwords + model.n_specials)
        text = open_corpus(OneText(run.open_corpus()))
        stores["passage"] = extract_step(run, f"{name}-passage", text, model=model, options=options)
    return stores


def extract_windowed(run: Run, name: str, model: Encoder) -> dict[int | None, Store]:
    """Extract one representation with each context window but the whole sentence."""
    path = run.folder.path / "stores" / f"{name}.zarr"

    def make() -> dict[int | None, Store]:
        planned = plan_windows(
            run.open_corpus(),
            model=model,
            context_windows=[window for window in run.settings.context_windows if window is not None],
            options=kept(run, tested=False),
            store=path,
            calibrate=False,
        )
        return extract_windows(planned, path)

    with es.config(device=run.device, progress=run.folder.bars):
        return run.folder.step(f"extract {name} by context window", make)


def kept(run: Run, *, tested: bool = True) -> ExtractionOptions:
    """Return what a store holds: at most `max_contexts` occurrences of a word and class; `tested`: also of test."""
    words = {*run.words.train, *run.words.dev, *(run.words.test if tested else ())}
    keep = Keep(
        words=frozenset(words),
        labelled=LABEL,
        max_contexts=run.settings.max_contexts,
        per=LABEL,
        seed=run.settings.seed,
    )
    return ExtractionOptions(keep=keep)


def extract_one(
    run: Run, name: str, model: str | Path | Encoder, *, tested: bool = True, file: str | None = None
) -> Store:
    """Extract one representation; `tested`: also of the test words."""
    options = kept(run, tested=tested)
    return extract_step(run, name, run.open_corpus(), model=model, options=options, file=file)


@dataclass(frozen=True)
class OneText:
    """The sentences of a corpus, those without a document as one text, so that passages cross them."""

    corpus: Corpus

    def __iter__(self) -> Iterator[Sentence]:
        text = Document()
        return (replace(sentence, document=sentence.document or text) for sentence in self.corpus)
