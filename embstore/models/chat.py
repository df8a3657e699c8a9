"""The chat template of a model's tokenizer: how the messages of a chat become the text that the model is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.errors import InvalidValueError, ModelError
from embstore.models.checkpoint import open_tokenizer, reason


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer, which `open_corpus(chat=...)` applies to the messages of each chat.

    `name`: the model. `specials`: the spellings of special tokens, which are words of their own.
    """

    name: str
    specials: tuple[str, ...]
    _tokenizer: Any = field(repr=False, compare=False)
    _begins: str = field(repr=False, compare=False)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a chat, without the special token that the tokenizer itself puts before every text.

        `messages`: each with its role and content. Raises InvalidValueError if the template refuses them.
        """
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False)
        except Exception as error:  # jinja2.TemplateError, and whatever the template does to the messages
            raise InvalidValueError(f"the chat template of {self.name} refuses the messages: {reason(error)}") from None
        return str(text).removeprefix(self._begins) if self._begins else str(text)


@checked
def chat_template(model: str | Path, *, revision: str | None = None) -> ChatTemplate:
    """Return the chat template of a model folder or a model of the Hugging Face hub.

    Raises ModelError if there is no such model, or if its tokenizer has no chat template.
    """
    tokenizer = open_tokenizer(model, revision=revision)
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"the tokenizer of {str(model)!r} has no chat template: give a model that is made for chats")
    added = tokenizer("a")["input_ids"]
    begins = tokenizer.bos_token if tokenizer.bos_token_id in added[:1] else ""
    specials = sorted(set(tokenizer.get_added_vocab()) | set(tokenizer.all_special_tokens))
    return ChatTemplate(str(model), tuple(specials), tokenizer, begins)
