"""Words to subwords: each distinct word is split once, and sentences are composed from the parts by index."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, compress, count, islice, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.sentence import PAIR
from embstore.errors import ModelError
from embstore.models.batched import PROBES
from embstore.models.encoder import Tokenized, indptr, ragged_indices
from embstore.spacing import ATTACHED, NUMBERED, numbered

MAX_CACHED_WORDS = 1 << 20
CHECKED_SENTENCES = 64
SPACED = ("Ġ", "▁")  # how vocabularies spell the space before a word

Mode = Literal["words", "first", "sentences"]
_Split = tuple[NDArray[np.int32], NDArray[np.int64]]  # ids of all words, and how many each word has


@dataclass(frozen=True)
class Specials:
    """The special subwords around a sentence: ids before and after it, and the token types of all three parts."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    prefix_types: tuple[int, ...]
    body_type: int
    suffix_types: tuple[int, ...]

    @property
    def count(self) -> int:
        """Return the number of special subwords."""
        return len(self.prefix) + len(self.suffix)

    def around(self, ids: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a sentence's subwords with the special ones around them, and the token types of all."""
        body = np.full(len(ids), self.body_type)
        types = np.concatenate([self.prefix_types, body, self.suffix_types])
        return np.concatenate([self.prefix, ids, self.suffix]).astype(np.int64), types.astype(np.int64)


@dataclass(frozen=True)
class PairSpecials:
    """The special subwords between the sentences of a pair, and the token types from there on."""

    middle: tuple[int, ...]
    middle_types: tuple[int, ...]
    second_type: int
    suffix_types: tuple[int, ...]


class _WordTable:
    """The subwords of distinct words: `lookup` returns where each word's subwords start in `flat`, and how many."""

    def __init__(self, split: Callable[[list[str]], _Split]) -> None:
        self._split = split
        self._reset()

    def _reset(self) -> None:
        self._index: defaultdict[str, int] = defaultdict(count().__next__)
        self.flat = np.empty(0, np.int32)
        self._starts = np.empty(0, np.int64)
        self._lengths = np.empty(0, np.int64)

    def __contains__(self, word: str) -> bool:
        return word in self._index

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
    """Splits words into subwords as a transformers tokenizer splits pre-split sentences, but faster.

    `tokenizer`: a transformers tokenizer, which this object owns from then on (truncation and padding are switched
    off). `vocabulary`: the number of subwords that the model knows. `mode`: "words" if a word's subwords never depend
    on its sentence, "first" if only the first word differs, else "sentences": then nothing is cached. Raises ModelError
    for a tokenizer that does not fit the model.
    """

    def __init__(self, tokenizer: Any, *, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self.vocabulary = vocabulary
        self._lead = ""
        self._special = frozenset(getattr(tokenizer, "all_special_tokens", ()))
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
            self._lead = _restore_space_before_words(self._backend)
        self._table = _WordTable(self._split_single)
        self._first: _WordTable | None = None
        self.mode: Mode = "words"
        self._choose_mode(PROBES)
        self._checked = False
        self.specials = self._find_specials()
        self.takes_types = "token_type_ids" in getattr(tokenizer, "model_input_names", ())

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split the words of sentences, each distinct word once; a marked word has no space before it."""
        if not self._checked and sentences:
            some = _unmarked(sentences[:CHECKED_SENTENCES])
            self._choose_mode([[word for word in sentence if not NUMBERED.fullmatch(word)] for sentence in some])
            self._checked = True
        sentence_indptr = indptr(np.fromiter(map(len, sentences), np.int64, count=len(sentences)))
        if self.mode == "sentences":
            if any(map(NUMBERED.fullmatch, chain.from_iterable(_unmarked(sentences)))):
                raise ModelError("the tokenizer splits words by their sentence: it cannot be given subwords as words")
            ids, lengths = self._split_sentences(_unmarked(sentences))
        else:
            ids, lengths = self._compose(sentences, sentence_indptr)
        tokenized = Tokenized(ids=ids, word_indptr=indptr(lengths), sentence_indptr=sentence_indptr)
        if self.mode == "sentences" or PAIR in self._table:
            marks = np.flatnonzero([word == PAIR for sentence in sentences for word in sentence])
            return self._with_pairs(tokenized, marks) if len(marks) else tokenized
        return tokenized

    @cached_property
    def pair(self) -> PairSpecials:
        """What is put between the sentences of a pair; raises ModelError if the tokenizer has no form for pairs."""
        words = [word for sentence in PROBES for word in sentence]
        if self._backend is not None and self.mode == "words":
            first, second = [one for one in self._encode([[word] for word in words]) if one.ids][:2]
            both = [[self._lead + word] for word in words if self._encode([[word]])[0].ids][:2]
            encoding = self._backend.encode(*both, is_pretokenized=True, add_special_tokens=True)
            ids, types, specials = encoding.ids, encoding.type_ids, self.specials
            begin = len(specials.prefix) + len(first.ids)
            stop = len(ids) - len(specials.suffix)
            end = stop - len(second.ids)
            if ids == [*specials.prefix, *first.ids, *ids[begin:end], *second.ids, *specials.suffix]:
                return PairSpecials(tuple(ids[begin:end]), tuple(types[begin:end]), types[end], tuple(types[stop:]))
        raise ModelError("the tokenizer has no known form for pairs of sentences: give each sentence on its own")

    def _with_pairs(self, tokenized: Tokenized, marks: NDArray[np.int64]) -> Tokenized:
        """Replace the subwords of the words PAIR, `marks`, by the special subwords between sentences."""
        pair, lengths = self.pair, np.diff(tokenized.word_indptr)
        words = np.setdiff1d(np.arange(len(lengths)), marks)
        source = ragged_indices(tokenized.word_indptr[words], lengths[words])
        lengths[marks] = len(pair.middle)
        bounds = indptr(lengths)
        ids, types = np.empty(bounds[-1], np.int32), np.full(bounds[-1], self.specials.body_type, np.int64)
        ids[ragged_indices(bounds[words], lengths[words])] = tokenized.ids[source]
        places = bounds[marks][:, None] + np.arange(len(pair.middle))
        ids[places] = pair.middle
        ends = tokenized.sentence_indptr[np.searchsorted(tokenized.sentence_indptr, marks, "right")]
        types[ragged_indices(bounds[marks + 1], bounds[ends] - bounds[marks + 1])] = pair.second_type
        types[places] = pair.middle_types
        return Tokenized(ids, bounds, tokenized.sentence_indptr, types)

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword in the vocabulary."""
        return str(self._tokenizer.convert_ids_to_tokens(int(index)))

    def words_of(self, ids: Sequence[int], *, cut: int) -> tuple[list[str], list[int]]:
        """Return marked words whose subwords are `ids`, and the first subword of each; none has both sides of `cut`.

        They are the words of the text as far as these have the same subwords: a word that has others is broken into
        its subwords, and a subword without a spelling of its own is its number (`embstore.spacing.numbered`). Raises
        ModelError for a tokenizer whose words depend on their sentence.
        """
        if self._backend is None:
            raise ModelError("the tokenizer has no fast form, which subwords as words need")
        given = np.array(ids, np.int32)
        texts = [self._backend.decode([index], skip_special_tokens=False) for index in ids]
        spaced = [self.subword_text(index).startswith(SPACED) for index in ids]
        starts = [
            at
            for at in range(len(ids))
            if at in (0, cut) or spaced[at] or not _belong_together(texts[at - 1], texts[at])
        ]
        pieces = list(pairwise([*starts, len(ids)]))
        numbers: set[int] = set()
        while True:
            words = [
                numbered(ids[start], self.sha256())
                if start in numbers or (word := self._spelled(ids[start:stop])) is None
                else ATTACHED + word
                if start and not spaced[start]
                else word
                for start, stop in pieces
            ]
            found = self.tokenize([words])
            runs = list(pairwise(found.word_indptr.tolist()))
            wrong = [
                piece
                for piece, run in zip(pieces, runs, strict=True)
                if not np.array_equal(found.ids[slice(*run)], given[slice(*piece)])
            ]
            if not wrong:
                return words, [start for start, _ in pieces]
            numbers.update(start for start, stop in wrong if stop == start + 1)
            broken = {start for start, _ in wrong}
            pieces = [
                part
                for start, stop in pieces
                for part in (pairwise(range(start, stop + 1)) if start in broken else [(start, stop)])
            ]

    def _spelled(self, ids: Sequence[int]) -> str | None:
        """Return the spelling of subwords without a space before it; None if it cannot be a word."""
        assert self._backend is not None
        word = str(self._backend.decode(list(ids), skip_special_tokens=False)).removeprefix(" ")
        no_word = not word or " " in word or ATTACHED in word or word == PAIR or NUMBERED.fullmatch(word)
        return None if no_word else word

    def sha256(self) -> str:
        """Return a hash of everything that decides how text becomes ids."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        if self._backend is not None:
            description = json.loads(self._backend.to_str())
        else:
            description = {"class": type(self._tokenizer).__name__, "vocab": self._tokenizer.get_vocab()}
        canonical = json.dumps([description, asdict(self.specials), self._lead], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _compose(self, sentences: Sequence[Sequence[str]], sentence_indptr: NDArray[np.int64]) -> _Split:
        starts, lengths = self._table.lookup(chain.from_iterable(sentences), int(sentence_indptr[-1]))
        flat = self._table.flat
        if self._first is not None:
            heads = sentence_indptr[:-1][np.diff(sentence_indptr) > 0]
            first_words = [sentence[0] for sentence in sentences if len(sentence)]
            first_starts, lengths[heads] = self._first.lookup(first_words, len(first_words))
            starts[heads] = first_starts + len(flat)
            flat = np.concatenate([flat, self._first.flat])
        return flat[ragged_indices(starts, lengths)], lengths

    @cached_property
    def _unspaced(self) -> Any:
        """The tokenizer that puts no space before a word, for words that follow without one."""
        assert self._backend is not None
        description = json.loads(self._backend.to_str())
        steps = [description["normalizer"], description["pre_tokenizer"]]
        before = json.dumps(steps)
        _put_no_space(steps)
        is_other = json.dumps(steps) != before
        return type(self._backend).from_str(json.dumps(description)) if is_other else self._backend

    def _choose_mode(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compare composed words with the tokenizer's own encoding of whole sentences, and choose the mode."""
        sentences = [sentence for sentence in sentences if len(sentence)]
        expected = self._split_sentences(sentences)
        bounds = indptr(np.fromiter(map(len, sentences), np.int64, count=len(sentences)))
        while self.mode != "sentences":
            ids, lengths = self._compose(sentences, bounds)
            if np.array_equal(ids, expected[0]) and (self._backend is None or np.array_equal(lengths, expected[1])):
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

    def _encode(self, sentences: list[list[str]]) -> list[Any]:
        assert self._backend is not None
        if self._lead:
            sentences = [[self._with_lead(word) for word in sentence] for sentence in sentences]
        return list(self._backend.encode_batch(sentences, is_pretokenized=True, add_special_tokens=False))

    def _with_lead(self, word: str) -> str:
        """Return a word as it follows a space; special tokens are written without one."""
        return word if word in self._special else self._lead + word

    def _encode_slowly(self, words: Sequence[str]) -> list[int]:
        encoded = self._tokenizer(list(words), is_split_into_words=True, add_special_tokens=False)
        ids: list[int] = encoded["input_ids"]
        return ids

    def _split_single(self, words: list[str]) -> _Split:
        """Split words, each as a sentence of one word."""
        if self._backend is None:
            return self._flat([self._encode_slowly([word.removeprefix(ATTACHED)]) for word in words])
        return self._merged(words, lambda plain: [each.ids for each in self._encode([[word] for word in plain])])

    def _merged(self, words: list[str], split_plain: Callable[[list[str]], list[list[int]]]) -> _Split:
        """Split words, with `split_plain` those that are not attached."""
        marked = [word.startswith(ATTACHED) for word in words]
        bare = [[word.removeprefix(ATTACHED)] for word in compress(words, marked)]
        attached = iter(self._unspaced.encode_batch(bare, is_pretokenized=True, add_special_tokens=False))
        plain = iter(split_plain([word for word, mark in zip(words, marked, strict=True) if not mark]))
        found = [next(attached).ids if mark else next(plain) for mark in marked]
        for at, word in enumerate(words):
            if (given := NUMBERED.fullmatch(word.removeprefix(ATTACHED))) is not None:
                found[at] = [self._given(given)]
        return self._flat(found)

    def _given(self, word: re.Match[str]) -> int:
        """Return the subword whose number a word is; raises ModelError for one of another tokenizer."""
        if not self.sha256().startswith(word[2]):
            raise ModelError(
                f"the word {word[0]!r} is a subword of another tokenizer: take the model that generated the text"
            )
        return int(word[1])

    def _split_inner(self, words: list[str]) -> _Split:
        """Split words, each as the second word of a sentence."""
        if self._backend is None:
            skipped = len(self._encode_slowly(["a"]))
            return self._flat([self._encode_slowly(["a", word.removeprefix(ATTACHED)])[skipped:] for word in words])
        return self._merged(
            words,
            lambda plain: [
                [index for index, word in zip(encoding.ids, encoding.word_ids, strict=True) if word == 1]
                for encoding in self._encode([["a", word] for word in plain])
            ],
        )

    def _split_sentences(self, sentences: Sequence[Sequence[str]]) -> _Split:
        """Split whole sentences; with a slow tokenizer the lengths are those of sentences, not of words."""
        if self._backend is None:
            return self._flat([self._encode_slowly(sentence) for sentence in sentences])
        encodings = self._encode([list(sentence) for sentence in sentences])
        lengths = [
            np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(sentence))
            for encoding, sentence in zip(encodings, sentences, strict=True)
        ]
        ids, _ = self._flat([encoding.ids for encoding in encodings])
        return ids, np.concatenate(lengths) if lengths else np.empty(0, np.int64)

    def _flat(self, ids: list[list[int]]) -> _Split:
        lengths = np.fromiter(map(len, ids), np.int64, count=len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, count=int(lengths.sum()))
        if len(flat) and int(flat.max()) >= self.vocabulary:
            largest = int(flat.max())
            raise ModelError(
                f"the tokenizer returns the id {largest} ({self.subword_text(largest)!r}), the model has only "
                f"{self.vocabulary} embeddings; use the tokenizer that belongs to the model"
            )
        return flat, lengths

    def _find_specials(self) -> Specials:
        """Find what is added around a few probe sentences; it must always be the same."""
        words = [word for sentence in PROBES for word in sentence]
        if self._backend is not None:
            encodings = self._encode([[word] for word in words])
            words = [word for word, encoding in zip(words, encodings, strict=True) if encoding.ids]
        found = {self._specials_of(sentence) for sentence in (words[:1], words[1:2], words)}
        if len(found) != 1:
            raise ModelError("the tokenizer's special subwords depend on the sentence; this is not supported")
        return found.pop()

    def _specials_of(self, words: list[str]) -> Specials:
        special: list[int] = []
        if self._backend is not None:
            encoding = self._backend.encode(
                list(map(self._with_lead, words)), is_pretokenized=True, add_special_tokens=True
            )
            ids, types, special = encoding.ids, encoding.type_ids, encoding.special_tokens_mask
            body = self._encode([words])[0].ids
        else:
            encoded = self._tokenizer(words, is_split_into_words=True, return_token_type_ids=True)
            ids, types = encoded["input_ids"], encoded["token_type_ids"]
            body = self._encode_slowly(words)
        start = special.index(0) if 0 in special else 0
        while ids[start : start + len(body)] != body:
            start += 1
            if start > len(ids):
                raise ModelError("the tokenizer changes a sentence's subwords when it adds special ones")
        stop = start + len(body)
        body_type = types[start] if body else 0
        return Specials(tuple(ids[:start]), tuple(ids[stop:]), tuple(types[:start]), body_type, tuple(types[stop:]))


def _belong_together(before: str, after: str) -> bool:
    """Return whether two subwords are parts of one word: both have letters where they meet, or parts of a character."""
    halves = "\ufffd"
    return halves in before + after or (before[-1:].isalnum() and after[:1].isalnum())


def _unmarked(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[word.removeprefix(ATTACHED) for word in sentence] for sentence in sentences]


def _put_no_space(step: Any) -> None:
    """Change the description of a tokenizer's step, and of the steps in it, so that it puts no space before a text."""
    if isinstance(step, dict):
        if step.get("type") == "Prepend":
            step["prepend"] = ""
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
        if "prepend_scheme" in step:
            step["prepend_scheme"] = "never"
        for part in step.values():
            _put_no_space(part)
    elif isinstance(step, list):
        for part in step:
            _put_no_space(part)


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
