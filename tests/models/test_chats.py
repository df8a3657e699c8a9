"""Chats as documents: the template's text and subwords, and labels of what is content and what markup."""

from __future__ import annotations

from typing import Any

import pytest

from embstore.errors import InvalidValueError
from embstore.models.transformer.chat import Chats
from embstore.models.transformer.tokens import SubwordTokenizer
from tests.models.texts import cut, tokenizer_of

LOOP = "{% for message in messages %}"
END = "{% endfor %}"
TEMPLATES = {
    "chatml": LOOP
    + "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n" + END,
    "llama 3": "{{ bos_token }}{% set m, s = messages, '' %}{% if m[0]['role'] == 'system' %}"
    "{% set m, s = m[1:], m[0]['content']|trim %}{% endif %}<|im_start|>system<|im_end|>\n\nDate: 1 Jan\n\n{{ s }}</s>"
    "{% for message in m %}<|im_start|>{{ message['role'] }}<|im_end|>\n\n{{ message['content']|trim }}</s>" + END,
    "zephyr": LOOP + "<|{{ message['role'] }}|>\n{{ message['content'] + '</s>' }}\n" + END,
    "mistral": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% endif %}" + LOOP + "{% if message['role'] == 'user' %}[INST] "
    "{% if loop.first and s is defined %}{{ s }}\n\n{% endif %}{{ message['content'] }} [/INST]{% else %}"
    "{{ message['content'] }}</s>{% endif %}" + END,
    "plain": LOOP + "### {{ message['role']|capitalize }}:\n{{ message['content'].strip() }}\n\n" + END,
}
CHATS = [
    [("user", "user"), ("assistant", "It is\n\n4.")],
    [("system", " Be brief, 日本語 🙂\n"), ("user", "### User:\nWhat is 3+4?  "), ("assistant", "7</s>")],
    [("user", "a"), ("assistant", "a"), ("user", "a"), ("assistant", "user\n<|im_end|>\n")],
    [("system", "s"), ("user", "def f(x):\n\treturn x\n"), ("assistant", "…"), ("user", "?")],
]


@pytest.mark.parametrize("chat", range(len(CHATS)))
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", ["qwen", "llama"])
@pytest.mark.quick(10)
def test_chats_are_those_of_the_template(name, template, chat, data):
    """Also where both the template and the tokenizer begin a text with <s>: there is only one."""
    tokenizer = tokenizer_of(name, data)
    tokenizer.chat_template = TEMPLATES[template]
    subwords = SubwordTokenizer(tokenizer, vocabulary=60_000)
    messages = [{"role": role, "content": content} for role, content in CHATS[chat]]
    expected = tokenizer.apply_chat_template(messages, tokenize=True)["input_ids"]
    both = name == "llama" and template in ("llama 3", "mistral")
    document = Chats(tokenizer, subwords).write(messages)
    text = document.text
    assert "<s>" * both + text == tokenizer.apply_chat_template(messages, tokenize=False)
    split = subwords.tokenize(cut(text, seed=chat, document=document), scope="document")
    assert [*subwords.specials.prefix * both, *split.ids.tolist()] == expected

    spans = [(text[span.start : span.stop], span.labels["role"], span.labels["part"]) for span in document.spans]
    assert "".join(part for part, _, _ in spans) == text
    strips = template in ("llama 3", "plain")
    contents = [(content.strip() if strips else content, role) for role, content in CHATS[chat]]
    assert [(part, role) for part, role, kind in spans if kind == "content"] == contents
    if template in ("chatml", "zephyr", "llama 3"):  # markup is of the message whose content it is around
        for part, role, kind in spans:
            named = [other for other in ("system", "user", "assistant") if other in part]
            assert kind == "content" or named in ([], [role])
        roles = [role for _, role, kind in spans if kind == "markup"]
        assert len(roles) >= 2 * len(messages)
    if template in ("llama 3", "chatml") and CHATS[chat][0][0] != "system":
        assert spans[0][1:] == ("system", "markup")
        assert template == "llama 3" or spans[0][0] == "<|im_start|>system\nYou are helpful.<|im_end|>\n"


def test_what_a_template_refuses_and_what_has_no_text(data):
    tokenizer = tokenizer_of("qwen", data)
    subwords = SubwordTokenizer(tokenizer, vocabulary=60_000)
    assert not Chats(tokenizer, subwords).exists
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system\nhere') }}{% endif %}"
        + LOOP
        + "<{{ message.role }}>{% if message.content %}{{ message.content.split('</think>')[-1] }}{% endif %}"
        "{% for call in message.tool_calls or [] %}call {{ call }}{% endfor %}" + END
    )
    chats = Chats(tokenizer, subwords)
    assert chats.exists
    with pytest.raises(InvalidValueError, match=r"^the model's chat template refuses the chat: no system here$"):
        chats.write([{"role": "system", "content": "a"}])
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": None, "tool_calls": ["f(2)"]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "why</think>It is 4"},
    ]
    document = chats.write(messages)
    assert document.text == "<user>2?<assistant>call f(2)<tool>4<assistant>It is 4"
    parts = [(document.text[span.start : span.stop], *span.labels.values()) for span in document.spans]
    assert parts == [
        ("<user>", "user", "markup"),
        ("2?", "user", "content"),
        ("<assistant>call f(2)", "assistant", "markup"),
        ("<tool>", "tool", "markup"),
        ("4", "tool", "content"),
        ("<assistant>", "assistant", "markup"),
        ("It is 4", "assistant", "markup"),  # what the template changes is its own
    ]
    tokenizer.chat_template = LOOP + "{{ message.content }}{{ message.content|length }}" + END
    document = Chats(tokenizer, subwords).write(messages[:1])
    assert [(span.start, span.stop, span.labels) for span in document.spans] == [(0, 3, {"part": "markup"})]
