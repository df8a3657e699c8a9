"""The interface of every model, and the arrays that go in and out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus.sentence import Document, Sentence
from embstore.errors import InvalidValueError, ModelError, check_choice, check_whole
from embstore.store.layout import RESIDUAL, SITES, resolve_layers
from embstore.store.text import ragged_indices as ragged_indices

Pooling = Literal["mean", "first", "last", "max"]
Scope = Literal["sentence", "document"]
By = Literal["text", "words"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
Indices = NDArray[np.int64]
MAX_BATCH_SUBWORDS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Identity of a model, as recorded in the metadata of a store.

    `name`: without the folders in which its files are. `max_subwords`: the longest sentence that the model accepts, in
    subwords without special ones; None: no limit. `final_norm`: whether the last layer includes the model's final norm.
    `config_sha256`: of the fields of a transformer's configuration that vectors may depend on.
    """

    name: str
    architecture: str
    revision: str | None = None
    weights_sha256: str
    tokenizer_sha256: str
    num_hidden_layers: int
    hidden_size: int
    max_subwords: int | None = None
    final_norm: bool = False
    config_sha256: str | None = None


@dataclass(frozen=True)
class Tokenized:
    """Texts as subwords, each what the model is given at a time.

    `ids`: int32 [n_subwords], without special subwords. `bounds`: int64 [n_texts + 1], where each text begins and ends
    in `ids`. `words`: int64 [n_subwords], the number of the word of each subword, ascending; None where that is not
    needed. `types`: int64 [n_subwords], the token types where some texts are pairs; None: all are of the first type.
    """

    ids: NDArray[np.int32]
    bounds: Indices
    words: Indices | None = None
    types: Indices | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def runs(self, begins: Indices, ends: Indices) -> Tokenized:
        """Copy runs of subwords `[begin, end)` as texts of their own."""
        chosen = ragged_indices(begins, ends - begins)
        words, types = (None if column is None else column[chosen] for column in (self.words, self.types))
        return Tokenized(self.ids[chosen], indptr(ends - begins), words, types)


@dataclass(frozen=True)
class Split:
    """Sentences as a tokenizer splits them: their subwords, and which of these each word has.

    `ids`: int32 [n_subwords], without special subwords, but with those between the two texts of a pair, which are the
    subwords of its empty word. `bounds`: int64 [n_sentences + 1], where the subwords of each sentence begin and end; a
    subword belongs to the sentence that has its first character that is no white space. `indptr`: int64
    [n_sentences + 1], where its words begin and end. `first`, `last`: int64 [n_words], word i has the subwords `[first,
    last)`, counted over all; equal for a word without any. Words may share a subword, a subword may be of no word, and
    one that begins in the sentence before may be a word's first. `start`, `stop`: int32 [n_subwords], the characters
    of each subword in its sentence's `text`, without white space before it; none of one that is white space, nor of
    special ones. `types`: as of `Tokenized`.
    """

    ids: NDArray[np.int32]
    bounds: Indices
    indptr: Indices
    first: Indices
    last: Indices
    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    types: Indices | None = None

    @property
    def tokenized(self) -> Tokenized:
        """The sentences as texts of their own."""
        return Tokenized(self.ids, self.bounds, self.words, self.types)

    @property
    def words(self) -> Indices:
        """The number of the word of each subword, int64 [n_subwords]: the last one that begins there or before."""
        return words_of_subwords(self.first, self.last, self.bounds, self.indptr)


def word_characters(sentences: Sequence[Sentence]) -> tuple[Indices, Indices, Indices]:
    """Return where the words of each sentence begin and end, [n_sentences + 1], and the characters of each word.

    Both, [n_words], are counted from the beginning of the sentence's `text`.
    """
    bounds = indptr(np.fromiter((len(sentence.words) for sentence in sentences), np.int64, len(sentences)))
    total = int(bounds[-1])
    starts = np.fromiter(chain.from_iterable(sentence.starts for sentence in sentences), np.int64, total)
    lengths = np.fromiter(map(len, chain.from_iterable(sentence.words for sentence in sentences)), np.int64, total)
    return bounds, starts, starts + lengths


def words_of_subwords(first: Indices, last: Indices, bounds: Indices, indptr: Indices) -> Indices:
    """Return the number of the word of each subword: that in which it begins, or the one before; int64 [n_subwords].

    Those before the first word of their sentence have this one. The arguments are as in `Split`.
    """
    numbers = np.zeros(bounds[-1], np.int64)
    some = np.flatnonzero(last > first)[::-1]  # of words that begin with the same subword the first one has it
    numbers[first[some]] = some
    return np.maximum(np.maximum.accumulate(numbers), np.repeat(indptr[:-1], np.diff(bounds)))


@dataclass(frozen=True)
class Spans:
    """The runs of subwords to pool into one vector each: `[start, stop)` of a sentence of a `Tokenized`.

    `sentence`, `start`, `stop`: int64 [n_spans], ascending by sentence; positions count from the sentence's first
    subword, without special ones.
    """

    sentence: Indices
    start: Indices
    stop: Indices


@dataclass(frozen=True)
class Pooled:
    """Vectors of spans at one site: `rows` int64 [n], the numbers of the spans; `vectors` [n_layers, n, features]."""

    rows: Indices
    vectors: torch.Tensor
    site: str = RESIDUAL


class Encoder(ABC):
    """A model that turns sentences into one vector per span and layer; extraction uses nothing else of a model.

    `info`: the identity of the model. `source`: the name or path that it was loaded from. `device`: where it computes.
    `compute_dtype`: the dtype that it computes in, such as "float32". `batching`: how sentences are arranged in
    batches, one of `batchings`, chosen by `self_check`; `refused`: why others were not. `n_specials`: special subwords
    added to a sentence. `causal`: whether a subword attends only to those before it. `masks_attention`: whether
    `attention_window` is supported. `special_ids`: the special subwords before and after a sentence. Spans may be those
    of special subwords: -1 is the last one before the sentence, the number of its subwords the first one after it.
    `takes_pairs`: whether an empty word separates two texts. `has_vocabulary`: whether ids are the same in every
    process (else they number words as they come, and only words are read). `reads_text`: whether the tokenizer is given
    the text, by which it has the subwords of every word; else the words. `cls_place`: the position of [CLS], None
    without one: negative before the sentence, else counted from the first special one after it. `device_map`: of a
    model that is on several devices, else None.
    """

    info: ModelInfo
    source: str
    device: torch.device = torch.device("cpu")
    compute_dtype: str
    batching: str
    batchings: tuple[str, ...] = ("packed",)
    refused: Mapping[str, str] = {}
    sink_ratio: float = 0.0
    n_specials: int
    special_ids: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    cls_place: int | None = None
    takes_pairs: bool = False
    has_vocabulary: bool = True
    reads_text: bool = False
    causal: bool = False
    masks_attention: bool = False
    device_map: str | Mapping[str, int | str] | None = None

    def __repr__(self) -> str:
        layers = f"{self.info.num_hidden_layers} layers x {self.info.hidden_size}"
        return f"<{type(self).__name__} {self.info.name}: {self.info.architecture}, {layers}, {self.device}>"

    @property
    def attention(self) -> Mapping[str, float]:
        """Return "head_size", the features of a head, and "scaling", that of scores, where sites are known."""
        return {}

    @property
    def casts_on_device(self) -> bool:
        """Return whether vectors should stay `on_device` and leave it cast: on a GPU, where copies cost time."""
        return self.device.type == "cuda"

    @property
    def choices_vary(self) -> bool:
        """Return whether the batch size depends on the memory that is free now, and the batching on what is fastest."""
        return self.device.type == "cuda"

    @property
    @abstractmethod
    def default_batch_subwords(self) -> int:
        """Return a good batch size for the device, in subwords."""

    def batch_subwords_next_to(self, held: Callable[[int], int], *, n_features: int) -> int:
        """Return a good batch size for a device that also holds buffers of `held(batch size)` bytes.

        `n_features`: of a row, in all layers and sites.
        """
        return self.default_batch_subwords

    @abstractmethod
    def tokenize(self, sentences: Sequence[Sentence], *, scope: Scope = "sentence", by: By = "text") -> Split:
        """Split sentences into subwords.

        `scope`: what the tokenizer is given at a time: each "sentence" itself, from its `start` to its `stop`, or the
        "document", the pieces of consecutive sentences of one document joined. A document that has `ids` keeps these.
        `by`: "words" gives the tokenizer each word by itself, with the space before it that it puts before a word. A
        model without a vocabulary reads words whatever is asked for.
        """

    def cut_is_exact(self, left: str, right: str) -> bool:
        """Return whether the subwords of two neighbouring parts of a text are those of both together."""
        return True

    def separator(self, name: str) -> int:
        """Return the id of the token "eos" or "bos", which is put between packed documents."""
        raise ModelError(f"{self.info.architecture} has no token {name} between documents: leave out pack")

    def pair_types(self, bounds: Indices, first: Indices, last: Indices) -> Indices | None:
        """Return the token types of sentences of which some are pairs, as in `Split.types`.

        `bounds`: of the subwords of all sentences; those between the texts of a pair are `[first, last)`.
        """
        return None

    def write_chat(self, messages: Sequence[Mapping[str, Any]]) -> Document | None:
        """Return a chat as the model's template writes it, with labels of its parts; None for a model without one."""
        return None

    @abstractmethod
    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword in the tokenizer's vocabulary."""

    @abstractmethod
    def encode(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        batch_subwords: int,
        attention_window: int | None = None,
        sites: Sequence[str] = (RESIDUAL,),
        on_device: bool = False,
    ) -> Iterator[Pooled]:
        """Run the model over the sentences that have spans and yield the vector of each span once for each site.

        Of sites other than the residual stream the layers begin with 1. Batches depend on the arguments alone, so the
        same call returns the same bits. Layers above the last one in `layers` are not computed. `attention_window`: how
        many words away a word attends at every layer; None: the whole sentence. `on_device`: vectors stay on
        the device, complete for whatever is queued in its current stream after they are yielded; the host does not wait
        for them, not even at the end of a call.
        """

    @abstractmethod
    def self_check(
        self,
        tokenized: Tokenized,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        attention_window: int | None = None,
        sites: Sequence[str] = (RESIDUAL,),
        equal_lengths: bool = False,
        longest: int | None = None,
        batching: str | None = None,
        batch_subwords: int | None = None,
        n_subwords: int | None = None,
    ) -> float:
        """Choose a batching whose vectors equal those of a plain forward pass over these sentences.

        Returns the largest difference of a vector, relative to its length. `equal_lengths`: batch only sentences of one
        length together. `longest`: subwords of the longest sentence that will be encoded, special ones not counted, as
        far as is known. `batching`: that of a store which is resumed: no other one is tried. `batch_subwords`: the
        batch size with which batchings are timed, where that decides. `n_subwords`: of the extraction: of a small one
        less is checked and timed. Raises ModelError if no batching reproduces the plain pass.
        """

    def use_batching(self, batching: str) -> None:
        """Set `batching` without a check, as a resumed store must; raises InvalidValueError for an unknown one."""
        if batching not in self.batchings:
            raise InvalidValueError(
                f"unknown batching {batching!r} of {self.info.name!r}; allowed are {', '.join(self.batchings)}"
            )
        self.batching = batching

    def free(self) -> None:
        """Free what a GPU holds, weights too, which a next call loads again: workers of an executor have their own."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @abstractmethod
    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        """Estimate the memory of the weights and of the activations of one batch, in bytes.

        `n_features`: of a row, in all layers and sites.
        """

    @property
    def inner_sizes(self) -> Mapping[str, int]:
        """Return the features of a vector at each site inside the blocks that is known."""
        return {}

    def site_sizes(self, sites: Sequence[str]) -> dict[str, int]:
        """Return the features of a vector at each of these sites, in the order of SITES.

        Raises ModelError for a site that this model does not have.
        """
        sizes = {RESIDUAL: self.info.hidden_size} | (dict(self.inner_sizes) if set(sites) - {RESIDUAL} else {})
        for site in sites:
            if site not in sizes:
                raise ModelError(
                    f"{self.info.architecture} has no site {site}: only the site residual can be stored of it"
                )
        return {site: sizes[site] for site in SITES if site in sites}


def check_arguments(
    info: ModelInfo, layers: Sequence[int], pooling: str, batch_subwords: int = 1, attention_window: int | None = None
) -> tuple[int, ...]:
    """Return the layers as integers; raises InvalidValueError, in one line, for an argument that is not allowed."""
    chosen = resolve_layers(layers, range(info.num_hidden_layers + 1), absent=f"of {info.name!r} does not exist")
    if len(set(chosen)) < len(chosen):
        raise InvalidValueError(f"the layers {list(chosen)} are not allowed: name each once")
    check_choice("pooling", pooling, POOLINGS)
    check_whole("batch subwords", batch_subwords, 1, MAX_BATCH_SUBWORDS)
    if attention_window is not None:
        check_whole("attention window", attention_window, 0, unit="words")
    return chosen


def subwords_within(name: str, length: int, info: ModelInfo, n_specials: int) -> int:
    """Return the subwords of a context of a given length, without special ones; `name`: of the length, for errors.

    Raises InvalidValueError if nothing fits, or if the model accepts fewer.
    """
    most = info.max_subwords
    if length <= n_specials:
        raise InvalidValueError(
            f"{name} {length} leaves no space for words: the model adds {n_specials} special subwords to a sentence; "
            f"give {n_specials + 1} or more"
        )
    if most is not None and length > most + n_specials:
        raise InvalidValueError(f"{name} {length} is more than the model accepts: give {most + n_specials} or less")
    return length - n_specials


def indptr(lengths: Indices) -> Indices:
    """Return the bounds of consecutive runs of `lengths`: int64 [n + 1]."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds
