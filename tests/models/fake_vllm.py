"""A vLLM for tests: it runs a small decoder by transformers and writes files as vLLM's connector does."""

from __future__ import annotations

import fcntl
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
import transformers
from safetensors.torch import save_file


class FakeLLM:
    """`vllm.LLM` with ExampleHiddenStatesConnector. `made`: all of them; the other class attributes plan faults.

    `lag`: how many seconds after its request was answered a file is written; None: before. `locks`: whether it has a
    lock until then, as since vLLM 0.22. `spoil`: called with the number of the request and its path once it is written.
    """

    made: ClassVar[list[FakeLLM]] = []
    lag: float | None = None
    locks = True
    answers: Any = staticmethod(lambda outputs: outputs)
    tokens: Any = staticmethod(lambda ids: ids)
    spoil: Any = None

    def __init__(self, **options: Any) -> None:
        self.options, self.batches = options, []
        self.made.append(self)
        kinds = transformers.AutoModelForCausalLM
        self.model = kinds.from_pretrained(options["model"], dtype=getattr(torch, options["dtype"])).eval()
        self.layers = options["speculative_config"]["draft_model_config"]["hf_config"]
        self.layers = self.layers["eagle_aux_hidden_state_layer_ids"]
        self.folder = Path(options["kv_transfer_config"]["kv_connector_extra_config"]["shared_storage_path"])
        limits = (getattr(self.model.config, name, None) for name in ("max_position_embeddings", "n_positions"))
        assert options["max_model_len"] <= next(filter(None, limits)), "vLLM refuses more than the model has positions"
        self.blocks = next(part for part in self.model.modules() if isinstance(part, torch.nn.ModuleList))

    @torch.inference_mode()
    def states(self, ids: list[int]) -> torch.Tensor:
        """Return the residual stream before the first block and after each one, [tokens, layers, features]."""
        found: list[torch.Tensor] = []
        first = self.blocks[0].register_forward_pre_hook(lambda _, args, named: found.append(args[0]), with_kwargs=True)
        hooks = [
            block.register_forward_hook(lambda _, args, out: found.append(out[0] if isinstance(out, tuple) else out))
            for block in self.blocks
        ]
        self.model(torch.tensor([ids]))
        for hook in [first, *hooks]:
            hook.remove()
        return torch.stack([found[layer][0] for layer in self.layers], dim=1)

    def generate(self, prompts: list[dict[str, list[int]]], sampling: Any, *, use_tqdm: bool) -> list[Any]:
        assert (sampling.max_tokens, use_tqdm) == (1, False)
        self.batches.append([len(prompt["prompt_token_ids"]) for prompt in prompts])
        assert max(self.batches[-1]) < self.options["max_model_len"]
        jobs = []
        for number, prompt in enumerate(prompts):
            ids = prompt["prompt_token_ids"]
            path = self.folder / f"{len(self.batches)}-{number}.safetensors"
            lock = open(f"{path}.lock", "w") if self.locks else None  # noqa: SIM115
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            jobs.append((number, path, ids, self.states(ids), lock))
        if self.lag is None:
            self._write(jobs)
        else:
            threading.Timer(self.lag, self._write, [jobs[::-1]]).start()  # the last request is written first
        outputs = [SimpleNamespace(kv_transfer_params={"hidden_states_path": str(job[1])}) for job in jobs]
        return list(self.answers(outputs))

    def _write(self, jobs: list[Any]) -> None:
        for number, path, ids, states, lock in jobs:
            save_file({"token_ids": torch.tensor(self.tokens(ids)), "hidden_states": states.contiguous()}, path)
            if self.spoil is not None:
                self.spoil(number, path)
            if lock is not None:
                lock.close()


def install(monkeypatch: Any) -> type[FakeLLM]:
    """Put a module `vllm` in place for one test; returns its LLM."""
    module: Any = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    module.LLM = type("LLM", (FakeLLM,), {"made": []})
    module.SamplingParams = SimpleNamespace
    monkeypatch.setitem(__import__("sys").modules, "vllm", module)
    llm: type[FakeLLM] = module.LLM
    return llm
