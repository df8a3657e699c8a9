"""Chats as the template of a tokenizer writes them, and what in them is content and what the template's own."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from embstore.corpus.sentence import Document, Span
from embstore.errors import InvalidValueError
from embstore.models.checkpoint import quiet, reason
from embstore.models.transformer.tokens import SubwordTokenizer

PLACEHOLDER = "\ue000{}\ue000"  # replaces the content of a message, to see what is written around it
SYSTEM = "system"
MAX_LAYOUTS = 1 << 10

Message = Mapping[str, Any]
_Layout = tuple[list[int], list[list[tuple[str, str]]]]


class Chats:
    """Writes chats with the template of a transformers tokenizer; `exists`: whether it has one."""

    def __init__(self, tokenizer: Any, subwords: SubwordTokenizer) -> None:
        self._tokenizer, self._subwords = tokenizer, subwords
        self.exists = bool(getattr(tokenizer, "chat_template", None))
        self._layouts: dict[str, _Layout] = {}  # by what messages have besides their contents

    def write(self, messages: Sequence[Message]) -> Document:
        """Return a chat as a text with the labels `role` and `part`, "content" or "markup".

        Markup has the role of its message, "system" what the template adds before the first one. Where the template
        writes a chat otherwise than one with other contents, all of it is markup without a role. Raises
        InvalidValueError for a chat that the template refuses.
        """
        text, ids = self.text(messages)
        whole = self._render(messages)
        begin = len(whole) - len(text)
        parts = self._parts(messages, whole)
        if sum(len(part) for part, _ in parts) < len(whole):
            parts = [(whole, {"part": "markup"})]
        at, spans = -begin, list[Span]()
        for part, labels in parts:
            at, first = at + len(part), max(at, 0)
            if at > first:
                spans.append(Span(first, at, labels=labels))
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

    def _parts(self, messages: Sequence[Message], text: str) -> list[tuple[str, dict[str, str | None]]]:
        """Return the parts of the text of a chat with their labels, as far as it is written as with other contents."""
        marked = [
            {**message, "content": PLACEHOLDER.format(number)} if message.get("content") else message
            for number, message in enumerate(messages)
        ]
        if (key := repr(marked)) not in self._layouts:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = self._layout(marked)
        written, between = self._layouts[key]
        at, parts = 0, list[tuple[str, dict[str, str | None]]]()
        for place, markup in enumerate(between):
            after = "".join(part for part, _ in markup)
            if place:
                message = messages[written[place - 1]]
                content, kind = str(message["content"]), "content"
                forms = (content, content.strip(), content.rstrip(), content.lstrip())
                own = next((form for form in forms if text.startswith(form + after, at)), None)
                if own is None:  # what the template changes is its own
                    end = len(text) - len(after) if place == len(written) else text.find(after, at)
                    own, kind = text[at:end], "markup"
                parts.append((own, {"role": str(message.get("role")), "part": kind}))
                at += len(own)
            if not text.startswith(after, at):
                break
            parts += [(part, {"role": role, "part": "markup"}) for part, role in markup]
            at += len(after)
        return parts

    def _layout(self, marked: Sequence[Message]) -> _Layout:
        """Return the numbers of the messages whose contents, which are placeholders, the template writes.

        Also returns what it writes before, between and after these: parts of the text and the roles of their messages.
        """
        whole = self._try(marked)
        places = list(re.finditer(PLACEHOLDER.format("([0-9]+)"), whole))
        system = {"role": SYSTEM, "content": PLACEHOLDER}
        with_system = self._try([system, *marked])
        rest = with_system[self._length([system], with_system) :]
        bounds = [0, len(whole) - len(rest) if rest and whole.endswith(rest) else 0]  # between messages
        ends = {int(place[1]): place.end() for place in places}
        for number in range(len(marked)):
            bounds.append(max(bounds[-1], self._length(marked[: number + 1], whole) or ends.get(number, 0)))
        bounds[-1] = len(whole)
        roles = [SYSTEM, *(str(message.get("role")) for message in marked)]
        edges = [0, *(edge for place in places for edge in place.span()), len(whole)]
        between = []
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            cuts = sorted({begin, end, *(bound for bound in bounds if begin < bound < end)})
            between.append([(whole[at:to], roles[bisect_right(bounds, at) - 1]) for at, to in pairwise(cuts)])
        return [int(place[1]) for place in places], between

    def _length(self, messages: Sequence[Message], whole: str) -> int:
        """Return how much of the text of a longer chat these messages are; 0 if that is not known."""
        alone = self._try(messages)
        return len(alone) if whole.startswith(alone) else 0

    def _try(self, messages: Sequence[Message]) -> str:
        """Return the text of messages, none if the template refuses them."""
        try:
            return self._render(messages)
        except Exception:
            return ""
