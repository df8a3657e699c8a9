"""Texts that a decoder generates, as a corpus whose subwords are those that it generated."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers

from embstore.arguments import Range, checked
from embstore.config import settings
from embstore.corpus.formats.chat import is_chat
from embstore.corpus.formats.jsonl import parse_object
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import is_encodable
from embstore.devices import choose_dtype
from embstore.errors import InvalidValueError, ModelError, StorageError, quoted
from embstore.models.checkpoint import Checkpoint, open_checkpoint, quiet, read_network, reason
from embstore.models.memory import memory_needed
from embstore.models.placing import Place, own_dtype
from embstore.models.transformer.probing import longest_sentence
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.progress import reporting
from embstore.store.storage.files import clean_up, replacing, storing
from embstore.store.storage.lock import ProcessLock

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
    top_p: Annotated[float, Range(1e-6, 1)] = 1.0,
    seed: Annotated[int, Range(0, 2**64 - 1)] = 0,
    batch_size: Annotated[int, Range(1, 2**16)] = 8,
    compute_dtype: str = "auto",
    revision: str | None = None,
) -> Generated:
    """Continue prompts, and write prompts and continuations as a corpus of JSON lines for `extract`.

    A line is a document of one sentence with the label column `part`, "prompt" or "generated", of its words. The model
    reads exactly the subwords that it was given and generated: a word that its tokenizer would split into others is
    broken into its subwords, and one without a spelling of its own, such as half a character, is its number. So one
    pass of `extract` gives the states while generating, and that of the last subword, which generating never computes.

    What is finished is in NAME.jsonl.partial until all is: the same call continues after one that was stopped.

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
    top_p : float
        Subwords are drawn among the likeliest that have together this probability.
    seed : int
        Of what is drawn, which is the same for the same prompts and `batch_size` on one machine.
    batch_size : int
        Prompts that are continued together.
    compute_dtype : str
        "float32", "float16", "bfloat16" or "auto", that of `load_encoder`.
    revision : str or None
        Of a model of the hub.

    Raises
    ------
    InvalidValueError
        For a prompt that is empty or too long.
    ModelError
        For a model that does not generate.
    StorageError
        If `out` exists or was begun by another call.
    """
    path = Path(out)
    if path.suffix != ".jsonl":
        raise InvalidValueError(f"{path} has another suffix than .jsonl, which the corpus is written as")
    if path.exists():
        raise StorageError(f"{path} exists already: give a new file")
    rows, checkpoint, place = (
        list(_rows(prompts)),
        open_checkpoint(model, revision=revision),
        Place.of(settings().device),
    )
    dtype = own_dtype(checkpoint.config, place) if compute_dtype == "auto" else choose_dtype(compute_dtype, place.main)
    given, subwords = _tokenized(rows, checkpoint, str(model), max_new_tokens)
    sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": bool(temperature)}
    sampling |= {"temperature": float(temperature), "top_p": float(top_p), "top_k": 0} if temperature else {}
    finished = _Finished.of(path, checkpoint.files, given, sampling, str(dtype), temperature and [seed, batch_size])
    with finished.lock():
        found = finished.read()
        with quiet(), memory_needed(f"the model {str(model)!r}", place.main), torch.random.fork_rng():
            network = _language_model(checkpoint, place, dtype, str(model))
            found += _rest(network, given, _only(network, sampling), finished, len(found), batch_size, seed)
        given = [prompt[len(subwords.specials.prefix) :] for prompt in given]
        with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
            for (_, fields), prompt, new in zip(rows, given, found, strict=True):
                file.write(json.dumps(_line(subwords, prompt, new, fields), ensure_ascii=False) + "\n")
        clean_up(finished.path)
    return Generated(path, len(rows), sum(map(len, given)), sum(map(len, found)))


@dataclass(frozen=True)
class _Finished:
    """The file of the batches of texts that are finished: a line with a digest of all they depend on, then one each."""

    path: Path
    digest: str

    @classmethod
    def of(cls, out: Path, weights: Sequence[Path], *depends: object) -> _Finished:
        files = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in weights]
        digest = hashlib.sha256(json.dumps([torch.__version__, transformers.__version__, files, depends]).encode())
        return cls(out.with_name(f"{out.name}.partial"), digest.hexdigest())

    def lock(self) -> ProcessLock:
        busy = f"another process is writing {self.path}; wait until it ends, or stop it"
        return ProcessLock(self.path.with_suffix(".lock"), busy)

    def read(self) -> list[list[int]]:
        """Return the texts; a line that is not whole is cut off. Raises StorageError for those of another call."""
        with storing(self.path):
            data = self.path.read_bytes() if self.path.exists() else b""
            whole, line_end, _ = data.rpartition(b"\n")
            if len(whole + line_end) < len(data):
                os.truncate(self.path, len(whole + line_end))
        head, *batches = whole.splitlines() or [self.digest.encode()]
        if head != self.digest.encode():
            raise StorageError(
                f"{self.path} was begun with other prompts, another model or other options: continue with those, or "
                "remove it"
            )
        return [text for batch in batches for text in json.loads(batch)]

    def add(self, texts: list[list[int]]) -> list[list[int]]:
        with storing(self.path), open(self.path, "ab") as file:
            file.write(b"" if file.tell() else f"{self.digest}\n".encode())
            file.write(f"{json.dumps(texts)}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        return texts


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


def _rest(
    network: Any,
    prompts: list[list[int]],
    sampling: Mapping[str, Any],
    finished: _Finished,
    first: int,
    batch_size: int,
    seed: int,
) -> list[list[int]]:
    """Return what follows each prompt from `first` on; each batch has random numbers of its own."""
    found: list[list[int]] = []
    with reporting(settings().progress, total=len(prompts), unit="texts", label="generate") as report:
        for start in range(first, len(prompts), batch_size):
            report(start)
            torch.manual_seed(int(np.random.SeedSequence([seed, start]).generate_state(1, np.uint64)[0]))
            found += finished.add(_continued(network, prompts[start : start + batch_size], sampling))
        report(len(prompts))
    return found


@torch.inference_mode()
def _continued(network: Any, prompts: list[list[int]], sampling: Mapping[str, Any]) -> list[list[int]]:
    """Return what follows each prompt, up to and with the first subword that ends a text."""
    longest, ends = max(map(len, prompts)), sampling["eos_token_id"] or []
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    new = network.generate(input_ids=ids.to(network.device), attention_mask=mask.to(network.device))[:, longest:]
    found = new.tolist()
    stops = [next((at + 1 for at, index in enumerate(row) if index in ends), len(row)) for row in found]
    return [row[:stop] for row, stop in zip(found, stops, strict=True)]


def _only(network: Any, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Let a network generate by these settings alone, not by its own; returns them with the subwords that end a text.

    What is not set in an argument of `generate` would be taken from the network.
    """
    ends = network.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends or None
    kind: Any = transformers.GenerationConfig
    network.generation_config = kind(**sampling, eos_token_id=ends, pad_token_id=ends[0] if ends else 0)
    return {**sampling, "eos_token_id": ends}
