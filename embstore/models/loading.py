"""From a name to a model and its tokenizer: safetensors only, no code from the folder, errors in one line."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn

from embstore.errors import InvalidValueError, ModelError
from embstore.models.transformer.memory import memory_needed

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
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
HUB_FILES = ("*.json", "*.txt", "model*.safetensors", *(name for name in TOKENIZER_FILES if "model" in name))


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode on its device, its tokenizer, and where both came from.

    `missing`: parameters of the model that the files did not hold, and that were made up.
    """

    model: Any
    tokenizer: Any
    name: str
    revision: str | None
    weights_sha256: str
    missing: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A folder of a model: its revision on the hub, weight files, configuration and tokenizer."""

    folder: Path
    revision: str | None
    files: list[Path]
    config: Any
    tokenizer: Any


def choose_dtype(compute_dtype: str, device: torch.device) -> torch.dtype:
    """Return the dtype of that name, "auto" for float16 on CUDA and float32 elsewhere."""
    if compute_dtype == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    if compute_dtype not in DTYPES:
        raise ModelError(f"unknown compute dtype {compute_dtype!r}; allowed are auto, {', '.join(DTYPES)}")
    return DTYPES[compute_dtype]


def use_threads(threads: int | None) -> None:
    """Let torch use so many CPU threads, None leaving it as it is; raises InvalidValueError below 1."""
    if threads is None:
        return
    if threads < 1:
        raise InvalidValueError(f"threads is {threads}; it must be 1 or more")
    torch.set_num_threads(threads)


def load(model: str | Path, *, device: torch.device, dtype: torch.dtype, revision: str | None) -> Loaded:
    """Load a model folder or a model of the Hugging Face hub; every failure is a ModelError of one line."""
    found = open_checkpoint(model, revision=revision)
    with quiet():
        network, missing = _network(found.folder, found.config, dtype)
    with memory_needed(f"the model {str(model)!r}", device):
        network = network.to(device).eval()
    return Loaded(network, found.tokenizer, str(model), found.revision, sha256_of(found.files), missing)


def open_checkpoint(model: str | Path, *, revision: str | None) -> Checkpoint:
    """Find a model folder, or fetch one from the hub, and read all but its weights; raises ModelError."""
    with quiet():
        folder, revision = _folder(model, revision)
        return Checkpoint(folder, revision, _weight_files(folder), _config(folder), _tokenizer(folder))


def _folder(model: str | Path, revision: str | None) -> tuple[Path, str | None]:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder, None
    name = str(model)
    if folder.exists():
        raise ModelError(f"the model {name!r} is a file; give the folder that holds config.json")
    looks_like_path = isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1
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
            f"the model {wanted!r} is no folder here and could not be fetched from the hub: {_line(error)}"
        ) from error
    return snapshot, snapshot.name


def _weight_files(folder: Path) -> list[Path]:
    if not os.access(folder, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ModelError(f"the folder {str(folder)!r} cannot be read: permission denied")
    if not (folder / "config.json").is_file():
        raise ModelError(f"the folder {str(folder)!r} has no config.json; give the folder of a Hugging Face model")
    if (folder / WEIGHTS_INDEX).is_file():
        try:
            shards = json.loads((folder / WEIGHTS_INDEX).read_text("utf-8"))["weight_map"].values()
            files = [folder / name for name in sorted(set(shards))]
        except (ValueError, KeyError, AttributeError, TypeError, OSError) as error:
            raise ModelError(f"{str(folder / WEIGHTS_INDEX)!r} is not a safetensors index: {_line(error)}") from error
    else:
        files = [folder / WEIGHTS]
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
        except OSError as error:
            raise ModelError(f"the weights {str(file)!r} cannot be read: {error.strerror}") from error
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"the weights {str(file)!r} are damaged: {_line(error)}; fetch them again") from error
    return files


def _config(folder: Path) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"the config.json of {str(folder)!r} names no model known here: {_line(error)}") from error


def _tokenizer(folder: Path) -> Any:
    # Without this test transformers builds an empty tokenizer for some architectures and says nothing.
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"the folder {str(folder)!r} has no tokenizer; add the tokenizer.json that belongs to the model"
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"the tokenizer of {str(folder)!r} cannot be loaded: {_line(error)}") from error


def _network(folder: Path, config: Any, dtype: torch.dtype) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    text_encoders = transformers.AutoModelForTextEncoding
    kind = text_encoders if type(config) in text_encoders._model_mapping else transformers.AutoModel
    network, report = read_network(kind, folder, config, dtype)
    missing = _missing(network, report)
    _refuse_broken_weights(network, missing, folder)
    if getattr(config, "is_encoder_decoder", False) and kind is transformers.AutoModel:
        network = network.get_encoder()
    return network, missing


def read_network(
    kind: Any, folder: Path, config: Any, dtype: torch.dtype, **more: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Read a network of that Auto class, with fused attention where it has one, and what the files lacked."""
    try:
        try:
            return _from_pretrained(kind, folder, config, dtype, "sdpa", **more)
        except (ValueError, ImportError) as error:
            if "attention" not in str(error):
                raise
            return _from_pretrained(kind, folder, config, dtype, "eager", **more)
    except Exception as error:
        raise ModelError(f"the model in {str(folder)!r} cannot be loaded: {_line(error)}") from error


def _from_pretrained(
    kind: Any, folder: Path, config: Any, dtype: torch.dtype, attention: str, **more: Any
) -> tuple[Any, Mapping[str, Any]]:
    loaded: tuple[Any, Mapping[str, Any]] = kind.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        **more,
    )
    return loaded


def _missing(network: nn.Module, report: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    tensors = {**dict(network.named_parameters(remove_duplicate=False)), **dict(network.named_buffers())}
    return {name: tensors[name] for name in sorted(report.get("missing_keys", ())) if name in tensors}


def _refuse_broken_weights(network: nn.Module, missing: Mapping[str, torch.Tensor], folder: Path) -> None:
    for name, parameter in network.named_parameters():
        if name not in missing and not bool(torch.isfinite(parameter).all()):
            raise ModelError(
                f"the weights of {str(folder)!r} hold NaN or infinity in {name!r} (as {_name(parameter.dtype)}); "
                "fetch them again or choose a wider compute dtype"
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def sha256_of(files: list[Path]) -> str:
    """Hash files as if they were one, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers and the hub from writing progress bars and advice while something is loaded."""
    chatter: Any = transformers.utils.logging
    hub: Any = huggingface_hub.utils
    verbosity = chatter.get_verbosity()
    bars = chatter.is_progress_bar_enabled()
    hub_bars = not hub.are_progress_bars_disabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        yield
    finally:
        chatter.set_verbosity(verbosity)
        if bars:
            chatter.enable_progress_bar()
        if hub_bars:
            hub.enable_progress_bars()
