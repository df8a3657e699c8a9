"""Tensors with a JSON document in one file, for saved probes.

The file is in the safetensors format; its metadata have the document, with checksums of itself and of all tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from embstore.store.metadata import document_crc32c
from embstore.store.storage.files import crc32c, replacing

FORMAT_VERSION = 1
KEY = "embstore"  # of the document in the metadata of the file
Tensors = Mapping[str, torch.Tensor]


def write_tensors(path: Path, document: Mapping[str, Any], tensors: Tensors) -> None:
    """Write a document and tensors to a file, atomically and durably. Raises StorageError."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    whole: dict[str, Any] = {
        **document,
        "format_version": FORMAT_VERSION,
        "software": {name: version(name) for name in ("embstore", "torch")},
        "tensors_crc32c": _crc32c(plain),
    }
    whole["crc32c"] = document_crc32c(whole)
    text = json.dumps(dict(sorted(whole.items())), ensure_ascii=False, allow_nan=False)
    with replacing(path) as partial:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        rights = partial.stat().st_mode  # of any new file; safetensors lets only the owner read its files
        try:
            save_file(plain, partial, {KEY: text})
            partial.chmod(rights)
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else 0, str(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read a file of `write_tensors`: its document and tensors, with all checksums verified.

    Raises OSError, and ValueError for a file that is damaged, of another kind or of a newer format.
    """
    try:
        with safe_open(path, "pt") as file:
            document: dict[str, Any] = json.loads(file.metadata()[KEY])
            if document["format_version"] > FORMAT_VERSION:
                raise ValueError(f"it has format {document['format_version']}, this version reads {FORMAT_VERSION}")
            if document_crc32c(document) != document["crc32c"]:
                raise ValueError("the checksum of its metadata differs")
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
            if document["tensors_crc32c"] != _crc32c(tensors):  # before bytes of bools are made 0 and 1 by the copy
                raise ValueError("the checksum of its tensors differs")
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    except (KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"not a file of tensors and their metadata: {error}") from None
    return document, tensors


def is_saved(path: Path) -> bool:
    """Return whether there is a file of `write_tensors`, damaged or not."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with safe_open(path, "pt") as file:
            return KEY in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False


def _crc32c(tensors: Tensors) -> int:
    crc = 0
    for _, tensor in sorted(tensors.items()):
        crc = crc32c(tensor.reshape(-1).numpy().view(np.uint8), crc)
    return crc
