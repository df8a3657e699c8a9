"""The safetensors format: the length of a JSON header, the header, and the tensors' bytes one after the other."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.store.storage.files import Bytes

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}
_NUMPY = {"F64": "<f8", "F16": "<f2", "F32": "<f4", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1"}


def header(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """Return the first bytes of a file of tensors, name -> (dtype of DTYPES, shape), whose bytes follow in order."""
    fields: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        stop = offset + math.prod(shape) * np.dtype(_NUMPY[DTYPES[dtype]]).itemsize
        fields[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def parse(data: Bytes, *, path: str) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file as views of its bytes, bfloat16 as uint16 bits; other dtypes are left out."""
    try:
        begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
        tensors = {}
        for name, tensor in json.loads(data[8:begin].tobytes()).items():
            if name != "__metadata__" and tensor["dtype"] in _NUMPY:
                start, stop = tensor["data_offsets"]
                values = data[begin + start : begin + stop].view(_NUMPY[tensor["dtype"]])
                tensors[name] = values.reshape(tensor["shape"])
        return tensors
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreDamagedError(f"{path} is not a safetensors file, or is damaged: {error}") from None
