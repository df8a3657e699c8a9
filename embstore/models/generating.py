"""Texts that a decoder generates, as a corpus with the subwords that it was given and generated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers

from embstore.arguments import Range, checked
from embstore.config import settings
from embstore.corpus.formats.tables import is_chat, parse_object
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import is_encodable
from embstore.errors import InvalidValueError, StorageError, quoted
from embstore.models.checkpoint import Checkpoint, language_model, open_checkpoint, quiet
from embstore.models.memory import memory_needed
from embstore.models.placing import Place, own_dtype
from embstore.models.transformer.chat import Chats
from embstore.models.transformer.network import longest_sentence
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.progress import reporting
from embstore.store.storage.files import replacing

PART = "part"  # the label column: "prompt" or "generated"
Prompt = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]


@dataclass(frozen=True)
class Generated:
    """What `generate` has written: the path, and the numbers of texts, of subwords in prompts and of generated ones."""

    path: Path
    texts: int
    prompt_subwords: int
    subwords: int


@checked
def generate(
    prompts: str | Path | Iterable[Prompt],
    out: str | Path,
    *,
    model: str | Path,
    max_new_tokens: Annotated[int, Range(1, 2**20)] = 64,
    temperature: Annotated[float, Range(0, 100)] = 0.0,
    seed: Annotated[int, Range(0, 2**64 - 1)] = 0,
    batch_size: Annotated[int, Range(1, 2**16)] = 8,
    revision: str | None = None,
) -> Generated:
    """Continue prompts, and write prompts and continuations as a corpus of JSON lines for `extract`.

    A line is a document: its text, the subwords of it that the model was given and generated, and spans with the label
    `part`, "prompt" or "generated". These subwords are extracted, whatever others the text could have. So one pass of
    `extract` with the context "document" gives the states while generating, and that of the last subword, which
    generating never computes.

    Parameters
    ----------
    prompts : str, Path or iterable
        A file with a prompt a line, or of JSON lines with "text" (or "prompt"), or with "messages", a chat that the
        model's template writes; or Python objects like these. Other single values of a line become fields of the
        document.
    out : str or Path
        NAME.jsonl.
    model : str or Path
        A decoder: a folder, or a name of the Hugging Face hub.
    max_new_tokens : int
        Subwords that are generated for a prompt, at most; a special token that ends a text is part of it.
    temperature : float
        0 takes the likeliest subword, else they are drawn; the model's own defaults of sampling are not used.
    seed : int
        Of what is drawn, which is the same for the same prompts and `batch_size` on one machine.
    batch_size : int
        Prompts that are continued together.
    revision : str or None
        Of a model of the hub.

    Raises
    ------
    InvalidValueError
        For a prompt that is empty or too long.
    ModelError
        For a model that does not generate.
    StorageError
        If `out` exists.
    """
    path = Path(out)
    if path.suffix != ".jsonl":
        raise InvalidValueError(f"{path} has another suffix than .jsonl, which the corpus is written as")
    if path.exists():
        raise StorageError(f"{path} exists already: give a new file")
    rows, place = list(_rows(prompts)), Place.of(settings().device)
    checkpoint = open_checkpoint(model, revision=revision)
    texts, ids, subwords = _tokenized(rows, checkpoint, str(model), max_new_tokens)
    prefix = list(subwords.specials.prefix)
    continued: list[list[int]] = []
    fits = memory_needed(f"the model {str(model)!r}", place.main)
    shown = reporting(settings().progress, total=len(rows), unit="texts", label="generate")
    with quiet(), fits, torch.random.fork_rng(), shown as report:
        network = language_model(checkpoint, place, str(model), own_dtype(checkpoint.config, place))
        ends = network.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else ends or []
        # What is not set here would be taken from the model's own defaults.
        sampling = {"temperature": float(temperature), "top_k": 0} if temperature else {}
        kind: Any = transformers.GenerationConfig
        network.generation_config = kind(
            max_new_tokens=max_new_tokens,
            do_sample=bool(temperature),
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
            **sampling,
        )
        for start in range(0, len(rows), batch_size):  # each batch has random numbers of its own
            torch.manual_seed(int(np.random.SeedSequence([seed, start]).generate_state(1, np.uint64)[0]))
            continued += _continued(network, [prefix + prompt for prompt in ids[start : start + batch_size]], ends)
            report(len(continued))
    with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        for (_, fields), prompt, given, new in zip(rows, texts, ids, continued, strict=True):
            before, whole = subwords.decode(given), subwords.decode([*given, *new])
            text = prompt + (whole[len(before) :] if whole.startswith(before) else subwords.decode(new))
            bounds = {"prompt": (0, len(prompt)), "generated": (len(prompt), len(text))}
            spans = [{"start": start, "stop": stop, PART: part} for part, (start, stop) in bounds.items()]
            row = {"text": text, "ids": [*given, *new], "spans": spans, **fields}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return Generated(path, len(rows), sum(map(len, ids)), sum(map(len, continued)))


def _rows(prompts: str | Path | Iterable[Prompt]) -> Iterator[tuple[Prompt, dict[str, Any]]]:
    """Yield each prompt, a text or a chat, and the fields of its document."""
    number = -1
    if isinstance(prompts, str | Path):
        is_json = re.search(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", str(prompts))
        lines = Lines(Path(prompts), kind="file of prompts")
        parse: Callable[[str], Prompt] = parse_object if is_json else str
        prompts = (prompt for _, prompt in lines.parsed(parse))
    for number, prompt in enumerate(prompts):
        fields: dict[str, Any] = {}
        if isinstance(prompt, Mapping):
            name = next((name for name in ("text", "prompt", "messages") if name in prompt), None)
            if name is None:
                raise InvalidValueError(f"prompt {number} has no text, prompt or messages: {quoted(dict(prompt))}")
            single = (item for item in prompt.items() if item[1] is None or isinstance(item[1], str | int | float))
            fields = {key: value for key, value in single if key not in (name, "text", "ids", "spans", PART)}
            prompt = prompt[name]
        if not (isinstance(prompt, str) and prompt) and not is_chat(prompt):
            raise InvalidValueError(f"prompt {number} is {quoted(prompt)}: give a text or a chat, not empty")
        if not is_encodable(json.dumps([prompt, fields], ensure_ascii=False, default=str)):
            raise InvalidValueError(f"prompt {number} {quoted(prompt)} is not text: it holds half a surrogate pair")
        yield prompt, fields
    if number < 0:
        raise InvalidValueError("there are no prompts: give one or more")


def _tokenized(
    rows: Sequence[tuple[Any, Any]], checkpoint: Checkpoint, name: str, new: int
) -> tuple[list[str], list[list[int]], SubwordTokenizer]:
    """Return the text of each prompt and its subwords, without the special ones that the tokenizer puts before it."""
    config, own = checkpoint.config.get_text_config(), checkpoint.tokenizer
    subwords = SubwordTokenizer(own, vocabulary=config.vocab_size)
    chats = Chats(own, subwords)
    texts, given = [], []
    for number, (prompt, _) in enumerate(rows):
        try:
            is_text = isinstance(prompt, str)
            text, ids = (prompt, subwords.ids(prompt)) if is_text else chats.text(prompt, prompt=True)
        except InvalidValueError as error:
            raise InvalidValueError(f"prompt {number}: {error}") from None
        texts.append(text)
        given.append(ids)
    limit = longest_sentence(config, own, subwords.specials, None)
    for number, ids in enumerate(given):
        n_all = len(ids) + new
        if not ids or (limit is not None and n_all > limit):
            raise InvalidValueError(
                f"prompt {number} has {len(ids):,} subwords, with {new:,} new ones {n_all:,}: {name!r} takes 1 to "
                f"{limit or n_all:,}"
            )
    return texts, given, subwords


@torch.inference_mode()
def _continued(network: Any, prompts: list[list[int]], ends: Sequence[int]) -> list[list[int]]:
    """Return what follows each prompt, up to and with the first subword that ends a text."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    rows = network.generate(input_ids=ids.to(network.device), attention_mask=mask.to(network.device))
    new: list[list[int]] = rows[:, longest:].tolist()
    stops = [next((at + 1 for at, index in enumerate(row) if index in ends), len(row)) for row in new]
    return [row[:stop] for row, stop in zip(new, stops, strict=True)]
