"""Running text as paragraphs, sentences and words: sentencex finds the sentences, spaCy's rules the words."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from itertools import accumulate, chain, combinations, pairwise, starmap
from pkgutil import iter_modules
from typing import Any

from embstore.corpus.sentence import KINDS, Document, Sentence, check_sentence
from embstore.errors import CorpusError, InvalidValueError, quoted

SPLITS = ("sentences", "lines")
WORDS = ("punctuation", "spaces")
MAX_PIECE = 2**18  # characters that are split at a time
MAX_WORD = 500  # characters without white space; spaCy's time grows with their square
MAX_RUNS = 2**17  # of characters whose words are remembered, about 50 MB
SEGMENTERS = {  # languages without spaces, or that spaCy leaves to a package, and what to install
    "ja": "sudachipy sudachidict_core",
    "ko": "natto-py",
    "th": "pythainlp",
    "vi": "pyvi",
    "zh": "jieba",
}
_RUN = re.compile(r"\S+")
_LONG_RUN = re.compile(rf"\S{{{MAX_WORD + 1},}}")
_WHITE = re.compile(r"\s")
_HYPHENS = re.compile("(--?)")
_PLAIN = re.compile('([“"‘]?)([A-Za-z]+(?:--?[A-Za-z]+){0,3})((?:(?<=[a-z])[.]|[,;!?])?[”"’]?)')
_LETTER = r"[^\W\d_]"
_CLOSING = "\"'”’»)]*_"


@dataclass(frozen=True)
class Splitter:
    """How text becomes sentences and words; the names are those of `open_corpus`."""

    split: str = "sentences"
    words: str = "punctuation"
    language: str = "en"

    def document(self, document: Document, *, apart: bool = False) -> Iterator[Sentence]:
        """Yield the sentences of a document that has its text, with the words, targets and labels of its spans.

        No word goes over an edge of a label's span, unless the words are spans themselves; with `apart` no sentence.
        Raises InvalidValueError for spans that do not fit together.
        """
        if document.spans:
            return self._with_spans(document, apart)
        return self.read(_blocks(document.text or ""), document)

    def read(self, texts: Iterable[str], document: Document) -> Iterator[Sentence]:
        """Yield the sentences of the text of a file, which comes in parts of any size; see docs/how-to/corpora.md."""
        words: list[str] = []
        starts: list[int] = []
        piece: list[str] = []  # the last sentence and the white space after it
        start = stop = 0
        for part in self._parts(texts):
            own, places = self._words(part)
            if not own:
                piece.append(part)
                continue
            first, last = places[0], places[-1] + len(own[-1])
            if self.split == "lines":
                first, last = 0, len(part.removesuffix("\n").removesuffix("\r"))
            if words:
                piece.append(part[:first])
                yield Sentence(words, {}, (), document, "".join(piece), starts, start, stop)
                piece, shift = [part[first:]], -first
            else:
                shift = sum(map(len, piece))
                piece.append(part)
            words, starts = own, [at + shift for at in places] if shift else places
            start, stop = first + shift, last + shift
        if words:
            yield Sentence(words, {}, (), document, "".join(piece), starts, start, stop)

    def sentence(self, text: str) -> Sentence | None:
        """Return a text as one sentence; None if it is white space."""
        words, starts = self._words(text)
        return Sentence(words, {}, (), None, text, starts, starts[0], starts[-1] + len(words[-1])) if words else None

    def _with_spans(self, document: Document, apart: bool) -> Iterator[Sentence]:
        text, spans = document.text or "", document.spans
        of_kind = {kind: sorted((each.start, each.stop) for each in spans if each.kind == kind) for kind in KINDS}
        edges = sorted({0, len(text), *chain.from_iterable(span for span in of_kind["label"] if span[0] < span[1])})
        given, phrases = of_kind["word"], set(of_kind["target"])
        bounds = of_kind["sentence"]
        if not bounds:  # those that the text is split into; one goes on where a word or a target does
            whole = sorted([*given, *phrases])
            reach = list(accumulate((stop for _, stop in whole), max, initial=0))
            for begin, end in pairwise(edges) if apart else [(0, len(text))]:
                for each in self.read(_blocks(text[begin:end]), document):
                    start, stop = begin + each.start, begin + each.stop
                    begin += len(each.text)
                    if bounds and reach[bisect_left(whole, (start,))] > start:
                        start = bounds.pop()[0]
                    bounds.append((start, stop))
        splitter = replace(self, words="spaces") if given else self
        words, starts, sentences = list[str](), list[int](), list[tuple[int, int, int]]()  # the last: and first words
        for start, stop in bounds:
            if sentences and start < sentences[-1][1]:
                raise InvalidValueError(f"two sentences overlap at character {start} of the text")
            first = len(words)
            inside = given[bisect_left(given, (start,)) : bisect_left(given, (stop,))]
            if not given:
                inside = list(pairwise([start, *edges[bisect_right(edges, start) : bisect_left(edges, stop)], stop]))
            for at, end in inside:
                own, places = splitter._words(text[at:end])
                if given and len(own) != 1:
                    if not own:
                        raise InvalidValueError(f"the word at character {at} of the text is white space")
                    phrases.add((at, end))
                words += own
                starts += [at + place for place in places]
            if len(words) > first:
                sentences.append((start, stop, first))
        stops = [at + len(word) for at, word in zip(starts, words, strict=True)]

        def words_in(start: int, stop: int) -> tuple[int, int]:
            """Return which words have a character of a span."""
            return bisect_right(stops, start), bisect_left(starts, stop)

        labels: dict[str, list[str | None]] = {name: [None] * len(words) for span in spans for name in span.labels}
        for span in reversed(spans):
            first, last = words_in(span.start, span.stop)
            for name, label in span.labels.items():
                if span.start < span.stop:
                    labels[name][first:last] = [label] * (last - first)
        targets = sorted((at, end) for at, end in starmap(words_in, phrases) if end > at + 1)
        begin = 0
        for (start, stop, first), (end, _, last) in pairwise([*sentences, (len(text), len(text), len(words))]):
            columns = {name: column[first:last] for name, column in labels.items()}
            own_targets = targets[bisect_left(targets, (first,)) : bisect_left(targets, (last,))]
            phrases_in = [(at - first, to - first) for at, to in own_targets]
            places = [at - begin for at in starts[first:last]]
            piece = text[begin:end]
            yield check_sentence(
                Sentence(words[first:last], columns, phrases_in, document, piece, places, start - begin, stop - begin)
            )
            begin = end

    def _parts(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield a text in parts that hold one sentence each, and white space, or only white space."""
        pieces = _pieces(texts)
        if self.split == "lines":
            yield from pieces
            return
        rest = ""
        for text, ends in _paragraphs(pieces):
            text = rest + text
            starts = self._starts(text)
            # The last sentence may go on in the next piece; without another in the piece, it is as long as it may be.
            rest = text[starts.pop() :] if not ends and len(starts) > 1 else ""
            for start, stop in pairwise([*starts, len(text) - len(rest)]):
                yield text[start:stop]
        yield rest  # of a last piece without a line feed

    def _starts(self, text: str) -> list[int]:
        """Return where the sentences of a paragraph begin; a line break counts as a space, as does one after spaces."""
        import sentencex

        *lines, last = text.split("\n")
        joined = " ".join([*map(str.rstrip, lines), last])
        try:
            starts = [each["start_index"] for each in sentencex.get_sentence_boundaries(self.language, joined)] or [0]
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, which is no Exception
                raise
            raise CorpusError(f"sentencex fails on the text {quoted(joined[:80])}: give split=lines") from None
        if len(joined) == len(text):
            return starts
        of_lines = list(accumulate((len(line.rstrip()) + 1 for line in lines), initial=0))
        in_text = list(accumulate((len(line) + 1 for line in lines), initial=0))
        return [at + in_text[line] - of_lines[line] for at in starts for line in [bisect_right(of_lines, at) - 1]]

    def _words(self, text: str) -> tuple[list[str], list[int]]:
        """Return the words of a text, and where each begins."""
        runs = text.split()
        if not runs:
            return [], []
        if self.words == "spaces":
            split: list[tuple[Sequence[str], Sequence[int]]] = [((run,), (len(run) + 1,)) for run in runs]
        else:
            tokenizer = _tokenizer(self.language)
            if not isinstance(tokenizer, _Runs):
                return _located(tokenizer, text)
            split = list(map(tokenizer.__getitem__, runs))
        words = [word for run, _ in split for word in run]
        *starts, stop = accumulate([step for _, run in split for step in run], initial=len(text) - len(text.lstrip()))
        if stop == len(text.rstrip()) + 1:  # one character of white space between any two runs
            return words, starts
        places = map(re.Match.start, _RUN.finditer(text))
        return words, [
            at for place, (_, steps) in zip(places, split, strict=True) for at in accumulate(steps[:-1], initial=place)
        ]


def check_language(language: str) -> None:
    """Raise InvalidValueError for a language that spaCy has no rules for, or whose words need another package."""
    import spacy.lang

    known = [module.name for module in iter_modules(spacy.lang.__path__) if module.ispkg]
    if language not in known:
        raise InvalidValueError(f"language: {quoted(language)} is not one of {', '.join(known)}; xx is for any other")
    _tokenizer(language)


def is_wrapped(lines: Iterable[str]) -> bool:
    """Return whether lines are broken where they are full, as in an e-book, and not where a paragraph ends.

    The width is that of all but the longest tenth of the lines that another line follows. A line is full if the first
    word of the next would have made it longer than nine tenths of the width. Lines are wrapped if more than two thirds
    of those that another follows are full, at most half end a sentence, and the width is 30 to 150 characters.
    """
    breaks = [(line, after) for line, after in pairwise(map(str.strip, lines)) if line and after]
    if not breaks:
        return False
    width = sorted(len(line) for line, _ in breaks)[(len(breaks) - 1) * 9 // 10]
    full = sum(len(line) + 1 + len(after.split(None, 1)[0]) > 0.9 * width for line, after in breaks)
    ends = sum(ends_sentence(line) for line, _ in breaks)
    return 30 <= width <= 150 and 3 * full > 2 * len(breaks) and 2 * ends <= len(breaks)


def ends_sentence(text: str) -> bool:
    """Return whether a text ends with the mark of a sentence's end, closing quotes and brackets aside."""
    return text.rstrip().rstrip(_CLOSING).endswith((".", "!", "?", "…", ":", ";", "。", "！", "？", "।", "؟", "۔"))


def _blocks(text: str) -> Iterator[str]:
    return (text[at : at + MAX_PIECE] for at in range(0, len(text), MAX_PIECE))


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines with their line feeds; one of more than MAX_PIECE characters in several parts, cut at white space."""
    line = ""
    for text in texts:
        lines = (line + text).split("\n")
        for number, line in enumerate(lines, 1):
            while len(line) > MAX_PIECE:
                cut = max(line.rfind(" ", 1, MAX_PIECE), line.rfind("\t", 1, MAX_PIECE))
                cut = cut if cut > 0 else MAX_PIECE
                yield line[:cut]
                line = line[cut:]
            if number < len(lines):
                yield line + "\n"
    if line:
        yield line


def _paragraphs(pieces: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text of paragraphs, and whether it is a paragraph's end; a long paragraph comes in several parts."""
    first: list[str] = []
    n_characters = 0
    while n_characters < MAX_PIECE and (piece := next(pieces, "")):
        first.append(piece)
        n_characters += len(piece)
    joins = is_wrapped(first)
    paragraph: list[str] = []
    n_characters = 0
    for piece in chain(first, pieces):
        ends = piece.endswith("\n") and (not joins or piece.isspace())
        paragraph.append(piece)
        n_characters += len(piece)
        if ends or n_characters >= MAX_PIECE:
            yield "".join(paragraph), ends
            paragraph, n_characters = [], 0
    if paragraph:
        yield "".join(paragraph), True


class _Runs(dict[str, tuple[Sequence[str], Sequence[int]]]):
    """The words of runs of characters without white space, which spaCy's rules split one by one; they are remembered.

    With the words there are the characters from the beginning of each word to that of the next one, which begins one
    space after the run.
    """

    def __init__(self, language: str, tokenizer: Any) -> None:
        self.language, self.tokenizer = language, tokenizer

    def __missing__(self, run: str) -> tuple[Sequence[str], Sequence[int]]:
        if len(self) >= MAX_RUNS:
            self.clear()
            self.tokenizer = _rules(self.language)  # it remembers words, too
        plain = _PLAIN.fullmatch(run) if self.language == "en" and len(run) <= MAX_WORD else None
        words = list(filter(None, [plain[1], *_HYPHENS.split(plain[2]), *plain[3]])) if plain else []
        # No pattern of English is about letters alone, and these marks are always words; but there may be a rule.
        parts = ("".join(words[start:stop]) for start, stop in combinations(range(len(words) + 1), 2))
        if not words or not self.tokenizer.rules.keys().isdisjoint(parts):
            words = [token.text for part in _short_runs(run) for token in self.tokenizer(part)]
        self[run] = split = tuple(words), (*map(len, words[:-1]), len(words[-1]) + 1)
        return split


def _located(tokenizer: Any, text: str) -> tuple[list[str], list[int]]:
    """Return the words that a tokenizer finds in a text, and where each begins."""
    words: list[str] = []
    starts: list[int] = []
    at = 0
    for part in _short_runs(_WHITE.sub(" ", text)):
        for word in chain.from_iterable(token.text.split() for token in tokenizer(part)):
            starts.append(at := text.index(word, at))
            words.append(word)
            at += len(word)
    return words, starts


def _short_runs(text: str) -> Iterator[str]:
    """Cut a text so that no run without white space is longer than MAX_WORD."""
    start = 0
    for run in _LONG_RUN.finditer(text):
        for cut in range(run.start() + MAX_WORD, run.end(), MAX_WORD):
            yield text[start:cut]
            start = cut
    yield text[start:]


@lru_cache(maxsize=1)
def _tokenizer(language: str) -> Any:
    """Return what splits words: spaCy's rules for each run of characters, or another package for a whole sentence."""
    import spacy

    rules = _rules(language)
    return _Runs(language, rules) if isinstance(rules, spacy.tokenizer.Tokenizer) else rules


def _rules(language: str) -> Any:
    """Return spaCy's tokenizer of a language: words also end at a dash of hyphens with a space on one side."""
    import spacy

    with suppress(ImportError):
        if language == "zh":
            import_module("jieba").setLogLevel("ERROR")  # or it tells of its dictionary
    kind = spacy.util.get_lang_class(language)
    if kind.default_config["nlp"]["tokenizer"]["@tokenizers"] != "spacy.Tokenizer.v1":
        segmenter = {"nlp": {"tokenizer": {"segmenter": "jieba"}}} if language == "zh" else {}
        try:
            nlp: Any = spacy.blank(language, config=segmenter)
        except ImportError as error:
            needed = f"pip install {SEGMENTERS[language]}" if language in SEGMENTERS else " ".join(str(error).split())
            raise InvalidValueError(f"language {language}: its words need another package: {needed}") from None
        nlp.vocab.lex_attr_getters = {}  # the shape, case and so on of each word take as long as splitting
        return nlp.tokenizer
    rules, util = kind.Defaults, spacy.util
    return spacy.tokenizer.Tokenizer(
        spacy.vocab.Vocab(),
        rules=rules.tokenizer_exceptions,
        prefix_search=util.compile_prefix_regex([*(rules.prefixes or ()), rf"--+(?={_LETTER})"]).search,
        suffix_search=util.compile_suffix_regex([*(rules.suffixes or ()), rf"(?<={_LETTER})--+"]).search,
        infix_finditer=util.compile_infix_regex(rules.infixes).finditer if rules.infixes else None,
        token_match=rules.token_match,
        url_match=rules.url_match,
    )
