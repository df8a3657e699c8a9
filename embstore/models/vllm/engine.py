"""A running vLLM: sentences as subwords in, the files with their hidden states out, read and deleted."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from embstore.errors import MissingPackageError, ModelError
from embstore.models.checkpoint import reason

WAIT_SECONDS = 30.0  # for a file without a lock that is not complete yet
LENGTH_STEP = 256  # subwords to which the longest sentence is rounded up


def require_vllm(model: str) -> None:
    """Raise MissingPackageError if vLLM is not installed."""
    if find_spec("vllm") is None:
        raise MissingPackageError(f"the model {model!r} needs vLLM: pip install 'embstore[vllm]'")


class Engine:
    """vLLM with its connector for hidden states, which writes a file for each request.

    `layers`: those that are written, ascending; 0 is the embeddings, the last one is before the final norm. `longest`:
    the subwords that a sentence may have, special ones included, of at most `most` that the model takes (None: any).
    `options`: of `vllm.LLM`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        layers: Sequence[int],
        longest: int,
        most: int | None,
        dtype: str,
        options: Mapping[str, Any],
    ) -> None:
        self.name, self.layers = name, tuple(layers)
        rounded = -(-longest // LENGTH_STEP) * LENGTH_STEP
        self.longest = rounded if most is None else min(rounded, most)
        self._files = tempfile.TemporaryDirectory(prefix="embstore-vllm-", ignore_cleanup_errors=True)
        try:
            vllm = import_module("vllm")
            self._once = vllm.SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
            self._llm = vllm.LLM(
                model=str(folder),
                dtype=dtype,
                seed=0,
                max_model_len=self.longest + 1,  # vLLM always generates a token, which is not read
                enable_prefix_caching=False,  # states of a cached prefix are not written
                enable_chunked_prefill=False,
                speculative_config={
                    "method": "extract_hidden_states",
                    "num_speculative_tokens": 1,
                    "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(self.layers)}},
                },
                kv_transfer_config={
                    "kv_connector": "ExampleHiddenStatesConnector",
                    "kv_role": "kv_producer",
                    "kv_connector_extra_config": {"shared_storage_path": self._files.name},
                },
                **options,
            )
        except Exception as error:
            self._files.cleanup()
            raise ModelError(f"vLLM cannot run the model {name!r}: {reason(error)}") from error

    def serves(self, layers: Sequence[int], longest: int) -> bool:
        """Return whether these layers are written, and sentences may be so long."""
        return set(layers) <= set(self.layers) and longest <= self.longest

    def close(self) -> None:
        """End vLLM, which then gives back the memory of the GPUs."""
        self._llm = None
        gc.collect()
        self._files.cleanup()

    def run(self, sentences: Sequence[list[int]]) -> list[Path]:
        """Run the model over sentences; returns where the states of each one are, or will be in a moment."""
        try:
            prompts = [{"prompt_token_ids": ids} for ids in sentences]
            outputs = self._llm.generate(prompts, self._once, use_tqdm=False)
        except Exception as error:
            raise ModelError(f"vLLM failed with {self.name!r}: {reason(error)}") from error
        paths = [(output.kv_transfer_params or {}).get("hidden_states_path") for output in outputs]
        found = [Path(path) for path in paths if path is not None]
        if len(found) != len(sentences):
            raise ModelError(
                f"vLLM returned the hidden states of {len(found)} of {len(sentences)} sentences: install a version "
                "that has ExampleHiddenStatesConnector"
            )
        return found

    def read(self, path: Path, sentence: list[int], out: torch.Tensor) -> None:
        """Read the states of a sentence into `out`, [n_subwords, n_layers, features], and delete the file."""
        found = self._load(path)
        with suppress(OSError):
            path.unlink()
            _lock_of(path).unlink()
        ids, states = found.get("token_ids"), found.get("hidden_states")
        if ids is None or not np.array_equal(ids.numpy(), sentence):
            raise ModelError(f"vLLM returned states of other subwords of {self.name!r} than it was given: {path.name}")
        if states is None or states.shape != out.shape:
            shape = None if states is None else tuple(states.shape)
            raise ModelError(
                f"vLLM returned states of the shape {shape} of {self.name!r}, not {tuple(out.shape)} (subwords, "
                f"layers, features): {path.name}"
            )
        out.copy_(states)

    def _load(self, path: Path) -> dict[str, torch.Tensor]:
        """Return what a file holds, once it is complete: when its lock is free, or, without one, before long."""
        import fcntl  # not on Windows, as vLLM is not

        until = monotonic() + WAIT_SECONDS
        while True:
            try:
                with open(_lock_of(path)) as lock:
                    fcntl.flock(lock, fcntl.LOCK_SH)
                complete = True
            except FileNotFoundError:
                complete = monotonic() > until
            try:
                return load_file(path)
            except (OSError, SafetensorError) as error:
                if complete:
                    raise ModelError(
                        f"the hidden states that vLLM wrote of {self.name!r} cannot be read: {reason(error)}"
                    ) from error
            sleep(0.01)


def _lock_of(path: Path) -> Path:
    return Path(os.fspath(path) + ".lock")
