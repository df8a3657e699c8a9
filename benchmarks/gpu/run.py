"""All figures of a GPU, the most important first, each step in a process of its own.

    python benchmarks/gpu/run.py --out benchmarks/results/h100.json

Results are written after every step, so that a run that is cut off keeps what it has measured; a step that crashes or
takes too long is noted as failed, and the next one follows. `--steps correctness storing` runs only these;
`--device cpu --tiny` runs every line without a GPU, and its figures mean nothing. Models have random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from extract import needed_flops
from made import SHAPES, made_sentences, made_words, save_model
from measure import machine, timed
from rivals import good_script

import embstore as es

HALVES = ("float16", "bfloat16")
RELATIVE_ALLOWED = {"float16": 3e-3, "bfloat16": 3e-2}  # of a vector's own length
SECONDS = 120  # that a step may take; all together about six minutes on an H100


class Setting:
    """The device, a folder that the steps share, what they have found so far, and the sizes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.folder, self.tiny = arguments.device, Path(arguments.folder), arguments.tiny
        self.encoder_shape = "tiny" if self.tiny else "BERT-base"
        self.decoder_shape = "tiny, decoder" if self.tiny else "Llama-0.6B"
        self.side, self.nbytes = (64, 2**20) if self.tiny else (8192, 2**30)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The figures of the steps before."""
        file = self.folder / "result.json"
        return dict(json.loads(file.read_text())["steps"]) if file.exists() else {}

    def sentences(self, count: int) -> list[list[str]]:
        return made_sentences(count // 50 if self.tiny else count, made_words(60_000))

    def model(self, shape: str) -> Path:
        """The folder of a model of a shape, made when it is first asked for."""
        folder = self.folder / shape
        if not folder.exists():  # a model that was saved in part is not taken for one
            save_model(folder.with_suffix(".new"), made_words(60_000), **SHAPES[shape]).rename(folder)
        return folder

    def encoder(self, shape: str, dtype: str = "auto", device: str | None = None) -> Any:
        with es.config(device=device or self.device):
            return es.load_encoder(self.model(shape), compute_dtype=dtype)

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)

    def best(self, call: Callable[[], object]) -> float:
        """Return the seconds of the faster of two calls and of their work on the GPU, after one that is not counted."""

        def waited() -> None:
            call()
            self.wait()

        return min([timed(waited) for _ in range(3)][1:])

    def extracted(self, sentences: list[list[str]], encoder: Any, name: str) -> tuple[Path, float, float]:
        """Extract all layers; returns the store and the seconds of the plan and of the extraction."""
        store = self.folder / f"{name}.zarr"
        began = time.perf_counter()
        plan = es.plan(sentences, model=encoder, store=store)
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
    sentences = setting.sentences(500)
    figures: dict[str, Any] = {}
    for shape in (setting.encoder_shape, setting.decoder_shape):
        right_store, _, _ = setting.extracted(sentences, setting.encoder(shape, "float32", "cpu"), f"{shape} right")
        right = es.open(right_store).select().vectors().astype(np.float64)
        for dtype in HALVES:
            store, _, _ = setting.extracted(sentences, setting.encoder(shape, dtype), f"{shape} {dtype}")
            vectors = es.open(store).select().vectors().astype(np.float64)
            worst = float((np.linalg.norm(vectors - right, axis=-1) / np.linalg.norm(right, axis=-1)).max())
            figures[f"{shape}, {dtype}"] = {"relative": worst, "holds": worst <= RELATIVE_ALLOWED[dtype]}
    return figures


def storing(setting: Setting) -> dict[str, Any]:
    """Text to a committed store of all layers, next to the least time of products, copy and disk."""
    sentences = setting.sentences(20_000)
    encoder = setting.encoder(setting.encoder_shape)
    setting.extracted(sentences[: len(sentences) // 20], encoder, "warm")
    store, planning, extracting = setting.extracted(sentences, encoder, "stored")
    words, config = sum(map(len, sentences)), SHAPES[setting.encoder_shape]
    tokenizer = transformers.AutoTokenizer.from_pretrained(setting.model(setting.encoder_shape))
    lengths = np.array([len(ids) for ids in tokenizer(sentences, is_split_into_words=True)["input_ids"]])
    nbytes = words * (config["num_hidden_layers"] + 1) * config["hidden_size"] * 2
    flops = needed_flops(argparse.Namespace(**config), lengths)
    limits = {"products": flops / setting.figures["rates"]["products_float16_flops"],
              "copy": nbytes / setting.figures["rates"]["copy_nbytes"],
              "disk": nbytes / setting.figures["rates"]["disk_nbytes"]}  # fmt: skip
    binds = max(limits, key=limits.__getitem__)
    return {"words": words, "plan_s": planning, "extract_s": extracting, "words_per_second": words / extracting,
            "batching": encoder.batching, "limits_s": limits, "binds": binds, "share": limits[binds] / extracting,
            "store": str(store)}  # fmt: skip


def baseline(setting: Setting) -> dict[str, Any]:
    """The good script on the same device: sorted, a token budget, one memory map."""
    sentences = setting.sentences(4_000)
    folder = setting.model(setting.encoder_shape)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float16 if setting.device != "cpu" else None)
    model = model.eval().to(setting.device)
    budget = 32768 if setting.device != "cpu" else 2048
    script = partial(good_script, tokenizer=tokenizer, model=model, path=setting.folder / "script.npy", budget=budget)
    script(sentences[:40])
    seconds = timed(lambda: script(sentences))
    words = sum(map(len, sentences))
    return {"words_per_second": words / seconds,
            "embstore_over_it": setting.figures["storing"]["words_per_second"] * seconds / words}  # fmt: skip


def decoder(setting: Setting) -> dict[str, Any]:
    """A decoder with grouped keys: text to a store of all layers."""
    sentences = setting.sentences(4_000)
    encoder = setting.encoder(setting.decoder_shape, "bfloat16" if setting.device != "cpu" else "auto")
    _, planning, extracting = setting.extracted(sentences, encoder, "decoder")
    words = sum(map(len, sentences))
    return {"plan_s": planning, "words_per_second": words / extracting, "batching": encoder.batching}


def queries(setting: Setting) -> dict[str, Any]:
    """Geometry and exact neighbors of the store, on the device and on the CPU: seconds, and values compared."""
    store = es.open(setting.figures["storing"]["store"])
    rows = np.sort(np.random.default_rng(0).choice(store.n_rows, min(1024, store.n_rows), replace=False))
    asked = store.vectors(rows, layers=store.layers[-1])[0].astype(np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "geometry": lambda: es.geometry(store)["value"].to_numpy(),
        "neighbors": lambda: es.neighbors(store, asked, k=10)["score"].to_numpy(),
    }
    figures: dict[str, Any] = {}
    for name, call in calls.items():
        values = {}
        for device in dict.fromkeys((setting.device, "cpu")):
            with es.config(device=device):
                values[device] = call()
                figures[f"{name}, {device}, s"] = setting.best(call)
        mine, cpu = values[setting.device], values["cpu"]
        figures[f"{name}, holds"] = bool(np.allclose(mine, cpu, rtol=1e-3, atol=1e-5, equal_nan=True))
    return figures


def probes(setting: Setting) -> dict[str, Any]:
    """Linear probes of all layers of the store, on the device and on the CPU: seconds and accuracy."""
    store = es.open(setting.figures["storing"]["store"])
    words = store.table(columns=["word"])["word"].cast(str)
    class_of = {word: f"class {number % 10}" for number, word in enumerate(sorted(set(words)))}
    store = store.with_labels("class", [class_of[word] for word in words])
    held_out = set(list(class_of)[::5])
    split = es.probes.split_words(
        {word: [name] for word, name in class_of.items() if word not in held_out},
        {word: [name] for word, name in class_of.items() if word in held_out},
    )
    figures: dict[str, Any] = {}
    for device in dict.fromkeys((setting.device, "cpu")):
        with es.config(device=device):
            probe = es.ClassProbe(training=es.probes.Training(epochs=2))
            figures[f"{device}, s"] = setting.best(partial(probe.fit, store, split))
    return figures


STEPS = {step.__name__: step for step in (rates, correctness, storing, baseline, decoder, queries, probes)}


def run_step(arguments: argparse.Namespace) -> None:
    """Run one step in this process and print its figures."""
    with es.config(device=arguments.device, progress=False):
        print(json.dumps(STEPS[arguments.step](Setting(arguments))))


def run_all(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Run each step in a process of its own; the result so far is written after each."""
    result: dict[str, Any] = {"benchmark": "gpu", "device": arguments.device, "machine": machine(), "steps": {}}
    files = [Path(arguments.folder) / "result.json", *([Path(arguments.out)] if arguments.out else [])]
    for name in names:
        command = [sys.executable, __file__, "--step", name, "--device", arguments.device, "--folder", arguments.folder]
        began = time.perf_counter()
        try:
            done = subprocess.run([*command, *(["--tiny"] if arguments.tiny else [])], capture_output=True, text=True,
                                  check=False, timeout=arguments.seconds)  # fmt: skip
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            figures = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": lines[-1]}
        except subprocess.TimeoutExpired:
            figures = {"failed": f"took more than {arguments.seconds} seconds"}
        result["steps"][name] = {**figures, "took_s": round(time.perf_counter() - began, 1)}
        print(f"{name}: {json.dumps(result['steps'][name], indent=1)}", flush=True)
        for file in files:
            file.write_text(json.dumps(result, indent=1) + "\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="just enough to run every line")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the most that a step may take")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        run_step(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="embstore-bench-") as folder:
        arguments.folder = folder
        result = run_all(arguments, arguments.steps)
    failed = [name for name, figures in result["steps"].items() if "failed" in figures]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
