"""Words to subwords: each distinct word is split once, and sentences are composed from the pieces by index."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.encoder import Tokenized

MAX_CACHED_WORDS = 1 << 20
CHECKED_SENTENCES = 64
# Sentences on which the first word, capitals, digits, punctuation and other scripts would show a context effect.
PROBES = (
    ("The", "cat", "'s", "1,234", "mice", ",", "don't", "they", "?"),
    ("the", "the", "Straße", "naïve", "日本", "…", "x_1", "ok"),
)

Mode = Literal["words", "first", "sentences"]
Pieces = tuple[NDArray[np.int32], NDArray[np.int64]]


@dataclass(frozen=True)
class Specials:
    """What a tokenizer puts around a sentence: ids before and after it, and the token types of all three."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    prefix_types: tuple[int, ...]
    body_type: int
    suffix_types: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.prefix) + len(self.suffix)


class _Table:
    """The pieces of distinct words: `lookup` gives where each word's pieces start in `flat`, and how many."""

    def __init__(self, split: Callable[[list[str]], Pieces]) -> None:
        self._split = split
        self._reset()

    def _reset(self) -> None:
        self._index: defaultdict[str, int] = defaultdict(count().__next__)
        self.flat = np.empty(0, np.int32)
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


class SubwordTokenizer:
    """Splits words into subwords as a tokenizer does with pre-split sentences.

    `tokenizer`: a transformers tokenizer, which this object then owns (truncation and padding are switched
    off). `vocabulary`: how many subwords the model knows. Raises ModelError where a subword is beyond it.
    """

    def __init__(self, tokenizer: Any, *, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._vocabulary = vocabulary
        self._lead = ""
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
            self._lead = _keep_space_before_words(self._backend)
        self._table = _Table(self._split_single)
        self._first: _Table | None = None
        self.mode: Mode = "words"
        self._settle(PROBES)
        self._checked = False
        self.specials = self._find_specials()
        self.takes_types = "token_type_ids" in getattr(tokenizer, "model_input_names", ())

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split the words of sentences, each distinct word once."""
        if not self._checked and sentences:
            self._settle(sentences[:CHECKED_SENTENCES])
            self._checked = True
        words_of = np.fromiter(map(len, sentences), np.int64, count=len(sentences))
        sentence_indptr = indptr(words_of)
        if self.mode == "sentences":
            ids, lengths = self._split_sentences(sentences)
        else:
            ids, lengths = self._compose(sentences, sentence_indptr)
        return Tokenized(ids=ids, word_indptr=indptr(lengths), sentence_indptr=sentence_indptr)

    def piece(self, index: int) -> str:
        """Return the spelling of a subword as the vocabulary has it."""
        return str(self._tokenizer.convert_ids_to_tokens(int(index)))

    def sha256(self) -> str:
        """Hash all that decides how text becomes ids."""
        if self._backend is not None:
            description = json.loads(self._backend.to_str())
        else:
            description = {"class": type(self._tokenizer).__name__, "vocab": self._tokenizer.get_vocab()}
        canonical = json.dumps([description, asdict(self.specials), self._lead], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _compose(
        self, sentences: Sequence[Sequence[str]], sentence_indptr: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        starts, lengths = self._table.lookup(chain.from_iterable(sentences), int(sentence_indptr[-1]))
        flat = self._table.flat
        if self._first is not None:
            heads = sentence_indptr[:-1][np.diff(sentence_indptr) > 0]
            first_words = [sentence[0] for sentence in sentences if len(sentence)]
            first_starts, lengths[heads] = self._first.lookup(first_words, len(first_words))
            starts[heads] = first_starts + len(flat)
            flat = np.concatenate([flat, self._first.flat])
        return flat[ragged_indices(starts, lengths)], lengths

    def _settle(self, sentences: Sequence[Sequence[str]]) -> None:
        """Hold composed words against the tokenizer's own encoding of whole sentences, and choose the mode."""
        sentences = [sentence for sentence in sentences if len(sentence)]
        expected = self._split_sentences(sentences)
        while self.mode != "sentences" and not self._reproduces(sentences, expected):
            if self.mode == "words":
                self.mode = "first"
                self._first = _Table(self._split_single)
                self._table = _Table(self._split_inner)
            elif self._backend is not None:
                self.mode = "sentences"
            else:  # without a fast tokenizer nothing says which piece is whose: a word stands for itself
                self.mode, self._first, self._table = "words", None, _Table(self._split_single)
                return

    def _reproduces(self, sentences: Sequence[Sequence[str]], expected: Pieces) -> bool:
        bounds = indptr(np.fromiter(map(len, sentences), np.int64, count=len(sentences)))
        ids, lengths = self._compose(sentences, bounds)
        alike = np.array_equal(ids, expected[0])
        return alike and (self._backend is None or np.array_equal(lengths, expected[1]))

    def _encode(self, sentences: list[list[str]]) -> list[Any]:
        assert self._backend is not None
        if self._lead:
            sentences = [[self._lead + word for word in sentence] for sentence in sentences]
        return list(self._backend.encode_batch(sentences, is_pretokenized=True, add_special_tokens=False))

    def _encode_slowly(self, words: Sequence[str]) -> list[int]:
        encoded = self._tokenizer(list(words), is_split_into_words=True, add_special_tokens=False)
        ids: list[int] = encoded["input_ids"]
        return ids

    def _split_single(self, words: list[str]) -> Pieces:
        """Split words, each as a sentence of one word."""
        if self._backend is None:
            ids = [self._encode_slowly([word]) for word in words]
        else:
            ids = [encoding.ids for encoding in self._encode([[word] for word in words])]
        return self._pieces(ids)

    def _split_inner(self, words: list[str]) -> Pieces:
        """Split words, each as the second word of a sentence."""
        if self._backend is None:
            skipped = len(self._encode_slowly(["a"]))
            return self._pieces([self._encode_slowly(["a", word])[skipped:] for word in words])
        encodings = self._encode([["a", word] for word in words])
        return self._pieces([_of_word(encoding, 1) for encoding in encodings])

    def _split_sentences(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        """Split whole sentences; without a fast tokenizer the lengths are those of the sentences."""
        if self._backend is None:
            return self._pieces([self._encode_slowly(sentence) for sentence in sentences])
        encodings = self._encode([list(sentence) for sentence in sentences])
        lengths = [
            np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(sentence))
            for encoding, sentence in zip(encodings, sentences, strict=True)
        ]
        ids, _ = self._pieces([encoding.ids for encoding in encodings])
        return ids, np.concatenate(lengths) if lengths else np.empty(0, np.int64)

    def _pieces(self, ids: list[list[int]]) -> Pieces:
        lengths = np.fromiter(map(len, ids), np.int64, count=len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, count=int(lengths.sum()))
        if len(flat) and int(flat.max()) >= self._vocabulary:
            largest = int(flat.max())
            raise ModelError(
                f"the tokenizer gives the id {largest} ({self.piece(largest)!r}), the model has only "
                f"{self._vocabulary} embeddings; use the tokenizer that belongs to the model"
            )
        return flat, lengths

    def _find_specials(self) -> Specials:
        """Read off what stands around two probe sentences, which must be the same."""
        found = {self._specials_of([word]) for word in self._probe_words()[:2]}
        found |= {self._specials_of(self._probe_words())}
        if len(found) != 1:
            raise ModelError("the tokenizer's special subwords depend on the sentence; this is not supported")
        return found.pop()

    def _probe_words(self) -> list[str]:
        words = [word for sentence in PROBES for word in sentence]
        if self._backend is not None:
            encodings = self._encode([[word] for word in words])
            words = [word for word, encoding in zip(words, encodings, strict=True) if encoding.ids]
        return words

    def _specials_of(self, words: list[str]) -> Specials:
        if self._backend is not None:
            encoding = self._backend.encode(
                [self._lead + word for word in words], is_pretokenized=True, add_special_tokens=True
            )
            ids, types, special = encoding.ids, encoding.type_ids, encoding.special_tokens_mask
            body = self._encode([words])[0].ids
        else:
            encoded = self._tokenizer(words, is_split_into_words=True, return_token_type_ids=True)
            ids, types = encoded["input_ids"], encoded["token_type_ids"]
            body = self._encode_slowly(words)
            special = []
        start = special.index(0) if 0 in special else 0
        while ids[start : start + len(body)] != body:
            start += 1
            if start > len(ids):
                raise ModelError("the tokenizer changes a sentence's subwords when it adds special ones")
        stop = start + len(body)
        body_type = types[start] if body else 0
        return Specials(tuple(ids[:start]), tuple(ids[stop:]), tuple(types[:start]), body_type, tuple(types[stop:]))


def ragged_indices(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of runs `[start, start + length)`, one run after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    indices = np.arange(total, dtype=np.int64)
    indices += np.repeat(starts - (ends - lengths), lengths)
    return indices


def indptr(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where runs of `lengths` begin and end."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def _of_word(encoding: Any, word: int) -> list[int]:
    return [index for index, of in zip(encoding.ids, encoding.word_ids, strict=True) if of == word]


def _keep_space_before_words(backend: Any) -> str:
    """Give split words back the space before them, which in byte-level BPE is part of their spelling.

    Where the byte-level step stands alone it can add the space itself. Behind another step it would add one to
    every part of a word, so there the space is put before the word: returned is what to put.
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
