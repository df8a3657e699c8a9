"""Texts that a decoder generates, as a corpus whose subwords are those that it generated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from embstore.arguments import checked
from embstore.corpus.formats.chat import is_chat
from embstore.corpus.formats.jsonl import parse_object
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import is_encodable
from embstore.devices import choose_dtype
from embstore.errors import InvalidValueError, ModelError, StorageError, check_whole, quoted
from embstore.models.checkpoint import Checkpoint, open_checkpoint, quiet, read_network, reason
from embstore.models.memory import memory_needed
from embstore.models.placing import Device, Place, own_dtype
from embstore.models.transformer.probing import longest_sentence
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.progress import Progress, reporting
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
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    batch_size: int = 8,
    device: Device = "auto",
    compute_dtype: str = "auto",
    revision: str | None = None,
    progress: Progress = None,
) -> Generated:
    """Continue prompts, and write prompts and continuations as a corpus of JSON lines for `extract`.

    A line is a document of one sentence with the label column `part`, "prompt" or "generated", of its words. The model
    reads exactly the subwords that it was given and generated: a word that its tokenizer would split into others is
    broken into its subwords, and one without a spelling of its own, such as half a character, is its number. So one
    pass of `extract` gives the states while generating, and that of the last subword, which generating never computes.

    `prompts`: a file with a prompt a line, or of JSON lines with "text" (or "prompt"), or with "messages", a chat that
    the model's template writes; or Python objects like these. Other single values of a line become fields of the
    document. `temperature`: 0 takes the likeliest subword, else they are drawn, among the likeliest that have together
    the probability `top_p`. `seed`: of what is drawn, which is the same for the same prompts and `batch_size` on one
    machine. A special token that ends a text is part of it. The model's own defaults of sampling are not used.

    Raises InvalidValueError for an argument that is not allowed and for a prompt that is empty or too long, ModelError
    for a model that does not generate, StorageError if `out` exists.
    """
    path = Path(out)
    check_whole("max_new_tokens", max_new_tokens, 1, 2**20)
    check_whole("batch_size", batch_size, 1, 2**16)
    check_whole("seed", seed, 0, 2**63 - 1)
    _check_between("temperature", temperature, 0, 100)
    _check_between("top_p", top_p, 1e-6, 1)
    if path.suffix != ".jsonl":
        raise InvalidValueError(f"{path} has another suffix than .jsonl, which the corpus is written as")
    if path.exists():
        raise StorageError(f"{path} exists already: give a new file")
    rows, checkpoint, place = list(_rows(prompts)), open_checkpoint(model, revision=revision), Place.of(device)
    dtype = own_dtype(checkpoint.config, place) if compute_dtype == "auto" else choose_dtype(compute_dtype, place.main)
    given, subwords = _tokenized(rows, checkpoint, str(model), max_new_tokens)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": bool(temperature)}
    settings |= {"temperature": float(temperature), "top_p": float(top_p), "top_k": 0} if temperature else {}
    with quiet(), memory_needed(f"the model {str(model)!r}", place.main), torch.random.fork_rng():
        network = _language_model(checkpoint, place, dtype, str(model))
        settings = _only(network, settings)
        torch.manual_seed(seed)
        found: list[list[int]] = []
        with reporting(progress, total=len(given), unit="texts", label="generate") as report:
            for start in range(0, len(given), batch_size):
                found += _continued(network, given[start : start + batch_size], settings)
                report(len(found))
    n_before = len(subwords.specials.prefix)
    with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        for (_, fields), prompt, new in zip(rows, given, found, strict=True):
            file.write(json.dumps(_line(subwords, prompt[n_before:], new, fields), ensure_ascii=False) + "\n")
    return Generated(path, len(rows), sum(map(len, given)) - n_before * len(given), sum(map(len, found)))


def _check_between(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give {least} to {most}")


def _line(subwords: SubwordTokenizer, prompt: list[int], new: list[int], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of words, each of the prompt or of what follows."""
    words, starts = subwords.words_of([*prompt, *new], cut=len(prompt))
    return {**fields, "text": words, PART: ["prompt" if start < len(prompt) else "generated" for start in starts]}


def _rows(prompts: str | Path | Iterable[Prompt]) -> Iterator[tuple[Prompt, dict[str, Any]]]:
    """Yield each prompt, a text or a chat, and the fields of its document."""
    number = -1
    for number, prompt in enumerate(_read(Path(prompts)) if isinstance(prompts, str | Path) else prompts):
        fields: dict[str, Any] = {}
        if isinstance(prompt, Mapping):
            name = next((name for name in ("text", "prompt", "messages") if name in prompt), None)
            if name is None:
                raise InvalidValueError(f"prompt {number} has no text, prompt or messages: {quoted(dict(prompt))}")
            single = {
                key: value for key, value in prompt.items() if value is None or isinstance(value, str | int | float)
            }
            fields = {key: value for key, value in single.items() if key not in (name, "text", PART)}
            prompt = prompt[name]
        if not (isinstance(prompt, str) and prompt) and not is_chat(prompt):
            raise InvalidValueError(f"prompt {number} is {quoted(prompt)}: give a text or a chat, not empty")
        if not is_encodable(json.dumps([prompt, fields], ensure_ascii=False, default=str)):
            raise InvalidValueError(f"prompt {number} {quoted(prompt)} is not text: it holds half a surrogate pair")
        yield prompt, fields
    if number < 0:
        raise InvalidValueError("there are no prompts: give one or more")


def _read(path: Path) -> Iterator[Prompt]:
    is_json = path.name.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson"))
    lines = Lines(path, kind="file of prompts")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield parse_object(line) if is_json else line
        except InvalidValueError as error:
            raise lines.error(number, str(error)) from None


def _tokenized(
    rows: Sequence[tuple[Prompt, Any]], checkpoint: Checkpoint, name: str, new: int
) -> tuple[list[list[int]], SubwordTokenizer]:
    """Return the subwords of each prompt, special ones before it included, as the model's own tokenizer has them."""
    config, own = checkpoint.config.get_text_config(), checkpoint.tokenizer
    given = []
    for number, (prompt, _) in enumerate(rows):
        text = prompt
        if not isinstance(prompt, str):
            try:
                text = own.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
            except Exception as error:
                raise InvalidValueError(f"prompt {number} is a chat that {name!r} refuses: {reason(error)}") from None
        given.append(own(text, add_special_tokens=False)["input_ids"])
    subwords = SubwordTokenizer(own, vocabulary=config.vocab_size)  # changes the tokenizer
    prefix = list(subwords.specials.prefix)
    given = [[*prefix, *(ids[len(prefix) :] if prefix and ids[: len(prefix)] == prefix else ids)] for ids in given]
    limit = longest_sentence(config, own, subwords.specials, None)
    for number, ids in enumerate(given):
        n_all = len(ids) - len(prefix) + new
        if len(ids) == len(prefix) or (limit is not None and n_all > limit):
            raise InvalidValueError(
                f"prompt {number} has {len(ids) - len(prefix):,} subwords, with {new:,} new ones {n_all:,}: {name!r} "
                f"takes 1 to {limit or n_all:,}"
            )
    return given, subwords


def _language_model(checkpoint: Checkpoint, place: Place, dtype: torch.dtype, name: str) -> Any:
    auto: Any = transformers.AutoModelForCausalLM
    if type(checkpoint.config) not in auto._model_mapping or checkpoint.config.is_encoder_decoder:
        raise ModelError(f"the model {name!r} ({checkpoint.config.model_type}) does not generate text: give a decoder")
    options = place.options()
    network, report = read_network(auto, checkpoint.folder, checkpoint.config, dtype, **options)
    tied = set(getattr(network, "_tied_weights_keys", None) or ())
    if missing := sorted(set(report["missing_keys"]) - tied):
        raise ModelError(f"the model {name!r} has no language modeling head: its weights do not contain {missing[0]!r}")
    return (network if options else network.to(place.main)).eval()


@torch.inference_mode()
def _continued(network: Any, prompts: list[list[int]], settings: Mapping[str, Any]) -> list[list[int]]:
    """Return what follows each prompt, up to and with the first subword that ends a text."""
    longest, ends = max(map(len, prompts)), settings["eos_token_id"] or []
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    new = network.generate(input_ids=ids.to(network.device), attention_mask=mask.to(network.device))[:, longest:]
    found = new.tolist()
    stops = [next((at + 1 for at, index in enumerate(row) if index in ends), len(row)) for row in found]
    return [row[:stop] for row, stop in zip(found, stops, strict=True)]


def _only(network: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Let a network generate by these settings alone, not by its own; returns them with the subwords that end a text.

    What is not set in an argument of `generate` would be taken from the network.
    """
    ends = network.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends or None
    kind: Any = transformers.GenerationConfig
    network.generation_config = kind(**settings, eos_token_id=ends, pad_token_id=ends[0] if ends else 0)
    return {**settings, "eos_token_id": ends}
