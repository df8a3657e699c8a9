"""The probing of Zhao et al. 2020: stores of every representation, and probes of classes over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from embstore.analysis.scan import selected
from embstore.corpus import Keep, open_corpus
from embstore.errors import InvalidValueError
from embstore.extraction.extract import extract
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.plan import plan
from embstore.extraction.window_plan import extract_windows, plan_windows
from embstore.models import encoder_from_shorthand
from embstore.probes import ClassProbe, ProbeResult, Training, WordSplit, load
from embstore.probes.classes.tasks import ClassExamples, ExampleOptions
from embstore.probes.splits import SPLITS
from embstore.store import Store
from embstore.studies.steps import Study
from embstore.vectors import SkipGram, train_vectors, write_vectors

if TYPE_CHECKING:
    from embstore.studies.zhao2020.study import Scale

LABEL = "class"
OURS = ("Rand", "BERTw", "skip-gram", "AVG", "BERT")
OWN = "own"  # the vocabulary of a representation that has a vector for every word


@dataclass(frozen=True)
class Setting:
    """What every step of the study is given."""

    study: Study
    corpus: Path
    model: str
    split: WordSplit
    scale: Scale
    device: str
    notes: list[str] = field(default_factory=list)

    @property
    def keep(self) -> Keep:
        """The occurrences of the study: a sample of those of each word and class."""
        return Keep(labelled=LABEL, max_contexts=self.scale.max_contexts, per=LABEL, seed=self.scale.seed)

    def probe(self, *, level: Literal["context", "type"] = "context", control: bool = False) -> ClassProbe:
        """The probes of the study, not fitted."""
        scale = self.scale
        return ClassProbe(
            label=LABEL,
            level=level,
            kind=scale.kind,
            hidden_size=scale.hidden_size,
            seeds=scale.seeds,
            seed=scale.seed,
            max_contexts=scale.max_contexts,
            control=control,
            training=Training(scale.epochs, scale.batch_size, scale.learning_rate, scale.patience or 0),
            device=self.device,
        )


@dataclass(frozen=True)
class Stores:
    """`bert` and `bags` by context window (None: the sentence); `bags_of` and `words`: other vectors by name.

    `vocabularies`: the words of tables of vectors that lack some; their rows in `words` are of these alone.
    """

    bert: Mapping[int | None, Store]
    bags: Mapping[int | None, Store]
    bags_of: Mapping[str, Store]
    words: Mapping[str, Store]
    vocabularies: Mapping[str, frozenset[str]]

    @property
    def full(self) -> Store:
        return self.bert[None]


def extracted(setting: Setting, vectors: Mapping[str, str | Path]) -> Stores:
    """Extract every representation of the study that is not there yet."""
    for name in vectors:
        if name in OURS:
            raise InvalidValueError(f"vectors {name!r}: the study has a representation of that name: choose another")
    scale = setting.scale
    skipgram = _skipgram(setting)
    size = f"random:{scale.skipgram_size}?seed={scale.seed}"
    bert = _windowed(setting, "bert", setting.model)
    bags = _windowed(setting, "p-bert", f"bag:subwords:{setting.model}")
    bags_of = {"P-Rand": extracted_once(setting, "p-rand", f"bag:{size}")}
    words = {
        "Rand": extracted_once(setting, "rand", size),
        "BERTw": extracted_once(setting, "bertw", f"subwords:{setting.model}"),
        "skip-gram": extracted_once(setting, "skip-gram", f"vectors:{skipgram}?seed={scale.seed}"),
    }
    bags_of["P-skip-gram"] = extracted_once(setting, "p-skip-gram", f"bag:vectors:{skipgram}?seed={scale.seed}")
    vocabularies = {}
    for name, file in vectors.items():
        words[name] = extracted_once(setting, f"words-{name}", f"vectors:{file}?missing=drop")
        bags_of[f"P-{name}"] = extracted_once(setting, f"p-words-{name}", f"bag:vectors:{file}?seed={scale.seed}")
        vocabularies[name] = frozenset(words[name].index.words)
    return Stores(bert, bags, bags_of, words, vocabularies)


def _skipgram(setting: Setting) -> Path:
    """The paper's PSE: skip-gram vectors of the corpus itself."""
    scale = setting.scale
    path = setting.study.folder / "models" / f"skip-gram-{scale.skipgram_size}-{scale.skipgram_epochs}-{scale.seed}.bin"
    options: dict[str, Any] = {"size": scale.skipgram_size, "epochs": scale.skipgram_epochs, "seed": scale.seed}

    def make() -> None:
        corpus = open_corpus(setting.corpus, format="pse")
        write_vectors(train_vectors(corpus, training=SkipGram(min_count=1, **options), progress=False), path)

    if not path.exists():
        setting.study.timed("skip-gram vectors of the corpus", make)
    return path


def extracted_once(setting: Setting, name: str, model: str | Path) -> Store:
    """The store of one representation."""
    path = setting.study.store(name)

    def make() -> Store:
        planned = plan(
            open_corpus(setting.corpus, format="pse"),
            model=encoder_from_shorthand(model, device=setting.device),
            options=ExtractionOptions(keep=setting.keep),
            device=setting.device,
            store=path,
            calibrate=False,
        )
        return extract(planned, path)

    return setting.study.timed(f"extract {name}", make)


def _windowed(setting: Setting, name: str, model: str) -> Mapping[int | None, Store]:
    """The stores of one representation by context window, equal windows run once."""
    path = setting.study.store(name)

    def make() -> Mapping[int | None, Store]:
        planned = plan_windows(
            open_corpus(setting.corpus, format="pse"),
            model=encoder_from_shorthand(model, device=setting.device),
            context_windows=setting.scale.context_windows,
            options=ExtractionOptions(keep=setting.keep),
            device=setting.device,
            store=path,
            calibrate=False,
        )
        return extract_windows(planned, path)

    return setting.study.timed(f"extract {name} by context window", make)


def counts(setting: Setting, stores: Stores) -> pl.DataFrame:
    """The paper's Table 2: words, word-class pairs and contexts of each split; and by class, its Table 8."""
    options = ExampleOptions(LABEL, "context", setting.scale.max_contexts, setting.scale.seed)
    source = ClassExamples(selected(stores.full, stores.full.layers[0]), setting.split, options)
    names, unfit = source.classes()
    if unfit:
        setting.notes.append(f"{len(unfit)} classes of fewer than two train words have no probe: {', '.join(unfit)}")
    rows = []
    for name in SPLITS:
        part = source.of(name, names)
        contexts = part.contexts
        rows.append((name, "", len(part.words), len(contexts), int(contexts.sum())))
        for place, each in enumerate(names):
            own = part.gold[:, place]
            rows.append((name, each, len(set(part.word[own].tolist())), int(own.sum()), int(contexts[own].sum())))
    return pl.DataFrame(rows, schema=["split", "class", "words", "pairs", "contexts"], orient="row")


def types(setting: Setting, stores: Stores) -> pl.DataFrame:
    """Table 5: one vector a word; and again on the words of each table that lacks some."""
    averaged = {"AVG": stores.full}
    whole = {**{name: s for name, s in stores.words.items() if name not in stores.vocabularies}, **averaged}
    frames = [_probed(setting, "types", whole, level="type", vocabulary=OWN)]
    for name, words in stores.vocabularies.items():
        lacking = [part for part in SPLITS if not _among(setting.split, words).of(part)]
        if lacking:
            setting.notes.append(f"{name} has vectors for too few words: none of the {lacking[0]} words, so no table")
            continue
        shared = {**whole, name: stores.words[name]}
        frames.append(_probed(setting, f"types-{name}", shared, level="type", vocabulary=name, words=words))
    return pl.concat(frames)


def contexts(setting: Setting, stores: Stores) -> pl.DataFrame:
    """Table 6: a vector a context, with the control task; keeps the probes of the pretrained model."""
    bags = {"P-BERT": stores.bags[None], **stores.bags_of}
    frames = [_probed(setting, "bags", bags, control=True)]
    folder = pretrained_probes(setting)

    def keep(probe: ClassProbe, result: ProbeResult) -> None:
        probe.save(folder)
        setting.notes.extend(note for note in result.notes if "no probe" not in note)

    frames.append(_probed(setting, "bert", {"BERT": stores.full}, control=True, then=keep, beside=folder))
    return pl.concat(frames)


def pretrained_probes(setting: Setting) -> Path:
    """Where the probes of the pretrained model stand: setup (a) applies them."""
    return setting.study.folder / "probes" / "pretrained"


def windows(setting: Setting, stores: Stores) -> pl.DataFrame:
    """Figure 5: dev scores by context window, of the model's layers and of the bag of its subwords."""
    frames = []
    for window in (window for window in setting.scale.context_windows if window is not None):
        both = {"BERT": stores.bert[window], "P-BERT": stores.bags[window]}
        frame = _probed(setting, f"window-{window}", both, splits=("dev",))
        frames.append(frame.with_columns(pl.lit(window, pl.Int64).alias("window")))
    return pl.concat(frames) if frames else pl.DataFrame()


def probed_again(setting: Setting, name: str, store: Store) -> pl.DataFrame:
    """Setup (b): new probes on the vectors of a fine-tuned model."""
    return _probed(setting, f"tuned-{name}", {name: store}, splits=("dev", "test"))


def _probed(
    setting: Setting,
    table: str,
    stores: Mapping[str, Store],
    *,
    vocabulary: str = OWN,
    words: frozenset[str] | None = None,
    then: Callable[[ClassProbe, ProbeResult], None] | None = None,
    beside: Path | None = None,
    level: Literal["context", "type"] = "context",
    control: bool = False,
    splits: tuple[str, ...] = ("dev", "test"),
) -> pl.DataFrame:
    """Probe stores, or take the saved table (with the folder next to it); `words`: those that take part, if not all."""
    split = setting.split if words is None else _among(setting.split, words)

    def make() -> pl.DataFrame:
        results = []
        for name, store in stores.items():
            probe = setting.probe(level=level, control=control).fit(store, split, progress=False)
            results.append(probe.score(splits=splits, name=name))
            if then is not None:
                then(probe, results[-1])
        return ProbeResult.concat(results).summary().with_columns(pl.lit(vocabulary).alias("vocabulary"))

    made_from = {
        "stores": {name: store.metadata.fingerprint for name, store in stores.items()},
        "split": split.sha256,
        "probes": {**setting.probe(level=level, control=control).settings, "splits": list(splits)},
    }
    return setting.study.table(table, made_from, make, beside=beside)


def _among(split: WordSplit, words: frozenset[str]) -> WordSplit:
    kept = {part: {word: own for word, own in split.of(part).items() if word in words} for part in SPLITS}
    return replace(split, **kept)


def load_pretrained(setting: Setting) -> ClassProbe:
    probe = load(pretrained_probes(setting))
    assert isinstance(probe, ClassProbe)
    probe.device = setting.device
    return probe
