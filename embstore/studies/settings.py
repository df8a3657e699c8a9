"""The settings of the studies: what is run, and at what size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from embstore.arguments import checked
from embstore.errors import InvalidValueError, check_choice, check_whole
from embstore.store.layout import resolve_layer

if TYPE_CHECKING:
    from embstore.models import FineTuneSettings
    from embstore.probes import ClassProbe, EdgeProbe, StructuralProbe
    from embstore.vectors import SkipGram

WINDOWS = (0, 2, 4, 8, 16, 32, None)
TUNING_TASKS = ("pos", "ner", "classify", "paraphrase")
REPRESENTATIONS = ("Rand", "BERTw", "skip-gram", "AVG", "BERT")


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """What every study has: the size and training of its probes, the seeds of their weights, the seed of samples."""

    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 1e-3
    patience: int = 3
    hidden_size: int = 256
    seeds: tuple[int, ...] = (0, 1, 2)
    seed: int = 0

    def probing(self, device: str) -> dict[str, Any]:
        """Return the arguments that the probes of every study have."""
        from embstore.probes import Training

        training = Training(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, patience=self.patience
        )
        own = {"hidden_size": self.hidden_size, "seeds": self.seeds, "seed": self.seed}
        return {**own, "training": training, "device": device}

    def require_at_least(self, least: int, *names: str) -> None:
        """Raise InvalidValueError for a setting, or one of several, that is neither None nor `least` or more."""
        for name in names:
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None and (not isinstance(each, int) or each < least):
                    raise InvalidValueError(f"{name} {value!r} is not allowed: give whole numbers of {least} or more")


@checked
@dataclass(frozen=True, kw_only=True)
class Zhao2020(StudySettings):
    """Settings of the study: semantic classes by representation, layer and context, before and after fine-tuning.

    The defaults are the paper's where it states a figure; `Zhao2020.small()` fits an hour on two CPU cores.

    train, test: word lists in the format of Wiki-PSE; train.tsv and test.tsv next to the corpus by default. vectors:
    files of word vectors by name, which are probed on the words that they contain. tuning: data for fine-tuning by task
    (pos, ner, classify, paraphrase), as `finetune` takes it. max_contexts: occurrences of a word-class pair at most.
    kind, hidden_size, epochs, batch_size, learning_rate, patience, seeds: of the probes. context_windows,
    attention_windows: words on each side, None for the whole sentence; the latter for part-of-speech tagging.
    tuning_epochs, tuning_sentences (None: all), tuning_batch_size, tuning_rate (None: the paper's for each task): of
    fine-tuning. similarity_sentences: sentences on which attention is compared. skipgram_size, skipgram_epochs: of the
    skip-gram vectors trained on the corpus. seed: of samples, splits and fine-tuning.

    Raises InvalidValueError for a value that is not allowed, an unknown task, a name of vectors that the study uses
    itself, or context windows without the whole sentence.
    """

    train: str | Path | None = None
    test: str | Path | None = None
    vectors: Mapping[str, str | Path] = field(default_factory=dict)
    tuning: Mapping[str, str | Path] = field(default_factory=dict)
    max_contexts: int = 100
    kind: str = "mlp"
    hidden_size: int = 1024
    epochs: int = 400
    batch_size: int = 256
    patience: int = 10
    seeds: tuple[int, ...] = (0,)
    context_windows: tuple[int | None, ...] = WINDOWS
    attention_windows: tuple[int | None, ...] = WINDOWS
    tuning_epochs: int = 5
    tuning_sentences: int | None = None
    tuning_batch_size: int | None = None
    tuning_rate: float | None = None
    similarity_sentences: int = 500
    skipgram_size: int = 300
    skipgram_epochs: int = 5

    def __post_init__(self) -> None:
        for name in ("context_windows", "attention_windows"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        if None not in self.context_windows:
            raise InvalidValueError(f"context_windows {self.context_windows} have no whole sentence: add full (None)")
        self.require_at_least(0, "context_windows", "attention_windows")
        self.require_at_least(1, "max_contexts", "similarity_sentences")
        for task in self.tuning:
            if task not in TUNING_TASKS:
                raise InvalidValueError(f"unknown task {task!r}: choose among {', '.join(TUNING_TASKS)}")
        for name in self.vectors:
            if name in REPRESENTATIONS:
                raise InvalidValueError(f"vectors {name!r}: the study uses this name itself: choose another")
        self.probe()
        self.skipgram()
        self.finetuning()

    @classmethod
    def small(cls, **changes: Any) -> Self:
        """Return settings for an hour on two CPU cores: fewer contexts, narrower probes, shorter fine-tuning."""
        small: dict[str, Any] = {
            "max_contexts": 5,
            "hidden_size": 32,
            "epochs": 60,
            "learning_rate": 3e-3,
            "patience": 5,
            "context_windows": (0, 2, 4, 8, 16, None),
            "attention_windows": (0, 2, 8, None),
            "tuning_epochs": 1,
            "tuning_sentences": 3000,
            "tuning_batch_size": 16,
            "tuning_rate": 2e-4,
            "similarity_sentences": 200,
            "skipgram_epochs": 20,
        }
        return cls(**{**small, **changes})

    def probe(self, device: str = "auto", **changes: Any) -> ClassProbe:
        """Return class probes as the study trains them, not fitted yet."""
        from embstore.probes import ClassProbe

        own = {"label": "class", "kind": self.kind, "max_contexts": self.max_contexts}
        return ClassProbe(**{**self.probing(device), **own, **changes})

    def skipgram(self) -> SkipGram:
        """Return the training of the skip-gram vectors."""
        from embstore.vectors import SkipGram

        return SkipGram(size=self.skipgram_size, epochs=self.skipgram_epochs, seed=self.seed, min_count=1)

    def finetuning(self, window: int | None = None) -> FineTuneSettings:
        """Return the settings of a fine-tuning; `window` limits its attention."""
        from embstore.models import FineTuneSettings

        rate: dict[str, Any] = {} if self.tuning_rate is None else {"learning_rate": self.tuning_rate}
        return FineTuneSettings(
            epochs=self.tuning_epochs,
            batch_size=self.tuning_batch_size,
            n_examples=self.tuning_sentences,
            attention_window=window,
            seed=self.seed,
            **rate,
        )

    def describe(self) -> str:
        """Return one line on the size of the study, with the paper's figures in brackets."""
        units = f" of {self.hidden_size} units (1,024)" if self.kind == "mlp" else ""
        sentences = "all" if self.tuning_sentences is None else f"{self.tuning_sentences:,}"
        return (
            f"Size, in brackets the paper's: at most {self.max_contexts} contexts a word-class pair (100), {self.kind} "
            f"probes (mlp){units}, at most {self.epochs} epochs of 100 steps (400 passes) in batches of "
            f"{self.batch_size} at learning rate {self.learning_rate:g} (0.001), {len(self.seeds)} seed(s); fine-"
            f"tuning on {sentences} sentences (all), {self.tuning_epochs} epochs (5), learning rate "
            f"{self.tuning_rate or 5e-5:g} (5e-05)."
        )


@checked
@dataclass(frozen=True, kw_only=True)
class Tenney2019(StudySettings):
    """Settings of the study: in which layers of a model each task of the NLP pipeline is solved.

    `Tenney2019.small()` fits two hours on two CPU cores.

    tasks: some of those in the folder, all by default. sentences: of each split of each task at most, drawn by their
    texts, so that tasks over the same sentences draw the same ones; None for all. seeds: of the probes' weights. unit:
    one row per subword, as in the paper, or per word. epochs, batch_size, learning_rate, patience, hidden_size: of the
    probes. layerwise: also a probe of each layer alone. control: also the control task of each task. untrained: also
    the model with random weights, as a baseline. resamples: of sentences, for intervals. traces: sentences drawn in
    Figure 3. seed: of samples and of random weights.

    Raises InvalidValueError for a value that is not allowed.
    """

    tasks: Sequence[str] | None = None
    sentences: int | None = None
    unit: str = "subword"
    layerwise: bool = False
    control: bool = False
    untrained: bool = True
    resamples: int = 1000
    traces: int = 3

    def __post_init__(self) -> None:
        self.require_at_least(0, "traces", "resamples")
        if self.unit not in ("subword", "word"):
            raise InvalidValueError(f"unit {self.unit!r} is not allowed: choose subword or word")
        self.probe()

    @classmethod
    def small(cls, **changes: Any) -> Self:
        """Return settings for two hours on two CPU cores: fewer sentences."""
        return cls(**{"sentences": 1000, **changes})

    def probe(self, device: str = "auto", *, trained: bool = True) -> EdgeProbe:
        """Return edge probes as the study trains them, not fitted yet; those of random weights have one seed."""
        from embstore.probes import EdgeProbe

        options = self.probing(device) | {"projection": self.hidden_size, "sentences": self.sentences}
        if not trained:
            options["seeds"] = self.seeds[:1]
        return EdgeProbe(**options, layerwise=self.layerwise and trained, control=self.control and trained)

    def describe(self, n_tasks: int) -> str:
        """Return one line on the size of the study, with the paper's figures in brackets."""
        sample = "all sentences" if self.sentences is None else f"at most {self.sentences:,} sentences of each split"
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Size: {sample} of each of {n_tasks} tasks (the paper: all), one row per {self.unit} (subword), probes of "
            f"{self.hidden_size} units (256), at most {self.epochs} epochs, seeds {seeds}, seed {self.seed}."
        )


@checked
@dataclass(frozen=True, kw_only=True)
class Ethayarajh2019:
    """Settings of the study: how contextual the vectors of each layer are, and how good static vectors made of them.

    The defaults are the paper's.

    min_contexts: different sentences that a word needs. baseline: "sample" or "exact", sample: as in `geometry`.
    vectors: files of word vectors by name, compared in Table 1. benchmarks: a folder of word benchmarks, as `evaluate`
    takes it; without it Table 1 is left out. benchmark_layers: the layers in Table 1, by default the first two and the
    last two with context. n_words: words listed at each end of a layer. resamples: of words and sentences, for
    intervals. seed: of samples and clusterings.

    Raises InvalidValueError for a value that is not allowed.
    """

    min_contexts: int = 5
    baseline: str = "sample"
    sample: int = 1000
    vectors: Mapping[str, str | Path] = field(default_factory=dict)
    benchmarks: str | Path | None = None
    benchmark_layers: tuple[int, ...] | None = None
    n_words: int = 10
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("baseline", self.baseline, ("sample", "exact"))
        for name, least in (("min_contexts", 2), ("sample", 2), ("n_words", 1), ("resamples", 1), ("seed", 0)):
            check_whole(name, getattr(self, name), least)

    @property
    def measuring(self) -> dict[str, Any]:
        """The arguments of `geometry`."""
        names = ("min_contexts", "baseline", "sample", "seed")
        return {name: getattr(self, name) for name in names}

    def evaluated(self, layers: Sequence[int]) -> tuple[int, ...]:
        """Return the layers of a model in Table 1: the chosen ones, or the first and last two with context."""
        if self.benchmark_layers is not None:
            return tuple(resolve_layer(layer, list(layers)) for layer in self.benchmark_layers)
        inner = tuple(layer for layer in layers if layer > 0) or tuple(layers)
        return tuple(dict.fromkeys((*inner[:2], *inner[-2:])))

    def describe(self) -> str:
        """Return one line on the size of the study."""
        baseline = f"{self.sample:,} sampled vectors" if self.baseline == "sample" else "all vectors"
        return (
            f"Words of {self.min_contexts} different sentences or more, without punctuation; baselines over {baseline} "
            f"(the paper: 5; 1,000); intervals from {self.resamples:,} bootstrap samples; seed {self.seed}."
        )


@checked
@dataclass(frozen=True, kw_only=True)
class Hewitt2019:
    """Settings of the study: how much of a syntax tree the vectors of each layer encode linearly.

    sentences: of each split at most, drawn at random; None for all, as in the paper. rank: of the probes of all layers;
    128 by default, or the width of the vectors if that is less. ranks: those compared on the best layer. seeds: of the
    probes' weights. tasks: derived from the treebank (upos, pos, dependencies), for selectivity and code lengths.
    task_sentences: of each split of these tasks at most. untrained: also the model with random weights, as a baseline.
    trees: sentences whose trees are drawn. seed: of samples, control tasks and random weights.

    Raises InvalidValueError for a value that is not allowed.
    """

    sentences: int | None = 3000
    rank: int | None = None
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    seeds: tuple[int, ...] = (0,)
    tasks: tuple[str, ...] = ("upos", "dependencies")
    task_sentences: int | None = 300
    untrained: bool = True
    trees: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("sentences", "task_sentences"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        for rank in self.ranks:
            check_whole("ranks", rank, 1)
        check_whole("trees", self.trees, 0)
        for task in self.tasks:
            check_choice("task", task, ("upos", "pos", "dependencies"))
        self.probe("cpu")

    def rank_of(self, width: int) -> int:
        """Return the rank of the probes of all layers."""
        return min(128, width) if self.rank is None else self.rank

    def probe(self, device: str = "auto", **changes: Any) -> StructuralProbe:
        """Return structural probes as the study trains them, not fitted yet."""
        from embstore.probes import StructuralProbe

        own = {"rank": self.rank, "seeds": self.seeds, "seed": self.seed, "device": device}
        return StructuralProbe(**{**own, **changes})

    def describe(self, n_sentences: Mapping[str, int]) -> str:
        """Return one line on the size of the study."""
        sizes = ", ".join(f"{count:,} {split}" for split, count in n_sentences.items())
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Sentences: {sizes} (the paper: all of the Penn Treebank's); seeds {seeds}; samples by seed {self.seed}."
        )


Settings = Zhao2020 | Tenney2019 | Ethayarajh2019 | Hewitt2019
STUDIES: dict[str, type[Settings]] = {
    "zhao2020": Zhao2020,
    "tenney2019": Tenney2019,
    "ethayarajh2019": Ethayarajh2019,
    "hewitt2019": Hewitt2019,
}
