"""Answers of queries as bytes: JSON, or arrays in the layout of safetensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from embstore.errors import EmbstoreError, ModelError, StoreDamagedError

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"


@dataclass(frozen=True)
class Arrays:
    """An answer that is mostly numbers: arrays by name, of a type of safetensors, and what JSON can hold."""

    arrays: Mapping[str, NDArray[Any]]
    data: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return a safetensors file, `data` as JSON in `__metadata__.json`."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return save(arrays, {"json": as_json(self.data)})


def as_json(value: Any) -> str:
    """Return a value as JSON; NaN and infinite numbers become null."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encoded(answer: Any) -> tuple[bytes, str]:
    """Return an answer as bytes, and their media type."""
    if isinstance(answer, Arrays):
        return answer.to_bytes(), SAFETENSORS
    return as_json(answer).encode(), JSON


def explained(error: BaseException) -> str:
    """Return the message of an error in one line; of one that embstore does not raise on purpose, with its kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, EmbstoreError) else f"{type(error).__name__}: {text[:200]}"


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as a client reads it: its line, and what it needs: a model, a store opened again, a word."""
    kinds = {ModelError: "model", StoreDamagedError: "reopen"}
    needs = next((kinds[kind] for kind in kinds if isinstance(error, kind)), getattr(error, "words", None))
    return {"error": explained(error)} | ({} if needs is None else {"needs": needs})


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
