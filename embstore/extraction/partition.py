"""The rows of a group of partitions as text for the model: a part of the index, and its sentences in passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.keep import rank_in_run
from embstore.errors import StoreDamagedError
from embstore.extraction.windows import Fan, Targets, copy_words, cut_windows
from embstore.models.encoder import Encoder, Spans, Tokenized, indptr, ragged_indices
from embstore.spacing import split_marked
from embstore.store import Index, Metadata, Strings
from embstore.store.index import Contexts
from embstore.store.layout import Layout

PASSAGE_NBYTES = 2**20  # text tokenized and batched at a time, for batches of up to PASSAGE_BATCH subwords
PASSAGE_BATCH = 8192
PASSAGE_WORDS = 2**20  # the words of all windows cut from a passage, at most
MAX_POOLED = int(np.iinfo(np.int16).max)  # subwords of a row, as they are stored
WORD_NBYTES = 8  # of the text of a context, about
BATCHES_OF_A_LENGTH = 128  # a passage is this many batches long, so that windows of one length fill some
GROUP_BATCHES = 2  # a group has rows for this many batches of one position a row, or more positions
GROUP_NBYTES = 2**31  # at most, since two groups are in memory at a time
FEW_GROUPS = 4  # at least, as far as there are partitions: the last one is written while nothing else is left to do

_Read = tuple[slice, Tokenized, NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Groups:
    """Consecutive partitions that are encoded together, `size` at a time: the unit of batches, resume and repair.

    Batches are made of the rows of one group and depend on nothing else, so that a partition has the same bytes
    in any process, and after any interruption. `layout`: of any site.
    """

    layout: Layout
    size: int

    @classmethod
    def of(cls, metadata: Metadata) -> Groups:
        """Return the groups of a store, which are recorded in its metadata."""
        return cls(metadata.layout, metadata.extraction["group_partitions"])

    def __len__(self) -> int:
        return -(-self.layout.n_partitions // self.size)

    def partitions(self, group: int) -> range:
        """Return the partitions of a group."""
        return range(group * self.size, min((group + 1) * self.size, self.layout.n_partitions))

    def span(self, group: int) -> tuple[int, int]:
        """Return the rows `[start, stop)` of a group."""
        partitions = self.partitions(group)
        return self.layout.span(partitions[0])[0], self.layout.span(partitions[-1])[1]


def group_partitions(n_partitions: int, *, partition_rows: int, partition_nbytes: int, batch_subwords: int) -> int:
    """Choose the partitions of a group: enough rows to fill batches, as far as memory allows.

    With all layers of a large model a partition has a few hundred rows, and a batch tens of thousands. `n_partitions`:
    of one site; `partition_nbytes`: of all sites.
    """
    wanted = -(-GROUP_BATCHES * batch_subwords // partition_rows)
    return max(1, min(wanted, GROUP_NBYTES // partition_nbytes, n_partitions // FEW_GROUPS))


@dataclass(frozen=True)
class Passage:
    """Consecutive contexts of a group, tokenized, with the spans to pool and the rows that get their vectors.

    `sentence_of_row`: int64 [n_rows], counted over the store. `fan`: which of the rows, counted from `first_row`, has
    which span; None if span i belongs to row i.
    """

    first_row: int
    sentence_of_row: NDArray[np.int64]
    tokenized: Tokenized
    spans: Spans
    fan: Fan | None = None

    @property
    def n_rows(self) -> int:
        return len(self.sentence_of_row)

    def rows_of(self, spans: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the rows of some spans, and the index of each in `spans` (None: one row each)."""
        return (None, spans) if self.fan is None else self.fan.rows_of(spans)


@dataclass(frozen=True)
class TextOptions:
    """What decides how rows become passages, besides the encoder.

    `limit`: the longest context in subwords, without special ones. `window`: the context window; None if contexts are
    not cut into windows. `batch_subwords` decides how much text a passage has.
    `cls_place`: where the vector of a sentence is that of [CLS], see `Encoder.cls_place`.
    """

    unit: str
    limit: int
    window: int | None = None
    batch_subwords: int = 0
    cls_place: int | None = None


@dataclass(frozen=True)
class Part:
    """Consecutive rows `[start, stop)` of a store with all that is needed to encode them again.

    `index`: that of the sentences that contain these rows and their contexts, counted from row `first_row` and
    sentence `first_sentence` of the store. A part depends on the index alone and can be sent to any process; with the
    same model and options it gives the same batches there.
    """

    start: int
    stop: int
    first_row: int
    first_sentence: int
    index: Index

    @classmethod
    def of(cls, index: Index, start: int, stop: int) -> Part:
        """Copy the rows `[start, stop)` out of the index of a store."""
        first, last = int(index.sentence[start]), int(index.sentence[stop - 1]) + 1
        contexts = index.contexts
        if contexts is not None:
            chosen = slice(*(np.searchsorted(contexts.indptr, [start + 1, stop]) - [1, 0]).tolist())
            begins, ends = contexts.start[chosen], contexts.stop[chosen]
            first = int(np.searchsorted(index.word_indptr, begins[0], "right")) - 1
            last = int(np.searchsorted(index.word_indptr, ends[-1]))
            base, base_row = index.word_indptr[first], index.indptr[first]
            bounds = contexts.indptr[chosen.start : chosen.stop + 1] - base_row
            contexts = Contexts(begins - base, ends - base, bounds)
        rows = slice(int(index.indptr[first]), int(index.indptr[last]))
        bytes_of = np.asarray(index.texts.offsets[first : last + 1])
        types, renumbered = np.unique(np.asarray(index.type[rows]), return_inverse=True)
        own = Index.of(
            type=renumbered.astype(np.int32),
            sentence=np.asarray(index.sentence[rows]) - first,
            position=np.array(index.position[rows]),
            subwords=np.array(index.subwords[rows]),
            words=_select_strings(index.words, types.astype(np.int64)),
            texts=Strings(bytes_of - bytes_of[0], np.array(index.texts.data[bytes_of[0] : bytes_of[-1]])),
            indptr=np.asarray(index.indptr[first : last + 1]) - rows.start,
            source=np.array(index.source[first:last]),
            contexts=contexts,
        )
        return cls(start, stop, rows.start, first, own)

    @property
    def n_rows(self) -> int:
        return self.stop - self.start

    def passages(
        self,
        encoder: Encoder,
        options: TextOptions,
        *,
        is_needed: Callable[[int, int], bool] = lambda start, stop: True,
    ) -> Iterator[Passage]:
        """Yield the rows passage by passage, without passages of which no row is needed.

        `is_needed`: whether any of the rows `[start, stop)` of the store is.
        """
        sizes = self._sizes()
        widths = None if options.unit == "subword" else self.index.words.n_words()
        window_words = None if options.window is None else self._cumulative_window_words(options.window)
        most_nbytes, most_words = passage_nbytes(options.batch_subwords), passage_words(options.batch_subwords)
        first, n_contexts = 0, len(sizes) - 1
        while first < n_contexts:
            last = int(np.searchsorted(sizes, int(sizes[first]) + most_nbytes, "right")) - 1
            if window_words is not None:
                most = int(window_words[first]) + most_words
                last = min(last, int(np.searchsorted(window_words, most, "right")) - 1)
            last = max(first + 1, last)
            rows = np.clip(self._bounds[[first, last]] + self.first_row, self.start, self.stop)
            if is_needed(*rows.tolist()):
                yield self._passage(first, last, encoder, options, widths)
            first = last

    @property
    def _bounds(self) -> NDArray[np.int64]:
        """Return where the rows of each context begin and end, counted from `first_row`."""
        contexts = self.index.contexts
        return self.index.indptr if contexts is None else contexts.indptr

    def _sizes(self) -> NDArray[np.int64]:
        """Return the bytes of the contexts, about, as cumulative sums."""
        contexts = self.index.contexts
        return self.index.texts.offsets if contexts is None else indptr(WORD_NBYTES * (contexts.stop - contexts.start))

    def _cumulative_window_words(self, width: int) -> NDArray[np.int64]:
        """Return how many words the windows of the contexts have at most, as cumulative sums."""
        longest = np.diff(self._sizes()) // 2 + 1
        return indptr(np.diff(self._bounds) * np.minimum(2 * width + 1, longest))

    def _passage(
        self, first: int, last: int, encoder: Encoder, options: TextOptions, widths: NDArray[np.int64] | None
    ) -> Passage:
        index = self.index
        read = self._sentences if index.contexts is None else self._contexts
        rows, tokenized, context, position = read(first, last, encoder)
        targets = self._targets(rows, context, position, tokenized, widths, options)
        self._check(rows, targets)
        start, stop = self.start - self.first_row, self.stop - self.first_row
        own = slice(max(start - rows.start, 0), min(stop, rows.stop) - rows.start)
        targets = targets[own]
        is_cut = encoder.causal and options.window is None
        limits: int | NDArray[np.int64] = options.limit
        if is_cut:  # after the last target, and after the sentence where a special subword there is a target
            ends = np.ones(len(tokenized.sentence_indptr) - 1, np.int64)
            np.maximum.at(ends, targets.sentence, targets.stop)
            limits = np.minimum(limits, ends)
        cut = truncated(tokenized, limits)
        first_row = self.first_row + rows.start + own.start
        sentence_of_row = np.asarray(index.sentence[rows][own]) + self.first_sentence
        if options.window is None:
            spans = Spans(targets.sentence, targets.start, targets.stop)
            return Passage(first_row, sentence_of_row, cut, spans)
        return Passage(first_row, sentence_of_row, *cut_windows(cut, targets, options.window, causal=encoder.causal))

    def _sentences(self, first: int, last: int, encoder: Encoder) -> _Read:
        """Read some sentences: their rows, their subwords, and of each row the sentence and the position in it."""
        index = self.index
        rows = slice(int(index.indptr[first]), int(index.indptr[last]))
        tokenized = encoder.tokenize([split_marked(text) for text in index.texts.slice(first, last)])
        return rows, tokenized, np.asarray(index.sentence[rows]) - first, np.asarray(index.position[rows], np.int64)

    def _contexts(self, first: int, last: int, encoder: Encoder) -> _Read:
        """Read some contexts: their rows, their subwords, and of each row the context and the position in it."""
        index, contexts = self.index, self.index.contexts
        assert contexts is not None
        bounds, starts, stops = contexts.indptr[first : last + 1], contexts.start[first:last], contexts.stop[first:last]
        rows = slice(*bounds[[0, -1]].tolist())
        begin = int(np.searchsorted(index.word_indptr, starts[0], "right")) - 1
        end = int(np.searchsorted(index.word_indptr, stops[-1]))
        base = index.word_indptr[begin]
        sentences = encoder.tokenize([split_marked(text) for text in index.texts.slice(begin, end)])
        context = np.repeat(np.arange(last - first), np.diff(bounds))
        position = index.word_indptr[index.sentence[rows]] + index.position[rows] - starts[context]
        return rows, copy_words(sentences, starts - base, stops - base), context, position

    def _targets(
        self,
        rows: slice,
        sentence: NDArray[np.int64],
        position: NDArray[np.int64],
        tokenized: Tokenized,
        widths: NDArray[np.int64] | None,
        options: TextOptions,
    ) -> Targets:
        index = self.index
        first, last = tokenized.sentence_indptr[sentence], tokenized.sentence_indptr[sentence + 1]
        word = first + np.clip(
            position, 0, last - first - 1
        )  # special subwords are before the first and after the last
        base = tokenized.word_indptr[first]
        begin = tokenized.word_indptr[word] - base
        if widths is not None:
            after = np.minimum(word + widths[index.type[rows]], last)
            stop = tokenized.word_indptr[after] - base
        else:
            places = rank_in_run((sentence << 32) + position)  # of each row among those of its word
            run = np.cumsum(places == 0) - 1
            counts = np.bincount(run)[run]
            after = np.searchsorted(tokenized.word_indptr, base + begin + counts, "left")
            begin, stop = begin + places, begin + places + 1
        lengths = np.minimum(tokenized.word_indptr[last] - base, options.limit)
        if options.unit == "sentence":
            stop = np.minimum(stop, np.minimum(lengths, begin + MAX_POOLED))
            if (place := options.cls_place) is not None:
                begin = np.full_like(begin, place) if place < 0 else lengths + place
                stop = begin + 1
        special = np.flatnonzero((position < 0) | (position >= last - first))
        places = position[special]
        begin[special] = np.where(places < 0, places, lengths[special] + places - (last - first)[special])
        stop[special] = begin[special] + 1
        return Targets(sentence, begin, stop, word, after)

    def _check(self, rows: slice, targets: Targets) -> None:
        """Check that the tokenizer still returns the subword counts recorded by the plan."""
        counts, recorded = targets.stop - targets.start, self.index.subwords[rows]
        wrong = np.flatnonzero(counts != recorded)
        if len(wrong):
            row = rows.start + int(wrong[0])
            raise StoreDamagedError(
                f"row {self.first_row + row} (sentence {self.first_sentence + int(self.index.sentence[row])}) has "
                f"{int(counts[wrong[0]])} subwords, the index says {int(recorded[wrong[0]])}: "
                "the index is damaged or the tokenizer has changed; run embstore verify"
            )


def _select_strings(strings: Strings, chosen: NDArray[np.int64]) -> Strings:
    starts = strings.offsets[chosen]
    lengths = strings.offsets[chosen + 1] - starts
    return Strings(indptr(lengths), np.asarray(strings.data[ragged_indices(starts, lengths)]))


def passage_words(batch_subwords: int) -> int:
    """Return how many words the windows of a passage have at most, unless a single sentence has more."""
    return max(PASSAGE_WORDS, BATCHES_OF_A_LENGTH * batch_subwords)


def passage_nbytes(batch_subwords: int) -> int:
    """Return the size of a passage's text: enough for many batches, since a device idles between two passages."""
    return PASSAGE_NBYTES * max(1, batch_subwords // PASSAGE_BATCH)


def truncated(tokenized: Tokenized, limit: int | NDArray[np.int64]) -> Tokenized:
    """Cut every sentence to its first `limit` subwords, or its own limit; words beyond are left without subwords."""
    base = tokenized.word_indptr[tokenized.sentence_indptr]
    lengths = np.diff(base)
    limits = np.minimum(lengths, limit)
    if (lengths == limits).all():
        return tokenized
    n_words = np.diff(tokenized.sentence_indptr)
    inner = np.minimum(tokenized.word_indptr[1:] - np.repeat(base[:-1], n_words), np.repeat(limits, n_words))
    before = indptr(limits)[:-1]
    word_indptr = np.append(np.int64(0), inner + np.repeat(before, n_words))
    inside = np.arange(len(tokenized.ids), dtype=np.int64) < np.repeat(base[:-1] + limits, lengths)
    types = None if tokenized.types is None else tokenized.types[inside]
    return Tokenized(tokenized.ids[inside], word_indptr, tokenized.sentence_indptr, types)
