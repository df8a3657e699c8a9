"""One pass over a corpus: the columns of every word that may get a row, spooled to disk."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, takewhile
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import Corpus
from embstore.corpus.keep import blocks_of
from embstore.corpus.sentence import PAIR, Document, Sentence, is_encodable
from embstore.errors import CorpusError, InvalidValueError, ModelError, StorageError, quoted
from embstore.extraction.options import CLS, ExtractionOptions
from embstore.extraction.partition import MAX_POOLED
from embstore.models.encoder import Encoder, Indices, Scope, Split, ragged_indices, word_characters
from embstore.store.index import KINDS, SPECIAL, Field, field_text
from embstore.store.metadata import Dropped
from embstore.store.storage.files import TOO_MANY_FILES, allow_files
from embstore.store.strings import Strings

BLOCK = 2**16  # entries of a column that are handled at a time
BLOCK_SENTENCES = 4096
SPARE_FILES = 64  # that may be opened besides the columns
SAMPLE_SENTENCES = 256
LONG_TEXT = 2**20  # characters of a document that is tokenized in parts, where an exact check finds a place for a cut
CUT_CHECK = 2**12  # characters on both sides of a cut that the check reads
CUT_TRIES = 16
NO_SUBWORD = "no subword: the tokenizer or the table has none, or one that begins in the word before"
TOO_LONG = "beyond the length limit"
NOT_CHOSEN = "not chosen: excluded by the options that select occurrences"
MAX_EXAMPLES = 5


class Column:
    """A column in a temporary file without a name, which vanishes with the object or its process.

    It grows on disk block by block, so that a plan of any size needs little memory, and is read back memory-mapped. The
    first block fixes its dtype.
    """

    def __init__(self, blocks: Iterable[NDArray[Any]] = ()) -> None:
        self._dtype: np.dtype[Any] | None = None
        self._length = 0
        with _storing():
            allow_files(SPARE_FILES)
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._length

    def append(self, values: NDArray[Any], begin: int = 0) -> None:
        """Add values to the end, or from `begin` on: what is missing before them is -1."""
        self._dtype = values.dtype if self._dtype is None else self._dtype
        missing = (np.full(some.stop - some.start, -1) for some in blocks_of(begin - self._length, BLOCK))
        for block in chain(missing, [values]):
            with _storing():
                self._file.write(np.ascontiguousarray(block, self._dtype).data)
            self._length += len(block)

    @property
    def values(self) -> NDArray[Any]:
        """All values, which stay valid without the column; it must have had a block."""
        assert self._dtype is not None
        if not self._length:
            return np.empty(0, self._dtype)
        with _storing():
            self._file.flush()
        return np.memmap(self._file, self._dtype, "r", shape=(self._length,)).view(np.ndarray)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise StorageError(f"a column of the plan cannot be opened: {TOO_MANY_FILES}") from error
        message = f"the columns of the plan do not fit into {tempfile.gettempdir()}: {error.strerror}"
        raise StorageError(f"{message}; make space there or set TMPDIR to a larger folder") from error


def numbering() -> defaultdict[str, int]:
    """Return a table that numbers strings in the order in which they are first looked up."""
    return defaultdict(count().__next__)


class Documents:
    """Numbers the documents of sentences, and the distinct values of each field.

    `n`: the documents so far. `numbers`: field -> its distinct values, of each type, and their numbers. `fields`: made
    by `finish`; empty if no sentence has a document.
    """

    def __init__(self) -> None:
        self.n, self.any_given = 0, False
        self.number = Column()  # of each sentence
        self.numbers: dict[str, defaultdict[Any, int]] = {}
        self.fields: dict[str, Field] = {}
        self._codes: dict[str, Column] = {}
        self._last: Document | None = None

    def add(self, documents: Sequence[Document | None]) -> None:
        """Add the documents of consecutive sentences."""
        numbers = np.empty(len(documents), np.int64)
        first, codes = self.n, dict[str, NDArray[np.int32]]()
        for at, document in enumerate(documents):
            if document is None or document is not self._last:
                for name, value in (document.fields if document is not None else {}).items():
                    if name not in codes:
                        codes[name] = np.full(len(documents), -1, np.int32)
                    codes[name][self.n - first] = self._number(name, value)
                self.n += 1
            self._last = document
            numbers[at] = self.n - 1
        self.any_given = self.any_given or any(document is not None for document in documents)
        self.number.append(numbers)
        for name, own in codes.items():
            self._codes[name].append(own[: self.n - first], first)

    def _number(self, name: str, value: Any) -> int:
        if name not in self.numbers:
            self.numbers[name], self._codes[name] = numbering(), Column()
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or (isinstance(value, float) and isnan(value)):
            return -1
        if isinstance(value, bool | int | float):
            return self.numbers[name][type(value), value]  # 1, 1.0 and True are equal
        if isinstance(value, str) and is_encodable(value):
            return self.numbers[name][str, value]
        allowed = "text, a number, true, false or None"
        raise CorpusError(f"document {self.n} has the field {name!r} {quoted(value)}: a value is {allowed}")

    def finish(self, digest: Any) -> None:
        """Sort the values of each field, renumber its codes, and add all to the digest of the corpus."""
        if self.any_given:
            digest.update(self.number.values)
        for name, numbers in self.numbers.items():
            kind = _kind_of(list(numbers))
            texts = [_text_of(value, kind) for _, value in numbers]
            ascending = sorted(set(texts), key=KINDS[kind])
            places = {text: place for place, text in enumerate(ascending)}
            new = np.array([*(places[text] for text in texts), -1], np.int32)
            self._codes[name].append(new[:0], self.n)
            old = self._codes.pop(name).values
            codes = Column(new[old[block]] for block in blocks_of(self.n, BLOCK)).values
            names = Strings.of(ascending)
            self.fields[name] = Field(codes, names, kind)
            for part in (f"\0{name}\0{kind}\0".encode(), names.offsets, names.data, codes):
                digest.update(part)
            numbers.clear()


def _kind_of(keys: list[Any]) -> str:
    """Return the kind of values: that of all, float for numbers of both types, else str."""
    types = {kind for kind, _ in keys}
    if types == {int} and all(-(2**63) <= key[1] < 2**63 for key in keys):
        return "int"
    if types and types <= {int, float} and all(abs(key[1]) < 2**1023 or key[0] is float for key in keys):
        return "float"
    return "bool" if types == {bool} else "str"


def _text_of(value: Any, kind: str) -> str:
    if isinstance(value, str):
        return value
    return field_text(float(value) + 0.0 if kind == "float" else value)  # no -0.0


class Survey:
    """The content of a corpus, as columns by name.

    One entry for each unit (a word, phrase, subword or sentence): `type`, `sentence` (its number in the corpus),
    `position`, `first` (its first subword, counted from the sentence's first), `subwords`, `label/<column>`, and of
    subwords `id`. One for each sentence: `context` (a hash of its words), `whole` (whether it is never divided), and
    how many it has, `n_words`, `n_subwords` and `n_bytes`. The parts of `embstore.store.text.Text` by their names
    there, of `pieces` the bytes. `any_long`: whether a text is longer than the limit and may be divided. `n_shared`:
    subwords that two words share. `longest`: subwords of the longest context. `specials`: spellings of special
    subwords, the label column SPECIAL, if these are units. `sample`: the first sentences.
    """

    def __init__(self, *, specials: bool = False) -> None:
        self.columns: defaultdict[str, Column] = defaultdict(Column)
        self.types = numbering()
        self.specials = numbering() if specials else None
        self.labels: dict[str, defaultdict[str, int]] = {}
        self.n_sentences = self.n_words = self.n_subwords = self.n_shared = self.longest = 0
        self.any_long = False
        self.dropped: dict[str, Dropped] = {}
        self.sample: list[Sentence] = []
        self.documents = Documents()
        self.digest = hashlib.sha256()

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column].values

    @property
    def all_labels(self) -> dict[str, defaultdict[str, int]]:
        """The label columns, that of special subwords first."""
        return ({} if self.specials is None else {SPECIAL: self.specials}) | self.labels

    @property
    def n_units(self) -> int:
        return len(self.columns["type"])


def survey(
    corpus: Corpus, encoder: Encoder, options: ExtractionOptions, *, limit: int, report: Callable[[int], object]
) -> Survey:
    """Read a corpus once; `limit`: the longest context in subwords, without special ones.

    `report`: called with the number of sentences read.
    """
    content = Survey(specials=options.specials)
    for block in _blocks(corpus.sentences(encoder.write_chat), encoder, options.scope):
        _survey_block(content, block, encoder, options, limit=limit)
        report(content.n_sentences)
        del block  # or it would be held while the next one is read
    if both := content.documents.numbers.keys() & content.all_labels:
        raise CorpusError(f"{min(both)!r} is both a label column and a field of documents: rename one")
    content.documents.finish(content.digest)
    for column, names in content.labels.items():
        content.digest.update("\0".join([column, *names]).encode())
    return content


def _blocks(sentences: Iterable[Sentence], encoder: Encoder, scope: Scope) -> Iterator[list[Sentence]]:
    """Yield the sentences that are tokenized together: those of one text are in one block, unless it is very long."""
    block: list[Sentence] = []
    n_characters, most = 0, LONG_TEXT  # of the last text
    for sentence in sentences:
        document = sentence.document
        continues = bool(block) and document is not None and document is block[-1].document
        is_text = continues and document is not None and (scope == "document" or document.ids is not None)
        if not is_text:
            n_characters, most = 0, LONG_TEXT
            if len(block) >= BLOCK_SENTENCES:
                yield block
                block = []
        block.append(sentence)
        n_characters += len(sentence.text)
        if is_text and n_characters > most:
            if cut := _cut(block, encoder):
                yield block[:cut]
                block = block[cut:]
                n_characters, most = sum(len(each.text) for each in block), LONG_TEXT
            else:
                most *= 2
    if block:
        yield block


def _cut(block: Sequence[Sentence], encoder: Encoder) -> int:
    """Return where the last document of a block can be divided so that its subwords stay the same; 0 for nowhere."""
    document = block[-1].document
    if document is None or document.ids is not None:
        return 0
    first = len(block) - len(list(takewhile(lambda sentence: sentence.document is document, reversed(block))))
    text = "".join(sentence.text for sentence in block[first:])
    starts = [0, *accumulate(len(sentence.text) for sentence in block[first:-1])]
    places = [at for at in range(len(starts) - 1, 0, -1) if len(text) - starts[at] >= CUT_CHECK]
    for at in places[:CUT_TRIES]:
        begin = starts[max(0, bisect_right(starts, starts[at] - CUT_CHECK) - 1)]
        if encoder.cut_is_exact(text[begin : starts[at]], text[starts[at] :]):
            return first + at
    return 0


def _survey_block(
    content: Survey, block: Sequence[Sentence], encoder: Encoder, options: ExtractionOptions, *, limit: int
) -> None:
    _, starts, stops = word_characters(block)
    has_pairs = bool((starts == stops).any())
    if has_pairs:
        _check_pairs(encoder, options)
    split, n_shared = _placed(
        encoder.tokenize(block, scope=options.scope, by=options.tokenize), owned=options.pooling in ("first", "last")
    )
    content.n_shared += n_shared
    content.documents.add([sentence.document for sentence in block])
    separated = np.zeros(0, np.int64)
    if options.pack is not None:
        documents, n_read = content.documents.number.values, content.n_sentences
        before = int(documents[n_read - 1]) if n_read else 0
        split, separated = _with_separators(split, documents[n_read:], before, encoder.separator(options.pack))
    units = _Units.of(block, split, starts == stops, options.unit, limit)
    forms = _forms(block, units, split, encoder)
    _add_text(content, block, split, starts, stops, spans=options.unit == "subword")
    sizes, marks, lengths = units.stop - units.start, units.in_pair, np.diff(split.bounds)
    is_whole = np.array([options.unit == "sentence" or (has_pairs and PAIR in each.words) for each in block])
    content.columns["whole"].append(is_whole)
    empty = sizes <= 0
    long = (sizes > min(limit, MAX_POOLED)) | (is_whole[units.sentence] & (units.stop > limit))
    usable = ~empty & ~long & (~marks | options.specials)
    if options.unit == "subword":
        usable[separated] = False
    for mask, reason in ((empty & ~long & ~marks, NO_SUBWORD), (long & ~marks, TOO_LONG)):
        _count_dropped(content, units, forms, mask, reason)
    content.any_long = content.any_long or bool((lengths[~is_whole] > limit).any())
    content.longest = max(content.longest, int(lengths.max(initial=0)))
    some = block[: SAMPLE_SENTENCES - len(content.sample)]
    content.sample.extend(replace(sentence, labels={}, targets=(), document=None) for sentence in some)

    columns: dict[str, NDArray[Any]] = {
        "type": np.fromiter(map(content.types.__getitem__, forms), np.int32, len(forms)),
        "sentence": units.sentence + content.n_sentences,
        "position": units.position.astype(np.int32),
        "first": units.start.astype(np.int32),
        "subwords": (np.ones_like(sizes) if options.pooling == CLS else sizes).astype(np.int16),
        **_labels(content, block, units),
    }
    if options.unit == "subword":
        columns["id"] = split.ids
    if content.specials is not None:
        codes = columns[f"label/{SPECIAL}"] = np.full(len(forms), -1, np.int32)
        codes[marks] = [content.specials[forms[at]] for at in np.flatnonzero(marks).tolist()]
    columns = {name: values[usable] for name, values in columns.items()}
    if content.specials is not None:
        columns = _with_specials(content, columns, encoder, np.diff(split.indptr), lengths)
    n_before = content.n_units
    for name, values in columns.items():
        content.columns[name].append(values, n_before)
    content.n_sentences += len(block)
    content.n_words += int(split.indptr[-1])
    content.n_subwords += len(split.ids)


def _with_separators(split: Split, documents: Indices, before: int, separator: int) -> tuple[Split, Indices]:
    """Put a subword of no word before each document but the corpus's first; also returns their numbers.

    `documents`: of each sentence; `before`: of the sentence before.
    """
    begins = np.diff(documents, prepend=before) > 0
    counts, own = np.cumsum(begins), split.bounds[:-1][begins]
    shift = np.repeat(counts, np.diff(split.indptr))
    start, stop = (np.insert(side, own, 0) for side in (split.start, split.stop))
    ids, bounds = np.insert(split.ids, own, separator), split.bounds + np.append(0, counts)
    first, last = split.first + shift, split.last + shift
    packed = replace(split, ids=ids, bounds=bounds, first=first, last=last, start=start, stop=stop)
    return packed, own + np.arange(len(own))


def _placed(split: Split, *, owned: bool) -> tuple[Split, int]:
    """Put each word without a subword where the word before ends; also returns how many subwords words share.

    `owned`: words have only the subwords that begin in them.
    """
    some = split.last > split.first
    before = np.maximum.accumulate(np.append(0, np.where(some, split.last, 0)))[:-1]
    shared = np.where(some, np.minimum(before, split.last) - split.first, 0).clip(0)
    n_shared = len(np.unique(ragged_indices(split.first, shared)))
    first = np.maximum(split.first, before) if owned else split.first
    some &= split.last > first
    first = np.where(some, first, before)
    return replace(split, first=first, last=np.where(some, split.last, first)), n_shared


@dataclass(frozen=True)
class _Units:
    """What may get a row in a block of sentences: the subwords `[start, stop)` of each, counted from its sentence's.

    `first_word`: whose labels it has, counted over the block, -1 for none; `sentence`: counted in the block; `n_words`:
    of the unit. `in_pair`: whether it is the special subwords between the texts of a pair.
    """

    first_word: Indices
    sentence: Indices
    position: Indices
    start: Indices
    stop: Indices
    n_words: Indices
    in_pair: NDArray[np.bool_]

    @classmethod
    def of(cls, block: Sequence[Sentence], split: Split, is_mark: NDArray[np.bool_], unit: str, limit: int) -> _Units:
        """Return a unit for each word or phrase, sentence, or subword; `is_mark`: words between the texts of a pair.

        A sentence has its subwords within the limit. A subword is of the word in which it begins, and white space of
        the word before it.
        """
        indptr, bounds = split.indptr, split.bounds
        of_word = np.repeat(np.arange(len(block)), np.diff(indptr))
        heads = np.arange(indptr[-1])  # the first word of each word's phrase, or sentence
        if unit == "sentence":
            heads = indptr[of_word]
        for begin, sentence in zip(indptr.tolist(), block, strict=False):
            for one, after_one in sentence.targets if unit != "sentence" else ():
                heads[begin + one : begin + after_one] = begin + one
        if unit == "subword":
            number = np.repeat(np.arange(len(block)), np.diff(bounds))
            word = np.clip(split.words, indptr[number], np.maximum(indptr[number], indptr[number + 1] - 1))
            first, in_pair = heads[word], is_mark[word]
            start = np.arange(len(number)) - bounds[number]
            is_space = (split.start == split.stop) & ~in_pair
            ones = np.ones_like(start)
            position = first - indptr[number]
            return cls(np.where(is_space, -1, first), number, position, start, start + 1, ones, in_pair)
        first = np.flatnonzero(heads == np.arange(len(heads)))
        after = np.append(first[1:], indptr[-1])
        number = of_word[first]
        start, stop = split.first[first] - bounds[number], split.last[after - 1] - bounds[number]
        if unit == "sentence":
            start, stop = np.zeros_like(start), np.minimum(np.diff(bounds), min(limit, MAX_POOLED))[number]
        return cls(first, number, first - indptr[number], start, stop, after - first, is_mark[first])


def _check_pairs(encoder: Encoder, options: ExtractionOptions) -> None:
    if not encoder.takes_pairs:
        raise ModelError(f"{encoder.info.architecture} takes no pairs of sentences: give each sentence on its own")
    if options.context_window is not None or options.attention_window is not None or options.context != "sentence":
        raise InvalidValueError("pairs of sentences are encoded whole: leave out the context, and windows")


def _with_specials(
    content: Survey, columns: Mapping[str, NDArray[Any]], encoder: Encoder, n_words: Indices, n_subwords: Indices
) -> dict[str, NDArray[Any]]:
    """Add a row for each special subword of the sentences of a block that have a subword.

    Those before the first word have negative positions, those after the last the positions after its own.
    """
    assert content.specials is not None
    before, after = encoder.special_ids
    added = [*before, *after]
    spelled = list(map(encoder.subword_text, added))
    places = np.arange(len(added)) - len(before)
    sentences = np.flatnonzero(n_subwords)
    new: dict[str, Any] = {
        "type": [content.types[form] for form in spelled],
        f"label/{SPECIAL}": [content.specials[form] for form in spelled],
        "id": added,
        "subwords": 1,
        "sentence": sentences[:, None] + content.n_sentences,
        "position": np.where(places < 0, places, places + n_words[sentences, None]),
        "first": np.where(places < 0, 0, n_subwords[sentences, None] - 1),
    }
    shape = (len(sentences), len(added))
    joined = {
        name: np.append(values, np.broadcast_to(new.get(name, -1), shape)).astype(values.dtype)
        for name, values in columns.items()
    }
    order = np.lexsort((joined["position"], joined["sentence"]))
    return {name: values[order] for name, values in joined.items()}


def _forms(block: Sequence[Sentence], units: _Units, split: Split, encoder: Encoder) -> Sequence[str]:
    words = list(chain.from_iterable(sentence.words for sentence in block))
    if not units.in_pair.any() and np.array_equal(units.first_word, np.arange(len(words))):
        return words
    words.append("")  # of white space
    spans = zip(units.first_word.tolist(), units.n_words.tolist(), strict=True)
    forms = [words[first] if size == 1 else " ".join(words[first : first + size]) for first, size in spans]
    for unit in np.flatnonzero(units.in_pair).tolist():
        begin = int(split.bounds[units.sentence[unit]])
        ids = split.ids[begin + int(units.start[unit]) : begin + int(units.stop[unit])].tolist()
        forms[unit] = "".join(map(encoder.subword_text, ids))
    return forms


def _add_text(
    content: Survey, block: Sequence[Sentence], split: Split, starts: Indices, stops: Indices, *, spans: bool
) -> None:
    """Add the text of a block, with the characters of subwords if these are `spans`."""
    pieces = [sentence.text.encode() for sentence in block]
    sizes = np.fromiter(map(len, pieces), np.int32, len(pieces))
    data = np.frombuffer(b"".join(pieces), np.uint8)
    starts, stops = starts.astype(np.int32), stops.astype(np.int32)
    hashes = [hashlib.blake2b(" ".join(sentence.words).encode(), digest_size=8).digest() for sentence in block]
    columns: dict[str, NDArray[Any]] = {
        "pieces": data,
        "n_bytes": sizes,
        "start": np.fromiter((sentence.start for sentence in block), np.int32, len(block)),
        "stop": np.fromiter((sentence.stop for sentence in block), np.int32, len(block)),
        "n_words": np.diff(split.indptr).astype(np.int32),
        "n_subwords": np.diff(split.bounds).astype(np.int32),
        "word_start": starts,
        "word_stop": stops,
        "word_subword": (split.first - np.repeat(split.bounds[:-1], np.diff(split.indptr))).astype(np.int32),
        "word_subwords": np.minimum(split.last - split.first, MAX_POOLED).astype(np.int16),
        "ids": split.ids,
        "context": np.frombuffer(b"".join(hashes), np.uint64),
    }
    if spans:
        columns |= {"subword_start": split.start, "subword_stop": split.stop}
    for name, values in columns.items():
        content.columns[name].append(values)
    targets = [[number, *target] for number, sentence in enumerate(block) for target in sentence.targets]
    for part in (sizes, data, starts, stops, split.indptr, np.array(targets, np.int64).ravel()):
        content.digest.update(part.data)
    given = [sentence.document for sentence in block if sentence.document and sentence.document.ids is not None]
    for document in dict.fromkeys(given):
        content.digest.update(np.array(document.ids, np.int64).data)


def _labels(content: Survey, block: Sequence[Sentence], units: _Units) -> dict[str, NDArray[np.int32]]:
    codes_of = {}
    for column in dict.fromkeys(chain.from_iterable(sentence.labels for sentence in block)):
        if content.specials is not None and column == SPECIAL:
            raise CorpusError(f"the corpus has a label column {SPECIAL!r}, and so have special tokens: rename it")
        content.labels.setdefault(column, numbering())
    for column, names in content.labels.items():
        labels = chain.from_iterable(
            sentence.labels[column] if column in sentence.labels else [None] * len(sentence.words) for sentence in block
        )
        of_words = np.array([*(-1 if label is None else names[label] for label in labels), -1], np.int32)
        codes_of[f"label/{column}"] = of_words[units.first_word]
        content.digest.update(of_words.data)
    return codes_of


def _count_dropped(content: Survey, units: _Units, forms: Sequence[str], mask: NDArray[np.bool_], reason: str) -> None:
    n_dropped = int(mask.sum())
    if not n_dropped:
        return
    examples = [
        f"{forms[at]!r} (sentence {units.sentence[at] + content.n_sentences}, position {units.position[at]})"
        for at in np.flatnonzero(mask)[:MAX_EXAMPLES].tolist()
    ]
    before = content.dropped.get(reason, Dropped(reason, 0, ()))
    content.dropped[reason] = Dropped(reason, before.count + n_dropped, (*before.examples, *examples)[:MAX_EXAMPLES])
