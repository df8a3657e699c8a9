"""The settings of the study of Zhao et al. 2020."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from embstore.arguments import checked
from embstore.errors import InvalidValueError
from embstore_studies.settings import ProbingSettings

if TYPE_CHECKING:
    from embstore.probes import ClassProbe
    from embstore_studies.finetuning.settings import FineTuneSettings
    from embstore_studies.skipgram import SkipGram

WINDOWS = (0, 2, 4, 8, 16, 32, None)
TUNING_TASKS = ("pos", "ner", "classify", "paraphrase")
REPRESENTATIONS = ("Rand", "BERTw", "skip-gram", "AVG", "BERT")


@checked
@dataclass(frozen=True, kw_only=True)
class Zhao2020(ProbingSettings):
    """Settings of the study: semantic classes by representation, layer and context, before and after fine-tuning.

    The defaults are the paper's where it states a figure; `Zhao2020.small()` takes ten minutes on two CPU cores.

    train, test: word lists in the format of Wiki-PSE; train.tsv and test.tsv next to the corpus by default. vectors:
    files of word vectors by name, which are probed on the words that they contain. tuning: data for fine-tuning by task
    (pos, ner, classify, paraphrase), as `finetune` takes it. n_words: words of each list at most, drawn at random; None
    for all. max_contexts: occurrences of a word-class pair at most. passage_subwords: also vectors in passages of
    consecutive sentences, this many subwords at most; None for none. neighbors_of: the words of Table 1.
    kind, hidden_size, epochs, batch_size, learning_rate, patience, seeds: of the probes. context_windows,
    attention_windows: words on each side, None for the whole sentence; the latter for part-of-speech tagging.
    tuning_epochs, tuning_sentences (None: all), tuning_batch_size, tuning_rate (None: the paper's for each task): of
    fine-tuning. similarity_sentences: sentences on which attention is compared. skipgram_size, skipgram_epochs: of the
    skip-gram vectors trained on the corpus. seed: of samples, splits and fine-tuning.

    Raises InvalidValueError for a value that is not allowed, an unknown task, a name of vectors that the study uses
    itself, or context windows without the whole sentence.
    """

    about: ClassVar[str] = "semantic classes by layer, representation and context, before and after fine-tuning"
    data: ClassVar[str] = "a corpus in Wiki-PSE markup"
    takes_one_model: ClassVar[bool] = True

    train: str | Path | None = None
    test: str | Path | None = None
    vectors: Mapping[str, str | Path] = field(default_factory=dict)
    tuning: Mapping[str, str | Path] = field(default_factory=dict)
    n_words: int | None = None
    max_contexts: int = 100
    passage_subwords: int | None = None
    neighbors_of: tuple[str, ...] = ("suit",)
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
        self.require_at_least(context_windows=0, attention_windows=0)
        self.require_at_least(n_words=1, max_contexts=1, passage_subwords=1, similarity_sentences=1)
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
        """Return settings for ten minutes on two CPU cores: fewer words, linear probes, shorter fine-tuning."""
        small: dict[str, Any] = {
            "n_words": 2000,
            "max_contexts": 3,
            "kind": "linear",
            "epochs": 100,
            "learning_rate": 3e-3,
            "patience": 5,
            "context_windows": (0, 2, 4, 8, None),
            "attention_windows": (0, 2, None),
            "tuning_epochs": 1,
            "tuning_sentences": 1500,
            "tuning_batch_size": 16,
            "tuning_rate": 2e-4,
            "similarity_sentences": 200,
            "skipgram_size": 100,
            "skipgram_epochs": 5,
        }
        return cls(**{**small, **changes})

    def probe(self, **changes: Any) -> ClassProbe:
        """Return class probes as the study trains them, not fitted yet."""
        from embstore.probes import ClassProbe

        own = {"label": "class", "kind": self.kind, "max_contexts": self.max_contexts}
        return ClassProbe(**{**self.probing(), **own, **changes})

    def skipgram(self) -> SkipGram:
        """Return the training of the skip-gram vectors."""
        from embstore_studies.skipgram import SkipGram

        return SkipGram(size=self.skipgram_size, epochs=self.skipgram_epochs, seed=self.seed, min_count=1)

    def finetuning(self, window: int | None = None) -> FineTuneSettings:
        """Return the settings of a fine-tuning; `window` limits its attention."""
        from embstore_studies.finetuning.settings import FineTuneSettings

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
        words = "all words" if self.n_words is None else f"at most {self.n_words:,} train and as many test words"
        sentences = "all" if self.tuning_sentences is None else f"{self.tuning_sentences:,}"
        return (
            f"Size, in brackets the paper's: {words} (all), at most {self.max_contexts} contexts a word-class pair "
            f"(100), {self.kind} probes (mlp){units}, at most {self.epochs} epochs of 100 steps (400 passes) in "
            f"batches of {self.batch_size} at learning rate {self.learning_rate:g} (0.001), {len(self.seeds)} "
            f"seed(s); fine-tuning on {sentences} sentences (all), {self.tuning_epochs} epochs (5), learning rate "
            f"{self.tuning_rate or 5e-5:g} (5e-05)."
        )
