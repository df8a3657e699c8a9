"""Composed words against the tokenizer's own encoding of whole sentences."""

from __future__ import annotations

import json
import re
from itertools import chain, pairwise

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from embstore.errors import ModelError
from embstore.models.elmo.words import WordNumbers
from embstore.models.transformer import tokens
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.spacing import marked_words
from tests.models.tiny import SENTENCES, byte_level, random_sentences, unigram, wordpiece

KINDS = {"wordpiece": wordpiece, "byte_level": byte_level, "unigram": lambda: unigram("$A </s>", "</s>")}


def wrap(tokenizer: Tokenizer, **options: object) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def reference(kind: str, sentence: list[str]) -> list[list[int]]:
    """Return each word's ids, from the tokenizer's encoding of the sentence and its word ids."""
    tokenizer = KINDS[kind]()
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if kind == "byte_level":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    encoding = tokenizer.encode(sentence, is_pretokenized=True, add_special_tokens=False)
    words: list[list[int]] = [[] for _ in sentence]
    for index, word in zip(encoding.ids, encoding.word_ids, strict=True):
        words[word].append(index)
    return words


def words_of(tokenized, sentence: int) -> list[list[int]]:
    first, last = tokenized.sentence_indptr[sentence : sentence + 2]
    bounds = tokenized.word_indptr[first : last + 1]
    return [tokenized.ids[start:stop].tolist() for start, stop in pairwise(bounds)]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_split_as_in_whole_sentences(kind):
    subject = SubwordTokenizer(wrap(KINDS[kind]()), vocabulary=400)
    sentences = [*SENTENCES, [], *random_sentences(40, seed=3), ["\u200b", "a\u00ada", "z" * 60, "[CLS]", "</s>", "🙂"]]
    for _ in range(2):  # cold and warm
        tokenized = subject.tokenize(sentences)
        assert tokenized.ids.dtype == np.int32
        assert tokenized.word_indptr.dtype == tokenized.sentence_indptr.dtype == np.int64
        for number, sentence in enumerate(sentences):
            assert words_of(tokenized, number) == (reference(kind, sentence) if sentence else [])
    assert subject.mode == "words"


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(st.lists(st.text(min_size=1, max_size=12).filter(lambda w: " " not in w), max_size=6), max_size=6))
def test_any_words_are_split_as_in_whole_sentences(sentences):
    for kind in KINDS:
        subject = _subject(kind)
        sentences = [[w.encode("utf-8", "ignore").decode() or "a" for w in sentence] for sentence in sentences]
        tokenized = subject.tokenize(sentences)
        for number, sentence in enumerate(sentences):
            assert words_of(tokenized, number) == (reference(kind, sentence) if sentence else [])


_subjects: dict[str, SubwordTokenizer] = {}


def _subject(kind: str) -> SubwordTokenizer:
    if kind not in _subjects:
        _subjects[kind] = SubwordTokenizer(wrap(KINDS[kind]()), vocabulary=400)
    return _subjects[kind]


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(tokens, "MAX_CACHED_WORDS", 30)
    subject = SubwordTokenizer(wrap(wordpiece()), vocabulary=400)
    for seed in range(20):
        sentences = [[f"{word}{seed}" for word in sentence] for sentence in random_sentences(2, seed=seed)]
        tokenized = subject.tokenize(sentences)
        assert words_of(tokenized, 0) == reference("wordpiece", sentences[0])
    assert len(subject._table._index) < 200


def test_specials_of_every_template():
    assert SubwordTokenizer(wrap(byte_level()), vocabulary=400).specials.count == 0
    bert = SubwordTokenizer(wrap(wordpiece()), vocabulary=400).specials
    assert (bert.prefix, bert.suffix) == ((2,), (3,))
    llama = SubwordTokenizer(wrap(byte_level(around=("<s>", ""))), vocabulary=400).specials
    assert (llama.prefix, llama.suffix) == ((0,), ())
    xlnet = SubwordTokenizer(wrap(unigram("$A:0 <sep>:0 <cls>:2", "<sep>", "<cls>")), vocabulary=400).specials
    assert (xlnet.suffix, xlnet.suffix_types, xlnet.body_type) == ((4, 5), (0, 2), 0)


class FirstWordDiffers:
    """A tokenizer without a fast backend that spells the first word of a sentence in its own way."""

    model_input_names = ("input_ids",)
    joined = False  # whether words change their neighbors

    def __call__(self, words, *, is_split_into_words, add_special_tokens=True, return_token_type_ids=False):
        ids = [1] if add_special_tokens else []
        for number, word in enumerate(words):
            lead = 10 if number == 0 else 20
            if self.joined and number and words[number - 1] == "the":
                lead = 30
            ids += [lead, *(100 + ord(letter) % 50 for letter in word)]
        return {"input_ids": ids, "token_type_ids": [0] * len(ids)}

    def get_vocab(self):
        return {"a": 0}

    def convert_ids_to_tokens(self, index):
        return str(index)


def test_the_first_word_may_be_split_differently():
    tokenizer = FirstWordDiffers()
    subject = SubwordTokenizer(tokenizer, vocabulary=400)
    assert subject.mode == "first"
    sentences = [["cat", "sat", "cat"], [], ["cat"], ["sat", "sat"]]
    tokenized = subject.tokenize(sentences)
    for number, sentence in enumerate(sentences):
        expected = tokenizer(sentence, is_split_into_words=True, add_special_tokens=False)["input_ids"]
        assert list(chain.from_iterable(words_of(tokenized, number))) == expected
    assert subject.specials.prefix == (1,)


def test_a_slow_tokenizer_splits_words_one_by_one():
    tokenizer = FirstWordDiffers()
    tokenizer.joined = True
    subject = SubwordTokenizer(tokenizer, vocabulary=400)
    assert subject.mode == "words"
    tokenized = subject.tokenize([["the", "the"]])
    assert words_of(tokenized, 0)[0] == words_of(tokenized, 0)[1]


class _NeighborsMatter:
    """A fast backend whose subwords of a word depend on the word before it."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def encode(self, sentence, **options):
        marked = [
            word + ("x" if number and sentence[number - 1] != "a" else "") for number, word in enumerate(sentence)
        ]
        return self._inner.encode(marked, **options)

    def encode_batch(self, sentences, **options):
        return [self.encode(sentence, **options) for sentence in sentences]


def test_words_that_depend_on_neighbors_are_split_in_their_sentences():
    class Outer:
        model_input_names = ("input_ids",)
        backend_tokenizer = _NeighborsMatter(wordpiece())

    subject = SubwordTokenizer(Outer(), vocabulary=400)
    assert subject.mode == "sentences"
    tokenized = subject.tokenize([["cat", "cat"], ["a", "cat"]])
    assert words_of(tokenized, 0) == [reference("wordpiece", ["cat"])[0], reference("wordpiece", ["catx"])[0]]
    assert words_of(tokenized, 1)[1] == reference("wordpiece", ["cat"])[0]


def test_the_hash_follows_the_vocabulary_and_not_truncation():
    one, other = wordpiece(), wordpiece()
    other.no_truncation()
    same = SubwordTokenizer(wrap(one), vocabulary=400).sha256(), SubwordTokenizer(wrap(other), vocabulary=400).sha256()
    assert same[0] == same[1]
    assert SubwordTokenizer(wrap(byte_level()), vocabulary=400).sha256() != same[0]
    description = json.loads(wordpiece().to_str())
    description["normalizer"]["lowercase"] = False
    cased = Tokenizer.from_str(json.dumps(description))
    assert SubwordTokenizer(wrap(cased), vocabulary=400).sha256() != same[0]


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(ModelError, match="only 10 embeddings"):
        SubwordTokenizer(wrap(wordpiece()), vocabulary=10)


def test_split_pattern_before_byte_level_keeps_the_space_before_a_word():
    """As in Llama 3 and Qwen: a regular expression splits first, and would prefix every part of a word."""
    from tokenizers import Regex, trainers

    pattern = Regex(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [" ".join(s) for s in SENTENCES] * 3,
        trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, show_progress=False),
    )
    subject = SubwordTokenizer(wrap(tokenizer), vocabulary=400)
    sentence = ["She", "didn't", "deposit", "1,234", "dollars", "at", "the", "bank", "."]
    raw = tokenizer.encode(" " + " ".join(sentence), add_special_tokens=False).ids
    assert subject.tokenize([sentence]).ids.tolist() == raw


def gpt2(folder) -> transformers.GPT2Tokenizer:
    return transformers.GPT2Tokenizer(
        vocab=json.loads((folder / "encoder.json").read_text("utf-8")),
        merges=[tuple(line.split(" ")) for line in (folder / "vocab.bpe").read_text("utf-8").split("\n")[1:] if line],
    )


def metaspace(scheme: str) -> Tokenizer:
    """The tokenizer of T5, of newer ("first") or older ("normalizer") Llamas."""
    tokenizer = unigram("$A </s>", "</s>")
    if scheme == "normalizer":
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Sequence(steps), None
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme != "first")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


NATURAL = ["The light, he said, was (or not).", "Why? No: the bank was steep; banks lend money.", "a, b, the bank."]


@pytest.mark.parametrize("kind", ["gpt2", "byte_level", "always", "first", "normalizer"])
def test_attached_words_have_the_subwords_of_running_text(kind, data):
    """Where each word is whole pre-tokens: punctuation marks in a row are one word here, since GPT-2 groups them."""
    if kind == "gpt2":
        tokenizer = gpt2(data / "gpt2-tokenizer")
    else:
        tokenizer = wrap(byte_level() if kind == "byte_level" else metaspace(kind))
    subject = SubwordTokenizer(tokenizer, vocabulary=50257)
    space = " " if kind in ("gpt2", "byte_level") else ""  # the first word is split as any other
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if space:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sentences = [[re.findall(r"\w+|[^\w\s]+", part) for part in text.split(" ")] for text in NATURAL]
    for _ in range(2):  # cold and warm
        for text, parts in zip(NATURAL, sentences, strict=True):
            words = [word for part in parts for word in part]
            starts = set(np.cumsum([0, *map(len, parts)]).tolist())
            marked = marked_words(words, [at for at in range(len(words)) if at not in starts])
            expected = backend.encode(space + text, add_special_tokens=False).ids
            assert subject.tokenize([marked]).ids.tolist() == expected
            assert subject.tokenize([words]).ids.tolist() != expected, "the mark decides"


def test_wordpiece_and_static_words_are_the_same_when_attached():
    subject = SubwordTokenizer(wrap(wordpiece()), vocabulary=400)
    numbers = WordNumbers()
    words = ["the", "bank", "the", "."]
    for tokenize in (subject.tokenize, numbers.tokenize):
        plain, marked = (tokenize([given]) for given in (words, marked_words(words, [2, 3])))
        assert plain.ids.tolist() == marked.ids.tolist()
        assert plain.word_indptr.tolist() == marked.word_indptr.tolist()
    assert numbers.word(int(numbers.tokenize([["\x1fnew"]]).ids[0])) == "new"
    assert numbers.tokenize([["new"]]).ids.tolist() == numbers.tokenize([["\x1fnew"]]).ids.tolist()
