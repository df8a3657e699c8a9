"""Chats: messages as text, and as the chat template of a model writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import transformers
from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import Split

from embstore.corpus import Sentence, open_corpus
from embstore.errors import CorpusError, InvalidValueError, ModelError
from embstore.models import chat_template, load_encoder
from tests.corpus.test_errors import complaint
from tests.models import tiny

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
)
# As Mistral writes them: the system message is put into the first of the user, and the text begins with <s>.
INST = (
    "{{ '<s>' }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% if not messages %}{{ raise_exception('no message of the user') }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST]' }}"
    "{% if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}{{ m['content'] | trim }}{{ '[/INST]' }}"
    "{% else %}{{ m['content'] }}{{ '</s>' }}{% endif %}{% endfor %}"
)
CHAT = [
    {"role": "system", "content": "No."},
    {"role": "user", "content": "the cat sat on the mat\n\nthe bank, was old."},
    {"role": "assistant", "content": "Rivers flow; banks lend.\nok !"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function that makes the folder of a tiny model with a chat template."""

    def make(name: str, template: str) -> Path:
        folder = tiny.save(name.removesuffix("-nested"), tmp_path_factory.mktemp("chats") / name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if name == "gpt2-nested":  # as Qwen and Llama 3 have it
            split = Split(Regex(r"\n+| ?\w+| ?[^\w\s]+|\s+"), "isolated")
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]})
        if name == "llama":
            tokenizer.bos_token = "<s>"
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        network = transformers.AutoModel.from_pretrained(folder)
        network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        network.save_pretrained(folder)
        return folder

    return make


def marked(sentence: Sentence) -> list[str]:
    return ["\x1f" * (at in sentence.attached) + word for at, word in enumerate(sentence.words)]


@pytest.mark.parametrize(
    ("name", "template"), [("gpt2", CHATML), ("gpt2-nested", CHATML), ("llama", CHATML), ("llama", INST)]
)
@pytest.mark.quick(2)
def test_the_model_is_given_the_ids_of_its_chat_template(
    model: Callable[[str, str], Path], name: str, template: str
) -> None:
    folder = model(name, template)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    trimmed = [{"messages": [{**CHAT[1], "content": "  the old river\n"}]}] * (template == INST)
    rows = [{"messages": CHAT}, {"messages": CHAT[1:]}, *trimmed]
    corpus = open_corpus(rows, chat=chat_template(folder))
    encoder = load_encoder(folder)
    sentences = list(corpus)
    tokenized = encoder.tokenize([marked(each) for each in sentences])
    before, after = encoder.special_ids
    assert not after
    for number, sentence in enumerate(sentences):
        first, last = tokenized.word_indptr[tokenized.sentence_indptr[number : number + 2]]
        expected = tokenizer.apply_chat_template(rows[number]["messages"], tokenize=True, return_dict=False)
        given = [*before, *tokenized.ids[first:last].tolist()]
        if not before or expected[0] != before[0]:  # the tokenizer puts <s> before every text, this template does not
            given = given[len(before) :]
        assert given == expected
        assert set(sentence.words) & {"<|im_start|>", "[INST]"}
    assert corpus.options["chat"] == str(folder)


def test_every_word_has_the_role_of_its_message(model: Callable[[str, str], Path]) -> None:
    (sentence,) = open_corpus([{"messages": CHAT, "year": 1}], chat=chat_template(model("gpt2", CHATML)))
    assert sentence.document is not None
    assert sentence.document.fields == {"year": 1}
    words: dict[str | None, list[str]] = {}
    for word, role in zip(sentence.words, sentence.labels["role"], strict=True):
        words.setdefault(role, []).append(word)
    assert [words[role][:3] for role in ("system", "user", "assistant")] == [
        ["<|im_start|>", role, "\n"] for role in ("system", "user", "assistant")
    ]
    assert all(each[-2:] == ["<|im_end|>", "\n"] for each in words.values())
    assert "\n\n" in words["user"]
    (sentence,) = open_corpus([{"messages": CHAT}], chat=chat_template(model("llama", INST)))
    roles = dict(zip(sentence.words, sentence.labels["role"], strict=True))
    assert {roles[word] for word in ("[INST]", "No")} == {"system"}
    assert {roles[word] for word in ("cat", "\n\n", "[/INST]")} == {"user"}
    assert {roles[word] for word in ("Rivers", "</s>")} == {"assistant"}


def test_messages_without_a_template_are_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"messages": [CHAT], "id": ["x"]}).write_parquet(path)
    found = list(open_corpus(path))
    assert {sentence.document for sentence in found} == {found[0].document}
    assert found[0].words == ["No", "."]
    roles = [label for each in found for label in each.labels["role"]]
    assert roles == sorted(roles, key=["system", "user", "assistant"].index)  # type: ignore[arg-type]
    assert set(roles) == {"system", "user", "assistant"}


class Refusing:
    """A template that changes what the messages say, or refuses them."""

    name = "upper"
    specials: Sequence[str] = ()

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if messages[0]["role"] == "nobody":
            raise InvalidValueError("the chat template of upper refuses the messages: nobody")
        return f"{len(messages)} " + " ".join(message["content"].upper() for message in messages)


@pytest.mark.parametrize(
    ("messages", "options", "expected"),
    [
        ([{"role": "user", "content": ["a"]}], {}, "row 0: message 0: content is ['a'], not a text"),
        ([{"content": "a"}], {}, "row 0: message 0: role is None, not a text"),
        ([{"role": "user", "content": "\ud800"}], {}, "half of a surrogate pair"),
        (CHAT, {"spans": "x"}, "spans: they are offsets in a text, and 'messages' is a chat"),
        (CHAT, {"chat": Refusing()}, "message 0: the chat template does not write its content as it is"),
        ([{"role": "nobody", "content": "a"}], {"chat": Refusing()}, "row 0: the chat template of upper refuses"),
        (CHAT, {"chat": "gpt2"}, "chat 'gpt2' is not allowed: give ChatTemplate or None"),
    ],
)
def test_bad_chats(messages: Any, options: dict[str, Any], expected: str) -> None:
    error: Any = (CorpusError, InvalidValueError)
    assert expected in complaint(lambda: list(open_corpus([{"messages": messages, "x": None}], **options)), error)


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    folder = tiny.save("gpt2", tmp_path / "gpt2")
    assert "has no chat template" in complaint(lambda: chat_template(folder), ModelError)
