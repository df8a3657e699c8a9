"""Chats as the template writes them, and texts that a decoder generates, with the states of generating."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import embstore as es
from embstore.corpus.sentence import Document
from embstore.errors import InvalidValueError, ModelError, StorageError
from embstore.models import generate, generating, load_encoder
from embstore.models.transformer.chat import Chats
from embstore.models.transformer.tokens import SubwordTokenizer
from tests.extraction.plans import plan_of
from tests.models import tiny
from tests.models.oracle import relative_error
from tests.models.texts import cut, tokenizer_of

KINDS: dict[str, Any] = {"llama": transformers.LlamaForCausalLM, "gpt2": transformers.GPT2LMHeadModel}
PROMPTS = ["The cat sat on the", "Rivers flow to  the sea\n\n;", "the bank", "日本"]
CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def decoder(name: str, folder: Path) -> Path:
    """Save a tiny decoder with its language modeling head."""
    tiny.save(name, folder)
    torch.manual_seed(0)
    KINDS[name].from_pretrained(folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request, tmp_path_factory) -> Path:
    return decoder(request.param, tmp_path_factory.mktemp(request.param))


def plainly(model: Path, prompt: str, new: int) -> tuple[list[int], Any]:
    """Return the subwords of a prompt and of its greedy continuation, and the states that generating computes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    ids = tokenizer.backend_tokenizer.encode(prompt).ids
    network = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    out = network.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),
        max_new_tokens=new,
        do_sample=False,
        output_hidden_states=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    states = [torch.cat(layers, 1)[0] for layers in zip(*out.hidden_states, strict=True)]
    return out.sequences[0].tolist(), torch.stack(states).numpy()


@pytest.mark.quick(1)
def test_states_are_those_while_generating(model, tmp_path):
    made = generate(PROMPTS, tmp_path / "made.jsonl", model=model, max_new_tokens=24, batch_size=3)
    corpus = es.open_corpus(made.path)
    encoder = load_encoder(model)
    options = {"unit": "subword", "dtype": "float32", "context": "document"}
    store = es.extract(plan_of(corpus, model=encoder, **options), tmp_path / "made.zarr")
    vectors = store.select().vectors()
    generated = store.select(where="part == 'generated'")
    n_blank = sum(
        not encoder.tokenizer.decode(row["ids"][at:][:1]).strip() for row in rows_of(made.path) for at in range(-24, 0)
    )
    assert len(generated) == made.subwords - n_blank, "white space has no labels"
    rows = 0
    assert made.texts == len(PROMPTS)
    for number, prompt in enumerate(PROMPTS):
        ids, states = plainly(model, prompt, 24)
        own = ids_of(encoder, made.path)[number]
        assert own == ids[encoder.n_before :]
        mine = vectors[:, rows : rows + len(own)]
        rows += len(own)
        assert relative_error(mine[:, :-1], states[:, encoder.n_before :]) < 2e-5
    assert rows == store.n_rows == made.prompt_subwords + made.subwords


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def ids_of(encoder: Any, path: Path) -> list[list[int]]:
    """Return the subwords of each text, cut into sentences and words anywhere."""
    documents = [Document(row["text"], ids=row["ids"]) for row in rows_of(path)]
    return [encoder.tokenize(cut(each.text, seed=0, document=each)).ids.tolist() for each in documents]


@pytest.mark.slow
def test_sampled_texts_are_given_back_and_reproduced(model, tmp_path, monkeypatch):
    found: list[list[int]] = []
    continued = generating._continued

    def watched(network, prompts, *given):
        new = continued(network, prompts, *given)
        found.extend([*prompt, *more] for prompt, more in zip(prompts, new, strict=True))
        return new

    monkeypatch.setattr(generating, "_continued", watched)
    options = {"model": model, "max_new_tokens": 40, "temperature": 3.0}
    texts, encoder = [], load_encoder(model)
    for seed in (0, 0, 1):
        found.clear()
        path = generate(PROMPTS * 2, tmp_path / f"{len(texts)}.jsonl", seed=seed, **options).path
        texts.append(path.read_bytes())
        assert ids_of(encoder, path) == [each[encoder.n_before :] for each in found]
        for row, prompt in zip(rows_of(path), PROMPTS * 2, strict=True):
            (first, last), text = row["spans"], row["text"]
            assert text.startswith(prompt)
            assert first == {"start": 0, "stop": len(prompt), "part": "prompt"}
            assert last == {"start": len(prompt), "stop": len(text), "part": "generated"}
    assert texts[0] == texts[1] != texts[2]


def test_a_text_ends_with_what_ends_it(tmp_path):
    folder = decoder("gpt2", tmp_path / "model")
    ids, _ = plainly(folder, PROMPTS[0], 6)
    new = ids[-6:]
    config = transformers.GenerationConfig(eos_token_id=[new[3]], repetition_penalty=9.0, do_sample=True)
    config.save_pretrained(folder)
    made = generate(PROMPTS[:1], tmp_path / "made.jsonl", model=folder, max_new_tokens=6)
    assert made.subwords == new.index(new[3]) + 1
    assert ids_of(load_encoder(folder), made.path) == [ids[: len(ids) - 6 + made.subwords]]


def test_prompts_of_a_file_with_fields_and_chats(model, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = CHAT
    chat = [{"role": "user", "content": "the bank"}]
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "the cat", "year": 1900, "list": [1]}, {"messages": chat}]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with pytest.raises(
        InvalidValueError, match=r"^prompt 1: the model's chat template refuses the chat: .*chat_template"
    ):
        generate(path, tmp_path / "made.jsonl", model=model, max_new_tokens=3)
    own = tmp_path / "own"
    shutil.copytree(model, own)
    tokenizer.save_pretrained(own)
    made = generate(path, tmp_path / "made.jsonl", model=own, max_new_tokens=3)
    first, second = rows_of(made.path)
    assert {name for name in first if name not in ("text", "ids", "spans")} == {"year"}
    assert set(second) == {"text", "ids", "spans"}
    encoder = load_encoder(own)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    text = "<s>user\nthe bank</s>\n<s>assistant\n"
    given = backend.encode(text, add_special_tokens=False).ids
    mine = ids_of(encoder, made.path)[1]
    assert mine[:-3] == given[encoder.n_before :]  # Llama's tokenizer puts the first <s> there itself
    assert second["text"].startswith(text.removeprefix("<s>" * encoder.n_before))


def test_subwords_of_another_tokenizer_are_refused(model, tmp_path):
    made = generate(["日本"], tmp_path / "made.jsonl", model=model, max_new_tokens=3)
    other = load_encoder(tiny.save("bert", tmp_path / "bert"))
    with pytest.raises(ModelError, match=r"^the ids of a document are not subwords of its text, '日本"):
        plan_of(es.open_corpus(made.path), model=other)


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        ([], {}, InvalidValueError, "there are no prompts"),
        (["a", ""], {}, InvalidValueError, "prompt 1 is '': give a text or a chat, not empty"),
        ([[{"role": "user", "content": "\ud800"}]], {}, InvalidValueError, "prompt 0 .* is not text: it holds half a"),
        ([{"body": "a"}], {}, InvalidValueError, "prompt 0 has no text, prompt or messages: {'body': 'a'}"),
        (
            ["cat " * 200],
            {"max_new_tokens": 200},
            InvalidValueError,
            r"prompt 0 has \d+ subwords, with 200 new ones \d+",
        ),
        (["a"], {"out": "made.txt"}, InvalidValueError, r"made.txt has another suffix than \.jsonl"),
        (["a"], {"out": "there.jsonl"}, StorageError, "exists already: give a new file"),
        (["a"], {"model": "bert"}, ModelError, "has no language modeling head|does not generate text"),
    ],
)
def test_what_cannot_be_generated_is_a_line(prompts, options, error, message, tmp_path):
    (tmp_path / "there.jsonl").touch()
    folder = tiny.save(options.get("model", "gpt2"), tmp_path / "model")
    if options.get("model") is None:
        decoder("gpt2", folder)
    out = tmp_path / options.get("out", "made.jsonl")
    with pytest.raises(error, match=message):
        generate(prompts, **{"max_new_tokens": 2} | options | {"model": folder, "out": out})
    assert not (tmp_path / "made.jsonl").exists()


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
