"""All figures of a GPU in one call of ten minutes, the most important first, each step in a process of its own.

    python benchmarks/gpu/run.py --out benchmarks/results/h100.json

The result is written after every step, so that a run that is cut off keeps what it has measured; a step that crashes or
takes longer than its share of the time is noted as failed, with its last lines, and the next one follows. `--steps
forward trace` runs only these; `--device cpu --tiny` runs every line without a GPU, and its figures mean nothing.
Models have random weights.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from extract import needed_flops
from made import SHAPES, made_sentences, made_words, save_model
from measure import machine, timed
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import embstore as es
from embstore.models.batched import word_spans

HALVES = ("float16", "bfloat16")
RELATIVE_ALLOWED = {"float16": 1e-2, "bfloat16": 5e-2}  # of a vector's own length
KERNELS = 12  # the longest ones of a trace are named
TIMES = {"Llama-8B, 4 blocks": 8}  # the blocks of the whole model, over those that are run


class Setting:
    """The device, a folder that the steps share, what they have found so far, and the sizes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.folder, self.tiny = arguments.device, Path(arguments.folder), arguments.tiny
        self.encoder_shape = "tiny" if self.tiny else "BERT-base"
        self.decoder_shape = "tiny, decoder" if self.tiny else "Llama-8B, 4 blocks"
        self.side, self.nbytes, self.batch = (64, 2**20, 512) if self.tiny else (8192, 2**30, 65536)
        file = self.folder / "result.json"
        self.figures = dict(json.loads(file.read_text())["steps"]) if file.exists() else {}

    def sentences(self, count: int) -> list[list[str]]:
        """Return sentences of 20 words on average."""
        return made_sentences(count // 50 if self.tiny else count, made_words(60_000))

    def encoder(self, shape: str, dtype: str = "auto", device: str | None = None) -> Any:
        """Load a model of a shape, made when it is first asked for."""
        folder = self.folder / shape
        if not folder.exists():  # a model that was saved in part is not taken for one
            shutil.rmtree(folder.with_suffix(".new"), ignore_errors=True)
            save_model(folder.with_suffix(".new"), made_words(60_000), **SHAPES[shape]).rename(folder)
        with es.config(device=device or self.device):
            return es.load_encoder(folder, compute_dtype=dtype)

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)

    def best(self, call: Callable[[], object]) -> float:
        """Return the seconds of the faster of two calls and of their work on the GPU, after one that is not counted."""

        def waited() -> None:
            call()
            self.wait()

        return min([timed(waited) for _ in range(3)][1:])

    def extracted(
        self, sentences: list[list[str]], encoder: Any, name: str, layers: Any = "all"
    ) -> tuple[Path, float, float]:
        """Extract layers; returns the store and the seconds of the plan and of the extraction."""
        store = self.folder / f"{name}.zarr"
        shutil.rmtree(store, ignore_errors=True)
        began = time.perf_counter()
        plan = es.plan(sentences, model=encoder, options=es.ExtractionOptions(layers=layers), store=store)
        planned = time.perf_counter()
        es.extract(plan, store)
        return store, planned - began, time.perf_counter() - planned


def rates(setting: Setting) -> dict[str, Any]:
    """Matrix products and copies of the device, and the disk, per second: the limits of the other steps."""
    rates: dict[str, Any] = {}
    for name in (*HALVES, "float32"):
        one = torch.randn(setting.side, setting.side, device=setting.device).to(getattr(torch, name))
        rates[f"products_{name}_flops"] = 2.0 * setting.side**3 / setting.best(partial(torch.matmul, one, one))
    here = torch.ones(setting.nbytes // 2, dtype=torch.float16, device=setting.device)
    there = torch.empty(len(here), dtype=here.dtype, pin_memory=setting.device.startswith("cuda"))
    rates["memory_nbytes"] = 2 * setting.nbytes / setting.best(here.clone)
    rates["copy_nbytes"] = setting.nbytes / setting.best(lambda: there.copy_(here, non_blocking=True))
    data = np.random.default_rng(0).bytes(setting.nbytes)

    def write() -> None:
        with (setting.folder / "disk").open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())

    rates["disk_nbytes"] = setting.nbytes / setting.best(write)
    (setting.folder / "disk").unlink()
    return rates


def correctness(setting: Setting) -> dict[str, Any]:
    """The vectors of every half precision next to those of a CPU in float32: the worst vector, by its own length."""
    figures: dict[str, Any] = {}
    for shape, count in ((setting.encoder_shape, 300), (setting.decoder_shape, 50)):
        sentences = setting.sentences(count)
        right_store, _, _ = setting.extracted(sentences, setting.encoder(shape, "float32", "cpu"), f"{shape} right")
        right = es.open(right_store).select().vectors().astype(np.float64)
        for dtype in HALVES:
            encoder = setting.encoder(shape, dtype)
            store, _, _ = setting.extracted(sentences, encoder, f"{shape} {dtype}")
            vectors = es.open(store).select().vectors().astype(np.float64)
            worst = float((np.linalg.norm(vectors - right, axis=-1) / np.linalg.norm(right, axis=-1)).max())
            holds = worst <= RELATIVE_ALLOWED[dtype]
            figures[f"{shape}, {dtype}"] = {"relative": worst, "holds": holds, "batching": encoder.batching}
            print(f"{shape}, {dtype}: {worst:.1e}, {encoder.batching}", file=sys.stderr)  # kept if a later one fails
    return figures


def passes(setting: Setting, encoder: Any, batches: int) -> tuple[Any, Callable[[Sequence[int]], None]]:
    """Return subwords for some batches, and what encodes them and leaves the vectors on the device."""
    sentences = setting.sentences(batches * setting.batch // (1 if setting.tiny else 25))
    tokenized = encoder.tokenize(list(map(es.corpus.Sentence, sentences))).tokenized
    spans = word_spans(tokenized, encoder.info.max_subwords)

    def run(layers: Sequence[int]) -> None:
        for _ in encoder.encode(tokenized, spans, layers=layers, pooling="mean", batch_subwords=setting.batch,
                                on_device=True):  # fmt: skip
            pass

    return tokenized, run


def forward(setting: Setting) -> dict[str, Any]:
    """Subwords to vectors on the device, nothing stored: each batching with the last layer, the best with all."""
    figures: dict[str, Any] = {}
    for shape, batches in ((setting.encoder_shape, 6), (setting.decoder_shape, 2)):
        encoder = setting.encoder(shape, "bfloat16" if shape == setting.decoder_shape else "auto")
        tokenized, run = passes(setting, encoder, batches)
        words, last = 1 + int(tokenized.words[-1]), encoder.info.num_hidden_layers
        rates, failed = {}, {}
        for batching in encoder.candidate_batchings():
            if batching == "equal":  # its batches are small: it is for context windows
                continue
            encoder.use_batching(batching)
            try:
                rates[batching] = words / setting.best(partial(run, [last]))
            except Exception as error:  # the others follow
                failed[batching] = f"{type(error).__name__}: {error}"[:300]
            print(f"{shape}: {rates} {failed}", file=sys.stderr)
        best = max(rates, key=rates.__getitem__)
        encoder.use_batching(best)
        flops = needed_flops(encoder.network.model.config, np.diff(tokenized.bounds) + encoder.n_specials)
        case = {"words_per_second, last layer": rates, "failed": failed, "batching": best,
                "flops_per_second": flops * rates[best] / words,
                "words_per_second, all layers": words / setting.best(partial(run, range(last + 1))),
                "whole model, words_per_second": rates[best] / TIMES.get(shape, 1)}  # fmt: skip
        if products := setting.figures.get("rates", {}).get(f"products_{encoder.compute_dtype}_flops"):
            case["share of products"] = case["flops_per_second"] / products
        figures[shape] = case
    return figures


def storing(setting: Setting) -> dict[str, Any]:
    """Text to a committed store, of one layer and of all, next to the least time of products, copy and disk."""
    encoder, shape = setting.encoder(setting.encoder_shape), SHAPES[setting.encoder_shape]
    tokenizer = transformers.AutoTokenizer.from_pretrained(setting.folder / setting.encoder_shape)
    last = shape["num_hidden_layers"]
    figures: dict[str, Any] = {}
    setting.extracted(setting.sentences(1_000), encoder, "warm")
    for name, layers, count in (("one layer", [last], 40_000), ("all layers", "all", 20_000)):
        sentences = setting.sentences(count)
        store, planning, extracting = setting.extracted(sentences, encoder, "stored", layers)
        shutil.rmtree(store)
        words = sum(map(len, sentences))
        lengths = np.array([len(ids) for ids in tokenizer(sentences, is_split_into_words=True)["input_ids"]])
        nbytes = words * (1 if layers != "all" else last + 1) * shape["hidden_size"] * 2
        costs = {"products_float16_flops": needed_flops(argparse.Namespace(**shape), lengths), "copy_nbytes": nbytes,
                 "disk_nbytes": nbytes}  # fmt: skip
        rates = setting.figures.get("rates", {})
        limits = {what: cost / rates[what] for what, cost in costs.items() if what in rates}
        binds = max(limits, key=limits.__getitem__, default=None)
        figures[name] = {"words": words, "plan_s": planning, "extract_s": extracting, "batching": encoder.batching,
                         "words_per_second": words / extracting, "limits_s": limits, "binds": binds,
                         "share": limits[binds] / extracting if binds else None}  # fmt: skip
        print(f"{name}: {words / extracting:.0f} words/s", file=sys.stderr)
    return figures


def trace(setting: Setting) -> dict[str, Any]:
    """One batch under the profiler: seconds of the host and of the GPU, how busy that is, and its longest kernels."""
    figures: dict[str, Any] = {}
    gpu = setting.device.startswith("cuda")
    for shape in (setting.encoder_shape, setting.decoder_shape):
        encoder = setting.encoder(shape, "bfloat16" if shape == setting.decoder_shape else "auto")
        measured = setting.figures.get("forward", {}).get(shape, {})
        encoder.use_batching(measured.get("batching", encoder.candidate_batchings()[0]))
        _, run = passes(setting, encoder, 1)
        layers = [encoder.info.num_hidden_layers]
        setting.best(partial(run, layers))
        began = time.perf_counter()
        run(layers)
        launched = time.perf_counter() - began
        setting.wait()
        whole = time.perf_counter() - began
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as profiler:
            run(layers)
            setting.wait()
        spent: Counter[str] = Counter()
        for event in profiler.events():
            if event.device_type == (DeviceType.CUDA if gpu else DeviceType.CPU):
                spent[event.name[:100]] += event.time_range.end - event.time_range.start
        figures[shape] = {"batching": encoder.batching, "launched_ms": 1e3 * launched, "whole_ms": 1e3 * whole,
                          "busy_ms": sum(spent.values()) / 1e3, "kernels": len(spent),
                          "longest_ms": {name: time / 1e3 for name, time in spent.most_common(KERNELS)}}  # fmt: skip
    return figures


# Each step, and the seconds that it may take: nine minutes together, and about six on an H100.
STEPS = {rates: 60, correctness: 130, forward: 130, storing: 120, trace: 100}
NAMED = {step.__name__: step for step in STEPS}


def gpu() -> dict[str, Any]:
    """Describe the GPU, its driver, torch, and the kernel for sentences end to end."""
    asked = "name,driver_version,memory.total,memory.free,clocks.max.sm,power.limit"
    try:
        smi = subprocess.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True,
                             text=True, check=True, timeout=30).stdout.splitlines()  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        smi = [f"no nvidia-smi: {type(error).__name__}"]
    try:
        from torch.nn.attention.varlen import varlen_attn

        varlen = str(inspect.signature(varlen_attn))
    except ImportError:
        varlen = "none"
    return {asked: smi, "cuda": torch.version.cuda, "torch": torch.__version__, "varlen_attn": varlen,
            "python": sys.version.split()[0], "transformers": transformers.__version__}  # fmt: skip


def run_all(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Run each step in a process of its own; the result so far is written after each."""
    result: dict[str, Any] = {"benchmark": "gpu", "device": arguments.device, "gpu": gpu(), "machine": machine(),
                              "steps": {}}  # fmt: skip
    print(json.dumps(result["gpu"], indent=1), flush=True)
    files = [Path(arguments.folder) / "result.json", *([Path(arguments.out)] if arguments.out else [])]
    for name in names:
        command = [sys.executable, __file__, "--step", name, "--device", arguments.device, "--folder", arguments.folder]
        most = arguments.seconds or STEPS[NAMED[name]]
        began = time.perf_counter()
        try:
            done = subprocess.run([*command, *(["--tiny"] if arguments.tiny else [])], capture_output=True, text=True,
                                  check=False, timeout=most)  # fmt: skip
            errors, failed = done.stderr, f"status {done.returncode}"
            figures = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
        except subprocess.TimeoutExpired as late:
            errors = late.stderr.decode() if isinstance(late.stderr, bytes) else late.stderr or ""
            failed, figures = f"took more than {most:.0f} seconds", {}
        if not figures:
            figures = {"failed": failed, "last lines": errors.strip().splitlines()[-20:]}
        result["steps"][name] = {**figures, "took_s": round(time.perf_counter() - began, 1)}
        print(f"{name}: {json.dumps(result['steps'][name], indent=1)}", flush=True)
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1) + "\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="just enough to run every line")
    parser.add_argument("--steps", nargs="+", choices=list(NAMED), default=list(NAMED))
    parser.add_argument("--seconds", type=float, help="the most that any step may take")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        with es.config(device=arguments.device, progress=False):
            print(json.dumps(NAMED[arguments.step](Setting(arguments))))
        return
    with tempfile.TemporaryDirectory(prefix="embstore-bench-") as folder:
        arguments.folder = folder
        result = run_all(arguments, arguments.steps)
    failed = [name for name, figures in result["steps"].items() if "failed" in figures]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
