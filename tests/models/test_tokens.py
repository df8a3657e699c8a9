"""Subwords of texts against the tokenizer itself, and those of words against a search character by character."""

from __future__ import annotations

import json
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from embstore.corpus.sentence import Document, Sentence, sentence_pair
from embstore.errors import ModelError
from embstore.models.encoder import Split
from embstore.models.transformer.tokens import SubwordTokenizer
from tests.models.texts import SHAPES, cut, kinds_of_text, tokenizer_of
from tests.models.tiny import SENTENCES, byte_level, random_sentences, unigram, wordpiece

TEXTS = ("novel", "python", "markdown", "arithmetic", "chinese", "emoji")
QUICK = [pytest.param(name, marks=pytest.mark.slow) if name in ("gpt2", "smollm2") else name for name in SHAPES]
PROMPTS = [
    start + end
    for start in ("Q: 3+4=?\nA", "def f(x):\n  return")
    for end in ("", " ", ":", ": ", ":\n", "\n\n  ", "\t", " x ", "…", "日")
]


def subject_of(tokenizer: Any) -> SubwordTokenizer:
    return SubwordTokenizer(tokenizer, vocabulary=60_000)


def places_of(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of a text, and the characters of each subword without white space before it."""
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    places, offsets = [], encoding.offsets
    if isinstance(
        tokenizer.backend_tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel
    ):  # a character of a token is a byte
        owner = [at for at, character in enumerate(text) for _ in character.encode()]
        ends = np.cumsum([len(token) for token in encoding.tokens]).tolist()
        offsets = [(owner[begin], owner[end - 1] + 1) for begin, end in pairwise([0, *ends])]
    for token, (start, stop) in zip(encoding.tokens, offsets, strict=True):
        own = start
        while own < stop and text[own].isspace():
            own += 1
        places.append((start, start) if own == stop or not token.strip("▁") else (own, stop))
    return encoding.ids, places


def plainly(tokenizer: Any, sentences: list[Sentence], scope: str) -> tuple[list[Any], list[list[int]]]:
    """Return the subwords of each sentence, with their characters in its text, and those of each word."""
    own: list[Any] = [[] for _ in sentences]
    words: list[list[int]] = []
    begins = np.cumsum([0, *(len(sentence.text) for sentence in sentences)]).tolist()
    texts = [str(sentence) for sentence in sentences]
    bases = [begin + sentence.start for begin, sentence in zip(begins, sentences, strict=False)]
    if scope == "document":
        texts, bases = ["".join(sentence.text for sentence in sentences)], [0]
    every: list[tuple[int, int]] = []
    for number, (text, base) in enumerate(zip(texts, bases, strict=True)):
        for index, (start, stop) in zip(*places_of(tokenizer, text), strict=True):
            every.append((base + start, base + stop))
            sentence = (
                number if scope == "sentence" else max(n for n in range(len(begins)) if begins[n] <= base + start)
            )
            own[sentence].append((index, base + start - begins[sentence], base + stop - begins[sentence]))
    for begin, sentence in zip(begins, sentences, strict=False):
        for word, at in zip(sentence.words, sentence.starts, strict=True):
            first, last = begin + at, begin + at + len(word)
            words.append([n for n, (start, stop) in enumerate(every) if start < last and stop > first])
    return own, words


def rows_of(split: Split) -> list[list[tuple[int, ...]]]:
    rows = list(zip(split.ids.tolist(), split.start.tolist(), split.stop.tolist(), strict=True))
    return [rows[start:stop] for start, stop in pairwise(split.bounds.tolist())]


def words_of(split: Split) -> list[list[int]]:
    return [list(range(*bounds)) for bounds in zip(split.first.tolist(), split.last.tolist(), strict=True)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.quick(12)
def test_texts_have_the_subwords_of_the_tokenizer(name, text, data):
    """Also at the ends of sentences, and as far as they can be found by their bytes alone."""
    tokenizer, text = tokenizer_of(name, data), kinds_of_text(data)[text][:2500]
    subject = subject_of(tokenizer)
    sentences = cut(text, seed=1)
    assert "".join(sentence.text for sentence in sentences) == text
    for scope in ("sentence", "document"):
        split = subject.tokenize(sentences, scope=scope)
        own, words = plainly(tokenizer, sentences, scope)
        assert (rows_of(split), words_of(split)) == (own, words)
    assert split.ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    parts = subject.tokenize(sentences[:3]), subject.tokenize(sentences[3:])
    assert np.array_equal(np.concatenate([part.ids for part in parts]), subject.tokenize(sentences).ids)


@pytest.mark.parametrize("name", QUICK)
def test_prompts_and_special_tokens(name, data):
    """A prompt ends where it ends, and special tokens in a text are special subwords."""
    tokenizer = tokenizer_of(name, data)
    subject = subject_of(tokenizer)
    before, after = subject.specials.prefix, subject.specials.suffix
    for prompt in [*PROMPTS, "a <mask> b</s>\n[SEP] <|im_start|>user\nok"]:
        split = subject.tokenize([Sentence([prompt.strip()], text=prompt, starts=[0])])
        assert [*before, *split.ids, *after] == tokenizer(prompt)["input_ids"]
        assert subject.ids(prompt) == split.ids.tolist()


class Broken:
    """The fast form of a tokenizer, whose offsets are changed."""

    def __init__(self, backend: Tokenizer, change: Any) -> None:
        self._backend, self._change = backend, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def __deepcopy__(self, memo: Any) -> Tokenizer:
        return self._backend

    def encode_batch(self, texts: list[str], **options: Any) -> list[Any]:
        made = self._backend.encode_batch(texts, **options)
        return [Encoded(each.ids, self._change(each.tokens, each.offsets)) for each in made]


class Encoded:
    def __init__(self, ids: list[int], offsets: list[tuple[int, int]]) -> None:
        self.ids, self.offsets = ids, offsets


def outer(backend: Any, tokenizer: Any) -> Any:
    class Outer:
        model_input_names = ("input_ids",)
        backend_tokenizer = backend
        get_vocab = staticmethod(tokenizer.get_vocab)

    return Outer()


def empty(tokens: list[str], offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """As those of Llama 3 were for words that are in the vocabulary."""
    return [
        (start, start) if token.isalpha() else (start, stop)
        for token, (start, stop) in zip(tokens, offsets, strict=True)
    ]


def shifted(tokens: list[str], offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """As those of XLM-R are for spaces, and on the next word."""
    return [
        (start + 1, stop + 1) if token == "▁" else (start, stop)
        for token, (start, stop) in zip(tokens, offsets, strict=True)
    ]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("name", "change"), [("roberta", empty), ("llama", empty), ("llama", shifted)])
def test_wrong_offsets_are_replaced(name, change, text, data):
    tokenizer, text = tokenizer_of(name, data), kinds_of_text(data)[text][:1500]
    subject = subject_of(outer(Broken(tokenizer.backend_tokenizer, change), tokenizer))
    sentences = cut(text, seed=2)
    for scope in ("sentence", "document"):
        split, right = (each.tokenize(sentences, scope=scope) for each in (subject, subject_of(tokenizer)))
        assert split.ids.tolist() == right.ids.tolist()
        assert words_of(split) == words_of(right)
        some = right.stop > right.start
        assert np.array_equal(split.start[some], right.start[some])


def test_a_tokenizer_that_cannot_be_aligned_is_refused(data):
    """One that replaces quotes by others, and whose offsets are wrong."""
    tokenizer = tokenizer_of("albert", data)
    subject = subject_of(outer(Broken(tokenizer.backend_tokenizer, empty), tokenizer))
    sentence = Sentence(["``", "a", "``"])
    with pytest.raises(ModelError, match=r"which characters its subwords have.*'`` a ``': give tokenize=\"words\""):
        subject.tokenize([sentence])
    (words,) = ids_of_words(subject, [["``", "a", "``"]])
    assert words == tokenizer(["``", "a", "``"], add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["roberta", "qwen", "llama", "t5", "wordpiece uncased"])
def test_a_document_keeps_its_subwords(name, data):
    """Here those of its parts, cut anywhere but at the ends of words for tokenizers that begin words otherwise."""
    tokenizer = tokenizer_of(name, data)
    subject = subject_of(tokenizer)
    text = kinds_of_text(data)["novel"][:800] + " 日本語 🙂 <|im_end|>"
    rng = np.random.default_rng(0)
    levels = name in ("roberta", "qwen")
    ends = sorted({*rng.integers(1, len(text), 90).tolist(), len(text)}) if levels else [len(text)]
    ids = list(chain(*(subject.ids(text[start:stop]) for start, stop in pairwise([0, *ends]))))
    if levels:  # also halves of characters, as a model may generate them
        ids += subject.ids("日")[:1]
        text += "\ufffd"
    sentences = cut(text, seed=3, document=Document(text, ids=ids))
    for scope in ("sentence", "document"):
        split = subject.tokenize([Sentence(["a"]), *sentences, Sentence(["b"])], scope=scope)
        own = slice(split.bounds[1], split.bounds[-2])
        assert split.ids[own].tolist() == ids
        joined = "".join(sentence.text for sentence in sentences)
        begins = np.cumsum([0, *(len(sentence.text) for sentence in sentences)])
        base = np.repeat(begins[:-1], np.diff(split.bounds[1:-1]))
        for index, start, stop in zip(ids, split.start[own] + base, split.stop[own] + base, strict=True):
            spelled = subject.decode([index]).strip().lstrip("#")
            if "\ufffd" not in spelled and spelled != "[UNK]":
                assert joined[start:stop].strip().lower() == spelled.lower()
    if name == "qwen":  # a prompt that the tokenizer normalizes, and what is generated from there on
        prompt = "e\u0301te\u0301, e\u0301"
        ids = [*subject.ids(prompt), *subject.ids("t"), *subject.ids("e a")]
        split = subject.tokenize([Sentence(["e"], document=Document(ids=ids), text=prompt + "te a", starts=[0])])
        assert split.ids.tolist() == ids
        assert (prompt + "te a")[split.start[-1] : split.stop[-1]] == "a"
    other = Document("other", ids=ids)
    with pytest.raises(ModelError, match=r"^the ids of a document are not subwords of its text, 'other'"):
        subject.tokenize([Sentence(["other"], document=other)])


@pytest.mark.parametrize("name", ["wordpiece cased", "roberta", "llama"])
def test_pairs_are_two_texts(name, data):
    tokenizer = tokenizer_of(name, data)
    subject = subject_of(tokenizer)
    document = Document("The cat.  It (sat) on\tit.")
    first, second = (Sentence(text.split(), text=text, starts=[0, 4]) for text in ("The cat. ", "It  sat…"))
    pair = sentence_pair(first, second)
    encoding = tokenizer.backend_tokenizer.encode(str(first), str(second))
    before, after = len(subject.specials.prefix), len(subject.specials.suffix)
    for scope in ("sentence", "document"):
        split = subject.tokenize([first, pair, *cut(document.text, seed=0, document=document), pair], scope=scope)
        for number in (1, -2):
            own = slice(*split.bounds[number:][:2].tolist()) if number > 0 else slice(*split.bounds[-2:].tolist())
            assert split.ids[own].tolist() == encoding.ids[before : len(encoding.ids) - after]
            assert split.types[own].tolist() == encoding.type_ids[before : len(encoding.ids) - after]
        word = split.indptr[1] + 2
        assert split.last[word] - split.first[word] == len(subject.pair.middle)
        own = split.start[split.first[word + 1]], split.stop[split.last[word + 1] - 1]
        assert pair.text[own[0] : own[1]] == "It"
    by_words = subject.tokenize([pair], by="words")
    inside = slice(int(by_words.first[2]), int(by_words.last[2]))
    assert by_words.ids[inside].tolist() == list(subject.pair.middle)
    assert by_words.bounds.tolist() == [0, len(by_words.ids)]


def test_where_a_text_may_be_cut(data):
    subject = subject_of(tokenizer_of("qwen", data))
    text = "The elephants.\n\nIt"
    cuts = [(text[:at], text[at:]) for at in range(1, len(text))]
    exact = [subject.cut_is_exact(*parts) for parts in cuts]
    assert exact == [subject.ids(left) + subject.ids(right) == subject.ids(text) for left, right in cuts]
    assert set(exact) == {True, False}
    assert not subject_of(tokenizer_of("llama", data)).cut_is_exact("The cat.", " It"), "each text begins with a space"


# Words, each by itself, against the tokenizer's own encoding of sentences that are split into words.

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


def ids_of_words(subject: SubwordTokenizer, sentences: list[list[str]]) -> list[list[list[int]]]:
    split = subject.tokenize(list(map(Sentence, sentences)), by="words")
    assert split.ids.dtype == np.int32
    words = [split.ids[start:stop].tolist() for start, stop in zip(split.first, split.last, strict=True)]
    return [words[start:stop] for start, stop in pairwise(split.indptr.tolist())]


def check_words(kind: str, sentences: list[list[str]]) -> None:
    subject = SubwordTokenizer(wrap(KINDS[kind]()), vocabulary=400)
    expected = [reference(kind, sentence) if sentence else [] for sentence in sentences]
    assert ids_of_words(subject, sentences) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_split_as_in_whole_sentences(kind):
    odd = ["\u200b", "a\u00ada", "z" * 60, "[CLS]", "</s>", "🙂"]
    check_words(kind, [*SENTENCES, [], *random_sentences(40, seed=3), odd])


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(st.lists(st.text(min_size=1, max_size=12).filter(lambda w: " " not in w), max_size=6), max_size=6))
def test_any_words_are_split_as_in_whole_sentences(sentences):
    for kind in KINDS:
        check_words(kind, [[w.encode("utf-8", "ignore").decode() or "a" for w in words] for words in sentences])


def test_characters_of_words_by_themselves(data):
    """Of a byte-level tokenizer that is given the space before a word in front of it."""
    subject = subject_of(tokenizer_of("qwen", data))
    for kind in ("novel", "chinese"):
        sentences = cut(kinds_of_text(data)[kind][:900], seed=1)
        split = subject.tokenize(sentences, by="words")
        own = np.searchsorted(split.bounds, split.first, "right") - 1
        for number, sentence in enumerate(sentences):
            for place, word in enumerate(range(*split.indptr[number : number + 2].tolist())):
                assert own[word] == number
                first, last, at = split.first[word], split.last[word], sentence.starts[place]
                assert (split.start[first], split.stop[last - 1]) == (at, at + len(sentence.words[place]))


def test_specials_of_every_template():
    assert SubwordTokenizer(wrap(byte_level()), vocabulary=400).specials.count == 0
    bert = SubwordTokenizer(wrap(wordpiece()), vocabulary=400).specials
    assert (bert.prefix, bert.suffix) == ((2,), (3,))
    llama = SubwordTokenizer(wrap(byte_level(around=("<s>", ""))), vocabulary=400).specials
    assert (llama.prefix, llama.suffix) == ((0,), ())
    xlnet = SubwordTokenizer(wrap(unigram("$A:0 <sep>:0 <cls>:2", "<sep>", "<cls>")), vocabulary=400).specials
    assert (xlnet.suffix, xlnet.suffix_types, xlnet.body_type) == ((4, 5), (0, 2), 0)


class Slow:
    """A tokenizer without a fast form."""

    model_input_names = ("input_ids",)

    def __call__(self, words, *, is_split_into_words, add_special_tokens=True, return_token_type_ids=False):
        ids = [1] if add_special_tokens else []
        for word in words:
            ids += [20, *(100 + ord(letter) % 50 for letter in word)]
        return {"input_ids": ids, "token_type_ids": [0] * len(ids)}

    def get_vocab(self):
        return {"a": 0}

    def convert_ids_to_tokens(self, index):
        return str(index)


def test_a_slow_tokenizer_splits_words_even_when_the_text_is_asked_for():
    tokenizer = Slow()
    subject = SubwordTokenizer(tokenizer, vocabulary=400)
    assert (subject.reads_text, subject.specials.prefix) == (False, (1,))
    sentences = [["cat", "sat", "cat"], [], ["cat"], ["sat", "sat"]]
    for words, sentence in zip(ids_of_words(subject, sentences), sentences, strict=True):
        assert words == [
            tokenizer([word], is_split_into_words=True, add_special_tokens=False)["input_ids"] for word in sentence
        ]
    split = subject.tokenize([Sentence(["cat", "a"])])
    assert split.ids.tolist() == list(chain(*ids_of_words(subject, [["cat", "a"]])[0]))
    assert (split.start.tolist(), split.stop.tolist()) == ([0] * 4 + [4] * 2, [3] * 4 + [5] * 2)


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
    assert list(chain(*ids_of_words(subject, [sentence])[0])) == raw
