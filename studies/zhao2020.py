"""Zhao et al. 2020: semantic classes by representation, layer and context, before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import polars as pl

import embstore as es
from embstore.corpus import Corpus, Keep, Sentence, open_corpus, read_word_classes
from embstore.errors import CorpusError, InvalidValueError
from embstore.models import Encoder, bag_encoder, load_encoder, vector_encoder
from embstore.probes import ClassProbe, ProbeResult, WordSplit, load, split_words
from embstore.vectors import WordVectors, write_vectors
from embstore_studies.finetuning import (
    TASKS,
    FineTuned,
    FineTuneSettings,
    find_splits,
    finetune,
    label_names,
    read_items,
)
from embstore_studies.study import LOG, SPLITS, Run, StudyResult, StudySettings, methods, without_begin
from embstore_studies.zhao2020_report import Scores, figures_of, sections

LABEL = "class"
WINDOWS = (0, 2, 4, 8, 16, 32, None)
SKIPGRAM_EPOCHS = 5  # the default of word2vec
PATIENCE = {"linear": 5, "mlp": 10}  # epochs; linear probes are trained at a higher rate, and converge sooner
SMALL_BATCH = 16  # of fine-tuning on a sample, which has too few steps in the paper's batches


@dataclass(frozen=True, kw_only=True)
class Zhao2020(StudySettings):
    about: ClassVar[str] = "semantic classes by layer, representation and context, before and after fine-tuning"
    data: ClassVar[str] = "a corpus in Wiki-PSE markup, with train.tsv and test.tsv, the lists of words, next to it"
    takes_one_model: ClassVar[bool] = True
    citation: ClassVar[str] = """@inproceedings{zhao-etal-2020-quantifying,
  title = {Quantifying the Contextualization of Word Representations with Semantic Class Probing},
  author = {Zhao, Mengjie and Dufter, Philipp and Yaghoobzadeh, Yadollah and Sch{\\"u}tze, Hinrich},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP 2020},
  year = {2020}, pages = {1219--1234}, doi = {10.18653/v1/2020.findings-emnlp.109}
}
"""

    tuning: Mapping[str, str | Path] = field(default_factory=dict)
    n_words: int | None = None
    max_contexts: int = 100
    kind: Literal["linear", "mlp"] = "mlp"
    hidden_size: int = 1024
    epochs: int = 400
    batch_size: int = 256
    learning_rate: float = 1e-3
    seeds: tuple[int, ...] = (0,)
    context_windows: tuple[int | None, ...] = WINDOWS
    tuning_epochs: int = 5
    tuning_sentences: int | None = None
    tuning_rate: float | None = None
    skipgram_size: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        if None not in self.context_windows:
            raise InvalidValueError(f"context_windows {self.context_windows} have no whole sentence: add full (None)")
        for task in self.tuning:
            if task not in TASKS:
                raise InvalidValueError(f"unknown task {task!r}: choose among {', '.join(TASKS)}")
        self.probe()
        self.finetuning()

    @classmethod
    def small(cls, **changes: Any) -> Self:
        """Return settings for ten minutes on two CPU cores: fewer words, linear probes, shorter fine-tuning."""
        small: dict[str, Any] = {
            "n_words": 2000,
            "max_contexts": 3,
            "kind": "linear",
            "epochs": 100,
            "learning_rate": 3e-3,
            "context_windows": (0, 2, 4, 8, None),
            "tuning_epochs": 1,
            "tuning_sentences": 1500,
            "tuning_rate": 2e-4,
            "skipgram_size": 100,
        }
        return cls(**{**small, **changes})

    def probe(self, **changes: Any) -> ClassProbe:
        """Return class probes as the study trains them, not fitted yet."""
        training = es.probes.Training(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=PATIENCE[self.kind],
        )
        own = {"label": LABEL, "kind": self.kind, "hidden_size": self.hidden_size, "max_contexts": self.max_contexts}
        return ClassProbe(**{**own, "seeds": self.seeds, "training": training, **changes})

    def finetuning(self) -> FineTuneSettings:
        """Return the settings of a fine-tuning."""
        rate: dict[str, Any] = {} if self.tuning_rate is None else {"learning_rate": self.tuning_rate}
        return FineTuneSettings(
            epochs=self.tuning_epochs,
            batch_size=None if self.tuning_sentences is None else SMALL_BATCH,
            n_examples=self.tuning_sentences,
            seed=self.seed,
            **rate,
        )

    def describe(self) -> str:
        """Return one line on the size of the study, with the paper's figures in brackets."""
        units = f" of {self.hidden_size} units (1,024)" if self.kind == "mlp" else ""
        words = "all words" if self.n_words is None else f"at most {self.n_words:,} train and as many test words"
        sentences = "all" if self.tuning_sentences is None else f"{self.tuning_sentences:,}"
        return (
            f"Size, in brackets the paper's: {words} (all), at most {self.max_contexts} contexts a word-class pair "
            f"(100), {self.kind} probes (mlp){units}, at most {self.epochs} epochs of 100 steps (400 passes) in "
            f"batches of {self.batch_size} at learning rate {self.learning_rate:g} (0.001), {len(self.seeds)} "
            f"seed(s); fine-tuning on {sentences} sentences (all), {self.tuning_epochs} epochs (5), learning rate "
            f"{self.tuning_rate or 5e-5:g} (5e-05)."
        )


def run(run: Run[Zhao2020], data: Path) -> StudyResult:
    """Run the study on a corpus in Wiki-PSE markup, see `reproduce`."""
    settings = run.settings
    (model,) = run.models.values()
    words = read_words(settings, data)
    check_corpus(data, words)
    check_files(run)
    encoder = es.load_encoder(model)
    run.begin()
    LOG.info(settings.describe())
    study = Study(run, data, model, words)
    stores = extract_all(study, encoder)
    frames = {"counts": count_pairs(study, stores.full), "types": probe_types(study, stores)}
    frames |= {"contexts": probe_contexts(study, stores), "windows": probe_windows(study, stores)}
    scores = Scores(settings, stores.full.layers[-1], frames)
    if settings.tuning:
        tuned = {task: tune(study, task, data) for task, data in settings.tuning.items()}
        best = {task: best_epoch(each, task) for task, each in tuned.items()}
        frames["tuning"] = pl.concat(frame.with_columns(task=pl.lit(task)) for task, frame in best.items())
        frames["finetuned"] = probe_tuned(study, tuned)
    return run.result(
        "Semantic-class probing after Zhao et al. 2020",
        f"Model {Path(model).name}, {scores.n_layers} layers. {settings.describe()}",
        frames=frames,
        sections=sections(scores),
        figures=run.save_figures(figures_of(scores)),
        methods=methods({model: stores.full}),
    )


@dataclass(frozen=True)
class Study:
    """One run of the study with its inputs. `words`: those that are probed."""

    run: Run[Zhao2020]
    corpus: Path
    model: str
    words: WordSplit

    @property
    def settings(self) -> Zhao2020:
        return self.run.settings

    def open_corpus(self) -> Corpus:
        return open_corpus(self.corpus, format="pse")


def read_words(settings: Zhao2020, corpus: Path) -> WordSplit:
    """Read the lists of words, draw from them, and split them; dev words are taken from the train words."""
    lists = []
    for name in ("train", "test"):
        path = corpus.parent / f"{name}.tsv"
        if not path.is_file():
            raise InvalidValueError(f"there is no {name}.tsv next to {corpus}: give a list of {name} words")
        listed = read_word_classes(path)
        drawn = np.random.default_rng(settings.seed).permutation(len(listed))[: settings.n_words].tolist()
        forms = sorted(listed)
        lists.append({forms[number]: listed[forms[number]] for number in drawn})
    return split_words(*lists, seed=settings.seed)


def check_corpus(path: Path, words: WordSplit) -> None:
    """Raise CorpusError if the words of a split have no labelled occurrence; reads as far as there is one of each."""
    missing = set(SPLITS)
    for sentence in open_corpus(path, format="pse"):
        stops = dict(sentence.targets)
        for place, label in enumerate(sentence.labels[LABEL]):
            if label is not None:
                form = " ".join(sentence.words[place : stops.get(place, place + 1)])
                missing -= {split for split in missing if label in words.of(split).get(form, ())}
        if not missing:
            return
    raise CorpusError(f"{path}: no {min(missing)} word occurs with one of its classes: give other lists of words")


def check_files(run: Run[Zhao2020]) -> None:
    """Read the data of fine-tuning, so that none is refused after hours of extraction."""
    for task, data in run.settings.tuning.items():
        files = find_splits(data)
        train, dev = (read_items(task, files[split]) for split in ("train", "dev"))
        _, unknown = label_names(files["train"], train, dev)
        if unknown:
            some = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            run.notes.append(f"{task}: {len(unknown)} labels of dev are not in train and count as errors: {some}")


def count_pairs(study: Study, store: es.Store) -> pl.DataFrame:
    """Count words, word-class pairs and contexts of each split and class: the paper's Tables 2 and 8."""
    pairs = store.table().select(pl.col("word", LABEL).cast(pl.String)).drop_nulls().group_by("word", LABEL).len()
    by_split = {
        split: pairs.filter(
            pl.Series([c in study.words.of(split).get(w, ()) for w, c, _ in pairs.iter_rows()], dtype=pl.Boolean)
        )
        for split in SPLITS
    }
    counts = by_split["train"].group_by(LABEL).len()
    classes = sorted(counts.filter(pl.col("len") > 1)[LABEL])
    if unfit := sorted({name for part in by_split.values() for name in part[LABEL]} - set(classes)):
        study.run.notes.append(f"{len(unfit)} classes of fewer than two train words have no probe: {', '.join(unfit)}")
    rows = []
    for split, part in by_split.items():
        known = part.filter(pl.col(LABEL).is_in(classes))
        for name, own in [("", known), *((name, known.filter(pl.col(LABEL) == name)) for name in classes)]:
            rows.append((split, name, own["word"].n_unique(), len(own), int(own["len"].sum())))
    return pl.DataFrame(rows, schema=["split", "class", "words", "pairs", "contexts"], orient="row")


@dataclass(frozen=True)
class Stores:
    """The stores of the study.

    `bert` and `bags` by context: a context window, or None for the whole sentence; the whole sentence has
    all words, the others those of train and dev. `other_bags` and `words`: other vectors by name.
    """

    bert: Mapping[int | None, es.Store]
    bags: Mapping[int | None, es.Store]
    other_bags: Mapping[str, es.Store]
    words: Mapping[str, es.Store]

    @property
    def full(self) -> es.Store:
        """The model's vectors of whole sentences."""
        return self.bert[None]


def extract_all(study: Study, model: Encoder) -> Stores:
    """Extract every representation of the study that is not stored yet."""
    settings = study.settings
    skipgram = train_skipgram(study)
    random = load_encoder(f"random:{settings.skipgram_size}")
    subwords = load_encoder(f"subwords:{without_begin(study.model)}")
    trained = vector_encoder(skipgram, missing="random", seed=settings.seed)
    words = {
        "Rand": extract_one(study, "rand", random),
        "BERTw": extract_one(study, "bertw", subwords),
        "skip-gram": extract_one(study, "skip-gram", trained),
    }
    other_bags = {
        "P-Rand": extract_one(study, "p-rand", bag_encoder(random)),
        "P-skip-gram": extract_one(study, "p-skip-gram", bag_encoder(trained)),
    }
    bert = extract_contexts(study, "bert", model)
    bags = extract_contexts(study, "p-bert", bag_encoder(subwords))
    return Stores(bert, bags, other_bags, words)


def train_skipgram(study: Study) -> Path:
    """Train skip-gram vectors on the corpus, the paper's PSE, and return their file; a target is one word."""
    settings = study.settings
    name = f"skip-gram-{settings.skipgram_size}-{settings.seed}.bin"
    path = study.run.out / "models" / name

    def joined(sentence: Sentence) -> list[str]:
        words = list(sentence.words)
        for start, stop in reversed(sentence.targets):
            words[start:stop] = ["_".join(words[start:stop])]
        return words

    def make() -> None:
        from gensim.models import Word2Vec

        model = Word2Vec(
            [joined(sentence) for sentence in study.open_corpus()],
            sg=1,
            vector_size=settings.skipgram_size,
            epochs=SKIPGRAM_EPOCHS,
            seed=settings.seed,
            min_count=1,
            workers=1,
        )
        write_vectors(WordVectors(tuple(model.wv.index_to_key), model.wv.vectors), path)

    if not path.exists():
        study.run.step("skip-gram vectors of the corpus", make)
    return path


def extract_contexts(study: Study, name: str, model: Encoder) -> dict[int | None, es.Store]:
    """Extract one representation by context: the whole sentence and windows of words."""
    stores: dict[int | None, es.Store] = {None: extract_one(study, name, model, file=f"{name}-full")}
    options = kept(study, tested=False)
    for window in study.settings.context_windows:
        if window is not None:
            file, windowed = f"{name}-k{window}", replace(options, context_window=window)
            stores[window] = study.run.extract(file, study.open_corpus(), model=model, options=windowed)
    return stores


def kept(study: Study, *, tested: bool = True) -> es.ExtractionOptions:
    """Return what a store holds: at most `max_contexts` occurrences of a word and class; `tested`: also of test."""
    words = {*study.words.train, *study.words.dev, *(study.words.test if tested else ())}
    keep = Keep(
        words=frozenset(words),
        where=f"{LABEL} IS NOT NULL",
        max_contexts=study.settings.max_contexts,
        per=LABEL,
        seed=study.settings.seed,
    )
    return es.ExtractionOptions(keep=keep)


def extract_one(
    study: Study, name: str, model: str | Path | Encoder, *, tested: bool = True, file: str | None = None
) -> es.Store:
    """Extract one representation; `tested`: also of the test words."""
    options = kept(study, tested=tested)
    return study.run.extract(name, study.open_corpus(), model=model, options=options, file=file)


def probe_types(study: Study, stores: Stores) -> pl.DataFrame:
    """Probe one vector per word, the paper's Table 5."""
    return probe_stores(study, "types", {**stores.words, "AVG": stores.full}, level="type")


def probe_contexts(study: Study, stores: Stores) -> pl.DataFrame:
    """Probe one vector per context with the control task, the paper's Table 6; saves the model's probes."""
    bags = {"P-BERT": stores.bags[None], **stores.other_bags}
    frames = [probe_stores(study, "bags", bags, control=True)]
    folder = study.run.out / "probes" / "pretrained"

    def save(probe: ClassProbe, result: ProbeResult) -> list[str]:
        probe.save(folder)
        return [note for note in result.notes if "no probe" not in note]

    frames.append(probe_stores(study, "bert", {"BERT": stores.full}, control=True, then=save, needs=folder))
    return pl.concat(frames, how="diagonal")


def probe_windows(study: Study, stores: Stores) -> pl.DataFrame:
    """Probe the layers and the bag of subwords by context, dev scores: the paper's Figure 5.

    `context` is the number of words on each side.
    """
    frames = []
    for context, store in stores.bert.items():
        if context is not None:
            name = f"window-{context}"
            both = {"BERT": store, "P-BERT": stores.bags[context]}
            frame = probe_stores(study, name, both, splits=("dev",))
            frames.append(frame.with_columns(pl.lit(str(context)).alias("context")))
    return pl.concat(frames) if frames else pl.DataFrame()


def probe_stores(
    study: Study,
    table: str,
    stores: Mapping[str, es.Store],
    *,
    splits: Sequence[str] = ("dev", "test"),
    then: Callable[[ClassProbe, ProbeResult], list[str]] | None = None,
    needs: Path | None = None,
    **settings: Any,
) -> pl.DataFrame:
    """Train and score probes on each store, or return the stored table.

    `then` is called with the probes and their result and returns notes; `needs` is what it leaves.
    """

    def make() -> tuple[pl.DataFrame, Sequence[str]]:
        results, notes = [], list[str]()
        for name, store in stores.items():
            probe = study.settings.probe(**settings).fit(store, study.words)
            result = probe.score(splits=splits, name=name)
            if then is not None:
                notes += then(probe, result)
            results.append(result)
        return ProbeResult.concat(results).summary(), notes

    made_from = {
        "stores": {name: store.digest for name, store in stores.items()},
        "words": study.words.sha256,
        "probes": repr(study.settings.probe(**settings)),
        "splits": list(splits),
    }
    frame = study.run.table(table, made_from, make, needs=needs)
    share = frame.filter(pl.col("metric") == "converged")["value"].mean()
    if isinstance(share, float) and share < 1:
        study.run.notes.append(
            f"{table}: early stopping ended the training of {share:.1%} of the probes, the last epoch that of the "
            "others: scores depend on the number of epochs"
        )
    return frame


def apply_pretrained(study: Study, name: str, store: es.Store) -> pl.DataFrame:
    """Score the probes of the pretrained model on another store: setup (a)."""
    folder = study.run.out / "probes" / "pretrained"
    probe = load(folder)
    assert isinstance(probe, ClassProbe)

    def make() -> pl.DataFrame:
        return probe.score(data=store, splits=("dev",), name=name).summary()

    made_from = {"store": store.digest, "probes": probe.fitted_.store, "settings": repr(probe)}
    return study.run.table(f"applied-{name}", made_from, make)


def tune(study: Study, task: str, data: str | Path) -> FineTuned:
    """Fine-tune the model on one task."""
    out, settings = study.run.out / "models" / task, study.settings.finetuning()
    return study.run.step(
        f"fine-tune {task}", lambda: finetune(data, task=task, model=study.model, out=out, settings=settings)
    )


def best_epoch(tuned: FineTuned, task: str) -> pl.DataFrame:
    """Return the dev score of a task at its best epoch."""
    chosen = pl.col("best") & (pl.col("split") == "dev") & (pl.col("metric") == TASKS[task].metric)
    return tuned.frame.filter(chosen).select("epoch", "split", "metric", "value")


def probe_tuned(study: Study, tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Score (a) the pretrained model's probes and (b) new probes on each fine-tuned model: the paper's Figure 6."""
    frames = []
    for task, each in tuned.items():
        store = extract_one(study, f"tuned-{task}", each.path, tested=False)
        frames.append(apply_pretrained(study, task, store).with_columns(pl.lit("a").alias("setup")))
        renewed = probe_stores(study, f"tuned-{task}", {task: store}, splits=("dev",))
        frames.append(renewed.with_columns(pl.lit("b").alias("setup")))
    return pl.concat(frames, how="diagonal").rename({"store": "model"})
