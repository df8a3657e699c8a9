"""From text to words, and from words to their normal form."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

from embstore.corpus.messages import shown
from embstore.errors import InvalidValueError

Split = Literal["space", "punctuation"]
SPLITS: tuple[Split, ...] = get_args(Split)

# Ranges of punctuation marks; "_", combining marks, joiners and emoji are not among them.
_MARK = (
    r"!-/:-@\[-^`{-~\u00a1-\u00a9\u00ab-\u00ac\u00ae-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7"
    r"\u055a-\u055f\u0589\u05be\u060c\u061b\u061f\u066a-\u066d\u06d4\u0964\u0965\u2010-\u2027\u2030-\u205e"
    r"\u20a0-\u20cf\u2190-\u22ff\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20"
    r"\uff3b-\uff3d\uff5b-\uff65"
)
_LETTER = rf"[^\s{_MARK}]"
_WORD = re.compile(
    rf"{_LETTER}+(?:(?:[-'’.]|(?<=\d)[,:/](?=\d)){_LETTER}+)*|([{_MARK}])\1*",
)


def by_space(text: str) -> list[str]:
    """Split at white space of any kind, as Unicode has it."""
    return text.split()


def by_punctuation(text: str) -> list[str]:
    """Split at white space, and split punctuation marks off.

    A mark inside a word stays (don't, well-known, 3.5, 1,650, 10:30); a run of one mark is one word (...).
    """
    return [match[0] for match in _WORD.finditer(text)]


SPLITTERS: dict[Split, Callable[[str], list[str]]] = {"space": by_space, "punctuation": by_punctuation}


def normalizer(steps: tuple[str, ...]) -> Callable[[str], str]:
    """The function that takes a word through the steps (names in NORMALIZATIONS), in order.

    A space that a step brings into a word is left out again; a word that would become empty stays as it is.
    """
    functions = [NORMALIZATIONS[step] for step in steps]

    @lru_cache(maxsize=2**17)
    def normalize(word: str) -> str:
        for function in functions:
            word = function(word).replace(" ", "") or word
        return word

    return normalize


def parse_normalize(normalize: str | None) -> tuple[str, ...]:
    """Read the option `normalize`: names joined by commas, None or "none" for nothing."""
    steps = tuple((normalize or "none").replace(" ", "").split(","))
    if steps == ("none",):
        return ()
    for step in steps:
        if step not in NORMALIZATIONS:
            allowed = ", ".join(NORMALIZATIONS)
            raise InvalidValueError(f"normalize: {shown(step)} is not one of {allowed} (or several, joined by commas)")
    return steps


NORMALIZATIONS: dict[str, Callable[[str], str]] = {
    "nfc": lambda word: unicodedata.normalize("NFC", word),
    "nfkc": lambda word: unicodedata.normalize("NFKC", word),
    "lower": str.lower,
}


def as_phrase(text: str) -> str:
    """A word or phrase with its underscores read as spaces: "New_York" is "New York".

    A text of underscores alone is a word of its own.
    """
    return " ".join(filter(None, text.replace("_", " ").split(" "))) or text
