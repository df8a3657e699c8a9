"""Hugging Face checkpoints from a folder or the hub: safetensors only, no code from the folder, errors in one line."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from safetensors import SafetensorError, safe_open
from tokenizers.processors import TemplateProcessing

from embstore.arguments import checked
from embstore.errors import ModelError, StorageError
from embstore.models.memory import memory_needed
from embstore.models.names import split_begin
from embstore.models.placing import Place, own_dtype, require_finite_weights
from embstore.store.storage.files import replacing

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
# Fields of a configuration that change no hidden state: the dtype is an option of extraction.
UNUSED = re.compile(
    r"^(_|output_(attentions|hidden_states|scores)$|architectures$|auto_map$|transformers_version$|torch_dtype$|dtype$|id2label$|label2id$|num_labels$"
    r"|problem_type$|task_specific_params$|use_cache$|initializer_|finetuning_task$|gradient_checkpointing$)|drop(out)?"
)
HUB_FILES = ("*.json", "*.txt", "*.jinja", "model*.safetensors", *(name for name in TOKENIZER_FILES if "model" in name))


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode on its device, its tokenizer, and the source of both.

    `missing`: parameters of the model that the files do not contain; their values are random. `dtype`: the one that it
    computes in.
    """

    model: Any
    tokenizer: Any
    name: str
    revision: str | None
    weights_sha256: str
    config_sha256: str
    missing: dict[str, torch.Tensor]
    place: Place
    dtype: torch.dtype


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a model: its revision on the hub, weight files, configuration and tokenizer."""

    folder: Path
    revision: str | None
    files: list[Path]
    config: Any
    tokenizer: Any


def load(model: str | Path, place: Place, *, dtype: torch.dtype | None, revision: str | None) -> Loaded:
    """Load a model folder or a model of the Hugging Face hub; every failure is a ModelError of one line.

    `dtype`: None is that of `placing.own_dtype`.
    """
    checkpoint = open_checkpoint(model, revision=revision)
    config = checkpoint.config
    dtype = dtype or own_dtype(config, place)
    fits = memory_needed(f"the model {str(model)!r}", place.main)
    with quiet(), ThreadPoolExecutor(1) as other, fits:
        sha256 = other.submit(sha256_of, checkpoint.files)
        # Of an encoder-decoder the encoder is used
        text_encoders = transformers.AutoModelForTextEncoding
        kind: Any = text_encoders if type(config) in text_encoders._model_mapping else transformers.AutoModel
        options = place.options()
        offloaded = None if place.device_map is None else tempfile.mkdtemp(prefix="embstore-")  # for experts on disk
        network, report = read_network(kind, checkpoint.folder, config, dtype, **options, offload_folder=offloaded)
        if offloaded is not None:
            weakref.finalize(network, shutil.rmtree, offloaded, ignore_errors=True)
        tensors = {**dict(network.named_parameters(remove_duplicate=False)), **dict(network.named_buffers())}
        missing = {name: tensors[name] for name in sorted(report.get("missing_keys", ())) if name in tensors}
        network = network if options else network.to(place.main)
        require_finite_weights(network, str(checkpoint.folder), but=missing)
        if getattr(config, "is_encoder_decoder", False) and kind is transformers.AutoModel:
            network = network.get_encoder()
    return Loaded(
        network.eval(),
        checkpoint.tokenizer,
        str(model),
        checkpoint.revision,
        sha256.result(),
        config_sha256(checkpoint.folder),
        missing,
        place=place,
        dtype=dtype,
    )


def open_checkpoint(model: str | Path, *, revision: str | None) -> Checkpoint:
    """Find a model folder, or download one from the hub, and read all but its weights; raises ModelError."""
    begin, name = split_begin(model)
    with quiet():
        folder, revision = _find_folder(name, revision, is_path=isinstance(model, Path))
        config = _config(folder)  # which says whether the folder may be read
        return Checkpoint(folder, revision, _weight_files(folder), config, _tokenizer(folder, begin))


def _find_folder(name: str, revision: str | None, *, is_path: bool) -> tuple[Path, str | None]:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder, None
    if folder.exists():
        raise ModelError(f"the model {name!r} is a file; give the folder that contains config.json")
    looks_like_path = is_path or name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ModelError(f"there is no model folder {name!r}; give a folder with config.json or a name of the hub")
    try:
        snapshot = Path(
            huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=list(HUB_FILES), ignore_patterns=["*/*"]
            )
        )
    except Exception as error:
        wanted = name if revision is None else f"{name} (revision {revision})"
        raise ModelError(
            f"the model {wanted!r} is not a folder here and could not be downloaded from the hub: {_why(error)}"
        ) from error
    return snapshot, snapshot.name


def _why(error: Exception) -> str:
    """Return why a download failed and what to do, in place of the paragraphs of the hub's client."""
    errors: Any = huggingface_hub.errors
    if isinstance(error, errors.GatedRepoError):
        return "accept its terms on the hub's page, and log in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "it has no such model, or a private one: check the spelling, or log in with `hf auth login`"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "the hub is not reached, and the cache has no such model: check the spelling and the network"
    return reason(error)


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder that transformers loads, after checking that all can be read."""
    files, index = [folder / WEIGHTS], folder / WEIGHTS_INDEX
    if not files[0].is_file() and index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            if outside := [name for name in names if Path(name).name != name]:
                raise ValueError(f"{outside[0]!r} is not the name of a file in its folder")
        except (ValueError, KeyError, AttributeError, TypeError, OSError, RecursionError) as error:
            raise ModelError(f"{str(index)!r} is not a safetensors index: {reason(error)}") from error
        files = [folder / name for name in names]
    for file in files:
        if not file.is_file():
            pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
            advice = (
                "pickled weights are never loaded: convert them with model.save_pretrained(..., "
                "safe_serialization=True)"
                if pickled
                else "give a folder with safetensors weights"
            )
            raise ModelError(f"the folder {str(folder)!r} has no {file.name}; {advice}")
        try:
            file.open("rb").close()
            with safe_open(file, "pt"):
                pass
        except PermissionError as error:
            raise ModelError(f"the weights {str(file)!r} cannot be read: {error.strerror}") from error
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"the weights {str(file)!r} are damaged: {reason(error)}; download them again") from error
    return files


def _config(folder: Path) -> Any:
    if not os.access(folder, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ModelError(f"the folder {str(folder)!r} cannot be read: permission denied")
    if not (folder / "config.json").is_file():
        raise ModelError(f"the folder {str(folder)!r} has no config.json; give the folder of a Hugging Face model")
    if (folder / "adapter_config.json").exists():  # transformers would load the model that it names instead
        raise ModelError(f"the folder {str(folder)!r} is an adapter: give a model with the adapter merged into it")
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"the config.json of {str(folder)!r} is not of a known model: {reason(error)}") from error


def _tokenizer(folder: Path, begin: str) -> Any:
    """Load a tokenizer; `begin`: "bos:" for one special token before each text, "nobos:" for none anywhere, or ""."""
    # Without this check transformers builds an empty tokenizer for some architectures, without a warning.
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"the folder {str(folder)!r} has no tokenizer; add the tokenizer.json that belongs to the model"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if not float(getattr(tokenizer, "model_max_length", 1)) > 0:
            raise ValueError(f"model_max_length is {tokenizer.model_max_length}: give a number above 0, or none")
    except Exception as error:
        raise ModelError(f"the tokenizer of {str(folder)!r} cannot be loaded: {reason(error)}") from error
    if begin:
        token = tokenizer.bos_token or tokenizer.eos_token  # GPT-2 has one token for both
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or (begin == "bos:" and token is None):
            what = "has no fast form" if backend is None else "has no token that begins a text"
            raise ModelError(f"the tokenizer of {str(folder)!r} {what}: leave out {begin}")
        given = ([token, "$A"], [(token, backend.token_to_id(token))]) if begin == "bos:" else (["$A"], [])
        backend.post_processor = TemplateProcessing(single=given[0], special_tokens=given[1])
    return tokenizer


def language_model(checkpoint: Checkpoint, place: Place, name: str, dtype: torch.dtype) -> Any:
    """Return a decoder with its language modeling head; raises ModelError for a model without one."""
    auto: Any = transformers.AutoModelForCausalLM
    config = checkpoint.config
    if type(config) not in auto._model_mapping or config.is_encoder_decoder:
        raise ModelError(f"the model {name!r} ({config.model_type}) does not generate text: give a decoder")
    options = place.options()
    network, report = read_network(auto, checkpoint.folder, config, dtype, **options)
    is_tied = getattr(config.get_text_config(), "tie_word_embeddings", False)
    tied = set(getattr(network, "_tied_weights_keys", None) or ()) if is_tied else set()
    if missing := sorted(set(report["missing_keys"]) - tied):
        raise ModelError(
            f"the model {name!r} has no language modeling head, as {missing[0]!r} is missing: give a decoder"
        )
    return (network if options else network.to(place.main)).eval()


def read_network(
    kind: Any, folder: Path, config: Any, dtype: torch.dtype, **more: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Read a network of that Auto class, with fused attention if it has one, and transformers' loading report."""
    options = {
        "config": config,
        "dtype": dtype,
        "use_safetensors": True,
        "trust_remote_code": False,
        "output_loading_info": True,
        **more,
    }
    try:
        try:
            network, report = kind.from_pretrained(folder, attn_implementation="sdpa", **options)
        except (ValueError, ImportError) as error:
            if "attention" not in str(error):
                raise
            network, report = kind.from_pretrained(folder, attn_implementation="eager", **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(f"the model in {str(folder)!r} cannot be loaded: {reason(error)}") from error
    return network, report


@checked
def save_untrained(model: str | Path, folder: str | Path, *, seed: int = 0) -> Path:
    """Save the architecture and the tokenizer of a model with random weights, as its own training began.

    The control of a probe: whatever it predicts from these vectors it has learned itself, not from the model. `folder`:
    a new folder, written atomically. `seed`: of the weights, which are then the same on every machine with one version
    of torch. Raises ModelError, in one line, for a model that cannot be initialized, StorageError if the folder exists.
    """
    out = Path(folder)
    if out.exists():
        raise StorageError(f"{out} exists already: give a new folder")
    checkpoint = open_checkpoint(model, revision=None)
    auto: Any = transformers.AutoModel
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = auto.from_config(checkpoint.config)
        except Exception as error:
            raise ModelError(f"the model {str(model)!r} cannot be initialized: {reason(error)}") from error
        with replacing(out) as new:
            network.save_pretrained(new, safe_serialization=True)
            checkpoint.tokenizer.save_pretrained(new)
    return out


@checked
def convert_gguf(file: str | Path, folder: str | Path) -> Path:
    """Save the model of a GGUF file as safetensors in float32, with its tokenizer; returns the folder.

    Quantized weights are dequantized. `folder`: a new folder, written atomically. Needs the package gguf. Raises
    ModelError, in one line, for a file that transformers cannot read, StorageError if the folder exists.
    """
    out, source = Path(folder), Path(file)
    if out.exists():
        raise StorageError(f"{out} exists already: give a new folder")
    given: dict[str, Any] = {"gguf_file": source.name}
    auto: Any = transformers.AutoModelForCausalLM
    with quiet():
        try:
            quantized = auto.from_pretrained(source.parent, dtype=torch.float32, **given)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **given)
        except Exception as error:
            raise ModelError(f"the model {str(source)!r} cannot be read as GGUF: {reason(error)}") from error
        del quantized.config.quantization_config
        model = auto.from_config(quantized.config)
        model.load_state_dict(quantized.state_dict())
        with replacing(out) as new:
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
    return out


def config_sha256(folder: Path) -> str:
    """Return a hash of the fields of config.json that vectors may depend on."""
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    return hashlib.sha256(json.dumps(_used(fields), sort_keys=True).encode()).hexdigest()


def _used(value: Any) -> Any:
    """Leave out the fields, at any depth, that name files and labels or that only training and generation use."""
    if isinstance(value, dict):
        return {name: _used(part) for name, part in value.items() if not UNUSED.search(name)}
    return [_used(part) for part in value] if isinstance(value, list) else value


def sha256_of(files: list[Path]) -> str:
    """Return the hash of files as if they were one, in the given order."""
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def reason(error: BaseException) -> str:
    """Return the message of an error of another library in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in text:  # which speaks of a report that is not shown
        text = "its weights have other shapes than its config.json says"
    if not text or isinstance(error, LookupError):  # whose message is a key alone
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text if len(text) <= 300 else text[:297] + "..."


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers and the hub from writing progress bars and advice inside the block."""
    logs: Any = transformers.utils.logging
    hub: Any = huggingface_hub.utils
    offloading = logging.getLogger("accelerate.big_modeling")
    with ExitStack() as before:
        before.callback(logs.set_verbosity, logs.get_verbosity())
        before.callback(offloading.setLevel, offloading.level)
        if logs.is_progress_bar_enabled():
            before.callback(logs.enable_progress_bar)
        if not hub.are_progress_bars_disabled():
            before.callback(hub.enable_progress_bars)
        logs.set_verbosity_error()
        logs.disable_progress_bar()
        hub.disable_progress_bars()
        offloading.setLevel(logging.ERROR)
        yield
