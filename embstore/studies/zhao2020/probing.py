"""The probing of Zhao et al. 2020: stores of every representation, and class probes on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

import embstore.probes as probes
from embstore.corpus import Corpus, Keep, open_corpus
from embstore.extraction import ExtractionOptions
from embstore.models import (
    Encoder,
    StaticEncoder,
    bag_encoder,
    load_encoder,
    random_encoder,
    subword_encoder,
    vector_encoder,
)
from embstore.probes import ClassProbe, ProbeResult, Training, WordSplit
from embstore.probes.classes.examples import ClassExamples, ExampleOptions
from embstore.store import Store
from embstore.studies.study import StudyFolder, extract_step
from embstore.studies.zhao2020.settings import Zhao2020
from embstore.vectors import SkipGram, train_vectors, write_vectors

LABEL = "class"
SPLITS = ("train", "dev", "test")
OWN = "own"  # the vocabulary of representations that have a vector for every word


@dataclass(frozen=True)
class Run:
    """One run of the study: its folder, data and settings. `notes` collects what a reader must know."""

    folder: StudyFolder
    corpus: Path
    model: str
    words: WordSplit
    settings: Zhao2020
    device: str
    notes: list[str] = field(default_factory=list)

    def open_corpus(self) -> Corpus:
        return open_corpus(self.corpus, format="pse")

    def options(self, **changes: Any) -> ExtractionOptions:
        """Return the options of every extraction: a sample of the occurrences of each word and class."""
        settings = self.settings
        keep = Keep(labelled=LABEL, max_contexts=settings.max_contexts, per=LABEL, seed=settings.seed)
        return ExtractionOptions(keep=keep, **changes)

    def probe(self, **changes: Any) -> ClassProbe:
        """Return class probes as the study trains them, not fitted yet."""
        settings = self.settings
        training = Training(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            patience=settings.patience,
        )
        given: dict[str, Any] = {
            "label": LABEL,
            "kind": settings.kind,
            "hidden_size": settings.hidden_size,
            "seeds": settings.seeds,
            "seed": settings.seed,
            "max_contexts": settings.max_contexts,
            "training": training,
            "device": self.device,
        }
        return ClassProbe(**{**given, **changes})


@dataclass(frozen=True)
class Stores:
    """The stores of the study.

    `bert` and `bags` by context window (None: the whole sentence); `other_bags` and `words`: other vectors by name.
    `vocabularies`: the words of tables that do not have all words; their stores hold rows of these alone.
    """

    bert: Mapping[int | None, Store]
    bags: Mapping[int | None, Store]
    other_bags: Mapping[str, Store]
    words: Mapping[str, Store]
    vocabularies: Mapping[str, frozenset[str]]

    @property
    def full(self) -> Store:
        """The model's vectors of whole sentences."""
        return self.bert[None]


def extract_all(run: Run) -> Stores:
    """Extract every representation of the study that is not stored yet."""
    settings = run.settings
    skipgram = train_skipgram(run)
    windows = {"context_windows": settings.context_windows}

    def random() -> StaticEncoder:
        return random_encoder(settings.skipgram_size, seed=settings.seed)

    def subwords() -> StaticEncoder:
        return subword_encoder(run.model, device=run.device)

    def of_file(file: str | Path, missing: Literal["random", "drop"] = "random") -> StaticEncoder:
        return vector_encoder(file, missing=missing, seed=settings.seed)

    bert = extract_one(run, "bert", load_encoder(run.model, device=run.device), **windows)
    bags = extract_one(run, "p-bert", bag_encoder(subwords()), **windows)
    words = {
        "Rand": extract_one(run, "rand", random()),
        "BERTw": extract_one(run, "bertw", subwords()),
        "skip-gram": extract_one(run, "skip-gram", of_file(skipgram)),
    }
    other_bags = {
        "P-Rand": extract_one(run, "p-rand", bag_encoder(random())),
        "P-skip-gram": extract_one(run, "p-skip-gram", bag_encoder(of_file(skipgram))),
    }
    vocabularies = {}
    for name, file in settings.vectors.items():
        words[name] = extract_one(run, f"words-{name}", of_file(file, missing="drop"))
        other_bags[f"P-{name}"] = extract_one(run, f"p-words-{name}", bag_encoder(of_file(file)))
        vocabularies[name] = frozenset(words[name].index.words)
    return Stores(bert, bags, other_bags, words, vocabularies)


def train_skipgram(run: Run) -> Path:
    """Train skip-gram vectors on the corpus, the paper's PSE, and return their file."""
    settings = run.settings
    size, epochs, seed = settings.skipgram_size, settings.skipgram_epochs, settings.seed
    path = run.folder.path / "models" / f"skip-gram-{size}-{epochs}-{seed}.bin"

    def make() -> None:
        training = SkipGram(size=size, epochs=epochs, seed=seed, min_count=1)
        trained = train_vectors(run.open_corpus(), training=training, progress=run.folder.bars)
        write_vectors(trained, path)

    if not path.exists():
        run.folder.step("skip-gram vectors of the corpus", make)
    return path


def extract_one(run: Run, name: str, model: str | Path | Encoder, **windows: Any) -> Any:
    """Extract one representation; returns its Store, or the Stores by window if `context_windows` is given."""
    by_window = " by context window" if windows else ""
    return extract_step(
        run.folder,
        f"extract {name}{by_window}",
        name,
        run.open_corpus(),
        model=model,
        options=run.options(),
        device=run.device,
        **windows,
    )


def count_examples(run: Run, stores: Stores) -> pl.DataFrame:
    """Count words, word-class pairs and contexts of each split and class: the paper's Tables 2 and 8."""
    options = ExampleOptions(LABEL, "context", run.settings.max_contexts, run.settings.seed)
    examples = ClassExamples(stores.full.select(layers=0), run.words, options)
    classes, unfit = examples.classes()
    if unfit:
        run.notes.append(f"{len(unfit)} classes of fewer than two train words have no probe: {', '.join(unfit)}")
    rows = []
    for split in SPLITS:
        part = examples.of(split, classes)
        rows.append((split, "", len(part.words), len(part.contexts), int(part.contexts.sum())))
        for number, name in enumerate(classes):
            own = part.gold[:, number]
            rows.append((split, name, len(set(part.word[own].tolist())), int(own.sum()), int(part.contexts[own].sum())))
    return pl.DataFrame(rows, schema=["split", "class", "words", "pairs", "contexts"], orient="row")


def probe_types(run: Run, stores: Stores) -> pl.DataFrame:
    """Probe one vector per word, the paper's Table 5; once more on the words of each table that has not all."""
    complete = {name: store for name, store in stores.words.items() if name not in stores.vocabularies}
    complete["AVG"] = stores.full
    frames = [probe_stores(run, "types", complete, level="type")]
    for name, vocabulary in stores.vocabularies.items():
        words = restrict(run.words, vocabulary)
        empty = [split for split in SPLITS if not words.of(split)]
        if empty:
            run.notes.append(f"{name} has vectors for too few words: no {empty[0]} words, so no table")
            continue
        shared = {**complete, name: stores.words[name]}
        frames.append(probe_stores(run, f"types-{name}", shared, level="type", vocabulary=name, words=words))
    return pl.concat(frames)


def probe_contexts(run: Run, stores: Stores) -> pl.DataFrame:
    """Probe one vector per context with the control task, the paper's Table 6; saves the model's probes."""
    bags = {"P-BERT": stores.bags[None], **stores.other_bags}
    frames = [probe_stores(run, "bags", bags, control=True)]
    folder = pretrained_probes(run)

    def save(probe: ClassProbe, result: ProbeResult) -> None:
        probe.save(folder)
        run.notes.extend(note for note in result.notes if "no probe" not in note)

    frames.append(probe_stores(run, "bert", {"BERT": stores.full}, control=True, then=save, needs=folder))
    return pl.concat(frames)


def pretrained_probes(run: Run) -> Path:
    """Return the folder of the probes of the pretrained model, which setup (a) applies."""
    return run.folder.path / "probes" / "pretrained"


def probe_windows(run: Run, stores: Stores) -> pl.DataFrame:
    """Probe the layers and the bag of subwords by context window, dev scores: the paper's Figure 5."""
    frames = []
    for window in run.settings.context_windows:
        if window is not None:
            both = {"BERT": stores.bert[window], "P-BERT": stores.bags[window]}
            frame = probe_stores(run, f"window-{window}", both, splits=("dev",))
            frames.append(frame.with_columns(pl.lit(window, pl.Int64).alias("window")))
    return pl.concat(frames) if frames else pl.DataFrame()


def probe_stores(
    run: Run,
    table: str,
    stores: Mapping[str, Store],
    *,
    splits: Sequence[str] = ("dev", "test"),
    vocabulary: str = OWN,
    words: WordSplit | None = None,
    then: Callable[[ClassProbe, ProbeResult], None] | None = None,
    needs: Path | None = None,
    **settings: Any,
) -> pl.DataFrame:
    """Train and score probes on each store, or return the stored table.

    `words`: those that take part, if not all. `then` is called with the probes and their result; `needs` is what it
    leaves.
    """
    words = run.words if words is None else words
    wanted = run.probe(**settings).settings

    def make() -> pl.DataFrame:
        results = []
        for name, store in stores.items():
            probe = run.probe(**settings).fit(store, words, progress=run.folder.bars)
            result = probe.score(splits=splits, name=name)
            if then is not None:
                then(probe, result)
            results.append(result)
        return ProbeResult.concat(results).summary().with_columns(pl.lit(vocabulary).alias("vocabulary"))

    made_from = {
        "stores": {name: store.digest for name, store in stores.items()},
        "words": words.sha256,
        "probes": wanted,
        "splits": list(splits),
    }
    return run.folder.table(table, made_from, make, needs=needs)


def apply_pretrained(run: Run, name: str, store: Store) -> pl.DataFrame:
    """Score the probes of the pretrained model on another store: setup (a)."""
    folder = pretrained_probes(run)
    probe = probes.load(folder)
    assert isinstance(probe, ClassProbe)
    probe.device = run.device

    def make() -> pl.DataFrame:
        result = probe.score(data=store, splits=("dev", "test"), name=name)
        return result.summary().with_columns(pl.lit(OWN).alias("vocabulary"))

    made_from = {"store": store.digest, "probes": probe.fitted.store, "settings": probe.settings}
    return run.folder.table(f"applied-{name}", made_from, make)


def restrict(words: WordSplit, vocabulary: frozenset[str]) -> WordSplit:
    """Return the words of a split that are in a vocabulary."""
    parts = {
        split: {word: classes for word, classes in words.of(split).items() if word in vocabulary} for split in SPLITS
    }
    return replace(words, **parts)
