"""Skip-gram vectors with negative sampling (Mikolov et al. 2013), trained on a corpus with gensim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.corpus import Corpus, Sentence, open_corpus
from embstore.errors import CorpusError, InvalidValueError, MissingPackageError, check_whole, quoted
from embstore.progress import Progress, Report, reporting
from embstore.vectors.word_vectors import WordVectors

MAX_WORDS = 10_000  # gensim silently cuts longer sentences
REPORTED_SENTENCES = 1000


@dataclass(frozen=True, kw_only=True)
class SkipGram:
    """Settings of skip-gram training, named as in the paper.

    `size`: dimensions of a vector. `window`: the largest distance of a context word; distances are drawn from 1 to it.
    `min_count`: words that occur less often get no vector. `negative`: negative samples for each pair. `sample`: words
    with a higher share of the text are subsampled; 0 switches it off. `workers`: threads; only with 1 does the same
    seed give the same vectors. Raises InvalidValueError for a value that is not allowed.
    """

    size: int = 300
    window: int = 5
    min_count: int = 5
    negative: int = 5
    epochs: int = 5
    sample: float = 1e-3
    seed: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("size", "window", "min_count", "negative", "epochs", "workers"):
            check_whole(name.replace("_", " "), getattr(self, name), 1, 2**31 - 1)
        check_whole("seed", self.seed, 0, 2**32 - 1)
        if not isinstance(self.sample, float | int) or not 0 <= self.sample <= 1:
            raise InvalidValueError(f"sample {quoted(self.sample)} is not allowed: give 0 (no subsampling) to 1")


@checked
def train_vectors(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    training: SkipGram | None = None,
    phrases: bool = True,
    progress: Progress = None,
) -> WordVectors:
    """Train skip-gram vectors on a corpus, for example as a static baseline; the most frequent words come first.

    The corpus is read `epochs` + 1 times. `training`: the settings, by default those of `SkipGram()`. `phrases`: treat
    a target of several words as one word, its words joined by "_", the spelling under which an encoder of word vectors
    looks it up. `progress`: see `embstore.progress`; it counts sentences over all epochs.

    Raises CorpusError if no word occurs often enough and if the corpus is an iterator that cannot be read again,
    MissingPackageError without gensim.
    """
    settings = SkipGram() if training is None else training
    try:
        models: Any = import_module("gensim.models")
    except ImportError as error:
        raise MissingPackageError('train_vectors needs gensim: pip install "embstore[vectors]"') from error
    with reporting(progress, unit="sentences", label="train") as report:
        texts = _Texts(open_corpus(corpus), phrases=phrases, report=report)
        model = models.Word2Vec(
            sg=1,
            hs=0,
            vector_size=settings.size,
            window=settings.window,
            min_count=settings.min_count,
            negative=settings.negative,
            sample=settings.sample,
            epochs=settings.epochs,
            seed=settings.seed,
            workers=settings.workers,
        )
        model.build_vocab(texts)
        texts.raise_error()
        if not len(model.wv):
            raise CorpusError(
                f"{texts.corpus.name}: no word occurs {settings.min_count} times or more: choose a smaller min count"
            )
        texts.n_total = model.corpus_count * (settings.epochs + 1)
        next(iter(texts.corpus))  # fails here, not in a thread of gensim, for a corpus that cannot be read again
        model.train(texts, total_examples=model.corpus_count, epochs=model.epochs)
        texts.raise_error()
    return WordVectors(tuple(model.wv.index_to_key), model.wv.vectors)


class _Texts:
    """The sentences of a corpus as lists of words, for gensim.

    gensim reads in a thread of its own, which would wait for ever after an exception; so an exception ends the text and
    `raise_error` raises it.
    """

    def __init__(self, corpus: Corpus, *, phrases: bool, report: Report) -> None:
        self.corpus = corpus
        self.n_total: int | None = None
        self._phrases = phrases
        self._report = report
        self._n_read = 0
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[list[str]]:
        try:
            for sentence in self.corpus:
                words = join_targets(sentence) if self._phrases else list(sentence.words)
                for start in range(0, len(words), MAX_WORDS):
                    yield words[start : start + MAX_WORDS]
                self._n_read += 1
                if self._n_read % REPORTED_SENTENCES == 0:
                    self._report(self._n_read, self.n_total)
        except Exception as error:
            self._error = error
        self._report(self._n_read, self.n_total)

    def raise_error(self) -> None:
        """Raise the exception that ended the reading, if there was one."""
        if self._error is not None:
            raise self._error


def join_targets(sentence: Sentence) -> list[str]:
    """Return the words of a sentence, with the words of each target joined by "_"."""
    words: list[str] = []
    at = 0
    for start, stop in sentence.targets:
        words += sentence.words[at:start]
        words.append("_".join(sentence.words[start:stop]))
        at = stop
    return [*words, *sentence.words[at:]]
