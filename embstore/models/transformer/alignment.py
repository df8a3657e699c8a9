"""The characters of subwords: a check of those that a tokenizer gives, and a search for them by their bytes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_BAD, _MORE = 0xFFFF, 0xFFFE  # mark the first and every other byte of what is no UTF-8
_SPACES = np.zeros(0x3002, np.bool_)  # the last one is for all other characters
_SPACES[[index for index in range(0x3001) if chr(index).isspace()]] = True


def are_spaces(text: str) -> NDArray[np.bool_]:
    """Return which characters of a text are white space."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    spaces: NDArray[np.bool_] = _SPACES[np.minimum(points, 0x3001)]
    return spaces


def uncovered(text: str, offsets: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the characters that no subword has but white space, or -1 if offsets do not ascend."""
    places = np.array(offsets, np.int64).reshape(-1, 2)
    if np.any(np.diff(places, axis=0) < 0) or np.any(places[:, 1] < places[:, 0]) or np.any(places > len(text)):
        yield -1
        return
    depth = np.zeros(len(text) + 1, np.int64)
    np.add.at(depth, places[:, 0], 1)
    np.add.at(depth, places[:, 1], -1)
    yield from np.flatnonzero((np.cumsum(depth)[:-1] == 0) & ~are_spaces(text)).tolist()


class Spelling:
    """The bytes that each subword of a fast tokenizer spells."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._added = {index: token.content for index, token in backend.get_added_tokens_decoder().items()}
        steps = repr(backend.pre_tokenizer) + repr(backend.decoder)
        self._is_byte_level = "ByteLevel" in steps
        self._prefix = getattr(backend.model, "continuing_subword_prefix", None)
        self._suffix = getattr(backend.model, "end_of_word_suffix", None)

    def places(self, text: str, ids: Sequence[int]) -> list[tuple[int, int]] | None:
        """Return where the characters of each subword begin and end; None if they are not those of the text.

        White space is compared too, or left out if it differs; and so is the text as the tokenizer normalizes each
        character.
        """
        pieces = list(self._bytes(ids))
        spelled, places = _decoded(b"".join(pieces))
        owner = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
        plain = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        normal = list(map(self._normal, text))
        of_normal = np.repeat(np.arange(len(text)), [len(part) for part in normal])
        normalized = np.frombuffer("".join(normal).encode("utf-32-le", "surrogatepass"), np.uint32)
        for wanted, of, skips in (
            (plain, np.arange(len(plain)), False),
            (plain, np.arange(len(plain)), True),
            (normalized, of_normal, True),
        ):
            mine, theirs = (
                np.flatnonzero(~_SPACES[np.minimum(points, 0x3001)]) if skips else np.arange(len(points))
                for points in (spelled, wanted)
            )
            if np.array_equal(spelled[mine], wanted[theirs]):
                character = np.full(len(spelled), -1)
                character[mine] = of[theirs]
                found = character[places]
                some = np.flatnonzero(found >= 0)
                begin, end = np.full(len(pieces), -1), np.zeros(len(pieces), np.int64)
                begin[owner[some[::-1]]] = found[some[::-1]]  # of each subword the first one is written last
                end[owner[some]] = found[some] + 1
                end = np.maximum.accumulate(end)
                return list(zip(np.where(begin < 0, end, begin).tolist(), end.tolist(), strict=True))
        return None

    def text(self, index: int) -> str:
        """Return the characters that a subword spells, with the space before it; U+FFFD for a part of one."""
        return b"".join(self._bytes([index])).decode("utf-8", "replace")

    def normal_size(self, text: str) -> int:
        """Return the number of characters of a normalized text that are not the space before a word."""
        return len(self._normal(text).replace(" ", ""))

    def _normal(self, text: str) -> str:
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text)).replace("▁", " ")

    @cached_property
    def _alphabet(self) -> dict[str, int]:
        """The bytes of the characters in which byte-level tokenizers spell them."""
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        alphabet = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
        assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
        return alphabet

    def _bytes(self, ids: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each subword; those that are no UTF-8 together are U+FFFD each, as they are decoded."""
        waiting: list[bytes] = []
        for index in ids:
            piece = self._backend.id_to_token(index) or ""
            byte = None if self._is_byte_level or index in self._added else _BYTE.fullmatch(piece)
            if byte is not None:
                waiting.append(bytes.fromhex(byte[1]))
                continue
            yield from _valid(waiting)
            waiting.clear()
            yield self._own(index, piece)
        yield from _valid(waiting)

    def _own(self, index: int, piece: str) -> bytes:
        if index in self._added:
            return str(self._added[index]).encode()
        if self._is_byte_level and all(character in self._alphabet for character in piece):
            return bytes(self._alphabet[character] for character in piece)
        if self._prefix:
            piece = piece.removeprefix(self._prefix)
        if self._suffix:
            piece = piece.removesuffix(self._suffix)
        return piece.replace("▁", " ").encode()


def _valid(run: list[bytes]) -> list[bytes]:
    try:
        b"".join(run).decode()
    except UnicodeDecodeError:
        return ["\ufffd".encode()] * len(run)
    return list(run)


def _decoded(data: bytes) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Decode UTF-8 as others do, each part of a character as one U+FFFD; also returns the character of each byte."""
    points = np.frombuffer(data.decode("utf-8", "embstore_bad_bytes").encode("utf-32-le"), np.uint32)
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    sizes[(points == _BAD) | (points == _MORE)] = 1
    is_own = points != _MORE
    places = np.repeat(np.cumsum(is_own) - 1, sizes)
    return np.where(points == _BAD, 0xFFFD, points)[is_own].astype(np.uint32), places


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return chr(_BAD) + chr(_MORE) * (error.end - error.start - 1), error.end


codecs.register_error("embstore_bad_bytes", _replace)
