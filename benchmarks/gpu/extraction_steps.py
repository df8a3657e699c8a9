"""Steps of run.py: the rates of the GPU, the accuracy of its vectors, and the speed of extraction."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import transformers
from measure import Target
from plain import extract_plainly
from setting import Setting, closest, layers_of, needed_flops, row_nbytes, run_through, vectors_of

import embstore as es

RELATIVE_ALLOWED = 3e-3
FORWARD_SHARE, BINDING_SHARE, TIMES_BASELINE = 0.4, 0.8, 50.0
HALVES = ("float16", "bfloat16")
PIECE_NBYTES = 16 * 2**20


def rates(setting: Setting) -> dict[str, Any]:
    """Measure matrix products and copies of the GPU, and the disk, per second."""
    found = setting.found
    found["products"] = {}
    for name in (*HALVES, "float32"):
        with setting.noting(found["products"].setdefault(name, {})):
            found["products"][name] |= _products(setting, getattr(torch, name))
    found["copy_nbytes_per_second"] = _copy_rate(setting)
    found["disk_nbytes_per_second"] = _disk_rate(setting)
    setting.figures["products"] = found["products"]["float16"]["square"]
    setting.figures["copy"], setting.figures["disk"] = found["copy_nbytes_per_second"], found["disk_nbytes_per_second"]
    return found


def _products(setting: Setting, dtype: torch.dtype) -> dict[str, float]:
    """Flops a second of square products, and of those of BERT-base's inner layer over a batch."""
    side, rows = setting.size.square, setting.size.batches[-1]
    shapes = {
        "square": (side, side, side),
        "inner layer": (rows, 768 if side > 768 else 32, 3072 if side > 768 else 64),
    }
    return {name: _rate(setting, dtype, *shape) for name, shape in shapes.items()}


def _rate(setting: Setting, dtype: torch.dtype, rows: int, inner: int, columns: int) -> float:
    left = torch.randn(rows, inner, device=setting.device, dtype=dtype)
    right = torch.randn(inner, columns, device=setting.device, dtype=dtype)
    out = torch.empty(rows, columns, device=setting.device, dtype=dtype)

    def several() -> None:
        for _ in range(10):
            torch.matmul(left, right, out=out)

    setting.timed(several)
    seconds, times = 0.0, 0
    while seconds < setting.size.rate_seconds:
        seconds += setting.timed(several)
        times += 10
    return 2.0 * rows * inner * columns * times / seconds


def _copy_rate(setting: Setting) -> float:
    """Return bytes per second from the GPU into pinned memory (without a GPU, between two arrays)."""
    count = setting.size.buffer_nbytes // 2
    here = torch.ones(count, dtype=torch.float16, device=setting.device)
    there = torch.empty(count, dtype=torch.float16, pin_memory=setting.device.type == "cuda")
    setting.timed(lambda: there.copy_(here, non_blocking=True))
    return 2 * count / min(setting.timed(lambda: there.copy_(here, non_blocking=True)) for _ in range(5))


def _disk_rate(setting: Setting) -> float:
    """Bytes a second into one new file that lasts (fsync)."""
    piece = np.random.default_rng(setting.seed).bytes(min(PIECE_NBYTES, setting.size.buffer_nbytes))
    pieces = max(1, 2 * setting.size.buffer_nbytes // len(piece))
    file = setting.folder / "disk"
    began = time.perf_counter()
    with file.open("wb", buffering=0) as written:
        for _ in range(pieces):
            written.write(piece)
        os.fsync(written.fileno())
    seconds = time.perf_counter() - began
    file.unlink()
    return pieces * len(piece) / seconds


def correctness(setting: Setting) -> dict[str, Any]:
    """Compare the GPU's vectors in half precision with those of a CPU in float32, by word and layer."""
    cases = setting.found.setdefault("cases", [])
    for shape in dict.fromkeys(setting.size.shapes[:2]):
        sentences = setting.sentences[: setting.size.correctness_sentences]
        reference = setting.encoder(shape, dtype="float32", device="cpu")
        reference.use_batching("padded")
        tokenized = reference.tokenize(sentences)
        right = vectors_of(reference, tokenized, shape, 2048)
        for dtype in HALVES:
            encoder = setting.encoder(shape, dtype=dtype)
            for batching in encoder.candidate_batchings():
                case: dict[str, Any] = {"shape": shape, "dtype": dtype, "batching": batching}
                cases.append(case)
                with setting.noting(case):
                    encoder.use_batching(batching)
                    case |= closest(vectors_of(encoder, tokenized, shape, 4096), right)
    worst = [case["relative"] for case in cases if case["dtype"] == "float16" and "relative" in case]
    if worst:
        what = "float16 compared with CPU float32: largest relative difference of a vector"
        setting.targets.append(Target(what, max(worst), RELATIVE_ALLOWED, False))
    return {}


def forward(setting: Setting, shape: str) -> dict[str, Any]:
    """Words to vectors on the host, nothing stored: each batching and size with the last layer, the best with all."""
    encoder = setting.encoder(shape)
    sentences = setting.some(setting.size.forward_words // (1 if shape == setting.base else 2))
    tokenized = encoder.tokenize(sentences)
    flops, words = needed_flops(tokenized, shape), int(tokenized.sentence_indptr[-1])
    last = layers_of(shape)[-1:]
    cases = setting.found.setdefault("cases", [])
    setting.found |= {"words": words, "subwords": len(tokenized.ids)}
    batchings = [batching for batching in encoder.candidate_batchings() if batching != "equal"]
    grid = [(batching, size) for batching in batchings for size in setting.size.batches]
    tried = grid if shape == setting.base else [setting.need("best")]
    for batching, size in tried:
        case: dict[str, Any] = {"batching": batching, "batch_subwords": size, "layers": "last"}
        cases.append(case)
        if setting.left < 5 and len(cases) > 1:
            case["skipped"] = "out of time"
            setting.left_out.append(f"{shape}, {batching}, {size}: out of time")
            continue
        with setting.noting(case):
            encoder.use_batching(batching)
            seconds = setting.best(partial(run_through, encoder, tokenized, last, size))
            case |= _speed(setting, words, flops, seconds)
    done = [case for case in cases if "seconds" in case]
    if not done:
        return {}
    best = max(done, key=lambda case: case["words_per_second"])
    encoder.use_batching(best["batching"])
    size, layers = best["batch_subwords"], layers_of(shape)
    seconds = setting.best(partial(run_through, encoder, tokenized, layers, size))
    whole = {**best, "layers": "all", **_speed(setting, words, flops, seconds)}
    cases.append(whole)
    setting.figures.setdefault("best", (best["batching"], size))
    setting.figures[f"forward {shape}"] = best["words_per_second"]
    if shape == setting.base:
        target = Target(
            f"{shape} without storing, last layer: share of fp16 products", best["share"], FORWARD_SHARE, True
        )
        setting.targets.append(target)
        what = f"{shape} without storing, all layers copied: share of fp16 products"
        setting.targets.append(Target(what, whole["share"], FORWARD_SHARE, True))
    return {}


def _speed(setting: Setting, words: int, flops: float, seconds: float) -> dict[str, float]:
    return {
        "seconds": seconds,
        "words_per_second": words / seconds,
        "flops_per_second": flops / seconds,
        "share": flops / seconds / setting.need("products"),
    }


def storing(setting: Setting, shape: str) -> dict[str, Any]:
    """Text to a committed store of all layers, and what it is held up by."""
    words = setting.size.stored_words // (1 if shape == setting.base else 3)
    free = shutil.disk_usage(setting.folder).free
    words = min(words, int(0.4 * free / row_nbytes(shape)))
    sentences = setting.some(words)
    words = sum(map(len, sentences))
    encoder = setting.encoder(shape)
    batching, size = setting.figures.get("best", ("padded", setting.size.batches[0]))
    store = setting.folder / f"{shape}.zarr"
    shutil.rmtree(store, ignore_errors=True)
    timings = es.extraction.Timings()
    began = time.perf_counter()
    made = es.plan(
        sentences, model=encoder, options=es.ExtractionOptions(batch_subwords=size), calibrate=False, store=store
    )
    planned = time.perf_counter()
    es.extract(made, store, timings=timings)
    extracting, both = time.perf_counter() - planned, time.perf_counter() - began
    limits = {
        "forward pass": setting.figures.get(f"forward {shape}", float("nan")),
        "pinned copy": setting.need("copy") / row_nbytes(shape),
        "disk": setting.need("disk") / row_nbytes(shape),
    }
    binds = min((name for name in limits if limits[name] == limits[name]), key=limits.__getitem__)
    setting.figures[f"stored {shape}"] = words / both
    if shape == setting.base:
        setting.figures["store"] = store
    what = f"{shape}, all layers stored: share of what binds ({binds})"
    setting.targets.append(Target(what, words / extracting / limits[binds], BINDING_SHARE, True))
    return {
        "words": words,
        "batching": encoder.batching,
        "batching_before": batching,
        "batch_subwords": size,
        "plan_s": planned - began,
        "extract_s": extracting,
        "words_per_second": words / extracting,
        "words_per_second_with_plan": words / both,
        "limits_words_per_second": limits,
        "binds": binds,
        "stages_s": {**vars(timings.stages), **{name: value for name, value in vars(timings).items()
                                                if isinstance(value, float)}},
    }  # fmt: skip


def means(setting: Setting) -> dict[str, Any]:
    """The means of words in one pass, next to storing all vectors, and how far they are from the means of these."""
    sentences, found = setting.some(setting.size.stored_words // 4), setting.found
    encoder, size = setting.encoder(setting.base), setting.figures.get("best", ("padded", setting.size.batches[0]))[1]
    made = es.plan(
        sentences, model=encoder, options=es.ExtractionOptions(batch_subwords=size), calibrate=False, progress=False
    )
    full, store = setting.folder / "full.zarr", setting.folder / "means.zarr"
    found["words"], found["types"] = made.layout.n_rows, len(made.index.words)
    found["store_s"] = setting.timed(lambda: es.extract(made, full, progress=False))
    found["means_s"] = setting.timed(lambda: es.extraction.extract_means(made, store, progress=False))
    layer = layers_of(setting.base)[-1]
    right = es.static_vectors(es.open(full), layer=layer, method="mean", progress=False).vectors
    found["largest_difference"] = float(np.abs(es.open(store).select(layers=[layer]).vectors()[0] - right).max())
    shutil.rmtree(full)
    if found["largest_difference"]:
        raise ValueError(f"sums on {setting.device} are not exact")
    return {}


def baselines(setting: Setting, shape: str) -> dict[str, Any]:
    """The plain script, and one sentence per forward pass as in NeuroX, on the same GPU and the same sentences."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(setting.model(shape))
    found = setting.found
    path, device = setting.folder / "plain.h5", str(setting.device)
    for name in ("float32", "float16"):
        model = transformers.AutoModel.from_pretrained(setting.model(shape), dtype=getattr(torch, name)).eval()
        model.to(setting.device)
        some = setting.sentences[: setting.size.plain_sentences]
        plainly = partial(extract_plainly, tokenizer=tokenizer, model=model, path=path, dtype="float16", device=device)
        found[f"plain script, {name}"] = _compared(setting, plainly, some)
        if name == "float32":
            few = some[: setting.size.single_sentences]
            singly = partial(sentence_a_pass, tokenizer=tokenizer, model=model, path=path, device=device)
            found[f"a sentence a pass, {name}"] = _compared(setting, singly, few)
    path.unlink()
    ours = setting.figures.get(f"stored {shape}")
    if ours is not None:
        for kind, case in found.items():
            case["embstore_over_it"] = ours / case["words_per_second"]
            if kind.endswith("float32"):
                what = f"{shape}, planned and stored: times the speed of {kind}"
                setting.targets.append(Target(what, case["embstore_over_it"], TIMES_BASELINE, True))
    return found


def _compared(setting: Setting, extract: Any, sentences: list[list[str]]) -> dict[str, float]:
    extract(sentences[:8])
    seconds = setting.timed(partial(extract, sentences))
    words = sum(map(len, sentences))
    return {"words": words, "seconds": seconds, "words_per_second": words / seconds}


def sentence_a_pass(sentences: list[list[str]], tokenizer: Any, model: Any, path: Path, device: str) -> None:
    """As NeuroX goes about it: every sentence by itself, all layers to numpy, the pieces of a word averaged there."""
    with h5py.File(path, "w") as file, torch.no_grad():
        for number, words in enumerate(sentences):
            encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=512, return_tensors="pt")
            states = model(**encoded.to(device), output_hidden_states=True).hidden_states
            layers = np.stack([state[0].cpu().numpy() for state in states])
            owner = np.array([-1 if word is None else word for word in encoded.word_ids(0)])
            vectors = [layers[:, owner == word].mean(1) for word in range(len(words)) if (owner == word).any()]
            file.create_dataset(str(number), data=np.stack(vectors, 1))
