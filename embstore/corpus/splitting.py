"""Running text as paragraphs, sentences and words: sentencex finds the sentences, spaCy's rules the words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

from embstore.corpus.sentence import Document, Sentence
from embstore.errors import InvalidValueError, quoted

SPLITS = ("sentences", "lines")
WORDS = ("punctuation", "spaces")
MAX_PIECE = 2**18  # characters that are split at a time
MAX_WORD = 500  # characters without white space; spaCy's time grows with their square
MAX_VOCABULARY = 2**18  # words that a tokenizer remembers; it is made again when it has more
SEGMENTERS = {  # languages without spaces, or that spaCy leaves to a package, and what to install
    "ja": "sudachipy sudachidict_core",
    "ko": "natto-py",
    "th": "pythainlp",
    "vi": "pyvi",
    "zh": "jieba",
}
_RUN = re.compile(rf"\S{{{MAX_WORD + 1},}}")
_LETTER = r"[^\W\d_]"
_CLOSING = "\"'”’»)]*_"


@dataclass(frozen=True)
class Splitter:
    """How text becomes sentences and words; the names are those of `open_corpus`."""

    split: str = "sentences"
    words: str = "punctuation"
    language: str = "en"

    def sentences(self, text: str, document: Document | None = None) -> Iterator[Sentence]:
        """Yield the sentences of one text, which is a document of its own if none is given."""
        return self.read((text[at : at + MAX_PIECE] for at in range(0, len(text), MAX_PIECE)), document)

    def read(self, texts: Iterable[str], document: Document | None = None) -> Iterator[Sentence]:
        """Yield the sentences of the text of a file, which comes in parts of any size; see docs/how-to/corpora.md."""
        document = document or Document()
        pieces = _pieces(texts)
        if self.split == "lines":
            yield from filter(None, (self.sentence(line, document) for line in pieces))
            return
        rest = ""
        for text, ends in _paragraphs(pieces):
            text = rest + text
            starts = self._starts(text)
            # The last sentence may go on in the next piece; without another in the piece, it is as long as it may be.
            rest = text[starts.pop() :] if not ends and len(starts) > 1 else ""
            for start, stop in pairwise([*starts, len(text) - len(rest)]):
                if sentence := self.sentence(text[start:stop], document):
                    yield sentence
        if sentence := self.sentence(rest, document):  # of a last piece without a line feed
            yield sentence

    def sentence(self, text: str, document: Document | None = None) -> Sentence | None:
        """Return the words of one sentence; None if the text is white space."""
        if self.words == "spaces":
            words, attached = text.split(), list[int]()
        else:
            words, attached = _split_words(text, self.language)
        return Sentence(words, document=document, attached=attached) if words else None

    def _starts(self, text: str) -> list[int]:
        import sentencex

        boundaries = sentencex.get_sentence_boundaries(self.language, text)
        return [sentence["start_index"] for sentence in boundaries] or [0]


def check_language(language: str) -> None:
    """Raise InvalidValueError for a language that spaCy has no rules for, or whose words need another package."""
    spec = find_spec("spacy")
    folder = Path(cast(Any, spec).submodule_search_locations[0]) / "lang"
    known = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    if language not in known:
        raise InvalidValueError(
            f"language: {quoted(language)} is not one of {', '.join(known)}; xx is for any other language"
        )
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


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines with their line feeds; one of more than MAX_PIECE characters in several parts, cut at white space."""
    rest = ""
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield line + "\n"
        while len(rest) > MAX_PIECE:
            cut = max(rest.rfind(" ", 1, MAX_PIECE), rest.rfind("\t", 1, MAX_PIECE))
            cut = cut if cut > 0 else MAX_PIECE
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _paragraphs(pieces: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text of paragraphs, and whether it is a paragraph's end; a long paragraph comes in several parts."""
    first: list[str] = []
    n_characters = 0
    for piece in pieces:
        first.append(piece)
        n_characters += len(piece)
        if n_characters >= MAX_PIECE:
            break
    joins = is_wrapped(first)
    paragraph: list[str] = []
    n_characters = 0
    for piece in chain(first, pieces):
        ends = piece.endswith("\n") and (not joins or piece.isspace())
        paragraph.append(piece.rstrip() + " " if piece.endswith("\n") else piece)
        n_characters += len(piece)
        if ends or n_characters >= MAX_PIECE:
            yield "".join(paragraph), ends
            paragraph, n_characters = [], 0
    if paragraph:
        yield "".join(paragraph), True


def _split_words(text: str, language: str) -> tuple[list[str], list[int]]:
    """Return the words of a text, and the positions of those that no white space comes before."""
    words: list[str] = []
    attached: list[int] = []
    follows = False
    tokenize = _tokenizer(language)
    for part in _short_runs(text):
        for token in tokenize(part):
            word = token.text
            if word.isspace():
                follows = False
                continue
            if follows:
                attached.append(len(words))
            words.append(word)
            follows = not token.whitespace_
    if len(tokenize.vocab) > MAX_VOCABULARY:
        _tokenizer.cache_clear()
    return words, attached


def _short_runs(text: str) -> Iterator[str]:
    """Cut a text so that no run without white space is longer than MAX_WORD."""
    start = 0
    for run in _RUN.finditer(text):
        for cut in range(run.start() + MAX_WORD, run.end(), MAX_WORD):
            yield text[start:cut]
            start = cut
    yield text[start:]


@lru_cache(maxsize=1)
def _tokenizer(language: str) -> Any:
    import spacy

    with suppress(ImportError):
        if language == "zh":
            import_module("jieba").setLogLevel("ERROR")  # or it tells of its dictionary
    try:
        nlp = spacy.blank(language, config={"nlp": {"tokenizer": {"segmenter": "jieba"}}} if language == "zh" else {})
    except ImportError as error:
        if language not in SEGMENTERS:
            reason = " ".join(str(error).split())
            raise InvalidValueError(f"language {language}: its words need another package: {reason}") from None
        raise InvalidValueError(
            f"language {language}: its words need another package: pip install {SEGMENTERS[language]}"
        ) from None
    if isinstance(nlp.tokenizer, spacy.tokenizer.Tokenizer):  # a dash of hyphens, also where a space is on one side
        prefixes = [*(nlp.Defaults.prefixes or ()), rf"--+(?={_LETTER})"]
        suffixes = [*(nlp.Defaults.suffixes or ()), rf"(?<={_LETTER})--+"]
        nlp.tokenizer.prefix_search = spacy.util.compile_prefix_regex(prefixes).search
        nlp.tokenizer.suffix_search = spacy.util.compile_suffix_regex(suffixes).search
    return nlp.tokenizer
