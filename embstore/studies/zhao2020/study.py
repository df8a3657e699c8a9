"""Zhao et al. 2020, end to end: semantic classes by representation, layer and context, before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

import embstore.probes as probes
from embstore.analysis import attention_similarity
from embstore.corpus import Corpus, Keep, open_corpus, read_word_classes
from embstore.errors import InvalidValueError
from embstore.extraction import ExtractionOptions, extract_windows, plan_windows
from embstore.models import (
    Encoder,
    FineTuned,
    bag_encoder,
    finetune,
    load_encoder,
    model_kind,
    random_encoder,
    subword_encoder,
    vector_encoder,
)
from embstore.models.finetuning.data import find_splits, label_names, read_items
from embstore.models.finetuning.settings import check_task
from embstore.probes import ClassProbe, ProbeResult, WordSplit, split_words
from embstore.probes.classes.examples import ClassExamples, ExampleOptions
from embstore.progress import Progress
from embstore.store import Store
from embstore.studies.extract import extract_step
from embstore.studies.study import StudyFolder, StudyResult, methods
from embstore.studies.zhao2020.figures import draw
from embstore.studies.zhao2020.published import CITATION
from embstore.studies.zhao2020.report import Scores, sections
from embstore.studies.zhao2020.settings import Zhao2020
from embstore.vectors import read_vectors, train_vectors, write_vectors

LABEL = "class"
SPLITS = ("train", "dev", "test")
OWN = "own"  # the vocabulary of representations that have a vector for every word
METRIC = {"pos": "accuracy", "ner": "f1", "classify": "accuracy", "paraphrase": "accuracy"}


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


def run(
    settings: Zhao2020, corpus: Path, *, models: Mapping[str, str], out: Path, device: str, progress: Progress
) -> StudyResult:
    """Run the study and leave stores, tables, figures and the report in `out`; the same call resumes.

    `corpus` is in Wiki-PSE markup. See `embstore.studies.reproduce`.
    """
    (model,) = models.values()
    words = read_words(settings, corpus)
    check_files(settings)
    model_kind(model)
    run = Run(StudyFolder(out, progress), corpus, model, words, settings, device)
    stores = extract_all(run)
    frames = {
        "counts": count_examples(run, stores),
        "types": probe_types(run, stores),
        "contexts": probe_contexts(run, stores),
        "windows": probe_windows(run, stores),
    }
    if settings.tuning:
        tuned = {task: tune(run, task, data) for task, data in settings.tuning.items()}
        scored = {task: best_epoch(each, task) for task, each in tuned.items()}
        frames["tuning"] = pl.concat(frame.with_columns(task=pl.lit(task)) for task, frame in scored.items())
        frames["finetuned"] = probe_tuned(run, tuned)
        frames["attention"] = compare_attention(run, tuned)
    if "pos" in settings.tuning:
        frames["pos_windows"] = pos_by_window(run)
    scores = Scores(settings, stores.full.layers[-1], frames)
    result = StudyResult(
        title="Semantic-class probing after Zhao et al. 2020",
        folder=out,
        scale=f"Model {model}, {scores.n_layers} layers. {settings.describe()}",
        frames=frames,
        sections=sections(scores),
        figures=draw(scores, out / "figures"),
        notes=tuple(dict.fromkeys(run.notes)),
        seconds=run.folder.seconds,
        methods=methods({model: stores.full}),
        citation=CITATION,
    )
    result.save()
    return result


def read_words(settings: Zhao2020, corpus: Path) -> WordSplit:
    """Read the lists of words and split them; dev words are taken from the train words."""
    lists = []
    for name, path in (("train", settings.train), ("test", settings.test)):
        neighbor = corpus.parent / f"{name}.tsv"
        if path is None and not neighbor.is_file():
            raise InvalidValueError(f"there is no {name}.tsv next to {corpus}: give a list of {name} words")
        lists.append(read_word_classes(neighbor if path is None else path))
    return split_words(*lists, seed=settings.seed)


def check_files(settings: Zhao2020) -> None:
    """Read the vectors and the data of fine-tuning once, so that none is refused after hours of extraction."""
    for file in settings.vectors.values():
        read_vectors(file, limit=1)
    for task, data in settings.tuning.items():
        files = find_splits(data)
        chosen = check_task(task, settings.finetuning())
        label_names(files, {split: read_items(chosen, path) for split, path in files.items()})


def extract_all(run: Run) -> Stores:
    """Extract every representation of the study that is not stored yet."""
    settings, device = run.settings, run.device
    skipgram = train_skipgram(run)
    random = random_encoder(settings.skipgram_size, seed=settings.seed)
    subwords = subword_encoder(run.model, device=device)
    trained = vector_encoder(skipgram, missing="random", seed=settings.seed)
    bert = extract_by_window(run, "bert", load_encoder(run.model, device=device))
    bags = extract_by_window(run, "p-bert", bag_encoder(subwords))
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
    return Stores(bert, bags, other_bags, words, vocabularies)


def train_skipgram(run: Run) -> Path:
    """Train skip-gram vectors on the corpus, the paper's PSE, and return their file."""
    training = run.settings.skipgram()
    path = run.folder.path / "models" / f"skip-gram-{training.size}-{training.epochs}-{training.seed}.bin"

    def make() -> None:
        write_vectors(train_vectors(run.open_corpus(), training=training, progress=run.folder.bars), path)

    if not path.exists():
        run.folder.step("skip-gram vectors of the corpus", make)
    return path


def kept(settings: Zhao2020) -> ExtractionOptions:
    """Return what the stores hold: occurrences with a class, at most `max_contexts` of each word and class."""
    return ExtractionOptions(
        keep=Keep(labelled=LABEL, max_contexts=settings.max_contexts, per=LABEL, seed=settings.seed)
    )


def extract_one(run: Run, name: str, model: str | Path | Encoder) -> Store:
    """Extract one representation."""
    options = kept(run.settings)
    return extract_step(run.folder, name, run.open_corpus(), model=model, device=run.device, options=options)


def extract_by_window(run: Run, name: str, model: Encoder) -> dict[int | None, Store]:
    """Extract one representation with each context window."""
    path = run.folder.path / "stores" / f"{name}.zarr"

    def make() -> dict[int | None, Store]:
        planned = plan_windows(
            run.open_corpus(),
            model=model,
            context_windows=run.settings.context_windows,
            options=kept(run.settings),
            device=run.device,
            store=path,
            calibrate=False,
            progress=run.folder.bars,
        )
        return extract_windows(planned, path, progress=run.folder.bars)

    return run.folder.step(f"extract {name} by context window", make)


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
    wanted = run.settings.probe(run.device, **settings).settings

    def make() -> pl.DataFrame:
        results = []
        for name, store in stores.items():
            probe = run.settings.probe(run.device, **settings).fit(store, words, progress=run.folder.bars)
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
    frame = run.folder.table(table, made_from, make, needs=needs)
    share = frame.filter(pl.col("metric") == "converged")["value"].mean()
    if isinstance(share, float) and share < 1:
        run.notes.append(
            f"{table}: early stopping ended the training of {share:.0%} of the probes, the last epoch that of the "
            "others: scores depend on the number of epochs"
        )
    return frame


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
    return WordSplit(parts["train"], parts["dev"], parts["test"], words.frequency)


def tune(run: Run, task: str, data: str | Path, *, window: int | None = None) -> FineTuned:
    """Fine-tune the model on one task; `window` limits its attention."""
    name = task if window is None else f"{task}-a{window}"

    def make() -> FineTuned:
        out = run.folder.path / "models" / name
        return finetune(
            data,
            task=task,
            model=run.model,
            out=out,
            settings=run.settings.finetuning(window),
            device=run.device,
            progress=run.folder.bars,
        )

    return run.folder.step(f"fine-tune {name}", make)


def pos_by_window(run: Run) -> pl.DataFrame:
    """Return the dev accuracy of part-of-speech tagging by attention window: the paper's Table 7."""
    frames = []
    for window in run.settings.attention_windows:
        tuned = tune(run, "pos", run.settings.tuning["pos"], window=window)
        frames.append(best_epoch(tuned, "pos").with_columns(pl.lit(window, pl.Int64).alias("window")))
    return pl.concat(frames) if frames else pl.DataFrame()


def best_epoch(tuned: FineTuned, task: str) -> pl.DataFrame:
    """Return the dev score of a task at its best epoch."""
    chosen = pl.col("best") & (pl.col("split") == "dev") & (pl.col("metric") == METRIC[task])
    return tuned.frame.filter(chosen).select("epoch", "split", "metric", "value")


def probe_tuned(run: Run, tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Score (a) the pretrained model's probes and (b) new probes on each fine-tuned model: the paper's Figure 6."""
    frames = []
    for task, each in tuned.items():
        store = extract_one(run, f"tuned-{task}", each.path)
        frames.append(apply_pretrained(run, task, store).with_columns(pl.lit("a").alias("setup")))
        frames.append(probe_stores(run, f"tuned-{task}", {task: store}).with_columns(pl.lit("b").alias("setup")))
    return pl.concat(frames, how="diagonal").rename({"store": "model"})


def compare_attention(run: Run, tuned: Mapping[str, FineTuned]) -> pl.DataFrame:
    """Return the cosine of the attention before and after fine-tuning by layer and head: the paper's Figure 7."""
    count = run.settings.similarity_sentences
    frames = []
    for task, each in tuned.items():

        def make(path: Path = each.path) -> pl.DataFrame:
            return attention_similarity(
                run.open_corpus(),
                model_a=run.model,
                model_b=path,
                n_sentences=count,
                seed=run.settings.seed,
                device=run.device,
                progress=run.folder.bars,
            )

        made_from = {"tuned": each.record, "sentences": count}  # the record has the hash of the model's weights
        frame = run.folder.table(f"attention-{task}", made_from, make)
        frames.append(frame.with_columns(pl.lit(task).alias("task")))
    return pl.concat(frames)
