"""A sentence as one string: its words joined by a space, or by U+001F before a word that follows without a space."""

from __future__ import annotations

import re
from collections.abc import Sequence

ATTACHED = "\x1f"  # begins a marked word, which follows the word before it without a space
NUMBERED = re.compile("\u241f([0-9]{1,9})\\.([0-9a-f]{8})")  # a word that is a subword without a spelling of its own


def marked_words(words: Sequence[str], attached: Sequence[int]) -> Sequence[str]:
    """Return the words with the mark ATTACHED at the beginning of those at the positions `attached`."""
    if not attached:
        return words
    marked = list(words)
    for position in attached:
        marked[position] = ATTACHED + marked[position]
    return marked


def numbered(subword: int, tokenizer_sha256: str) -> str:
    """Return the word for a subword of a tokenizer, made of its number and the tokenizer's hash."""
    return f"\u241f{subword}.{tokenizer_sha256[:8]}"


def join_marked(words: Sequence[str]) -> str:
    """Return marked words as the text that a store keeps."""
    return " ".join(words).replace(" " + ATTACHED, ATTACHED)


def split_marked(text: str) -> list[str]:
    """Return the marked words of a stored text, the inverse of `join_marked`."""
    return text.replace(ATTACHED, " " + ATTACHED).split(" ")


def split_words(text: str) -> list[str]:
    """Return the words of a stored text."""
    return spaced(text).split(" ")


def spaced(text: str) -> str:
    """Return the words of a stored text joined by spaces, by which sentences are compared."""
    return text.replace(ATTACHED, " ")


def natural(text: str) -> str:
    """Return a stored text as it is read: without a space before attached words."""
    return text.replace(ATTACHED, "")
