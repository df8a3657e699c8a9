"""Words to subwords, as papers that tokenize pre-split sentences have them: each distinct word is split once."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.sentence import PAIR, Sentence
from embstore.models.batched import PROBES
from embstore.models.encoder import indptr, ragged_indices

MAX_CACHED_WORDS = 1 << 20  # of English about 150 MB
CHECKED_SENTENCES = 64

Mode = Literal["words", "first", "sentences"]
_Rows = tuple[NDArray[np.int32], NDArray[np.int64]]  # ids and characters of all subwords, and how many a word has


class _WordTable:
    """The subwords of distinct words: `lookup` returns where each word's subwords start in `flat`, and how many."""

    def __init__(self, split: Callable[[list[str]], _Rows]) -> None:
        self._split = split
        self._reset()

    def _reset(self) -> None:
        self._index: defaultdict[str, int] = defaultdict(count().__next__)
        self.flat = np.empty((0, 3), np.int32)
        self._starts = np.empty(0, np.int64)
        self._lengths = np.empty(0, np.int64)

    def lookup(self, words: Iterable[str], total: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if len(self._index) > MAX_CACHED_WORDS:
            self._reset()
        types = np.fromiter(map(self._index.__getitem__, words), np.int64, count=total)
        unseen = len(self._index) - len(self._starts)
        if unseen:
            self._add(list(islice(reversed(self._index), unseen))[::-1])
        return self._starts[types], self._lengths[types]

    def _add(self, words: list[str]) -> None:
        try:
            flat, lengths = self._split(words)
        except BaseException:
            self._reset()
            raise
        starts = len(self.flat) + np.cumsum(lengths) - lengths
        self.flat = np.concatenate([self.flat, flat])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])


class WordSplitter:
    """Splits words into subwords as a transformers tokenizer splits pre-split sentences, but faster.

    `mode`: "words" if a word's subwords never depend on its sentence, "first" if only the first word differs, else
    "sentences": then nothing is cached.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lead = ""
        self._special = frozenset(getattr(tokenizer, "all_special_tokens", ()))
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:  # a copy, because it is changed
            self._backend = copy.deepcopy(self._backend)
            self._lead = _restore_space_before_words(self._backend)
        self._table = _WordTable(self._split_single)
        self._first: _WordTable | None = None
        self.mode: Mode = "words"
        self._choose_mode([sentence.words for sentence in PROBES])
        self._checked = False

    def split(self, sentences: Sequence[Sentence]) -> _Rows:
        """Split the words of sentences: int32 [n_subwords, 3], id and characters in the word, and subwords a word."""
        words = [sentence.words for sentence in sentences]
        if not self._checked and words:
            self._choose_mode(words[:CHECKED_SENTENCES])
            self._checked = True
        return self._split_sentences(words) if self.mode == "sentences" else self._compose(words)

    def _compose(self, sentences: Sequence[Sequence[str]]) -> _Rows:
        bounds = indptr(np.fromiter(map(len, sentences), np.int64, count=len(sentences)))
        starts, lengths = self._table.lookup(chain.from_iterable(sentences), int(bounds[-1]))
        flat = self._table.flat
        if self._first is not None:
            heads = bounds[:-1][np.diff(bounds) > 0]
            first_words = [sentence[0] for sentence in sentences if len(sentence)]
            first_starts, lengths[heads] = self._first.lookup(first_words, len(first_words))
            starts[heads] = first_starts + len(flat)
            flat = np.concatenate([flat, self._first.flat])
        return flat[ragged_indices(starts, lengths)], lengths

    def _choose_mode(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compare composed words with the tokenizer's own encoding of whole sentences, and choose the mode."""
        sentences = [sentence for sentence in sentences if len(sentence) and PAIR not in sentence]
        expected = self._split_sentences(sentences)
        while self.mode != "sentences":
            rows, lengths = self._compose(sentences)
            same = np.array_equal(rows[:, 0], expected[0][:, 0])
            if same and (self._backend is None or np.array_equal(lengths, expected[1])):
                return
            if self.mode == "words":
                self.mode = "first"
                self._first = _WordTable(self._split_single)
                self._table = _WordTable(self._split_inner)
            elif self._backend is not None:
                self.mode = "sentences"
            else:  # a slow tokenizer does not report which subword belongs to which word: split words one by one
                self.mode, self._first, self._table = "words", None, _WordTable(self._split_single)
                return

    def _split_single(self, words: list[str]) -> _Rows:
        """Split words, each as a sentence of one word."""
        if self._backend is None:
            return _rows([[(index, 0, len(word)) for index in self._slowly([word])] for word in words])
        return self._split_sentences([[word] for word in words])

    def _split_inner(self, words: list[str]) -> _Rows:
        """Split words, each as the second word of a sentence."""
        if self._backend is None:
            skipped = len(self._slowly(["a"]))
            return _rows([[(index, 0, len(word)) for index in self._slowly(["a", word])[skipped:]] for word in words])
        rows, lengths = self._split_sentences([["a", word] for word in words])
        return rows[np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)], lengths[1::2]

    def _split_sentences(self, sentences: Sequence[Sequence[str]]) -> _Rows:
        """Split whole sentences; with a slow tokenizer the lengths are those of sentences, not of words."""
        if self._backend is None:
            return _rows([[(index, 0, 0) for index in self._slowly(sentence)] for sentence in sentences])
        given = [[word if word in self._special else self._lead + word for word in words] for words in sentences]
        encodings = self._backend.encode_batch(given, is_pretokenized=True, add_special_tokens=False)
        words: list[list[tuple[int, int, int]]] = []
        for encoding, sentence in zip(encodings, sentences, strict=True):
            parts: list[list[tuple[int, int, int]]] = [[] for _ in sentence]
            for index, word, (start, stop) in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True):
                lead = 0 if sentence[word] in self._special else len(self._lead)
                parts[word].append((index, max(0, start - lead), max(0, stop - lead)))
            words += parts
        return _rows(words)

    def _slowly(self, words: Sequence[str]) -> list[int]:
        encoded = self._tokenizer(list(words), is_split_into_words=True, add_special_tokens=False)
        ids: list[int] = encoded["input_ids"]
        return ids


def _rows(words: list[list[tuple[int, int, int]]]) -> _Rows:
    lengths = np.fromiter(map(len, words), np.int64, count=len(words))
    flat = np.array(list(chain.from_iterable(words)), np.int32).reshape(-1, 3)
    return flat, lengths


def _restore_space_before_words(backend: Any) -> str:
    """Give pre-split words the space in front of them that byte-level BPE treats as part of their spelling.

    A byte-level step that is alone can add the space itself. After another step it would add one to every part of a
    word, so the returned string is to be put in front of each word instead.
    """
    step = json.loads(backend.to_str()).get("pre_tokenizer") or {}
    if step.get("type") == "ByteLevel":
        backend.pre_tokenizer.add_prefix_space = True
        return ""
    nested = [step]
    while nested:
        step = nested.pop()
        if step.get("type") == "ByteLevel":
            return " "
        nested += step.get("pretokenizers", [])
    return ""
