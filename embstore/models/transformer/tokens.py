"""Text to subwords: ids and characters as a tokenizer gives them for a text, and the subwords of every word."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import processors

from embstore.corpus.sentence import PAIR, Sentence
from embstore.errors import ModelError
from embstore.models.batched import PROBES
from embstore.models.encoder import By, Indices, Scope, Split, indptr, ragged_indices, word_characters
from embstore.models.transformer.alignment import Spelling, are_spaces, uncovered

# White space, punctuation, digits, accents, combining marks, scripts, parts of characters, ligatures and chat marks.
TEXTS = (
    "The cat's 1,234 mice,  don't they?",
    '\tdef f(x):\r\n\t\treturn {"a": x ** 2}  # ok...\n\n',
    "naïve Straße e\u0301te\u0301, résumé — “quoted” … ﬁﬂ Ⅳ ½ ™",
    "日本語の文。他們說：你好！ 한국어",
    "👩‍👩‍👧 ok 🙂🇩🇪, Привет мир! שלום עולם",
    "a\u00a0b\u3000c\u200bd 3 + 4 = 7; | x | y |",
)
Places = Sequence[Sequence[int]]  # the characters [start, stop) of each subword
CACHED_WORDS = 1 << 16  # of a tokenizer without a fast form
WORDS = 'give tokenize="words", by which each word is tokenized by itself'


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
        return len(self.prefix) + len(self.suffix)

    def around(self, ids: NDArray[Any]) -> tuple[Indices, Indices]:
        """Return a sentence's subwords with the special ones around them, and the token types of all."""
        body = np.full(len(ids), self.body_type)
        types = np.concatenate([self.prefix_types, body, self.suffix_types])
        return np.concatenate([self.prefix, ids, self.suffix]).astype(np.int64), types.astype(np.int64)


@dataclass(frozen=True)
class PairSpecials:
    """The special subwords between the texts of a pair, and the token types from there on."""

    middle: tuple[int, ...]
    middle_types: tuple[int, ...]
    second_type: int
    suffix_types: tuple[int, ...]


class SubwordTokenizer:
    """Splits texts into subwords as a transformers tokenizer does, and finds those of every word.

    `tokenizer`: a transformers tokenizer, which this object owns from then on (truncation and padding are switched
    off). `vocabulary`: the number of subwords that the model knows. `reads_text`: whether it has a fast form, which
    says which characters a subword has; else it can only split words. Raises ModelError for a tokenizer that does not
    fit the model.
    """

    def __init__(self, tokenizer: Any, *, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self.reads_text = self._backend is not None
        self.vocabulary = vocabulary
        self._aligns = self._checked = False
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
            last = self._backend.post_processor
            steps: Any = last if isinstance(last, processors.Sequence) else [last]
            for step in steps:
                if getattr(step, "trim_offsets", False):  # which leaves out where white space is
                    step.trim_offsets = False
            known = self._encode(TEXTS)
            self._aligns = not self._covers(TEXTS, known)
            self._check_ids(np.fromiter(chain.from_iterable(encoding.ids for encoding in known), np.int32))
        else:
            self._check_ids(self.words.split(PROBES)[0])
        self.specials = self._find_specials()
        self._check_ids(np.array([*self.specials.prefix, *self.specials.suffix], np.int32))
        self.takes_types = "token_type_ids" in getattr(tokenizer, "model_input_names", ())

    @cached_property
    def words(self) -> WordSplitter:
        return WordSplitter(self._tokenizer)

    @cached_property
    def spelling(self) -> Spelling:
        """The bytes of each subword; raises ModelError for a slow tokenizer."""
        if self._backend is None:
            raise ModelError("the tokenizer has no fast form, which says what the characters of a subword are")
        return Spelling(self._backend)

    def tokenize(self, sentences: Sequence[Sentence], *, scope: Scope = "sentence", by: By = "text") -> Split:
        """Split sentences; see `Encoder.tokenize`. A document that has ids must be given as a whole."""
        n_words, starts, stops = word_characters(sentences)
        marks = np.flatnonzero(starts == stops)  # the words between the texts of pairs
        if by == "text" and self.reads_text:
            split = self._split_text(sentences, n_words, starts, stops, scope)
        else:
            ids, lengths, *places = self.words.split(sentences)
            bounds = indptr(lengths)
            begin, end = ((place + np.repeat(starts, lengths)).astype(np.int32) for place in places)
            split = Split(ids, bounds[n_words], n_words, bounds[:-1], bounds[1:], begin, end)
        self._check_ids(split.ids)
        return self._with_pairs(split, marks, starts[marks]) if len(marks) else split

    def ids(self, text: str) -> list[int]:
        """Return the subwords of a text, without special ones around it."""
        if self._backend is not None:
            return list(self._encode([text])[0].ids)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of subwords, special ones too."""
        decoder = self._tokenizer if self._backend is None else self._backend
        return str(decoder.decode(list(ids), skip_special_tokens=False))

    def cut_is_exact(self, left: str, right: str) -> bool:
        """Return whether two texts have the same subwords, each by itself, as both together."""
        if not self.reads_text:
            return True  # each word is split by itself
        both, *parts = (encoding.ids for encoding in self._encode([left + right, left, right]))
        return bool(both == list(chain(*parts)))

    @cached_property
    def pair(self) -> PairSpecials:
        """What is put between the texts of a pair; raises ModelError if the tokenizer has no form for pairs."""
        if self._backend is not None:
            first, second = (encoding.ids for encoding in self._encode(TEXTS[:2]))
            encoding = self._backend.encode(*TEXTS[:2], add_special_tokens=True)
            ids, types, specials = encoding.ids, encoding.type_ids, self.specials
            begin = len(specials.prefix) + len(first)
            stop = len(ids) - len(specials.suffix)
            end = stop - len(second)
            if ids == [*specials.prefix, *first, *ids[begin:end], *second, *specials.suffix]:
                return PairSpecials(tuple(ids[begin:end]), tuple(types[begin:end]), types[end], tuple(types[stop:]))
        raise ModelError("the tokenizer has no known form for pairs of sentences: give each sentence on its own")

    def pair_types(self, bounds: Indices, first: Indices, last: Indices) -> Indices:
        """Return the token types of sentences of which some are pairs; see `Encoder.pair_types`."""
        types = np.full(int(bounds[-1]), self.specials.body_type, np.int64)
        ends = bounds[np.searchsorted(bounds, first, "right")]
        types[ragged_indices(last, ends - last)] = self.pair.second_type
        types[ragged_indices(first, last - first)] = np.tile(self.pair.middle_types, len(first))
        return types

    def ending(self, name: str) -> int | None:
        """Return the id of the token "bos" or "eos" that the model knows; a tokenizer without BOS begins with EOS."""
        ids = [self._tokenizer.bos_token_id] * (name == "bos") + [self._tokenizer.eos_token_id]
        return next((number for number in ids if number is not None and number < self.vocabulary), None)

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword in the vocabulary."""
        return str(self._tokenizer.convert_ids_to_tokens(int(index)))

    def piece(self, index: int) -> str:
        """Return the text of a subword, with the space before it that is part of it."""
        return self.subword_text(index) if self._backend is None else self.spelling.text(index)

    def sha256(self) -> str:
        """Return a hash of everything that decides how text becomes ids."""
        if self._backend is not None:
            description = [self._backend.to_str(), bool(getattr(self._backend, "encode_special_tokens", False))]
        else:
            description = [type(self._tokenizer).__name__, self._tokenizer.get_vocab()]
        canonical = json.dumps([*description, asdict(self.specials)], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        return list(self._backend.encode_batch(list(texts), add_special_tokens=False))

    def _check_ids(self, ids: NDArray[np.int32]) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= (largest := int(ids.max())) < self.vocabulary:
            raise ModelError(
                f"there is a subword of the id {largest} ({self.subword_text(largest)!r}), the model has only "
                f"{self.vocabulary} embeddings; use the tokenizer that belongs to the model"
            )

    def _split_text(
        self, sentences: Sequence[Sentence], n_words: Indices, starts: Indices, stops: Indices, scope: Scope
    ) -> Split:
        """Split texts; characters are counted over those of all sentences, one after another."""
        pieces = indptr(np.fromiter((len(sentence.text) for sentence in sentences), np.int64, len(sentences)))
        marks = np.flatnonzero(starts == stops)
        pairs = dict(zip((np.searchsorted(n_words, marks, "right") - 1).tolist(), starts[marks].tolist(), strict=True))
        texts, places, given = _texts(sentences, scope, pairs)
        ids, lengths, begin, end = self._characters(texts, given)
        firsts, lasts, offsets = (np.repeat(side, lengths) for side in places)
        base = pieces[firsts] + offsets
        begin, end = begin + base, end + base

        blank = np.isin(ids, self._blank)
        spaces = are_spaces("".join(sentence.text for sentence in sentences))
        following = np.append(np.where(spaces, len(spaces), np.arange(len(spaces))), len(spaces))
        following = np.minimum.accumulate(following[::-1])[::-1]  # the next character that is no white space
        no_space = np.minimum(following[begin], end)
        blank |= no_space == end
        begin = np.where(blank, begin, no_space)
        end = np.where(blank, begin, end)

        ordered = np.maximum.accumulate(begin)
        owner = np.searchsorted(pieces, ordered, "right") - 1
        owner = np.clip(owner, firsts, lasts)
        bounds = np.searchsorted(owner, np.arange(len(sentences) + 1))
        shift = np.repeat(pieces[:-1], np.diff(n_words))
        first = np.searchsorted(np.maximum.accumulate(end), starts + shift, "right")
        last = np.maximum(first, np.searchsorted(ordered, stops + shift, "left"))
        start, stop = ((side - pieces[owner]).astype(np.int32) for side in (begin, end))
        return Split(ids, bounds, n_words, first, last, start, stop)

    @cached_property
    def _blank(self) -> NDArray[np.int32]:
        """The subwords that are spelled as a space alone, whatever characters the tokenizer says that they have."""
        pieces = self._tokenizer.get_vocab().items()
        return np.array([index for piece, index in pieces if piece and not piece.strip("▁")], np.int32)

    def _characters(
        self, texts: Sequence[str], given: Sequence[Sequence[int] | None]
    ) -> tuple[NDArray[np.int32], Indices, Indices, Indices]:
        """Return the ids of texts, how many each has, and where the characters of each subword begin and end in it.

        `given`: the ids of those that have some already.
        """
        encodings = self._encode(texts)
        if not self._checked and texts:
            self._aligns = self._aligns or not self._covers(texts, encodings)
            self._checked = True
        offsets: Iterable[Places] = (encoding.offsets for encoding in encodings)
        if self._aligns or any(own is not None for own in given):
            offsets = list(map(self._places, texts, encodings, given))
        ids = [encoding.ids if own is None else own for encoding, own in zip(encodings, given, strict=True)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        total = int(lengths.sum())
        places = np.fromiter(chain.from_iterable(chain.from_iterable(offsets)), np.int64, 2 * total)
        flat = np.fromiter(chain.from_iterable(ids), np.int32, total)
        return flat, lengths, places[::2], places[1::2]

    def _places(self, text: str, encoding: Any, own: Sequence[int] | None) -> Places:
        """Return the characters of the subwords of a text: of those that it has by itself, or of `own`.

        Where offsets are right, and `own` are first the tokenizer's, these have its offsets: those of a prompt, which
        it may have normalized.
        """
        offsets: Places = [] if self._aligns else encoding.offsets
        if own is None and not self._aligns:
            return offsets
        ids = encoding.ids if own is None else own
        pairs = enumerate(zip(ids, encoding.ids, strict=False))
        same = next((at for at, (one, other) in pairs if one != other), min(len(ids), len(encoding.ids)))
        for cut in (0, *range(min(same, len(offsets)), max(0, same - 8), -1)):  # a subword shares characters with few
            at = 0 if not cut else offsets[cut][0] if cut < len(offsets) else len(text)
            if (rest := self.spelling.places(text[at:], ids[cut:])) is not None:
                return [*offsets[:cut], *((start + at, stop + at) for start, stop in rest)]
        what = "the tokenizer does not say which characters its subwords have, nor are they spelled as the text"
        if own is not None:
            what = "the ids of a document are not subwords of its text"
        raise ModelError(f"{what}, {text[:40]!r}: {WORDS}")

    def _covers(self, texts: Sequence[str], encodings: Sequence[Any]) -> bool:
        """Return whether offsets ascend and cover every character that is no white space and is not left out."""
        return all(
            all(at >= 0 and self._is_left_out(text, at) for at in uncovered(text, encoding.offsets))
            for text, encoding in zip(texts, encodings, strict=True)
        )

    def _is_left_out(self, text: str, at: int) -> bool:
        """Return whether a character has no subword of its own, or the normalizer joins it with its neighbors."""
        size, near = self.spelling.normal_size, text[max(0, at - 2) : at + 3]
        return not size(text[at]) or size(near) < sum(map(size, near)) or not self.ids(text[at])

    def _with_pairs(self, split: Split, marks: Indices, places: Indices) -> Split:
        """Put the special subwords of the words `marks`, which are at the characters `places`, between the pairs."""
        pair, middles = self.pair, split.first[marks]
        count, sentence = len(pair.middle), np.searchsorted(split.indptr, marks, "right") - 1
        at = np.repeat(middles, count)
        ids = np.insert(split.ids, at, np.tile(np.array(pair.middle, np.int32), len(marks)))
        start, stop = (np.insert(side, at, np.repeat(places, count)) for side in (split.start, split.stop))
        bounds = split.bounds + count * np.searchsorted(sentence, np.arange(len(split.bounds)))
        shift = count * np.searchsorted(marks, np.arange(len(split.first)))
        first, last = split.first + shift, split.last + shift
        first[marks] = middles + count * np.arange(len(marks))
        last[marks] = first[marks] + count
        types = self.pair_types(bounds, first[marks], last[marks])
        return Split(ids, bounds, split.indptr, first, last, start, stop, types)

    def _find_specials(self) -> Specials:
        """Find what is added around a few probes; it must always be the same."""
        found = set()
        if self._backend is None:
            words = [word for sentence in PROBES for word in sentence.words]
            for some in (words[:1], words[1:2], words):
                whole = self._tokenizer(some, is_split_into_words=True, return_token_type_ids=True)
                body = self._tokenizer(some, is_split_into_words=True, add_special_tokens=False)
                found.add(_around(whole["input_ids"], whole["token_type_ids"], body["input_ids"], 0))
        else:
            for text in list(filter(self.ids, TEXTS)) or TEXTS[:1]:
                encoding = self._backend.encode(text, add_special_tokens=True)
                special = encoding.special_tokens_mask
                start = special.index(0) if 0 in special else 0
                found.add(_around(encoding.ids, encoding.type_ids, self.ids(text), start))
        if len(found) != 1:
            raise ModelError("the tokenizer's special subwords depend on the sentence; this is not supported")
        return found.pop()


def _around(ids: list[int], types: list[int], body: list[int], start: int) -> Specials:
    """Return what is around the subwords `body` in `ids`; there are none of them before `start`."""
    while ids[start : start + len(body)] != body:
        start += 1
        if start > len(ids):
            raise ModelError("the tokenizer changes a sentence's subwords when it adds special ones")
    stop = start + len(body)
    body_type = types[start] if body else 0
    return Specials(tuple(ids[:start]), tuple(ids[stop:]), tuple(types[:start]), body_type, tuple(types[stop:]))


def _texts(
    sentences: Sequence[Sentence], scope: Scope, pairs: Mapping[int, int]
) -> tuple[list[str], Indices, list[Sequence[int] | None]]:
    """Return the texts that a tokenizer is given at a time, int64 [3, texts] of them, and their ids if they have any.

    The numbers are the first and the last sentence of a text, and the character of the first with which it begins.
    `pairs`: the numbers of sentences that are pairs, and the character between their texts.
    """
    texts, places, ids = list[str](), list[tuple[int, int, int]](), list[Sequence[int] | None]()

    def key(number: int) -> int:
        document = sentences[number].document
        together = document is not None and (scope == "document" or document.ids is not None) and number not in pairs
        return id(document) if together else -1 - number

    for _, group in groupby(range(len(sentences)), key):
        numbers = list(group)
        first, document = numbers[0], sentences[numbers[0]].document
        is_whole = first not in pairs and (scope == "document" or (document is not None and document.ids is not None))
        text = "".join(sentences[number].text for number in numbers)
        start, stop = (0, len(text)) if is_whole else (sentences[first].start, sentences[first].stop)
        edges = [start, pairs[first], pairs[first] + 1, stop] if first in pairs else [start, stop]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            texts.append(text[begin:end])
            places.append((first, numbers[-1], begin))
            ids.append(document.ids if is_whole and document is not None else None)
    return texts, np.array(places, np.int64).reshape(-1, 3).T, ids


class WordSplitter:
    """Splits words into subwords as a transformers tokenizer splits sentences that are split into words."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = copy.deepcopy(getattr(tokenizer, "backend_tokenizer", None))  # a copy, because it is changed
        self._lead = "" if self._backend is None else _restore_space_before_words(self._backend)
        self._bare = {PAIR, *getattr(tokenizer, "all_special_tokens", ())}

        def slowly(word: str) -> list[int]:
            return list(tokenizer([word], is_split_into_words=True, add_special_tokens=False)["input_ids"])

        self._slowly = lru_cache(CACHED_WORDS)(slowly)

    def split(self, sentences: Sequence[Sentence]) -> tuple[NDArray[np.int32], Indices, Indices, Indices]:
        """Return the ids of the words of sentences, how many each has, and where each begins and ends in its word."""
        words = list(chain.from_iterable(sentence.words for sentence in sentences))
        if self._backend is None:
            slow = list(map(self._slowly, words))
            lengths = np.fromiter(map(len, slow), np.int64, len(slow))
            stop = np.repeat(np.fromiter(map(len, words), np.int64, len(words)), lengths)
            return np.fromiter(chain.from_iterable(slow), np.int32, len(stop)), lengths, np.zeros_like(stop), stop
        leads = ["" if word in self._bare else self._lead for word in words]
        given = [lead + word for lead, word in zip(leads, words, strict=True)]
        first = indptr(np.fromiter((len(sentence.words) for sentence in sentences), np.int64, len(sentences)))
        each = [given[start:stop] for start, stop in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)]
        encodings = self._backend.encode_batch(each, is_pretokenized=True, add_special_tokens=False)
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32)
        word = np.fromiter(chain.from_iterable(encoding.word_ids for encoding in encodings), np.int64, len(ids))
        word += np.repeat(first[:-1], [len(encoding) for encoding in encodings])
        offsets = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        places = np.fromiter(offsets, np.int64, 2 * len(ids)).reshape(-1, 2)
        places = np.maximum(0, places - np.fromiter(map(len, leads), np.int64, len(leads))[word, None])
        return ids, np.bincount(word, minlength=len(words)), places[:, 0], places[:, 1]


def _restore_space_before_words(backend: Any) -> str:
    """Give pre-split words the space in front of them that byte-level BPE treats as part of their spelling.

    A byte-level step that is alone can add the space itself. After another step it would add one to every part of a
    word, so the returned string is to be put in front of each word instead.
    """
    step = json.loads(backend.to_str()).get("pre_tokenizer") or {}
    if step.get("type") == "ByteLevel":
        backend.pre_tokenizer.add_prefix_space = True
        return ""
    return " " if '"ByteLevel"' in json.dumps(step) else ""  # a sequence may be within another
