"""Chats as the template of a tokenizer writes them, and what in them is content and what the template's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from embstore.corpus.sentence import Document, Span
from embstore.errors import InvalidValueError
from embstore.models.checkpoint import quiet, reason
from embstore.models.transformer.tokens import SubwordTokenizer

PLACEHOLDER = "\ue000{}\ue000"  # stands for the content of a message, to see what is written around it
SYSTEM = "system"

Message = Mapping[str, Any]


class Chats:
    """Writes chats with the template of a transformers tokenizer; `exists`: whether it has one."""

    def __init__(self, tokenizer: Any, subwords: SubwordTokenizer) -> None:
        self._tokenizer, self._subwords = tokenizer, subwords
        self.exists = bool(getattr(tokenizer, "chat_template", None))
        self._markup_of: dict[tuple[str, ...], list[str] | None] = {}
        self._cuts: dict[tuple[str, ...], int | None] = {}

    def write(self, messages: Sequence[Message]) -> Document:
        """Return a chat as a text with the labels `role` and `part`, "content" or "markup".

        Markup has the role of its message, "system" where the template adds one. Raises InvalidValueError for a chat
        that the template refuses.
        """
        text, ids = self.text(messages)
        spans, at = [], 0
        for end, role, part in self._parts(messages, text):
            if end > at:
                spans.append(Span(at, end, labels={"role": role, "part": part}))
                at = end
        return Document(text, spans=spans, ids=None if self._subwords.ids(text) == ids else ids)

    def text(self, messages: Sequence[Message], *, prompt: bool = False) -> tuple[str, list[int]]:
        """Return a chat as text and its subwords, without those that the tokenizer itself puts before a text.

        `prompt`: up to where the model's answer begins.
        """
        try:
            text = self._render(messages, prompt=prompt)
        except Exception as error:
            raise InvalidValueError(f"the model's chat template refuses the chat: {reason(error)}") from None
        ids, prefix = self._subwords.ids(text), list(self._subwords.specials.prefix)
        begin = "".join(map(self._subwords.subword_text, prefix))
        if prefix and ids[: len(prefix)] == prefix and text.startswith(begin):
            return text[len(begin) :], ids[len(prefix) :]
        return text, ids

    def _render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        with quiet():
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt)
        return str(text)

    def _parts(self, messages: Sequence[Message], text: str) -> list[tuple[int, str, str]]:
        """Return where each part of the text of a chat ends, and its role and kind."""
        roles = [str(message.get("role")) for message in messages]
        parts: list[tuple[int, str, str]] = []
        at, before = 0, -1
        for number, begin, end in [*self._contents(messages, text), (len(messages), len(text), len(text))]:
            markup = text[at:begin]
            if not parts:
                parts += self._added(messages, roles, markup)
            elif number < len(messages):
                cut = self._cut(messages[: before + 1], markup, roles[before], roles[number])
                parts.append((at + (cut or 0), roles[before], "markup"))
            for empty in range(before + 1, number):  # messages without content
                parts.append((self._end(messages[: empty + 1], text, begin), roles[empty], "markup"))
            role = roles[min(number, len(roles) - 1)]
            parts += (begin, role, "markup"), (end, role, "content")
            at, before = end, number
        return parts

    def _contents(self, messages: Sequence[Message], text: str) -> list[tuple[int, int, int]]:
        """Return the messages whose content is in the text, and where it begins and ends."""
        given = _written(messages)
        key = tuple(str(message.get("role")) for message in messages)
        if len(given) < len(messages) or any(set(message) - {"role", "content"} for message in messages):
            markup = self._markup(messages)
        elif (markup := self._markup_of.get(key)) is None:
            markup = self._markup_of[key] = self._markup(messages)
        for around in (markup, None):  # what is written around the contents; else they are searched for
            found, at = [], 0
            for place, (number, content) in enumerate(given):
                for own in dict.fromkeys((content, content.strip(), content.rstrip(), content.lstrip())):
                    if around is None:
                        begin = text.find(own, at) if own else -1
                    else:
                        fits = text.startswith(around[place] + own + around[place + 1], at)
                        begin = at + len(around[place]) if fits else -1
                    if begin >= 0:
                        found.append((number, begin, at := begin + len(own)))
                        break
            if around is not None and len(found) == len(given) and text[at:] == around[-1]:
                break
        return found

    def _markup(self, messages: Sequence[Message]) -> list[str] | None:
        """Return what is written before, between and after the contents of messages; None if that is not known."""
        given = [number for number, _ in _written(messages)]
        marked = list(messages)
        for number in given:
            marked[number] = {**messages[number], "content": PLACEHOLDER.format(number)}
        try:
            text = self._render(marked)
        except Exception:
            return None
        parts = re.split(PLACEHOLDER.format("([0-9]+)"), text)
        if list(map(int, parts[1::2])) != given:
            return None
        begin = "".join(map(self._subwords.subword_text, self._subwords.specials.prefix))
        return [parts[0].removeprefix(begin), *parts[2::2]]

    def _cut(self, messages: Sequence[Message], markup: str, role: str, following: str) -> int | None:
        """Return how much of the markup between two messages ends the first; None if that is not known."""
        key = (markup, role, following)
        if key not in self._cuts:
            own = self._markup(messages)
            self._cuts[key] = len(own[-1]) if own is not None and markup.startswith(own[-1]) else None
        return self._cuts[key]

    def _end(self, messages: Sequence[Message], text: str, limit: int) -> int:
        """Return where the last of these messages ends in the text of a longer chat; 0 if that is not known."""
        try:
            own, _ = self.text(messages)
        except InvalidValueError:
            return 0
        return len(own) if len(own) <= limit and text.startswith(own) else 0

    def _added(self, messages: Sequence[Message], roles: Sequence[str], markup: str) -> list[tuple[int, str, str]]:
        """Return the parts of the message "system" that a template adds, in the markup before the first message."""
        if roles[0] == SYSTEM:
            return []
        system = {"role": SYSTEM, "content": "x"}
        around = self._markup([system, *messages])
        if around is None or not (markup.startswith(around[0]) and markup.endswith(around[1])):
            return []
        begin, end = len(around[0]), len(markup) - len(around[1])
        if end < begin or (end == begin and SYSTEM not in around[0]):
            return []
        cut = self._cut([system], around[1], SYSTEM, roles[0]) or 0
        return [(begin, SYSTEM, "markup"), (end, SYSTEM, "content"), (end + cut, SYSTEM, "markup")]


def _written(messages: Sequence[Message]) -> list[tuple[int, str]]:
    """Return the messages whose content is a text, and that text."""
    contents = [(number, message.get("content")) for number, message in enumerate(messages)]
    return [(number, content) for number, content in contents if isinstance(content, str) and content]
