"""Skip-gram vectors with negative sampling (Mikolov et al. 2013), trained on a corpus by gensim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus, Sentence, open_corpus
from embstore.errors import CorpusError, InvalidValueError
from embstore.vectors.gensim_files import gensim_models
from embstore.vectors.vectors import WordVectors

WORDS_AT_ONCE = 10_000  # gensim cuts what is longer and says nothing
TOLD_SENTENCES = 1000


@dataclass(frozen=True)
class SkipGram:
    """The choices of a training, named as in the paper.

    `size`: numbers of a vector. `window`: words on either side, drawn from 1 to this. `min_count`: words that occur
    less often get no vector. `negative`: words drawn against each pair. `sample`: frequent words are thinned out
    above this share of the text. `workers`: threads; the same seed gives the same vectors with 1 alone.
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
            if (value := getattr(self, name)) < 1:
                raise InvalidValueError(f"{name.replace('_', ' ')} {value} is not allowed: give 1 or more")
        if not 0 <= self.seed < 2**32:
            raise InvalidValueError(f"seed {self.seed} is not allowed: give 0 to {2**32 - 1}")
        if not 0 <= self.sample <= 1:
            raise InvalidValueError(f"sample {self.sample} is not allowed: give 0 (no thinning) to 1")


def train_vectors(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    size: int = 300,
    window: int = 5,
    min_count: int = 5,
    negative: int = 5,
    epochs: int = 5,
    sample: float = 1e-3,
    seed: int = 0,
    workers: int = 1,
    phrases: bool = True,
    progress: Callable[[int], object] | None = None,
) -> WordVectors:
    """Train skip-gram vectors on a corpus, which is read `epochs` + 1 times; the most frequent words come first.

    `phrases`: a target of several words is one word, its words joined by "_", under which an encoder of word vectors
    finds it again. `progress` is told how many sentences were read since the last call. All else: see SkipGram.

    Raises InvalidValueError for an option, CorpusError where no word occurs often enough and where the corpus is an
    iterator that cannot be read again, MissingPackageError without gensim.
    """
    options = SkipGram(size, window, min_count, negative, epochs, sample, seed, workers)
    models = gensim_models("train_vectors needs gensim")
    texts = _Texts(open_corpus(corpus), phrases=phrases, progress=progress)
    model = models.Word2Vec(
        sg=1,
        hs=0,
        vector_size=options.size,
        window=options.window,
        min_count=options.min_count,
        negative=options.negative,
        sample=options.sample,
        epochs=options.epochs,
        seed=options.seed,
        workers=options.workers,
    )
    model.build_vocab(texts)
    texts.require()
    if not len(model.wv):
        raise CorpusError(
            f"{texts.corpus.name}: no word occurs {options.min_count} times or more: choose a smaller min count"
        )
    next(iter(texts.corpus))  # what cannot be read again says so here, not in a thread of gensim's
    model.train(texts, total_examples=model.corpus_count, epochs=model.epochs)
    texts.require()
    return WordVectors(tuple(model.wv.index_to_key), model.wv.vectors)


class _Texts:
    """The sentences of a corpus as lists of words, read anew each time.

    gensim reads in a thread of its own, which would wait for ever on an error; so an error ends the text, and
    `require` raises it.
    """

    def __init__(self, corpus: Corpus, *, phrases: bool, progress: Callable[[int], object] | None) -> None:
        self.corpus = corpus
        self._phrases = phrases
        self._progress = progress
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[list[str]]:
        read = 0
        try:
            for sentence in self.corpus:
                words = joined(sentence) if self._phrases else list(sentence.words)
                for start in range(0, len(words), WORDS_AT_ONCE):
                    yield words[start : start + WORDS_AT_ONCE]
                read += 1
                if read % TOLD_SENTENCES == 0:
                    self._tell(TOLD_SENTENCES)
        except Exception as error:
            self._error = error
        self._tell(read % TOLD_SENTENCES)

    def require(self) -> None:
        """Raise what kept the corpus from being read."""
        if self._error is not None:
            raise self._error

    def _tell(self, sentences: int) -> None:
        if self._progress is not None and sentences:
            self._progress(sentences)


def joined(sentence: Sentence) -> list[str]:
    """Return the words of a sentence, those of each target joined by "_"."""
    words: list[str] = []
    at = 0
    for start, stop in sentence.targets:
        words += sentence.words[at:start]
        words.append("_".join(sentence.words[start:stop]))
        at = stop
    words += sentence.words[at:]
    return words
