"""Chats: a list of messages with role and content, as text or as the chat template of a model puts them together."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from embstore.corpus.formats.base import ChatTemplate, ReadOptions
from embstore.corpus.formats.located import Located, located, sentence_of
from embstore.corpus.sentence import Sentence, is_encodable
from embstore.errors import InvalidValueError, quoted

Message = Mapping[str, Any]
ROLE = "role"


def is_chat(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, Mapping) for each in value)


def read_chat(messages: Sequence[Message], options: ReadOptions) -> list[Sentence]:
    """Return the sentences of a chat, with the role of its message as the label `role` of every word.

    With a template the whole chat is one sentence, which a model is given as the template writes it: special tokens and
    line feeds are words. Raises InvalidValueError.
    """
    chat = [{name: value for name, value in message.items() if value is not None} for message in messages]
    for number, message in enumerate(chat):
        for key in (ROLE, "content"):
            if not isinstance(message.get(key, ""), str) or (key == ROLE and not message.get(key)):
                raise InvalidValueError(f"message {number}: {key} is {quoted(message.get(key))}, not a text")
            if not is_encodable(message.get(key, "")):
                raise InvalidValueError(f"message {number}: half of a surrogate pair, not a character, in {key}")
    if options.chat is None:
        return [
            replace(sentence, labels={ROLE: [message[ROLE]] * len(sentence.words)})
            for message in chat
            for sentence in options.splitter.sentences(message.get("content", ""))
        ]
    text = options.chat.render(chat)
    pieces = list(_pieces(text, options.chat.specials, options.splitter.sentences))
    if not pieces:
        return []
    ends = _ends(text, chat, options.chat)
    roles: list[str | None] = [chat[min(bisect_right(ends, piece.start), len(chat) - 1)][ROLE] for piece in pieces]
    return [replace(sentence_of(text, pieces), labels={ROLE: roles})]


def _pieces(text: str, specials: Sequence[str], split: Callable[[str], Any]) -> Iterator[Located]:
    """Yield the words of a rendered chat; special tokens and runs of line feeds are words."""
    markup = "|".join(map(re.escape, sorted(specials, key=len, reverse=True)))
    at = 0
    for match in re.finditer(rf"\n+|{markup}" if markup else r"\n+", text):
        yield from located(text[at : match.start()], split(text[at : match.start()]), offset=at)
        yield Located(match.start(), match.end(), 0)
        at = match.end()
    yield from located(text[at:], split(text[at:]), offset=at)


def _ends(text: str, chat: Sequence[Message], template: ChatTemplate) -> list[int]:
    """Return where the part of each message ends in the rendered chat.

    That is where the chat up to it ends, if the text begins with that chat, else where the content ends.
    """
    ends: list[int] = []
    for number, message in enumerate(chat[:-1]):
        try:
            before = template.render(chat[: number + 1])
        except InvalidValueError:  # such as a system message alone
            before = None
        if before is None or not text.startswith(before):
            content, start = message.get("content", "").strip(), ends[-1] if ends else 0
            at = text.find(content, start)
            if at < 0:
                raise InvalidValueError(f"message {number}: the chat template does not write its content as it is")
            ends.append(at + len(content))
        else:
            ends.append(len(before))
    return ends
